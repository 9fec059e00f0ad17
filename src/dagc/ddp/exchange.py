"""An all-gather of variable size: every rank gets all messages, nearly always in one exchange."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from struct import Struct
from typing import NamedTuple

import torch
import torch.distributed as dist

from dagc.errors import DagcError

__all__ = ["Exchange", "Packet"]

_HEAD = Struct("<?QdI")


class Packet(NamedTuple):
    """What a rank sends to all others in a step.

    Attributes:
        refused: Whether its gradient could not be used; the body then says why.
        step: The number of the step.
        norm: The norm of its gradient, if the policy asks for it.
        body: The payload.
    """

    refused: bool
    step: int
    norm: float
    body: bytes | memoryview


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
        """Join the group."""
        self.group, self.what = group, what
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.device = device if dist.get_backend(group) == "nccl" else torch.device("cpu")
        self.sent = self.received = self.times = 0
        self._expected = [_HEAD.size] * self.world

    @property
    def traffic(self) -> tuple[int, int, int]:
        """Bytes sent, bytes received, and how many times."""
        return self.sent, self.received, self.times

    def all_gather(self, message: Packet) -> list[Packet]:
        """All messages, in rank order."""
        content = _HEAD.pack(*message[:3], len(message.body)) + message.body
        self.sent = self.received = self.times = 0
        parts = self._send(content, self._expected, message.step)
        lengths = [_HEAD.size + int(_HEAD.unpack_from(part)[3]) for part in parts]
        missing = [max(0, length - sent) for length, sent in zip(lengths, self._expected, strict=True)]
        if any(missing):
            rest = self._send(content[self._expected[self.rank] :], missing, message.step)
            parts = [memoryview(b"".join(pair)) for pair in zip(parts, rest, strict=True)]
        self._expected = [
            max(length + length // 32 + 64, sent - sent // 64)
            for length, sent in zip(lengths, self._expected, strict=True)
        ]
        return [
            Packet._make((*_HEAD.unpack_from(part)[:3], part[_HEAD.size : length]))
            for part, length in zip(parts, lengths, strict=True)
        ]

    def numbers(self, own: list[int]) -> list[list[int]]:
        """Every rank's list of equally many integers, in rank order."""
        every = [torch.empty(len(own), dtype=torch.int64, device=self.device) for _ in range(self.world)]
        with self.together("at the start"):
            dist.all_gather(every, torch.tensor(own, dtype=torch.int64, device=self.device), group=self.group)
        return [numbers.tolist() for numbers in every]

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
        own = content[:length].ljust(length, b"\0")
        to_all = torch.frombuffer(bytearray(own * self.world) or bytearray(1), dtype=torch.uint8)[: length * self.world]
        of_all = torch.empty(sum(lengths), dtype=torch.uint8, device=self.device)
        with self.together(f"in {self.what} {step}"):
            dist.all_to_all_single(of_all, to_all.to(self.device), lengths, [length] * self.world, group=self.group)
        self.sent += length * (self.world - 1)
        self.received += sum(lengths) - length
        self.times += 1
        whole = memoryview(of_all.cpu().numpy().data)
        return [whole[end - part : end] for part, end in zip(lengths, accumulate(lengths), strict=True)]
