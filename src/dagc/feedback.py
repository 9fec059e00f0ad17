"""Error feedback: what a client does not send now it keeps and adds to its next gradient, around any compressor."""

import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._numba import compiled
from dagc.compressors import Compressor, Gradient, hard_threshold, random_k, top_k
from dagc.compressors._vector import flat, refuse_non_finite, tensors
from dagc.compressors.histogram import histogram
from dagc.errors import InvalidInput
from dagc.sparse import Sparse
from dagc.wire import quantise
from dagc.wire.indices import scramble
from dagc.wire.values import value_codec

__all__ = ["ErrorFeedback"]

FUSED = (top_k, hard_threshold, random_k)
"""The compressors that have kernels; all of them refuse what is not finite."""
LINE = 16
"""So many float32 are a line of the cache."""


def _aligned(size: int) -> NDArray[np.float32]:
    """An array that begins with a line of the cache, as kernels like it; numpy's own do not."""
    room = np.empty(size + LINE, dtype=np.float32)
    start = -room.__array_interface__["data"][0] // 4 % LINE
    return room[start : start + size]


class _Spare(threading.local):
    """The array that a thread's next step writes to: what the thread's last step left behind.

    One per thread, whatever the number of clients. It is used only if no tensor or view of it is left anywhere, so
    nobody ever sees a residual that he holds change.
    """

    def __init__(self) -> None:
        self.array = np.empty(0, dtype=np.float32)
        self._alone = sys.getrefcount(self.array)

    def take(self, size: int) -> NDArray[np.float32]:
        if len(self.array) != size or sys.getrefcount(self.array) > self._alone:
            self.array = _aligned(size)
        taken, self.array = self.array, np.empty(0, dtype=np.float32)
        return taken


_spare = _Spare()


class ErrorFeedback:
    """One client's memory of what it has not sent yet.

    Nothing is ever lost: what `step` returns plus the new residual is the old residual plus the gradient, bit for bit
    with fp32 values; with the smaller value codecs the rounding error is in the residual, too.

    Args:
        compressor: What selects the entries to send.
        size: The number of entries in the gradient.
        values: The value codec that `encode` will be given, so that the residual can keep its rounding error.
        seed: For compressors that draw; give every client its own.
        device: Where the residual lives; the gradients must be there, too.

    Attributes:
        residual: What was kept back: a float32 vector. Each step makes a new tensor of it.

    Example:
        >>> from dagc import top_k
        >>> feedback = ErrorFeedback(top_k, size=4)
        >>> feedback.step(torch.tensor([1.0, 5.0, 2.0, -3.0]), 2).indices
        array([1, 3])
        >>> feedback.residual
        tensor([1., 0., 2., 0.])
        >>> feedback.step(torch.tensor([1.5, 0.0, 2.0, 1.0]), 2).values
        array([2.5, 4. ], dtype=float32)
    """

    def __init__(
        self, compressor: Compressor, size: int, *, values: str = "fp32", seed: int = 0, device: Any = "cpu"
    ) -> None:
        """Start with nothing kept back."""
        if size < 1:
            raise InvalidInput(f"size must be at least 1, not {size}")
        value_codec(values)
        self.compressor = compressor
        self.size = size
        self.values = values
        self.seed = seed
        self.steps = 0
        self._array = _aligned(size)
        self._array[:] = 0.0
        self.residual = torch.from_numpy(self._array).to(device)

    def step(self, gradient: Gradient, parameter: Any) -> Sparse:
        """Add a gradient to what was kept back and hand out what to send of it; if refused, nothing has changed.

        Args:
            gradient: A tensor of any shape and float type, or the tensors of a model in order.
            parameter: The compressor's: the number of entries, or the threshold.
        """
        parts = self._parts(gradient)
        array = _spare.take(self.size)
        out = torch.from_numpy(array)
        if not self.residual.is_cpu:
            out = out.to(self.residual.device)
        try:
            sparse = self._select(parts, out, parameter, scramble(self.seed, self.steps))
        except BaseException:
            _spare.array = array
            raise
        if self.values != "fp32":
            sent = quantise(sparse.values, self.values)
            out[self._places(sparse)] = torch.from_numpy(sparse.values - sent).to(out.device)
            sparse = Sparse.trusted(sparse.size, sparse.indices, sent, sparse.seed)
        _spare.array, self._array = self._array, array
        self.residual = out
        self.steps += 1
        return sparse

    def histogram(self, gradient: Gradient, bins: int = 4, floor: int = 0) -> NDArray[np.int64]:
        """How large the entries are that `step` would choose from: counts by magnitude; nothing changes.

        Args:
            gradient: As in `step`.
            bins: How many there are to a doubling of the magnitude.
            floor: The lowest bin that is counted.
        """
        return histogram(self._parts(gradient), self.residual, bins, floor)

    def _parts(self, gradient: Gradient) -> list[torch.Tensor]:
        parts = tensors(gradient)
        size = sum(part.numel() for part in parts)
        if size != self.size:
            raise InvalidInput(f"the gradient has {size} entries, this error feedback is for {self.size}")
        return parts

    def _select(self, parts: list[torch.Tensor], out: torch.Tensor, parameter: Any, seed: int) -> Sparse:
        """Write residual + gradient to `out`, with zero for what is selected; the residual is only read.

        So the residual is there still, bit for bit, if the sum turns out not to be finite.
        """
        if self.compressor in FUSED and compiled() and all(vector.is_cpu for vector in (*parts, out)):
            from dagc.compressors import _select

            total = _select.total(parts, self.residual.contiguous().numpy(), out.numpy())
            return _select.SELECT[self.compressor](total, parameter, seed)
        torch.add(self.residual, flat(parts), out=out)
        if self.compressor not in FUSED:  # those look themselves
            refuse_non_finite(out)
        sparse = self.compressor(out, parameter, seed=seed)
        if out.is_cpu:
            out.numpy()[sparse.indices] = 0.0
        else:
            out[self._places(sparse)] = 0.0
        return sparse

    def _places(self, sparse: Sparse) -> torch.Tensor:
        return torch.from_numpy(sparse.indices).to(self.residual.device)

    def unsend(self, sparse: Sparse) -> None:
        """Take an upload back that the server never took; it goes out with later ones."""
        if sparse.size != self.size:
            raise InvalidInput(
                f"the upload is of a vector of {sparse.size} entries, this error feedback is for {self.size}"
            )
        self.residual[self._places(sparse)] += torch.from_numpy(sparse.values).to(self.residual.device)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Everything to go on from, as plain arrays."""
        return {"residual": self.residual.cpu().numpy().copy(), "steps": np.array(self.steps, dtype=np.int64)}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from where `state_dict` was taken."""
        if set(state) != {"residual", "steps"}:
            raise InvalidInput(f"the state must hold 'residual' and 'steps', not {sorted(state)}")
        residual = np.asarray(state["residual"])
        if residual.shape != (self.size,) or residual.dtype != np.float32:
            raise InvalidInput(
                f"the residual must be {self.size} float32 numbers, not {residual.dtype} {residual.shape}"
            )
        if not np.isfinite(residual).all():
            raise InvalidInput("the residual holds NaN or infinity: the state is damaged")
        self._array = _aligned(self.size)
        self._array[:] = residual
        self.residual = torch.from_numpy(self._array).to(self.residual.device)
        self.steps = int(state["steps"])
