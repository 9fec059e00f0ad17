"""Faults around Flower's strategy and mod, in this process: messages, nodes, the server and all disks."""

import os
from collections.abc import Iterable, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from itertools import count
from logging import getLogger
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from dagc.errors import CheckpointError, DagcError, InvalidInput
from dagc.flower import DataAware, compress
from dagc.flower.local import LocalGrid
from dagc.flower.messages import RECORD, record_of
from dagc.flower.node import STATE_VARIABLE, read_node, state_path
from dagc.flower.run import FlowerRun
from dagc.protocol import Order, Upload
from tests.chaos.faults import Broken, Faults, Killed

__all__ = ["break_flower"]

SHAPES = {"a": (10, 12), "b": (30,)}
SIZE, NODES, ROUNDS, RUN = 150, 4, 8, "chaos"
PLANS: tuple[dict[str, Any], ...] = (
    {"method": "thrifty", "ratio": 0.05},
    {"method": "thrifty", "ratio": 0.05, "values": "int8", "down": 60},
    {"method": "thrifty", "bytes": 30, "values": "sign", "frames": "compact", "overhead": 0.25, "down": "same"},
    {"method": "random-k", "bytes": 60, "values": "int8"},
    {"method": "dagc-a", "threshold": 1.0},
    {"method": "accordion", "ratio": 0.05, "options": {"interval": 1}},
    {"method": "thrifty", "bytes": 30, "values": "sign", "frames": "coded", "overhead": 0.25, "down": "same"},
    {"method": "thrifty", "bytes": 30, "values": "sign", "frames": "coded", "down": 60, "step_ahead": 0.5},
    {"method": "thrifty", "ratio": 0.05, "values": "int8", "frames": "coded", "down": 60, "clip": 30.0},
    {"method": "dagc"},
)


MOST = 200
"""Starts after which a run should have ended, whatever happens."""


class Grid(LocalGrid):
    """A grid that loses, delays, doubles and damages messages, and whose nodes and server die."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(_app(self), NODES)
        self.faults = faults
        self.changes: dict[int, torch.Tensor] = {}  # what each node has learnt in its last training
        self.computed: dict[str, torch.Tensor] = {}
        self.late: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the nodes do their work, if nothing goes wrong."""
        names = []
        for message in messages:
            if self.faults.happens("killed server", 0.01):
                raise Killed
            name = uuid4().hex
            message.metadata.__dict__["_message_id"] = name
            self._replies[name] = self._exchange(message)
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """What came of it, with what came too late the last time."""
        if self.faults.happens("killed server", 0.02):
            raise Killed
        late, self.late = self.late, []
        found = [*super().pull_messages(message_ids), *late]
        self.late = [reply for reply in found if reply not in late and self.faults.happens("late reply", 0.05)]
        return [reply for reply in found if reply not in self.late]

    def _exchange(self, message: Message) -> list[Message]:
        """The replies to a message that reach the server."""
        faults, node = self.faults, message.metadata.dst_node_id
        if faults.happens("lost order", 0.07):
            return []
        reply = self._work(message, node)
        if faults.happens("doubled order", 0.05):
            again = self._work(message, node)
            if message.content[RECORD]["kind"] == "train" and not reply.has_error() and not again.has_error():
                raise Broken("a node has answered one order twice")
        if faults.happens("killed node", 0.07):
            self.contexts[node].state = RecordDict()
            return []
        if faults.happens("lost reply", 0.07):
            return []
        if not reply.has_error() and RECORD in reply.content and faults.happens("damaged reply", 0.07):
            self._damage(reply)
        if not reply.has_error() and faults.happens("doubled reply", 0.05):
            twin = copy(reply)
            twin.content = RecordDict(dict(reply.content.items()))
            return [reply, twin]
        return [reply]

    def _work(self, message: Message, node: int) -> Message:
        """A node's reply; what it has learnt counts once it is in the node's file."""
        path = state_path(RUN, self.contexts[node])
        before = _pending(path)
        with self.faults.disk(0.03):
            reply = self._answer(message)
        why = (reply.error.reason or "") if reply.has_error() else None
        if why is not None and not why.startswith((*OURS, f"partition-{node - 1} is out of sync")):
            raise Broken(f"a node answers with an error that is not ours: {why}")
        after = _pending(path)
        if after != before and after[1]:
            name = f"partition-{node - 1}"
            self.computed[name] = self.computed.get(name, torch.zeros(SIZE)) + self.changes[node].double()
        return reply

    def _damage(self, reply: Message) -> None:
        """One bit of the payload, or something of the record, is another one."""
        arrays = list(reply.content.array_records)
        if arrays and self.faults.number(3):
            payload = reply.content.array_records[arrays[0]][RECORD].data
            reply.content[arrays[0]] = record_of(self.faults.damaged(payload))
            return
        record = reply.content.config_records[RECORD]
        wrong: tuple[int | float | str, ...] = (-1, "x", 0.5)
        record[self.faults.pick(("round", "name", "version"))] = self.faults.pick(wrong)


OURS = tuple(f"{kind.__name__}:" for kind in (DagcError, InvalidInput, CheckpointError))


