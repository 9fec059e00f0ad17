"""Local steps: every rank trains on its own, and after some steps all exchange what their models have moved.

The shared model is the same on all ranks, to the bit. A rank sends the largest entries of what its model has moved away
from it, and of what it has not sent before. What all have sent, weighted by their data, moves the shared model, and
every rank trains on from there, or from ahead of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from struct import Struct
from time import perf_counter
from typing import Any, NamedTuple, Self

import torch.distributed as dist
from torch import Tensor, nn

from dagc.ddp.agreement import check_packets, log, read_all
from dagc.ddp.continued import warn_if_continued
from dagc.ddp.device import tensor_checksum
from dagc.ddp.exchange import Exchanged, Packet, refusal
from dagc.ddp.resume import VERSION
from dagc.ddp.start import begin, same_checksums
from dagc.ddp.trees import to_tensors
from dagc.errors import InvalidInput, MalformedPayload
from dagc.protocol import Plan, Upload

__all__ = ["LocalSteps"]

HEAD = Struct("<Idd")
"""Before every frame: the checksum of the shared model, seconds since the start, seconds per local step."""


class _Flight(NamedTuple):
    """An upload that is on its way."""

    message: Packet
    steps: int
    entries: int
    compress: float
    before: tuple[Any, ...]
    answers: "Future[list[Packet]] | None" = None


class LocalSteps:
    """Exchanges what a plain module has moved, every so many steps of its own optimizer.

    Make it on every rank with the same arguments but `examples` and `resume`, after `init_process_group`. Ranks whose
    first model differs from rank 0's download it. The exchange uses a gloo group of its own, on the host. Used as a
    context manager, it ends with `finish` and `close`.

    Args:
        model: A plain module, not wrapped in DDP. Buffers and parameters that need no gradient stay as they are.
        examples: How many training examples this rank holds. A rank with 0 takes part, but contributes nothing.
        plan: The plan, instead of its settings.
        steps: Local steps between two exchanges; more, where a rate per hour does not allow the next one yet.
        seconds: Instead of `steps`, as many as the slowest rank takes in this time; the first time there are `steps`.
        outer_rate: How far the shared model goes along what was sent; 1 is all of it.
        momentum: Nesterov's momentum of the shared model; 0 for none. If not given, it is 0.5 without compression and
            with the default budget of the method `dagc` or a larger one, else 0.
        overlap: Train on while the exchange is on its way. What it brings is used one exchange later.
        local: Patterns of names (`head.*`) of parameters that are not exchanged.
        rounds: How many exchanges the training has, for a rate per training.
        timeout: Seconds after which a rank that does not answer is given up; the process group's default if not given.
        resume: Every state that this rank has found, of any round and any number of ranks; see `state_dict`.
        allow_missing: Resume though some rank's state is nowhere: what it had not sent is lost.
        settings: The plan's settings: what `dagc.Plan` takes, by the same names. A round is an exchange. A threshold is
            in the units of the model's change; a rank's name is its number, `"0"`.

    Attributes:
        examples: How many examples each rank holds, in rank order.
        uplink: What this rank sends, over all exchanged parameters in the model's order.
        server: The server's half, which decides alike on all ranks.
        resumed: Whether the training continues from states.
        missing: The ranks, in the numbering of the state resumed from, whose residuals are lost.
        downloaded: Whether this rank got the shared model from another one at the start.
        last: What the last exchange took; None before the first.

    Raises:
        InvalidInput: If the arguments are unusable or not the same everywhere; on all ranks.

    Example:
        >>> import torch, dagc.ddp
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.Linear(100, 10)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> local = dagc.ddp.LocalSteps(model, examples=5000, steps=3, ratio=0.01)
        >>> for _ in range(6):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(32, 100)).square().mean().backward()
        ...     optimizer.step()
        ...     exchanged = local.step()                            # None, or what the exchange took
        >>> exchanged.round, exchanged.steps, exchanged.payload <= 40
        (2, 3, True)
        >>> local.close()
        >>> torch.distributed.destroy_process_group()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        examples: int,
        plan: Plan | None = None,
        steps: int = 30,
        seconds: float | None = None,
        outer_rate: float = 1.0,
        momentum: float | None = None,
        overlap: bool = False,
        local: Sequence[str] = (),
        rounds: int | None = None,
        timeout: float | None = None,
        resume: Sequence[Mapping[str, Any]] = (),
        allow_missing: bool = False,
        **settings: Any,
    ) -> None:
        self.steps, self.seconds, self.outer_rate = steps, seconds, outer_rate
        numbers = {"steps": steps, "seconds": seconds, "outer_rate": outer_rate, "momentum": momentum}
        same = {**numbers, "overlap": overlap, "allow_missing": allow_missing}
        began = begin(model, local, examples, plan, settings, rounds, same, timeout, resume)
        self._replica, self.uplink, self.server = began.replica, began.uplink, began.server
        self.momentum = began.momentum
        self._exchange, self.examples, self._about = began.exchange, began.examples, began.about
        self.resumed, self.missing, self.downloaded = began.resumed, began.missing, began.downloaded
        self._start, self._checksum = began.start, began.checksum
        self._present = [str(rank) for rank, count in enumerate(self.examples) if count]

        self._sender = ThreadPoolExecutor(1, "dagc-exchange") if overlap else None
        self._flight: _Flight | None = None
        self.last: Exchanged | None = None
        self._closed = False
        self._next, self._seconds = began.due or steps, began.seconds  # the latter is rank 0's at the last exchange
        self._begin_steps(began.begun if self._ahead else None)
        self._clock = self._began - self._seconds  # when this process began
        warn_if_continued(self, self._replica.parameters[0], "give all states to LocalSteps(resume=...)")

    @property
    def shared(self) -> Tensor:
        """The shared model as a float32 vector, the same bits on all ranks."""
        return self._replica.shared

    @property
    def round(self) -> int:
        """The number of exchanges done."""
        return self.server.round

    @property
    def _ahead(self) -> bool:
        """Whether local steps begin ahead of the shared model."""
        return self._sender is not None or self.server.plan.step_ahead > 0

    def shared_model(self) -> AbstractContextManager[nn.Module]:
        """The module with the shared parameters inside a `with` block, to evaluate or save it; no rank waits.

        Between exchanges, the module itself is this rank's private model. Buffers and what `local` names stay private.
        """
        return self._replica.as_shared()

    def step(self) -> Exchanged | None:
        """Call it after every step of the optimizer; exchanges when it is time.

        Returns:
            What the exchange took, where there was one; with `overlap`, what the one before it took.

        Raises:
            NonFiniteGradient: A rank's model is not finite. On all ranks, which are back where they began.
            DagcError: A rank has died or hangs; this one is back where its local steps began.
        """
        if self._closed:
            raise InvalidInput("this LocalSteps is closed: make a new one")
        self._done += 1
        return None if self._done < self._due else self._turn()

    def finish(self) -> Exchanged | None:
        """Exchange what is left and wait for it; all ranks then have the shared model, to the bit."""
        if self._done:
            self._turn()
        self._land()
        self._begin_steps(self.shared)
        return self.last

    def close(self) -> None:
        """Leave the group that was made for the exchanges. Nothing is sent: call `finish` before, on all ranks."""
        if self._closed:
            return
        self._closed = True
        if self._sender is not None:
            self._sender.shutdown(wait=False)
        if self._flight is None and dist.is_initialized():
            dist.destroy_process_group(self._exchange.group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.finish()
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Everything that this rank continues from, beside its own optimizer; every rank saves its own.

        Take it right after an exchange. To resume, give `LocalSteps` all states that a rank finds. With the same ranks
        the training goes on as if nothing had happened. With fewer, the residuals of missing ranks are carried by the
        others; with more, a newcomer downloads the shared model.

        Raises:
            InvalidInput: If steps were made since the last exchange.
        """
        if self._done:
            raise InvalidInput(
                f"{self._done} steps were made since the last exchange: save when step() has returned something, or "
                "after finish()"
            )
        self._land()
        state = {
            "version": VERSION,
            "round": self.round,
            "rank": self._exchange.rank,
            "world_size": self._exchange.world,
            "examples": self.examples,
            "about": self._about,
            "start": self._start,
            "shared": self.shared,
            "velocity": self._replica.velocity,
            "begun": self._replica.start if self._ahead else None,
            "uplink": self.uplink.state_dict(),
            "server": self.server.state_dict(),
            "due": self._next,
            "seconds": self._seconds,
        }
        copied: dict[str, Any] = to_tensors(state)
        return copied

    # An exchange

    def _turn(self) -> Exchanged | None:
        """What the model has moved goes out; what has come in moves the shared model."""
        pace = max(1e-9, (perf_counter() - self._began) / self._done)
        try:
            self._land()
            flight = self._compressed(pace)
        except BaseException:
            self._go_back()
            raise
        if self._sender is None:
            self._take(flight, partial(self._exchange.all_gather, flight.message))
        else:
            self._flight = flight._replace(answers=self._sender.submit(self._exchange.all_gather, flight.message))
        self._begin_steps()
        return self.last

    def _begin_steps(self, at: Tensor | None = None) -> None:
        """Begin to count local steps again: at the shared model or ahead of it, or at `at`, if given.

        A rank is ahead by its own upload that is on its way, and by part of what it has not sent yet.
        """
        if at is None:
            at, pending = self.shared, self.uplink.pending
            if self._sender is not None:
                at = at.clone()  # the shared model moves while this rank trains
                if pending is not None:
                    pending.add_to(at, -self.outer_rate)
            at = self.uplink.start(at, self.outer_rate)
        self._replica.begin(at)
        self._done, self._due, self._began = 0, self._next, perf_counter()

    def _go_back(self) -> None:
        """Begin again where the local steps began, after an error."""
        with suppress(RuntimeError):  # the parameters have other shapes now: that is the error
            self._begin_steps()

    def _compressed(self, pace: float) -> _Flight:
        """This rank's message; it reports an error, if the model cannot be used."""
        began, before = perf_counter(), (self.uplink.snapshot(), self.server.snapshot())
        order = self.server.orders(self._present, self._seconds).get(str(self._exchange.rank))
        head = HEAD.pack(self._checksum, perf_counter() - self._clock, pace)
        upload: Upload | None = None
        try:
            self._replica.check()
            moved = self._replica.moved()
            upload = None if order is None else self.uplink.upload(moved, order)
            norm, frame = (0.0, b"") if upload is None else (upload.norm or 0.0, upload.frame)
            message = Packet(0, self._start[-1], self.round, norm, head + frame)
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            message = refusal(error, self._start[-1], self.round)
        entries = 0 if upload is None else len(upload.update)
        return _Flight(message, self._done, entries, perf_counter() - began, before)

    def _land(self) -> None:
        """Wait for the exchange that is on its way, and let it move the shared model."""
        if self._flight is not None and self._flight.answers is not None:
            flight, answers, self._flight = self._flight, self._flight.answers.result, None
            self._take(flight, answers)

    def _take(self, flight: _Flight, answers: Callable[[], list[Packet]]) -> None:
        """Read what all have sent, and move the shared model. On failure, roll back: nobody has sent anything."""
        began = perf_counter()
        try:
            packets = answers()
            landed = perf_counter()
            heads = self._heads(packets)
            uploads = read_all(self.server, self._present, packets, HEAD.size)
        except BaseException:
            self.uplink.rollback(flight.before[0])
            self.server.rollback(flight.before[1])
            self._go_back()
            raise
        if uploads:
            self._replica.move(self.server.total(uploads, self.shared.device), self.outer_rate, self.momentum)
        self.server.close(uploads)
        member = self.server.members.get(str(self._exchange.rank))
        if member is not None:  # what was left out goes back into the residual
            self.uplink.settle(member.accepted_round)
        self._checksum = tensor_checksum(self.shared)
        self._seconds = heads[0][1]
        self._next = self._steps_until_next(max(pace for _, _, pace in heads))
        seconds = (flight.compress, landed - began, perf_counter() - landed)
        payload = len(flight.message.body) - HEAD.size
        self.last = Exchanged(
            self.round, flight.steps, flight.entries, payload, *self._exchange.traffic, False, *seconds
        )
        log.info("%s", self.last)

    def _heads(self, packets: list[Packet]) -> list[tuple[int, float, float]]:
        """The heads of all messages, if they belong together."""
        check_packets(packets, "exchange")
        if any(len(packet.body) < HEAD.size for packet in packets):
            raise MalformedPayload("a message is shorter than its head")
        heads = [HEAD.unpack_from(packet.body) for packet in packets]
        if not all(0 <= clock < math.inf and 0 < pace < math.inf for _, clock, pace in heads):
            raise MalformedPayload(f"invalid clock or step time: {heads!r:.200}")
        same_checksums([head[0] for head in heads], self.round)
        return heads

    def _steps_until_next(self, pace: float) -> int:
        """How many local steps come next; all ranks compute the same."""
        steps = self.steps if self.seconds is None else max(1, int(self.seconds / pace))
        account = self.server.budget.account
        if account is not None:
            steps = max(steps, math.ceil(account.wait(len(self._present), self._seconds) / pace))
        return steps
