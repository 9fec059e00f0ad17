"""The parameters' device: which can be used, and checksums that do not copy a model to the host."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dagc.errors import InvalidInput
from dagc.state import BLOCK, checksum, checksum_of_sums

__all__ = ["device_of", "tensor_checksum"]

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


def tensor_checksum(vector: Tensor) -> int:
    """`dagc.state.checksum` of a float32 vector on any device; sums of 32 kB each cross, and the last 32 kB.

    Example:
        >>> import numpy as np
        >>> tensor_checksum(torch.arange(10, dtype=torch.float32)) == checksum(np.arange(10, dtype=np.float32))
        True
    """
    if vector.is_cpu:
        return checksum(vector.numpy())
    end = vector.numel() * vector.element_size() // BLOCK * BLOCK // vector.element_size()
    sums = vector[:end].view(torch.int64).view(-1, BLOCK // 8).sum(dim=1)
    return checksum_of_sums(sums.cpu().numpy(), vector[end:].cpu().numpy())
