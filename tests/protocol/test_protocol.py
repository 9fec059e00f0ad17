"""Both halves of a round without any engine: books, loss, restarts, hostile uploads, clients that come and go."""

import json

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

import dagc
from dagc import DagcError, InvalidInput, MalformedPayload, OutOfSync, Sparse
from dagc.policies import POLICIES, Plan
from dagc.protocol import Client, Order, Server
from dagc.protocol.client import PIECE
from dagc.training import Config
from dagc.wire import payload_size

SIZE = 400


def gradient(name, t, size=SIZE):
    generator = torch.Generator().manual_seed(1000 * int(name) + t)
    return torch.randn(size, generator=generator).pow(3)


def copied(half):
    """The state as it would come back from disk."""
    arrays = {name: np.array(array) for name, array in half.arrays().items()}
    return arrays, json.loads(json.dumps(half.numbers()))


class Run:
    """An engine of a few lines: every message can be lost, every half restarted from its state."""

    def __init__(self, plan, rounds=None, size=SIZE):
        self.plan, self.rounds, self.size = plan, rounds, size
        self.server = Server(plan, torch.zeros(size), rounds)
        self.clients, self.computed, self.sent = {}, {}, 0

    def round(self, present, lost=(), unread=()):
        for name in present:
            self.clients.setdefault(name, Client([self.size]))
            self.server.join(name, examples=100 + 37 * int(name))
        uploads = []
        for name, order in self.server.orders(present).items():
            client = self.clients[name]
            try:
                client.receive(self.server.download(name))
            except OutOfSync:
                self.server.out_of_sync(name)
                continue
            if name in unread:
                continue
            client.settle(order.taken)
            change = gradient(name, self.server.round, self.size)
            self.computed[name] = self.computed.get(name, 0) + change.double()
            frame = client.upload(change, order).frame
            self.sent += len(frame)
            if name not in lost:
                uploads.append(self.server.read(name, frame))
        model = None
        if uploads:
            model = torch.from_numpy(self.server.downlink.model) - self.server.total(uploads)
        self.server.close(uploads, model)
        return uploads

    def restart_server(self):
        state = copied(self.server)
        self.server = Server(self.plan, torch.zeros(self.size), self.rounds)
        self.server.load(*state)

    def restart(self, name):
        state = copied(self.clients[name])
        self.clients[name] = Client([self.size])
        self.clients[name].load(*state)


ACTIONS = st.lists(
    st.tuples(
        st.sets(st.sampled_from("01234"), min_size=1),  # present
        st.sets(st.sampled_from("01234")),  # uploads lost
        st.sets(st.sampled_from("01234")),  # orders lost
        st.sets(st.sampled_from("01234s")),  # restarted afterwards
    ),
    min_size=3,
    max_size=12,
)
PLANS = [
    {"ratio": 0.02},
    {"bytes": 30, "values": "sign", "frames": "compact", "overhead": 0.2},
    {"method": "random-k", "bytes": 60, "values": "int8"},
    {"method": "dagc-a", "threshold": 1.0, "values": "fp16"},
    {"method": "accordion", "ratio": 0.02, "options": {"interval": 1}},
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.get("method", "dagc-r"))
@given(actions=ACTIONS)
@settings(max_examples=25, deadline=None)
def test_nothing_is_lost_whatever_is_lost_or_restarted(plan, actions):
    """What was delivered plus what clients keep is everything computed, and a restart changes no bit."""
    run, undisturbed = Run(Plan(**plan)), Run(Plan(**plan))
    delivered = {}
    for present, lost, unread, restarted in actions:
        for upload in run.round(sorted(present), lost, unread):
            delivered[upload.client] = delivered.get(upload.client, 0) + upload.sparse.dense().double()
        undisturbed.round(sorted(present), lost, unread)
        if "s" in restarted:
            run.restart_server()
        for name in restarted & set(run.clients):
            run.restart(name)
    assert np.array_equal(run.server.downlink.model, undisturbed.server.downlink.model)
    for name, computed in run.computed.items():
        client = run.clients[name]
        client.settle(run.server.members[name].taken)
        kept = client.feedback.residual.double()
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
    assert len([name for name in run.clients if run.server.members[name].taken]) > 200, "everybody's turn comes"


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
    server = Server(Plan(method="accordion", ratio=0.1), torch.zeros(SIZE))
    server.join("0", 5)
    order = server.orders("0")["0"]
    upload = Client([SIZE]).upload(gradient("0", 0), order)
    server.close([server.read("0", upload.frame, upload.norm)])
    server.join("0", 0)
    server.join("1", 5)
    assert server.orders("01")["1"].parameter


