"""An all-gather of variable size: every rank gets all messages, nearly always in one exchange."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from struct import Struct
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from dagc.errors import DagcError, InvalidInput, MalformedPayload, NonFiniteGradient

_HEAD = Struct("<BIQdI")
REFUSALS: tuple[type[DagcError], ...] = (NonFiniteGradient, InvalidInput, DagcError)  # that a rank can report to all


class Exchanged(NamedTuple):
    """What an exchange took on this rank. Only numbers, so that `_asdict()` can be logged directly."""

    round: int  # how many exchanges are done, this one included
    steps: int  # the optimizer's steps before it; 1 for the hook
    entries: int  # that this rank sent
    payload: int  # bytes of this rank's payload; 0 if it waits
    sent: int  # bytes that this rank handed to the network: its payload to every other rank, with heads and padding
    received: int  # bytes from the others
    exchanges: int  # 1, or 2 if a payload exceeded the expected size
    skipped: bool  # whether the step was refused on all ranks, and a scaler was made to skip it
    compress: float  # seconds for error feedback, selection and the payload
    exchange: float  # seconds that this rank waited for the network and for slower ranks
    decode: float  # seconds to decode the payloads, sum them and use the sum


class Packet(NamedTuple):
    """What a rank sends to all others in a step: its payload, or the words of an error."""

    refusal: int  # 0, or the place of the error's class in `REFUSALS`, from 1
    start: int  # drawn at the start of the training that the rank belongs to
    step: int
    norm: float  # of its gradient, if the policy asks for it
    body: bytes | memoryview

    def error(self, rank: int) -> DagcError | None:
        """What this rank reports, as an error that names it; None if it sends a payload."""
        if not self.refusal:
            return None
        words = f"rank {rank}: {bytes(self.body).decode(errors='replace')}"
        return REFUSALS[min(self.refusal, len(REFUSALS)) - 1](words)


def refusal(error: Exception, start: int = 0, step: int = 0) -> Packet:
    """The packet that reports an error to all ranks."""
    kind = next((place for place, each in enumerate(REFUSALS, start=1) if isinstance(error, each)), len(REFUSALS))
    words = str(error) if isinstance(error, DagcError) else f"{type(error).__name__}: {error}"
    return Packet(kind, start, step, 0.0, words[:10_000].encode())


class Exchange:
    """A rank's place in a process group.

    Payloads hardly change in length from step to step, so every rank sends as many bytes as last time and a few more.
    The heads have the true lengths; if the space was too small, a second exchange delivers the rest.
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
        self.traffic = (0, 0, 0)  # of the last exchange: bytes to and from all others, and how many times
        self._expected = [_HEAD.size] * self.world

    def all_gather(self, message: Packet) -> list[Packet]:
        content = _HEAD.pack(*message[:4], len(message.body)) + message.body
        self.traffic = (0, 0, 0)
        parts = self._send(content, self._expected, message.step)
        lengths = [_HEAD.size + int(_HEAD.unpack_from(part)[4]) for part in parts]
        pairs = list(zip(lengths, self._expected, strict=True))
        missing = [max(0, length - sent) for length, sent in pairs]
        if any(missing):
            rest = self._send(content[self._expected[self.rank] :], missing, message.step)
            parts = [memoryview(b"".join(pair)) for pair in zip(parts, rest, strict=True)]
        self._expected = [max(length + length // 32 + 64, sent - sent // 64) for length, sent in pairs]
        bodies = [part[_HEAD.size : length] for part, length in zip(parts, lengths, strict=True)]
        return [Packet._make((*_HEAD.unpack_from(part)[:4], body)) for part, body in zip(parts, bodies, strict=True)]

    def share(self, prepare: Callable[[], Any]) -> list[Any]:
        """What every rank has prepared; an error on all ranks if one fails, which it names unless all fail alike."""
        failure: Exception | None = None
        try:
            message = Packet(0, 0, 0, 0.0, json.dumps(prepare()).encode())
        except Exception as reason:
            failure, message = reason, refusal(reason)
        packets = self.all_gather(message)
        errors = [error for error in map(Packet.error, packets, range(self.world)) if error is not None]
        if errors:
            all_alike = all(packet.refusal and packet.body == message.body for packet in packets)
            raise failure if failure is not None and all_alike else errors[0] from failure
        try:
            return [json.loads(bytes(packet.body)) for packet in packets]
        except ValueError as error:
            raise MalformedPayload(f"a rank's message cannot be read: {error}") from error

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
        length, total = lengths[self.rank], sum(lengths)
        padded = bytearray(content[:length].ljust(max(1, length), b"\0"))
        to_all = torch.frombuffer(padded, dtype=torch.uint8)[:length].to(self.device).repeat(self.world)
        of_all = torch.empty(total, dtype=torch.uint8, device=self.device)
        with self.together(f"in {self.what} {step}"):
            dist.all_to_all_single(of_all, to_all, lengths, [length] * self.world, group=self.group)
        sent, received, times = self.traffic
        self.traffic = (sent + length * (self.world - 1), received + total - length, times + 1)
        whole = memoryview(of_all.cpu().numpy().data).toreadonly()  # as bytes are: kernels are compiled for one of both
        return [whole[end - part : end] for part, end in zip(lengths, accumulate(lengths), strict=True)]
