"""Error feedback around any compressor: a client keeps what it does not send, and adds it to its next gradient."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._memory import pool
from dagc.compressors import Adding, Compressor, Gradient
from dagc.compressors._vector import added, flat, refuse_non_finite, removed, tensors
from dagc.draws import draw, scramble
from dagc.errors import InvalidInput
from dagc.sparse import Sparse
from dagc.state import Check, Stateful, whole
from dagc.wire import quantize
from dagc.wire.values import value_codec

if TYPE_CHECKING:  # its kernels compile when they are imported
    from dagc.updates import Update

SMALLEST_CLIP = 2.0**-126  # the smallest normal float32: below it, values cannot be scaled down with any precision
CLIP_ATTEMPTS = 16
"""How often values are scaled down before nothing is sent. Each value codec needs one or two."""


def is_clip(number: float) -> bool:
    """Whether values can be clipped to this norm: 0, which means no limit, or any norm that is not tiny."""
    return number == 0 or SMALLEST_CLIP <= number < float("inf")


class ErrorFeedback(Stateful):
    """What one client has not sent yet.

    Nothing is ever lost: what `step` returns plus the new residual is the old residual plus the gradient, bit for bit
    with fp32 values. With smaller value codecs, the rounding error goes into the residual, too.

    Args:
        compressor: Selects the entries to send.
        size: The number of entries in the gradient.
        values: The value codec that `encode` will use, so that the residual can keep its rounding error.
        seed: For compressors that draw at random; give every client its own.
        device: Where the residual is; the gradients must be on the same device.

    Compressor, values and seed may be assigned between steps; compressors that draw do so from the seed and `steps`.

    Example:
        >>> from dagc import top_k
        >>> feedback = ErrorFeedback(top_k, size=4)
        >>> before = feedback.snapshot()
        >>> feedback.step(torch.tensor([1.0, 5.0, 2.0, -3.0]), 2).indices
        array([1, 3])
        >>> feedback.residual
        tensor([1., 0., 2., 0.])
        >>> feedback.step(torch.tensor([1.5, 0.0, 2.0, 1.0]), 2).values
        array([2.5, 4. ], dtype=float32)
        >>> feedback.rollback(before)
        >>> feedback.residual, feedback.steps
        (tensor([0., 0., 0., 0.]), 0)
    """

    FITS = "this error feedback"

    def __init__(
        self, compressor: Compressor, size: int, *, values: str = "fp32", seed: int = 0, device: Any = "cpu"
    ) -> None:
        if size < 1:
            raise InvalidInput(f"size must be at least 1, not {size}")
        value_codec(values)
        self.compressor, self.size, self.values, self.seed = compressor, size, values, seed
        self.steps = 0
        self._clip = 0.0
        self._residual = torch.empty(0, device=device)  # says where to `_empty`
        self._residual = self._empty().zero_()

    @property
    def residual(self) -> torch.Tensor:
        """What was not sent: a float32 vector of `size` entries. Nothing changes it in place: steps make new ones."""
        return self._residual

    @residual.setter
    def residual(self, residual: torch.Tensor) -> None:
        if not isinstance(residual, torch.Tensor):
            raise InvalidInput(f"the residual must be a torch tensor, not {type(residual).__name__}")
        if residual.shape != (self.size,) or residual.dtype != torch.float32:
            kind = f"{residual.dtype} {tuple(residual.shape)}"
            raise InvalidInput(f"the residual must be {self.size} float32 numbers, not {kind}")
        self._residual = residual

    @property
    def clip(self) -> float:
        """The largest norm of what a step returns; the rest stays in the residual. 0, the default, means no limit."""
        return self._clip

    @clip.setter
    def clip(self, clip: float) -> None:
        if not is_clip(clip):
            raise InvalidInput(f"clip must be 0 (no limit) or a finite norm from {SMALLEST_CLIP:.3g}, not {clip!r:.50}")
        self._clip = float(clip)

    def step(self, gradient: Gradient, parameter: Any) -> Sparse:
        """Add a gradient to the residual, and return the entries to send. If the gradient is refused, nothing changes.

        Args:
            gradient: A tensor of any shape and float type, or the tensors of a model in order.
            parameter: The compressor's: the number of entries, or the threshold.
        """
        parts, out = self._parts(gradient), self._empty()
        sparse = self._select(parts, Adding(self._residual, out), parameter, scramble(self.seed, self.steps))
        if self.values != "fp32" or self._clip:
            sent = self._bounded(sparse.values)
            out[sparse.places(out.device)] = torch.from_numpy(sparse.values - sent).to(out.device)
            sparse = Sparse.trusted(sparse.size, sparse.indices, sent, sparse.seed)
        self._residual = out
        self.steps += 1
        return sparse

    def encode(
        self, gradient: Gradient, encoder: "Callable[[torch.Tensor], tuple[bytes, Update]]", *, forget: bool = False
    ) -> "tuple[bytes, Update]":
        """Add a gradient to the residual, encode the sum, and keep what the frame does not carry.

        Args:
            gradient: As for `step`. If it is refused, nothing changes.
            encoder: From a vector to a frame and what that decodes to.
            forget: Encode the gradient alone and keep nothing: for a client that is not expected back soon.
        """
        parts, out = self._parts(gradient), self._empty()
        if forget:
            out.copy_(flat(parts))
        else:
            added(parts, Adding(self._residual, out))
        refuse_non_finite(out)
        frame, update = encoder(out)
        if forget:
            out.zero_()
        else:
            update.subtract_from(out)
        self._residual = out
        self.steps += 1
        return frame, update

    def unsend(self, update: "Sparse | Update") -> None:
        """Put an upload that the server did not accept back into the residual, so that it is sent again later."""
        residual = self._empty().copy_(self._residual)
        update.add_to(residual)
        self._residual = residual

    def _bounded(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """The values as sent: scaled down until, as the server will read them, they are within `clip`."""
        for _ in range(CLIP_ATTEMPTS):
            sent = quantize(values, self.values)
            norm = float(np.linalg.norm(sent.astype(np.float64))) if self._clip else 0.0
            if norm <= self._clip:
                return sent
            values = values * np.float32(0.9999 * self._clip / norm)  # rounding must not exceed it again
        return np.zeros_like(values)

    def _empty(self) -> torch.Tensor:
        """A new vector with arbitrary content, on the residual's device."""
        return pool.vector(self.size, self._residual.device)

    def _parts(self, gradient: Gradient) -> list[torch.Tensor]:
        parts = tensors(gradient)
        size = sum(part.numel() for part in parts)
        if size != self.size:
            raise InvalidInput(f"the gradient has {size} entries, this error feedback is for {self.size}")
        return parts

    def _select(self, parts: list[torch.Tensor], adding: Adding, parameter: Any, seed: int) -> Sparse:
        """Write residual + gradient, with zero for what is selected, with any compressor."""
        if getattr(self.compressor, "adds", False):
            select: Callable[..., Sparse] = self.compressor
            return select(parts, parameter, seed=seed, adding=adding)
        total = added(parts, adding)
        refuse_non_finite(total)
        sparse = self.compressor(total, parameter, seed=seed)
        if sparse.size != self.size or len(sparse.values) != len(sparse) or not sparse.ascends:
            raise InvalidInput(
                f"the compressor selected an entry twice, or one that is not in a vector of {self.size} entries"
            )
        # The wire would send the seed instead of the indices.
        if sparse.seed is not None and not np.array_equal(draw(sparse.seed, self.size, len(sparse)), sparse.indices):
            raise InvalidInput("the compressor selected entries that its seed does not draw")
        return removed(sparse, adding)

    def checks(self) -> dict[str, Check]:
        return {"residual": self._loaded_residual, "steps": lambda steps: whole(np.asarray(steps).tolist())}

    def _loaded_residual(self, array: Any) -> torch.Tensor:
        residual = torch.from_numpy(np.array(array))
        if not torch.isfinite(residual).all():
            raise InvalidInput("the residual holds NaN or infinity: the state is damaged")
        return residual.to(self._residual.device)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The residual and the number of steps, as plain arrays."""
        return {"residual": self._residual.cpu().numpy().copy(), "steps": np.array(self.steps, dtype=np.int64)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned. If it is refused, nothing changes."""
        if set(state) != {"residual", "steps"}:
            raise InvalidInput(f"the state must hold 'residual' and 'steps', not {sorted(state)}")
        super().load_state_dict(state)