def _pending(path: Path) -> tuple[str, int]:
    """Under which start of the server a node has answered last, and which round, by its file."""
    if not path.exists():
        return "", 0
    node = read_node(path)
    return (node.servers or [""])[-1], node.answered


def _app(grid: Grid) -> ClientApp:
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        generator = torch.Generator().manual_seed(grid.faults.number(1 << 40))
        change = torch.randn(SIZE, generator=generator).pow(3) + context.node_id
        arrays = message.content.array_records["arrays"]
        old = torch.cat([torch.from_numpy(array.numpy().copy()).flatten() for array in arrays.values()])
        new = old - change
        grid.changes[context.node_id] = old - new  # as it is after rounding
        parts = torch.split(new, [120, 30])
        named = {name: Array(part.reshape(SHAPES[name]).numpy()) for name, part in zip(SHAPES, parts, strict=True)}
        metrics = MetricRecord({"num-examples": 10 + 90 * context.node_id})
        return Message(RecordDict({"arrays": ArrayRecord(named), "metrics": metrics}), reply_to=message)

    return app


class Watched(DataAware):
    """A strategy that notes what was taken in each round, and whose server may die between any two steps."""

    def __init__(self, faults: Faults, taken: dict[int, list[Upload]], **options: Any) -> None:
        kind = FedAdam if faults.seed % 4 == 3 else FedAvg
        inner = kind(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
        super().__init__(inner, run=RUN, min_nodes=0, **options)
        self.faults, self.taken = faults, taken

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """As it is; then the server may die before the round's checkpoint."""
        run = self._started()
        usual = FlowerRun.advance

        def advance(uploads: Sequence[Upload], model: Any) -> None:
            usual(run, uploads, model)
            self.taken[run.round] = list(uploads) if model is not None else []

        run.advance = advance  # type: ignore[method-assign]
        arrays = super().aggregate_train(server_round, replies)
        if self.faults.happens("killed server", 0.03):
            raise Killed
        return arrays

    def _close_round(self) -> None:
        pending = self._exchange is not None and self._exchange.result is not None
        with self.faults.disk(0.04) if pending else nullcontext():
            super()._close_round()


@contextmanager
def _quiet(folder: Path) -> Any:
    """States below this folder, and no word in the log."""
    log, before = getLogger("flwr"), os.environ.get(STATE_VARIABLE)
    level = log.level
    log.setLevel("CRITICAL")
    os.environ[STATE_VARIABLE] = str(folder)
    try:
        yield
    finally:
        log.setLevel(level)
        os.environ.pop(STATE_VARIABLE)
        if before is not None:
            os.environ[STATE_VARIABLE] = before


def _damage_newest(folder: Path, faults: Faults, taken: dict[int, list[Upload]]) -> None:
    """The newest checkpoint is damaged, if there is one before it; what was taken in its round is forgotten."""
    checkpoints = sorted(folder.glob("round-*.safetensors"))
    if len(checkpoints) > 1:
        checkpoints[-1].write_bytes(faults.damaged(checkpoints[-1].read_bytes()))
        last = int(checkpoints[-2].stem.removeprefix("round-"))
        for round in [round for round in taken if round > last]:
            del taken[round]


def break_flower(faults: Faults, folder: Path) -> None:
    """Eight rounds of four nodes, with faults; `Broken` if a promise does not hold."""
    plan, grid, taken = faults.pick(PLANS), Grid(faults), dict[int, list[Upload]]()
    first = ArrayRecord({name: Array(np.zeros(shape, np.float32)) for name, shape in SHAPES.items()})
    with _quiet(folder):
        for starts in count(1):
            strategy = Watched(faults, taken, folder=folder / "runs", **plan)
            try:
                result = strategy.start(grid, first, num_rounds=ROUNDS)
                break
            except (Killed, CheckpointError):  # a new process: of the server, not of the nodes
                grid.late = []
                grid._replies.clear()
                if faults.happens("damaged checkpoint", 0.2):
                    _damage_newest(folder / "runs" / RUN / "checkpoints", faults, taken)
                if starts == MOST:
                    raise Broken(f"the run has not ended after {MOST} starts") from None
        run = strategy._started()
        for name, computed in grid.computed.items():
            node = read_node(folder / "nodes" / RUN / f"{name}.safetensors")
            accepted = run.server.members[name].accepted_round if name in run.server.members else 0
            node.settle(Order(ROUNDS + 1, 0, accepted=accepted))  # as the next order would
            delivered = [one.update.dense().double() for t in taken for one in taken[t] if one.client == name]
            has = sum(delivered, node.uplink.feedback.residual.double())
            error = float((has - computed).abs().max() / computed.abs().max())
            if not error < 1e-5:
                raise Broken(f"{name} has lost {error:.2g} of its largest entry")
    sent = sum(len(one.frame) for t in taken for one in taken[t])
    if "bytes" in plan and sent > plan["bytes"] * NODES * ROUNDS:
        raise Broken(f"{sent} bytes were taken and {plan['bytes'] * NODES * ROUNDS} allowed")
    if not all(np.isfinite(array.numpy()).all() for array in result.arrays.values()):
        raise Broken("the model is not finite")
