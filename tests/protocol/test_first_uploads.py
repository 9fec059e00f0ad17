"""First uploads and first broadcasts may take eight times the usual bytes, and nothing else: what bounds them."""

import numpy as np
import pytest
import torch

from dagc import MalformedPayload, Plan
from dagc.policies.plan import level_bytes
from dagc.protocol import Download, ModelServer, Order, Replica, Uplink
from dagc.protocol.broadcasts import best_broadcast
from dagc.protocol.extras import FIRST_BROADCASTS, FIRST_SHARE, FIRST_TIMES
from dagc.protocol.messages import BEST
from dagc.updates import Update, decode_update, encode_dense
from dagc.updates.frame import seal
from tests.helpers.states import copied, same
from tests.protocol.runs import Client

SHAPES = [(50, 40), (60, 30), 200]
SIZE = 4000
USUAL = int(level_bytes(SIZE))


def noise(seed, size=SIZE):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def started(names="ab", **settings):
    server = ModelServer(Plan(**settings), torch.zeros(SIZE), shapes=SHAPES)
    for name in names:
        server.join(name, 10)
    return server


def play(server, clients, lost=""):
    """A round: the orders and the frames of those whose upload arrives."""
    uploads, frames = [], {}
    orders = server.orders(sorted(clients))
    for name, order in orders.items():
        client = clients[name]
        client.replica.receive(server.download(name))
        client.uplink.settle(order.accepted)
        frames[name] = client.uplink.upload(noise(server.round * 10 + ord(name)), order).frame
        if name not in lost:
            uploads.append(server.read(name, frames[name]))
    server.advance(uploads, server.target - server.total(uploads) if uploads else None)
    return orders, frames


def test_a_client_has_more_bytes_until_an_upload_of_its_is_accepted_and_then_never_again():
    server = started()
    clients = {name: Client(server.plan, SHAPES) for name in "ab"}
    first, frames = play(server, clients, lost="b")
    assert {(order.amount, order.share) for order in first.values()} == {(FIRST_TIMES * USUAL, FIRST_SHARE)}
    assert all(USUAL < len(frame) <= FIRST_TIMES * USUAL for frame in frames.values())
    second, _ = play(server, clients)
    assert (second["a"].share, second["b"].share) == (0.0, FIRST_SHARE)
    assert second["b"].amount == FIRST_TIMES * USUAL
    third, _ = play(server, clients)
    assert all(order.amount <= USUAL + 8 for order in third.values()), "and what a frame did not fill before"
    assert {order.share for order in third.values()} == {0.0}


@pytest.mark.parametrize("budget", [{"bytes": 300}, {"rate": "60 kB/training"}, {"ratio": 0.02}], ids=str)
def test_with_a_budget_the_first_upload_has_no_more_than_any_other(budget):
    server = ModelServer(Plan(**budget), torch.zeros(SIZE), rounds=100, shapes=SHAPES)
    server.join("a", 10)
    first = server.orders("a")["a"]
    assert first.share == 0.0
    assert first.amount <= 600


@pytest.mark.parametrize("cap", [0.001, 0.01])
def test_a_cap_bounds_the_first_upload_as_well(cap):
    """It took eight times what its cap allows."""
    server = started(caps={"a": cap})
    orders = server.orders("ab")
    assert orders["a"].amount <= max(cap * 4 * SIZE, 16)
    assert orders["b"].amount > FIRST_TIMES * USUAL, "who has no cap gets what the other cannot use"


def test_a_cap_bounds_visits_as_well():
    server = started("abc", caps={"c": 0.001})
    clients = {name: Client(server.plan, SHAPES) for name in "ab"}
    for _ in range(2):  # c was away for long twice
        server.orders("abc")
        server.advance([], server.target)
        for _ in range(10):
            play(server, clients)
    orders = server.orders("ac")
    assert orders["c"].visit
    assert orders["c"].amount == 16


def test_no_order_is_longer_than_a_frame_can_be():
    server = ModelServer(Plan(), torch.zeros(40))
    server.join("a", 10)
    assert server.orders("a")["a"].amount <= 2 * 40 + 64


def test_what_a_first_upload_takes_beyond_its_share_costs_the_others_nothing():
    server = started()
    account = server.budget.account
    play(server, {name: Client(server.plan, SHAPES) for name in "ab"})
    assert account.balance == 0
    orders = server.orders("ab")
    before = account.balance
    server.read("a", b"")
    assert account.balance == before + orders["a"].amount, "what an answer does not use is there for the next round"


def test_a_first_upload_of_a_few_bytes_returns_the_rest_of_its_usual_share():
    server = started()
    orders = server.orders("ab")
    before = server.budget.account.balance
    upload = Uplink(server.plan.for_clients(), SHAPES).upload(torch.zeros(SIZE), orders["a"])
    server.read("a", upload.frame)
    assert server.budget.account.balance == before + USUAL


@pytest.mark.parametrize("length", [FIRST_TIMES * USUAL, FIRST_TIMES * USUAL + 1])
def test_an_upload_with_the_raised_amount_is_read_and_one_byte_more_is_refused(length):
    server = started()
    order = server.orders("a")["a"]
    whole, _ = encode_dense(noise(1), SHAPES, 2, round=order.stamp)
    assert len(whole) < length
    body = whole[:-4] + bytes(length - len(whole))
    with pytest.raises(MalformedPayload, match="more than" if length > order.amount else None):
        server.read("a", seal(body, SHAPES, order.stamp))
    server.read("a", whole)  # it may still answer


