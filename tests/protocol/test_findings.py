"""What the third attack and an outside reading found in the protocol: a test for each, named after it."""

import errno
import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from dagc import CheckpointError, InvalidInput, MalformedPayload, Plan, allocate, checkpoint
from dagc.compressors import COMPRESSORS, compressor
from dagc.files import remove_partial
from dagc.policies import plan as plans
from dagc.policies.rate import SAVED_BYTES, SAVED_ROUNDS, Account, make_rate
from dagc.protocol import Download, ModelServer, Order, Replica, Server, Uplink
from dagc.protocol.messages import BEST, MOST_VERSIONS
from tests.chaos.faults import Faults
from tests.helpers.states import check_all_or_nothing, copied, same
from tests.protocol.runs import Run

FULL = Plan(method="dagc").for_size(400).for_clients()


class TestFilesThatCannotBeRead:
    """Risk a: a passing error is not damage. Nothing is removed, nothing is replaced."""

    @pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES, errno.ESTALE])
    def test_a_checkpoint_that_cannot_be_read_now_is_not_removed(self, tmp_path, code):
        for round in (1, 2):
            checkpoint.save(tmp_path, {"round": round})
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        with Faults(0).unreadable(code, Path.is_file), warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(CheckpointError, match="cannot be read"):
                checkpoint.load(tmp_path)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        assert checkpoint.load(tmp_path) == {"round": 2}

    @pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES])
    def test_a_folder_that_cannot_be_listed_now_is_not_an_empty_one(self, tmp_path, code):
        """Python's glob takes it for one, and the run would have begun again, without its metrics."""
        newest = checkpoint.save(tmp_path, {"round": 1})
        with Faults(0).unreadable(code):
            with pytest.raises(CheckpointError, match=f"{tmp_path} cannot be read"):
                checkpoint.load(tmp_path)
            remove_partial(tmp_path)
        assert checkpoint.load(tmp_path) == {"round": 1}
        with Faults(0).unreadable(code), pytest.raises(CheckpointError, match=f"{tmp_path} cannot be read"):
            checkpoint.save(tmp_path, {"round": 2})  # it cannot remove older ones, which does no harm
        assert checkpoint.load(tmp_path) == {"round": 2}
        assert checkpoint.load(tmp_path / "nothing") is None
        assert newest.exists()

    def test_too_little_memory_is_not_damage_either(self, tmp_path, monkeypatch):
        for round in (1, 2):
            checkpoint.save(tmp_path, {"round": round, "x": np.ones(3)})

        def load(content):
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr("dagc.state.load", load)
            with pytest.raises(CheckpointError, match="too little memory"):
                checkpoint.load(tmp_path)
        assert checkpoint.load(tmp_path)["round"] == 2

    def test_a_damaged_one_beside_one_that_cannot_be_read_stays_as_well(self, tmp_path):
        for round in (1, 2):
            newest = checkpoint.save(tmp_path, {"round": round})
        newest.write_bytes(b"damaged")
        older = checkpoint.checkpoints(tmp_path)[1]
        with (
            Faults(0).unreadable(errno.EIO, older.__eq__),
            pytest.warns(UserWarning, match="damaged"),
            pytest.raises(CheckpointError, match="cannot be read"),
        ):
            checkpoint.load(tmp_path)
        assert newest.exists()
        with pytest.warns(UserWarning, match="using the one before"):
            assert checkpoint.load(tmp_path) == {"round": 1}


