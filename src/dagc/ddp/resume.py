"""Elastic restarts: which saved states a training continues from, who carries whose residual, who needs the model.

Every rank brings the states that it can find: its own, or all of them from a folder that ranks share. The ranks agree
on one round. Each residual of that round is carried by one rank, whatever the number of ranks is now.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dagc.ddp.exchange import Exchange, Packet
from dagc.errors import InvalidInput, MalformedPayload

__all__ = ["SHARED", "VERSION", "Choice", "all_or_none", "choose", "spread"]

VERSION = 1
"""The version of what `LocalSteps.state_dict` returns."""
SHARED = ("shared", "velocity", "start")
"""The arrays of a state besides the client's half: the shared model, its momentum, where an overlap began."""
FIELDS = (
    "version", "round", "rank", "world_size", "examples", "about", "arrays", "client", "server", "due", "seconds",
)  # fmt: skip


class Choice(NamedTuple):
    """What the ranks continue from.

    Attributes:
        state: A state of the chosen round that this rank has; None if it has none and needs the model.
        own: The one that this rank saved itself, if there were as many ranks; None otherwise.
        carried: The states whose residuals this rank carries.
        holders: The ranks that have the model.
        same: Whether every rank has the state that it saved itself.
        missing: The ranks, in the old numbering, whose states nobody has.
    """

    state: Mapping[str, Any] | None
    own: Mapping[str, Any] | None
    carried: list[Mapping[str, Any]]
    holders: list[int]
    same: bool
    missing: list[int]


def choose(
    exchange: Exchange,
    states: Sequence[Mapping[str, Any]],
    examples: Sequence[int],
    about: Mapping[str, Any],
    allow_missing: bool,
) -> Choice | None:
    """Agree on the newest round for which all states are present; None if no rank has any state.

    Args:
        exchange: This rank's place in the group.
        states: What this rank has found, of any round.
        examples: How many examples each rank holds now: a rank without data carries no residual.
        about: What the states must belong to.
        allow_missing: If no round is complete, continue from the newest and lose the missing residuals.

    Raises:
        InvalidInput: If a state cannot be used, or if states are missing; on all ranks.
    """
    refused = next((words for words in (_unusable(state, about) for state in states) if words), None)
    listed = [] if refused else [[int(state[name]) for name in ("round", "world_size", "rank")] for state in states]
    packets = all_or_none(exchange, refused, json.dumps(listed).encode())
    found: dict[tuple[int, int], dict[int, list[int]]] = {}  # who has the states of a round, by the ranks of that time
    for rank, packet in enumerate(packets):
        for round, world, old in _listed(packet.body):
            found.setdefault((round, world), {}).setdefault(old, []).append(rank)
    if not found:
        return None
    carriers = {key: _carriers(holders, examples) for key, holders in found.items()}
    complete = [key for key in found if len(carriers[key]) == key[1]]
    chosen = max(complete or found)
    missing = [old for old in range(chosen[1]) if old not in carriers[chosen]]
    if missing and not allow_missing:
        raise InvalidInput(
            f"of the {chosen[1]} states of round {chosen[0]}, those of the ranks {missing} are on no rank that holds "
            "examples: give them to one, or set allow_missing=True to continue without what they had not sent yet"
        )
    here = {state["rank"]: state for state in states if (state["round"], state["world_size"]) == chosen}
    carried = [here[old] for old, rank in sorted(carriers[chosen].items()) if rank == exchange.rank]
    own = here.get(exchange.rank) if chosen[1] == exchange.world else None
    holders = sorted({rank for ranks in found[chosen].values() for rank in ranks})
    all_own = all(rank in found[chosen].get(rank, ()) for rank in range(exchange.world))
    same = chosen[1] == exchange.world and all_own
    return Choice(next(iter(here.values()), None), own, carried, holders, same, missing)


