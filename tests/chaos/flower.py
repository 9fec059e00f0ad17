"""Faults around Flower's strategy and mod, in this process: messages, nodes, the server and all disks."""

import os
import random
import warnings
from collections.abc import Iterable
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
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

from dagc import errors
from dagc.checkpoint import checkpoints
from dagc.errors import CheckpointError, DagcError, InvalidInput, TooFewNodes
from dagc.flower import DataAware, compress
from dagc.flower.messages import RECORD, TRAIN, record_of
from dagc.flower.node import STATE_VARIABLE, read_node, state_path
from dagc.protocol import Order, Upload
from tests.chaos.faults import Broken, Faults, Killed, newer_version, refused
from tests.chaos.plugin import plugins
from tests.helpers.local_grid import LocalGrid

__all__ = ["break_flower"]

SHAPES = {"a": (10, 12), "b": (30,)}
SIZE, NODES, ROUNDS, RUN = 150, 4, 8, "chaos"
PLANS: tuple[dict[str, Any], ...] = (
    {"method": "dagc"},
    {"method": "dagc", "bytes": 60, "clip": 30.0, "step_ahead": 0.5},
    {"method": "dagc", "bytes": 60, "down": "lossless", "norm_bound": 30, "min_nodes": 1, "patience": 2},
    {"method": "dagc", "bytes": 60, "rate": "20 kB/hour", "down": 80},
    {"method": "thrifty", "bytes": 30},
    {"method": "dagc-r", "ratio": 0.05, "min_nodes": 1, "patience": 1},
    {"method": "dagc-r", "ratio": 0.05, "values": "int8", "down": 60},
    {"method": "dagc-r", "ratio": 0.05, "values": "fp32", "frames": "coded", "down": 60, "clip": 30.0},
    {"method": "stc", "bytes": 30},
    {"method": "random-k", "bytes": 60, "values": "int8"},
    {"method": "dagc-a", "threshold": 1.0},
    {"method": "accordion", "ratio": 0.05, "options": {"interval": 1}},
    {"method": "none"},
    {"method": "somebody's", "ratio": 0.05},
)

MOST = 200
"""Starts after which a run should have ended, whatever happens."""


class Grid(LocalGrid):
    """A grid that loses, delays, doubles and damages messages, and whose nodes and server die."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(_app(self), NODES)
        self.faults = faults
        self.changes: dict[int, torch.Tensor] = {}  # what each node has learned in its last training
        self.computed: dict[str, torch.Tensor] = {}
        self.visits: dict[str, int] = {}  # the round of each client's last visit, with which its books begin
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
        about = message.content[RECORD]
        if about["kind"] == TRAIN and faults.happens("forged order", 0.01):
            about["round"] = about["order.round"] = 1 << 47  # type: ignore[assignment]
            return [self._work(message, node)]
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
        """A node's reply; what it has learned counts once it is in the node's file."""
        faults, name = self.faults, f"partition-{node - 1}"
        path = state_path(RUN, self.contexts[node])
        self._wrong_file(message, node, path)
        about = message.content[RECORD]
        before = _pending(path)
        with faults.disk(0.03), faults.reading(0.03, path.parent):
            reply = self._answer(message)
        why = (reply.error.reason or "") if reply.has_error() else None
        if why is not None and not why.startswith((*OURS, f"{name} is out of sync")):
            raise Broken(f"a node answers with an error that is not ours: {why}")
        after = _pending(path)
        if after != before and after[2] and about["kind"] == TRAIN:
            self.computed[name] = self.computed.get(name, torch.zeros(SIZE)) + self.changes[node].double()
            if about["order.visit"]:
                self.computed[name], self.visits[name] = torch.zeros(SIZE).double(), int(str(about["round"]))
                faults.happened["visit"] += 1
        return reply

    def _wrong_file(self, message: Message, node: int, path: Path) -> None:
        """Another node's file, or that of a newer version, is used for nothing and stays as it is."""
        other, faults = state_path(RUN, self.contexts[1 + node % NODES]), self.faults
        if not path.exists() or not other.exists():
            return
        right = path.read_bytes()
        if faults.happens("copied file", 0.02):
            path.write_bytes(other.read_bytes())
            self._refuses(message)
            if path.read_bytes() != other.read_bytes():
                raise Broken("the file of another node has changed")
            path.write_bytes(right)
        elif faults.happens("file of a newer version", 0.02):
            with newer_version(path, "node"):
                self._refuses(message)

    def _refuses(self, message: Message) -> None:
        """The node answers with an error of ours."""
        reply = self._answer(message)
        if not reply.has_error() or not (reply.error.reason or "").startswith(OURS):
            raise Broken("a file that is not this node's was used")

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


KINDS_OF_ERRORS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, DagcError)]
OURS = (*(f"{kind.__name__}:" for kind in KINDS_OF_ERRORS), "Damaged:", "NewerVersion:")


def _pending(path: Path) -> tuple[list[str], int, int]:
    """The start of the server, the round that a node has answered last, and that of its last upload, by its file."""
    if not path.exists():
        return [], 0, 0
    node = read_node(path)
    return node.servers[-1:], node.answered, node.uplink.sent_round


