"""Faults between the halves of the protocol: messages are lost, late, doubled, damaged or forged; every half dies."""

import errno
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dagc import checkpoint
from dagc.errors import CheckpointError, DagcError, MalformedPayload, OutOfSync, OutsideBound
from dagc.policies import Plan
from dagc.protocol import Download, ModelServer, Order, Replica, Uplink, Upload
from dagc.protocol.messages import BEST
from dagc.state import load_state, save_state
from dagc.updates import Update, decode_update, is_update
from dagc.updates.frame import seal
from tests.chaos.faults import Broken, Faults, newer_version, refused
from tests.chaos.plugin import plugins

__all__ = ["PLANS", "break_halves"]

SHAPES: Sequence[int | Sequence[int]] = [(10, 12), 30]
SIZE, ROUNDS = 150, 24
NAMES = ("ann", "bob", "cleo", "dan", "eve", "fay", "gus")
COMES: dict[str, Callable[[int], Any]] = {"fay": lambda t: t % 11 == 0, "gus": lambda t: t >= 12}
"""One comes so rarely that it visits, and one joins when half of the training is over."""
PLANS: tuple[dict[str, Any], ...] = (
    {"method": "dagc"},
    {"method": "dagc", "exponent": 1, "step_ahead": 0.5, "clip": 50.0},
    {"method": "dagc", "bytes": 60},
    {"method": "dagc", "bytes": 60, "down": "lossless", "norm_bound": 30},
    {"method": "dagc", "rate": "1500 B/training", "down": 80, "clip": 30.0, "step_ahead": 0.5},
    {"method": "dagc", "rate": "20 kB/hour", "bytes": 60, "exponent": 0, "caps": {"ann": 0.1}},
    {"method": "dagc", "ratio": 0.1, "first_model": "drawn", "most_examples": 100},
    {"method": "thrifty"},
    {"method": "thrifty", "bytes": 30, "clip": 30.0},
    {"method": "dagc-r", "ratio": 0.05},
    {"method": "dagc-r", "ratio": 0.05, "values": "int8", "down": 60},
    {"method": "dagc-r", "bytes": 25, "values": "sign", "frames": "compact", "first_model": "drawn"},
    {"method": "dagc-r", "ratio": 0.05, "values": "fp32", "frames": "coded", "down": 60, "first_bits": 4},
    {"method": "random-k", "bytes": 60, "values": "int8"},
    {"method": "power", "rate": "900 B/training", "values": "int8", "norm_bound": 30},
    {"method": "dagc-a", "threshold": 1.0},
    {"method": "accordion", "ratio": 0.05, "options": {"interval": 1}},
    {"method": "stc", "bytes": 30},
    {"method": "none"},
    {"method": "none", "down": 60},
    {"method": "somebody's", "ratio": 0.05},
)


