"""Faults between the two halves of the protocol: messages are lost, late, doubled or damaged, and every half dies."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dagc.errors import CheckpointError, MalformedPayload, OutOfSync, OutsideBound
from dagc.policies import Plan
from dagc.protocol import Client, Download, Order, Server, Upload
from dagc.state import load_state, save_state
from tests.chaos.faults import Broken, Faults, refused

__all__ = ["break_halves"]

SIZE, ROUNDS = 150, 15
NAMES = ("ann", "bob", "cleo", "dan", "eve")
PLANS: tuple[dict[str, Any], ...] = (
    {"ratio": 0.05},
    {"ratio": 0.05, "values": "int8", "down": 60},
    {"bytes": 30, "values": "sign", "frames": "compact", "overhead": 0.25, "down": "same"},
    {"bytes": 25, "values": "sign", "frames": "compact", "first_model": "drawn"},
    {"method": "random-k", "bytes": 60, "values": "int8"},
    {"method": "power", "rate": "900 B/training", "values": "int8", "norm_bound": 30},
    {"method": "dagc-a", "threshold": 1.0},
    {"method": "accordion", "ratio": 0.05, "options": {"interval": 1}},
    {"bytes": 30, "values": "sign", "frames": "coded", "overhead": 0.25, "down": "same"},
    {"ratio": 0.05, "values": "int8", "frames": "coded", "down": 60},
    {"bytes": 30, "values": "sign", "frames": "coded", "down": 60, "step_ahead": 0.5, "clip": 30.0},
    {"method": "dagc"},
)


class Halves:
    """A federation whose halves live in files, and whose network loses, delays, doubles and damages messages."""

    def __init__(self, faults: Faults, folder: Path) -> None:
        self.faults, self.folder = faults, folder
        self.plan = Plan(**faults.pick(PLANS))
        self.server = self._new_server()
        self._save("server", self.server)
        self.clients: dict[str, Client] = {}
        self.computed: dict[str, torch.Tensor] = {}
        self.delivered: dict[str, torch.Tensor] = {}
        self.late: list[tuple[str, bytes]] = []
        self.sent = self.earned = 0.0

    def _new_server(self) -> Server:
        return Server(self.plan, torch.zeros(SIZE), ROUNDS)

    def _new_client(self) -> Client:
        return Client([SIZE], first_model=torch.zeros(SIZE) if self.plan.first_model == "drawn" else None)

    def _save(self, name: str, half: Client | Server) -> None:
        save_state(self.folder / name, "chaos", 1, half.numbers(), half.arrays())

    def _saved(self, name: str, half: Any) -> Any:
        """A half as it is in its file; as it was made, if there is none."""
        if (self.folder / name).exists():
            _, numbers, arrays = load_state(self.folder / name, "chaos", 1)
            half.load(arrays, numbers)
        return half

    def round(self) -> None:
        """One round, which may come to nothing."""
        faults, server = self.faults, self.server
        present = [name for name in NAMES if faults.number(4)]
        for name in present:
            server.join(name, 10 + 90 * NAMES.index(name))
        uploads, sent = [], 0
        orders = server.orders(present)
        for name, frame in self.late:
            refused("an upload of the round before", partial(server.read, name, frame))
        self.late = []
        for name, order in orders.items():
            if faults.happens("lost order", 0.1):
                continue
            upload = self._train(name, order)
            if upload is None:
                continue
            sent += len(upload)
            uploads += self._deliver(name, upload, order)
        if faults.happens("killed server", 0.07):
            self.server, self.late = self._saved("server", self._new_server()), []  # its connections are gone, too
            return
        model = None
        if uploads:
            target = server.downlink.target if server.downlink is not None else np.zeros(SIZE)
            model = torch.from_numpy(target) - server.total(uploads)
        server.close(uploads, model)
        try:
            with faults.disk(0.05):
                self._save("server", server)
        except CheckpointError:  # it dies, and whether the round counts is decided by its file
            self.server, self.late = self._saved("server", self._new_server()), []
            if self.server.round < server.round:
                return
        self.earned += sum(server.members[name].examples > 0 for name in present) * (self.plan.bytes or 0)
        self.sent += sent
        for taken in uploads:
            self.delivered[taken.client] = self.delivered.get(taken.client, 0) + taken.sparse.dense().double()

    def _train(self, name: str, order: Order) -> bytes | None:
        """What a client uploads; None if it does not come to that."""
        faults = self.faults
        client: Client = self._saved(name, self._new_client())
        download = self.server.download(name)
        if download.frame and faults.happens("damaged download", 0.05):
            wrong = download._replace(frame=faults.damaged(download.frame))
            try:
                self._received(client, wrong, download)
            except (MalformedPayload, OutOfSync):
                self.server.out_of_sync(name)
                return None
        try:
            model = client.receive(download)
        except OutOfSync:
            self.server.out_of_sync(name)
            return None
        client.settle(order.taken)
        change = self._gradient(name)
        apart = float((client.start(model, order) - model).norm())
        if apart > 1.0001 * client.last:
            raise Broken(f"{name} would train from {apart:g} away of the model, farther than its last change")
        before = client.sent, client.feedback.steps
        upload = client.upload(change, order)
        if faults.happens("client killed before it saved", 0.05):
            return None
        try:
            with faults.disk(0.05):
                self._save(name, client)
        except CheckpointError:
            kept = self._saved(name, self._new_client())
            if (kept.sent, kept.feedback.steps) == before or not (self.folder / name).exists():
                return None
            self._count(name, change)
            return None
        self._count(name, change)
        if faults.happens("client killed after it saved", 0.05):
            return None
        return upload.frame

    @staticmethod
    def _received(client: Client, wrong: Download, right: Download) -> None:
        model = client.receive(wrong)
        if not torch.equal(model, client.receive(right)):
            raise Broken("a damaged download was taken for another model")

    def _count(self, name: str, change: torch.Tensor) -> None:
        self.computed[name] = self.computed.get(name, 0) + change.double()

    def _gradient(self, name: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.faults.number(1 << 40))
        return torch.randn(SIZE, generator=generator).pow(3) + NAMES.index(name)

    def _deliver(self, name: str, frame: bytes, order: Order) -> list[Upload]:
        """What reaches the server of an upload."""
        faults, server = self.faults, self.server
        if faults.happens("lost upload", 0.1):
            return []
        if frame and faults.happens("late upload", 0.07):
            self.late.append((name, frame))
            return []
        if faults.happens("damaged upload", 0.1):
            refused("a damaged upload", lambda: server.read(name, faults.damaged(frame)))
            return []
        norm = 1.0 if order.norm else None
        try:
            upload = server.read(name, frame, norm)
        except OutsideBound:
            return []
        if faults.happens("doubled upload", 0.1):
            refused("a second upload", lambda: server.read(name, frame, norm))
        return [upload]

    def check(self) -> None:
        """Nothing was lost, and the budget was kept."""
        for name, computed in self.computed.items():
            client = self._saved(name, self._new_client())
            client.settle(self.server.members[name].taken)
            has = self.delivered.get(name, torch.zeros(SIZE).double()) + client.feedback.residual.double()
            error = float((has - computed).abs().max() / computed.abs().max())
            if not error < 1e-5:
                raise Broken(f"{name} has lost {error:.2g} of its largest entry")
        if self.plan.bytes is not None and self.sent > self.earned:
            raise Broken(f"{self.sent:g} bytes were sent and {self.earned:g} allowed")
        if not np.isfinite(self.server.model.numpy()).all():
            raise Broken("the model is not finite")


def break_halves(faults: Faults, folder: Path) -> None:
    """Fifteen rounds of five clients, with faults; `Broken` if a promise does not hold."""
    run = Halves(faults, folder)
    for _ in range(ROUNDS):
        run.round()
    run.check()