def all_or_none(exchange: Exchange, refused: str | None, body: bytes = b"") -> list[Packet]:
    """Everybody's message; an error on all ranks if one of them says what is wrong instead."""
    packets = exchange.all_gather(Packet(bool(refused), 0, 0.0, refused.encode() if refused else body))
    for rank, packet in enumerate(packets):
        if packet.refused:
            raise InvalidInput(f"rank {rank}: {bytes(packet.body).decode(errors='replace')}")
    return packets


def spread(exchange: Exchange, tensors: Sequence[Tensor], holders: Sequence[int]) -> None:
    """Send tensors in CPU memory from the ranks that have them to those that do not, once to each."""
    lacking = [rank for rank in range(exchange.world) if rank not in holders]
    with exchange.together("while the model was sent to newcomers"):
        for place, rank in enumerate(lacking):
            source = holders[place % len(holders)]
            for tensor in tensors:
                if exchange.rank == source:
                    dist.send(tensor, rank, group=exchange.group)
                elif exchange.rank == rank:
                    dist.recv(tensor, source, group=exchange.group)


def _carriers(holders: Mapping[int, Sequence[int]], examples: Sequence[int]) -> dict[int, int]:
    """Who carries whose residual: its own rank if that is possible, else whoever carries the fewest."""
    able = {old: [rank for rank in ranks if examples[rank]] for old, ranks in holders.items()}
    carriers = {old: old for old, ranks in able.items() if old in ranks}
    for old, ranks in sorted(able.items()):
        if ranks and old not in carriers:
            load = list(carriers.values())
            carriers[old] = min(ranks, key=lambda rank: (load.count(rank), rank))
    return carriers


def _unusable(state: Any, about: Mapping[str, Any]) -> str | None:
    """What is wrong with a state, or None."""
    if not isinstance(state, Mapping) or "version" not in state:
        return "this is not the state of a dagc.ddp.LocalSteps"
    version = state["version"]
    if not isinstance(version, int) or version > VERSION:
        return f"a state has version {version!r:.50}, this is {VERSION}: update dagc to load it"
    if set(state) != set(FIELDS):
        return f"this is not the state of a dagc.ddp.LocalSteps: it holds {sorted(map(str, state))!r:.200}"
    if state["about"] != about:
        return f"a state has about {state['about']!r:.300}, here it is {about!r:.300}: use the model and settings of it"
    if not isinstance(state["arrays"], Mapping) or not isinstance(state["examples"], list):
        return "a state is damaged: it has no arrays or no examples"
    counts = [state["round"], state["world_size"], state["rank"], *state["examples"]]
    if not all(isinstance(count, int) and count >= 0 for count in counts) or not any(state["examples"]):
        return "a state is damaged: its round, ranks or examples are not numbers"
    if len(state["examples"]) != state["world_size"] or state["rank"] >= state["world_size"]:
        return "a state is damaged: its ranks and examples do not fit"
    due, seconds = state["due"], state["seconds"]
    if not (isinstance(due, int) and due >= 1 and isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        return f"a state is damaged: its due or seconds is no time ({due!r:.50}, {seconds!r:.50})"
    size = sum(about["sizes"])
    for name in ("shared", "residual", *(name for name in SHARED if name in state["arrays"])):
        tensor = state["arrays"].get(name)
        if not isinstance(tensor, Tensor) or tensor.shape != (size,) or tensor.dtype != torch.float32:
            return f"a state is damaged: its {name} is not {size} float32 numbers"
        if not torch.isfinite(tensor).all():
            return f"a state is damaged: its {name} holds NaN or infinity"
    return None


def _listed(body: bytes | memoryview) -> list[list[int]]:
    """What another rank says that it has."""
    try:
        rows = [[int(number) for number in row] for row in json.loads(bytes(body))]
        if all(len(row) == 3 and min(row) >= 0 and row[2] < row[1] for row in rows):
            return rows
    except (ValueError, TypeError):
        pass
    raise MalformedPayload(f"this is no list of states: {bytes(body)!r:.100}")
