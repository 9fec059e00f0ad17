"""Coded frames in a federation where everything goes wrong: memories agree or start again, and no value is lost."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dagc import InvalidInput, MalformedPayload, OutOfSync
from dagc.policies import Plan
from dagc.protocol import Client, Server
from dagc.protocol import memories as memories_module
from dagc.wire import Memory, is_coded
from tests.protocol.test_protocol import copied
from tests.wire.test_coder import state

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
        self.server = Server(self.plan, torch.zeros(SIZE), shapes=SHAPES)
        self.clients = {name: Client(SHAPES) for name in NAMES}
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

    def round(self, faults=(), server_fault=None):
        """One round. `faults` says what goes wrong, by client."""
        faults = dict(faults)
        if server_fault is not None:
            self._server(server_fault)
        for name, fault in faults.items():
            if fault in ("old backup", "forgotten"):
                self._replace(name, self.backups[name][len(self.backups[name]) // 2] if fault == "old backup" else None)
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
        self.server.close(uploads, model)
        for upload in uploads:
            self.delivered[upload.client] += upload.sparse.dense().double().numpy()
            self.counted[upload.client] += bool(upload.frame)
        for name, client in self.clients.items():
            if faults.get(name) == "restarted":
                self.clients[name] = Client(SHAPES)
                self.clients[name].load(*copied(client))
            self.backups[name].append(copied(client))
            self._check_books(name)
        self.server_backups.append((copied(self.server), copy.deepcopy(self.delivered)))

    def _exchange(self, name, order, fault, late):
        """What the server has read of a client; None if nothing arrives or it must not be closed."""
        if fault == "order lost":
            return None
        client, server = self.clients[name], self.server
        self._download(name, fault)
        assert np.array_equal(client.model.numpy(), server.model.numpy())
        client.settle(order.taken)
        self._settled(name, order)
        change = gradient([int(name), server.round, len(self.log)])
        self.computed[name] += change
        frame = client.upload(torch.from_numpy(change.astype(np.float32)), order).frame
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
        assert upload.sparse == client.pending, "what was read is what was sent"
        self.suspect[name] &= not is_coded(frame)
        self.coded[name] += is_coded(frame)
        self.log.append((name, "coded" if is_coded(frame) else "read"))
        return upload

    def _download(self, name, fault):
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
        before = client.model
        for attempt in attempts:
            try:
                client.receive(attempt)
            except (OutOfSync, MalformedPayload):
                assert client.model is before, "a download that fails changes nothing"
                server.out_of_sync(name)
                client.receive(server.download(name))
                self.log.append((name, "full model"))
            before = client.model

    def _settled(self, name, order):
        """Both have counted the same frames, or the client starts again, or the next frame is refused."""
        client = self.clients[name]
        if name in self.gone and self.gone[name] is None:  # the state of another time: the books start here
            self.computed[name] = self.delivered[name] + client.feedback.residual.double().numpy()
            self.gone[name] = np.zeros(SIZE)
        memory, other = client.memory, self.server.memories.by_name.get(name)
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

    def _replace(self, name, backup):
        self.clients[name] = Client(SHAPES)
        if backup is not None:
            self.clients[name].load(*copy.deepcopy(backup))
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
        self.server = Server(self.plan, torch.zeros(SIZE), shapes=SHAPES)
        self.server.load(*copy.deepcopy(saved))
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
        if client.pending is None or (client.sent <= self.server.members[name].taken) is not taken:
            return np.zeros(SIZE)
        return client.pending.dense().double().numpy()

    def _check_books(self, name):
        if self.gone[name] is None:
            return
        kept = self.clients[name].feedback.residual.double().numpy() + self._pending(name, taken=False)
        found = self.delivered[name] + self.gone[name] + kept
        assert np.allclose(found, self.computed[name], rtol=0, atol=1e-3), np.abs(found - self.computed[name]).max()

    def outcomes(self, name, since):
        """What became of a client's uploads from a place in the log on."""
        return [what for who, what in self.log[since:] if who == name]


