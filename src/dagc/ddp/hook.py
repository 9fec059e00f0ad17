"""The hook: Algorithm 1 on one rank, between DDP's backward pass and its optimiser.

DDP passes gradients in buckets, which it rearranges after the first step. The hook waits for the last bucket and puts
the gradients in the order of the model's parameters, so selection, residual and checkpoints do not depend on buckets.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Variable
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from dagc.compressors import Compressor, Gradient
from dagc.ddp.agreement import agree, log, make_plan, read_all, same_step
from dagc.ddp.exchange import Exchange, Packet
from dagc.errors import DagcError, InvalidInput, MalformedPayload, NonFiniteGradient
from dagc.protocol import Client, Order, Server, Settings, Upload
from dagc.sparse import Sparse
from dagc.state import below

__all__ = ["Hook", "Step", "on_bucket"]

VERSION = 1
"""The version of what `Hook.state_dict` returns."""


class Step(NamedTuple):
    """What the last step of this rank took. Only numbers, so that `_asdict()` can be logged directly.

    Attributes:
        step: Its number, from 0.
        entries: Entries that this rank sent.
        payload: Bytes of this rank's payload; 0 if it waits.
        sent: Bytes that this rank handed to the network: its payload to every other rank, with heads and padding.
        received: Bytes that it received from the others.
        exchanges: 1, or 2 if a payload was larger than expected.
        skipped: Whether the scaler was made to skip the step.
        compress: Seconds for error feedback, selection and the payload.
        exchange: Seconds in the network, including waiting for slower ranks.
        decode: Seconds to decode the payloads, sum them and pass the gradient to DDP.
    """

    step: int
    entries: int
    payload: int
    sent: int
    received: int
    exchanges: int
    skipped: bool
    compress: float
    exchange: float
    decode: float


class Rank(Client):
    """The client's half on a rank; it does not send entries of parameters that it has not used.

    DDP ignores the gradient of a parameter that no rank has used: what is sent for it would be lost.

    Attributes:
        unused: The parameters that this rank has not used in this step, as parts of the vector.
    """

    unused: Sequence[slice] = ()

    def _compressor(self, order: Order) -> Compressor:
        """Like a client's, but nothing unused is selected; its residual stays."""
        compressor, unused = super()._compressor(order), self.unused
        if not unused:
            return compressor

        def select(vector: Gradient, parameter: Any, *, seed: int = 0) -> Sparse:
            assert isinstance(vector, Tensor)
            used = torch.ones_like(vector, dtype=torch.bool)
            for part in unused:
                used[part] = False
            sparse = compressor(torch.where(used, vector, 0.0), parameter, seed=seed)
            keep = used.cpu().numpy()[sparse.indices]
            if keep.all():
                return sparse
            return Sparse.trusted(sparse.size, sparse.indices[keep], sparse.values[keep])

        return select


