"""The hook: Algorithm 1 on one rank, between DDP's backward pass and its optimiser.

DDP hands gradients over in buckets, which it lays out anew after the first step. The hook waits for the last one and
puts the gradients in the order of the model's parameters; so selection, residual and checkpoints know no buckets.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, pairwise
from time import perf_counter
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Variable
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dagc.compressors import per_tensor as each_tensor
from dagc.ddp.exchange import Exchange, Message
from dagc.errors import DagcError, InvalidInput, NonFiniteGradient
from dagc.feedback import ErrorFeedback
from dagc.policies import Exchanging, Report, Setting, chosen_values, make_policy
from dagc.sparse import Sparse, aggregate
from dagc.wire import decode, encode
from dagc.wire.indices import scramble

__all__ = ["Hook", "Step", "on_bucket"]


class Step(NamedTuple):
    """What the last step of this rank took; numbers only, so that `_asdict()` can go to a log as it is.

    Attributes:
        step: Its number, from 0.
        entries: Entries that this rank sent.
        payload: Bytes of this rank's payload, and of what it told before with a method that asks for that.
        sent: Bytes that this rank handed to the network: its payload to every other rank, with heads and padding.
        received: Bytes that it got from the others.
        exchanges: 1, or 2 where somebody's payload had outgrown what was expected of it; with a method that asks before
            it decides (`dagc-global`), once or twice more.
        skipped: Whether the step was given to the scaler to skip.
        select: Seconds for error feedback and selection.
        encode: Seconds to make the payload.
        exchange: Seconds in the network, waiting for slower ranks included.
        decode: Seconds to read the payloads, sum them up and hand the gradient to DDP.
    """

    step: int
    entries: int
    payload: int
    sent: int
    received: int
    exchanges: int
    skipped: bool
    select: float
    encode: float
    exchange: float
    decode: float


class Hook:
    """One rank's error feedback and its part in the exchange; `dagc.ddp.register` makes it.

    Attributes:
        examples: How many examples each rank holds, in rank order.
        feedback: This rank's `dagc.ErrorFeedback`, over all trainable parameters in the model's order.
        policy: What decides every rank's parameter; it decides alike on all ranks.
        steps: The number of steps taken.
        last: What the last step took; None before the first.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        examples: int,
        method: str,
        values: str,
        budget: Mapping[str, float | None],
        *,
        per_tensor: bool,
        seed: int,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        """Share what every rank must know."""
        parameters = [
            parameter
            for name, parameter in model.module.named_parameters()
            if parameter.requires_grad and parameter.numel() and name not in model.parameters_to_ignore
        ]
        devices = {parameter.device for parameter in parameters}
        if len(devices) != 1:
            raise InvalidInput(f"the trainable parameters must be on one device, not on {sorted(map(str, devices))}")
        (self._device,) = devices
        self._slots = {parameter: slot for slot, parameter in enumerate(parameters)}
        sizes = [parameter.numel() for parameter in parameters]
        self._parts = [slice(*ends) for ends in pairwise(accumulate(sizes, initial=0))]
        self._scaler = scaler
        # DDP leaves the gradient of a parameter alone that no rank used: what is sent for it would be lost.
        self._some_unused = bool(model.find_unused_parameters or model.static_graph)
        self._about = {"method": method, "values": values, "per_tensor": per_tensor, "sizes": sizes}
        self._exchange = Exchange(model.process_group, self._device)
        self._outlines = Exchange(model.process_group, self._device)  # what is told before payloads, where it is
        self.examples = self._agree(examples, {**self._about, **budget, "seed": seed})
        self._weights = np.array(self.examples) / sum(self.examples)
        bytes = None if budget["bytes"] is None else int(budget["bytes"])
        values = chosen_values(values, self._weights, sum(sizes), budget["ratio"], bytes)
        self.policy = make_policy(method, Setting(self._weights, sum(sizes), values=values, **budget))  # type: ignore[arg-type]
        self.feedback = ErrorFeedback(
            each_tensor(self.policy.compressor, sizes) if per_tensor else self.policy.compressor,
            sum(sizes),
            values=values,
            seed=scramble(seed, self._exchange.rank),
            device=self._device,
        )
        self.steps = 0
        self.last: Step | None = None
        self._parameters = self.policy.parameters(0, range(self._exchange.world), [])
        self._update = torch.zeros(sum(sizes))
        self._buckets: list[tuple[Future[Tensor], Tensor, list[Tensor], list[Tensor]]] = []

    def take(self, bucket: GradBucket) -> Future[Tensor]:
        """Hold a bucket until the last one is here, then answer all."""
        if bucket.index() == 0:
            self._buckets = []  # a backward pass that broke off may have left some
        future: Future[Tensor] = Future(devices=None if self._device.type == "cpu" else [self._device])
        self._buckets.append((future, bucket.buffer(), bucket.parameters(), bucket.gradients()))
        if bucket.is_last():
            self.step()
            for waiting, buffer, _, _ in self._buckets:
                waiting.set_result(buffer)
            self._buckets = []
        return future

    def step(self) -> None:
        """Algorithm 1: residual + gradient → select → encode → exchange → decode → Σ p_i · sparse_i, in place."""
        gradients, residual = self._gradients(), self.feedback.residual
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        unscaled = gradients if scale == 1.0 else [gradient.float() / scale for gradient in gradients]
        began, policy_before = perf_counter(), self.policy.state_dict()
        parameters, told = self._settle(unscaled) if self.policy.needs_exchange else (self._parameters, None)
        clock, own, entries = [perf_counter()], Message(False, self.steps, 0.0, b""), 0
        try:
            parameter = parameters[self._exchange.rank]
            sparse = self._select(unscaled, parameter)
            entries = len(sparse)
            clock.append(perf_counter())
            norm = _norm(gradients) / scale if self.policy.wants_norms else 0.0
            silent = told is not None and parameter == 0
            own = own._replace(norm=norm, body=b"" if silent else encode(sparse, self.feedback.values))
        except NonFiniteGradient as error:
            clock.append(perf_counter())
            own = own._replace(refused=True, body=str(error).encode())
        clock.append(perf_counter())
        messages = self._exchange.all_gather(own)
        clock.append(perf_counter())

        _same_step(messages)
        refused = next((rank for rank, message in enumerate(messages) if message.refused), None)
        if refused is None:
            sparses = [self._decoded(message.body) for message in messages]
            update = aggregate(sparses, self._weights, out=self._update)
            update = (update if scale == 1.0 else update * scale).to(self._device)
            for gradient, part in zip(gradients, self._parts, strict=True):
                gradient.copy_(update[part].view(gradient.shape))
            self.steps += 1
            reports = [
                Report(rank, message.norm, len(sparse), len(message.body) + (told[rank] if told else 0))
                for rank, (message, sparse) in enumerate(zip(messages, sparses, strict=True))
                if self.examples[rank]
            ]
            self._parameters = self.policy.parameters(self.steps, range(len(messages)), reports)
        else:
            self.policy.load_state_dict(policy_before)
            self._refuse(gradients, residual, f"rank {refused}: {bytes(messages[refused].body).decode()}", own.refused)
        clock.append(perf_counter())
        select, encoding, exchange, decoding = (after - before for before, after in pairwise(clock))
        exchange += clock[0] - began  # looking at the entries included: it is the price of asking
        sent, received, times = self._exchange.traffic
        payload = len(own.body)
        if told is not None:
            before = self._outlines.traffic
            sent, received, times = sent + before[0], received + before[1], times + before[2]
            payload += told[self._exchange.rank]
        spent = (select, encoding, exchange, decoding)
        self.last = Step(own.step, entries, payload, sent, received, times, refused is not None, *spent)

    def _settle(self, gradients: list[Tensor]) -> tuple[list[Any], list[int]]:
        """Every rank's parameter, by what all tell of their entries; and how many bytes each told."""
        policy, rank = cast(Exchanging, self.policy), self._exchange.rank
        holding = [other for other, examples in enumerate(self.examples) if examples]
        floors = policy.ask(holding)
        told = b""
        if rank in holding:
            with suppress(NonFiniteGradient), self._of_used(gradients):  # the payload's place will say so
                floor = floors[holding.index(rank)]
                told = policy.tell(self.feedback.histogram(gradients, policy.bins, floor), floor)
        messages = self._outlines.all_gather(Message(False, self.steps, 0.0, told))
        _same_step(messages)
        answers = policy.answer(holding, floors, [bytes(messages[other].body) for other in holding])
        parameters = dict(zip(holding, answers, strict=True))
        return [parameters.get(other, 0) for other in range(len(messages))], [len(m.body) for m in messages]

    def _decoded(self, body: bytes | memoryview) -> Sparse:
        """What a rank sent; nothing, if it was to send nothing."""
        return decode(body, size=self.feedback.size) if len(body) else Sparse(self.feedback.size, [], [])

    def _gradients(self) -> list[Tensor]:
        """Views of the buckets, one for each parameter, in the model's order."""
        gradients: dict[int, Tensor] = {}
        for _, buffer, parameters, views in self._buckets:
            if buffer.is_sparse:
                raise InvalidInput("a gradient is a sparse tensor: make the embedding with sparse=False")
            gradients |= {self._slots[p]: view for p, view in zip(parameters, views, strict=True) if view.numel()}
        return [gradients[slot] for slot in range(len(self._slots))]

    def _select(self, gradients: list[Tensor], parameter: Any) -> Sparse:
        """What this rank sends; a rank without examples has nothing to say."""
        if not self.examples[self._exchange.rank]:
            return Sparse(self.feedback.size, [], [])
        with self._of_used(gradients):
            return self.feedback.step(gradients, parameter)

    @contextmanager
    def _of_used(self, gradients: list[Tensor]) -> Iterator[None]:
        """Without the residual of parameters that this rank has not used in this step, if there may be any."""
        if not self._some_unused:
            yield
            return
        unused = [part for gradient, part in zip(gradients, self._parts, strict=True) if not gradient.any()]
        before = self.feedback.residual
        masked = self.feedback.residual = before.clone()
        for part in unused:
            masked[part] = 0
        try:
            yield
        finally:
            if self.feedback.residual is masked:  # nothing was selected
                self.feedback.residual = before
        for part in unused:
            self.feedback.residual[part] = before[part]

    def _refuse(self, gradients: list[Tensor], residual: Tensor, why: str, own: bool) -> None:
        """A rank's gradient is not finite: nobody's is used, and nobody's residual has changed."""
        if not own and self.examples[self._exchange.rank]:
            self.feedback.residual = residual
            self.feedback.steps -= 1
        for gradient in gradients:
            gradient.fill_(torch.nan if self._scaler is None else torch.inf)
        if self._scaler is None:
            _raise_after_backward(NonFiniteGradient(why))

    def _agree(self, examples: Any, arguments: dict[str, Any]) -> list[int]:
        """Everybody's number of examples; an error on all ranks if one is wrong or if the arguments differ."""
        known = isinstance(examples, int | np.integer) and not isinstance(examples, bool) and 0 <= examples < 1 << 53
        told = json.dumps(arguments, sort_keys=True, default=str)
        digest = int.from_bytes(hashlib.sha256(told.encode()).digest()[:7], "little")
        counts, digests = zip(*self._exchange.numbers([int(examples) if known else -1, digest]), strict=True)
        if len(set(digests)) > 1:
            other = next(rank for rank in range(len(digests)) if digests[rank] != digests[0])
            raise InvalidInput(f"ranks 0 and {other} differ in their models or arguments; this rank has {told:.400}")
        if min(counts) < 0:
            here = "" if known else f", but {examples!r}"
            raise InvalidInput(f"examples of rank {counts.index(-1)} is not a number of examples, 0 or more{here}")
        if not any(counts):
            raise InvalidInput("examples is 0 on all ranks: at least one must hold data")
        return list(counts)

    def state_dict(self) -> dict[str, Any]:
        """Everything that this rank goes on from; every rank saves its own, beside the model and the optimiser."""
        return {
            "rank": self._exchange.rank,
            "world_size": self._exchange.world,
            "examples": self.examples,
            **self._about,
            "steps": self.steps,
            "parameters": list(self._parameters),
            "policy": self.policy.state_dict(),
            "residual": self.feedback.residual.cpu().clone(),
            "draws": self.feedback.steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state_dict` was taken: on the same rank of as many, with the same model, data and method.

        Raises:
            InvalidInput: If anything of that differs; nothing has changed then.
        """
        own = self.state_dict()
        if set(state) != set(own):
            raise InvalidInput(f"this is not the state of a dagc.ddp.Hook: it holds {sorted(map(str, state))!r:.200}")
        remedies = {
            "world_size": "residuals belong to their ranks: start with as many ranks, or without the state",
            "rank": "every rank loads the state that it saved itself",
            "examples": "the ranks hold other data: start with the same, or without the state",
            "sizes": "the model has other trainable parameters: build the one that was saved",
        }
        for key in (*remedies, "method", "values", "per_tensor"):
            if state[key] != own[key]:
                remedy = remedies.get(key, "register with what was saved")
                raise InvalidInput(f"the state has {key} {state[key]!r:.100}, here it is {own[key]!r:.100}: {remedy}")
        draws = np.array(state["draws"], dtype=np.int64)
        self.feedback.load_state_dict({"residual": state["residual"].cpu().numpy(), "steps": draws})
        self.policy.load_state_dict(state["policy"])
        self.steps, self._parameters = int(state["steps"]), list(state["parameters"])


def on_bucket(hook: Hook, bucket: GradBucket) -> Future[Tensor]:
    """What DDP calls, with the hook as its state."""
    return hook.take(bucket)


def _same_step(messages: Sequence[Message]) -> None:
    steps = [message.step for message in messages]
    if len(set(steps)) > 1:
        raise DagcError(f"the ranks are at different steps, {steps} in rank order: load checkpoints of one step")


def _norm(gradients: list[Tensor]) -> float:
    norms = torch._foreach_norm([gradient.float() for gradient in gradients])
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def _raise_after_backward(error: DagcError) -> None:
    """Let DDP finish its backward pass before the error is raised, so that the model can go on being used."""

    def throw() -> None:
        raise error

    queue: Callable[[Callable[[], None]], None] = Variable._execution_engine.queue_callback
    try:
        queue(lambda: queue(throw))  # DDP queues its own last work after this; what that queue adds comes behind it
    except RuntimeError:  # no backward pass: this rank has run out of data and only shadows the others
        throw()
