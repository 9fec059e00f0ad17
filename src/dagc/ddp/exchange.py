"""An all-gather of variable size: every rank gets all messages, nearly always in one exchange."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

import torch
import torch.distributed as dist

from dagc.errors import DagcError, InvalidInput, NonFiniteGradient

__all__ = ["Exchange", "Exchanged", "Packet", "refusal"]

_HEAD = Struct("<BIQdI")
REFUSALS: tuple[type[DagcError], ...] = (NonFiniteGradient, InvalidInput, DagcError)
"""The errors that a rank can report to all; a packet holds the place of the class, from 1."""


class Exchanged(NamedTuple):
    """What an exchange took on this rank. Only numbers, so that `_asdict()` can be logged directly.

    Attributes:
        round: How many exchanges are done, this one included.
        steps: The optimizer's steps before it; 1 for the hook.
        entries: Entries that this rank sent.
        payload: Bytes of this rank's payload; 0 if it waits.
        sent: Bytes that this rank handed to the network: its payload to every other rank, with heads and padding.
        received: Bytes that it received from the others.
        exchanges: 1, or 2 if a payload exceeded the expected size.
        skipped: Whether the step was refused on all ranks, and a scaler was made to skip it.
        compress: Seconds for error feedback, selection and the payload.
        exchange: Seconds that this rank waited for the network and for slower ranks.
        decode: Seconds to decode the payloads, sum them and use the sum.
    """

    round: int
    steps: int
    entries: int
    payload: int
    sent: int
    received: int
    exchanges: int
    skipped: bool
    compress: float
    exchange: float
    decode: float


class Packet(NamedTuple):
    """What a rank sends to all others in a step.

    Attributes:
        refusal: 0, or the class of the error that the rank reports instead of a payload; see `refusal`.
        start: The start of the training that the rank belongs to.
        step: The number of the step.
        norm: The norm of its gradient, if the policy asks for it.
        body: The payload, or the words of the error.
    """

    refusal: int
    start: int
    step: int
    norm: float
    body: bytes | memoryview

    def error(self, rank: int) -> DagcError | None:
        """What this rank reports, as an error that names it; None if it sends a payload."""
        if not self.refusal:
            return None
        words = f"rank {rank}: {bytes(self.body).decode(errors='replace')}"
        return REFUSALS[min(self.refusal, len(REFUSALS)) - 1](words)


def refusal(error: Exception, start: int = 0, step: int = 0) -> Packet:
    """The packet that reports an error to all ranks.

    Example:
        >>> refusal(InvalidInput("steps is 0")).error(rank=3)
        InvalidInput('rank 3: steps is 0')
        >>> refusal(MemoryError("no room")).error(rank=3)
        DagcError('rank 3: MemoryError: no room')
    """
    ours = isinstance(error, DagcError)
    kind = next((place for place, each in enumerate(REFUSALS, start=1) if isinstance(error, each)), len(REFUSALS))
    words = str(error) if ours else f"{type(error).__name__}: {error}"
    return Packet(kind, start, step, 0.0, words[:10_000].encode())


class Exchange:
    """A rank's place in a process group.

    Payloads hardly change in length from step to step, so every rank sends as many bytes as last time and a few more.
    The heads have the true lengths; if the space was too small, a second exchange delivers the rest.

    Args:
        group: The process group.
        device: Where the model is; with nccl, payloads go through it.
        what: What a message belongs to, for errors: a step, or an exchange after several.

    Attributes:
        sent: Bytes handed to the network in the last exchange, for all other ranks together.
        received: Bytes received from the others.
        times: How many exchanges it took: 1 or 2.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, what: str = "step") -> None:
        self.group, self.what = group, what
        try:
            self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        except ValueError as error:
            raise InvalidInput(
                f"torch.distributed does not know the model's group, a {type(group).__name__}: wrap the module in "
                "torch's own DistributedDataParallel, not in that of torchft, which exchanges in its own way"
            ) from error
        self.device = device if dist.get_backend(group) == "nccl" else torch.device("cpu")
        self.sent = self.received = self.times = 0
        self._expected = [_HEAD.size] * self.world

    @property
    def traffic(self) -> tuple[int, int, int]:
        """Bytes sent, bytes received, and how many times."""
        return self.sent, self.received, self.times

    def all_gather(self, message: Packet) -> list[Packet]:
        """All messages, in rank order."""
        content = _HEAD.pack(*message[:4], len(message.body)) + message.body
        self.sent = self.received = self.times = 0
        parts = self._send(content, self._expected, message.step)
        lengths = [_HEAD.size + int(_HEAD.unpack_from(part)[4]) for part in parts]
        missing = [max(0, length - sent) for length, sent in zip(lengths, self._expected, strict=True)]
        if any(missing):
            rest = self._send(content[self._expected[self.rank] :], missing, message.step)
            parts = [memoryview(b"".join(pair)) for pair in zip(parts, rest, strict=True)]
        self._expected = [
            max(length + length // 32 + 64, sent - sent // 64)
            for length, sent in zip(lengths, self._expected, strict=True)
        ]
        return [
            Packet._make((*_HEAD.unpack_from(part)[:4], part[_HEAD.size : length]))
            for part, length in zip(parts, lengths, strict=True)
        ]

    def share(self, body: bytes = b"", error: Exception | None = None) -> list[bytes]:
        """Every rank's message; an error on all ranks if any of them reports one instead.

        If all ranks report the same, the error does not name one of them.
        """
        packets = self.all_gather(Packet(0, 0, 0, 0.0, body) if error is None else refusal(error))
        errors = [reported for rank, packet in enumerate(packets) if (reported := packet.error(rank)) is not None]
        if not errors:
            return [bytes(packet.body) for packet in packets]
        if error is not None and all(packet.refusal and packet.body == packets[0].body for packet in packets):
            raise error
        raise errors[0] from error

    @contextmanager
    def together(self, when: str) -> Iterator[None]:
        """A block that needs all ranks. If one is lost, the error says what to do."""
        try:
            yield
        except RuntimeError as error:
            raise DagcError(
                f"rank {self.rank} lost the others {when}: a rank has died, hangs or is slower than the "
                f"process group's timeout; start all ranks again from their checkpoints of one {self.what}. "
                f"{dist.get_backend(self.group)} says: {str(error).splitlines()[0]}"
            ) from error

    def _send(self, content: bytes, lengths: list[int], step: int) -> list[memoryview]:
        """Send to all ranks, cut or padded to this rank's length, and receive what they send."""
        length = lengths[self.rank]
        padded = bytearray(content[:length].ljust(max(1, length), b"\0"))
        to_all = torch.frombuffer(padded, dtype=torch.uint8)[:length].to(self.device).repeat(self.world)
        of_all = torch.empty(sum(lengths), dtype=torch.uint8, device=self.device)
        with self.together(f"in {self.what} {step}"):
            dist.all_to_all_single(of_all, to_all, lengths, [length] * self.world, group=self.group)
        self.sent += length * (self.world - 1)
        self.received += sum(lengths) - length
        self.times += 1
        whole = memoryview(of_all.cpu().numpy().data).toreadonly()  # as bytes are: kernels are compiled for one of both
        return [whole[end - part : end] for part, end in zip(lengths, accumulate(lengths), strict=True)]
