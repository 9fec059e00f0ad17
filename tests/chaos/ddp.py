"""Faults around DDP and local steps, in two processes of a gloo group: bad gradients, damaged payloads, restarts."""

import atexit
import multiprocessing
import traceback
from collections import Counter
from datetime import timedelta
from functools import cache, partial
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dagc import ddp
from dagc.ddp.exchange import Packet
from dagc.ddp.start import HEAD
from tests.chaos.faults import Broken, Faults, refused
from tests.chaos.plugin import plugins

__all__ = ["break_ddp"]

RANKS, STEPS, PATIENCE = 2, 10, 600
EXAMPLES = (100, 700)
PLANS: tuple[dict[str, Any], ...] = (
    {"method": "dagc", "bytes": 80},
    {"method": "dagc", "bytes": 80, "clip": 5.0, "norm_bound": 100},
    {"method": "dagc-r", "ratio": 0.05},
    {"method": "thrifty", "bytes": 40},
    {"method": "stc", "bytes": 40, "down": "lossless"},
    {"method": "random-k", "ratio": 0.05, "values": "int8"},
    {"method": "accordion", "ratio": 0.05, "options": {"interval": 1}, "norm_bound": 100},
    {"method": "none"},
    {"method": "somebody's", "ratio": 0.05},
)


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 10), nn.Tanh(), nn.Linear(10, 5))


def _loss(model: nn.Module, rank: int, step: int) -> Any:
    """Of this rank's batch."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return model(torch.randn(8, 20, generator=generator)).square().sum()


class Training:
    """A model on this rank, which can be saved, restarted and disturbed."""

    plans = PLANS

    def __init__(self, plan: dict[str, Any], saved: bytes = b"") -> None:
        self.model = DistributedDataParallel(_model())
        self.rank, self.step = dist.get_rank(), 0
        self.hook = ddp.register(self.model, examples=EXAMPLES[self.rank], **plan)
        self.exchange, self.head = self.hook._exchange, 0
        if saved:
            state = torch.load(BytesIO(saved), weights_only=True)
            self.model.load_state_dict(state["model"])
            self.hook.load_state_dict(state["hook"])
            self.step = state["step"]

    def saved(self) -> bytes:
        """The whole state."""
        file = BytesIO()
        torch.save({"model": self.model.state_dict(), "hook": self.hook.state_dict(), "step": self.step}, file)
        return file.getvalue()

    def backward(self, spoil: float = 1.0) -> None:
        """A gradient of this rank's batch, summed up with the others'."""
        self.model.zero_grad()
        (_loss(self.model, self.rank, self.step) * spoil).backward()

    def go_on(self) -> None:
        """An undisturbed step."""
        self.backward()
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-0.01)
        self.step += 1

    @property
    def result(self) -> list[Tensor]:
        """What a step may change."""
        parameters = [parameter.detach() for parameter in self.model.parameters()]
        return [*(parameter.clone() for parameter in parameters), self.hook.uplink.feedback.residual.clone()]

    def meets(self, plan: dict[str, Any], saved: bytes, other: int) -> None:
        """The other rank is at the step of its last checkpoint, and this one goes on."""
        one = Training(plan, saved if other == self.rank else self.saved())  # DDP does not survive it: thrown away
        refused("a step at different steps", one.backward)

    def close(self) -> None:
        """Nothing is left of it."""


class Local:
    """The same with local steps: a step is two of them and the exchange."""

    plans = (
        *PLANS,
        {"method": "dagc", "bytes": 80, "step_ahead": 0.5, "momentum": 0.5, "outer_rate": 0.7},
        {"method": "thrifty", "bytes": 40, "step_ahead": 0.5, "clip": 5.0},
    )

    def __init__(self, plan: dict[str, Any], saved: bytes = b"") -> None:
        self.model, self.rank = _model(), dist.get_rank()
        states = [torch.load(BytesIO(saved), weights_only=True)] if saved else []
        self.local = ddp.LocalSteps(self.model, examples=EXAMPLES[self.rank], steps=2, resume=states, **plan)
        self.exchange, self.head = self.local._exchange, HEAD.size

    @property
    def step(self) -> int:
        """How many exchanges are done."""
        return self.local.round

    def saved(self) -> bytes:
        """Everything to continue from."""
        file = BytesIO()
        torch.save(self.local.state_dict(), file)
        return file.getvalue()

    def backward(self, spoil: float = 1.0) -> None:
        """Two steps of this rank's own, and what they moved to all."""
        for number in range(2):
            self.model.zero_grad()
            _loss(self.model, self.rank, 2 * self.step + number).backward()
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter.data.add_(parameter.grad * spoil, alpha=-0.01)
            self.local.step()

    go_on = backward

    @property
    def result(self) -> list[Tensor]:
        """What an exchange may change."""
        return [self.local.shared.clone(), self.local.uplink.feedback.residual.clone()]

    def meets(self, plan: dict[str, Any], saved: bytes, other: int) -> None:
        """The other rank has nothing but its last checkpoint, and this one a newer state."""
        own = saved if other == self.rank else self.saved()
        refused("to continue from different exchanges", lambda: Local(plan, own))

    def close(self) -> None:
        """Leave the group that it has made."""
        dist.destroy_process_group(self.exchange.group)


KINDS: tuple[type[Training] | type[Local], ...] = (Training, Local)


