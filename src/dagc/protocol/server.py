"""The server's half of a round: who may send how much, what each must download, which uploads were accepted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from numbers import Real
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dagc._memory import pool
from dagc.draws import scramble
from dagc.errors import Diverged, InvalidInput, MalformedPayload, OutsideBound, unknown
from dagc.policies import Plan, Report, Situation
from dagc.policies.rate import finite
from dagc.protocol.downlink import Downlink
from dagc.protocol.member import Member, make_member, make_report, whole
from dagc.protocol.memories import Memories
from dagc.protocol.messages import Download, Order, Upload
from dagc.sparse import Sparse, aggregate
from dagc.wire import VALUE_CODECS, decode, is_coded, payload_size, read_header
from dagc.wire.coder import Shapes

__all__ = ["Server"]

SMOOTHING = 0.5
"""The weight of one round in the running number of rounds between visits."""
RECENT = 100
"""How many recent norms `Plan.norm_bound` takes the median of."""
LARGEST = 2.0**100
"""No value of an honest upload is larger, and sums of smaller ones do not overflow."""


class Server:
    """The server's side of Algorithm 1. An engine carries the bytes, stores the state and has the optimiser.

    A round is `orders` for the clients present, `download` for each of them, `read` for each upload that comes back,
    `total` (or anything else that makes a new model of them), and `close`. Uploads not passed to `close` go back into
    the clients' residuals. Clients may join at any time, leave without notice and come back: everything is kept by
    name.

    Args:
        plan: What both sides agree on.
        model: The initial model, as a float32 vector; or its number of entries, if there is no downlink.
        rounds: How many rounds the training has, for a rate per training.
        shapes: The shapes of the model's tensors, the same as the clients'; one vector if not given.

    Attributes:
        round: How many rounds are done.
        members: Every client that ever joined, by name, in the order in which they joined.
        memories: What the server remembers of coded uploads; None if frames are not coded.

    Example:
        >>> from dagc.protocol import Client
        >>> server = Server(Plan(method="dagc-r", ratio=0.5), torch.zeros(4))
        >>> clients = {"a": Client([4]), "b": Client([4])}
        >>> server.join("a", examples=300)
        >>> server.join("b", examples=100)
        >>> uploads = []
        >>> for name, order in server.orders(clients).items():
        ...     model = clients[name].receive(server.download(name))
        ...     upload = clients[name].upload(torch.arange(4.0), order)
        ...     uploads.append(server.read(name, upload.frame))
        >>> server.total(uploads)
        tensor([0., 0., 2., 3.])
        >>> server.close(uploads, model - server.total(uploads))
        >>> server.round, server.members["a"].taken
        (1, 1)
    """

    def __init__(
        self, plan: Plan, model: torch.Tensor | int, rounds: int | None = None, shapes: Shapes | None = None
    ) -> None:
        """Start at round 0 without members. A plan that cannot work for this model is refused here."""
        self.size = model if isinstance(model, int) else len(model)
        self.plan = plan.for_size(self.size)
        self.policy = self.plan.policy(self.size)
        self.account = self.plan.account(rounds)
        self.downlink: Downlink | None = None
        if not isinstance(model, int):
            self.downlink = Downlink(self.plan.downward(), _array(model), shapes, rounds, self.plan.indices)
        self.memories: Memories | None = None
        if self.plan.frames == "coded":
            self.memories = Memories([self.size] if shapes is None else shapes)
        self.round = 0
        self.members: dict[str, Member] = {}
        self.reports: list[Report] = []
        self._orders: dict[str, Order] = {}
        self._norms: list[float] = []  # of recent uploads, including those that were too large
        self._read: dict[str, float] = {}  # the norms of this round's uploads
        self._seconds = 0.0
        self._gap = 1.0

    def join(self, name: str, examples: float) -> None:
        """Add a client, or update its number of examples. At most `Plan.most_examples` of them count."""
        if not isinstance(examples, Real) or not 0 <= examples < 1 << 53:
            raise InvalidInput(
                f"client {name!r:.120} claims {examples!r:.50} examples: it must be a number from 0 to 2^53"
            )
        counted = float(examples)
        if self.plan.most_examples is not None:
            counted = min(counted, float(self.plan.most_examples))
        known = self.members.get(name)
        if known is None:
            self.members[name] = Member(name, len(self.members), counted, self._newcomer)
        else:
            known.examples = counted

    def orders(self, present: Iterable[str], seconds: float = 0.0, clip: float | None = None) -> dict[str, Order]:
        """Start a round: the order for each of these members, in the order of the roster.

        Args:
            present: Names of members. One that holds no data may train, but sends nothing.
            seconds: Time since the start, for a rate per hour.
            clip: A bound on the norm of this round's uploads, in addition to the plan's.
        """
        names = list(present)
        for name in names:
            if name not in self.members:
                raise unknown("member", name, self.members)
        here = sorted((self.members[name] for name in names), key=lambda member: member.number)
        self._seconds = seconds
        decided = self._decide([member.name for member in here if member.examples > 0], seconds)
        plan, self._orders, self._read = self.plan, {}, {}
        counted = {} if self.memories is None else self.memories.counted([member.name for member in here])
        bounds = [bound for bound in (plan.clip, clip) if bound is not None]
        for member in here:
            self._orders[member.name] = Order(
                self.round + 1,
                decided.get(member.name, 0),
                self.policy.compressor,
                plan.values,
                plan.frames,
                plan.per_tensor,
                self.policy.wants_norms,
                scramble(plan.seed, member.number),
                member.taken,
                plan.step_ahead,
                *counted.get(member.name, (False, 0)),
                float(min(bounds, default=0.0)),
            )
        self._visit(here)
        if self.account is not None:
            self.account.spend(sum(map(self._most, self._orders.values())))
        return dict(self._orders)

    def _decide(self, holding: list[str], seconds: float) -> dict[str, Any]:
        """The parameters of the members that hold data."""
        if not holding:
            return {}
        allowance = None
        if self.account is not None:
            self.account.earn(len(holding), seconds)
            allowance = self.account.balance
        examples = {name: member.examples for name, member in self.members.items()}
        now = Situation(self.round, holding, examples, self.reports, allowance)
        return dict(zip(holding, self.policy.decide(now), strict=True))

    def download(self, name: str | None, full: bool = False) -> Download:
        """What brings a member up to date.

        Args:
            name: The member; None for a client that has not joined yet, and may never. If it does, pass the result of
                this call to `arrived`.
            full: Whether it needs the full model.
        """
        assert self.downlink is not None, "this server was made without a model"
        if name is None:
            return self.downlink.since(-1 if full else self._newcomer)
        download = self.downlink.since(-1 if full else self.members[name].has)
        self.downlink.follows(download)
        return download

    @property
    def _newcomer(self) -> int:
        """The version a client has when it joins."""
        return 0 if self.plan.first_model == "drawn" else -1

    @property
    def model(self) -> torch.Tensor:
        """The model that the clients have and train on, and that should be evaluated and served. Not a copy."""
        assert self.downlink is not None, "this server was made without a model"
        return torch.from_numpy(self.downlink.model)

    def arrived(self, name: str, download: Download | None = None) -> None:
        """Note that a member has the newest model.

        Args:
            name: The member.
            download: The download it got before it joined, if there was one.
        """
        self.members[name].has = 0 if self.downlink is None else self.downlink.version
        if self.downlink is not None and download is not None:
            self.downlink.follows(download)

    def out_of_sync(self, name: str) -> None:
        """Note that a member's model is not the expected one: it is sent the full model next time."""
        self.members[name].has = -1

    def read(self, name: str, frame: bytes | memoryview, norm: float | None = None) -> Upload:
        """Decode and check a member's answer to its order.

        Raises:
            MalformedPayload: If it is damaged, from another round, or more than was allowed.
            OutsideBound: If it is well formed but its norm is above the plan's `clip` or `norm_bound`.
        """
        order = self._orders.get(name)
        if order is None:
            raise MalformedPayload(f"{name!r:.120} has no order in round {self.round + 1}, or has already answered it")
        if norm is not None and not 0 <= norm <= LARGEST * self.size:
            raise MalformedPayload(f"the norm of its gradient is {norm}")
        sparse = self._sparse(name, order, frame)
        largest = float(np.abs(sparse.values).max(initial=0.0))
        if largest > LARGEST:
            raise MalformedPayload(
                f"{name!r:.120} sends {largest:g}, and the model would overflow: lower the learning rate"
            )
        del self._orders[name]
        if self.account is not None:
            self.account.spend(len(frame) - self._most(order))
        self.arrived(name)
        self._bound(name, sparse, order.clip)
        return Upload(name, sparse, bytes(frame), norm)

    def _bound(self, name: str, sparse: Sparse, clip: float) -> None:
        """Refuse an upload that is larger than allowed, or far larger than most.

        Refused norms count as recent ones, too. So the median follows a change that all clients go through, and a
        minority cannot move it beyond what the others send.
        """
        if (self.plan.norm_bound is None and not clip) or not len(sparse):
            return
        own = float(np.linalg.norm(sparse.values.astype(np.float64)))
        if clip and own > clip:
            raise OutsideBound(f"its upload has norm {own:.6g}, more than clip = {clip:g}")
        if self.plan.norm_bound is None:
            return
        self._read[name] = own
        usual = float(np.median(self._norms)) if self._norms else 0.0
        if usual and own > self.plan.norm_bound * usual:
            raise OutsideBound(
                f"its upload has norm {own:.3g}, more than norm_bound = {self.plan.norm_bound:g} times the usual "
                f"{usual:.3g}"
            )

    def total(self, uploads: Sequence[Upload]) -> torch.Tensor:
        """Σ p_i · upload_i, always added up in the order of the roster."""
        ordered = sorted(uploads, key=lambda upload: self.members[upload.client].number)
        weights = [self.members[upload.client].examples for upload in ordered]
        out = torch.from_numpy(pool.take(self.size, np.dtype(np.float32)))
        return aggregate([upload.sparse for upload in ordered], weights, out=out)

    def close(self, uploads: Sequence[Upload], model: torch.Tensor | None = None) -> None:
        """End the round: these uploads were accepted and led to this model; None if nothing has changed.

        With a budget for the downlink, clients do not have all of it yet: `Server.model` is what they have.
        """
        made = None if model is None else _array(model)
        if made is not None and not np.isfinite(made).all():
            raise Diverged(f"the model has NaN or infinity after round {self.round + 1}: lower the learning rate")
        self.round += 1
        for upload in uploads:
            self.members[upload.client].taken = self.round
        if self.memories is not None:
            self.memories.close(uploads)
        self.reports = [Report(up.client, up.norm, len(up.sparse), len(up.frame)) for up in uploads]
        if self.downlink is not None:
            self.downlink.advance(made, self.round, self.plan.down_share(1 / self._gap), self._seconds)
        self._norms += [self._read[name] for name in self.members if name in self._read]
        del self._norms[:-RECENT]
        self._orders, self._read = {}, {}

    def _visit(self, here: list[Member]) -> None:
        """Update the typical number of rounds between two visits of a client. Medians, so few newcomers matter little.

        A client that is here for the first time counts as away for all rounds so far.
        """
        if here:
            self._gap += SMOOTHING * (median(self.round + 1 - member.seen for member in here) - self._gap)
        for member in here:
            member.seen = self.round + 1

    def _most(self, order: Order) -> int:
        """The most bytes that an answer to this order can take; 0 if there is no limit."""
        if not order.most:
            return 0
        return _largest_frame(self.size, order.most, order.values, order.frames)

    def _check_length(self, order: Order, frame: bytes | memoryview) -> None:
        if order.most is not None and len(frame) > self._most(order):
            raise MalformedPayload(
                f"it sends {len(frame)} bytes for {order.most} entries, which take at most {self._most(order)}"
            )

    def _coded(self, memories: Memories, name: str, order: Order, frame: bytes | memoryview) -> Sparse:
        if frame[0] & 15 != VALUE_CODECS[order.values].id:
            raise MalformedPayload(f"its values use codec {frame[0] & 15}, not {order.values}")
        try:
            return decode(frame, size=self.size, round=order.stamp, memory=memories.of(name, order), most=order.most)
        except MalformedPayload:
            memories.could_not_read(name)
            raise

    def _sparse(self, name: str, order: Order, frame: bytes | memoryview) -> Sparse:
        if order.silent:
            if len(frame):
                raise MalformedPayload(f"it sends {len(frame)} bytes, but was ordered to send nothing")
            return Sparse(self.size, [], [])
        if self.memories is not None:
            self.memories.of(name, order)  # a frame counts even if it was smaller without the coder
        if is_coded(frame):
            self._check_length(order, frame)
            if self.memories is None:
                raise MalformedPayload(f"its frame is coded, but {order.frames} frames were ordered")
            return self._coded(self.memories, name, order, frame)
        header = read_header(frame, size=self.size, round=order.stamp)
        if header.round != order.stamp:
            raise MalformedPayload(f"its upload is from round {header.round}, not {order.stamp}")
        if header.value_codec != order.values:
            raise MalformedPayload(f"its values are {header.value_codec}, not {order.values}")
        if order.most is not None and header.entries > order.most:
            raise MalformedPayload(f"it sends {header.entries} entries, but may send {order.most}")
        self._check_length(order, frame)
        return decode(frame, size=self.size, round=order.stamp)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the state."""
        found = {} if self.downlink is None else self.downlink.arrays()
        return found if self.memories is None else {**found, **self.memories.arrays(self._numbers())}

    def _numbers(self) -> dict[str, int]:
        return {name: member.number for name, member in self.members.items()}

    def numbers(self) -> dict[str, Any]:
        """The rest of the state, ready for JSON."""
        return {
            "round": self.round,
            "members": [asdict(member) for member in self.members.values()],
            "reports": [list(report) for report in self.reports],
            "policy": self.policy.state_dict(),
            "account": None if self.account is None else self.account.state_dict(),
            "gap": self._gap,
            "norms": list(self._norms),
            "downlink": None if self.downlink is None else self.downlink.numbers(),
            "coders": {} if self.memories is None else self.memories.state(),
        }

    def load(self, arrays: Mapping[str, NDArray[Any]], numbers: Mapping[str, Any]) -> None:
        """Continue from `arrays` and `numbers`."""
        try:
            self.round = whole(numbers["round"])
            self.members = {member["name"]: make_member(**member) for member in numbers["members"]}
            self.reports = [make_report(*report) for report in numbers["reports"]]
            self.policy.load_state_dict(numbers["policy"])
            self._gap = finite(numbers["gap"])
            if self._gap <= 0:
                raise ValueError(f"the rounds between visits are {self._gap}")
            self._norms = [finite(norm) for norm in numbers.get("norms", [])]
            self._orders, self._read = {}, {}
            if self.memories is not None:
                self.memories.load(arrays, numbers.get("coders", {}), self._numbers())  # older states have none
            if self.account is not None:
                self.account.load_state_dict(numbers["account"])
            if self.downlink is not None:
                self.downlink.load(arrays, numbers["downlink"])
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError) as error:
            raise InvalidInput(f"the state does not fit this plan or model: {error!r}") from error


@lru_cache(maxsize=1024)
def _largest_frame(size: int, entries: int, values: str, frames: str) -> int:
    return int(payload_size(size, entries, values, frames=frames)[0])


def _array(model: torch.Tensor) -> NDArray[np.float32]:
    return model.detach().cpu().numpy()
