"""What a node keeps between rounds: what it sends, the model that it has, and what the app said.

In a run with a name that is one file, written as a whole before an upload is sent: neither a crash nor a lost message
loses anything, since what the server has not accepted goes back into the residual. Without a name it is in Flower's
context, which ends with the run.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context
from numpy.typing import NDArray

from dagc.errors import CheckpointError, DagcError, Damaged, InvalidInput, MalformedPayload
from dagc.files import remove_partial
from dagc.flower.layout import Layout
from dagc.flower.logs import log
from dagc.flower.messages import TRAIN, Instruction, Setup
from dagc.flower.watch import Watch
from dagc.protocol import ClientPlan, Order, Replica, Uplink
from dagc.state import (
    MISFITS,
    Stateful,
    dump_state,
    fields,
    finite,
    listed,
    load_state,
    nested,
    optional,
    parse_state,
    save_state,
    text,
    whole,
)

STATE_VARIABLE = "DAGC_STATE"
KIND, VERSION = "node", 3
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # valid names of runs and nodes
LONGEST_JUMP = 1 << 20  # nobody is away for more rounds of one start of the server: such an order is damaged or forged
STARTS = 100  # so many starts of the server, and uploads, are remembered
KEPT = "dagc-node"  # the name of a node's state in Flower's context


def _delivery(values: Any) -> tuple[int, int]:
    round, entries = values
    return whole(round), whole(entries)


class Node(Stateful):
    """A node's memory of a run."""

    FITS = "a node"
    STATE = fields(
        owner=text, lineage=text, servers=listed(text), answered=whole, examples=finite, whole=list,
        accepted=optional(dict), delivered=listed(_delivery), uplink=nested, replica=nested, watch=nested,
    )  # fmt: skip

    def __init__(self, owner: str, lineage: str, setup: Setup, first_model: torch.Tensor | None = None) -> None:
        self.owner, self.lineage, self.setup, self.layout = owner, lineage, setup, setup.layout
        self.uplink = Uplink(setup.plan, self.layout.shapes)
        self.replica = Replica(self.layout.shapes, first_model)
        self.watch = Watch(self.layout.sizes)
        self.whole: list[NDArray[Any]] = []  # the model's arrays that are never compressed
        self.servers: list[str] = []  # the tokens of the server's starts, the current one last
        self.answered = 0  # the last round that it has answered under that token
        self.examples = -1.0  # how many examples the app trained on last, if that is known yet
        # The last upload that the server has accepted, as in `Uplink.state_dict`, and the rounds and numbers of entries
        # of all of them: the server may fall back to a checkpoint that does not know of it.
        self.accepted: dict[str, Any] | None = None
        self.delivered: list[tuple[int, int]] = []

    def admit(self, instruction: Instruction) -> None:
        """Refuse an instruction of an earlier start of the server, or one to train that has been answered.

        A server that is started again may have fallen back to an older checkpoint, so its rounds may be lower.
        """
        if instruction.server in self.servers[:-1]:
            raise DagcError(f"{self.owner} works for a later start of the server: this is for the one before")
        if self.servers[-1:] != [instruction.server]:
            self.servers = [*self.servers, instruction.server][-STARTS:]
            self.answered = instruction.round - 1
        if instruction.round > self.answered + LONGEST_JUMP:
            raise MalformedPayload(f"{self.owner} has answered round {self.answered}, far before {instruction.round}")
        if instruction.kind == TRAIN and instruction.round <= self.answered:
            raise DagcError(f"{self.owner} has answered round {self.answered}; this is for round {instruction.round}")

    def settle(self, order: Order) -> None:
        """Forget the uploads that the server has accepted; what it does not know of goes back into the residual."""
        uplink, last = self.uplink, self.accepted
        round, pending = uplink.sent_round, uplink.state_dict().get("pending")
        entries = 0 if uplink.pending is None else len(uplink.pending)
        uplink.settle(order.accepted)
        if last is not None and last["sent_round"] > order.accepted:
            uplink.load_state_dict({**uplink.state_dict(), **last})
            uplink.settle(order.accepted)
            self.delivered.pop()
            self.accepted = None
        lost = [number for round, number in self.delivered if round > order.accepted]
        if lost:
            log.warning(
                "dagc: the server has fallen back to round %d: %d uploads of this node with %d entries are lost",
                order.accepted, len(lost), sum(lost),
            )  # fmt: skip
            del self.delivered[-len(lost) :]
        if pending is not None and round <= order.accepted:
            self.accepted = {"sent_round": round, "pending": pending, "counts": False}
            self.delivered = [*self.delivered, (round, entries)][-STARTS:]

    def state_dict(self) -> dict[str, Any]:
        plan, layout, metric = self.setup
        return {"plan": plan.as_dict(), "layout": layout.text, "metric": metric, **super().state_dict()}

    def loaded(self) -> None:
        if len(self.whole) != len(self.layout.whole):
            raise ValueError(f"it has {len(self.whole)} arrays that are sent in full, not {len(self.layout.whole)}")

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Node":
        """The node with this state; `InvalidInput` if it is not that of a node."""
        try:
            setup = Setup(ClientPlan(**state["plan"]), Layout.read(state["layout"]), text(state["metric"]))
        except MISFITS as error:
            raise InvalidInput(f"it does not hold the state of a node: {error!r:.300}") from error
        node = cls("", "", setup)
        node.load_state_dict(state)
        return node


