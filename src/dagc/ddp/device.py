"""Work on the parameters' device: what crosses between it and the host is entries and a few numbers, never a model."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dagc.errors import InvalidInput
from dagc.sparse import Sparse
from dagc.state import BLOCK, checksum, checksum_of_sums

__all__ = ["dense_on", "device_of", "tensor_checksum", "write_entries"]

REFUSED = {
    "meta": "they have no values yet: materialize the model first",
    "mps": "it lacks float64 and collective operations: move the model to the CPU or to CUDA",
}
"""Devices on which a step would fail half way, and what to do."""


def device_of(parameters: Sequence[Tensor]) -> torch.device:
    """The device of these parameters, if they are all on one that can be used."""
    devices = sorted({parameter.device for parameter in parameters}, key=str)
    if len(devices) != 1:
        raise InvalidInput(f"the trainable parameters must be on one device, not on {list(map(str, devices))}")
    if devices[0].type in REFUSED:
        raise InvalidInput(f"the trainable parameters are on {str(devices[0])!r}: {REFUSED[devices[0].type]}")
    return devices[0]


def write_entries(gradients: Sequence[Tensor], total: Sparse | None, scale: float = 1.0) -> None:
    """Set tensors, in the order of the vector, to some entries times a scale; everything else becomes zero.

    The entries cross to the device once, with positions in 32 bits where these are enough.
    """
    torch._foreach_zero_(list(gradients))
    if total is None or not len(total):
        return
    starts = np.cumsum([0, *(gradient.numel() for gradient in gradients)])
    bounds = np.searchsorted(total.indices, starts)
    local = total.indices - np.repeat(starts[:-1], np.diff(bounds))
    index = _positions(local, max(gradient.numel() for gradient in gradients), gradients[0].device)
    values = torch.from_numpy(total.values if scale == 1.0 else total.values * np.float32(scale))
    values = values.to(gradients[0].device)
    for slot in np.diff(bounds).nonzero()[0]:
        gradient, part = gradients[slot], slice(bounds[slot], bounds[slot + 1])
        vector = gradient.view(-1) if gradient.is_contiguous() else gradient.new_zeros(gradient.numel())
        vector.index_add_(0, index[part], values[part].to(gradient.dtype))
        if not gradient.is_contiguous():
            gradient.copy_(vector.view(gradient.shape))


def dense_on(device: torch.device, entries: Sparse) -> Tensor:
    """The whole vector on a device; only the entries cross."""
    vector = torch.zeros(entries.size, dtype=torch.float32, device=device)
    index = _positions(entries.indices, entries.size, device)
    return vector.index_add_(0, index, torch.from_numpy(entries.values).to(device))


def _positions(indices: np.ndarray[tuple[int], np.dtype[np.int64]], size: int, device: torch.device) -> Tensor:
    return torch.from_numpy(indices.astype(np.int32) if size < 1 << 31 else indices).to(device)


def tensor_checksum(vector: Tensor) -> int:
    """`dagc.state.checksum` of a float32 vector on any device; sums of 32 kB each cross, and the last 32 kB.

    Example:
        >>> tensor_checksum(torch.arange(10, dtype=torch.float32)) == checksum(np.arange(10, dtype=np.float32))
        True
    """
    if vector.is_cpu:
        return checksum(vector.numpy())
    end = vector.numel() * vector.element_size() // BLOCK * BLOCK // vector.element_size()
    sums = vector[:end].view(torch.int64).view(-1, BLOCK // 8).sum(dim=1)
    return checksum_of_sums(sums.cpu().numpy(), vector[end:].cpu().numpy())
