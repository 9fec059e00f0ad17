"""What a node keeps between rounds, in one file: the client's half of the protocol, and the app's other arrays.

The file is written before an upload is sent, so that neither a crash nor a lost message loses anything: what the server
has not accepted goes back into the residual.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.supercore.utils import get_flwr_home
from numpy.typing import NDArray

from dagc.errors import CheckpointError, InvalidInput, MalformedPayload
from dagc.flower import store
from dagc.flower.layout import AppModel, Layout
from dagc.flower.logs import log
from dagc.protocol import Client
from dagc.state import NewerVersion, load_state

__all__ = ["Node", "node_name", "read", "state_folder", "state_path", "write"]

STATE_VARIABLE = "DAGC_STATE"
VERSION = 2
"""Version 1 is a state file like any other; from version 2 on, it is changed in place."""
NUMBERS = ("lineage", "message", "examples")
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Valid names of runs and nodes."""


@dataclass
class Node:
    """A node's memory of a run.

    Attributes:
        lineage: Which start of the run it belongs to.
        layout: The model's layout.
        client: The client's half of the protocol.
        whole: The model's arrays that are never compressed.
        message: Flower's name of the message that was answered last.
        examples: How many examples the app trained on last; -1 if that is not known yet.
        stored: The file it was read from; None if there is none that could be changed in place.
        fell_back: Whether a newer state was incomplete. If the server has that state's upload, this one is too old.
    """

    lineage: str
    layout: Layout
    client: Client
    whole: list[NDArray[Any]] = field(default_factory=list)
    message: str = ""
    examples: float = -1.0
    stored: store.Stored | None = None
    fell_back: bool = False

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
    """The node's name: its `dagc-name` or partition in its configuration, or else Flower's number for it."""
    for key, prefix in (("dagc-name", "name"), ("partition-id", "partition")):
        if key in context.node_config:
            return f"{prefix}-{context.node_config[key]}"
    return f"node-{context.node_id}"


def state_path(run: str, context: Context) -> Path:
    """The node's file for a run; a run without a name is this `flwr run` alone."""
    chosen = context.node_config.get("dagc-state")
    folder = Path(str(chosen)).expanduser() if chosen else state_folder()
    name, run = node_name(context), run or f"run-{context.run_id}"
    for part in (run, name):  # the server chooses the run's name: it must not choose the folder
        if not FILE_NAME.fullmatch(part):
            raise InvalidInput(f"{part!r:.120} cannot be the name of a file: use letters, digits, '-', '_' and '.'")
    return folder / "nodes" / run / f"{name}.state"


def write(path: Path, node: Node) -> None:
    """Write the file. Whatever happens, it holds this state or the one before; only its owner can read it."""
    numbers = {name: getattr(node, name) for name in NUMBERS}
    numbers |= {"layout": node.layout.text, "client": node.client.numbers(), "fell_back": node.fell_back}
    arrays = node.client.arrays() | {f"whole.{number}": array for number, array in enumerate(node.whole)}
    model, residual = arrays.pop("model"), arrays.pop("residual")
    if node.stored is not None:
        new = None if np.shares_memory(residual, node.stored.residual) else residual
        changed = np.concatenate([np.empty(0, np.int64), *node.client.touched])
        if store.change(path, node.stored, VERSION, numbers, arrays, model, new, changed):
            return
    store.replace(path, VERSION, numbers, arrays, model, residual)


def read(path: Path, mapped: bool = False) -> Node | None:
    """What is in the file; None if there is none, or, with a warning, if it is damaged.

    Args:
        path: The file.
        mapped: Whether the arrays may be views of the file: for one that is soon written again.

    Raises:
        NewerVersion: It was written by a newer version of dagc. It is left as it is.
    """
    if not path.exists():
        return None
    try:
        stored = None
        with path.open("rb") as file:
            in_place = file.read(len(store.MAGIC)) == store.MAGIC
        if in_place:
            stored = store.restore(path, VERSION, mapped)
            _, numbers, arrays = stored.state
            arrays = {**arrays, "model": stored.model, "residual": stored.residual}
        else:
            _, numbers, arrays = load_state(path, store.KIND, VERSION)
        layout = Layout.read(numbers["layout"])
        client = Client(layout.shapes)
        client.load(arrays, numbers["client"], trusted=stored is not None)
        whole = [arrays[f"whole.{number}"] for number in range(len(layout.whole))]
        fell_back = stored is not None and (stored.fell_back or numbers["fell_back"])
        kept = {name: numbers[name] for name in NUMBERS}
        return Node(layout=layout, client=client, whole=whole, stored=stored, fell_back=fell_back, **kept)
    except NewerVersion:
        raise
    except (CheckpointError, InvalidInput, MalformedPayload, KeyError, TypeError, OSError) as error:
        log.warning("dagc: %s cannot be used: %s. What this node had not sent is lost; it starts empty", path, error)
        return None
