"""A node's file is changed in place, and is whole whenever the process is killed or the power fails."""

import os
import random
import signal
import time
from functools import lru_cache

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from dagc.errors import CheckpointError
from dagc.flower import store
from dagc.flower.layout import Layout, Piece
from dagc.flower.node import Node, read, write
from dagc.protocol import Client, Order, Plan, Server
from dagc.state import NewerVersion

SECTOR = 512


@lru_cache(maxsize=8)
def expected(number, size):
    """The model of state `number`: each entry is the number that set it last."""
    model = expected(number - 1, size).copy() if number else np.zeros(size, np.float32)
    model[changed(number, size)] = number
    return model


def changed(number, size):
    """Which entries state `number` sets: few, in every tenth state half of them."""
    generator = np.random.default_rng(number)
    return np.sort(generator.choice(size, size // 2 if number % 10 == 9 else size // 50, replace=False))


def advance(path, number, size):
    """Write state `number` to a file with the one before it, or to none."""
    numbers, arrays = {"round": number}, {"pending": np.full(7, number)}
    stored = store.restore(path, 1, mapped=True) if number else None
    model = np.zeros(size, np.float32) if stored is None else stored.model.copy()
    where = changed(number, size)
    model[where] = number
    residual = np.full(size, number, np.float32)
    if stored is None or not store.change(path, stored, 1, numbers, arrays, model, residual, where):
        store.replace(path, 1, numbers, arrays, model, residual)


def whole(path, size):
    """The number of the state in a file, which must be one of those that were written, in all parts."""
    stored = store.restore(path, 1)
    number = stored.state.numbers["round"]
    assert np.array_equal(stored.model, expected(number, size))
    assert np.array_equal(stored.residual, np.full(size, number, np.float32))
    assert np.array_equal(stored.state.arrays["pending"], np.full(7, number))
    return number


@pytest.fixture
def unplugged(monkeypatch):
    """Nothing is synced; what a loss of power leaves is made up."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


def test_states_follow_each_other_in_one_file_that_does_not_grow(tmp_path, unplugged):
    path, sizes = tmp_path / "node.state", set()
    for number in range(35):
        advance(path, number, 1000)
        assert whole(path, 1000) == number
        sizes.add(path.stat().st_size)
        assert path.stat().st_mode & 0o777 == 0o600
        assert [one.name for one in tmp_path.iterdir()] == ["node.state"]
    assert len(sizes) == 1


@pytest.mark.parametrize("first", [1, 2, 5, 8, 10, 11])
def test_whatever_part_of_a_round_a_loss_of_power_leaves_on_the_disk_the_file_has_this_round_or_the_one_before(
    tmp_path, unplugged, first
):
    """The disk writes sectors whole and in any order; the sectors of the rounds before were synced."""
    size, path = 5000, tmp_path / "node.state"
    for number in range(first):
        advance(path, number, size)
    before = path.read_bytes()
    stored = store.restore(path, 1)
    model, residual, where = expected(first, size), np.full(size, first, np.float32), changed(first, size)
    assert store.change(path, stored, 1, {"round": first}, {"pending": np.full(7, first)}, model, residual, where)
    after = path.read_bytes()
    assert len(after) == len(before)
    sectors = [at for at in range(0, len(after), SECTOR) if before[at : at + SECTOR] != after[at : at + SECTOR]]
    assert len(sectors) > 10
    generator, found = random.Random(first), set()
    for attempt in range(200):
        part = generator.choice((0.0, 0.5, 0.9, 0.97, 1.0)) if attempt > 1 else attempt
        left = bytearray(before)
        for at in sectors:
            if generator.random() < part:
                left[at : at + SECTOR] = after[at : at + SECTOR]
        path.write_bytes(left)
        number = whole(path, size)
        found.add(number)
        if number == first - 1:  # it goes on from there, and what is left of the lost round does no harm
            advance(path, first, size)
            assert whole(path, size) == first
            advance(path, first + 1, size) if (first + 1) % 10 != 9 else None
    assert found == {first - 1, first}


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("first", [1, 4])
def test_a_process_that_was_given_up_does_not_write_over_its_successor(tmp_path, unplugged, first, rounds):
    size, path = 1000, tmp_path / "node.state"
    for number in range(first):
        advance(path, number, size)
    old = store.restore(path, 1)
    for number in range(first, first + rounds):
        advance(path, number, size)
    model, residual = expected(first, size), np.full(size, first, np.float32)
    with pytest.raises(CheckpointError, match="was changed by another process of this node"):
        store.change(path, old, 1, {"round": 99}, {"pending": np.full(7, 99)}, model, residual, changed(first, size))
    assert whole(path, size) == first + rounds - 1


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_in_the_middle_of_writing_the_file_is_whole_and_has_all_that_was_acknowledged(tmp_path, kills):
    size, path = 200_000, tmp_path / "node.state"
    advance(path, 0, size)
    generator, number, least = random.Random(0), 0, 0
    for _ in range(kills):
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:  # write until killed, and say what is done
            try:
                os.close(receive)
                for following in range(number + 1, 1 << 20):
                    advance(path, following, size)
                    os.write(send, b".")
            finally:
                os._exit(1)
        os.close(send)
        done = len(os.read(receive, 1))
        end = time.perf_counter() + generator.random() * 0.02
        while time.perf_counter() < end:  # it is somewhere in the next rounds
            continue
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        while more := len(os.read(receive, 1000)):
            done += more
        os.close(receive)
        least = number + done
        number = whole(path, size)
        assert least <= number <= least + 1
    assert number >= kills


def test_what_is_not_such_a_file_is_refused(tmp_path, unplugged):
    path = tmp_path / "node.state"
    advance(path, 0, 100)
    content = path.read_bytes()
    for wrong in (content[:30], content[:-1], content + b"x", b"dagn" + content[4:5] + b"\xff" * 59 + content[64:]):
        path.write_bytes(wrong)
        with pytest.raises(CheckpointError, match="damaged"):
            store.restore(path, 1)
    path.write_bytes(content[:4] + b"\x02" + content[5:])
    with pytest.raises(NewerVersion):
        store.restore(path, 1)
    path.write_bytes(content)
    with pytest.raises(NewerVersion):
        store.restore(path, 0)


@pytest.mark.parametrize("frames", ["plain", "coded"])
def test_a_node_is_read_as_it_was_written(tmp_path, unplugged, frames):
    """Through thirty rounds with a lossy downlink, against a client that is never written."""
    size, path = 640, tmp_path / "node.state"
    plan = Plan(ratio=0.02, values="int8", frames=frames, down="same")
    server, client = Server(plan, torch.zeros(size)), Client([size])
    server.join("a", 5)
    layout = Layout([Piece("w", (size,), "float32", False)])
    in_place = 0
    for number in range(30):
        node = read(path, mapped=True) or Node("lineage", layout, Client([size]))
        in_place += node.stored is not None and node.stored.sequence > 0
        order = server.orders(["a"])["a"]
        download = server.download("a")
        gradient = torch.randn(size, generator=torch.Generator().manual_seed(number))
        frame = [_round(one, order, download, gradient) for one in (node.client, client)]
        assert frame[0] == frame[1]
        write(path, node)
        upload = server.read("a", frame[0])
        lost = number % 7 == 3
        server.close([] if lost else [upload], None if lost else server.model - 0.1 * server.total([upload]))
        kept = read(path)
        assert kept.client.numbers() == client.numbers()
        ours, theirs = kept.client.arrays(), client.arrays()
        assert set(ours) == set(theirs)
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert in_place > 20


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.015, 0.1])
def test_after_its_first_upload_a_node_never_writes_a_whole_file_again(tmp_path, unplugged, ratio):
    size, path = 50_000, tmp_path / "node.state"
    server = Server(Plan(method="top-k", ratio=ratio), torch.zeros(size))
    server.join("a", 5)
    layout = Layout([Piece("w", (size,), "float32", False)])
    files = []
    for number in range(8):
        node = read(path, mapped=True) or Node("lineage", layout, Client([size]))
        gradient = torch.randn(size, generator=torch.Generator().manual_seed(number))
        frame = _round(node.client, server.orders(["a"])["a"], server.download("a"), gradient)
        write(path, node)
        files.append(path.stat().st_ino)
        upload = server.read("a", frame)
        server.close([upload], server.model - 0.1 * server.total([upload]))
    assert len(set(files)) == 1


def _round(client, order: Order, download, gradient):
    client.settle(order.taken)
    client.receive(download)
    return client.upload(gradient, order).frame
