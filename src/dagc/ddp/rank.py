"""What the hook and local steps share: ranks agree on their arguments, then each is a client and plays the server."""

import json
import os
import secrets
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from logging import getLogger
from math import prod
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dagc.ddp.exchange import Exchange, Exchanged, Packet, refusal
from dagc.errors import DagcError, InvalidInput, MalformedPayload, OutsideBound, unknown
from dagc.policies import Plan
from dagc.protocol import Server, Uplink, Upload
from dagc.settings import Setting

log = getLogger("dagc.ddp")
_waiting: weakref.WeakKeyDictionary[Any, tuple[weakref.ref[torch.Tensor], str]] = weakref.WeakKeyDictionary()
"""Hooks and local steps before the first step of their optimizer: a parameter of it, and what to do."""
EXAMPLES = Setting("integer", "", least=0, below=1 << 53, note="an integer, 0 or more")


class Flight(NamedTuple):
    """A message on its way, and the state before it."""

    message: Packet
    entries: int
    steps: int
    compress: float
    before: tuple[Any, ...]
    answers: "Future[list[Packet]] | None" = None


class Rank:
    """One rank's half of the protocol as a client, and the server's half, which decides alike on all ranks."""

    what = "step"
    head = 0  # how many bytes of a message precede its frame
    uplink: Uplink
    server: Server

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self._exchange = Exchange(group, device, self.what)
        self._talk = Exchange(group, device, self.what)  # before the first step: its lengths say nothing about steps
        self._about: dict[str, Any] = {}  # what states must belong to
        self.last: Exchanged | None = None

    def _prepare(self, plan: Plan, shapes: Sequence[tuple[int, ...]], rounds: int | None, device: torch.device) -> None:
        self._device = device
        sizes = [prod(shape) for shape in shapes]
        self.server = Server(plan, sum(sizes), rounds, shapes)
        self.uplink = Uplink(self.server.plan.for_clients(), shapes, device)
        self._about = {**plan.as_dict(), "rounds": rounds, "sizes": sizes}
        compile_ahead(plan, rounds)

    def _agree(self, examples: Any, prepare: Callable[[], Mapping[str, Any]]) -> None:
        """Compare the arguments of all ranks, which `prepare` returns, and learn who holds how many examples."""
        same: dict[str, Any] = {}

        def hello() -> list[Any]:
            same.update(prepare())
            texts = {name: json.dumps(value, sort_keys=True, default=str) for name, value in same.items()}
            return [EXAMPLES.number("examples", examples), secrets.randbits(32), texts]

        counts, numbers, texts = zip(*self._talk.share(hello), strict=True)
        for rank, theirs in enumerate(texts):
            different = sorted(name for name in same if theirs.get(name) != texts[0].get(name))
            if different or theirs.keys() != texts[0].keys():
                here = {name: same[name] for name in different}
                raise InvalidInput(f"ranks 0 and {rank} differ in {', '.join(different)}; this rank has {here!r:.400}")
        if not any(counts):
            raise InvalidInput("examples is 0 on all ranks: at least one must hold data")
        self.examples, self._number = list(counts), numbers[0]
        self._start = self._number

    @property
    def _present(self) -> list[str]:
        return [str(rank) for rank, count in enumerate(self.examples) if count]

    def _compress(self, change: Callable[[], Any], seconds: float = 0.0, head: bytes = b"", steps: int = 1) -> Flight:
        """This rank's message: of what `change` returns, or the error that it raises."""
        began, before, upload = perf_counter(), self.snapshot(), None
        order = self.server.orders(self._present, seconds).get(str(self._exchange.rank))
        try:
            parts = change()
            upload = None if order is None else self.uplink.upload(parts, order)
            norm, frame = (0.0, b"") if upload is None else (upload.norm or 0.0, upload.frame)
            message = Packet(0, self._start, self.server.round, norm, head + frame)
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            message = refusal(error, self._start, self.server.round)
        entries = 0 if upload is None else len(upload.update)
        return Flight(message, entries, steps, perf_counter() - began, before)

    def _use(self, flight: Flight, packets: Sequence[Packet], waited: float) -> None:
        """Use the sum of what all have sent. On failure, roll back: nobody has sent anything."""
        landed = perf_counter()
        try:
            self._check(packets)
            uploads = self._read(packets)
        except BaseException:
            self.rollback(flight.before)
            raise
        self._apply(self.server.total(uploads, self._device) if uploads else None)
        self.server.close(uploads)
        member = self.server.members.get(str(self._exchange.rank))
        if member is not None:  # what was left out goes back into the residual
            self.uplink.settle(member.accepted_round)
        self._note(flight, waited, perf_counter() - landed)

    def _note(self, flight: Flight, waited: float, decode: float, skipped: bool = False) -> None:
        round, payload = flight.message.step + 1, len(flight.message.body) - self.head
        sizes = flight.steps, flight.entries, payload, *self._exchange.traffic
        self.last = Exchanged(round, *sizes, skipped, flight.compress, waited, decode)

    def _apply(self, total: torch.Tensor | None) -> None:
        """Use the sum; None if nobody has sent anything. For subclasses."""

    def _check(self, packets: Sequence[Packet]) -> None:
        """Refuse messages of different steps or trainings, and raise what a rank reports instead of a payload."""
        what, steps = self.what, [packet.step for packet in packets]
        if len(set(steps)) > 1:
            raise DagcError(
                f"the ranks are at different {what}s, {steps} in rank order: load checkpoints of one {what}"
            )
        other = next((rank for rank, packet in enumerate(packets) if packet.start != packets[0].start), None)
        if other is not None:
            raise DagcError(
                f"ranks 0 and {other} are both at {what} {steps[0]}, but continue different trainings: one of their "
                f"checkpoints was written before a restart from an older one; load checkpoints of an earlier {what}"
            )
        for rank, packet in enumerate(packets):
            error = packet.error(rank)
            if error is not None:
                raise error

    def _read(self, packets: Sequence[Packet]) -> list[Upload]:
        """The uploads. One that is too large is left out, on all ranks alike, since all see the same bytes."""
        uploads = []
        for name in self._present:
            packet = packets[int(name)]
            try:
                norm = packet.norm if self.server.budget.policy.wants_norms else None
                uploads.append(self.server.read(name, packet.body[self.head :], norm))
            except OutsideBound as error:
                log.warning("step %d: rank %s is left out: %s", packet.step, name, error)
            except MalformedPayload as error:
                raise MalformedPayload(f"rank {name}: {error}") from error
        return uploads

    def _state(self, version: int, **more: Any) -> dict[str, Any]:
        """A copy of both halves, of what they belong to, and of what else is kept, in tensors."""
        about = {"version": version, "rank": self._exchange.rank, "world_size": self._exchange.world}
        halves = {"uplink": self.uplink.state_dict(), "server": self.server.state_dict()}
        copied: dict[str, Any] = to_tensors(
            {**about, "examples": self.examples, "about": self._about, **halves, **more}
        )
        return copied

    def snapshot(self) -> tuple[Any, ...]:
        return self.uplink.snapshot(), self.server.snapshot(), self._start

    def rollback(self, snapshot: tuple[Any, ...]) -> None:
        uplink, server, self._start = snapshot
        self.uplink.rollback(uplink)
        self.server.rollback(server)


