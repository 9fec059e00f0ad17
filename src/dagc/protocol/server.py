"""The server's half of a round: who may send how much, what each must download, which uploads were accepted."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from dagc._memory import pool
from dagc.errors import Diverged, InvalidInput, MalformedPayload
from dagc.policies import Plan
from dagc.protocol.budget import Budget
from dagc.protocol.downlink import Downlink
from dagc.protocol.extras import VISIT_AFTER, Extra, Extras
from dagc.protocol.messages import Download, Order, Upload
from dagc.protocol.receiver import Receiver
from dagc.protocol.roster import Member, Roster
from dagc.sparse import Sparse, aggregate, shares_of
from dagc.state import Stateful, fields, nested, whole
from dagc.wire import VALUE_CODECS
from dagc.wire.shapes import Shapes


class Server(Stateful):
    """Orders, accepts and adds up uploads; for engines whose clients all keep the model themselves.

    A round is `orders` for the clients present, `read` for each upload that comes back, `total`, and `close`. Uploads
    not passed to `close` go back into the clients' residuals. Clients may join at any time, leave without notice and
    come back: everything is kept by name.

    Args:
        plan: What both sides agree on; `Server.plan` is resolved for this size.
        size: The number of entries of the model.
        rounds: How many rounds the training has, for a rate per training; `Server.round` says how many are done.
        shapes: The shapes of the model's tensors, the same as the clients'; one vector if not given.
    """

    FITS = "this plan and model"
    STATE = fields(round=whole, roster=nested, budget=nested, receiver=nested)

    def __init__(self, plan: Plan, size: int, rounds: int | None = None, shapes: Shapes | None = None) -> None:
        self.size = size
        self.plan = plan.for_size(size)
        self.roster = Roster(0 if plan.first_model == "drawn" else -1, plan.most_examples)
        self.budget = Budget(self.plan, size, rounds)
        self.receiver = Receiver(self.plan, size, [size] if shapes is None else shapes)
        self.extras = Extras(plan, size)
        self.round = 0
        self._orders: dict[str, Order] = {}

    def loaded(self) -> None:
        self._orders = {}

    @property
    def members(self) -> dict[str, Member]:
        """Every client that ever joined, by name, in the order in which they joined."""
        return self.roster.members

    def join(self, name: str, examples: float) -> None:
        """Add a client, or update its number of examples. At most `Plan.most_examples` of them count."""
        self.roster.join(name, examples)

    def orders(self, present: Iterable[str], seconds: float = 0.0, clip: float | None = None) -> dict[str, Order]:
        """Start a round: the order for each of these members, in the order of the roster.

        Args:
            present: Names of members. One that holds no data may train, but sends nothing.
            seconds: Time since the start, for a rate per hour.
            clip: A bound on the norm of this round's uploads, in addition to the plan's.
        """
        members = self.roster.present(present)
        holding = [member for member in members if member.examples > 0]
        visitors = {member.name for member in holding if self._is_visit(member)}
        staying = [member.name for member in holding if member.name not in visitors]
        amounts = self.budget.amounts(self.round, staying, self.members, seconds)
        extra = {name: self.extras.upload(self.members[name], amount) for name, amount in amounts.items()}
        extra |= {name: self.extras.visitor_upload(name) for name in visitors}
        memories, policy = self.receiver.memories, self.budget.policy
        counted = {} if memories is None else memories.counted([member.name for member in members])
        clip = float(min((bound for bound in (self.plan.clip, clip) if bound is not None), default=0.0))
        self._orders = {}
        for member in members:
            clocks, frames = counted.get(member.name, (False, 0))
            self._orders[member.name] = Order(
                round=self.round + 1,
                compressor=policy.compressor,
                number=member.number,
                accepted=member.accepted_round,
                norm=policy.wants_norms,
                clip=clip,
                clocks=clocks,
                counted=frames,
                visit=member.name in visitors,
                **extra.get(member.name, Extra())._asdict(),
            )
        self.receiver.begin()
        self.roster.note_present(members, self.round + 1)
        return dict(self._orders)

    def read(self, name: str, frame: bytes | memoryview, norm: float | None = None) -> Upload:
        """Decode and check a member's answer to its order.

        Raises:
            MalformedPayload: It is damaged, from another round, or more than was allowed.
            OutsideBound: It is well formed, but its norm is above the plan's `clip` or `norm_bound`.
        """
        order = self._orders.get(name)
        if order is None:
            raise MalformedPayload(f"{name!r:.120} has no order in round {self.round + 1}, or has already answered it")
        upload = self.receiver.read(name, order, frame, norm)
        del self._orders[name]
        self.budget.refund(name, order, len(frame))
        self._answered(name, order)
        self.receiver.check_norm(upload, order.clip)
        return upload

    def _is_visit(self, member: Member) -> bool:
        """Whether a member comes so rarely that exact copies of the model do not pay; for subclasses."""
        return False

    def _answered(self, name: str, order: Order) -> None:
        """A member has answered its order; for subclasses."""

    def total(self, uploads: Sequence[Upload], device: Any = "cpu") -> torch.Tensor:
        """Σ p_i · upload_i, where p_i is the client's part of their examples.

        Every entry is multiplied and added in float32, client by client in the order of the roster: the same bits on
        any device. What crosses to a device is what the frames hold.
        """
        ordered = sorted(uploads, key=lambda upload: self.members[upload.client].number)
        weights = [self.members[upload.client].examples for upload in ordered]
        out = pool.vector(self.size, device)
        updates = [upload.update for upload in ordered]
        entries = [update for update in updates if isinstance(update, Sparse)]
        if out.is_cpu and len(entries) == len(updates):
            return aggregate(entries, weights, out=out)
        out.zero_()
        for update, share in zip(updates, shares_of(updates, weights), strict=True):
            update.add_to(out, float(share))
        return out

    def close(self, uploads: Sequence[Upload]) -> None:
        """End the round: these uploads were accepted."""
        self.round += 1
        for upload in uploads:
            if upload.frame:  # an empty one may have been cut off: what its client sent must go back
                self.members[upload.client].accepted_round = self.round
        self.budget.report(uploads)
        self.receiver.close(uploads, list(self.members))
        self._orders = {}


class ModelServer(Server):
    """A server that also keeps the model, and brings every client up to date: `dagc.protocol` shows a whole round.

    Whether whoever moves the `model` does so with `momentum` matters: broadcasts then carry enough for it, unless the
    plan has a budget; with one, a warning says when they do not.
    """

    STATE = fields(**Server.STATE, downlink=nested)

    def __init__(
        self,
        plan: Plan,
        model: torch.Tensor,
        rounds: int | None = None,
        shapes: Shapes | None = None,
        momentum: bool = False,
    ) -> None:
        super().__init__(plan, len(model), rounds, shapes)
        bits = self.plan.first_bits if self.plan.first_model == "sent" else None  # a model that clients draw is exact
        values = self.plan.values if VALUE_CODECS[self.plan.values].index_bytes else "fp32"  # a baseline's own
        ways = values, bits if isinstance(bits, int) else None
        self.downlink = Downlink(self.plan.downward(), model.detach().cpu().numpy(), shapes, rounds, *ways)
        self._seconds = 0.0
        self._visited = False  # whether all clients of this round visit: none of them downloads broadcasts
        self.extras = Extras(plan, self.size, momentum)

    def orders(self, present: Iterable[str], seconds: float = 0.0, clip: float | None = None) -> dict[str, Order]:
        self._seconds = seconds
        orders = super().orders(present, seconds, clip)
        self._visited = bool(orders) and all(order.visit for order in orders.values())
        return orders

    @property
    def model(self) -> torch.Tensor:
        """The model that the clients have and train on, and that should be evaluated and served. Not a copy."""
        return torch.from_numpy(self.downlink.model)

    @property
    def target(self) -> torch.Tensor:
        """The server's own model, which the clients' follows. Not a copy."""
        return torch.from_numpy(self.downlink.target)

    def download(self, name: str) -> Download:
        """What brings a member up to date."""
        order = self._orders.get(name)
        if order is not None and order.visit:
            return self.downlink.visit()
        download = self.downlink.since(self.members[name].model_version)
        self.downlink.note_download(download)
        return download

    def introduction(self, version: int | None = None) -> Download:
        """What brings a client up to date that has not joined yet: one with this version; if None, a newcomer."""
        if version is None:
            return self.downlink.since(self.roster.newcomer)
        return self.downlink.since(version, remembers=self.plan.frames != "coded")

    def arrived(self, name: str, download: Download | None = None) -> None:
        """Note that a member has the newest model, by its `introduction` if it has just joined."""
        self.members[name].model_version = self.downlink.version
        if download is not None:
            self.downlink.note_download(download)

    def _is_visit(self, member: Member) -> bool:
        away = self.round + 1 - member.last_round if member.last_round else 0
        if not self.extras.allowed or max(self.roster.gap, min(away, member.last_gap)) <= VISIT_AFTER:
            return False
        downlink = self.downlink
        return self.roster.gap > VISIT_AFTER or (
            len(downlink.visit().frame) < len(downlink.since(member.model_version).frame)
        )

    def _answered(self, name: str, order: Order) -> None:
        if order.visit:
            self.out_of_sync(name)
        else:
            self.arrived(name)

    def out_of_sync(self, name: str) -> None:
        """Note that a member's model is not the expected one: it is sent the full model next time."""
        self.members[name].model_version = -1

    def advance(self, uploads: Sequence[Upload], model: torch.Tensor | None = None) -> None:
        """End the round: these uploads were accepted and led to this model; None if nothing has changed.

        With a budget for the downlink, clients do not have all of it yet: `ModelServer.model` is what they have.
        """
        vector = None if model is None else model.detach().cpu().numpy()
        if vector is not None and (vector.shape != (self.size,) or vector.dtype != np.float32):
            raise InvalidInput(f"the model must be {self.size} float32 numbers, not {vector.dtype} {vector.shape}")
        if vector is not None and not np.isfinite(vector).all():
            raise Diverged(f"the model has NaN or infinity after round {self.round + 1}: lower the learning rate")
        self.close(uploads)
        if self._visited:
            self.downlink.jump(vector)
        else:
            extras = self.extras.broadcast(self.downlink.version)
            share = self.plan.down_share(1 / self.roster.broadcast_gap)
            self.downlink.advance(vector, self.round, share, self._seconds, extras)
        self.extras.warn_if_starved(self.downlink.carried)