class Hook:
    """One rank's half of the protocol as a client, and the server's half, which decides alike on all ranks.

    `dagc.ddp.register` creates it. There is no downlink: every rank sums what all have sent.

    Attributes:
        examples: How many examples each rank holds, in rank order.
        client: This rank's half, over all trainable parameters in the model's order.
        server: The server's half; its members are the ranks that hold examples, by their numbers as names.
        last: What the last step took; None before the first.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        examples: int,
        settings: Settings,
        rounds: int | None,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        """Exchange what every rank must know."""
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
        self._some_unused = bool(model.find_unused_parameters or model.static_graph)
        self._exchange = Exchange(model.process_group, self._device)
        given = {"rounds": rounds, "sizes": sizes, "scaler": scaler is not None}
        self.examples = agree(self._exchange, examples, {**settings, **given})
        plan = make_plan(
            settings, self._exchange.world, local_steps=False
        )  # after agreeing, so that all ranks refuse it
        self._about = {**plan.settings(), **given}
        shapes = [tuple(parameter.shape) for parameter in parameters]
        self.client = Rank(shapes, self._device)
        self.server = Server(plan, sum(sizes), rounds, shapes)
        for rank, held in enumerate(self.examples):
            if held:
                self.server.join(str(rank), held)
        self.last: Step | None = None
        self._buckets: list[tuple[Future[Tensor], Tensor, list[Tensor], list[Tensor]]] = []

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return self.server.round

    def take(self, bucket: GradBucket) -> Future[Tensor]:
        """Keep a bucket until the last one has arrived, then answer all."""
        if bucket.index() == 0:
            self._buckets = []  # an interrupted backward pass may have left some
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
        gradients = self._gradients()
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        unscaled = gradients if scale == 1.0 else [gradient.float() / scale for gradient in gradients]
        client = self.client
        before = client.feedback.residual, client.feedback.steps, client.sent, self.server.numbers()
        clock = [perf_counter()]
        order = self.server.orders(self.server.members).get(str(self._exchange.rank))
        own, upload = Packet(False, self.steps, 0.0, b""), None
        try:
            if order is not None:
                upload = self._upload(unscaled, order)
                own = own._replace(norm=upload.norm or 0.0, body=upload.frame)
        except NonFiniteGradient as error:
            own = own._replace(refused=True, body=str(error).encode())
        clock.append(perf_counter())
        packets = self._exchange.all_gather(own)
        clock.append(perf_counter())

        same_step(packets)
        refused = next((rank for rank, packet in enumerate(packets) if packet.refused), None)
        try:
            if refused is not None:
                raise NonFiniteGradient(f"rank {refused}: {bytes(packets[refused].body).decode()}")
            uploads = read_all(self.server, self.server.members, packets)
        except (NonFiniteGradient, MalformedPayload) as error:
            feedback = client.feedback
            feedback.residual, feedback.steps, client.sent, server = before
            client.pending = None
            self.server.load(self.server.arrays(), server)
            self._refuse(gradients, error)
        else:
            update = self.server.total(uploads) if uploads else torch.zeros(self.server.size)
            update = (update if scale == 1.0 else update * scale).to(self._device)
            for gradient, part in zip(gradients, self._parts, strict=True):
                gradient.copy_(update[part].view(gradient.shape))
            self.server.close(uploads)
            if upload is not None:  # what was left out goes back into the residual
                client.settle(self.server.members[str(self._exchange.rank)].taken)
        clock.append(perf_counter())
        compress, exchange, decoding = (after - earlier for earlier, after in pairwise(clock))
        entries = 0 if upload is None else len(upload.sparse)
        traffic = self._exchange.traffic
        spent = (compress, exchange, decoding)
        self.last = Step(own.step, entries, len(own.body), *traffic, refused is not None, *spent)
        log.debug("%s", self.last)

    def _gradients(self) -> list[Tensor]:
        """Views of the buckets, one for each parameter, in the model's order."""
        gradients: dict[int, Tensor] = {}
        for _, buffer, parameters, views in self._buckets:
            if buffer.is_sparse:
                raise InvalidInput("a gradient is a sparse tensor: make the embedding with sparse=False")
            gradients |= {self._slots[p]: view for p, view in zip(parameters, views, strict=True) if view.numel()}
        return [gradients[slot] for slot in range(len(self._slots))]

    def _upload(self, gradients: list[Tensor], order: Order) -> Upload:
        """What this rank sends: nothing for parameters that it has not used in this step."""
        if self._some_unused:
            parts = zip(gradients, self._parts, strict=True)
            self.client.unused = [part for gradient, part in parts if not gradient.any()]
        return self.client.upload(gradients, order)

    def _refuse(self, gradients: list[Tensor], error: DagcError) -> None:
        """A rank's gradient is not finite or arrived damaged: none is used, and no residual has changed."""
        skipped = self._scaler is not None and isinstance(error, NonFiniteGradient)
        for gradient in gradients:
            gradient.fill_(torch.inf if skipped else torch.nan)
        if not skipped:
            _raise_after_backward(error)

    def state_dict(self) -> dict[str, Any]:
        """This rank's state; every rank saves its own, together with the model and the optimiser."""
        own = {**self.client.arrays(), **{f"server.{name}": array for name, array in self.server.arrays().items()}}
        arrays = {name: torch.from_numpy(array.copy()) for name, array in own.items()}
        return {
            "version": VERSION,
            "rank": self._exchange.rank,
            "world_size": self._exchange.world,
            "examples": list(self.examples),
            "about": dict(self._about),
            "arrays": arrays,
            "client": self.client.numbers(),
            "server": self.server.numbers(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`: on the same rank of equally many, with the same model, data and plan.

        Raises:
            InvalidInput: If any of these differ; then nothing has changed.
        """
        own = self.state_dict()
        if not isinstance(state, Mapping) or "version" not in state:
            raise InvalidInput("this is not the state of a dagc.ddp.Hook, or one of dagc 0.1, which cannot be loaded")
        version = state["version"]
        if not isinstance(version, int) or version > VERSION:
            raise InvalidInput(f"the state has version {version!r:.50}, this is {VERSION}: update dagc to load it")
        if set(state) != set(own):
            raise InvalidInput(f"this is not the state of a dagc.ddp.Hook: it holds {sorted(map(str, state))!r:.200}")
        remedies = {
            "world_size": "residuals belong to their ranks: start with as many ranks, or without the state",
            "rank": "every rank loads the state that it saved itself",
            "examples": "the ranks hold other data: start with the same, or without the state",
            "about": "register the model that was saved, with the same settings",
        }
        for key, remedy in remedies.items():
            if not _same(state[key], own[key]):
                raise InvalidInput(f"the state has {key} {state[key]!r:.200}, here it is {own[key]!r:.200}: {remedy}")
        before = {name: np.asarray(array) for name, array in own["arrays"].items()}
        try:
            arrays = {name: np.asarray(array.cpu()) for name, array in state["arrays"].items()}
            self.client.load(arrays, state["client"])
            self.server.load(below(arrays, "server."), state["server"])
        except (InvalidInput, AttributeError, TypeError, ValueError, RuntimeError, IndexError) as error:
            self.client.load(before, own["client"])
            self.server.load(below(before, "server."), own["server"])
            raise InvalidInput(f"the state is damaged: {error}") from error


def on_bucket(hook: Hook, bucket: GradBucket) -> Future[Tensor]:
    """The function that DDP calls, with the hook as its state."""
    return hook.take(bucket)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal; those that cannot be compared, such as tensors, are not."""
    try:
        return bool(one == other)
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
