"""The start of local steps: the ranks agree, and continue from states or begin with rank 0's model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dagc.ddp.agreement import agree, check_examples, compile_ahead, log, make_plan
from dagc.ddp.device import tensor_checksum
from dagc.ddp.exchange import Exchange
from dagc.ddp.replica import Replica
from dagc.ddp.resume import Choice, candidates, check_content, send_model_to_newcomers
from dagc.ddp.trees import to_arrays
from dagc.errors import DagcError, InvalidInput
from dagc.policies.plan import level_bytes, local_steps_bytes
from dagc.protocol import Plan, Server, Uplink
from dagc.settings import Setting

__all__ = ["Start", "begin", "same_checksums", "usual_momentum"]

NUMBERS = {
    "steps": Setting("integer", "", least=1),
    "seconds": Setting("number", "", above=0),
    "outer_rate": Setting("number", "", above=0),
    "momentum": Setting("number", "", least=0, below=1),
    "timeout": Setting("number", "", above=0, below=1e9, note="a number of seconds above 0"),
}
"""What may be given for the numbers of local steps."""
MOMENTUM = 0.5
"""A rank's gradients are noisier than their mean, and AdamW goes less far with them: momentum makes up for it."""


@dataclass
class Start:
    """What `LocalSteps` begins with; see its attributes.

    Attributes:
        momentum: Of the shared model.
        begun: Where the local steps of the state began; None if this rank does not continue them.
        due: The steps until the first exchange; 0 for the usual number.
        seconds: Rank 0's time at the last exchange.
        start: The numbers of the training, of its restarts and of this start.
        checksum: Of the shared model.
    """

    replica: Replica
    uplink: Uplink
    server: Server
    about: dict[str, Any]
    exchange: Exchange
    examples: list[int]
    start: list[int]
    momentum: float = 0.0
    resumed: bool = False
    downloaded: bool = False
    missing: Sequence[int] = ()
    begun: Tensor | None = None
    due: int = 0
    seconds: float = 0.0
    checksum: int = 0


def begin(
    model: nn.Module,
    local: Sequence[str],
    examples: int,
    plan: Plan | None,
    settings: Mapping[str, Any],
    rounds: int | None,
    same: Mapping[str, Any],
    timeout: float | None,
    resume: Sequence[Mapping[str, Any]],
) -> Start:
    """Prepare this rank, agree with the others, and continue from states or begin with the same model.

    `same` holds those arguments of `LocalSteps` that must be the same on all ranks, the others are by name.
    """
    if not dist.is_initialized():
        raise InvalidInput("there are no ranks yet: call torch.distributed.init_process_group first")
    group = _group(timeout)
    talk, start, arguments = Exchange(group, torch.device("cpu"), "exchange"), None, {}
    error: Exception | None = None
    try:
        for name, value in {**same, "timeout": timeout}.items():
            if name in NUMBERS and (value is not None or name not in ("seconds", "timeout", "momentum")):
                NUMBERS[name].number(name, value)
        plan = make_plan(plan, settings, talk.world, local_steps=True)
        start = _prepare(Replica(model, local), plan, rounds, Exchange(group, talk.device, "exchange"))
        examples = check_examples(examples)
        start.momentum = usual_momentum(start.server.plan, start.uplink.size)
        if same["momentum"] is not None:
            start.momentum = same["momentum"]
        dtypes = [str(parameter.dtype) for parameter in start.replica.parameters]
        arguments = {**start.about, **same, "momentum": start.momentum, "dtypes": dtypes}
    except Exception as reason:  # whatever it is, the other ranks must not wait for this one
        error = reason
    try:
        counts, drawn = agree(talk, examples, arguments, error)
        assert start is not None
        start.examples, start.start = counts, [drawn, 0, drawn]
        if start.momentum:
            start.replica.velocity = torch.zeros_like(start.replica.shared)
        choices = candidates(talk, resume, counts, start.about, same["allow_missing"])
        if choices:
            _continue(start, talk, choices)
        else:
            start.downloaded = _download_first(start, talk)
        start.checksum = _same_model(start, talk)
    except DagcError:
        dist.destroy_process_group(group)
        raise
    for rank, count in enumerate(counts):
        if count or str(rank) in start.server.members:
            start.server.join(str(rank), count)
    return start


def usual_momentum(plan: Plan, size: int) -> float:
    """The momentum of the shared model, if none is given: only where messages carry most of what ranks have moved.

    Example:
        >>> usual_momentum(Plan(ratio=0.1), 7850), usual_momentum(Plan(bytes=100), 7850)
        (0.5, 0.0)
    """
    carried = plan.for_size(size).bytes if plan.method_spec.encodes else None
    return MOMENTUM if plan.method == "none" or (carried is not None and carried >= level_bytes(size)) else 0.0


def _prepare(replica: Replica, plan: Plan, rounds: int | None, exchange: Exchange) -> Start:
    size = sum(replica.sizes)
    if plan.method_spec.encodes and not plan.budgets_set:
        plan = plan.replaced(bytes=local_steps_bytes(size))
    server = Server(plan, size, rounds, replica.shapes)
    uplink = Uplink(server.plan.for_clients(), replica.shapes, replica.device)
    about = {**plan.as_dict(), "rounds": rounds, "sizes": replica.sizes}
    compile_ahead(plan, rounds)
    return Start(replica, uplink, server, about, exchange, [], [])