def _disturbed(faults: Faults) -> list[Tensor]:
    """A training with faults, which both ranks draw alike."""
    kind = faults.pick(KINDS)
    plan = faults.pick(kind.plans)
    training: Training | Local = kind(plan)
    saved, at = training.saved(), 0

    def again() -> Training | Local:
        training.close()
        return kind(plan, saved)

    while training.step < STEPS:
        if faults.happens("killed ranks", 0.1):
            training = again()
            continue
        if saved and faults.happens("mixed timelines", 0.05):
            training.close()
            training = kind(plan, saved)
            newer = training.saved()  # the same step of a later start
            training.close()
            _mixed(kind, plan, saved, newer)
            training = kind(plan, saved)
            continue
        if faults.happens("rank that cannot start", 0.03):
            wrong = {**plan, **({"clip": -1.0} if training.rank == faults.number(2) else {})}
            refused("a rank with impossible settings", partial(_start_and_close, kind, wrong))
        if saved and faults.happens("state of a newer version", 0.05):
            refused("a state of a newer version", partial(_start_and_close, kind, plan, _newer(saved)))
        if faults.happens("gradient that is not finite", 0.1):
            _refused("a gradient that is not finite", training, torch.nan if training.rank == faults.number(2) else 1.0)
        if faults.happens("damaged payload", 0.1):
            _damaged(training, faults.number(2), faults.number(1 << 30))
        if at != training.step and faults.happens("ranks at different steps", 0.05):
            training.meets(plan, saved, faults.number(2))
            training = again()
            continue
        training.go_on()
        if not faults.number(3) and not faults.happens("full disk", 0.2):
            saved, at = training.saved(), training.step
    training.close()
    return training.result


def _start_and_close(kind: type[Training] | type[Local], plan: dict[str, Any], saved: bytes = b"") -> None:
    kind(plan, saved).close()


def _newer(saved: bytes) -> bytes:
    """This state as a newer version of dagc might have written it."""
    state, file = torch.load(BytesIO(saved), weights_only=True), BytesIO()
    state.get("hook", state)["version"] = 99
    torch.save(state, file)
    return file.getvalue()


def _mixed(kind: type[Training] | type[Local], plan: dict[str, Any], saved: bytes, newer: bytes) -> None:
    """A rank has a checkpoint of the same step from before a restart: the states do not belong together."""

    def mixed() -> None:
        training = kind(plan, saved if dist.get_rank() else newer)
        try:
            training.backward()
        finally:
            training.close()

    refused("to continue from different starts", mixed)


def _refused(doing: str, training: Training | Local, spoil: float) -> None:
    """This backward pass is refused on all ranks and leaves no trace."""
    before = training.result
    refused(doing, lambda: training.backward(spoil))
    if not all(torch.equal(one, other) for one, other in zip(before, training.result, strict=True)):
        raise Broken(f"{doing} has changed something")


def _damaged(training: Training | Local, rank: int, where: int) -> None:
    """The payload of a rank is damaged on its way to all."""
    exchange, head = training.exchange, training.head
    usual = exchange.all_gather

    def damaging(packet: Packet) -> list[Packet]:
        body = bytes(packet.body) if len(packet.body) > head else bytes(packet.body) + b"?"
        at = 8 * head + where % (8 * (len(body) - head))
        flipped = body[: at // 8] + bytes([body[at // 8] ^ 1 << at % 8]) + body[at // 8 + 1 :]
        return usual(packet._replace(body=flipped) if training.rank == rank else packet)

    exchange.all_gather = damaging  # type: ignore[assignment, method-assign]
    _refused("a damaged payload", training, 1.0)
    exchange.all_gather = usual  # type: ignore[method-assign]


def _work(seed: int, rate: float) -> Counter[str]:
    """One schedule on this rank; `Broken` if it ends with other bits than an undisturbed training."""
    faults = Faults(seed, rate)
    result = _disturbed(faults)
    draws = Faults(seed, rate)
    kind = draws.pick(KINDS)
    straight: Training | Local = kind(draws.pick(kind.plans))
    for _ in range(STEPS):
        straight.go_on()
    straight.close()
    if not all(torch.equal(one, other) for one, other in zip(result, straight.result, strict=True)):
        raise Broken("the training ended with other bits than an undisturbed one")
    return faults.happened


class Group:
    """Processes that work on schedules, one after the other, until this one ends."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.chaos"])
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(RANKS):
            here, there = context.Pipe()
            store = f"file://{self._folder.name}/store"
            process = context.Process(target=_serve, args=(rank, store, there), daemon=True)
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)
        atexit.register(self.close)

    def work(self, seed: int, rate: float) -> list[Any]:
        """Every process's answer."""
        for end in self._ends:
            end.send((seed, rate))
        if not all(end.poll(PATIENCE) for end in self._ends):
            raise Broken(f"a rank has not answered for {PATIENCE} seconds")
        return [end.recv() for end in self._ends]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()
        _group.cache_clear()


@cache
def _group() -> Group:
    return Group()


def _serve(rank: int, store: str, end: Connection) -> None:
    torch.set_num_threads(1)
    patience = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS, timeout=patience)
    while True:
        seed, rate = end.recv()
        try:
            with plugins():
                end.send(_work(seed, rate))
        except Exception as error:
            end.send(Broken(f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


def break_ddp(faults: Faults, folder: Path) -> None:
    """Ten steps of two ranks, with faults; `Broken` if they end with other bits."""
    group = _group()
    for answer in group.work(faults.seed, faults.rate):
        if isinstance(answer, Exception):
            group.close()  # its ranks may be at different places now
            raise answer
    faults.happened += answer