def test_caps_limit_who_has_them_and_nobody_else():
    plan = Plan(
        method="dagc-r", bytes=40, overhead=0.2, values="sign", frames="compact", caps={"0": 1 / SIZE, "1": 0.05}
    )
    run = Run(plan)
    sent = dict.fromkeys("0123", 0)
    for _ in range(60):
        for upload in run.round("0123"):
            sent[upload.client] += len(upload.sparse)
            assert upload.client != "0" or len(upload.sparse) <= 1
            assert upload.client != "1" or len(upload.sparse) <= 20
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
    counts = [len(run.round(["0", "1", "2"])[0].sparse) for _ in range(20)]
    assert sum(len(up.sparse) for _ in range(10) for up in run.round(["0", "1", "2"])) in (5, 6, 7)
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
    saved = run.server.policy.state_dict()["saved"]
    assert set(saved) == set("0123")
    assert run.clients["1"].sent > 12


class TestReading:
    """What the server refuses."""

    def server(self, **plan):
        server = Server(Plan(**{"method": "dagc-r", "ratio": 0.01, **plan}), torch.zeros(SIZE))
        for name in "01":
            server.join(name, 10)
        return server, server.orders("01")

    def frame(self, entries, **options):
        sparse = Sparse(SIZE, range(entries), np.ones(entries))
        return dagc.encode(sparse, **{"round": 1, **options})

    def test_more_entries_than_ordered(self):
        server, orders = self.server()
        assert orders["0"].parameter == 4
        with pytest.raises(MalformedPayload, match="sends 5 entries, but may send 4"):
            server.read("0", self.frame(5))

    def test_more_bytes_than_that_many_entries_take(self):
        server, _ = self.server()
        most = int(payload_size(SIZE, 4)[0])
        frame = self.frame(4, indices="bitmap")
        assert len(frame) > most
        with pytest.raises(MalformedPayload, match=f"sends {len(frame)} bytes for 4 entries"):
            server.read("0", frame)

    @pytest.mark.parametrize(
        ("options", "words"),
        [({"round": 2}, "is from round 2"), ({"values": "fp16"}, "values are fp16"), ({"values": "int8"}, "int8")],
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
        server, orders = self.server(bytes=11, ratio=None)
        silent = next(name for name, order in orders.items() if order.silent)
        assert len(server.read(silent, b"").sparse) == 0
        server, _ = self.server(bytes=11, ratio=None)
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
        assert copied(server)[1] == before[1]
        assert server.account.balance >= 0

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
                server.close([], torch.full((SIZE,), wrong))
            assert copied(server)[1] == before[1]

    def test_names_and_claims_that_are_no_such_thing(self):
        server, _ = self.server()
        with pytest.raises(InvalidInput, match="there is no member 'x'"):
            server.orders(["x"])
        with pytest.raises(InvalidInput, match="claims 'many' examples"):
            server.join("2", "many")

    def test_the_sum_is_the_same_in_any_order_and_stays_as_it_is(self):
        server, orders = self.server()
        uploads = [server.read(name, self.frame(order.parameter)) for name, order in orders.items()]
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
        server = Server(Plan(method="dagc-r", ratio=0.01), torch.zeros(SIZE))
        server.join("0", 0)
        assert server.orders(["0"])["0"].silent
        server.join("0", 5)
        assert server.orders(["0"])["0"].parameter == 4


class TestDownloads:
    def test_only_a_few_downloads_are_kept(self):
        server = Server(Plan(method="dagc-r", ratio=0.01), torch.zeros(100_000))
        for i in range(60):
            server.join(str(i), 1)
            server.members[str(i)].has = i % 40 - 1
        server.round = server.downlink.round = 50
        server.downlink.changed[:] = np.arange(100_000) % 50
        for i in range(60):
            server.download(str(i))
        assert len(server.downlink._kept) <= 4

    def test_a_client_that_missed_rounds_or_everything_is_brought_up_to_date(self):
        run = Run(Plan(method="dagc-r", ratio=0.05))
        for t in range(12):
            run.round([name for name in "012" if not (name == "2" and 3 <= t < 10)])
            model = run.server.downlink.model
        run.clients["2"].receive(run.server.download("2"))
        run.clients["1"] = Client([SIZE])
        with pytest.raises(OutOfSync, match="this client has no model"):
            run.clients["1"].receive(run.server.download("1"))
        run.server.out_of_sync("1")
        run.clients["1"].receive(run.server.download("1"))
        assert all(np.array_equal(run.clients[name].model.numpy(), model) for name in "12")

    def test_a_model_that_is_not_the_servers_is_noticed(self):
        run = Run(Plan(method="dagc-r", ratio=0.05))
        run.round("01")
        run.round("01")
        run.clients["0"].model[17] += 1
        with pytest.raises(OutOfSync, match="differs from the server's"):
            run.clients["0"].receive(run.server.download("0"))

    def test_zeros_that_change_their_sign_are_sent(self):
        server = Server(Plan(method="dagc-r", ratio=0.5), torch.tensor([-0.0, 1.0]))
        server.join("0", 1)
        client = Client([2])
        client.receive(server.download("0"))
        server.arrived("0")
        server.close([], torch.tensor([0.0, 1.0]))
        client.receive(server.download("0"))


class TestSettling:
    order = Order(round=5, parameter=2, compressor="top-k")

    def pending(self):
        client = Client([4])
        client.upload(torch.tensor([1.0, 5.0, 2.0, -3.0]), self.order)
        return client

    @pytest.mark.parametrize(("taken", "kept"), [(0, 11.0), (4, 11.0), (5, 3.0), (6, 3.0)])
    def test_only_what_is_newer_than_what_was_taken_goes_back(self, taken, kept):
        """With a state from an older backup, the server may have taken a later upload."""
        client = self.pending()
        client.settle(taken)
        client.settle(taken)
        assert float(client.feedback.residual.abs().sum()) == kept

    @pytest.mark.parametrize("later", [True, False], ids=["a later one was taken", "none was taken since"])
    def test_a_backup_with_an_upload_that_was_lost(self, later):
        """Its entries were in the residual when the next was selected: they come again only if that was lost, too."""
        server, client = Server(Plan(method="dagc-r", ratio=0.1), torch.zeros(50)), Client([50])
        server.join("a", 10)
        rng, delivered = np.random.default_rng(5), np.zeros(50)

        def one_round(arrives):
            order = server.orders(["a"])["a"]
            client.settle(order.taken)
            client.receive(server.download("a"))
            frame = client.upload(torch.from_numpy(rng.integers(-9, 9, 50).astype(np.float32)), order).frame
            uploads = [server.read("a", frame)] if arrives else []
            server.close(uploads, server.model - server.total(uploads) if uploads else None)
            return sum(upload.sparse.dense().numpy() for upload in uploads)

        delivered += one_round(True)
        one_round(False)
        kept, pending, backup = client.feedback.residual.numpy().copy(), client.pending, copied(client)
        delivered += one_round(later)
        client.load(*backup)
        server.out_of_sync("a")
        expected = delivered + kept + (0 if later else pending.dense().numpy())
        before = rng.bit_generator.state
        computed = rng.integers(-9, 9, 50) + rng.integers(-9, 9, 50)
        rng.bit_generator.state = before
        delivered += one_round(True) + one_round(True)
        assert len(pending) == 5
        assert np.array_equal(delivered + client.feedback.residual.numpy(), expected + computed)

    def test_damaged_states_are_refused_and_change_nothing(self):
        client = self.pending()
        good = copied(client)
        for arrays, numbers in [
            ({}, good[1]),
            ({**good[0], "residual": np.zeros(3, np.float32)}, good[1]),
            ({**good[0], "residual": np.full(4, np.nan, np.float32)}, good[1]),
            ({**good[0], "model": np.zeros(4)}, good[1]),
            ({**good[0], "pending.indices": np.array([3, 9])}, good[1]),
            (good[0], {}),
            (good[0], {**good[1], "steps": "many"}),
        ]:
            with pytest.raises(InvalidInput):
                client.load(arrays, numbers)
            assert all(np.array_equal(array, client.arrays()[name]) for name, array in good[0].items())
            assert client.numbers() == good[1]

    def test_an_order_for_what_is_not_known_here(self):
        client = Client([4])
        with pytest.raises(InvalidInput, match="did you mean 'top-k'"):
            client.upload(torch.zeros(4), self.order._replace(compressor="topk"))
        with pytest.raises(InvalidInput, match="value codec"):
            client.upload(torch.zeros(4), self.order._replace(values="fp64"))


WRONG = [
    ({"method": "dagcr", "ratio": 0.1}, "there is no method 'dagcr': did you mean 'dagc-r'?"),
    ({"method": "dagc-a"}, "method 'dagc-a' needs a budget: give threshold, e.g. threshold 0.05"),
    (
        {"method": "dagc-r", "threshold": 0.1},
        "method 'dagc-r' takes no threshold: give its budget as ratio, bytes or rate",
    ),
    ({"method": "none", "ratio": 0.1}, "method 'none' takes no budget, but ratio is given: leave it out"),
    ({"ratio": 0.1, "bytes": 5}, "give one budget, not ratio and bytes"),
    ({"ratio": 1.5}, "ratio is 1.5: it must be a number above 0 and at most 1"),
    ({"bytes": 0}, "bytes is 0: it must be a number above 0"),
    ({"bytes": float("nan")}, "bytes is nan"),
    ({"rate": "fast"}, "rate is 'fast': write bytes per client, like 200 kB/training or 1.5 MB/hour"),
    ({"rate": "1 MB/hour"}, "a rate per hour also needs bytes"),
    ({"ratio": 0.1, "values": "fp8"}, "there is no value codec 'fp8': choose one of fp32"),
    ({"ratio": 0.1, "frames": "compct"}, "there is no kind of frames 'compct': did you mean 'compact'?"),
    ({"ratio": 0.1, "overhead": 2}, "overhead is 2: it must be a number from 0 (nobody waits) to 1"),
    ({"method": "dagc-a", "threshold": 0.1, "overhead": 0.1}, "clients of method 'dagc-a' cannot wait"),
    ({"method": "power", "threshold": 0.1, "overhead": 0.1}, "cannot wait"),
    ({"ratio": 0.1, "exponent": 1}, "exponent belongs to the method 'power', not to 'dagc'"),
    ({"ratio": 0.1, "caps": {"0": 2}}, "the cap of '0' is 2"),
    ({"method": "dagc-a", "threshold": 0.1, "caps": {"0": 0.5}}, "caps limit how many entries are sent"),
    ({"ratio": 0.1, "options": {"interval": 2}}, "method 'dagc' takes no options, but 'interval' is given"),
    ({"method": "accordion", "ratio": 0.1, "options": {"intervall": 2}}, "did you mean 'interval'?"),
    ({"ratio": 0.1, "seed": -1}, "seed"),
    ({"bytes": 1e308}, "bytes is 1e+308: it must be a number above 0 and at most 2^48"),
    (
        {"method": "accordion", "ratio": 0.1, "options": {"interval": float("inf")}},
        "it must map names to finite numbers",
    ),
    ({"method": "accordion", "bytes": 64}, "method 'accordion' takes no bytes: give its budget as ratio or threshold"),
    ({"ration": 0.1}, "there is no setting 'ration': did you mean 'ratio'?"),
]


@pytest.fixture(scope="module")
def one_rank():
    """A model in DDP, alone in its group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 20))
    dist.destroy_process_group()


@pytest.mark.parametrize(("wrong", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_settings_get_the_same_words_everywhere(wrong, words, capsys, monkeypatch, one_rank):
    """In Python, as a configuration, in Flower, in DDP and on the command line."""
    from flwr.serverapp.strategy import FedAvg

    import dagc.ddp
    from dagc.cli import main
    from dagc.flower import DataAware

    with pytest.raises(InvalidInput) as plan:
        Plan(**wrong)
    assert words in str(plan.value)
    with pytest.raises(InvalidInput) as config:
        Config(task="logistic@digits", **wrong)
    if "seed" not in wrong and "ration" not in wrong:  # those are checked by the configuration itself
        assert str(config.value) == str(plan.value)
    with pytest.raises(InvalidInput) as flower:
        DataAware(FedAvg(), **wrong)
    assert str(flower.value) == str(plan.value)
    with pytest.raises(InvalidInput) as ddp:
        dagc.ddp.register(one_rank, examples=5, **wrong)
    assert str(ddp.value) == str(plan.value)
    if "ration" in wrong or "seed" in wrong:
        return
    flags = []
    for name, value in wrong.items():
        flags += [f"--{name}", json.dumps(value) if isinstance(value, dict) else str(value)]
    monkeypatch.setattr("sys.argv", ["dagc", "run", "logistic@digits", *flags])
    with pytest.raises(SystemExit):
        main()
    assert str(plan.value).split(":")[0] in " ".join(capsys.readouterr().err.split())


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
    for method, kind in POLICIES.items():
        from dagc.testing import plans_of

        for plan in plans_of(method):
            assert Plan(**plan.settings()) == plan
        assert kind.about, f"{method} has a line for people who choose"


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, 3 * PIECE + 7])
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e-12, 1.0, 1e12, 1e15, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_clients_last_move_is_measured_at_any_size_and_scale(size, scale, dtype):
    client, order = Client([size]), Order(round=1, parameter=1, compressor="top-k", step_ahead=0.5)
    change = (scale * (1 + torch.rand(size, generator=torch.Generator().manual_seed(size)))).to(dtype)
    client.upload([change[: size // 2], change[size // 2 :]], order)
    assert client.last == pytest.approx(float(change.double().norm()), rel=1e-6)


def test_a_client_begins_ahead_of_the_model_by_part_of_what_it_kept_but_no_farther_than_it_moved():
    size = PIECE + 5  # norms are summed up in two pieces
    client, model = Client([size]), torch.zeros(size)
    order = Order(round=1, parameter=1, compressor="top-k", step_ahead=0.5)
    assert client.start(model, order) is model  # the residual is still zero
    change = torch.linspace(-1, 1, size)
    client.upload(change, order)
    residual = client.feedback.residual
    assert client.last == pytest.approx(float(change.double().norm()), rel=1e-6)
    assert torch.equal(client.start(model, order, unit=0.5), -0.25 * residual)
    client.last = 0.1 * float(residual.double().norm())
    assert torch.allclose(client.start(model, order), -0.1 * residual, rtol=1e-6)
    assert not model.any()
