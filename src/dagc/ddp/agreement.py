"""What all ranks must agree on before they exchange anything: their arguments, their data and the plan."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Any

import numpy as np

from dagc.ddp.exchange import Exchange, Packet
from dagc.errors import DagcError, InvalidInput, MalformedPayload, OutsideBound, unknown
from dagc.protocol import Plan, Server, Settings, Upload

__all__ = ["agree", "make_plan", "read_all", "same_step"]

log = getLogger("dagc.ddp")


def agree(exchange: Exchange, examples: Any, arguments: dict[str, Any]) -> list[int]:
    """Every rank's number of examples; an error on all ranks if one is invalid or if the arguments differ."""
    known = isinstance(examples, int | np.integer) and not isinstance(examples, bool) and 0 <= examples < 1 << 53
    text = json.dumps(arguments, sort_keys=True, default=str)
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
    counts, digests = zip(*exchange.numbers([int(examples) if known else -1, digest]), strict=True)
    if len(set(digests)) > 1:
        other = next(rank for rank in range(len(digests)) if digests[rank] != digests[0])
        raise InvalidInput(f"ranks 0 and {other} differ in their models or arguments; this rank has {text:.400}")
    if min(counts) < 0:
        here = "" if known else f", but {examples!r}"
        raise InvalidInput(f"examples of rank {counts.index(-1)} is not a number of examples, 0 or more{here}")
    if not any(counts):
        raise InvalidInput("examples is 0 on all ranks: at least one must hold data")
    return list(counts)


def make_plan(settings: Settings, world: int, local_steps: bool) -> Plan:
    """The plan. What ranks cannot do is refused; some of it is possible only with local steps."""
    plan = Plan(**settings)
    if settings.get("down") is None and not plan.lossless:  # the method's own default
        plan = replace(plan, down="lossless")
    if settings.get("step_ahead") is None and plan.step_ahead and not local_steps:
        plan = replace(plan, step_ahead=0.0)
    if not plan.lossless:
        raise InvalidInput(f"down is {plan.down!r}: DDP has no server that sends a model down; leave it out")
    if plan.step_ahead and not local_steps:
        raise InvalidInput(
            f"step_ahead is {plan.step_ahead:g}: DDP computes gradients at the model that all ranks have; leave it out"
        )
    if plan.first_model != "sent":
        raise InvalidInput(f"first_model is {plan.first_model!r}: DDP sends the first model itself; leave it out")
    if plan.per_hour and not local_steps:
        raise InvalidInput(
            f"rate is {plan.rate!r}: the ranks' clocks differ, so DDP keeps no rate per hour; give bytes alone"
        )
    ranks = [str(rank) for rank in range(world)]
    for name in plan.caps:
        if name not in ranks:
            raise unknown("rank for the cap of", name, ranks)
    return plan


def same_step(packets: Sequence[Packet], what: str = "step") -> None:
    """Refuse messages from different steps."""
    steps = [packet.step for packet in packets]
    if len(set(steps)) > 1:
        raise DagcError(f"the ranks are at different {what}s, {steps} in rank order: load checkpoints of one {what}")


def read_all(server: Server, ranks: Iterable[str], packets: Sequence[Packet], head: int = 0) -> list[Upload]:
    """The uploads of these ranks. One that is too large is left out, on all ranks alike, since all see the same bytes.

    Args:
        server: This rank's half.
        ranks: The ranks that hold data.
        packets: The packets of all ranks.
        head: How many bytes of a message precede its frame.
    """
    uploads = []
    for name in ranks:
        packet = packets[int(name)]
        try:
            norm = packet.norm if server.policy.wants_norms else None
            uploads.append(server.read(name, packet.body[head:], norm))
        except OutsideBound as error:
            log.warning("step %d: rank %s is left out: %s", packet.step, name, error)
        except MalformedPayload as error:
            raise MalformedPayload(f"rank {name}: {error}") from error
    return uploads
