"""The models: their sizes, their seeds, and that they train."""

import pytest
import torch
from torch import nn

from dagc.data import Batches, iid, load
from dagc.errors import InvalidInput, MissingData
from dagc.models import MODELS, build, parameter_count

SIZES = [
    ("logistic", (1, 28, 28), 10, 784 * 10 + 10),
    ("mlp", (1, 8, 8), 10, 64 * 256 + 256 + 256 * 10 + 10),
    ("cnn", (3, 32, 32), 10, 235_690),
]


@pytest.mark.parametrize(("name", "shape", "classes", "expected"), SIZES)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, expected: int) -> None:
    model = build(name, shape, classes)
    assert parameter_count(model) == expected
    assert model(torch.zeros(2, *shape)).shape == (2, classes)


def test_every_model_has_a_size_test() -> None:
    assert {name for name, *_ in SIZES} == {name for name, model in MODELS.items() if not model.tokens}


@pytest.mark.parametrize(("name", "shape", "classes", "expected"), SIZES)
def test_no_batch_norm_nor_dropout(name: str, shape: tuple[int, ...], classes: int, expected: int) -> None:
    kinds = {type(module).__name__.lower() for module in build(name, shape, classes).modules()}
    assert not any(word in kind for kind in kinds for word in ("norm", "dropout"))


@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
def test_the_seed_decides_and_the_global_generator_is_left_alone(name: str) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = build(name, (1, 32, 32), 10, seed=7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = build(name, (1, 32, 32), 10, seed=7), build(name, (1, 32, 32), 10, seed=8)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    assert all(torch.isfinite(parameter).all() for parameter in first.parameters())


@pytest.mark.parametrize(("name", "shape", "classes", "expected"), SIZES)
def test_the_signal_neither_fades_nor_explodes(name: str, shape: tuple[int, ...], classes: int, expected: int) -> None:
    x = torch.randn(8, *shape, generator=torch.Generator().manual_seed(0))
    model = build(name, shape, classes)
    logits = model(x)
    assert 0.01 < float(logits.detach().std()) < 3
    nn.functional.cross_entropy(logits, torch.arange(8) % classes).backward()
    moved = [float(parameter.grad.norm()) for parameter in model.parameters() if parameter.grad is not None]
    assert len(moved) == len(list(model.parameters()))
    assert max(moved) < 100
    assert moved[0] > 1e-4  # the first layer hears of the error


def test_a_data_set_gives_shape_and_classes() -> None:
    digits = load("digits")
    model = build("mlp", digits)
    x, _ = next(digits.test_batches(5))
    assert model(x).shape == (5, 10)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "reason"),
    [
        ("transformer", (3, 32, 32), 10, "there is no model 'transformer': choose one of logistic"),
        ("cnn", (784,), 10, r"images of at least 16 × 16 .* not samples of shape \(784,\)"),
        ("logistic", (4,), None, "classes is None"),
        ("logistic", (4,), 1, "classes is 1"),
        ("logistic", (), 2, "are empty"),
        ("logistic", (0, 3), 2, "are empty"),
    ],
)
def test_what_cannot_be_built_is_refused(name: str, shape: tuple[int, ...], classes: int | None, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        build(name, shape, classes)


def losses(name: str, data_name: str, rate: float, batch: int, steps: int = 200) -> list[float]:
    try:
        data = load(data_name)
    except MissingData as error:
        pytest.skip(f"real data is not here: {error}")
    model = build(name, data, seed=0)
    batches = Batches(data, iid(data.train_y.numpy(), clients=1), batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    losses = []
    for round in range(steps):
        x, y = batches.batch(0, round)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def falls(losses: list[float], by: float) -> None:
    assert all(torch.isfinite(torch.tensor(losses)))
    quarter = len(losses) // 4
    assert sum(losses[-quarter:]) / quarter < sum(losses[:quarter]) / quarter - by


def test_the_mlp_trains_on_digits() -> None:
    falls(losses("mlp", "digits", 0.1, 32), by=0.3)
