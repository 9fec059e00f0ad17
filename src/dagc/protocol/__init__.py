"""The round, written once: a client's half and a server's half, independent of transport, files and threads.

    server                                                       client i
    orders: who may send how much ──────── order ─────────────►  settle: was the last upload accepted?
    download: what is new in the model ─── frame ─────────────►  receive: the model is up to date
                                                                 training, done elsewhere: a change of the model
    read: decode and check  ◄───────────── frame ──────────────  upload: + residual, select, encode, keep the rest
    total: Σ p_i · upload_i, then an optimiser, done elsewhere
    close: these uploads were accepted, this is the new model

An engine (`dagc.training`, `dagc.flower`, `dagc.ddp`) carries the bytes and keeps the state of both halves. Here is a
small one:

    >>> import torch
    >>> plan = Plan(method="dagc-r", bytes=40, values="sign", frames="compact", overhead=0.25)
    >>> server = Server(plan, model=torch.zeros(1000))
    >>> clients = {name: Client([1000]) for name in ("ann", "bob", "cleo")}
    >>> for name, examples in (("ann", 900), ("bob", 500), ("cleo", 20)):
    ...     server.join(name, examples)
    >>> for _ in range(5):
    ...     uploads = []
    ...     for name, order in server.orders(clients).items():
    ...         client = clients[name]
    ...         client.settle(order.taken)
    ...         model = client.receive(server.download(name))
    ...         gradient = model - torch.linspace(-1, 1, 1000)
    ...         frame = client.upload(gradient, order).frame
    ...         uploads.append(server.read(name, frame))
    ...     server.close(uploads, model - 0.5 * server.total(uploads))
    >>> server.round, [member.taken for member in server.members.values()]
    (5, [5, 5, 5])
"""

from dagc.policies.plan import Plan, Settings
from dagc.protocol.client import Client
from dagc.protocol.downlink import Downlink
from dagc.protocol.member import Member
from dagc.protocol.messages import Download, Order, Upload
from dagc.protocol.server import Server

__all__ = ["Client", "Downlink", "Download", "Member", "Order", "Plan", "Server", "Settings", "Upload"]
