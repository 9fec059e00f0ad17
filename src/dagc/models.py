"""The built-in models by name, from the paper and others: none has batch norm, and all are drawn from a seed."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dagc.data.dataset import Dataset, Fields
from dagc.errors import InvalidInput, unknown

__all__ = ["MODELS", "AsImage", "AsImageChannelsLast", "Model", "build", "image_shape", "initialize", "parameter_count"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A kind of model. Add yours to `MODELS`, and every task knows it.

    `make` makes it for a shape of samples and a number of outputs (classes, numbers or tokens), and `initialize` sets
    every parameter from a seed; without that, `make` is called with torch's generator set to the seed. `tokens` says
    whether samples are sequences of tokens.
    """

    make: Callable[[Shape, int], nn.Module]
    initialize: Callable[[nn.Module, int], None] | None = None
    tokens: bool = False


def build(name: str, like: Dataset | Shape, classes: int | None = None, seed: int = 0) -> nn.Module:
    """Make a model.

    Args:
        name: One of `MODELS`.
        like: The data set to train on, or the shape of one sample.
        classes: The number of labels, or of other outputs; taken from the data set if one is given.
        seed: Determines the initial weights. torch's global generator is neither used nor changed.

    Example:
        >>> parameter_count(build("logistic", (1, 28, 28), 10))
        7850
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    kind, data = MODELS[name], like if isinstance(like, Dataset) else None
    shape = like.shape if isinstance(like, Dataset) else tuple(like)
    outputs = data.outputs if data is not None and classes is None else classes
    if outputs is None or outputs < (2 if data is None else 1):
        raise InvalidInput(f"classes is {outputs}; give the number of labels, 2 or more")
    if not shape or min(shape) < 1:
        raise InvalidInput(f"samples of shape {shape} are empty; give for example (3, 32, 32)")
    if data is not None:
        _check_data(name, data)
    if kind.initialize is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return kind.make(shape, outputs)
    with torch.device("meta"):  # no memory and no random numbers yet
        model = kind.make(shape, outputs)
    model.to_empty(device="cpu")
    kind.initialize(model, seed)
    return model


def _check_data(name: str, data: Dataset) -> None:
    """Refuse samples that a model cannot take."""
    if isinstance(data.train_x, Fields):
        inputs = ", ".join(data.train_x.tensors)
        raise InvalidInput(f"{name} takes one tensor, but {data.name} has {inputs}: pass a model of your own")
    tokens = MODELS[name].tokens
    if tokens != (data.objective == "next-token"):
        able = [other for other, each in MODELS.items() if each.tokens != tokens]
        wrong, verb = ("not ", "needs") if tokens else ("", "cannot take")
        raise InvalidInput(
            f"the samples of {data.name} are {wrong}sequences of tokens, which {name} {verb}: use {' or '.join(able)}"
        )


def parameter_count(model: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


class AsImage(nn.Module):
    """Adds a channel axis to samples with two axes (frames × bands, rows × columns)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1) if x.ndim == 3 else x


class AsImageChannelsLast(AsImage):
    """The same with channels last in memory: up to a third faster for plain stacks of convolutions on the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).contiguous(memory_format=torch.channels_last)


def image_shape(shape: Shape, least: int) -> Shape:
    """The shape as (channels, height, width), each side at least `least` pixels."""
    image = (1, *shape) if len(shape) == 2 else shape
    if len(image) != 3 or min(image[1:]) < least:
        raise InvalidInput(
            f"this model needs images of at least {least} × {least} pixels, as (channels, height, width), not samples "
            f"of shape {shape}; logistic and mlp take any shape"
        )
    return image


def _mlp(shape: Shape, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 256), nn.ReLU(), nn.Linear(256, classes))


def _cnn(shape: Shape, classes: int) -> nn.Module:
    channels, height, width = image_shape(shape, 16)
    side = [((pixels - 4) // 2 - 4) // 2 for pixels in (height, width)]
    return nn.Sequential(
        AsImageChannelsLast(),
        *(nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * side[0] * side[1], 256), nn.ReLU(), nn.Linear(256, classes)),
    )


class _TokenLstm(nn.Module):
    """The scores of every next token of a sequence."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, 32)
        self.lstm = nn.LSTM(32, 128, batch_first=True)
        self.out = nn.Linear(128, tokens)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        scores: Tensor = self.out(states)
        return scores


def initialize(model: nn.Module, seed: int) -> None:
    """Set every parameter from `seed`.

    Layers before a ReLU keep the scale of the signal (He), and the last one starts small.
    """
    random = torch.Generator().manual_seed(seed)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for layer in layers:
        fan_in = layer.weight[0].numel()
        if layer is layers[-1]:
            nn.init.uniform_(layer.weight, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in), generator=random)
        else:
            nn.init.normal_(layer.weight, std=math.sqrt(2 / fan_in), generator=random)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    for lstm in (layer for layer in model.modules() if isinstance(layer, nn.LSTM)):
        _initialize_lstm(lstm, random)
    for embedding in (layer for layer in model.modules() if isinstance(layer, nn.Embedding)):
        nn.init.normal_(embedding.weight, generator=random)


def _initialize_lstm(lstm: nn.LSTM, random: torch.Generator) -> None:
    """Orthogonal state matrices and open forget gates: with torch's default values, plain SGD hardly learns."""
    for name, parameter in lstm.named_parameters():
        if name.startswith("weight_hh"):
            for gate in parameter.data.chunk(4):
                nn.init.orthogonal_(gate, generator=random)
        elif name.startswith("weight_ih"):
            nn.init.normal_(parameter, std=1 / math.sqrt(parameter.shape[1]), generator=random)
        else:
            nn.init.zeros_(parameter)
            if name.startswith("bias_ih"):
                parameter.data[lstm.hidden_size : 2 * lstm.hidden_size] = 1.0


MODELS: dict[str, Model] = {
    "logistic": Model(
        lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes)), initialize
    ),
    "mlp": Model(_mlp, initialize),  # not in the paper
    "cnn": Model(_cnn, initialize),  # the four layers of McMahan et al. 2017, half as wide
    "token-lstm": Model(lambda shape, tokens: _TokenLstm(tokens), initialize, tokens=True),  # not in the paper
}
"""Every model by name."""
