"""The paper's other models, without batch norm: an LSTM, VGG11, its reduced form VGG11s, and ResNet18; and more."""

import torch
from torch import Tensor, nn

from dagc.errors import InvalidInput
from dagc.models import AsImage, AsImageChannelsLast, Model, Shape, image_shape, initialize

__all__ = ["MODELS", "Logits", "Preferences"]


def _vgg(shape: Shape, classes: int, widths: tuple[int, ...], pooled: tuple[int, ...], hidden: int) -> nn.Module:
    """3 × 3 convolutions of the given widths, 2 × 2 pooling after some, three linear layers."""
    channels, height, width = image_shape(shape, 32)
    layers: list[nn.Module] = [AsImageChannelsLast()]
    for index, out in enumerate(widths):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
        if index in pooled:
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        channels = out
    layers += [nn.Flatten(), nn.Linear(channels * height * width, hidden), nn.ReLU()]
    layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers)


_POOLED = (0, 1, 3, 5, 7)


def _vgg11s(shape: Shape, classes: int) -> nn.Module:
    return _vgg(shape, classes, (32, 64, 128, 128, 128, 128, 128, 128), _POOLED, 128)


def _vgg11(shape: Shape, classes: int) -> nn.Module:
    return _vgg(shape, classes, (64, 128, 256, 256, 512, 512, 512, 512), _POOLED, 512)


class _Lstm(nn.Module):
    """Two layers of 128 over the rows of a sample; the last state is classified."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, 128, num_layers=2, batch_first=True)
        self.out = nn.Linear(128, classes)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.squeeze(1) if x.ndim == 4 else x
        states, _ = self.lstm(rows)
        decision: Tensor = self.out(states[:, -1])
        return decision


def _lstm(shape: Shape, classes: int) -> nn.Module:
    rows = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
    if len(rows) != 2:
        raise InvalidInput(f"lstm needs sequences, (steps, features), not samples of shape {shape}")
    return _Lstm(rows[1], classes)


class _Residual(nn.Module):
    """Two 3 × 3 convolutions with a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, out, 3, stride, padding=1)
        self.second = nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1, stride) if stride > 1 or channels != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        branch = self.second(torch.relu(self.first(x)))
        return torch.relu(branch + self.shortcut(x))


class _Mean(nn.Module):
    """The mean of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def _resnet18(shape: Shape, classes: int) -> nn.Module:
    channels = image_shape(shape, 8)[0]
    layers: list[nn.Module] = [AsImage(), nn.Conv2d(channels, 64, 3, padding=1), nn.ReLU()]
    inner = 64
    for out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [_Residual(inner, out, stride), _Residual(out, out, 1)]
        inner = out
    return nn.Sequential(*layers, _Mean(), nn.Linear(512, classes))


def _resnet8(shape: Shape, classes: int) -> nn.Module:
    layers: list[nn.Module] = [AsImage(), nn.Conv2d(image_shape(shape, 8)[0], 32, 3, padding=1), nn.ReLU()]
    for width in (32, 64, 128):
        layers.append(_Residual(width, 2 * width, 2))
    return nn.Sequential(*layers, _Mean(), nn.Linear(256, classes))


def _initialize_resnet(model: nn.Module, seed: int) -> None:
    """Set every parameter from `seed`.

    The branches are scaled down by the square root of their number, so that together they add no more than one layer
    would: without normalization, the signal neither grows nor fades with depth. This was chosen over branches that
    start at zero and over a learned scale per branch, by the loss after 100 steps on CIFAR-10 at a rate of 0.01, one
    seed each.
    """
    initialize(model, seed)
    branches = [block for block in model.modules() if isinstance(block, _Residual)]
    with torch.no_grad():
        for block in branches:
            block.second.weight.mul_(len(branches) ** -0.5)


class Preferences(nn.Module):
    """Whether a person likes a thing: the product of two vectors, and how much each likes and is liked anyway.

    Example:
        >>> Preferences(3, 5)(torch.tensor([[0, 4], [2, 1]])).shape
        torch.Size([2, 2])
    """

    def __init__(self, people: int, things: int, width: int = 16) -> None:
        super().__init__()
        self.people, self.things = nn.Embedding(people, width + 1), nn.Embedding(things, width + 1)
        for embedding in (self.people, self.things):
            nn.init.normal_(embedding.weight, std=0.1)
            nn.init.zeros_(embedding.weight[:, -1])

    def forward(self, x: Tensor) -> Tensor:
        person, thing = self.people(x[:, 0]), self.things(x[:, 1])
        score = (person[:, :-1] * thing[:, :-1]).sum(1) + person[:, -1] + thing[:, -1]
        return torch.stack([-score / 2, score / 2], dim=1)


class Logits(nn.Module):
    """A language model of transformers that takes tokens and returns the scores of every next one, nothing else."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model(input_ids=x, use_cache=False).logits
        return scores


MODELS: dict[str, Model] = {
    "lstm": Model(_lstm, initialize),  # LSTM@SCs: Fig. 2b, Tables III and V
    "vgg11s": Model(_vgg11s, initialize),  # VGG11s@Flickr: Figs. 3 and 4; the reduced VGG11 of Sattler et al.
    "vgg11": Model(_vgg11, initialize),  # VGG11@CIFAR-100: Fig. 5; linear layers of 512, as suits 32 × 32 images
    "resnet18": Model(_resnet18, _initialize_resnet),  # ResNet18@CIFAR-10: Fig. 5; first convolution 3 × 3
    "resnet8": Model(_resnet8, _initialize_resnet),  # three residual blocks, 64 to 256 wide: `research.larger`
}
"""By name, for `dagc.models.MODELS`."""