def make_plan(plan: Plan | None, settings: Mapping[str, Any], world: int, local_steps: bool) -> Plan:
    """The plan, as an object or by its settings. What ranks cannot do is refused; local steps can do more."""
    if plan is not None and (settings or not isinstance(plan, Plan)):
        raise InvalidInput(f"give plan, a dagc.Plan, or its settings, not {[plan, *settings]!r:.200}")
    plan = Plan(**settings) if plan is None else plan
    defaults: dict[str, Any] = {"down": "lossless"} | ({} if local_steps else {"step_ahead": 0.0})
    plan = plan.replaced(**{name: value for name, value in defaults.items() if name not in plan.explicit()})
    refused = [
        ("down", not plan.lossless, "DDP has no server that sends a model down; leave it out"),
        ("first_model", plan.first_model != "sent", "DDP sends the first model itself; leave it out"),
    ]
    if not local_steps:
        why = "DDP computes gradients at the model that all ranks have; leave it out"
        clocks = "the ranks' clocks differ, so DDP keeps no rate per hour; give bytes alone"
        refused += [("step_ahead", bool(plan.step_ahead), why), ("rate", plan.per_hour, clocks)]
    for name, is_refused, why in refused:
        if is_refused:
            raise InvalidInput(f"{name} is {getattr(plan, name)!r}: {why}")
    ranks = [str(rank) for rank in range(world)]
    for name in plan.caps:
        if name not in ranks:
            raise InvalidInput(f"caps: {unknown('rank', name, ranks)}")
    return plan


