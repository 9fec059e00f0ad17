"""Mini-batches: pure functions of seed, client and round."""

import threading

import numpy as np
import pytest
import torch

from dagc.data import Batches, Dataset, Partition, iid, load
from dagc.data.batches import crop_and_flip
from dagc.errors import InvalidInput


def _toy(samples: int = 100, augment: bool = False) -> Dataset:
    x = torch.arange(samples * 3 * 4 * 4).remainder(251).to(torch.uint8).reshape(samples, 3, 4, 4)
    return Dataset("toy", x, torch.arange(samples) % 5, x[:2], torch.tensor([0, 1]), tuple("abcde"), augment=augment)


def _split(*sizes: int) -> Partition:
    return Partition(tuple(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])))


def test_each_sample_is_used_once_per_epoch() -> None:
    batches = Batches(_toy(), _split(70, 30), batch_size=16)
    line = np.concatenate([batches.indices(0, round) for round in range(70)])
    assert len(line) == 16 * 70
    for epoch in range(16):
        assert sorted(line[70 * epoch : 70 * (epoch + 1)]) == list(range(70))
    assert line[:70].tolist() != line[70:140].tolist()


@pytest.mark.parametrize("augment", [False, True])
def test_a_batch_depends_on_seed_worker_and_round_only(augment: bool) -> None:
    data, split = _toy(augment=augment), _split(50, 50)
    straight = Batches(data, split, 8, seed=3)
    expected = {(client, round): straight.batch(client, round) for round in range(30) for client in range(2)}
    other = Batches(data, split, 8, seed=3)
    for client, round in sorted(expected, key=lambda pair: hash((pair, "any order"))):
        x, y = other.batch(client, round)
        assert torch.equal(x, expected[client, round][0])
        assert torch.equal(y, expected[client, round][1])
    assert torch.equal(other.batch(np.int64(1), np.int64(2))[0], expected[1, 2][0])  # type: ignore[arg-type]
    for (x, y), client in zip(straight.together([1, 0], 7), (1, 0), strict=True):
        assert torch.equal(x, expected[client, 7][0])
        assert torch.equal(y, expected[client, 7][1])
    resumed = Batches(data, split, 8, seed=3).batch(1, 29)
    assert torch.equal(resumed[0], expected[1, 29][0])
    assert not torch.equal(Batches(data, split, 8, seed=4).batch(1, 29)[0], resumed[0])


def test_the_order_is_pinned() -> None:
    """A change here changes every seeded run."""
    assert Batches(_toy(), _split(100), 8, seed=1).indices(0, 0).tolist() == [24, 8, 63, 61, 95, 82, 27, 12]


def test_clients_are_shuffled_differently() -> None:
    data = _toy()
    same = Partition((np.arange(100), np.arange(100)))
    batches = Batches(data, same, 100 - 1)
    assert batches.indices(0, 0).tolist() != batches.indices(1, 0).tolist()


def test_small_clients_give_all_they_have() -> None:
    batches = Batches(_toy(), _split(1, 8, 91), batch_size=8)
    assert batches.indices(0, 5).tolist() == [0]
    assert batches.indices(1, 5).tolist() == list(range(1, 9))
    assert len(batches.batch(2, 1000)[1]) == 8


def test_labels_and_normalization_belong_to_the_samples() -> None:
    digits = load("digits")
    batches = Batches(digits, iid(digits.train_y.numpy(), clients=3), 32)
    chosen = torch.from_numpy(batches.indices(2, 9))
    x, y = batches.batch(2, 9)
    assert torch.equal(y, digits.train_y[chosen])
    assert torch.equal(x, digits.normalize(digits.train_x[chosen]))
    before = digits.train_x.clone()
    x.zero_()
    assert torch.equal(digits.train_x, before)


def test_a_float_data_set_is_not_changed_by_its_batches() -> None:
    x = torch.rand(10, 4)
    data = Dataset(
        "f", x, torch.arange(10) % 2, x[:2].clone(), torch.tensor([0, 1]), ("a", "b"), mean=x.mean(0), std=x.std(0)
    )
    kept = x.clone()
    Batches(data, _split(10), 4).batch(0, 0)[0].zero_()
    next(data.test_batches())[0].zero_()
    assert torch.equal(data.train_x, kept)
    assert torch.equal(data.test_x, kept[:2])


def test_threads_do_not_matter() -> None:
    data, split = _toy(), _split(*[10] * 10)
    alone = [Batches(data, split, 4).batch(client, 7)[0] for client in range(10)]
    shared = Batches(data, split, 4)
    results: dict[int, torch.Tensor] = {}

    def work(client: int) -> None:
        for round in range(8):
            results[client] = shared.batch(client, round)[0]

    threads = [threading.Thread(target=work, args=(client,)) for client in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(alone[client], results[client]) for client in range(10))


def test_crops_and_flips_are_windows_of_the_padded_image() -> None:
    x = torch.arange(1, 1 + 64 * 3 * 6 * 6).remainder(255).add(1).to(torch.uint8).reshape(64, 3, 6, 6)
    moved = crop_and_flip(x, key=5)
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4))
    kinds = set()
    for before, after in zip(padded, moved, strict=True):
        found = [
            (top, left, flip)
            for top in range(9)
            for left in range(9)
            for flip in (False, True)
            if torch.equal(
                before[:, top : top + 6, left : left + 6].flip(-1)
                if flip
                else before[:, top : top + 6, left : left + 6],
                after,
            )
        ]
        assert found
        kinds.update(found)
    assert len({kind[0] for kind in kinds}) > 5
    assert {kind[2] for kind in kinds} == {False, True}
    assert moved.shape == x.shape


def test_what_makes_no_batch_is_refused() -> None:
    with pytest.raises(InvalidInput, match="batch_size is 0"):
        Batches(_toy(), _split(100), 0)
    with pytest.raises(InvalidInput, match="client 0 sample 199, but toy has 100"):
        Batches(_toy(), _split(200), 8)
    batches = Batches(_toy(), _split(50, 50), 8)
    for client, round in ((2, 0), (-1, 0), (0, -1)):
        with pytest.raises(InvalidInput, match="no batch"):
            batches.batch(client, round)
