"""Elastic restarts: which saved states a training continues from, who carries whose residual, who needs the model.

Every rank brings the states that it can find: its own, or all of them from a folder that ranks share. The ranks agree
on one round of one start. Each residual of that round is carried by one rank, whatever the number of ranks is now.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dagc.ddp.exchange import Exchange
from dagc.ddp.trees import check_version
from dagc.errors import InvalidInput, MalformedPayload
from dagc.state import is_count

__all__ = ["VERSION", "Choice", "candidates", "check_content", "send_model_to_newcomers"]

VERSION = 1
"""The version of what `LocalSteps.state_dict` returns."""
FIELDS = {
    "version", "round", "rank", "world_size", "examples", "about", "start", "shared", "velocity", "begun", "uplink",
    "server", "due", "seconds",
}  # fmt: skip


class Key(NamedTuple):
    """What states that fit together have in common; the newest is the largest.

    Attributes:
        generation: How many restarts came before.
        round: How many exchanges were done.
        world: The number of ranks.
        start: The number that was drawn when they started.
        training: The number that was drawn when the whole training began.
    """

    generation: int
    round: int
    world: int
    start: int
    training: int


class Choice(NamedTuple):
    """States that the ranks can continue from.

    Attributes:
        key: What they have in common.
        state: One of them that this rank has; None if it has none and needs the model.
        own_state: The one that this rank saved itself, if there were as many ranks; None otherwise.
        carried: The states whose residuals this rank carries.
        holders: The ranks that have the model.
        same: Whether every rank has the state that it saved itself.
        missing: The ranks, in the old numbering, whose states nobody has.
    """

    key: Key
    state: Mapping[str, Any] | None
    own_state: Mapping[str, Any] | None
    carried: list[Mapping[str, Any]]
    holders: list[int]
    same: bool
    missing: list[int]


def candidates(
    exchange: Exchange,
    states: Sequence[Mapping[str, Any]],
    examples: Sequence[int],
    about: Mapping[str, Any],
    allow_missing: bool,
) -> list[Choice]:
    """Every round from which all ranks can continue, the newest first; none if no rank has any state.

    Args:
        exchange: This rank's place in the group.
        states: What this rank has found, of any round.
        examples: How many examples each rank holds now: a rank without data carries no residual.
        about: What the states must belong to.
        allow_missing: After the complete rounds, also those of which some states are missing.

    Raises:
        InvalidInput: If a state belongs to something else, or if states are missing; on all ranks.
    """
    error, rows = None, []
    try:
        rows = [[*_key(state, about), int(state["rank"])] for state in states]
    except InvalidInput as reason:
        error = reason
    holders: dict[Key, dict[int, list[int]]] = {}  # who has which rank's state
    for rank, body in enumerate(exchange.share(json.dumps(rows).encode(), error)):
        for *key, old in _rows(body):
            holders.setdefault(Key(*key), {}).setdefault(old, []).append(rank)
    trainings = {key.training for key in holders}
    if len(trainings) > 1:
        raise InvalidInput(f"the states are of {len(trainings)} different trainings: give those of one")
    carriers = {key: _carriers(each, examples) for key, each in holders.items()}
    complete = [key for key in holders if len(carriers[key]) == key.world]
    if holders and not complete and not allow_missing:
        newest = max(holders)
        missing = [old for old in range(newest.world) if old not in carriers[newest]]
        raise InvalidInput(
            f"of the {newest.world} states of round {newest.round}, those of the ranks {missing} are on no rank that "
            "holds examples: give them to one, or set allow_missing=True to continue without what they had not sent yet"
        )
    rest = [key for key in holders if key not in complete] if allow_missing else []
    ordered = [*sorted(complete, reverse=True), *sorted(rest, reverse=True)]
    by_key = {key: {s["rank"]: s for s in states if _key(s, about) == key} for key in ordered}
    return [_choice(exchange, key, holders[key], carriers[key], by_key[key]) for key in ordered]


def _choice(
    exchange: Exchange,
    key: Key,
    holders: Mapping[int, Sequence[int]],
    carriers: Mapping[int, int],
    here: Mapping[int, Mapping[str, Any]],
) -> Choice:
    """What continuing from these states means for this rank."""
    carried = [here[old] for old, rank in sorted(carriers.items()) if rank == exchange.rank]
    as_many = key.world == exchange.world
    return Choice(
        key,
        state=next(iter(here.values()), None),
        own_state=here.get(exchange.rank) if as_many else None,
        carried=carried,
        holders=sorted({rank for ranks in holders.values() for rank in ranks}),
        same=as_many and all(rank in holders.get(rank, ()) for rank in range(exchange.world)),
        missing=[old for old in range(key.world) if old not in carriers],
    )


def send_model_to_newcomers(exchange: Exchange, vectors: Sequence[Tensor], holders: Sequence[int]) -> None:
    """Send vectors from the ranks that have them to those that do not, once to each."""
    newcomers = [rank for rank in range(exchange.world) if rank not in holders]
    with exchange.together("while the model was sent to newcomers"):
        for place, rank in enumerate(newcomers):
            source = holders[place % len(holders)]
            for vector in vectors if exchange.rank in (source, rank) else ():
                on_host = vector.cpu()
                if exchange.rank == source:
                    dist.send(on_host, rank, group=exchange.group)
                else:
                    dist.recv(on_host, source, group=exchange.group)
                    vector.copy_(on_host)


def _carriers(holders: Mapping[int, Sequence[int]], examples: Sequence[int]) -> dict[int, int]:
    """Who carries whose residual: its own rank if that is possible, else whoever carries the fewest."""
    able = {old: [rank for rank in ranks if examples[rank]] for old, ranks in holders.items()}
    carriers = {old: old for old, ranks in able.items() if old in ranks}
    for old, ranks in sorted(able.items()):
        if ranks and old not in carriers:
            load = list(carriers.values())
            carriers[old] = min(ranks, key=lambda rank: (load.count(rank), rank))
    return carriers


def _key(state: Any, about: Mapping[str, Any]) -> Key:
    """What a state belongs to; `InvalidInput` if it cannot be used here. Its arrays are not read."""
    check_version(state, "LocalSteps", VERSION, FIELDS)
    if state["about"] != about:
        raise InvalidInput(
            f"a state has about {state['about']!r:.300}, here it is {about!r:.300}: use the model and settings of it"
        )
    start, examples, due, seconds = (state[name] for name in ("start", "examples", "due", "seconds"))
    counts = [state["round"], state["world_size"], state["rank"]]
    if not isinstance(examples, list) or not isinstance(start, list) or len(start) != 3:
        raise InvalidInput("a state is damaged: it has no examples or no start")
    if not all(map(is_count, [*counts, *examples, *start])) or not any(examples):
        raise InvalidInput("a state is damaged: its round, ranks, start or examples are not numbers")
    if len(examples) != state["world_size"] or state["rank"] >= state["world_size"]:
        raise InvalidInput("a state is damaged: its ranks and examples do not fit")
    if not (is_count(due) and due >= 1 and isinstance(seconds, int | float) and 0 <= seconds < math.inf):
        raise InvalidInput(f"a state is damaged: due or seconds is invalid ({due!r:.50}, {seconds!r:.50})")
    training, generation, number = start
    return Key(generation, state["round"], state["world_size"], number, training)


def check_content(state: Mapping[str, Any], size: int) -> None:
    """Refuse a state with damaged vectors. Those of a mapped file are read here, and not before."""
    uplink = state["uplink"] if isinstance(state["uplink"], Mapping) else {}
    vectors = {name: state[name] for name in ("shared", "velocity", "begun")}
    for name, vector in {**vectors, "residual": uplink.get("residual")}.items():
        if vector is None and name in ("velocity", "begun"):
            continue
        if not isinstance(vector, Tensor) or vector.shape != (size,) or vector.dtype != torch.float32:
            raise InvalidInput(f"a state is damaged: its {name} is not {size} float32 numbers")
        if not torch.isfinite(vector).all():
            raise InvalidInput(f"a state is damaged: its {name} holds NaN or infinity")


def _rows(body: bytes) -> list[list[int]]:
    """The keys of the states that another rank has, each with the rank that saved it."""
    try:
        rows = [[int(number) for number in row] for row in json.loads(body)]
        if all(len(row) == 6 and min(row) >= 0 and row[-1] < row[2] for row in rows):
            return rows
    except (ValueError, TypeError):
        pass
    raise MalformedPayload(f"this is no list of states: {body!r:.100}")