class Client:
    """Both halves of a client."""

    def __init__(self, plan: Plan) -> None:
        drawn = plan.first_model == "drawn"
        self.uplink = Uplink(plan.for_clients(), SHAPES)
        self.replica = Replica(SHAPES, torch.zeros(SIZE) if drawn else None)

    def state_dict(self) -> dict[str, Any]:
        """The whole state."""
        return {"uplink": self.uplink.state_dict(), "replica": self.replica.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.uplink.load_state_dict(state["uplink"])
        self.replica.load_state_dict(state["replica"])


class Halves:
    """A federation whose halves live in files, and whose network loses, delays, doubles and damages messages."""

    def __init__(self, faults: Faults, folder: Path) -> None:
        self.faults, self.folder = faults, folder
        self.plan = Plan(**faults.pick(PLANS))
        self.server = self._new_server()
        checkpoint.save(folder, self.server.state_dict())
        self.computed: dict[str, torch.Tensor] = {}
        self.delivered: dict[str, dict[int, torch.Tensor]] = {}
        self.visited: set[str] = set()
        self.late: list[tuple[str, bytes]] = []
        self.books: dict[int, tuple[float, float]] = {}  # bytes sent and earned, by round
        self.seconds = 0.0

    def _new_server(self) -> ModelServer:
        return ModelServer(self.plan, torch.zeros(SIZE), ROUNDS, SHAPES)

    def _client(self, name: str) -> Client:
        """As it is in its file; as it was made, if there is none."""
        client = Client(self.server.plan)
        if (self.folder / name).exists():
            client.load_state_dict(load_state(self.folder / name, "chaos", 1))
        return client

    def _restart_server(self) -> None:
        """From its newest checkpoint, or from the one before if that is damaged; its connections are gone."""
        kept, faults = checkpoint.checkpoints(self.folder), self.faults
        if len(kept) > 1 and faults.happens("damaged checkpoint", 0.2):
            kept[0].write_bytes(faults.damaged(kept[0].read_bytes()))
        elif faults.happens("unreadable checkpoint", 0.2):
            before = [path.read_bytes() for path in kept]
            folder = bool(faults.number(2))  # it cannot be listed; else the files in it cannot be read
            code = faults.pick((errno.EIO, errno.EMFILE, errno.EACCES))
            with faults.unreadable(code, lambda path: path.is_dir() == folder):
                refused("a checkpoint that cannot be read", partial(checkpoint.load, self.folder))
            if [path.read_bytes() for path in kept if path.exists()] != before:
                raise Broken("a checkpoint that could not be read has changed")
        elif faults.happens("checkpoint of a newer version", 0.1):
            with newer_version(kept[0], "run"):
                refused("a checkpoint of a newer version", partial(checkpoint.load, self.folder))
        self.server, self.late = self._new_server(), []
        state = checkpoint.load(self.folder)
        assert state is not None
        self.server.load_state_dict(state)
        self._forget_after(self.server.round)

    def _forget_after(self, round: int) -> None:
        """The server knows nothing of later rounds. What clients still have pending is sent again; the rest is lost."""
        self.books = {t: book for t, book in self.books.items() if t <= round}
        for name, uploads in self.delivered.items():
            uplink = self._client(name).uplink
            for t in [t for t in uploads if t > round]:
                upload = uploads.pop(t)
                if uplink.pending is None or uplink.sent_round != t:
                    self.computed[name] = self.computed[name] - upload

    def round(self) -> None:
        """One round, which may come to nothing."""
        faults, server, t = self.faults, self.server, self.server.round
        present = [name for name in NAMES if (COMES[name](t) if name in COMES else faults.number(4))]
        for name in present:
            server.join(name, 10 + 90 * NAMES.index(name))
        self.seconds += 60.0
        jump = faults.pick((-3600.0, 86_400.0)) if faults.happens("clock jump", 0.05) else 0.0
        orders = server.orders(present, self.seconds + jump)
        for name, frame in self.late:
            refused("an upload of the round before", partial(server.read, name, frame))
        uploads, sent, self.late, self.visited = [], 0, [], set()
        for name, order in orders.items():
            if faults.happens("lost order", 0.1):
                continue
            upload = self._train(name, order)
            if upload is not None:
                sent += len(upload)
                uploads += self._deliver(name, upload, order)
        if faults.happens("killed server", 0.07):
            self._restart_server()
            return
        server.advance(uploads, server.target - server.total(uploads) if uploads else None)
        try:
            with faults.disk(0.05):
                checkpoint.save(self.folder, server.state_dict())
        except CheckpointError:  # it dies, and whether the round counts is decided by its file
            if load_state(checkpoint.checkpoints(self.folder)[0], "run", 1)["round"] < server.round:
                self._restart_server()
                return
        earned = sum(server.members[name].examples > 0 for name in present) * (self.plan.bytes or 0)
        self.books[server.round] = sent, earned
        for accepted in uploads:
            if accepted.client not in self.visited:
                vector = accepted.update.dense().double()
                self.delivered.setdefault(accepted.client, {})[server.round] = vector

    def _train(self, name: str, order: Order) -> bytes | None:
        """What a client uploads; None if it does not come to that."""
        faults = self.faults
        try:
            with faults.reading(0.03, self.folder):
                client = self._client(name)
        except CheckpointError:
            return None
        try:
            model = self._receive(name, client, self.server.download(name))
        except (OutOfSync, MalformedPayload):
            self.server.out_of_sync(name)
            return None
        client.uplink.settle(order.accepted)
        change = self._gradient(name)
        apart = float((client.uplink.start(model) - model).norm())
        if apart > 1.0001 * client.uplink.last_update_norm:
            raise Broken(f"{name} would train from {apart:g} away of the model, farther than its last change")
        upload = self._upload(name, client.uplink, change, order)
        if faults.happens("client killed before it saved", 0.05):
            return None
        before = (self.folder / name).read_bytes() if (self.folder / name).exists() else b""
        try:
            with faults.disk(0.05):
                save_state(self.folder / name, "chaos", 1, client.state_dict())
        except CheckpointError:
            if (self.folder / name).exists() and (self.folder / name).read_bytes() != before:
                self._count(name, change, order)
            return None
        self._count(name, change, order)
        return None if faults.happens("client killed after it saved", 0.05) else upload.frame

    def _receive(self, name: str, client: Client, download: Download) -> torch.Tensor:
        """The newest model; a damaged or forged download is refused, or leads to the same one."""
        faults, replica = self.faults, client.replica
        if faults.happens("forged download", 0.03):
            wrong: dict[str, Any] = {"since": -7, "version": (1 << 63) - 1, "steps": 1 << 62, "checksum": -1}
            forged = faults.pick(list(wrong))
            refused("a forged download", lambda: replica.receive(download._replace(**{forged: wrong[forged]})))
        if download.frame and faults.happens("damaged download", 0.05):
            model = replica.receive(download._replace(frame=faults.damaged(download.frame)))
            if not torch.equal(model, replica.receive(download)):
                raise Broken("a damaged download was taken for another model")
        return replica.receive(download)

    def _upload(self, name: str, uplink: Uplink, change: torch.Tensor, order: Order) -> Upload:
        """What is sent and what is kept are together what there was, exactly."""
        if self.faults.happens("forged order", 0.03):
            wrong = self.faults.pick((("amount", -1), ("amount", "x"), ("round", 1 << 62), ("clip", float("nan"))))
            fields: dict[str, Any] = {str(wrong[0]): wrong[1]}
            refused("a forged order", lambda: uplink.upload(change, order._replace(**fields)))
        if self.faults.happens("change that is not finite", 0.03):
            refused("a change that is not finite", lambda: uplink.upload(change * torch.nan, order))
        left = uplink.feedback.residual + change
        upload = uplink.upload(list(torch.split(change, [120, 30])), order)
        if isinstance(upload.update, Update):
            upload.update.subtract_from(left)
            kept = uplink.feedback.residual
            if not torch.equal(kept, torch.zeros(SIZE) if order.visit else left):
                raise Broken(f"{name} has kept something else than what it did not send")
            if len(upload.frame) > order.amount:
                raise Broken(f"{name} sends {len(upload.frame)} bytes of {order.amount}")
            if decode_update(upload.frame, SHAPES, round=order.stamp) != upload.update:
                raise Broken(f"{name} sends something else than it knows of")
        return upload

    def _count(self, name: str, change: torch.Tensor, order: Order) -> None:
        """The client's file has this change. A visitor keeps nothing, so that its books begin with the next."""
        self.computed[name] = self.computed.get(name, torch.zeros(SIZE)) + change.double()
        if order.visit:
            self.visited.add(name)
            self.computed[name] = torch.zeros(SIZE).double()
            self.delivered.pop(name, None)
            self.faults.happened["visit"] += 1

    def _gradient(self, name: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.faults.number(1 << 40))
        change = torch.randn(SIZE, generator=generator).pow(3) + NAMES.index(name)
        if self.faults.number(2):  # what terms are good at
            change[:120] += 5 * torch.outer(torch.randn(10, generator=generator), torch.arange(12.0)).flatten()
        return change

    def _deliver(self, name: str, frame: bytes, order: Order) -> list[Upload]:
        """What reaches the server of an upload."""
        faults, server = self.faults, self.server
        if faults.happens("lost upload", 0.1):
            return []
        if frame and faults.happens("late upload", 0.07):
            self.late.append((name, frame))
            return []
        if faults.happens("damaged upload", 0.1):
            damaged = faults.damaged(frame)
            if not damaged and order.compressor == BEST:  # it says nothing, and nothing is accepted
                return [server.read(name, damaged)]
            refused("a damaged upload", lambda: server.read(name, damaged))
            return []
        if len(frame) > 2 and is_update(frame) and faults.happens("forged upload", 0.1):
            return self._forge(name, frame, order)
        norm = 1.0 if order.norm else None
        try:
            upload = server.read(name, frame, norm)
        except OutsideBound:
            return []
        if faults.happens("doubled upload", 0.1):
            refused("a second upload", lambda: server.read(name, frame, norm))
        return [upload]

    def _forge(self, name: str, frame: bytes, order: Order) -> list[Upload]:
        """Somebody changes a frame on its way and repairs its checksum. Only finite, bounded updates are read."""
        forged = seal(self.faults.damaged(frame[: -2 if len(frame) < 1024 else -4]), SHAPES, order.stamp)
        try:
            update = self.server.read(name, forged).update
        except DagcError:
            return []
        if len(forged) > order.amount or not float(update.dense().abs().max()) < 2.0**102:
            raise Broken("a forged upload was read that is larger than allowed")
        return []  # the client's own never arrives

    def check(self) -> None:
        """Nothing was lost, and the budget was kept."""
        for name, computed in self.computed.items():
            uplink = self._client(name).uplink
            member = self.server.members.get(name)
            uplink.settle(0 if member is None else member.accepted_round)
            has = sum(self.delivered.get(name, {}).values(), uplink.feedback.residual.double())
            error = float((has - computed).abs().max() / (1 + computed.abs().max()))
            if not error < 1e-5:
                raise Broken(f"{name} has lost {error:.2g} of its largest entry")
        sent, earned = (sum(book[side] for book in self.books.values()) for side in (0, 1))
        if self.plan.bytes is not None and sent > earned:
            raise Broken(f"{sent:g} bytes were sent and {earned:g} allowed")
        if not np.isfinite(self.server.model.numpy()).all():
            raise Broken("the model is not finite")


def break_halves(faults: Faults, folder: Path) -> None:
    """24 rounds of seven clients, with faults; `Broken` if a promise does not hold."""
    with warnings.catch_warnings(), plugins():
        warnings.simplefilter("ignore")  # damaged checkpoints and caps are reported
        run = Halves(faults, folder)
        for _ in range(ROUNDS):
            run.round()
        run.check()
