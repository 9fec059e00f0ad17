"""An engine of a few lines, in which everything can be lost or restarted."""

import torch
from hypothesis import strategies as st

from dagc import OutOfSync
from dagc.protocol import ModelServer, Replica, Uplink
from tests.helpers.states import copied

SIZE = 400


def gradient(name, t, size=SIZE):
    generator = torch.Generator().manual_seed(1000 * int(name) + t)
    return torch.randn(size, generator=generator).pow(3)


class Client:
    """Both halves of a client.

    Args:
        plan: As the server resolved it.
        shapes: The shapes of the model's tensors.
    """

    def __init__(self, plan, shapes):
        self.uplink, self.replica = Uplink(plan.for_clients(), shapes), Replica(shapes)

    def state_dict(self):
        return {"uplink": self.uplink.state_dict(), "replica": self.replica.state_dict()}

    def load_state_dict(self, state):
        self.uplink.load_state_dict(state["uplink"])
        self.replica.load_state_dict(state["replica"])


class Run:
    """An engine of a few lines: every message can be lost, every half restarted from its state."""

    def __init__(self, plan, rounds=None, size=SIZE):
        self.plan, self.rounds, self.size = plan, rounds, size
        self.server = ModelServer(plan, torch.zeros(size), rounds)
        self.clients, self.computed, self.sent = {}, {}, 0

    def round(self, present, lost=(), unread=()):
        for name in present:
            self.clients.setdefault(name, Client(self.server.plan, [self.size]))
            self.server.join(name, examples=100 + 37 * int(name))
        uploads = []
        for name, order in self.server.orders(present).items():
            client = self.clients[name]
            try:
                client.replica.receive(self.server.download(name))
            except OutOfSync:
                self.server.out_of_sync(name)
                continue
            if name in unread:
                continue
            client.uplink.settle(order.accepted)
            change = gradient(name, self.server.round, self.size)
            self.computed[name] = self.computed.get(name, 0) + change.double()
            frame = client.uplink.upload(change, order).frame
            self.sent += len(frame)
            if name not in lost:
                uploads.append(self.server.read(name, frame))
        self.server.advance(uploads, self.server.model - self.server.total(uploads) if uploads else None)
        return uploads

    def restart_server(self):
        state = copied(self.server)
        self.server = ModelServer(self.plan, torch.zeros(self.size), self.rounds)
        self.server.load_state_dict(state)

    def restart(self, name):
        state = copied(self.clients[name])
        self.clients[name] = Client(self.server.plan, [self.size])
        self.clients[name].load_state_dict(state)


ACTIONS = st.lists(
    st.tuples(
        st.sets(st.sampled_from("01234"), min_size=1),  # present
        st.sets(st.sampled_from("01234")),  # uploads lost
        st.sets(st.sampled_from("01234")),  # orders lost
        st.sets(st.sampled_from("01234s")),  # restarted afterwards
    ),
    min_size=3,
    max_size=12,
)