def test_the_raised_amount_is_that_of_the_order_and_not_of_the_sender():
    """A client that has had its first upload accepted is held to the usual bytes."""
    server = started()
    clients = {name: Client(server.plan, SHAPES) for name in "ab"}
    play(server, clients)
    order = server.orders("ab")["a"]
    forged = order._replace(amount=FIRST_TIMES * order.amount, share=FIRST_SHARE)
    upload = clients["a"].uplink.upload(noise(7), forged)
    assert len(upload.frame) > order.amount
    with pytest.raises(MalformedPayload, match="more than"):
        server.read("a", upload.frame)


@pytest.mark.parametrize("share", [float("nan"), float("inf"), -0.5, 1.0000001, 10**400, "x", None, True, 0.5j, b"1"])
def test_an_order_with_another_share_than_a_part_of_one_is_refused(share):
    uplink = Uplink(Plan().for_size(SIZE).for_clients(), SHAPES)
    before = copied(uplink)
    with pytest.raises(MalformedPayload, match="share = "):
        uplink.upload(noise(1), Order(1, 400, BEST, share=share))
    assert same(copied(uplink), before)


@pytest.mark.parametrize("amount", [0, 5, 400, (1 << 48) - 1])
@pytest.mark.parametrize("share", [0, 5e-324, 1e-9, 0.5, 1.0, 1])
def test_whatever_the_share_what_is_sent_and_what_is_kept_are_everything(share, amount):
    uplink, change = Uplink(Plan().for_size(SIZE).for_clients(), SHAPES), noise(2)
    upload = uplink.upload(change, Order(1, amount, BEST, share=share))
    assert len(upload.frame) <= min(amount, 8 * SIZE + 64)
    left = change.clone()
    decode_update(upload.frame, SHAPES, round=1).subtract_from(left)
    assert torch.equal(uplink.feedback.residual, left)


@pytest.mark.parametrize("share", [0.3, 0.95])
def test_a_frame_with_a_share_carries_it_within_the_clip(share):
    uplink, change = Uplink(Plan().for_size(SIZE).for_clients(), SHAPES), noise(2)
    update = uplink.upload(change, Order(1, 8 * SIZE, BEST, share=share, clip=0.5)).update
    assert 0 < update.norm() <= 0.5
    free = Uplink(Plan().for_size(SIZE).for_clients(), SHAPES).upload(change, Order(1, 8 * SIZE, BEST, share=share))
    left = change.clone()
    free.update.subtract_from(left)
    assert left.norm() ** 2 <= 1.001 * (1 - share) * change.norm() ** 2


def test_a_share_means_nothing_to_a_compressor_that_counts_entries():
    uplink = Uplink(Plan(method="dagc-r", ratio=0.1).for_size(SIZE).for_clients(), SHAPES)
    assert len(uplink.upload(noise(1), Order(1, 30, "top-k", share=0.5)).update) == 30


# Broadcasts


def test_only_the_first_broadcasts_take_more_and_never_more_than_eight_times_as_much():
    server = started()
    sizes = []
    for t in range(FIRST_BROADCASTS + 3):
        server.orders("ab")
        server.advance([], server.target + noise(t))
        sizes.append(len(server.downlink.budgeted.log.last(1)))
    assert all(USUAL < size <= FIRST_TIMES * USUAL for size in sizes[:FIRST_BROADCASTS])
    assert all(size <= USUAL for size in sizes[FIRST_BROADCASTS:])


def test_a_broadcast_that_carries_enough_is_not_made_longer():
    vector = torch.zeros(SIZE)
    vector[::100] = 1.0
    frame, update, carried = best_broadcast(vector, SHAPES, USUAL, 1, [(0.5, FIRST_TIMES)])
    assert len(frame) <= USUAL
    assert carried == pytest.approx(update.energy / float(vector.square().sum()))
    longer, _, more = best_broadcast(noise(1), SHAPES, 60, 1, [(0.5, FIRST_TIMES)])
    shorter, _, less = best_broadcast(noise(1), SHAPES, 60, 1, ())
    assert len(shorter) <= 60 < len(longer) <= FIRST_TIMES * 60
    assert more > less


def test_a_log_whose_broadcasts_are_longer_than_the_model_sends_the_model():
    """First broadcasts of eight times their bytes fill the log of a small model sooner."""
    server = ModelServer(Plan(), torch.zeros(40))
    replica, late = Replica([40]), Replica([40])
    replica.receive(server.introduction())
    late.receive(server.introduction())
    version = 0
    for t in range(12):
        server.join("a", 10)
        server.orders("a")
        server.advance([], server.target + noise(t, 40) * 10.0**t)
        replica.receive(server.downlink.since(version))
        version = replica.version
        assert torch.equal(replica.model, server.model)
    assert len(server.downlink.budgeted.log) < version
    late.receive(server.downlink.since(0))
    assert torch.equal(late.model, server.model)


def test_a_hundred_thousand_broadcasts_of_nothing_are_refused_at_the_first():
    """A byte each, they cost a client seconds per hundred kB."""
    replica = Replica(SHAPES, torch.zeros(SIZE))
    for count in (1, 2, 100_000):
        with pytest.raises(MalformedPayload, match=f"broadcast 1 of {count} is empty"):
            replica.receive(Download(0, count, 0, count, bytes(count) if count > 1 else b""))
    assert (replica.version, replica.model.abs().sum()) == (0, 0)


def test_an_update_of_nothing_has_no_energy_and_no_norm():
    assert (Update.empty(5).energy, Update.empty(5).norm(), len(Update.empty(5))) == (0.0, 0.0, 0)
    assert np.array_equal(Update.empty(5).dense(), np.zeros(5))
