"""The hook: Algorithm 1 on one rank, between DDP's backward pass and its optimizer.

DDP passes gradients in buckets, which it rearranges after the first step. The hook waits for the last bucket and puts
the gradients in the order of the model's parameters, so selection, residual and checkpoints do not depend on buckets.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dagc.ddp.agreement import agree, check_examples, check_packets, compile_ahead, log, make_plan, read_all
from dagc.ddp.continued import warn_if_continued
from dagc.ddp.device import device_of
from dagc.ddp.exchange import Exchange, Exchanged, Packet, refusal
from dagc.ddp.trees import check_version, to_arrays, to_tensors
from dagc.errors import DagcError, InvalidInput, NonFiniteGradient
from dagc.protocol import Plan, Server, Uplink, Upload
from dagc.state import all_or_nothing

__all__ = ["Bucket", "Hook", "on_bucket"]

VERSION = 1
"""The version of what `Hook.state_dict` returns."""


class Bucket(NamedTuple):
    """Gradients as DDP hands them over: one buffer, the parameters in it, and a view of it for each."""

    buffer: Tensor
    parameters: Sequence[Tensor]
    gradients: Sequence[Tensor]


class Hook:
    """One rank's half of the protocol as a client, and the server's half, which decides alike on all ranks.

    `dagc.ddp.register` creates it. There is no downlink: every rank sums what all have sent.

    Attributes:
        examples: How many examples each rank holds, in rank order.
        uplink: What this rank sends, over all trainable parameters in the model's order.
        server: The server's half; its members are the ranks that hold examples, by their numbers as names.
        resumed: Whether a state was loaded.
        last: What the last step took; None before the first.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        examples: int,
        plan: Plan | None,
        settings: Mapping[str, Any],
        rounds: int | None,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        self._exchange, talk = (Exchange(_group(model), _device(model)) for _ in range(2))
        self._scaler, self.resumed = scaler, False
        self._about: dict[str, Any] = {}
        error: Exception | None = None
        try:
            self._prepare(model, make_plan(plan, settings, self._exchange.world, False), rounds)
            examples = check_examples(examples)
        except Exception as reason:  # whatever it is, the other ranks must not wait for this one
            error = reason
        self.examples, self._fresh = agree(talk, examples, self._about, error)
        self._start = self._fresh
        for rank, count in enumerate(self.examples):
            if count:
                self.server.join(str(rank), count)
        self.last: Exchanged | None = None
        self._buckets: list[Bucket] = []
        self._futures: list[Future[Tensor]] = []
        warn_if_continued(self, self._parameters[0], "pass it to hook.load_state_dict")

    def _prepare(self, model: DistributedDataParallel, plan: Plan, rounds: int | None) -> None:
        """Everything that may fail on this rank alone."""
        if not isinstance(model, DistributedDataParallel):
            raise InvalidInput(f"the model is a {type(model).__name__}: wrap it in DistributedDataParallel first")
        self._parameters = [
            parameter
            for name, parameter in model.module.named_parameters()
            if parameter.requires_grad and parameter.numel() and name not in model.parameters_to_ignore
        ]
        self._device = device_of(self._parameters)
        self._slots = {parameter: slot for slot, parameter in enumerate(self._parameters)}
        shapes = [tuple(parameter.shape) for parameter in self._parameters]
        sizes = [parameter.numel() for parameter in self._parameters]
        self._parts = [slice(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
        self._finds_unused = bool(model.find_unused_parameters or model.static_graph)
        self._about = {**plan.as_dict(), "rounds": rounds, "sizes": sizes, "scaler": self._scaler is not None}
        self.server = Server(plan, sum(sizes), rounds, shapes)
        self.uplink = Uplink(self.server.plan.for_clients(), shapes, self._device)
        compile_ahead(plan, rounds)

    def attach(self, model: DistributedDataParallel) -> None:
        """Let DDP call this hook; an error on all ranks if the model of one has a hook already."""
        error = None
        try:
            model.register_comm_hook(self, on_bucket)
        except RuntimeError:
            error = InvalidInput("this model already has a communication hook: wrap its module in a new DDP")
        Exchange(self._exchange.group, self._device).share(error=error)

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return self.server.round

    def take(self, bucket: GradBucket) -> Future[Tensor]:
        """Keep a bucket until the last one has arrived, then answer all."""
        if bucket.index() == 0:
            self._buckets, self._futures = [], []  # an interrupted backward pass may have left some
        future: Future[Tensor] = Future(devices=None if self._device.type == "cpu" else [self._device])
        self._futures.append(future)
        self._buckets.append(Bucket(bucket.buffer(), bucket.parameters(), bucket.gradients()))
        if bucket.is_last():
            buckets, futures, self._buckets, self._futures = self._buckets, self._futures, [], []
            self.reduce(buckets)
            for waiting, each in zip(futures, buckets, strict=True):
                waiting.set_result(each.buffer)
        return future

    def reduce(self, buckets: Sequence[Bucket]) -> None:
        """Algorithm 1: residual + gradient → select → encode → exchange → decode → Σ p_i · sparse_i, in place."""
        if any(bucket.buffer.is_sparse for bucket in buckets):
            raise InvalidInput("a gradient is a sparse tensor: make the embedding with sparse=False")
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        before, clock = (self.uplink.snapshot(), self.server.snapshot()), [perf_counter()]
        message, gradients, upload = self._compressed(buckets, scale)
        clock.append(perf_counter())
        packets = self._exchange.all_gather(message)
        clock.append(perf_counter())
        try:
            check_packets(packets)
            uploads = read_all(self.server, self.server.members, packets)
        except DagcError as error:
            self.uplink.rollback(before[0])
            self.server.rollback(before[1])
            skipped = self._scaler is not None and isinstance(error, NonFiniteGradient)
            self._spoil(buckets, None if skipped else error)
        else:
            skipped = False
            self._write(gradients, uploads, scale)
            self.server.close(uploads)
            if upload is not None:  # what was left out goes back into the residual
                self.uplink.settle(self.server.members[str(self._exchange.rank)].accepted_round)
        clock.append(perf_counter())
        entries, seconds = 0 if upload is None else len(upload.update), [end - start for start, end in pairwise(clock)]
        self.last = Exchanged(
            message.step + 1, 1, entries, len(message.body), *self._exchange.traffic, skipped, *seconds
        )
        log.debug("%s", self.last)

    def _compressed(self, buckets: Sequence[Bucket], scale: float) -> tuple[Packet, list[Tensor], Upload | None]:
        """This rank's message, the gradients in the model's order, and what it sends of them."""
        step = self.steps
        order = self.server.orders(self.server.members).get(str(self._exchange.rank))
        try:
            gradients = self._in_order(buckets)
            if order is None:
                return Packet(0, self._start, step, 0.0, b""), gradients, None
            unscaled = gradients if scale == 1.0 else [_divided(gradient, scale) for gradient in gradients]
            if self._finds_unused:  # DDP ignores the gradient of a parameter that no rank has used
                used = torch.stack([norm != 0 for norm in torch._foreach_norm(unscaled, torch.inf)]).tolist()
                self.uplink.excluded = [part for part, any_used in zip(self._parts, used, strict=True) if not any_used]
            upload = self.uplink.upload(unscaled, order)
        except Exception as error:  # whatever it is, the other ranks must not wait for this one
            return refusal(error, self._start, step), [], None
        return Packet(0, self._start, step, upload.norm or 0.0, upload.frame), gradients, upload

    def _write(self, gradients: list[Tensor], uploads: Sequence[Upload], scale: float) -> None:
        """Set the gradients to the weighted sum of the uploads, on their device."""
        if not uploads:
            torch._foreach_zero_(gradients)
            return
        total = self.server.total(uploads, self._device)
        if scale != 1.0:
            total.mul_(scale)
        torch._foreach_copy_(gradients, [total[at].view(g.shape) for at, g in zip(self._parts, gradients, strict=True)])

    def _in_order(self, buckets: Sequence[Bucket]) -> list[Tensor]:
        """Views of the buckets, one for each parameter, in the model's order."""
        gradients: dict[int, Tensor] = {}
        for bucket in buckets:
            for parameter, view in zip(bucket.parameters, bucket.gradients, strict=True):
                slot = self._slots.get(parameter)
                if slot is not None and view.numel() == self._parts[slot].stop - self._parts[slot].start:
                    gradients[slot] = view
                elif view.numel():
                    raise InvalidInput(
                        f"a parameter of shape {tuple(parameter.shape)} was not trainable, or had another shape, when "
                        "the hook was registered: register it when the model is complete"
                    )
        if len(gradients) < len(self._slots):
            raise InvalidInput("a parameter has left the model since the hook was registered: wrap it in a new DDP")
        return [gradients[slot] for slot in range(len(self._slots))]

    def _spoil(self, buckets: Sequence[Bucket], error: DagcError | None) -> None:
        """No rank's gradient is used: a scaler skips infinite ones, and without one an error is raised."""
        for bucket in buckets:
            bucket.buffer.fill_(torch.inf if error is None else torch.nan)
        if error is not None:
            _raise_after_backward(error)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state; every rank saves its own, together with the model and the optimizer."""
        return {
            "version": VERSION,
            "rank": self._exchange.rank,
            "world_size": self._exchange.world,
            "examples": list(self.examples),
            "about": to_tensors(self._about),
            "start": self._start,
            "uplink": to_tensors(self.uplink.state_dict()),
            "server": to_tensors(self.server.state_dict()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`: on the same rank of equally many, with the same model, data and plan.

        Raises:
            InvalidInput: If any of these differ; then nothing has changed.
        """
        here = {
            "world_size": (self._exchange.world, "start with as many ranks, or without the state"),
            "rank": (self._exchange.rank, "every rank loads the state that it saved itself"),
            "examples": (list(self.examples), "the ranks hold other data: start with the same, or without the state"),
            "about": (to_tensors(self._about), "register the model that was saved, with the same settings"),
        }
        check_version(state, "Hook", VERSION, {"version", "start", "uplink", "server", *here})
        for key, (value, remedy) in here.items():
            if not _same(state[key], value):
                raise InvalidInput(f"the state has {key} {state[key]!r:.200}, here it is {value!r:.200}: {remedy}")
        with all_or_nothing(self, "this hook: it is damaged"):
            start = zlib.crc32(b"%d %d" % (int(state["start"]), self._fresh))
            self.uplink.load_state_dict(to_arrays(state["uplink"]))
            self.server.load_state_dict(to_arrays(state["server"]))
            self._start, self.resumed = start, True

    def snapshot(self) -> tuple[Any, ...]:
        return self.uplink.snapshot(), self.server.snapshot(), self._start

    def rollback(self, snapshot: tuple[Any, ...]) -> None:
        uplink, server, self._start = snapshot
        self.uplink.rollback(uplink)
        self.server.rollback(server)


def on_bucket(hook: Hook, bucket: GradBucket) -> Future[Tensor]:
    """The function that DDP calls, with the hook as its state."""
    return hook.take(bucket)


def _group(model: Any) -> dist.ProcessGroup:
    """The model's group; that of all ranks, to tell them that this model has none."""
    group = getattr(model, "process_group", None) or (dist.group.WORLD if dist.is_initialized() else None)
    if group is None:
        raise InvalidInput(f"the model is a {type(model).__name__}: wrap it in DistributedDataParallel first")
    assert isinstance(group, dist.ProcessGroup)
    return group


def _device(model: Any) -> torch.device:
    """Where the first parameter is, for messages before anything has been checked."""
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return next((parameter.device for parameter in parameters), torch.device("cpu"))


def _divided(gradient: Tensor, scale: float) -> Tensor:
    """A gradient without its scale; float32 in place, since the sum replaces it."""
    return gradient.div_(scale) if gradient.dtype == torch.float32 else gradient.float().div_(scale)


def _same(value: Any, other: Any) -> bool:
    """Whether two values are equal; those that cannot be compared, such as tensors, are not."""
    try:
        return bool(value == other)
    except (RuntimeError, TypeError, ValueError):
        return False


def _raise_after_backward(error: DagcError) -> None:
    """Let DDP finish its backward pass before the error is raised, so that the model stays usable."""

    def throw() -> None:
        raise error

    queue: Callable[[Callable[[], None]], None] = Variable._execution_engine.queue_callback
    try:
        queue(
            lambda: queue(throw)
        )  # DDP queues its own last work after this; a callback queued from the queue runs after that
    except RuntimeError:  # no backward pass: this rank has run out of data and only follows the others
        throw()
