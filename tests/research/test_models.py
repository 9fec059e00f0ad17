"""The larger models of the experiments: their sizes, their seeds, and that they train."""

import pytest
from torch import nn

from dagc.errors import InvalidInput
from dagc.models import build, parameter_count
from research.models import MODELS
from tests.training import test_models as others
from tests.training.test_models import falls, losses

SIZES = [
    ("lstm", (32, 32), 10, 4 * 128 * (32 + 128 + 2) + 4 * 128 * (128 + 128 + 2) + 1_290),
    ("vgg11s", (3, 32, 32), 10, 865_482),
    ("vgg11", (3, 32, 32), 100, 9_220_480 + 2 * (512 * 512 + 512) + 512 * 100 + 100),
    ("resnet18", (3, 32, 32), 10, 11_169_162),
    ("resnet8", (3, 32, 32), 10, 1_209_034),
]
sizes = pytest.mark.parametrize(("name", "shape", "classes", "expected"), SIZES)


@sizes
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, expected: int) -> None:
    others.test_parameter_counts(name, shape, classes, expected)


def test_resnet18_counts_what_the_layers_add_up_to() -> None:
    widths = [(64, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512)]
    total = 3 * 64 * 9 + 64 + 512 * 10 + 10
    for before, after in widths:
        total += before * after * 9 + after + after * after * 9 + after
        total += before * after + after if before != after else 0
    assert parameter_count(build("resnet18", (3, 32, 32), 10)) == total


def test_every_model_has_a_size_test() -> None:
    assert {name for name, *_ in SIZES} == set(MODELS)


@sizes
def test_no_batch_norm_nor_dropout(name: str, shape: tuple[int, ...], classes: int, expected: int) -> None:
    others.test_no_batch_norm_nor_dropout(name, shape, classes, expected)
    if name.startswith("vgg11"):
        layers = list(build(name, shape, classes).modules())
        assert sum(isinstance(layer, nn.Conv2d) for layer in layers) == 8
        assert sum(isinstance(layer, nn.Linear) for layer in layers) == 3


def test_the_seed_decides_and_the_global_generator_is_left_alone() -> None:
    for name in ("lstm", "vgg11s"):
        others.test_the_seed_decides_and_the_global_generator_is_left_alone(name)


@sizes
def test_the_signal_neither_fades_nor_explodes(name: str, shape: tuple[int, ...], classes: int, expected: int) -> None:
    others.test_the_signal_neither_fades_nor_explodes(name, shape, classes, expected)


def test_small_images_are_refused() -> None:
    with pytest.raises(InvalidInput, match="32 × 32"):
        build("vgg11", (3, 28, 28), 10)


@pytest.mark.parametrize("shape", [(3, 32, 32), (54,)])
def test_an_lstm_needs_sequences(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="lstm needs sequences"):
        build("lstm", shape, 10)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "data", "rate", "batch", "by"),
    [
        ("logistic", "fashion-mnist", 0.1, 32, 0.3),
        ("cnn", "cifar-10", 0.01, 32, 0.15),
        ("lstm", "speech-commands", 0.1, 8, 0.5),
        ("vgg11s", "cifar-10", 0.1, 32, 0.05),
        ("vgg11", "cifar-10", 0.01, 16, 0.1),
        ("resnet18", "cifar-10", 0.01, 16, 0.05),
    ],
)
def test_models_train_on_real_data(name: str, data: str, rate: float, batch: int, by: float) -> None:
    falls(losses(name, data, rate, batch), by)