def compile_ahead(plan: Plan, rounds: int | None) -> None:
    """Compile the kernels that this plan uses, in rounds of a small model: the first step does not wait for them."""
    rows, columns = shape = (32, 64)
    with suppress(DagcError), warnings.catch_warnings():  # a budget may not fit a small model
        warnings.simplefilter("ignore")
        server = Server(plan.replaced(caps={}), rows * columns, rounds, [shape])
        uplink = Uplink(server.plan.for_clients(), [shape])
        server.join("0", 1)
        values = torch.linspace(-1, 1, rows * columns)
        for _ in range(8):  # in the first ones, the method thrifty waits
            upload = uplink.upload(values.clone(), server.orders(["0"])["0"])
            uploads = [server.read("0", upload.frame, upload.norm)]
            server.total(uploads)
            server.close(uploads)
            values = values[torch.arange(1237, 1237 * 2049, 1237) % 2048]  # scattered: frames then need another kernel


def to_tensors(tree: Any) -> Any:
    """A copy of a tree with tensors in CPU memory for its arrays and tensors."""
    if isinstance(tree, Mapping):
        return {name: to_tensors(leaf) for name, leaf in tree.items()}
    if isinstance(tree, list | tuple):
        return [to_tensors(leaf) for leaf in tree]
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(np.array(tree))
    return tree.detach().to("cpu", copy=True) if isinstance(tree, torch.Tensor) else tree


def check_version(state: Any, what: str, version: int, fields: set[str]) -> None:
    """Refuse what is not the state of this kind, or is of another version of it."""
    if not isinstance(state, Mapping) or "version" not in state:
        raise InvalidInput(f"this is not the state of a dagc.ddp.{what}")
    if type(state["version"]) is not int or state["version"] != version:
        raise InvalidInput(
            f"the state has version {state['version']!r:.50}, this is {version}: use the version of dagc that wrote it"
        )
    if set(state) != fields:
        raise InvalidInput(f"this is not the state of a dagc.ddp.{what}: it holds {sorted(map(str, state))!r:.200}")


def warn_if_continued(owner: Any, parameter: torch.Tensor, remedy: str) -> None:
    """Warn in the optimizer's first step if it continues an older training, but `owner.resumed` is false."""
    _watch_optimizers()
    _waiting[owner] = weakref.ref(parameter), remedy


@cache
def _watch_optimizers() -> None:
    """Once per process: torch does not let a hook remove itself."""
    register_optimizer_step_pre_hook(_check_first_step)


def _check_first_step(optimizer: Optimizer, *_: Any) -> None:
    for owner, (reference, remedy) in list(_waiting.items()):
        parameter = reference()
        parameters = (each for group in optimizer.param_groups for each in group["params"])
        if parameter is None or not any(each is parameter for each in parameters):
            continue
        del _waiting[owner]
        state = optimizer.state.get(parameter, {})
        continued = bool(state) and float(state.get("step", 1)) > 0  # some have a state from the beginning
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")
        if (continued or restarted) and not owner.resumed:
            why = "the optimizer has a state" if continued else "torchrun has restarted this process"
            log.warning(
                "%s, but dagc begins without its own: what this rank had not sent is lost; save state_dict() with the "
                "optimizer's, and %s", why, remedy,
            )  # fmt: skip