@pytest.mark.parametrize("plan", PLANS)
@given(
    rounds=st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(NAMES), st.sampled_from(CLIENT_FAULTS), max_size=3),
            st.sampled_from([None] * 6 + SERVER_FAULTS),
        ),
        min_size=3,
        max_size=16,
    )
)
@settings(max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking would take minutes
def test_memories_agree_or_start_again_and_nothing_is_lost_whatever_goes_wrong(plan, rounds):
    """The network checks itself in every step."""
    network = Network(plan)
    for faults, server_fault in rounds:
        network.round(faults, server_fault)
    network.round()  # settles what is pending, and may still be refused
    network.round()
    network.round()
    since = len(network.log)
    network.round()
    for name in NAMES:
        assert "refused" not in network.outcomes(name, since)
        memory, other = network.clients[name].memory, network.server.memories.by_name.get(name)
        network.clients[name].settle(network.server.members[name].taken)
        if memory is not None and other is not None and memory.frames == other.frames:
            assert state(memory) == state(other)


def warm(plan="same"):
    """A network in which coded frames are in use, and everybody remembers some."""
    network = Network(plan)
    for _ in range(6):
        network.round()
    assert min(network.coded.values()) >= 3
    return network


def undisturbed(outcomes):
    """No frame was refused, and some were coded; where another frame is smaller, that is sent."""
    return "coded" in outcomes and set(outcomes) <= {"coded", "read"}


def after(fault, plan="same", rounds=4):
    """The uploads of client 0 from a fault on, the other clients being undisturbed; and the network."""
    network = warm(plan)
    since = len(network.log)
    network.round({"0": fault})
    for _ in range(rounds):
        network.round()
    for name in "12":
        assert undisturbed(network.outcomes(name, since))
    return network.outcomes("0", since), network


def agree(network, name="0"):
    client, other = network.clients[name], network.server.memories.by_name[name]
    client.settle(network.server.members[name].taken)
    return client.memory.frames > 0 and state(client.memory) == state(other)


@pytest.mark.parametrize("plan", ["lossless", "same", "exact"])
@pytest.mark.parametrize(
    "fault",
    [
        "absent",
        "order lost",
        "upload lost",
        "not closed",
        "duplicated",
        "restarted",
        "download repeated",
    ],
)
def test_memories_stay_the_same(plan, fault):
    """Nobody has counted the frame, or both have: no frame is refused, nothing starts again."""
    outcomes, network = after(fault, plan)
    assert undisturbed(outcomes)
    assert agree(network)
    assert network.server.memories.by_name["0"].frames == network.counted["0"]


def test_a_damaged_frame_costs_the_memory_and_nothing_else():
    outcomes, network = after("damaged")
    assert undisturbed(outcomes)
    assert agree(network)
    assert network.server.memories.by_name["0"].frames == outcomes.count("coded")


def test_a_late_frame_costs_nothing_if_the_right_one_arrives():
    outcomes, network = after("late")
    assert undisturbed(outcomes)
    assert agree(network)
    assert network.server.memories.by_name["0"].frames == network.counted["0"]


def test_a_client_that_forgot_everything_starts_again():
    outcomes, network = after("forgotten")
    assert "refused" not in outcomes
    assert agree(network)
    assert network.server.memories.by_name["0"].frames == outcomes.count("coded") <= 5


def test_a_client_with_an_old_backup_starts_again():
    """It has counted fewer frames than the server, and sees that in its order."""
    outcomes, network = after("old backup")
    assert "refused" not in outcomes
    assert agree(network)
    assert network.server.memories.by_name["0"].frames == outcomes.count("coded") <= 5


def test_a_backup_with_as_many_frames_but_others_is_refused_once():
    """Its pending upload was lost, but a later one was taken: it counts the one in place of the other."""
    network = warm()
    network.round({"0": "upload lost"})
    backup = copied(network.clients["0"])
    network.round()
    network._replace("0", backup)
    since = len(network.log)
    for _ in range(4):
        network.round()
    outcomes = network.outcomes("0", since)
    assert outcomes[:2] == ["full model", "refused"]
    assert undisturbed(outcomes[2:])
    assert agree(network)


def test_a_server_with_an_older_state_starts_again_with_every_client():
    network = warm()
    since = len(network.log)
    network.round({}, "older state")
    for _ in range(4):
        network.round()
    for name in NAMES:
        outcomes = network.outcomes(name, since)
        assert outcomes.count("refused") <= 1
        assert outcomes.count("full model") == 1
        assert undisturbed(outcomes[2:])
        assert agree(network, name)


def test_a_server_that_restarts_between_rounds_changes_nothing():
    network, undisturbed = warm(), warm()
    for _ in range(4):
        network.round({}, "restarted")
        undisturbed.round()
    assert network.log == undisturbed.log
    for name in NAMES:
        assert state(network.server.memories.by_name[name]) == state(undisturbed.server.memories.by_name[name])


@pytest.mark.parametrize("fault", ["download damaged", "download out of order"])
def test_a_client_that_is_out_of_sync_gets_the_full_model(fault):
    outcomes, network = after(fault)
    assert outcomes[0] == "full model"
    assert outcomes.count("full model") == 1
    assert agree(network)
    memory = network.server.downlink._memory
    for name in NAMES:
        network._download(name, None)
        assert state(network.clients[name].heard) == state(memory)


def test_a_client_that_joins_late_hears_what_the_others_hear():
    network = Network("same")
    for _ in range(5):
        network.round({"2": "absent"})
    for _ in range(3):
        network.round()
    for name in NAMES:
        network._download(name, None)
        assert state(network.clients[name].heard) == state(network.server.downlink._memory)
    assert agree(network, "2")


def test_a_download_for_somebody_who_is_not_known_costs_the_others_nothing():
    alone, watched = Network("same"), Network("same")
    for _ in range(8):
        alone.round()
        onlooker = Client(SHAPES)
        for full in (True, False):
            assert torch.equal(onlooker.receive(watched.server.download(None, full)), watched.server.model)
        watched.round()
    assert alone.server.downlink._memory.frames > 3
    assert alone.downloads == watched.downloads


def test_who_was_not_known_when_it_downloaded_hears_what_the_others_hear():
    network = Network("same")
    for _ in range(5):
        network.round({"2": "absent"})
    download = network.server.download(None)
    network.clients["2"].receive(download)
    network.server.arrived("2", download)
    since = len(network.log)
    for _ in range(3):
        network.round()
    assert "full model" not in network.outcomes("2", since)
    for name in NAMES:
        network._download(name, None)
        assert state(network.clients[name].heard) == state(network.server.downlink._memory)


def test_a_client_that_was_away_for_long_still_agrees():
    network = warm()
    for _ in range(5):
        network.round({"0": "absent"})
    since = len(network.log)
    for _ in range(3):
        network.round()
    assert undisturbed(network.outcomes("0", since))
    assert agree(network)


def test_a_state_with_a_coded_upload_but_without_its_memory_is_refused():
    network = warm()
    arrays, numbers = copied(network.clients["0"])
    assert numbers["counts"]
    del numbers["memory"]
    client = Client(SHAPES)
    with pytest.raises(InvalidInput, match="the memory is missing"):
        client.load(arrays, numbers)
    assert client.sent == 0


def visit(server, name, client=None):
    """One client trains in a round of its own."""
    if client is None:
        client = Client(SHAPES)
        server.out_of_sync(name)
    ((_, order),) = server.orders([name]).items()
    client.settle(order.taken)
    client.receive(server.download(name))
    change = gradient([server.round, len(name)]).astype(np.float32)
    upload = server.read(name, client.upload(torch.from_numpy(change), order).frame)
    server.close([upload], server.model - server.total([upload]))
    return order


def crowd(monkeypatch, memories, clients=0):
    """A server with room for that many memories, and clients that it knows."""
    with_clocks, without = (Memory(SHAPES, clocks=clocks) for clocks in (True, False))
    monkeypatch.setattr(memories_module, "MEMORIES", memories * without.nbytes)
    monkeypatch.setattr(memories_module, "CLOCKS", 2 * 4 * SIZE)
    assert with_clocks.nbytes == without.nbytes + 4 * SIZE
    server = Server(Plan(method="dagc-r", frames="coded", **PLANS["lossless"]), torch.zeros(SIZE), shapes=SHAPES)
    for number in range(clients):
        server.join(str(number), 100)
    return server


def test_clients_that_were_seen_once_do_not_fill_the_servers_memory(monkeypatch):
    server, clients = crowd(monkeypatch, memories=5, clients=40), {}
    regular = "39"
    clients[regular] = Client(SHAPES)
    for number in range(39):
        visit(server, str(number))
        assert visit(server, regular, clients[regular]).counted == number, "who comes often is not forgotten"
        assert len(server.memories.by_name) <= 5
    assert list(server.memories.by_name) == ["35", "36", "37", "38", regular], "those away for longest are gone"
    again = Server(server.plan, torch.zeros(SIZE), shapes=SHAPES)
    again.load(*copied(server))
    for one in (server, again):
        visit(one, "0")
        visit(one, "36")
        assert list(one.memories.by_name) == ["37", "38", regular, "0", "36"], "a restart changes nothing"


def test_a_client_that_was_forgotten_starts_again_and_nothing_is_lost(monkeypatch):
    server = crowd(monkeypatch, memories=2, clients=4)
    client, before = Client(SHAPES), server.model.double()
    for _ in range(4):
        assert not visit(server, "0", client).silent
    for name in "123":
        visit(server, name)
    assert "0" not in server.memories.by_name
    assert client.memory.frames
    assert visit(server, "0", client).counted == 0
    assert visit(server, "0", client).counted == 1
    assert client.pending is not None
    client.settle(server.members["0"].taken)
    assert state(client.memory) == state(server.memories.by_name["0"])
    assert server.model.double().sub(before).abs().sum() > 0


def test_with_more_clients_in_every_round_than_memories_some_have_one_and_no_upload_is_refused(monkeypatch):
    server = crowd(monkeypatch, memories=3, clients=8)
    clients = {name: Client(SHAPES) for name in server.members}
    for t in range(6):
        orders, uploads = server.orders(clients), []
        assert sum(order.clocks for order in orders.values()) == 2, "also in the first round"
        for name, order in orders.items():
            clients[name].settle(order.taken)
            clients[name].receive(server.download(name))
            change = gradient([t, int(name)]).astype(np.float32)
            uploads.append(server.read(name, clients[name].upload(torch.from_numpy(change), order).frame))
            assert uploads[-1].sparse == clients[name].pending
        server.close(uploads, server.model - server.total(uploads))
        assert list(server.memories.by_name) == ["0", "1", "2"]
        assert [order.counted for order in orders.values()] == [t, t, t, 0, 0, 0, 0, 0]


def test_100_000_clients_seen_once_cost_no_more_than_the_bound():
    """What they send is rubbish, so that reading it takes no time: a memory is made for it all the same."""
    shapes = [(10, 784), 10]
    server = Server(Plan(method="dagc-r", bytes=20, values="sign", frames="coded"), torch.zeros(7850), shapes=shapes)
    for number in range(100_000):
        server.join(str(number), 1)
    for name in server.orders(server.members):
        with pytest.raises(MalformedPayload):
            server.read(name, b"?")
    most = memories_module.CLOCKS + memories_module.MEMORIES
    assert most / 2 < sum(memory.nbytes for memory in server.memories.by_name.values()) <= most < 400e6
    assert 100_000 * Memory(shapes).nbytes > 3e9, "what all of them would take"
