"""What a client keeps, sends again and begins from; orders and downloads that cannot be ones."""

import numpy as np
import pytest
import torch

from dagc import InvalidInput, MalformedPayload, OutOfSync, Plan, decode
from dagc.protocol import ModelServer, Order, Replica, Uplink
from dagc.protocol.messages import BEST
from dagc.protocol.uplink import PIECE
from dagc.updates import decode_update
from tests.helpers.states import copied
from tests.protocol.runs import SIZE, Client, Run


class TestDownloads:
    def test_a_client_that_missed_rounds_or_everything_is_brought_up_to_date(self):
        run = Run(Plan(method="dagc-r", ratio=0.05))
        for t in range(12):
            run.round([name for name in "012" if not (name == "2" and 3 <= t < 10)])
            model = run.server.downlink.model
        run.clients["2"].replica.receive(run.server.download("2"))
        run.clients["1"] = Client(run.server.plan, [SIZE])
        with pytest.raises(OutOfSync, match="this client has no model"):
            run.clients["1"].replica.receive(run.server.download("1"))
        run.server.out_of_sync("1")
        run.clients["1"].replica.receive(run.server.download("1"))
        assert all(np.array_equal(run.clients[name].replica.model.numpy(), model) for name in "12")

    def test_a_model_that_is_not_the_servers_is_noticed(self):
        run = Run(Plan(method="dagc-r", ratio=0.05))
        run.round("01")
        run.round("01")
        run.clients["0"].replica.model[17] += 1
        with pytest.raises(OutOfSync, match="differs from the server's"):
            run.clients["0"].replica.receive(run.server.download("0"))

    def test_zeros_that_change_their_sign_are_sent(self):
        server = ModelServer(Plan(method="dagc-r", ratio=0.5), torch.tensor([-0.0, 1.0]))
        server.join("0", 1)
        replica = Replica([2])
        replica.receive(server.download("0"))
        server.arrived("0")
        server.advance([], torch.tensor([0.0, 1.0]))
        replica.receive(server.download("0"))

    def test_a_download_that_cannot_be_one_is_refused_and_changes_nothing(self):
        server = ModelServer(Plan(method="dagc-r", ratio=0.5), torch.ones(2))
        server.join("0", 1)
        replica, good = Replica([2]), server.download("0")
        for wrong in ({"since": -2}, {"version": -1}, {"steps": -1}, {"frame": b"?"}, {"frame": good.frame[:-1]}):
            with pytest.raises(MalformedPayload):
                replica.receive(good._replace(**wrong))
            assert (replica.model, replica.version) == (None, -1)


class TestSettling:
    order = Order(round=5, amount=2)
    plan = Plan(ratio=0.5, values="fp32")

    def pending(self):
        uplink = Uplink(self.plan.for_clients(), [4])
        uplink.upload(torch.tensor([1.0, 5.0, 2.0, -3.0]), self.order)
        return uplink

    @pytest.mark.parametrize(("accepted", "kept"), [(0, 11.0), (4, 11.0), (5, 3.0), (6, 3.0)])
    def test_only_what_is_newer_than_what_was_accepted_goes_back(self, accepted, kept):
        """With a state from an older backup, the server may have accepted a later upload."""
        uplink = self.pending()
        uplink.settle(accepted)
        uplink.settle(accepted)
        assert float(uplink.feedback.residual.abs().sum()) == kept

    @pytest.mark.parametrize("later", [True, False], ids=["a later one was accepted", "none was accepted since"])
    def test_a_backup_with_an_upload_that_was_lost(self, later):
        """Its entries were in the residual when the next was selected: they come again only if that was lost, too."""
        server = ModelServer(Plan(method="dagc-r", ratio=0.1), torch.zeros(50))
        client = Client(server.plan, [50])
        server.join("a", 10)
        rng, delivered = np.random.default_rng(5), np.zeros(50)

        def play(arrives):
            order = server.orders(["a"])["a"]
            client.uplink.settle(order.accepted)
            client.replica.receive(server.download("a"))
            frame = client.uplink.upload(torch.from_numpy(rng.integers(-9, 9, 50).astype(np.float32)), order).frame
            uploads = [server.read("a", frame)] if arrives else []
            server.advance(uploads, server.model - server.total(uploads) if uploads else None)
            return sum(upload.update.dense().numpy() for upload in uploads)

        delivered += play(True)
        play(False)
        uplink = client.uplink
        kept, pending, backup = uplink.feedback.residual.numpy().copy(), uplink.pending, copied(client)
        delivered += play(later)
        client.load_state_dict(backup)
        server.out_of_sync("a")
        expected = delivered + kept + (0 if later else pending.dense().numpy())
        before = rng.bit_generator.state
        computed = rng.integers(-9, 9, 50) + rng.integers(-9, 9, 50)
        rng.bit_generator.state = before
        delivered += play(True) + play(True)
        assert len(pending) == 5
        assert np.array_equal(delivered + uplink.feedback.residual.numpy(), expected + computed)

    def test_an_order_for_what_is_not_known_here(self):
        uplink = Uplink(self.plan.for_clients(), [4])
        with pytest.raises(InvalidInput, match="did you mean 'top-k'"):
            uplink.upload(torch.zeros(4), self.order._replace(compressor="topk"))
        with pytest.raises(InvalidInput, match="value codec"):
            Plan(ratio=0.5, values="fp64")


