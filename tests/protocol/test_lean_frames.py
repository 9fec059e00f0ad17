"""Frames that would carry too little at their usual bytes may take half as many more: what bounds them."""

import pytest
import torch

from dagc import MalformedPayload, Plan
from dagc.policies.plan import level_bytes
from dagc.protocol import ModelServer, Order
from dagc.protocol.extras import FIRST_BROADCASTS, LEAN_SHARE, LEAN_TIMES
from dagc.protocol.messages import BEST
from dagc.updates import decode_update, encode_update
from tests.protocol.runs import Client

SHAPES = [(300, 200), 1000]
SIZE = 61_000
USUAL = int(level_bytes(SIZE))
MOST = int(LEAN_TIMES * USUAL)


def hard(seed):
    """Noise: no few bytes carry most of it."""
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def easy(seed):
    """A product of two vectors: few bytes carry nearly all of it."""
    left, right = (torch.randn(size, generator=torch.Generator().manual_seed(seed)) for size in (300, 200))
    return torch.cat([torch.outer(left, right).reshape(-1), torch.zeros(1000)])


def share_of(update, vector):
    return update.energy / float(vector.double().square().sum())


@pytest.mark.parametrize("share", [None, LEAN_SHARE])
def test_the_fewest_bytes_are_used_even_if_they_carry_more_than_the_share(share):
    usual, _ = encode_update(easy(1), SHAPES, USUAL)
    frame, update = encode_update(easy(1), SHAPES, MOST, share=share, least_bytes=USUAL)
    if share is None:
        assert len(frame) > USUAL, "without a share all bytes are used"
    else:
        assert frame == usual
        assert share_of(update, easy(1)) > LEAN_SHARE


def test_a_frame_that_carries_too_little_takes_all_its_bytes():
    frame, update = encode_update(hard(1), SHAPES, MOST, share=LEAN_SHARE, least_bytes=USUAL)
    assert USUAL < len(frame) <= MOST
    assert share_of(update, hard(1)) < LEAN_SHARE
    assert torch.equal(decode_update(frame, SHAPES).dense(), update.dense())


def test_a_frame_ends_where_it_carries_the_share():
    vector = easy(1) + 0.5 * easy(2) + 0.02 * hard(3)
    few, most = 150, 3000
    frame, update = encode_update(vector, SHAPES, most, share=0.9, least_bytes=few)
    assert few < len(frame) < most
    assert share_of(update, vector) > 0.88


@pytest.mark.parametrize(("change", "longer"), [(hard, True), (easy, False)])
def test_uploads_and_broadcasts_take_more_only_if_they_carry_too_little(change, longer):
    server = ModelServer(Plan(), torch.zeros(SIZE), shapes=SHAPES)
    server.join("a", 10)
    client, uploads, broadcasts = Client(server.plan, SHAPES), [], []
    for round in range(FIRST_BROADCASTS + 3):
        order = server.orders("a")["a"]
        client.replica.receive(server.download("a"))
        client.uplink.settle(order.accepted)
        uploads.append(client.uplink.upload(change(round), order).frame)
        server.advance([server.read("a", uploads[-1])], server.target - change(100 + round))
        broadcasts.append(server.downlink.budgeted.log.last(1))
    for frames, first in ((uploads, 1), (broadcasts, FIRST_BROADCASTS)):
        late = sum(map(len, frames[first:]))
        if longer:
            assert USUAL < late / len(frames[first:]) <= MOST
        else:
            assert late <= USUAL * len(frames), "what a frame does not need, later ones may use"


@pytest.mark.parametrize("size", [100, 7850, 39_000, 50_000, 90_000, 1_000_000])
def test_no_usual_frame_has_more_than_a_tenth_of_a_byte_per_entry(size):
    server = ModelServer(Plan(), torch.zeros(size))
    server.join("a", 10)
    member = server.members["a"]
    member.accepted_round = 1
    usual = int(level_bytes(size))
    extra = server.extras.upload(member, usual)
    assert usual <= extra.amount <= max(usual, size / 10)
    assert extra.amount <= LEAN_TIMES * usual
    assert (extra.share > 0) == (extra.amount > usual)


def test_a_budget_of_the_user_is_kept():
    server = ModelServer(Plan(bytes=USUAL), torch.zeros(SIZE), shapes=SHAPES)
    server.join("a", 10)
    assert server.extras.upload(server.members["a"], USUAL) == (USUAL, 0.0, 0)
    assert not server.extras.broadcast(version=99)


@pytest.mark.parametrize("least", [-1, 1 << 62, 0.5, True, None])
def test_an_order_with_an_impossible_least_is_refused(least):
    with pytest.raises(MalformedPayload, match="the order has least"):
        Order(1, 100, BEST, share=0.5, least=least).checked()
