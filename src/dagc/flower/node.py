"""What a node keeps between rounds, in one file: the client's half of the protocol, and the app's arrays beside it.

The file is written before an upload is sent, so that neither a crash nor a lost message loses anything: what the server
has not taken goes back into the residual.
"""

import os
import re
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.supercore.utils import get_flwr_home
from numpy.typing import NDArray

from dagc.errors import CheckpointError, InvalidInput, MalformedPayload
from dagc.flower.layout import AppModel, Layout
from dagc.protocol import Client
from dagc.state import NewerVersion, load_state, save_state

__all__ = ["Node", "node_name", "read", "state_folder", "state_path", "write"]

STATE_VARIABLE = "DAGC_STATE"
VERSION = 1
NUMBERS = ("lineage", "message", "examples")
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What runs and nodes may be called."""
log = getLogger("flwr.dagc")


@dataclass
class Node:
    """A node's memory of a run.

    Attributes:
        lineage: Which start of the run it belongs to.
        layout: Of the model.
        client: The client's half of the protocol.
        whole: The model's arrays that are never compressed.
        message: Flower's name of the message that was answered last.
        examples: How many examples the app trained on last; -1 if that is not known yet.
    """

    lineage: str
    layout: Layout
    client: Client
    whole: list[NDArray[Any]] = field(default_factory=list)
    message: str = ""
    examples: float = -1.0

    @property
    def model(self) -> AppModel:
        """What the node has."""
        assert self.client.model is not None
        return AppModel(self.client.model, self.whole)


def state_folder() -> Path:
    """Where runs are kept: `DAGC_STATE`, else `dagc` in Flower's own folder."""
    chosen = os.environ.get(STATE_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(get_flwr_home()) / "dagc"


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


def write(path: Path, node: Node) -> None:
    """Write the file; it is there as a whole or as it was before, and only its owner can read it."""
    numbers = {name: getattr(node, name) for name in NUMBERS}
    numbers |= {"layout": node.layout.text, "client": node.client.numbers()}
    whole = {f"whole.{number}": array for number, array in enumerate(node.whole)}
    save_state(path, "node", VERSION, numbers, {**node.client.arrays(), **whole}, private=True)


def read(path: Path) -> Node | None:
    """What is in the file; None if there is none, or, with a warning, if it is damaged.

    Raises:
        NewerVersion: It was written by a newer version of dagc. It is left as it is.
    """
    if not path.exists():
        return None
    try:
        _, numbers, arrays = load_state(path, "node", VERSION)
        layout = Layout.read(numbers["layout"])
        client = Client(layout.shapes)
        client.load(arrays, numbers["client"])
        whole = [arrays[f"whole.{number}"] for number in range(len(layout.whole))]
        return Node(layout=layout, client=client, whole=whole, **{name: numbers[name] for name in NUMBERS})
    except NewerVersion:
        raise
    except (CheckpointError, InvalidInput, MalformedPayload, KeyError, TypeError) as error:
        log.warning("dagc: %s cannot be used: %s. What this node had not sent is lost; it starts empty", path, error)
        return None
