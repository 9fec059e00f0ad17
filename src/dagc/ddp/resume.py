"""Elastic restarts: which saved states a training continues from, and who carries whose residual.

Every rank brings the states that it can find: its own, or all of them from a folder that ranks share. The ranks agree
on one round of one start. Each residual of that round is carried by one rank, whatever the number of ranks is now.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from dagc.ddp.exchange import Exchange
from dagc.ddp.rank import check_version
from dagc.errors import InvalidInput, shown
from dagc.state import is_count

VERSION = 1  # of what `LocalSteps.state_dict` returns
FIELDS = {
    "version", "round", "rank", "world_size", "examples", "about", "start", "shared", "velocity", "begun", "uplink",
    "server", "due", "seconds",
}  # fmt: skip
VALID: dict[str, Callable[[Any], Any]] = {
    "round": is_count,
    "rank": is_count,
    "world_size": is_count,
    "due": lambda steps: is_count(steps) and steps,
    "seconds": lambda seconds: isinstance(seconds, int | float) and 0 <= seconds < math.inf,
    "start": lambda numbers: isinstance(numbers, list) and len(numbers) == 3 and all(map(is_count, numbers)),
    "examples": lambda counts: isinstance(counts, list) and all(map(is_count, counts)) and any(counts),
}
State = Mapping[str, Any]


class Key(NamedTuple):
    """What states that fit together have in common; the newest is the largest."""

    generation: int  # how many restarts came before
    round: int  # how many exchanges were done
    world: int  # the number of ranks
    start: int  # drawn when they started
    training: int  # drawn when the whole training began


class Choice(NamedTuple):
    """States to continue from, all by the rank that saved them."""

    key: Key
    states: Mapping[int, State]  # those that this rank has
    holders: Mapping[int, Sequence[int]]  # who has each
    carriers: Mapping[int, int]  # who carries its residual

    @property
    def missing(self) -> list[int]:
        return [old for old in range(self.key.world) if old not in self.carriers]


def candidates(
    exchange: Exchange, states: Sequence[State], examples: Sequence[int], about: State, allow_missing: bool
) -> list[Choice]:
    """Every round from which all ranks can continue, the newest first; none if no rank has any state.

    If `allow_missing`, those of which some states are missing come last. A rank without examples carries no residual.
    """
    here: dict[Key, dict[int, State]] = {}

    def rows() -> list[Any]:
        for state in states:
            here.setdefault(_key(state, about), {})[state["rank"]] = state
        return [[*key, old] for key, kept in here.items() for old in kept]

    holders: dict[Key, dict[int, list[int]]] = {}
    for rank, kept in enumerate(exchange.share(rows)):
        for *key, old in kept:
            holders.setdefault(Key(*key), {}).setdefault(old, []).append(rank)
    trainings = {key.training for key in holders}
    if len(trainings) > 1:
        raise InvalidInput(f"the states are of {len(trainings)} different trainings: give those of one")
    choices = [Choice(key, here.get(key, {}), holders[key], _carriers(holders[key], examples)) for key in holders]
    choices.sort(key=lambda choice: (not choice.missing, choice.key), reverse=True)
    if choices and choices[0].missing and not allow_missing:
        raise InvalidInput(
            f"of the {choices[0].key.world} states of round {choices[0].key.round}, those of the ranks "
            f"{choices[0].missing} are on no rank that holds examples: give them to one, or set allow_missing=True to "
            "continue without what they had not sent yet"
        )
    return choices if allow_missing else [choice for choice in choices if not choice.missing]


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


def _key(state: Any, about: State) -> Key:
    """What a state belongs to; `InvalidInput` if it cannot be used here. Its arrays are not read."""
    check_version(state, "LocalSteps", VERSION, FIELDS)
    if state["about"] != about:
        raise InvalidInput(
            f"a state has about {state['about']!r:.300}, here it is {about!r:.300}: use the model and settings of it"
        )
    with reading():
        for name, is_valid in VALID.items():
            if not is_valid(state[name]):
                raise ValueError(f"its {name} is {shown(state[name], 50)}")
        if len(state["examples"]) != state["world_size"] or state["rank"] >= state["world_size"]:
            raise ValueError("its ranks and examples do not fit")
    training, generation, number = state["start"]
    return Key(generation, state["round"], state["world_size"], number, training)


def check_content(state: State, size: int) -> None:
    """Refuse a state with damaged vectors. Those of a mapped file are read here, and not before."""
    uplink = state["uplink"] if isinstance(state["uplink"], Mapping) else {}
    vectors = {name: state[name] for name in ("shared", "velocity", "begun")}
    for name, vector in {**vectors, "residual": uplink.get("residual")}.items():
        if vector is None and name in ("velocity", "begun"):
            continue
        if not isinstance(vector, Tensor) or vector.shape != (size,) or vector.dtype != torch.float32:
            raise ValueError(f"its {name} is not {size} float32 numbers")
        if not torch.isfinite(vector).all():
            raise ValueError(f"its {name} holds NaN or infinity")


@contextmanager
def reading() -> Iterator[None]:
    """Whatever is wrong with a state in this block is an `InvalidInput`."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"a state is damaged: {error}") from error
