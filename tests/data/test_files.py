"""The data set itself: what it refuses, its statistics, what is held out; and the digits."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from dagc.data import load
from dagc.data.dataset import Dataset, hold_out, statistics
from dagc.errors import InvalidInput
from dagc.files import write_atomically


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="there is no data set 'digit': did you mean 'digits'"):
        load("digit")
    with pytest.raises(InvalidInput, match="no data set ''"):
        load("")


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_files_written_atomically_are_readable_for_whom_any_new_file_is(tmp_path: Path) -> None:
    with write_atomically(tmp_path / "ours") as file:
        file.write(b"x")
    (tmp_path / "any").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "any").stat().st_mode
    assert len(list(tmp_path.iterdir())) == 2


def test_digits_need_no_files(tmp_path: Path) -> None:
    data = load("digits", tmp_path / "nothing")
    assert (len(data), len(data.test_y)) == (1442, 355)
    assert torch.bincount(data.train_y).min() > 130
    assert sum(len(y) for _, y in data.test_batches(100)) == 355


def test_statistics_are_accurate_and_safe_for_constants() -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(1000, [1, 50, 1e-9], (5000, 3)).astype(np.float32))
    x[:, 2] = 7.0
    mean, std = statistics(x)
    np.testing.assert_allclose(mean, x.double().mean(0), rtol=1e-5)
    np.testing.assert_allclose(std[:2], x.double().std(0, correction=0)[:2], rtol=1e-3)
    assert std[2] == 1
    mean, std = statistics(torch.tensor([[1e30], [-1e30]]))
    assert (mean.item(), std.item()) == (0, pytest.approx(1e30))


def test_hold_out_takes_a_share_of_every_group() -> None:
    groups = np.repeat([5, 2, 9], [50, 10, 1])
    train, test = hold_out(groups)
    assert sorted([*train, *test]) == list(range(61))
    assert np.bincount(groups[test], minlength=10)[[5, 2, 9]].tolist() == [10, 2, 0]


def test_a_data_set_refuses_what_cannot_be_trained_on() -> None:
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 0])
    good = {"name": "toy", "train_x": x, "train_y": y, "test_x": x, "test_y": y, "classes": ("a", "b")}
    Dataset(**good)
    nan = x.clone()
    nan[2, 1] = float("nan")
    for change, reason in (
        ({"train_x": x.double()}, "float64"),
        ({"train_x": x[:2]}, "equal lengths"),
        ({"test_x": torch.zeros(3, 4)}, "different shapes"),
        ({"train_x": nan}, "sample 2 holds NaN"),
        ({"test_y": y + 1}, "labels run from 1 to 2"),
        ({"test_x": x[:0], "test_y": y[:0]}, "no test samples"),
        ({"client": y[:2]}, "2 client entries"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            Dataset(**(good | change))
