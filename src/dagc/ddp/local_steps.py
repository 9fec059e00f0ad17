"""Local steps: every rank trains on its own, and after some steps all exchange what their models have moved.

The shared model is the same on all ranks, to the bit. A rank sends the largest entries of what its model has moved away
from it, and of what it has not sent before. What all have sent, weighted by their data, moves the shared model, and
every rank trains on from there, or from ahead of it.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from struct import Struct
from time import perf_counter
from typing import Any, NamedTuple, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dagc.ddp.agreement import agree, log, make_plan, read_all, same_step
from dagc.ddp.exchange import Exchange, Packet
from dagc.ddp.replica import Replica
from dagc.ddp.resume import SHARED, VERSION, Choice, all_or_none, choose, spread
from dagc.errors import DagcError, InvalidInput, MalformedPayload, NonFiniteGradient
from dagc.protocol import Client, Order, Server, Settings
from dagc.state import below, checksum

__all__ = ["Exchanged", "LocalSteps"]

_HEAD = Struct("<Idd")
"""Before every frame: the checksum of the shared model, seconds since the start, seconds per local step."""


class Exchanged(NamedTuple):
    """What an exchange took on this rank; numbers only, so that `_asdict()` can go to a log as it is.

    Attributes:
        round: How many exchanges are done, this one included.
        steps: The local steps before it.
        entries: Entries that this rank sent.
        payload: Bytes of this rank's payload; 0 if it waits.
        sent: Bytes that this rank handed to the network: its payload to every other rank, with heads and padding.
        received: Bytes that it got from the others.
        exchanges: 1, or 2 where somebody's payload had outgrown what was expected of it.
        compress: Seconds for error feedback, selection and the payload.
        exchange: Seconds that this rank waited for the network and for slower ranks.
        decode: Seconds to read the payloads, sum them up and move the shared model.
    """

    round: int
    steps: int
    entries: int
    payload: int
    sent: int
    received: int
    exchanges: int
    compress: float
    exchange: float
    decode: float


@dataclass
class _Flight:
    """An upload that is on its way."""

    own: Packet
    steps: int
    entries: int
    compress: float
    before: tuple[Any, ...]
    answers: "Future[list[Packet]] | None" = None


class LocalSteps:
    """Exchanges what a plain module has moved, every so many steps of its own optimiser.

    Make it on every rank with the same arguments but `examples` and `resume`, after `init_process_group`. Ranks whose
    first model differs from rank 0's download it. The exchange uses a gloo group of its own, on the host.

    Args:
        model: A plain module, not wrapped in DDP. Buffers and parameters that need no gradient stay as they are.
        examples: How many training examples this rank holds. A rank with 0 takes part without a say.
        steps: Local steps between two exchanges; more, where a rate per hour does not allow the next one yet.
        seconds: Instead of `steps`, as many as the slowest rank takes in this time; the first time there are `steps`.
        outer_rate: How far the shared model goes along what was sent; 1 is all of it.
        momentum: Nesterov's momentum of the shared model; 0 for none.
        overlap: Train on while the exchange is on its way. What it brings is used one exchange later.
        local: Patterns of names (`head.*`) of parameters that are not exchanged.
        rounds: How many exchanges the training has, for a rate per training.
        timeout: Seconds after which a rank that does not answer is given up; the process group's default if not given.
        resume: Every state that this rank has found, of any round and any number of ranks; see `state_dict`.
        allow_missing: Resume though some rank's state is nowhere: what it had not sent is lost.
        settings: The plan: what `dagc.Plan` takes, by the same names. A round is an exchange. A threshold is in the
            units of the model's change; a rank's name is its number, `"0"`.

    Attributes:
        examples: How many examples each rank holds, in rank order.
        client: This rank's half of the protocol, over all exchanged parameters in the model's order.
        server: The server's half, which decides alike on all ranks.
        missing: The ranks, in the numbering of the state resumed from, whose residuals are lost.
        downloaded: Whether this rank got the shared model from another one at the start.
        last: What the last exchange took; None before the first.

    Raises:
        InvalidInput: If the arguments are unusable or not the same everywhere; on all ranks.

    Example:
        >>> import torch, dagc.ddp
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.Linear(100, 10)
        >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> local = dagc.ddp.LocalSteps(model, examples=5000, steps=3, ratio=0.01, values="int8", overhead=0)
        >>> for _ in range(6):
        ...     optimiser.zero_grad()
        ...     model(torch.randn(32, 100)).square().mean().backward()
        ...     optimiser.step()
        ...     exchanged = local.step()                            # None, or what the exchange took
        >>> exchanged.round, exchanged.steps, exchanged.entries
        (2, 3, 10)
        >>> torch.distributed.destroy_process_group()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        examples: int,
        steps: int = 30,
        seconds: float | None = None,
        outer_rate: float = 1.0,
        momentum: float = 0.0,
        overlap: bool = False,
        local: Sequence[str] = (),
        rounds: int | None = None,
        timeout: float | None = None,
        resume: Sequence[Mapping[str, Any]] = (),
        allow_missing: bool = False,
        **settings: Unpack[Settings],
    ) -> None:
        """Agree with the others, and begin or continue with the same model."""
        self._replica = replica = Replica(model, local)
        self.steps, self.seconds, self.outer_rate, self.momentum = steps, seconds, outer_rate, momentum
        group = _group(timeout)
        self._exchange, talk = (Exchange(group, replica.device, "exchange") for _ in range(2))
        given = {"rounds": rounds, "sizes": replica.sizes}
        ways = {"steps": steps, "seconds": seconds, "outer_rate": outer_rate, "momentum": momentum, "overlap": overlap}
        kinds = [str(parameter.dtype) for parameter in replica.parameters]
        same = {**settings, **given, **ways, "dtypes": kinds, "allow_missing": allow_missing}
        self.examples = agree(talk, examples, same)
        _check_numbers(ways)  # not before: what is wrong is then wrong on all ranks
        plan = make_plan(settings, talk.world, local_steps=True)
        self._about = {**plan.settings(), **given}
        self.client = Client(replica.shapes, replica.device)
        self.server = Server(plan, sum(replica.sizes), rounds, replica.shapes)

        replica.velocity = torch.zeros_like(replica.shared) if momentum else None
        self._sender = ThreadPoolExecutor(1, "dagc-exchange") if overlap else None
        self._flight: _Flight | None = None
        self.last: Exchanged | None = None
        self.missing: list[int] = []
        self._done, self._due, self._next = 0, steps, steps
        self._clock, self._seconds = 0.0, 0.0  # when this process began, and rank 0's time at the last exchange

        choice = choose(talk, resume, self.examples, self._about, allow_missing)
        self.downloaded = self._begin(talk) if choice is None else self._continue(talk, choice)
        for rank, held in enumerate(self.examples):
            if held or str(rank) in self.server.members:
                self.server.join(str(rank), held)
        own = None if choice is None or choice.own is None else choice.own["arrays"].get("start")
        self._start(None if own is None or not self._ahead else own.to(replica.device, copy=True))
        self._checksum = self._same_model(talk)
        self._began = perf_counter()
        self._clock = self._began - self._seconds

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

    @property
    def _present(self) -> list[str]:
        """The names of the ranks that hold data."""
        return [str(rank) for rank, held in enumerate(self.examples) if held]

    def step(self) -> Exchanged | None:
        """Call it after every step of the optimiser; exchanges when it is time.

        Returns:
            What the exchange took, where there was one; with `overlap`, what the one before it took.

        Raises:
            NonFiniteGradient: A rank's model is not finite. On all ranks, which are back where they began.
            DagcError: A rank has died or hangs; this one is back where its local steps began.
        """
        self._done += 1
        return None if self._done < self._due else self._turn()

    def finish(self) -> Exchanged | None:
        """Exchange what is left and wait for it; all ranks then have the shared model, to the bit."""
        if self._done:
            self._turn()
        self._land()
        self._start(self.shared)
        return self.last

    def state_dict(self) -> dict[str, Any]:
        """Everything that this rank continues from, beside its own optimiser; every rank saves its own.

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
        halves = {**self.client.arrays(), **{f"server.{name}": array for name, array in self.server.arrays().items()}}
        arrays = {name: torch.from_numpy(array) for name, array in halves.items()}
        arrays["shared"] = self.shared
        if self._replica.velocity is not None:
            arrays["velocity"] = self._replica.velocity
        if self._ahead:
            arrays["start"] = self._replica.start
        return {
            "version": VERSION,
            "round": self.round,
            "rank": self._exchange.rank,
            "world_size": self._exchange.world,
            "examples": list(self.examples),
            "about": dict(self._about),
            "arrays": {name: array.detach().cpu().clone() for name, array in arrays.items()},
            "client": self.client.numbers(),
            "server": self.server.numbers(),
            "due": self._next,
            "seconds": self._seconds,
        }

    # An exchange

    def _turn(self) -> Exchanged | None:
        """What the model has moved goes out; what has come in moves the shared model."""
        pace = max(1e-9, (perf_counter() - self._began) / self._done)
        moved = self._replica.moved()
        try:
            self._land()
            flight = self._upload(moved, pace)
        except BaseException:
            self._start()
            raise
        if self._sender is None:
            self._take(flight, partial(self._exchange.all_gather, flight.own))
        else:
            flight.answers, self._flight = self._sender.submit(self._exchange.all_gather, flight.own), flight
        self._start()
        return self.last

    def _start(self, at: Tensor | None = None) -> None:
        """Begin to count local steps again: at the shared model or ahead of it, or where it is said.

        A rank is ahead by its own upload that is on its way, and by part of what it has not sent yet.
        """
        if at is None:
            at, pending = self.shared, self.client.pending
            if self._sender is not None:
                at = at.clone()  # the shared model moves while this rank trains
                if pending is not None:
                    places = torch.from_numpy(pending.indices).to(at.device)
                    at[places] -= self.outer_rate * torch.from_numpy(pending.values).to(at.device)
            step_ahead = self.server.plan.step_ahead
            order = Order(self.round + 1, 0, self.server.policy.compressor, step_ahead=step_ahead)
            at = self.client.start(at, order, self.outer_rate)
        self._replica.begin(at)
        self._done, self._due, self._began = 0, self._next, perf_counter()

    def _upload(self, moved: list[Tensor], pace: float) -> _Flight:
        """This rank's message; its body says why, if the model cannot be used."""
        client, began = self.client, perf_counter()
        before = client.feedback.residual, client.feedback.steps, client.sent, client.last, self.server.numbers()
        order = self.server.orders(self._present, self._seconds).get(str(self._exchange.rank))
        head = _HEAD.pack(self._checksum, perf_counter() - self._clock, pace)
        own, entries = Packet(False, self.round, 0.0, head), 0
        try:
            if order is not None:
                upload = client.upload(moved, order)
                own, entries = own._replace(norm=upload.norm or 0.0, body=head + upload.frame), len(upload.sparse)
        except NonFiniteGradient as error:
            own = own._replace(refused=True, body=str(error).encode())
        return _Flight(own, self._done, entries, perf_counter() - began, before)

    def _land(self) -> None:
        """Wait for the exchange that is on its way, and let it move the shared model."""
        if self._flight is not None and self._flight.answers is not None:
            flight, answers, self._flight = self._flight, self._flight.answers.result, None
            self._take(flight, answers)

    def _take(self, flight: _Flight, answers: Callable[[], list[Packet]]) -> None:
        """Read what all have sent, and move the shared model. If that cannot be, nobody has sent anything."""
        began = perf_counter()
        try:
            packets = answers()
            landed = perf_counter()
            heads = self._check(packets)
            uploads = read_all(self.server, self._present, packets, _HEAD.size)
        except BaseException:
            feedback = self.client.feedback
            feedback.residual, feedback.steps, self.client.sent, self.client.last, server = flight.before
            self.client.pending = None
            self.server.load(self.server.arrays(), server)
            self._start()
            raise
        if uploads:
            self._replica.move(self.server.total(uploads).to(self.shared.device), self.outer_rate, self.momentum)
        self.server.close(uploads)
        own = self.server.members.get(str(self._exchange.rank))
        if own is not None:  # what was left out goes back into the residual
            self.client.settle(own.taken)
        self._checksum = checksum(self.shared.cpu().numpy())
        self._seconds = heads[0][1]
        self._next = self._steps_until_next(max(pace for _, _, pace in heads))
        spent = (flight.compress, landed - began, perf_counter() - landed)
        payload = len(flight.own.body) - _HEAD.size
        self.last = Exchanged(self.round, flight.steps, flight.entries, payload, *self._exchange.traffic, *spent)
        log.info("%s", self.last)

    def _check(self, packets: list[Packet]) -> list[tuple[int, float, float]]:
        """The heads of all messages, if they belong together."""
        same_step(packets, "exchange")
        for rank, packet in enumerate(packets):
            if packet.refused:
                raise NonFiniteGradient(f"rank {rank}: {bytes(packet.body).decode(errors='replace')}")
        if any(len(packet.body) < _HEAD.size for packet in packets):
            raise MalformedPayload("a message is shorter than its head")
        heads = [_HEAD.unpack_from(packet.body) for packet in packets]
        if not all(0 <= clock < math.inf and 0 < pace < math.inf for _, clock, pace in heads):
            raise MalformedPayload(f"a rank's clock or pace is no time: {heads!r:.200}")
        _same_checksums([head[0] for head in heads], self.round)
        return heads

    def _steps_until_next(self, pace: float) -> int:
        """How many local steps come next; all ranks compute the same."""
        steps = self.steps if self.seconds is None else max(1, int(self.seconds / pace))
        if self.server.account is not None:
            steps = max(steps, math.ceil(self.server.account.wait(len(self._present), self._seconds) / pace))
        return steps

    # The start

    def _begin(self, talk: Exchange) -> bool:
        """A new training: whose model differs from rank 0's downloads it."""
        sums = [numbers[0] for numbers in talk.numbers([checksum(self.shared.cpu().numpy())])]
        holders = [rank for rank, one in enumerate(sums) if one == sums[0]]
        self._download(talk, holders)
        return talk.rank not in holders

    def _continue(self, talk: Exchange, choice: Choice) -> bool:
        """Take over the states that were agreed on."""
        state, first, body, refused = choice.state, choice.holders[0], b"", None
        if state is not None:
            arrays = state["arrays"]
            self.shared.copy_(arrays["shared"])
            if self._replica.velocity is not None and "velocity" in arrays:
                self._replica.velocity.copy_(arrays["velocity"])
            if talk.rank == first:
                body = json.dumps([state["server"], state["due"], state["seconds"], state["examples"]]).encode()
        said = talk.all_gather(Packet(False, 0, 0.0, body))[first].body
        examples = None
        try:
            server, due, seconds, examples = json.loads(bytes(said))
            self._due = self._next = int(due)
            self._seconds = float(seconds)
            own = {} if choice.own is None else {name: array.numpy() for name, array in choice.own["arrays"].items()}
            # Where ranks have come or gone, what coders remember is forgotten: that costs some bytes once.
            memories = below(own, "server.") if choice.same else {}
            self.server.load(memories, server if choice.same else {**server, "coders": {}})
            if choice.own is not None:
                arrays = {name: array for name, array in own.items() if name not in SHARED}
                self.client.load(arrays, choice.own["client"])
        except (ValueError, TypeError, AttributeError) as error:
            refused = f"the state is damaged: {error}"
        all_or_none(talk, refused)
        self._download(talk, choice.holders)
        self.missing = choice.missing
        alone = len(choice.carried) == 1 and choice.carried[0] is choice.own
        if not alone or examples != self.examples:
            self.client.feedback.residual = self._carried(choice.carried)
        return state is None

    def _carried(self, states: Sequence[Mapping[str, Any]]) -> Tensor:
        """What these ranks had not sent, in the units of this one: its part of all data makes it weigh as much."""
        total = torch.zeros_like(self.shared)
        if not states:
            return total
        share = self.examples[self._exchange.rank] / sum(self.examples)
        for state in states:
            then = state["examples"][state["rank"]] / sum(state["examples"])
            total.add_(state["arrays"]["residual"].to(total.device), alpha=then / share)
        return total

    def _download(self, talk: Exchange, holders: Sequence[int]) -> None:
        received = [vector.cpu() for vector in self._replica.vectors]
        spread(talk, received, holders)
        for vector, tensor in zip(self._replica.vectors, received, strict=True):
            vector.copy_(tensor)

    def _same_model(self, talk: Exchange) -> int:
        """The checksum of the shared model, which must be the same everywhere."""
        own = checksum(self.shared.cpu().numpy())
        _same_checksums([numbers[0] for numbers in talk.numbers([own])], self.round)
        return own