def _download_first(start: Start, talk: Exchange) -> bool:
    """A new training: whose model differs from rank 0's downloads it."""
    sums = talk.share(tensor_checksum(start.replica.shared).to_bytes(4, "little"))
    holders = [rank for rank, each in enumerate(sums) if each == sums[0]]
    send_model_to_newcomers(talk, start.replica.vectors, holders)
    return talk.rank not in holders


def _continue(start: Start, talk: Exchange, choices: Sequence[Choice]) -> None:
    """Continue from the first of these rounds whose states are all intact."""
    failures = []
    for choice in choices:
        before = start.uplink.snapshot(), start.server.snapshot()
        try:
            due, seconds, examples = _load(start, talk, choice)
        except InvalidInput as error:  # on all ranks
            start.uplink.rollback(before[0])
            start.server.rollback(before[1])
            log.warning("round %d cannot be continued: %s", choice.key.round, error)
            failures.append(error)
            continue
        _take_over(start, talk, choice, examples)
        start.due, start.seconds, start.resumed = due, seconds, True
        return
    raise failures[0]


def _load(start: Start, talk: Exchange, choice: Choice) -> tuple[int, float, list[int]]:
    """Load both halves from the states of this choice; an error on all ranks if one of them is damaged."""
    first, body, error = choice.holders[0], b"", None
    size = sum(start.replica.sizes)
    try:
        for state in choice.carried if choice.state is None else (choice.state, *choice.carried):
            check_content(state, size)
        if talk.rank == first and choice.state is not None:
            # If ranks have come or gone, what coders remember is forgotten: that costs some bytes once.
            server = choice.state["server"]
            none: dict[str, Any] | None = None if server["receiver"]["memories"] is None else {}
            server = {**server, "receiver": {**server["receiver"], "memories": none}}
            body = json.dumps([server, *(choice.state[name] for name in ("due", "seconds", "examples"))]).encode()
    except (KeyError, TypeError, ValueError) as reason:
        error = reason if isinstance(reason, InvalidInput) else InvalidInput(f"a state is damaged: {reason!r}")
    bodies = talk.share(body, error)
    try:
        server, due, seconds, examples = json.loads(bodies[first])
        if choice.same and choice.own_state is not None:
            server["receiver"]["memories"] = to_arrays(choice.own_state["server"]["receiver"]["memories"])
        start.server.load_state_dict(server)
        if choice.own_state is not None:
            start.uplink.load_state_dict(to_arrays(choice.own_state["uplink"]))
    except (KeyError, TypeError, ValueError) as reason:
        error = InvalidInput(f"a state is damaged: {reason}")
    talk.share(error=error)
    return due, seconds, examples


def _take_over(start: Start, talk: Exchange, choice: Choice, examples: Sequence[int]) -> None:
    """The shared model, and the residuals that this rank carries."""
    replica, state, own_state = start.replica, choice.state, choice.own_state
    if state is not None:
        replica.shared.copy_(state["shared"])
        if replica.velocity is not None and state["velocity"] is not None:
            replica.velocity.copy_(state["velocity"])
    send_model_to_newcomers(talk, replica.vectors, choice.holders)
    if own_state is not None and own_state["begun"] is not None:
        start.begun = own_state["begun"].to(replica.device, copy=True)
    start.downloaded, start.missing = state is None, choice.missing
    start.start = [choice.key.training, choice.key.generation + 1, start.start[0]]
    alone = len(choice.carried) == 1 and choice.carried[0] is own_state
    if not alone or examples != start.examples:
        start.uplink.feedback.residual = _carried(start, choice.carried, talk.rank)


def _carried(start: Start, states: Sequence[Mapping[str, Any]], rank: int) -> Tensor:
    """What these ranks had not sent, in the units of this one: its part of all data makes it weigh as much."""
    total = torch.zeros_like(start.replica.shared)
    for state in states:
        then = state["examples"][state["rank"]] / sum(state["examples"])
        now = start.examples[rank] / sum(start.examples)
        total.add_(state["uplink"]["residual"].to(total.device), alpha=then / now)
    return total


def _same_model(start: Start, talk: Exchange) -> int:
    """The checksum of the shared model, which must be the same everywhere."""
    here = tensor_checksum(start.replica.shared)
    sums = talk.share(here.to_bytes(4, "little"))
    same_checksums([int.from_bytes(each, "little") for each in sums], start.server.round)
    return here


def same_checksums(sums: Sequence[int], round: int) -> None:
    """Refuse to go on with different shared models."""
    other = next((rank for rank, each in enumerate(sums) if each != sums[0]), None)
    if other is not None:
        raise DagcError(
            f"ranks 0 and {other} have different shared models after {round} exchanges: start all ranks again from "
            "their checkpoints of one exchange; if it happens again, their processors or versions of torch differ"
        )


def _group(timeout: Any) -> dist.ProcessGroup:
    """A group of all ranks for payloads alone: it cannot interleave with the script's collectives."""
    try:
        patience = None if timeout is None else timedelta(seconds=NUMBERS["timeout"].number("timeout", timeout))
    except InvalidInput:  # all ranks report it in a moment
        patience = None
    try:
        group = dist.new_group(timeout=patience, backend="gloo")
    except RuntimeError as error:
        raise DagcError(f"the ranks cannot reach each other: {str(error).splitlines()[0]}") from error
    assert isinstance(group, dist.ProcessGroup), "this rank is in no group"
    return group
