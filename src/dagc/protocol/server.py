"""The server's half of a round: who may send how much, what each must download, what came of the uploads."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
from dagc.protocol.messages import Download, Order, Upload
from dagc.sparse import Sparse, aggregate
from dagc.state import below
from dagc.wire import VALUE_CODECS, Memory, decode, is_coded, payload_size, read_header
from dagc.wire.coder import Shapes

__all__ = ["Member", "Server"]

SMOOTHING = 0.5
"""The weight of one round in the number of rounds between visits."""
CLOCKS = 1 << 26
"""Bytes that the clocks of all members' memories may take; whoever joins after that has a memory without."""
MEMORIES = 1 << 28
"""Bytes that these memories may take without their clocks; those of members who were away for longest are dropped."""
RECENT = 100
"""Norms of uploads that `Plan.norm_bound` looks back at."""
LARGEST = 2.0**100
"""No value of an honest upload is larger, and no sum of smaller ones overflows."""


@dataclass
class Member:
    """A client, as the server knows it.

    Attributes:
        name: The same after a restart.
        number: Its place in the roster: uploads are always added up in this order.
        examples: How much data it holds.
        has: The version of the model that it has; -1 if it is not known to have any.
        taken: The round of its last upload that was taken; 0 if none was.
        seen: The round in which it last took part; 0 if it never did.
    """

    name: str
    number: int
    examples: float
    has: int = -1
    taken: int = 0
    seen: int = 0