@pytest.mark.parametrize("settings", [{"method": "dagc-r", "ratio": 0.1}, {"method": "dagc"}, {"method": "none"}])
def test_bf16_with_step_ahead_loses_no_entries(settings):
    """Risk b: the norm of the change was taken after the entries had left the residual, and failed on bf16."""
    plan = Plan(**settings, step_ahead=0.5).for_size(400).for_clients()
    uplink, change = Uplink(plan, [(20, 20)]), torch.randn(400, generator=torch.Generator().manual_seed(1)).bfloat16()
    name = settings["method"]
    order = Order(1, {"none": None, "dagc": 50}.get(name, 40), {"none": "none", "dagc": BEST}.get(name, "top-k"))
    upload = uplink.upload([change[:100], change[100:]], order)
    assert uplink.last_update_norm == pytest.approx(float(change.float().norm()))
    assert len(upload.update)
    kept = change.float()
    kept -= upload.update.dense()
    assert torch.equal(uplink.feedback.residual, kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_change_that_is_refused_leaves_no_trace(dtype):
    """Risk b, its relatives."""
    for plan, order in ((FULL, Order(1, 50, BEST)), (Plan(method="dagc-r", ratio=0.1, step_ahead=0.5), Order(1, 40))):
        uplink = Uplink(plan.for_clients() if isinstance(plan, Plan) else plan, [400])
        uplink.upload(torch.ones(400, dtype=dtype), order)
        before = copied(uplink)
        with pytest.raises(InvalidInput):
            uplink.upload(torch.full((400,), torch.inf, dtype=dtype), order._replace(round=2))
        assert same(copied(uplink), before)


def test_a_downlink_in_bytes_does_not_starve_if_most_clients_are_new():
    """Risk c: newcomers counted as away for all rounds, so that each round had a smaller part of the budget."""
    server = ModelServer(Plan(method="top-k", ratio=0.1, down=100), torch.zeros(400))
    sent = []
    for t in range(60):
        names = [f"{t}-{i}" for i in range(5)]
        for name in names:
            server.join(name, 10)
        server.orders(names)
        before = server.downlink.version
        server.advance([], server.target + torch.randn(400, generator=torch.Generator().manual_seed(t)))
        sent.append(server.downlink.version - before)
    assert sum(sent[-20:]) >= 10


def test_clients_that_come_back_after_long_still_share_one_budget():
    """Risk c: what is spent on a visit does not change for them."""
    server = ModelServer(Plan(method="top-k", ratio=0.1, down=100), torch.zeros(400))
    for t in range(60):
        name = str(t % 20)
        server.join(name, 10)
        server.orders([name])
        server.advance([], server.target + 1.0)
    assert server.roster.return_gap > 15
    assert server.downlink.version < 40


def test_without_numba_auto_frames_are_coded_with_a_warning_and_the_choice_stays(monkeypatch, caplog):
    """Risk e: the choice is the same on every machine; that it is slow here is logged once."""
    monkeypatch.setattr(plans, "compiled", lambda: False)
    plans._warn_without_numba.cache_clear()
    with caplog.at_level(logging.WARNING, "dagc.policies"):
        frames = [Plan(method="thrifty").for_size(size).frames for size in (1000, 1000, 1 << 20)]
    assert frames == ["coded", "coded", "compact"]
    assert [record.getMessage()[:16] for record in caplog.records] == ["frames are coded"]


def test_a_plugins_integer_threshold_is_no_limit_of_entries(monkeypatch):
    """Risk h."""

    @compressor("threshold")
    def at_least(vector, parameter, *, seed=0):
        return COMPRESSORS["hard-threshold"](vector, float(parameter), seed=seed)

    monkeypatch.setitem(COMPRESSORS, "at-least", at_least)
    order = Order(1, 2, "at-least").checked()
    assert order.most_entries is None
    upload = Uplink(Plan(method="dagc-a", threshold=2.0).for_clients(), [6]).upload(torch.arange(6.0), order)
    assert upload.update.indices.tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("budget", [{"bytes": 40}, {"rate": "40 kB/training"}], ids=str)
def test_unspent_budget_is_saved_for_a_few_rounds_only(budget):
    """Row 9: it piled up, until a newcomer's first order was the whole model."""
    rounds = 1000
    server = Server(Plan(method="dagc-r", **budget, caps={"a": 0.001}), 20_000, rounds)
    server.join("a", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(500):
            server.orders("a")
            server.close([])
    server.join("b", 100)
    order = server.orders("b")["b"]
    assert server.budget.most_bytes(order) <= max(SAVED_ROUNDS * 40, SAVED_BYTES) + 40


def test_what_a_rate_per_training_saves_is_bounded_and_still_spent():
    """Row 9, for rates."""
    account = Account(rate=make_rate("100 kB/training"), rounds=100)
    for _ in range(50):
        account.earn(clients=1)
    assert account.balance == SAVED_ROUNDS * 1000
    account.earn(clients=10)
    assert account.balance == 26_000


def test_a_budget_that_caps_do_not_allow_warns_with_the_same_text_in_every_round():
    """Rows 10–23: Python remembers each text of a warning, so that memory grew with the rounds."""
    texts = set()
    for budget in range(100, 400, 7):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            allocate([1, 2], bytes=budget, size=1000, method="uniform", caps=[0.002, 0.002])
            allocate([1, 2], ratio=budget / 1000, method="uniform", caps=[0.002, 0.002])
        texts |= {str(warning.message) for warning in caught}
    assert len(texts) == 1


HUGE = 10**30


class TestHostileOrders:
    """Rows 10–23: `parameter=None`, versions of 2^63 − 1, NaN."""

    @pytest.mark.parametrize("name", ["top-k", "random-k", "hard-threshold", BEST])
    def test_an_amount_of_none_is_refused_where_there_is_a_unit(self, name):
        uplink = Uplink(FULL, [400])
        with pytest.raises(MalformedPayload, match="amount = None"):
            uplink.upload(torch.ones(400), Order(1, None, name))
        assert not uplink.feedback.steps

    @pytest.mark.parametrize("name", ["top-k", "random-k", BEST])
    @pytest.mark.parametrize("amount", [0.5, 1e9, True, float("nan"), HUGE, "3"])
    def test_entries_and_bytes_are_whole_numbers(self, name, amount):
        with pytest.raises(MalformedPayload, match="amount = "):
            Uplink(FULL, [400]).upload(torch.ones(400), Order(1, amount, name))

    @pytest.mark.parametrize("amount", [float("nan"), float("inf"), -1.0, HUGE**2])
    def test_a_threshold_is_a_number_of_this_world(self, amount):
        with pytest.raises(MalformedPayload, match="amount = "):
            Uplink(FULL, [400]).upload(torch.ones(400), Order(1, amount, "hard-threshold"))

    @pytest.mark.parametrize("name", ["top-k", "random-k", BEST])
    def test_the_largest_amount_costs_no_more_than_the_model(self, name):
        order = Order(1, (1 << 48) - 1, name).checked()
        if name != BEST:
            with pytest.raises(InvalidInput):
                Uplink(FULL, [400]).upload(torch.ones(400), order)
            return
        assert len(Uplink(FULL, [400]).upload(torch.ones(400), order).frame) < 4000

    @pytest.mark.parametrize("least", [1, 2, 3, 7, 8, (1 << 48) - 1])
    @pytest.mark.parametrize("amount", [0, 1, 7, 8, 100])
    def test_any_least_bytes_keep_to_the_amount(self, least, amount):
        uplink, change = Uplink(FULL, [(24, 30), 173]), torch.randn(893, generator=torch.Generator().manual_seed(0))
        upload = uplink.upload(change, Order(1, amount, BEST, share=0.001, least=least))
        assert len(upload.frame) <= amount
        uplink.settle(0)
        assert torch.allclose(uplink.feedback.residual, change)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"version": (1 << 63) - 1},
            {"version": MOST_VERSIONS},
            {"version": -2},
            {"since": 5},
            {"since": -2},
            {"since": (1 << 63) - 1, "version": (1 << 63) - 1},
            {"steps": 1 << 62},
            {"steps": 2},
            {"steps": -1},
            {"checksum": -1},
            {"checksum": 1 << 32},
            {"version": 1.0},
            {"steps": None},
            {"since": True},
            {"version": -1, "since": 0},
            {"version": -1, "steps": 1},
        ],
        ids=str,
    )
    def test_a_download_of_an_impossible_version_is_refused_and_sticks_to_nothing(self, wrong):
        replica = Replica([40])
        server = ModelServer(Plan(method="dagc-r", ratio=0.5), torch.ones(40))
        replica.receive(server.introduction())
        before = copied(replica)
        with pytest.raises(MalformedPayload):
            replica.receive(Download(0, 1, 0, 1, b"")._replace(**wrong))
        assert same(copied(replica), before)

    @pytest.mark.parametrize("version", [MOST_VERSIONS, (1 << 63) - 1, 1 << 64])
    def test_a_whole_model_of_an_impossible_version_is_refused(self, version):
        """It could not be saved."""
        replica, server = Replica([40]), ModelServer(Plan(method="dagc-r", ratio=0.5), torch.ones(40))
        with pytest.raises(MalformedPayload, match="the download cannot be"):
            replica.receive(server.introduction()._replace(version=version))
        assert server.introduction()._replace(version=MOST_VERSIONS - 1).checked()

    def test_a_million_empty_broadcasts_are_refused_at_once(self):
        """One byte each: their number must be that of the versions, which a file can hold."""
        replica = Replica([40])
        with pytest.raises(MalformedPayload):
            replica.receive(Download(-1, 3, 0, 1 << 40, bytes(1 << 20)))


