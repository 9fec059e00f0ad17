"""What all ranks must agree on before they exchange anything: their arguments, their data and the plan."""

import hashlib
import json
import secrets
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from logging import getLogger
from time import perf_counter
from typing import Any

import torch

from dagc.ddp.exchange import Exchange, Packet
from dagc.errors import DagcError, InvalidInput, MalformedPayload, OutsideBound, unknown
from dagc.protocol import Plan, Server, Uplink, Upload
from dagc.settings import Setting

__all__ = ["agree", "check_examples", "check_packets", "compile_ahead", "make_plan", "read_all"]

log = getLogger("dagc.ddp")
EXAMPLES = Setting("integer", "", least=0, below=1 << 53, note="an integer, 0 or more")


def check_examples(examples: Any) -> int:
    """A number of examples as an integer; `InvalidInput` if it is none."""
    return int(EXAMPLES.number("examples", examples))


def agree(
    exchange: Exchange, examples: Any, arguments: Mapping[str, Any], error: Exception | None
) -> tuple[list[int], int]:
    """Exchange what every rank must know before the first step: an error of one rank becomes an error of all.

    Args:
        exchange: This rank's place in the group.
        examples: How many examples it holds.
        arguments: Everything that must be the same on all ranks.
        error: What went wrong while this rank prepared itself, if anything did.

    Returns:
        Every rank's number of examples, and a number that rank 0 has drawn for this start.

    Raises:
        InvalidInput: If the arguments differ, if nobody holds data, or if a rank reports an error; on all ranks.
    """
    body = b""
    if error is None:
        digests = {name: _digest(value) for name, value in arguments.items()}
        body = json.dumps([int(examples), secrets.randbits(32), digests]).encode()
    bodies = exchange.share(body, error)
    try:
        counts, starts, digests_of_all = zip(*map(json.loads, bodies), strict=True)
    except (ValueError, TypeError) as reason:
        raise MalformedPayload(f"a rank's first message cannot be read: {reason}") from reason
    for rank, digests in enumerate(digests_of_all):
        different = sorted(name for name in arguments if digests.get(name) != digests_of_all[0].get(name))
        if different or digests.keys() != digests_of_all[0].keys():
            here = {name: arguments[name] for name in different}
            raise InvalidInput(f"ranks 0 and {rank} differ in {', '.join(different)}; this rank has {here!r:.400}")
    if not any(counts):
        raise InvalidInput("examples is 0 on all ranks: at least one must hold data")
    return list(counts), int(starts[0])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]


def make_plan(plan: Plan | None, settings: Mapping[str, Any], world: int, local_steps: bool) -> Plan:
    """The plan, as an object or by its settings. What ranks cannot do is refused; local steps can do more."""
    if plan is not None and (settings or not isinstance(plan, Plan)):
        raise InvalidInput(f"give plan, a dagc.Plan, or its settings, not {[plan, *settings]!r:.200}")
    plan = Plan(**settings) if plan is None else plan
    defaults: dict[str, Any] = {"down": "lossless"} | ({} if local_steps else {"step_ahead": 0.0})
    plan = plan.replaced(**{name: value for name, value in defaults.items() if name not in plan.explicit()})
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
            raise InvalidInput(f"caps: {unknown('rank', name, ranks)}")
    return plan


def compile_ahead(plan: Plan, rounds: int | None) -> None:
    """Compile the kernels that this plan uses, in rounds of a small model: the first step does not wait for them."""
    began, shapes = perf_counter(), [(32, 64)]
    with suppress(DagcError), warnings.catch_warnings():  # a budget may not fit a small model
        warnings.simplefilter("ignore")
        server = Server(plan.replaced(caps={}), 32 * 64, rounds, shapes)
        uplink = Uplink(server.plan.for_clients(), shapes)
        server.join("0", 1)
        values = torch.linspace(-1, 1, 32 * 64)
        for _ in range(8):  # in the first ones, the method thrifty waits
            upload = uplink.upload(values.clone(), server.orders("0")["0"])
            uploads = [server.read("0", upload.frame, upload.norm)]
            server.total(uploads)
            server.close(uploads)
            values = values[torch.arange(1237, 1237 * 2049, 1237) % 2048]  # scattered: frames then need another kernel
    if perf_counter() - began > 1:
        log.info(
            "compiled kernels in %.1f s; where the cache can be written, that happens once", perf_counter() - began
        )


def check_packets(packets: Sequence[Packet], what: str = "step") -> None:
    """Refuse messages of different steps or trainings, and raise what a rank reports instead of a payload."""
    steps = [packet.step for packet in packets]
    if len(set(steps)) > 1:
        raise DagcError(f"the ranks are at different {what}s, {steps} in rank order: load checkpoints of one {what}")
    starts = [packet.start for packet in packets]
    other = next((rank for rank, start in enumerate(starts) if start != starts[0]), None)
    if other is not None:
        raise DagcError(
            f"ranks 0 and {other} are both at {what} {steps[0]}, but continue different trainings: one of their "
            f"checkpoints was written before a restart from an older one; load checkpoints of an earlier {what}"
        )
    for rank, packet in enumerate(packets):
        error = packet.error(rank)
        if error is not None:
            raise error


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
            norm = packet.norm if server.budget.policy.wants_norms else None
            uploads.append(server.read(name, packet.body[head:], norm))
        except OutsideBound as error:
            log.warning("step %d: rank %s is left out: %s", packet.step, name, error)
        except MalformedPayload as error:
            raise MalformedPayload(f"rank {name}: {error}") from error
    return uploads