HUGE = 10**400


@pytest.mark.parametrize(
    "wrong",
    [
        *({"round": value} for value in (-1, 1.0, True, None, "1", 1 << 48, HUGE)),
        *({"amount": value} for value in (-1, -0.5, float("nan"), float("inf"), "1", [1], True, 1 << 63, HUGE)),
        *({"number": value} for value in (-1, 1 << 48, HUGE, None)),
        *({"accepted": value} for value in (-1, 1 << 48, HUGE, None)),
        *({"clip": value} for value in (-1.0, float("nan"), float("inf"), None, HUGE, 2.0**100)),
        *({"amount": value, "compressor": "hard-threshold"} for value in (2.0**100, float("nan"), -0.5)),
        {"visit": True},
        *({"counted": value} for value in (-1, 1 << 63, HUGE)),
        *({name: value} for name in ("norm", "clocks") for value in (0, 1, None, "yes")),
        {"compressor": 3},
    ],
    ids=lambda wrong: f"{wrong!r:.40}",
)
def test_an_order_that_a_server_made_up_is_refused(wrong):
    with pytest.raises(MalformedPayload, match=f"the order has {next(iter(wrong))} = ") as refused:
        Order(round=1, amount=1)._replace(**wrong).checked()
    assert len(str(refused.value)) < 200
    largest = 2.0**99
    for order in (
        Order(1, None, "none"),
        Order(1, largest, "hard-threshold", clip=largest),
        Order(1, 9, BEST, visit=True),
    ):
        assert order.checked() == order


def test_rounds_are_stamped_modulo_2_to_the_21():
    """Both sides must do the same, and so must every version of dagc."""
    stamps = [Order(round, 1).stamp for round in (1, 2**21 - 1, 2**21, 2**21 + 5, 2**22 + 5)]
    assert stamps == [1, 2**21 - 1, 0, 5, 5]
    for settings, amount, name in (({"method": "dagc"}, 50, BEST), ({"method": "dagc-r", "ratio": 0.1}, 40, "top-k")):
        uplink = Uplink(Plan(**settings).for_size(400).for_clients(), [400])
        upload = uplink.upload(torch.ones(400), Order(2**21 + 5, amount, name))
        read = decode_update(upload.frame, [400], round=5) if name == BEST else decode(upload.frame, 400, round=5)
        assert np.array_equal(read.dense(), upload.update.dense())


AHEAD = Plan(method="top-k", ratio=0.5, values="fp32", step_ahead=0.5).for_clients()


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, 3 * PIECE + 7])
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e-12, 1.0, 1e12, 1e15, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_clients_last_update_is_measured_at_any_size_and_scale(size, scale, dtype):
    uplink, order = Uplink(AHEAD, [size]), Order(round=1, amount=1)
    change = (scale * (1 + torch.rand(size, generator=torch.Generator().manual_seed(size)))).to(dtype)
    uplink.upload([change[: size // 2], change[size // 2 :]], order)
    assert uplink.last_update_norm == pytest.approx(float(change.double().norm()), rel=1e-6)


def test_a_client_begins_ahead_of_the_model_by_part_of_what_it_kept_but_no_farther_than_it_moved():
    size = PIECE + 5  # norms are summed up in two pieces
    uplink, model = Uplink(AHEAD, [size]), torch.zeros(size)
    assert uplink.start(model) is model  # the residual is still zero
    change = torch.linspace(-1, 1, size)
    uplink.upload(change, Order(round=1, amount=1))
    residual = uplink.feedback.residual
    assert uplink.last_update_norm == pytest.approx(float(change.double().norm()), rel=1e-6)
    assert torch.equal(uplink.start(model, unit=0.5), -0.25 * residual)
    uplink.last_update_norm = 0.1 * float(residual.double().norm())
    assert torch.allclose(uplink.start(model), -0.1 * residual, rtol=1e-6)
    assert not model.any()