def _group(timeout: float | None) -> dist.ProcessGroup:
    """A group of all ranks for payloads alone: what else the script exchanges cannot get in between."""
    if not dist.is_initialized():
        raise InvalidInput("there are no ranks yet: call torch.distributed.init_process_group first")
    if timeout is not None and not 0 < timeout < math.inf:
        raise InvalidInput(f"timeout is {timeout!r:.100}: it must be a number of seconds above 0")
    try:
        group = dist.new_group(timeout=None if timeout is None else timedelta(seconds=timeout), backend="gloo")
    except RuntimeError as error:
        raise DagcError(f"the ranks cannot reach each other: {str(error).splitlines()[0]}") from error
    assert isinstance(group, dist.ProcessGroup), "this rank is in no group"
    return group


def _check_numbers(ways: Mapping[str, Any]) -> None:
    """Refuse numbers that cannot be meant."""
    wanted: dict[str, tuple[Callable[[Any], bool], str]] = {
        "steps": (lambda value: isinstance(value, int) and value >= 1, "an integer of at least 1"),
        "seconds": (lambda value: value is None or 0 < value < math.inf, "a number above 0"),
        "outer_rate": (lambda value: 0 < value < math.inf, "a number above 0"),
        "momentum": (lambda value: 0 <= value < 1, "a number from 0 to below 1"),
    }
    for name, (right, words) in wanted.items():
        value = ways[name]
        try:
            fine = not isinstance(value, bool) and right(value)
        except TypeError:
            fine = False
        if not fine:
            raise InvalidInput(f"{name} is {value!r:.100}: it must be {words}")


def _same_checksums(sums: Sequence[int], round: int) -> None:
    other = next((rank for rank, one in enumerate(sums) if one != sums[0]), None)
    if other is not None:
        raise DagcError(
            f"ranks 0 and {other} have different shared models after {round} exchanges: start all ranks again from "
            "their checkpoints of one exchange; if it happens again, their processors or versions of torch differ"
        )