class Server:
    """The server's side of Algorithm 1. It knows no transport, no files and no optimiser.

    A round is `orders` for whoever is present, `download` for each of them, `read` for each upload that comes back,
    `total` (or whatever else makes a new model of them), and `close`. What `close` is not given goes back into the
    clients' residuals. Clients join at any time, leave without a word and come back: everything is kept by name.

    Args:
        plan: What both sides agree on.
        model: The first model, as a float32 vector; or the number of its entries, where there is no downlink.
        rounds: How many rounds the training has, for a rate per training.
        shapes: Of the model's tensors, the same as the clients'; if not given, it is one vector.

    Attributes:
        round: How many rounds are done.
        members: Everybody who was ever there, in the order in which they came, by name.

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
        """Begin at round 0 with nobody; what cannot work is refused here."""
        self.size = model if isinstance(model, int) else len(model)
        self.plan = plan.for_size(self.size)
        self.policy = self.plan.policy(self.size)
        self.account = self.plan.account(rounds)
        self.downlink: Downlink | None = None
        if not isinstance(model, int):
            self.downlink = Downlink(self.plan.downward(), _array(model), shapes, rounds, self.plan.indices)
        self._shapes = [self.size] if shapes is None else shapes
        self._memories: dict[str, Memory] = {}  # whoever was here last comes last
        self._room = 0  # for how many
        if self.plan.frames == "coded":
            self._room = max(1, MEMORIES // Memory(self._shapes, clocks=False).nbytes)
        self._strange: set[str] = set()  # whose coded frames could not be read in this round
        self.round = 0
        self.members: dict[str, Member] = {}
        self.reports: list[Report] = []
        self._orders: dict[str, Order] = {}
        self._norms: list[float] = []  # of recent uploads, those that were too large included
        self._read: dict[str, float] = {}  # the norms of this round's
        self._seconds = 0.0
        self._gap = 1.0

    def join(self, name: str, examples: float) -> None:
        """A client is there, or holds another number of examples than before; at most `Plan.most_examples` count."""
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
        """What each of these members is to do in the round that begins now, in the order of the roster.

        Args:
            present: Names of members. One that holds no data may train, and sends nothing.
            seconds: Since the start, for a rate per hour.
            clip: A bound on the norm of uploads of this round, beside the plan's.
        """
        names = list(present)
        for name in names:
            if name not in self.members:
                raise unknown("member", name, self.members)
        here = sorted((self.members[name] for name in names), key=lambda member: member.number)
        self._seconds = seconds
        decided = self._decide([member.name for member in here if member.examples > 0], seconds)
        plan, self._orders, self._read = self.plan, {}, {}
        remembered = self._remembered([member.name for member in here])
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
                *remembered[member.name],
                float(min(bounds, default=0.0)),
            )
        self._visit(here)
        if self.account is not None:
            self.account.spend(sum(map(self._most, self._orders.values())))
        return dict(self._orders)

    def _remembered(self, names: list[str]) -> dict[str, tuple[bool, int]]:
        """Whether each member's memory has clocks, and how many frames it has counted."""
        if self.plan.frames != "coded":
            return dict.fromkeys(names, (False, 0))
        found, clocks = {}, CLOCKS // (4 * self.size) - len(self._memories)
        for name in names:
            memory = self._memories.pop(name, None)
            if memory is None:  # it is made when the first frame is here
                found[name], clocks = (clocks > 0, 0), clocks - 1
            else:
                self._memories[name] = memory
                found[name] = memory.clocks, memory.frames
        return found

    def _decide(self, holding: list[str], seconds: float) -> dict[str, Any]:
        """The parameters of those who hold data."""
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
            name: Whom; None stands for somebody who is not known yet, and may never be. If it is later, `arrived` needs
                what this returned.
            full: Whether it needs the whole model.
        """
        assert self.downlink is not None, "this server was made without a model"
        if name is None:
            return self.downlink.since(-1 if full else self._newcomer)
        download = self.downlink.since(-1 if full else self.members[name].has)
        self.downlink.follows(download)
        return download

    @property
    def _newcomer(self) -> int:
        """The version that a client has when it comes."""
        return 0 if self.plan.first_model == "drawn" else -1

    @property
    def model(self) -> torch.Tensor:
        """What the clients have and train on; it is also what to evaluate and to serve. Not a copy."""
        assert self.downlink is not None, "this server was made without a model"
        return torch.from_numpy(self.downlink.model)

    def arrived(self, name: str, download: Download | None = None) -> None:
        """A member has the newest model.

        Args:
            name: Who.
            download: What brought it there, if it was not known by its name then.
        """
        self.members[name].has = 0 if self.downlink is None else self.downlink.version
        if self.downlink is not None and download is not None:
            self.downlink.follows(download)

    def out_of_sync(self, name: str) -> None:
        """A member does not have the model that was thought: it is sent the full one next time."""
        self.members[name].has = -1

    def read(self, name: str, frame: bytes | memoryview, norm: float | None = None) -> Upload:
        """What a member has sent in answer to its order, checked.

        Raises:
            MalformedPayload: If it is damaged, of another round, or more than was allowed.
            OutsideBound: If it is well formed and its norm is above the plan's `clip` or `norm_bound`.
        """
        order = self._orders.get(name)
        if order is None:
            raise MalformedPayload(f"{name!r:.120} has no order in round {self.round + 1}, or has answered it")
        if norm is not None and not 0 <= norm <= LARGEST * self.size:
            raise MalformedPayload(f"the norm of its gradient is {norm}")
        sparse = self._sparse(name, order, frame)
        largest = float(np.abs(sparse.values).max(initial=0.0))
        if largest > LARGEST:
            raise MalformedPayload(f"its largest value is {largest:g}, which would make the model overflow")
        del self._orders[name]
        if self.account is not None:
            self.account.spend(len(frame) - self._most(order))
        self.arrived(name)
        self._bound(name, sparse, order.clip)
        return Upload(name, sparse, bytes(frame), norm)

    def _bound(self, name: str, sparse: Sparse, clip: float) -> None:
        """Refuse what is larger than was allowed, or far larger than most uploads are.

        What is refused counts among the recent ones, too: so a change that all clients go through is followed, and a
        minority cannot move the median beyond what the others send.
        """
        if (self.plan.norm_bound is None and not clip) or not len(sparse):
            return
        own = float(np.linalg.norm(sparse.values.astype(np.float64)))
        if clip and own > clip:
            raise OutsideBound(f"its upload has the norm {own:.6g}, more than clip = {clip:g}")
        if self.plan.norm_bound is None:
            return
        self._read[name] = own
        usual = float(np.median(self._norms)) if self._norms else 0.0
        if usual and own > self.plan.norm_bound * usual:
            raise OutsideBound(
                f"its upload has the norm {own:.3g}, more than norm_bound = {self.plan.norm_bound:g} times the usual "
                f"{usual:.3g}"
            )

    def total(self, uploads: Sequence[Upload]) -> torch.Tensor:
        """Σ p_i · upload_i, always added up in the order of the roster."""
        ordered = sorted(uploads, key=lambda upload: self.members[upload.client].number)
        weights = [self.members[upload.client].examples for upload in ordered]
        out = torch.from_numpy(pool.take(self.size, np.dtype(np.float32)))
        return aggregate([upload.sparse for upload in ordered], weights, out=out)

    def close(self, uploads: Sequence[Upload], model: torch.Tensor | None = None) -> None:
        """The round is over: these uploads were taken and made this model; None if nothing has changed.

        With a budget for the downlink, the clients do not have all of it yet: `Server.model` is what they have.
        """
        made = None if model is None else _array(model)
        if made is not None and not np.isfinite(made).all():
            raise Diverged(f"the model of round {self.round + 1} holds NaN or infinity: lower the learning rate")
        self.round += 1
        for upload in uploads:
            self.members[upload.client].taken = self.round
            if upload.frame and upload.client in self._memories:
                self._memories[upload.client].learn(upload.sparse)
        for name in self._strange.difference(upload.client for upload in uploads):
            self._memories.pop(name, None)
        self._strange = set()
        self.reports = [Report(up.client, up.norm, len(up.sparse), len(up.frame)) for up in uploads]
        if self.downlink is not None:
            self.downlink.advance(made, self.round, 1 / self._gap, self._seconds)
        self._norms += [self._read[name] for name in self.members if name in self._read]
        del self._norms[:-RECENT]
        self._orders, self._read = {}, {}

    def _visit(self, here: list[Member]) -> None:
        """Keep the usual number of rounds between two visits of a client: a median, so a few newcomers change little.

        Whoever is here for the first time has not been here for all rounds so far.
        """
        if here:
            self._gap += SMOOTHING * (median(self.round + 1 - member.seen for member in here) - self._gap)
        for member in here:
            member.seen = self.round + 1

    def _most(self, order: Order) -> int:
        """The most bytes that an answer to this order can take; 0 if it has no limit."""
        if not order.most:
            return 0
        return _largest_frame(self.size, order.most, order.values, order.frames)

    def _check_length(self, order: Order, frame: bytes | memoryview) -> None:
        if order.most is not None and len(frame) > self._most(order):
            raise MalformedPayload(
                f"it sends {len(frame)} bytes for {order.most} entries, which take {self._most(order)}"
            )

    def _coded(self, name: str, order: Order, frame: bytes | memoryview) -> Sparse:
        """The same of a coded frame. If it does not fit what is remembered, both sides forget that after the round."""
        if order.frames != "coded":
            raise MalformedPayload(f"its frame is coded, and {order.frames} ones were asked for")
        if frame[0] & 15 != VALUE_CODECS[order.values].id:
            raise MalformedPayload(f"its values are by codec {frame[0] & 15}, not {order.values}")
        try:
            return decode(frame, size=self.size, round=order.stamp, memory=self._memory(name, order), most=order.most)
        except MalformedPayload:
            self._strange.add(name)
            raise

    def _memory(self, name: str, order: Order) -> Memory:
        """What is remembered of a member; if nothing is, an empty memory, which is kept if there is room.

        There is if somebody is remembered who is not here. Else whoever is here would drive each other out, and the
        frames that they send would be refused.
        """
        if name in self._memories:
            return self._memories[name]
        while len(self._memories) >= self._room:
            longest = next(iter(self._memories))
            if self.members[longest].seen > self.round:
                return Memory(self._shapes, order.clocks, order.values == "sign")
            del self._memories[longest]
        return self._memories.setdefault(name, Memory(self._shapes, order.clocks, order.values == "sign"))

    def _sparse(self, name: str, order: Order, frame: bytes | memoryview) -> Sparse:
        if order.silent:
            if len(frame):
                raise MalformedPayload(f"it sends {len(frame)} bytes and was to send nothing")
            return Sparse(self.size, [], [])
        if order.frames == "coded":
            self._memory(name, order)  # a frame counts even if it was smaller without the coder
        if is_coded(frame):
            self._check_length(order, frame)
            return self._coded(name, order, frame)
        header = read_header(frame, size=self.size, round=order.stamp)
        if header.round != order.stamp:
            raise MalformedPayload(f"its upload is of round {header.round}, not {order.stamp}")
        if header.value_codec != order.values:
            raise MalformedPayload(f"its values are {header.value_codec}, not {order.values}")
        if order.most is not None and header.entries > order.most:
            raise MalformedPayload(f"it sends {header.entries} entries and may send {order.most}")
        self._check_length(order, frame)
        return decode(frame, size=self.size, round=order.stamp)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays of the state."""
        found = {} if self.downlink is None else self.downlink.arrays()
        for name, memory in self._memories.items():
            prefix = f"coder.{self.members[name].number}."
            found |= {prefix + key: array for key, array in memory.arrays().items()}
        return found

    def numbers(self) -> dict[str, Any]:
        """The rest of the state, as JSON can hold it."""
        return {
            "round": self.round,
            "members": [asdict(member) for member in self.members.values()],
            "reports": [list(report) for report in self.reports],
            "policy": self.policy.state_dict(),
            "account": None if self.account is None else self.account.state_dict(),
            "gap": self._gap,
            "norms": list(self._norms),
            "downlink": None if self.downlink is None else self.downlink.numbers(),
            "coders": {name: memory.numbers() for name, memory in self._memories.items()},
        }

    def load(self, arrays: Mapping[str, NDArray[Any]], numbers: Mapping[str, Any]) -> None:
        """Continue from `arrays` and `numbers`."""
        try:
            self.round = _whole(numbers["round"])
            self.members = {member["name"]: _member(**member) for member in numbers["members"]}
            self.reports = [_report(*report) for report in numbers["reports"]]
            self.policy.load_state_dict(numbers["policy"])
            self._gap = finite(numbers["gap"])
            if self._gap <= 0:
                raise ValueError(f"the rounds between visits are {self._gap}")
            self._norms = [finite(norm) for norm in numbers.get("norms", [])]
            self._orders, self._read, self._strange = {}, {}, set()
            self._memories = {
                name: Memory.restored(self._shapes, below(arrays, f"coder.{self.members[name].number}."), own)
                for name, own in numbers.get("coders", {}).items()  # as in states from before there were any
            }
            if self.account is not None:
                self.account.load_state_dict(numbers["account"])
            if self.downlink is not None:
                self.downlink.load(arrays, numbers["downlink"])
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, OverflowError) as error:
            raise InvalidInput(f"the state does not fit this plan or model: {error!r}") from error


def _member(name: str, number: int, examples: float, has: int = -1, taken: int = 0, seen: int = 0) -> Member:
    """A member, if these are the fields of one."""
    if not isinstance(name, str):
        raise TypeError(f"a member is called {name!r:.50}")
    return Member(name, _whole(number), finite(examples), _whole(has, -1), _whole(taken), _whole(seen))


def _report(client: str, norm: float | None, entries: int, bytes: int) -> Report:
    """A report, if these are the fields of one."""
    if not isinstance(client, str):
        raise TypeError(f"a report is of {client!r:.50}")
    return Report(client, None if norm is None else finite(norm), _whole(entries), _whole(bytes))


def _whole(number: Any, least: int = 0) -> int:
    if type(number) is not int or number < least:
        raise ValueError(f"{number!r:.50} is no whole number from {least} up")
    return number


@lru_cache(maxsize=1024)
def _largest_frame(size: int, entries: int, values: str, frames: str) -> int:
    return int(payload_size(size, entries, values, frames=frames)[0])


def _array(model: torch.Tensor) -> NDArray[np.float32]:
    return model.detach().cpu().numpy()