class TestStatesOfUpdates:
    """Relatives of the findings, in the new form of uploads."""

    def test_a_client_whose_model_was_rounded_for_a_visit_continues_from_its_file(self):
        server = ModelServer(Plan(method="dagc"), torch.randn(400))
        replica, other = Replica([(20, 20)]), Replica([(20, 20)])
        server = ModelServer(Plan(method="dagc"), torch.randn(400), shapes=[(20, 20)])
        replica.receive(server.downlink.visit())
        other.load_state_dict(copied(replica))
        assert same(copied(other), copied(replica))
        other.receive(server.introduction())
        assert torch.equal(other.model, server.model)

    def test_a_rollback_brings_the_pending_frame_back(self):
        """Otherwise the file has another upload than the one that is pending."""
        uplink = Uplink(FULL, [400])
        uplink.upload(torch.randn(400), Order(1, 50, BEST))
        before, snapshot = copied(uplink), uplink.snapshot()
        uplink.settle(1)
        uplink.upload(torch.randn(400), Order(2, 70, BEST, accepted=1))
        uplink.rollback(snapshot)
        assert same(copied(uplink), before)

    def test_a_damaged_state_with_a_pending_update_is_refused_and_changes_nothing(self):
        run = Run(Plan(method="dagc", bytes=40), size=40)
        for t in range(3):
            run.round("01", lost="1" if t == 2 else "")
        check_all_or_nothing(run.clients["1"].uplink)
        check_all_or_nothing(run.clients["1"].replica)
        check_all_or_nothing(run.server)

    def test_an_upload_that_is_cut_to_nothing_is_not_accepted(self):
        """No bytes are a valid update that says nothing: its client must not take its own for accepted."""
        server, uplink = ModelServer(Plan(method="dagc", bytes=50), torch.zeros(400)), Uplink(FULL, [400])
        server.join("a", 10)
        change = torch.randn(400)
        upload = uplink.upload(change, server.orders("a")["a"])
        assert upload.frame
        server.advance([server.read("a", b"")], server.target)
        uplink.settle(server.orders("a")["a"].accepted)
        assert torch.allclose(uplink.feedback.residual, change, atol=1e-5)
