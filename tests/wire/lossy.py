"""A server, clients with coded frames, and what can go wrong between them, with the books."""

import copy

import numpy as np
import pytest
import torch

from dagc import MalformedPayload, OutOfSync
from dagc.policies import Plan
from dagc.protocol import ModelServer
from dagc.wire import is_coded
from tests.helpers.states import copied
from tests.protocol.runs import Client
from tests.wire.histories import state

SHAPES = [(10, 30), 10]
SIZE = 310
NAMES = "012"
PLANS = {
    "lossless": {"bytes": 30, "values": "sign"},
    "same": {"bytes": 30, "values": "sign", "down": "same"},
    "waiting": {"bytes": 30, "values": "sign", "down": "same", "overhead": 0.25},
    "exact": {"ratio": 0.04, "values": "int8", "down": 40},
}
CLIENT_FAULTS = [
    "absent",
    "order lost",
    "upload lost",
    "not closed",
    "late",
    "duplicated",
    "damaged",
    "restarted",
    "old backup",
    "forgotten",
    "download damaged",
    "download repeated",
    "download out of order",
]
SERVER_FAULTS = ["restarted", "older state"]


def gradient(seed):
    """Integers, the same rows large in all of them and of one sign: what coded frames are for."""
    noise = np.random.default_rng(seed).standard_normal(SIZE)
    return np.rint(4 * noise + np.where(np.arange(SIZE) // 30 % 5 == 1, 25.0, 0.0))


class Network:
    """A server, some clients, what can go wrong between them, and the books.

    A client's gradients are integers, so that the books show every entry that is lost.
    """

    def __init__(self, plan):
        self.plan = Plan(method="dagc-r", frames="coded", **PLANS[plan])
        self.server = ModelServer(self.plan, torch.zeros(SIZE), shapes=SHAPES)
        self.clients = {name: self._new() for name in NAMES}
        self.computed, self.delivered, self.gone = ({name: np.zeros(SIZE) for name in NAMES} for _ in range(3))
        self.backups = {name: [copied(self.clients[name])] for name in NAMES}
        self.server_backups = []
        self.downloads = {}
        self.late = {}
        self.suspect = dict.fromkeys(NAMES, False)  # whether the next coded frame may be refused
        self.log = []  # (name, what became of its upload)
        self.coded, self.counted = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0)
        for name in NAMES:
            self.server.join(name, 100)

    def _new(self):
        """A client without a state."""
        return Client(self.server.plan, SHAPES)

    def round(self, faults=(), server_fault=None):
        """One round. `faults` says what goes wrong, by client."""
        faults = dict(faults)
        if server_fault is not None:
            self._server(server_fault)
        for name, fault in faults.items():
            if fault in ("old backup", "forgotten"):
                self.replace(name, self.backups[name][len(self.backups[name]) // 2] if fault == "old backup" else None)
        for name, frame in self.late.items():  # nobody is expected to send yet
            with pytest.raises(MalformedPayload, match="has no order"):
                self.server.read(name, frame)
        present = [name for name in NAMES if faults.get(name) != "absent"]
        uploads, late, self.late = [], self.late, {}
        for name, order in self.server.orders(present).items():
            upload = self._exchange(name, order, faults.get(name), late.get(name))
            if upload is not None:
                uploads.append(upload)
        model = None
        if uploads:
            model = torch.from_numpy(self.server.downlink.target.copy()) - self.server.total(uploads)
        self.server.advance(uploads, model)
        for upload in uploads:
            self.delivered[upload.client] += upload.update.dense().double().numpy()
            self.counted[upload.client] += bool(upload.frame)
        for name, client in self.clients.items():
            if faults.get(name) == "restarted":
                self.clients[name] = self._new()
                self.clients[name].load_state_dict(copied(client))
            self.backups[name].append(copied(client))
            self._check_books(name)
        self.server_backups.append((copied(self.server), copy.deepcopy(self.delivered)))

    def _exchange(self, name, order, fault, late):
        """What the server has read of a client; None if nothing arrives or it must not be closed."""
        if fault == "order lost":
            return None
        client, server = self.clients[name], self.server
        self.download(name, fault)
        assert np.array_equal(client.replica.model.numpy(), server.model.numpy())
        client.uplink.settle(order.accepted)
        self._settled(name, order)
        change = gradient([int(name), server.round, len(self.log)])
        self.computed[name] += change
        frame = client.uplink.upload(torch.from_numpy(change.astype(np.float32)), order).frame
        if late is not None:
            with pytest.raises(MalformedPayload):
                server.read(name, late)
        if fault == "upload lost":
            return None
        if fault == "late":
            self.late[name] = frame
            return None
        if fault == "damaged":
            if frame:
                damaged = bytearray(frame)
                damaged[len(frame) // 2] ^= 0x10
                with pytest.raises(MalformedPayload):
                    server.read(name, bytes(damaged))
            return None
        if fault == "duplicated":
            upload = self._read(name, frame)
            with pytest.raises(MalformedPayload):
                server.read(name, frame)
            return upload
        upload = self._read(name, frame)
        return None if fault == "not closed" else upload

    def _read(self, name, frame):
        """An honest frame is refused only if there was a reason to expect it, and then not again."""
        client = self.clients[name]
        try:
            upload = self.server.read(name, frame)
        except MalformedPayload:
            assert is_coded(frame)
            assert self.suspect[name], "refused without a reason"
            self.suspect[name] = False
            self.log.append((name, "refused"))
            return None
        assert upload.update == client.uplink.pending, "what was read is what was sent"
        self.suspect[name] &= not is_coded(frame)
        self.coded[name] += is_coded(frame)
        self.log.append((name, "coded" if is_coded(frame) else "read"))
        return upload

    def download(self, name, fault):
        client, server = self.clients[name], self.server
        download = server.download(name)
        attempts = [download]
        if fault == "download damaged" and download.frame:
            damaged = bytearray(download.frame)
            damaged[len(damaged) // 2] ^= 0x04
            attempts = [download._replace(frame=bytes(damaged))]
        if fault == "download repeated":
            attempts = [download, download]
        earlier = self.downloads.setdefault(name, [])
        if fault == "download out of order" and earlier:
            attempts = [earlier[len(earlier) // 2], download]
        earlier.append(download)
        before = client.replica.model
        for attempt in attempts:
            try:
                client.replica.receive(attempt)
            except (OutOfSync, MalformedPayload):
                assert client.replica.model is before, "a download that fails changes nothing"
                server.out_of_sync(name)
                client.replica.receive(server.download(name))
                self.log.append((name, "full model"))
            before = client.replica.model

    def _settled(self, name, order):
        """Both have counted the same frames, or the client starts again, or the next frame is refused."""
        client = self.clients[name]
        if name in self.gone and self.gone[name] is None:  # the state of another time: the books start here
            self.computed[name] = self.delivered[name] + client.uplink.feedback.residual.double().numpy()
            self.gone[name] = np.zeros(SIZE)
        memory, other = client.uplink.memory, self.server.receiver.memories.by_name.get(name)
        if (
            memory is None
            or other is None
            or (memory.clocks, memory.signs, memory.frames) != (other.clocks, other.signs, order.counted)
        ):
            self.suspect[name] = False  # it sends one that needs no memory
        elif memory.fingerprint == other.fingerprint:
            assert state(memory) == state(other)
        else:
            assert self.suspect[name], "memories differ without a reason"

    def replace(self, name, backup):
        self.clients[name] = self._new()
        if backup is not None:
            self.clients[name].load_state_dict(copy.deepcopy(backup))
        self.gone[name] = None
        self.suspect[name] = True

    def _server(self, fault):
        before = {name: self._pending(name, taken=False) for name in NAMES}
        if fault == "older state" and self.server_backups:
            place = len(self.server_backups) // 2
            saved, delivered = self.server_backups[place]
            del self.server_backups[place + 1 :]
        else:
            saved, delivered = copied(self.server), self.delivered
        self.server = ModelServer(self.plan, torch.zeros(SIZE), shapes=SHAPES)
        self.server.load_state_dict(copy.deepcopy(saved))
        for name in NAMES:  # what clients know to be taken is lost with the server; what is pending comes again
            if self.gone[name] is not None:
                again = self._pending(name, taken=False) - before[name]
                self.gone[name] += self.delivered[name] - delivered[name] - again
            if fault == "older state":
                self.suspect[name] = True
        self.delivered = copy.deepcopy(delivered)
        self.late = {}  # connections do not outlive a server

    def _pending(self, name, taken):
        """The pending upload, if the server has taken it, or if it has not."""
        client = self.clients[name]
        if (
            client.uplink.pending is None
            or (client.uplink.sent_round <= self.server.members[name].accepted_round) is not taken
        ):
            return np.zeros(SIZE)
        return client.uplink.pending.dense().double().numpy()

    def _check_books(self, name):
        if self.gone[name] is None:
            return
        kept = self.clients[name].uplink.feedback.residual.double().numpy() + self._pending(name, taken=False)
        found = self.delivered[name] + self.gone[name] + kept
        assert np.allclose(found, self.computed[name], rtol=0, atol=1e-3), np.abs(found - self.computed[name]).max()

    def outcomes(self, name, since):
        """What became of a client's uploads from a place in the log on."""
        return [what for who, what in self.log[since:] if who == name]
