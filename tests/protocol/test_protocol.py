"""Both halves of a round without any engine: books, loss, restarts, hostile uploads, clients that come and go."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dagc
from dagc import DagcError, InvalidInput, MalformedPayload, Sparse
from dagc.policies import METHODS, Plan
from dagc.protocol import ModelServer, Server, Uplink
from dagc.wire import payload_size
from dagc.wire.frame import checksum
from tests.helpers.states import copied, same
from tests.protocol.runs import ACTIONS, SIZE, Run, gradient

PLANS = [
    {"method": "dagc", "bytes": 40},
    {"method": "dagc", "bytes": 40, "down": 60, "clip": 30.0},
    {"method": "dagc-r", "ratio": 0.02},
    {"method": "dagc-r", "bytes": 30, "values": "sign", "frames": "compact", "overhead": 0.2},
    {"method": "thrifty", "bytes": 30},
    {"method": "random-k", "bytes": 60, "values": "int8"},
    {"method": "dagc-a", "threshold": 1.0, "values": "int8"},
    {"method": "accordion", "ratio": 0.02, "options": {"interval": 1}},
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan["method"])
@given(actions=ACTIONS)
@settings(max_examples=25, deadline=None)
def test_nothing_is_lost_whatever_is_lost_or_restarted(plan, actions):
    """What was delivered plus what clients keep is everything computed, and a restart changes no bit."""
    run, undisturbed = Run(Plan(**plan)), Run(Plan(**plan))
    delivered = {}
    for present, lost, unread, restarted in actions:
        for upload in run.round(sorted(present), lost, unread):
            delivered[upload.client] = delivered.get(upload.client, 0) + upload.update.dense().double()
        undisturbed.round(sorted(present), lost, unread)
        if "s" in restarted:
            run.restart_server()
        for name in restarted & set(run.clients):
            run.restart(name)
    assert np.array_equal(run.server.downlink.model, undisturbed.server.downlink.model)
    for name, computed in run.computed.items():
        uplink = run.clients[name].uplink
        uplink.settle(run.server.members[name].accepted_round)
        kept = uplink.feedback.residual.double()
        assert torch.allclose(delivered.get(name, 0) + kept, computed, atol=1e-4), name


@pytest.mark.parametrize("how", ["bytes", "rate"])
def test_a_federation_that_grows_from_3_to_300_clients_keeps_its_budget_and_goes_on(how):
    budget = {"bytes": 20} if how == "bytes" else {"rate": "600 B/training"}
    run = Run(Plan(**budget), rounds=30)
    everybody, earned = [str(i) for i in range(300)], 0
    for t in range(30):
        here = everybody[: 3 + 10 * t]
        earned += 20 * len(here)
        run.round(here)
        assert run.sent <= earned, "a budget in bytes is never passed"
    assert run.sent > 0.8 * earned, "and most of it is used"
    assert len([name for name in run.clients if run.server.members[name].accepted_round]) > 200, (
        "everybody's turn comes"
    )


@pytest.mark.parametrize("plan", [{}, {"values": "sign", "frames": "compact", "overhead": 0.2}])
@given(lost=st.lists(st.sets(st.sampled_from("01234")), min_size=30, max_size=30))
@settings(max_examples=15, deadline=None)
def test_a_byte_budget_is_not_passed_by_uploads_that_never_arrive(plan, lost):
    """They were sent all the same."""
    run, earned = Run(Plan(method="dagc-r", bytes=40, **plan)), 0
    for t in range(30):
        run.round("01234", lost[t])
        earned += 5 * 40
        assert run.sent <= earned


def test_reporters_that_hold_nothing_any_more_do_not_end_a_run():
    server = Server(Plan(method="accordion", ratio=0.1), SIZE)
    server.join("0", 5)
    order = server.orders("0")["0"]
    upload = Uplink(server.plan.for_clients(), [SIZE]).upload(gradient("0", 0), order)
    server.close([server.read("0", upload.frame, upload.norm)])
    server.join("0", 0)
    server.join("1", 5)
    assert server.orders("01")["1"].amount


def test_caps_limit_who_has_them_and_nobody_else():
    plan = Plan(
        method="dagc-r", bytes=40, overhead=0.2, values="sign", frames="compact", caps={"0": 1 / SIZE, "1": 0.05}
    )
    run = Run(plan)
    sent = dict.fromkeys("0123", 0)
    for _ in range(60):
        for upload in run.round("0123"):
            sent[upload.client] += len(upload.update)
            assert upload.client != "0" or len(upload.update) <= 1
            assert upload.client != "1" or len(upload.update) <= 20
    assert all(sent.values())
    assert sent["3"] > sent["2"], "by data, whatever the caps of others are"


def test_numbers_of_numpy_are_pythons_own():
    plan = Plan(ratio=np.float32(0.5), caps={"0": np.float64(0.5)}, seed=np.int64(3), down="64")
    assert [type(value) for value in (plan.ratio, plan.caps["0"], plan.seed, plan.down)] == [float, float, int, int]
    assert Plan(ratio=0.5, down="64") == Plan(ratio=0.5, down=64)
    assert Plan(ratio=0.5, seed=2**63 - 1).seed == 2**63 - 1
    assert repr(Plan(bytes=64.0, norm_bound=1e300)) == repr(Plan(bytes=np.int32(64), norm_bound=np.float64(1e300)))


def test_a_ratio_that_is_less_than_an_entry_each_makes_clients_wait():
    run = Run(Plan(method="dagc-r", ratio=0.0005))  # a fifth of an entry for each client
    counts = [len(run.round(["0", "1", "2"])[0].update) for _ in range(20)]
    assert sum(len(up.update) for _ in range(10) for up in run.round(["0", "1", "2"])) in (5, 6, 7)
    assert max(counts) == 1


def test_a_byte_budget_that_no_frame_fits_into_is_saved_up():
    run = Run(Plan(method="dagc-r", bytes=3))
    assert sum(len(up.frame) for _ in range(40) for up in run.round(["0"])) in range(60, 121)


def test_clients_join_leave_and_return_to_their_own_savings_and_residuals():
    """The decisions for those who stay do not depend on what a client that left is called."""
    plan = Plan(method="dagc-r", bytes=15, values="sign", frames="compact", overhead=0.2)
    run = Run(plan)
    for t in range(20):
        run.round([name for name in "0123" if not (name == "1" and 5 <= t < 12)])
    saved = run.server.budget.policy.state_dict()["saved"]
    assert set(saved) == set("0123")
    assert run.clients["1"].uplink.sent_round > 12


class TestReading:
    """What the server refuses."""

    def server(self, **plan):
        server = ModelServer(Plan(**{"method": "dagc-r", "ratio": 0.01, **plan}), torch.zeros(SIZE))
        for name in "01":
            server.join(name, 10)
        return server, server.orders("01")

    def frame(self, entries, **options):
        sparse = Sparse(SIZE, range(entries), np.ones(entries))
        return dagc.encode(sparse, **{"round": 1, **options})

    def test_more_entries_than_ordered(self):
        server, orders = self.server()
        assert orders["0"].amount == 4
        with pytest.raises(MalformedPayload, match="bytes for 4 entries, which take at most"):
            server.read("0", self.frame(5))

    def test_more_bytes_than_that_many_entries_take(self):
        server, _ = self.server()
        most = int(payload_size(SIZE, 4)[0])
        body = bytes([0x20, 4]) + bytes(8) + bytes(16)  # as if the indices were drawn from a seed
        frame = body + checksum(body, SIZE, 1)
        assert len(frame) > most
        with pytest.raises(MalformedPayload, match=f"sends {len(frame)} bytes for 4 entries"):
            server.read("0", frame)

    @pytest.mark.parametrize(
        ("options", "words"),
        [({"round": 2}, "another round"), ({"values": "int8"}, "value codec 1, not fp32")],
    )
    def test_another_round_or_codec(self, options, words):
        server, _ = self.server()
        with pytest.raises(MalformedPayload, match=words):
            server.read("0", self.frame(4, **options))

    def test_a_second_upload_or_one_without_an_order(self):
        server, _ = self.server()
        server.read("0", self.frame(4))
        for name in "09":
            with pytest.raises(MalformedPayload, match="has no order"):
                server.read(name, self.frame(4))

    def test_something_where_nothing_was_ordered(self):
        server, orders = self.server(bytes=6, ratio=None)
        silent = next(name for name, order in orders.items() if order.silent)
        assert len(server.read(silent, b"").update) == 0
        server, _ = self.server(bytes=6, ratio=None)
        with pytest.raises(MalformedPayload, match="was ordered to send nothing"):
            server.read(silent, self.frame(1))

    def test_silence_where_something_was_ordered_and_odd_norms(self):
        server, _ = self.server(method="accordion")
        with pytest.raises(MalformedPayload):
            server.read("0", b"")
        for norm in (float("nan"), float("inf"), -1.0, 1e300):
            with pytest.raises(MalformedPayload, match="norm"):
                server.read("0", self.frame(4), norm)

    def test_what_is_refused_changes_nothing_and_costs_no_more_than_its_order(self):
        """A reply of megabytes must not spend what the others may send."""
        server, _ = self.server(ratio=None, bytes=200)
        before = copied(server)
        with pytest.raises(MalformedPayload):
            server.read("0", b"\xda\x6c" + bytes(5_000_000))
        assert same(copied(server), before)
        assert server.budget.account.balance >= 0

    def test_values_that_would_make_the_model_overflow(self):
        server, _ = self.server()
        for value in (3.3e38, -2e30):
            frame = dagc.encode(Sparse(SIZE, [7], [value]), round=1)
            with pytest.raises(
                MalformedPayload, match=r"'0' sends .* the model would overflow: lower the learning rate"
            ):
                server.read("0", frame)

    def test_a_model_that_is_not_finite_is_refused_before_anything_changes(self):
        server, _ = self.server(down=50)
        before = copied(server)
        for wrong in (np.nan, np.inf):
            with pytest.raises(DagcError, match="NaN or infinity"):
                server.advance([], torch.full((SIZE,), wrong))
            assert same(copied(server), before)

    def test_names_and_claims_that_are_no_such_thing(self):
        server, _ = self.server()
        with pytest.raises(InvalidInput, match="there is no member 'x'"):
            server.orders(["x"])
        with pytest.raises(InvalidInput, match="claims 'many' examples"):
            server.join("2", "many")

    def test_the_sum_is_the_same_in_any_order_and_stays_as_it_is(self):
        server, orders = self.server()
        uploads = [server.read(name, self.frame(order.amount)) for name, order in orders.items()]
        total = server.total(uploads)
        before = total.clone()
        assert torch.equal(server.total(uploads[::-1]), total)
        server.total(uploads[:1])
        assert torch.equal(total, before)

    def test_claims_of_examples_that_no_federation_has(self):
        server, _ = self.server()
        for examples in (-1, float("nan"), float("inf"), 2**53):
            with pytest.raises(InvalidInput, match="examples"):
                server.join("0", examples)

    def test_a_member_without_data_sends_nothing_and_may_get_some_later(self):
        server = Server(Plan(method="dagc-r", ratio=0.01), SIZE)
        server.join("0", 0)
        assert server.orders(["0"])["0"].silent
        server.join("0", 5)
        assert server.orders(["0"])["0"].amount == 4


def test_a_rate_per_training_holds_for_a_training_that_gets_longer():
    run = Run(Plan(method="dagc-r", rate="2 kB/training"), rounds=8)
    for _ in range(6):
        run.round("01234")
    run.rounds = 12
    run.restart_server()
    for _ in range(6):
        run.round("01234")
    assert 0.8 * 10_000 < run.sent <= 10_000


def test_a_plan_with_caps_below_one_entry_is_refused_for_that_model_before_any_work():
    plan = Plan(method="dagc-r", ratio=0.1, caps={"0": 0.001})
    with pytest.raises(InvalidInput, match=r"the cap 0.001 of '0' is below one entry of 400"):
        Server(plan, SIZE)
    assert Server(plan, 1000).plan is not None


def test_settings_make_the_same_plan_again():
    from dagc.testing import plans_of

    for method, kind in METHODS.items():
        for plan in plans_of(method):
            assert Plan(**plan.changed()) == plan
        assert kind.about, f"{method} has a line for people who choose"
