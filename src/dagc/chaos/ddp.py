"""Faults around DDP, in two processes of a gloo group: bad gradients, damaged payloads, ranks that start again."""

import atexit
import multiprocessing
import traceback
from collections import Counter
from datetime import timedelta
from functools import cache
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
from dagc.chaos.faults import Broken, Faults, refused
from dagc.ddp.exchange import Packet

__all__ = ["break_ddp"]

RANKS, STEPS, PATIENCE = 2, 10, 120
PLANS: tuple[dict[str, Any], ...] = (
    {"ratio": 0.05},
    {"bytes": 40, "values": "sign", "frames": "compact", "overhead": 0.25},
    {"method": "random-k", "ratio": 0.05, "values": "int8"},
    {"method": "accordion", "ratio": 0.05, "options": {"interval": 1}, "norm_bound": 100},
    {"bytes": 40, "values": "sign", "frames": "coded", "overhead": 0.25},
)


class Training:
    """A model on this rank, which can be saved, restarted and disturbed."""

    def __init__(self, plan: dict[str, Any], saved: bytes = b"") -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 10), nn.Tanh(), nn.Linear(10, 5)))
        self.rank, self.step = dist.get_rank(), 0
        self.hook = ddp.register(self.model, examples=700 if self.rank else 100, **plan)
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
        """A backward pass on this rank's batch, exchanged with the others."""
        generator = torch.Generator().manual_seed(1000 * self.rank + self.step)
        self.model.zero_grad()
        loss = self.model(torch.randn(8, 20, generator=generator)).square().sum()
        (loss * spoil).backward()

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
        return [*(parameter.clone() for parameter in parameters), self.hook.client.feedback.residual.clone()]


def _disturbed(faults: Faults) -> list[Tensor]:
    """A training with faults; both ranks draw the same ones."""
    plan = faults.pick(PLANS)
    training = Training(plan)
    saved = training.saved()
    while training.step < STEPS:
        if faults.happens("killed ranks", 0.1):
            training = Training(plan, saved)
            continue
        if faults.happens("gradient that is not finite", 0.1):
            _refused("a gradient that is not finite", training, torch.nan if training.rank == faults.number(2) else 1.0)
        if faults.happens("damaged payload", 0.1):
            _damaged(training, faults.number(2), faults.number(1 << 30))
        behind = Training(plan, saved) if faults.happens("ranks at different steps", 0.05) else None
        if behind is not None:
            if behind.step == training.step:
                continue
            ahead = Training(plan, training.saved())  # discarded afterwards: DDP does not survive what comes now
            refused("a step at different steps", (behind if faults.number(2) == training.rank else ahead).backward)
            training = Training(plan, saved)
            continue
        training.go_on()
        if not faults.number(3) and not faults.happens("full disk", 0.2):
            saved = training.saved()
    return training.result


def _refused(doing: str, training: Training, spoil: float) -> None:
    """This backward pass is refused on all ranks and leaves no trace."""
    before = training.result
    refused(doing, lambda: training.backward(spoil))
    if not all(torch.equal(one, other) for one, other in zip(before, training.result, strict=True)):
        raise Broken(f"{doing} has changed something")


def _damaged(training: Training, rank: int, where: int) -> None:
    """Damage the payload of a rank on its way to all others."""
    exchange = training.hook._exchange
    usual = exchange.all_gather

    def damaging(packet: Packet) -> list[Packet]:
        body = bytes(packet.body) or b"?"
        at = where % (8 * len(body))
        flipped = body[: at // 8] + bytes([body[at // 8] ^ 1 << at % 8]) + body[at // 8 + 1 :]
        return usual(packet._replace(body=flipped) if training.rank == rank else packet)

    exchange.all_gather = damaging  # type: ignore[assignment, method-assign]
    _refused("a damaged payload", training, 1.0)
    exchange.all_gather = usual  # type: ignore[method-assign]


def _work(seed: int, rate: float) -> Counter[str]:
    """One schedule on this rank; `Broken` if it ends with other bits than an undisturbed training."""
    faults = Faults(seed, rate)
    result = _disturbed(faults)
    straight = Training(Faults(seed, rate).pick(PLANS))
    for _ in range(STEPS):
        straight.go_on()
    if not all(torch.equal(one, other) for one, other in zip(result, straight.result, strict=True)):
        raise Broken("the training ended with other bits than an undisturbed one")
    return faults.happened


class Group:
    """Processes that work on schedules, one after the other, until this one ends."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["dagc.chaos"])
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
