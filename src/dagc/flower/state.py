"""What a node keeps between rounds, in one file: the model it has, its residual, and its last upload until it is taken.

The file is written before an upload is sent, so that neither a crash nor a lost message loses anything: what the server
has not taken is given back to the residual.
"""

import json
import os
import re
import sys
import zlib
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context

from dagc.compressors import COMPRESSORS
from dagc.data.folder import write_atomically
from dagc.errors import InvalidInput
from dagc.feedback import ErrorFeedback
from dagc.flower.layout import Layout, Model, checksum
from dagc.flower.messages import Order
from dagc.wire import VALUE_CODECS, decode

__all__ = ["NodeState", "node_name", "read", "state_folder", "state_path", "write"]

STATE_VARIABLE = "DAGC_STATE"
MAGIC = b"dagc"
NUMBERS = ("lineage", "round", "steps", "sent", "message", "examples")
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What runs and nodes may be called."""
log = getLogger("flwr.dagc")


@dataclass
class NodeState:
    """A node's memory of a run.

    Attributes:
        lineage: Which start of the run it belongs to.
        layout: Of the model.
        model: What the node has,
        round: and the round it is of; -1 before the first.
        residual: What was not sent yet.
        steps: How often something was selected, for compressors that draw.
        sent: The round of the last upload; 0 if there is none.
        upload: The frame that was sent then; empty once the server has taken it.
        message: Flower's name of the message that was answered so.
        examples: How many examples the app trained on last; -1 if that is not known yet.
    """

    lineage: str
    layout: Layout
    model: Model
    round: int
    residual: torch.Tensor
    steps: int = 0
    sent: int = 0
    upload: bytes = b""
    message: str = ""
    examples: float = -1.0

    @classmethod
    def new(cls, order: Order, layout: Layout) -> "NodeState":
        """Of a node that has nothing yet."""
        return cls(order.lineage, layout, Model(torch.zeros(layout.size), []), -1, torch.zeros(layout.size))

    def take(self, model: Model, round: int) -> None:
        """Have this model."""
        self.model, self.round = model, round

    def settle(self, taken: int) -> None:
        """Forget the last upload if the server has taken it, else give it back to the residual; -1: not known yet."""
        if taken < 0:
            return
        if self.upload and self.sent != taken:
            sparse = decode(self.upload, size=self.layout.size)
            self.residual[torch.from_numpy(sparse.indices)] += torch.from_numpy(sparse.values)
        self.upload = b""

    def feedback(self, order: Order) -> ErrorFeedback:
        """Error feedback that goes on from here."""
        if order.compressor not in COMPRESSORS or order.values not in VALUE_CODECS:
            raise InvalidInput(
                f"the server asks for {order.compressor!r} and {order.values!r}, which are not known here: "
                "install the same version of dagc, with the same additions, on server and nodes"
            )
        compressor, seed = COMPRESSORS[order.compressor], int(order.seed, 16)
        feedback = ErrorFeedback(compressor, self.layout.size, values=order.values, seed=seed)
        feedback.residual, feedback.steps = self.residual, self.steps
        return feedback


def state_folder() -> Path:
    """Where runs are kept: `DAGC_STATE`, else `dagc` in the user's folder for such things."""
    chosen = os.environ.get(STATE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "dagc"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dagc"


def node_name(context: Context) -> str:
    """Who this node is: its `dagc-name` or partition in the node's configuration, else Flower's number for it."""
    for key, prefix in (("dagc-name", "name"), ("partition-id", "partition")):
        if key in context.node_config:
            return f"{prefix}-{context.node_config[key]}"
    return f"node-{context.node_id}"


def state_path(run: str, context: Context) -> Path:
    """The node's file for a run; without a name of the run, it is for this `flwr run` alone."""
    chosen = context.node_config.get("dagc-state")
    folder = Path(str(chosen)).expanduser() if chosen else state_folder()
    name, run = node_name(context), run or f"run-{context.run_id}"
    for part in (run, name):  # the server names the run: it must not choose the folder
        if not FILE_NAME.fullmatch(part):
            raise InvalidInput(f"{part!r:.120} cannot be the name of a file: use letters, digits, '-', '_' and '.'")
    return folder / "nodes" / run / f"{name}.state"


def write(path: Path, state: NodeState) -> None:
    """Write the file; it is there as a whole or as it was before.

    A head, padded so that the numbers after it are aligned; the model's vector, the residual, the upload, the arrays
    that go whole, and a checksum of all but the vector, for which the server sends one.
    """
    told = {name: getattr(state, name) for name in NUMBERS}
    text = json.dumps({**told, "layout": state.layout.text, "upload": len(state.upload)}).encode()
    head = MAGIC + len(text).to_bytes(4, "little") + text.ljust(-(-(len(text) + 8) // 64) * 64 - 8)
    residual, rest = state.residual.numpy(), state.upload + state.layout.pack(b"", state.model.whole)
    with write_atomically(path) as file:
        for part in (head, state.model.vector.numpy().data, residual.data, rest):
            file.write(part)
        file.write(zlib.crc32(head + rest, checksum(residual)).to_bytes(4, "little"))


def read(path: Path) -> NodeState | None:
    """What is in the file; None if there is none, or, with a warning, if it is damaged."""
    try:
        with path.open("rb") as file:
            told = bytearray(os.fstat(file.fileno()).st_size)
            file.readinto(told)
    except FileNotFoundError:
        return None
    try:
        view = memoryview(told)
        if view[:4] != MAGIC:
            raise ValueError("it does not begin as it should")
        length = int.from_bytes(view[4:8], "little")
        numbers = json.loads(bytes(view[8 : 8 + length]))
        layout = Layout.read(numbers["layout"])
        at = -(-(length + 8) // 64) * 64
        vector, residual = (
            np.frombuffer(view, np.float32, layout.size, at + skipped) for skipped in (0, 4 * layout.size)
        )
        head, at = bytes(view[:at]), at + 8 * layout.size
        if zlib.crc32(head + view[at:-4], checksum(residual)) != int.from_bytes(view[-4:], "little"):
            raise ValueError("its checksum does not match")
        upload = bytes(view[at : at + numbers["upload"]])
        whole = layout.unpack(view[at + numbers["upload"] : -4])[1]
        known = {name: numbers[name] for name in NUMBERS}
        model = Model(torch.from_numpy(vector), whole)
        return NodeState(layout=layout, model=model, residual=torch.from_numpy(residual), upload=upload, **known)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("dagc: %s is damaged (%s): what this node had not sent yet is lost; starting anew", path, error)
        return None