def state_folder() -> Path:
    """Where runs are kept: `DAGC_STATE`, else `dagc` in Flower's own folder."""
    flower = os.environ.get("FLWR_HOME") or "~/.flwr"
    return Path(os.environ.get(STATE_VARIABLE) or Path(flower) / "dagc").expanduser()


def node_name(context: Context) -> str:
    """The node's name: its `dagc-name` or partition in its configuration, or else Flower's number for it."""
    for key, prefix in (("dagc-name", "name"), ("partition-id", "partition")):
        if key in context.node_config:
            return f"{prefix}-{context.node_config[key]}"
    return f"node-{context.node_id}"


def state_path(run: str, context: Context) -> Path:
    chosen = context.node_config.get("dagc-state")
    folder = Path(str(chosen)).expanduser() if chosen else state_folder()
    name = node_name(context)
    for part in (run, name):  # the server chooses the run's name: it must not choose the folder
        if not FILE_NAME.fullmatch(part):
            raise InvalidInput(f"{part!r:.120} cannot be the name of a file: use letters, digits, '-', '_' and '.'")
    return folder / "nodes" / run / f"{name}.safetensors"


def read_node(path: Path) -> Node:
    return Node.restored(load_state(path, KIND, VERSION))


class Place:
    """Where a node keeps a run: in a file if the run has a name, else in Flower's context."""

    def __init__(self, run: str, context: Context) -> None:
        self.context = context
        self.path = state_path(run, context) if run else None
        self._read: tuple[int, ...] | None = None  # tells the file that was read from any other

    def read(self) -> Node | None:
        """What is kept; None if nothing is, or if it is damaged: then the file is set aside, with a warning.

        Raises:
            CheckpointError: The file cannot be read now, is of another version, or belongs to another node. It stays.
        """
        if self.path is None:
            record = self.context.state.array_records.get(KEPT)
            content = None if record is None else parse_state(record[KEPT].data, KIND, VERSION, "the node's state")
            return None if content is None else Node.restored(content)
        self._read = _identity(self.path)
        if self._read is None:
            return None
        remove_partial(self.path.parent, self.path.name)
        try:
            node = read_node(self.path)
        except (Damaged, InvalidInput, MalformedPayload) as error:
            aside = self.path.with_name(f"{self.path.name}.damaged")
            try:
                self.path.replace(aside)
            except OSError as problem:
                raise CheckpointError(f"{self.path} is damaged, and cannot be set aside: {problem}") from error
            log.warning("dagc: %s: %s. What this node had not sent is in %s; it starts empty", self.path, error, aside)
            self._read = None
            return None
        if node.owner != node_name(self.context):
            raise CheckpointError(
                f"{self.path} belongs to {node.owner}, and this node is {node_name(self.context)}: its residual would "
                "count twice. Delete the file here, or give this node that name if the other one is gone"
            )
        return node

    def write(self, node: Node) -> None:
        """Keep this state. Whatever happens, a file holds it or the one before; only its owner can read it."""
        if self.path is None:
            content = dump_state(KIND, VERSION, node.state_dict())
            self.context.state[KEPT] = ArrayRecord({KEPT: Array("uint8", (len(content),), KEPT, content)})
            return
        if _identity(self.path) != self._read:
            raise CheckpointError(f"{self.path} was changed by another process of this node: it counts, not this one")
        save_state(self.path, KIND, VERSION, node.state_dict(), private=True)
        self._read = _identity(self.path)


def _identity(path: Path) -> tuple[int, ...] | None:
    try:
        about = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return about.st_ino, about.st_mtime_ns, about.st_size