def _app(grid: Grid) -> ClientApp:
    app = ClientApp(mods=[compress])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        generator = torch.Generator().manual_seed(grid.faults.number(1 << 40))
        change = torch.randn(SIZE, generator=generator).pow(3) + context.node_id
        if grid.faults.number(2):  # what terms are good at
            change[:120] += 5 * torch.outer(torch.randn(10, generator=generator), torch.arange(12.0)).flatten()
        arrays = message.content.array_records["arrays"]
        old = torch.cat([torch.from_numpy(array.numpy().copy()).flatten() for array in arrays.values()])
        new = old - change
        grid.changes[context.node_id] = old - new  # as it is after rounding
        parts = torch.split(new, [120, 30])
        named = {name: Array(part.reshape(SHAPES[name]).numpy()) for name, part in zip(SHAPES, parts, strict=True)}
        metrics = MetricRecord({"num-examples": 10 + 90 * context.node_id})
        return Message(RecordDict({"arrays": ArrayRecord(named), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        arrays = [array.numpy() for array in message.content.array_records["arrays"].values()]
        if not all(np.isfinite(array).all() for array in arrays):
            raise Broken("a node evaluates a model that is not finite")
        metrics = MetricRecord({"num-examples": 10, "accuracy": float(arrays[0].mean())})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


LEAST: dict[str, Any] = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


class Watched(DataAware):
    """A strategy that notes what was taken in each round, and whose server may die between any two steps."""

    def __init__(self, faults: Faults, taken: dict[int, list[Upload]], **options: Any) -> None:
        kind = FedAdam if faults.seed % 4 == 3 else FedAvg
        train, evaluate = faults.pick((1.0, 0.6)), faults.pick((0.0, 0.6))
        inner = kind(fraction_train=train, fraction_evaluate=evaluate, **LEAST)
        super().__init__(inner, run=RUN, **{"min_nodes": 0, **options})
        self.faults, self.taken = faults, taken

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """As it is; then the server may die before the round's checkpoint."""
        run = self._started()
        usual = type(run).advance

        def advance(uploads: list[Upload], model: Any) -> None:
            usual(run, uploads, model)
            self.taken[run.round] = uploads if model is not None else []

        run.advance = advance  # type: ignore[method-assign, assignment]
        if self.faults.happens("clock jump", 0.05):
            run.began -= 86_400.0
        found = super().aggregate_train(server_round, replies)
        if self.faults.happens("killed server", 0.03):
            raise Killed
        return found

    def _close_round(self) -> None:
        done = self._round is not None and self._round.result is not None
        with self.faults.disk(0.04) if done else nullcontext():
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


def break_flower(faults: Faults, folder: Path) -> None:
    """Eight rounds of four nodes, with faults; `Broken` if a promise does not hold."""
    random.seed(faults.seed)  # Flower samples nodes
    plan, grid, taken = faults.pick(PLANS), Grid(faults), dict[int, list[Upload]]()
    first = ArrayRecord({name: Array(np.zeros(shape, np.float32)) for name, shape in SHAPES.items()})
    with _quiet(folder), warnings.catch_warnings(), plugins():
        warnings.simplefilter("ignore")  # damaged checkpoints are reported
        damaged = 0
        for starts in count(1):
            strategy = Watched(faults, taken, folder=folder / "runs", **plan)
            try:
                with faults.reading(0.05, folder / "runs"):
                    result = strategy.start(grid, first, num_rounds=ROUNDS)
                break
            except (Killed, CheckpointError, TooFewNodes):  # a new process: of the server, not of the nodes
                pass
            except InvalidInput as error:
                if "be read" not in str(error):
                    raise
            if starts == MOST:
                raise Broken(f"the run has not ended after {MOST} starts")
            grid.late = []
            grid._replies.clear()
            damaged = _damage_newest(faults, folder, damaged)
            newest = next(iter(checkpoints(folder / "runs" / RUN / "checkpoints")), None)
            if newest is not None and faults.happens("checkpoint of a newer version", 0.1):
                strategy = Watched(faults, taken, folder=folder / "runs", **plan)
                with newer_version(newest, "run"):
                    refused("a checkpoint of a newer version", partial(strategy.start, grid, first, ROUNDS))
        _check_books(grid, strategy, taken, folder)
    sent = sum(len(one.frame) for t in taken for one in taken[t])
    if "bytes" in plan and sent > plan["bytes"] * NODES * ROUNDS:
        raise Broken(f"{sent} bytes were taken and {plan['bytes'] * NODES * ROUNDS} allowed")
    if not all(np.isfinite(array.numpy()).all() for array in result.arrays.values()):
        raise Broken("the model is not finite")


def _damage_newest(faults: Faults, folder: Path, last: int) -> int:
    """Damage the newest checkpoint. A node can take back the last accepted upload only, so not twice in a row."""
    kept = checkpoints(folder / "runs" / RUN / "checkpoints")
    newest = int(kept[0].stem.partition("-")[2]) if kept else 0
    if len(kept) < 2 or newest < last + 3 or not faults.happens("damaged checkpoint", 0.5):
        return last
    kept[0].write_bytes(faults.damaged(kept[0].read_bytes()))
    return newest


def _check_books(grid: Grid, strategy: Watched, taken: dict[int, list[Upload]], folder: Path) -> None:
    """What was taken from a node and what it keeps are together what it has learned."""
    members = strategy._started().server.members
    for name, computed in grid.computed.items():
        node = read_node(folder / "nodes" / RUN / f"{name}.safetensors")
        node.settle(Order(ROUNDS, 0, accepted=members[name].accepted_round if name in members else 0))
        rounds = [t for t in taken if t > grid.visits.get(name, 0)]
        delivered = [one.update.dense().double() for t in rounds for one in taken[t] if one.client == name]
        has = sum(delivered, node.uplink.feedback.residual.double())
        error = float((has - computed).abs().max() / (1 + computed.abs().max()))
        if not error < 1e-5:
            raise Broken(f"{name} has lost {error:.2g} of its largest entry")
