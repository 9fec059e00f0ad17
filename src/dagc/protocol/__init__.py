"""The round, written once: a client's half and a server's half, independent of transport, files and threads.

    server                                                       client i
    orders: who may send how much ──────── order ─────────────►  settle: was the last upload accepted?
    download: what is new in the model ─── frame ─────────────►  receive: the model is up to date
                                                                 training, done elsewhere: a change of the model
    read: decode and check  ◄───────────── frame ──────────────  upload: + residual, select, encode, keep the rest
    total: Σ p_i · upload_i, then an optimizer, done elsewhere
    advance: these uploads were accepted, this is the new model

A client is an `Uplink`, what it sends, and a `Replica`, what it has. A `Server` is a roster, a budget and a receiver; a
`ModelServer` has a downlink as well. An engine (`dagc.training`, `dagc.flower`, `dagc.ddp`) carries the bytes and keeps
the state of both halves. Here is a small one:

    >>> import torch
    >>> plan = Plan(method="dagc-r", bytes=40, values="sign", overhead=0.25)
    >>> server = ModelServer(plan, model=torch.zeros(1000))
    >>> uplinks = {name: Uplink(server.plan.for_clients(), [1000]) for name in ("ann", "bob", "cleo")}
    >>> replicas = {name: Replica([1000]) for name in uplinks}
    >>> for name, examples in (("ann", 900), ("bob", 500), ("cleo", 20)):
    ...     server.join(name, examples)
    >>> for _ in range(5):
    ...     uploads = []
    ...     for name, order in server.orders(uplinks).items():
    ...         uplinks[name].settle(order.accepted)
    ...         model = replicas[name].receive(server.download(name))
    ...         gradient = model - torch.linspace(-1, 1, 1000)
    ...         upload = uplinks[name].upload(gradient, order)
    ...         uploads.append(server.read(name, upload.frame))
    ...     server.advance(uploads, model - 0.5 * server.total(uploads))
    >>> server.round, [member.accepted_round for member in server.members.values()]
    (5, [5, 5, 5])
"""

from dagc.policies import ClientPlan, Plan
from dagc.protocol.downlink import Downlink
from dagc.protocol.messages import Download, Order, Upload
from dagc.protocol.replica import Replica
from dagc.protocol.roster import Member, Roster
from dagc.protocol.server import ModelServer, Server
from dagc.protocol.uplink import Uplink

__all__ = [
    "ClientPlan",
    "Downlink",
    "Download",
    "Member",
    "ModelServer",
    "Order",
    "Plan",
    "Replica",
    "Roster",
    "Server",
    "Uplink",
    "Upload",
]
