"""Local steps: every rank trains on its own, and after some steps all exchange what their models have moved.

The shared model is the same on all ranks, to the bit. A rank sends the largest entries of what its model has moved away
from it, and of what it has not sent before. What all have sent, weighted by their data, moves the shared model, and
every rank trains on from there, or from ahead of it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from time import perf_counter
from typing import Any, Self

import torch.distributed as dist
from torch import Tensor, nn

from dagc.ddp.exchange import Exchanged, Packet
from dagc.ddp.rank import Flight, log, warn_if_continued
from dagc.ddp.rank_model import tensor_checksum
from dagc.ddp.resume import VERSION
from dagc.ddp.start import HEAD, Start
from dagc.errors import InvalidInput, MalformedPayload
from dagc.policies import Plan


class LocalSteps(Start):
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
        momentum: Nesterov's momentum of the shared model. If not given, it is 0.5 without compression and with the
            default budget of the method `dagc` or a larger one, else 0.
        overlap: Train on while the exchange is on its way. What it brings is used one exchange later.
        local: Patterns of names (`head.*`) of parameters that are not exchanged.
        rounds: How many exchanges the training has, for a rate per training.
        timeout: Seconds after which a rank that does not answer is given up; the process group's default if not given.
        resume: Every state that this rank has found, of any round and any number of ranks; see `state_dict`.
        allow_missing: Resume though some rank's state is nowhere: what it had not sent is lost.
        settings: The plan's settings. A round is an exchange, a threshold is in the units of the model's change, and a
            rank's name is its number, `"0"`.

    Attributes:
        examples: How many examples each rank holds, in rank order.
        resumed: Whether the training continues from states.
        missing: The ranks, in the numbering of the state resumed from, whose residuals are lost.
        downloaded: Whether this rank got the shared model from another one at the start.
        last: What the last exchange took; None before the first.

    Example:
        >>> import torch, dagc.ddp
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> _ = torch.manual_seed(0)
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
        super().__init__(model, local, examples, plan, settings, rounds, same, timeout, resume)
        self._sender = ThreadPoolExecutor(1, "dagc-exchange") if overlap else None
        self._flight: Flight | None = None
        self._closed = False
        self._begin_steps(self._begun if self._ahead else None)
        self._clock = self._began - self._seconds  # when this process began
        warn_if_continued(self, self._model.parameters[0], "give all states to LocalSteps(resume=...)")

    @property
    def round(self) -> int:
        """The number of exchanges done."""
        return self.server.round

    @property
    def _ahead(self) -> bool:
        return self._sender is not None or self.server.plan.step_ahead > 0

    def shared_model(self) -> AbstractContextManager[nn.Module]:
        """The module with the shared parameters inside a `with` block, to evaluate or save it; no rank waits.

        Between exchanges, the module itself is this rank's private model. Buffers and what `local` names stay private.
        """
        return self._model.as_shared()

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
        """
        if self._done:
            raise InvalidInput(
                f"{self._done} steps were made since the last exchange: save when step() has returned something, or "
                "after finish()"
            )
        self._land()
        begun = self._model.start if self._ahead else None
        vectors = {"shared": self.shared, "velocity": self._model.velocity, "begun": begun}
        clock = {"round": self.round, "start": self._starts, "due": self._next, "seconds": self._seconds}
        return self._state(VERSION, **vectors, **clock)

    # An exchange

    def _turn(self) -> Exchanged | None:
        """What the model has moved goes out; what has come in moves the shared model."""
        pace = max(1e-9, (perf_counter() - self._began) / self._done)
        with self._back_on_error():
            self._land()
            head = HEAD.pack(self._checksum, perf_counter() - self._clock, pace)
            flight = self._compress(self._model.moved, self._seconds, head, self._done)
            send = partial(self._exchange.all_gather, flight.message)
            if self._sender is None:
                self._take(flight, send)
            else:
                self._flight = flight._replace(answers=self._sender.submit(send))
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
        self._model.begin(at)
        self._done, self._due, self._began = 0, self._next, perf_counter()

    @contextmanager
    def _back_on_error(self) -> Iterator[None]:
        """After an error, begin again where the local steps began."""
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # the parameters have other shapes now: that is the error
                self._begin_steps()
            raise

    def _land(self) -> None:
        if self._flight is not None and self._flight.answers is not None:
            flight, answers, self._flight = self._flight, self._flight.answers.result, None
            with self._back_on_error():
                self._take(flight, answers)

    def _take(self, flight: Flight, answers: Callable[[], list[Packet]]) -> None:
        """Use what all have sent, and plan the next exchange; all ranks compute the same."""
        began = perf_counter()
        try:
            packets = answers()
        except BaseException:
            self.rollback(flight.before)
            raise
        self._use(flight, packets, perf_counter() - began)
        self._checksum = tensor_checksum(self.shared)
        self._seconds = self._heads[0][1]
        pace = max(pace for _, _, pace in self._heads)
        self._next = self.steps if self.seconds is None else max(1, int(self.seconds / pace))
        account = self.server.budget.account
        if account is not None:
            self._next = max(self._next, math.ceil(account.wait(len(self._present), self._seconds) / pace))
        log.info("%s", self.last)

    def _check(self, packets: Sequence[Packet]) -> None:
        super()._check(packets)
        if any(len(packet.body) < HEAD.size for packet in packets):
            raise MalformedPayload("a message is shorter than its head")
        self._heads = [HEAD.unpack_from(packet.body) for packet in packets]
        if not all(0 <= clock < math.inf and 0 < pace < math.inf for _, clock, pace in self._heads):
            raise MalformedPayload(f"invalid clock or step time: {self._heads!r:.200}")
        self._same([checksum for checksum, *_ in self._heads])

    def _apply(self, total: Tensor | None) -> None:
        if total is not None:
            self._model.move(total, self.outer_rate, self.momentum)
