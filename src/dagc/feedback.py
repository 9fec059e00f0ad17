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
from dagc.errors import InvalidInput
from dagc.sparse import Sparse
from dagc.wire import quantise
from dagc.wire.indices import scramble
from dagc.wire.values import value_codec

__all__ = ["ErrorFeedback"]

FUSED = (top_k, hard_threshold, random_k)
"""The compressors that have kernels."""


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
            self.array = np.empty(size, dtype=np.float32)
        taken, self.array = self.array, np.empty(0, dtype=np.float32)
        return taken


_spare = _Spare()


def _on_host(vectors: list[torch.Tensor]) -> bool:
    return all(vector.device.type == "cpu" and vector.is_contiguous() for vector in vectors)


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
        self._array = np.zeros(size, dtype=np.float32)
        self.residual = torch.from_numpy(self._array).to(device)

    def step(self, gradient: Gradient, parameter: Any) -> Sparse:
        """Add a gradient to what was kept back and hand out what to send of it; if refused, nothing has changed.

        Args:
            gradient: A tensor of any shape and float type, or the tensors of a model in order.
            parameter: The compressor's: the number of entries, or the threshold.
        """
        parts = tensors(gradient)
        size = sum(map(len, parts))
        if size != self.size:
            raise InvalidInput(f"the gradient has {size} entries, this error feedback is for {self.size}")
        seed = scramble(self.seed, self.steps)
        if self.compressor in FUSED and compiled() and _on_host([*parts, self.residual]):
            sparse = self._fused(parts, parameter, seed)
        else:
            sparse = self._plain(parts, parameter, seed)
        self.steps += 1
        return sparse

    def _plain(self, parts: list[torch.Tensor], parameter: Any, seed: int) -> Sparse:
        """Algorithm 1 for any compressor on any device; the reference for `_fused`."""
        total = self.residual + flat(parts)
        refuse_non_finite(total)
        sparse = self.compressor(total, parameter, seed=seed)
        where = torch.from_numpy(sparse.indices).to(total.device)
        if self.values == "fp32":
            total[where] = 0.0
        else:
            sent = quantise(sparse.values, self.values)
            sparse = Sparse.trusted(sparse.size, sparse.indices, sent, sparse.seed)
            total[where] -= torch.from_numpy(sent).to(total.device)
        self.residual = total
        return sparse

    def _fused(self, parts: list[torch.Tensor], parameter: Any, seed: int) -> Sparse:
        """The same in one pass: the sum goes to a spare array, so that the residual is there still if it is refused."""
        from dagc.compressors import _select

        out = _spare.take(self.size)
        try:
            sparse = _select.SELECT[self.compressor](_select.total(parts, self.residual.numpy(), out), parameter, seed)
        except InvalidInput:
            _spare.array = out
            raise
        if self.values != "fp32":
            sent = quantise(sparse.values, self.values)
            out[sparse.indices] = sparse.values - sent
            sparse = Sparse.trusted(sparse.size, sparse.indices, sent, sparse.seed)
        _spare.array, self._array = self._array, out
        self.residual = torch.from_numpy(out)
        return sparse

    def unsend(self, sparse: Sparse) -> None:
        """Take an upload back that the server never took; it goes out with later ones."""
        if sparse.size != self.size:
            raise InvalidInput(
                f"the upload is of a vector of {sparse.size} entries, this error feedback is for {self.size}"
            )
        where = torch.from_numpy(sparse.indices).to(self.residual.device)
        self.residual[where] += torch.from_numpy(sparse.values).to(self.residual.device)

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
        self._array = residual.copy()
        self.residual = torch.from_numpy(self._array).to(self.residual.device)
        self.steps = int(state["steps"])
