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

from dagc.ddp.rank import Rank, check_version, log, make_plan, to_tensors, warn_if_continued
from dagc.ddp.rank_model import device_of
from dagc.errors import DagcError, InvalidInput, NonFiniteGradient
from dagc.policies import Plan
from dagc.state import all_or_nothing, plain

VERSION = 1  # of what `Hook.state_dict` returns


class Bucket(NamedTuple):
    """Gradients as DDP hands them over: one buffer, the parameters in it, and a view of it for each."""

    buffer: Tensor
    parameters: Sequence[Tensor]
    gradients: Sequence[Tensor]


class Hook(Rank):
    """One rank's half of the protocol as a client, and the server's half, which decides alike on all ranks.

    `dagc.ddp.register` creates it. There is no downlink: every rank sums what all have sent.

    Attributes:
        examples: How many examples each rank holds, in rank order.
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
        super().__init__(*_place(model))
        self._scaler, self.resumed = scaler, False

        def prepare() -> dict[str, Any]:
            checked = make_plan(plan, settings, self._exchange.world, local_steps=False)
            if not isinstance(model, DistributedDataParallel):
                raise InvalidInput(f"the model is a {type(model).__name__}: wrap it in DistributedDataParallel first")
            parameters = [
                parameter
                for name, parameter in model.module.named_parameters()
                if parameter.requires_grad and parameter.numel() and name not in model.parameters_to_ignore
            ]
            self._slots = {parameter: slot for slot, parameter in enumerate(parameters)}
            ends = accumulate((parameter.numel() for parameter in parameters), initial=0)
            self._parts = [slice(*at) for at in pairwise(ends)]
            self._finds_unused = bool(model.find_unused_parameters or model.static_graph)
            self._prepare(checked, [tuple(each.shape) for each in parameters], rounds, device_of(parameters))
            self._about["scaler"] = scaler is not None
            return self._about

        self._agree(examples, prepare)
        for rank in self._present:
            self.server.join(rank, self.examples[int(rank)])
        self._buckets: list[Bucket] = []
        self._futures: list[Future[Tensor]] = []
        warn_if_continued(self, next(iter(self._slots)), "pass it to hook.load_state_dict")

    def attach(self, model: DistributedDataParallel) -> None:
        """Let DDP call this hook; an error on all ranks if the model of one has a hook already."""

        def register() -> None:
            try:
                model.register_comm_hook(self, Hook.take)
            except RuntimeError as error:
                words = "this model already has a communication hook: wrap its module in a new DDP"
                raise InvalidInput(words) from error

        self._talk.share(register)

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
        self._scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        flight = self._compress(lambda: self._unscaled(buckets))
        began = perf_counter()
        packets = self._exchange.all_gather(flight.message)
        waited = perf_counter() - began
        try:
            self._use(flight, packets, waited)
        except DagcError as error:  # no rank's gradient is used: a scaler skips infinite ones
            skipped = self._scaler is not None and isinstance(error, NonFiniteGradient)
            for bucket in buckets:
                bucket.buffer.fill_(torch.inf if skipped else torch.nan)
            self._note(flight, waited, perf_counter() - began - waited, skipped)
            if not skipped:
                _raise_after_backward(error)
        log.debug("%s", self.last)

    def _unscaled(self, buckets: Sequence[Bucket]) -> list[Tensor]:
        """The gradients without their scale; float32 in place, since the sum replaces them."""
        gradients = self._gradients = self._in_order(buckets)
        if self._scale != 1.0:
            gradients = [
                (gradient if gradient.dtype == torch.float32 else gradient.float()).div_(self._scale)
                for gradient in gradients
            ]
        if self._finds_unused:  # DDP ignores the gradient of a parameter that no rank has used
            used = torch.stack([norm != 0 for norm in torch._foreach_norm(gradients, torch.inf)]).tolist()
            self.uplink.excluded = [part for part, any_used in zip(self._parts, used, strict=True) if not any_used]
        return gradients

    def _apply(self, total: Tensor | None) -> None:
        """Set the gradients to the weighted sum of the uploads, on their device."""
        gradients, self._gradients = self._gradients, []
        if total is None:
            torch._foreach_zero_(gradients)
            return
        if self._scale != 1.0:
            total.mul_(self._scale)
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

    def state_dict(self) -> dict[str, Any]:
        """This rank's state; every rank saves its own, together with the model and the optimizer."""
        return self._state(VERSION, start=self._start)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`: on the same rank of equally many, with the same model, data and plan.

        If any of these differ, `InvalidInput` says which, and nothing has changed.
        """
        here = {
            "world_size": (self._exchange.world, "start with as many ranks, or without the state"),
            "rank": (self._exchange.rank, "every rank loads the state that it saved itself"),
            "examples": (list(self.examples), "the ranks hold other data: start with the same, or without the state"),
            "about": (to_tensors(self._about), "register the model that was saved, with the same settings"),
        }
        check_version(state, "Hook", VERSION, {"version", "start", "uplink", "server", *here})
        with all_or_nothing(self, "this hook: it is damaged"):
            for key, (value, remedy) in here.items():
                if state[key] != value:
                    raise InvalidInput(f"the state has {key} {state[key]!r:.200}, here it is {value!r:.200}: {remedy}")
            start = zlib.crc32(b"%d %d" % (int(state["start"]), self._number))
            self.uplink.load_state_dict(plain(state["uplink"]))
            self.server.load_state_dict(plain(state["server"]))
            self._start, self.resumed = start, True


def _place(model: Any) -> tuple[dist.ProcessGroup, torch.device]:
    """The model's group and device; if it has none, those to tell all ranks so."""
    group = getattr(model, "process_group", None) or (dist.group.WORLD if dist.is_initialized() else None)
    if group is None:
        raise InvalidInput(f"the model is a {type(model).__name__}: wrap it in DistributedDataParallel first")
    assert isinstance(group, dist.ProcessGroup)
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
    return group, next((parameter.device for parameter in parameters), torch.device("cpu"))


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
