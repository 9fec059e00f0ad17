"""The local engine: all clients and the server in one process. `Federation.step` is a round of Algorithm 1."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Any

import numpy as np
import torch
from torch import nn

from dagc import data, models
from dagc.draws import scramble
from dagc.errors import InvalidInput, NonFiniteGradient, OutsideBound, unknown
from dagc.network import make_network
from dagc.policies import Plan
from dagc.policies.rate import finite
from dagc.protocol import ModelServer, Order, Replica, Server, Uplink, Upload
from dagc.state import all_or_nothing, whole
from dagc.training.config import Config, is_own
from dagc.training.custom import Custom, fit_to_data, not_passed
from dagc.training.gradients import Computed, Gradients, OwnSteps, Traits, sharing, try_out
from dagc.training.objective import Goal, forward, goal_of
from dagc.training.optimizer import as_one_vector
from dagc.training.parallel import Parallel, one_thread, return_memory
from dagc.training.prospects import check_rounds
from dagc.training.round import Round
from dagc.training.schedule import rate_at

__all__ = ["Federation", "Round"]

log = getLogger("dagc.training")
MOMENTUM_RATE = 0.5
"""The server's rate with momentum, if none is given: the best of what was tried with a momentum of 0.9."""
RANDOM_BITS = 4
"""Bits per entry of a random first model: training from it ends where it ends from the exact one."""
TESTED = 50
"""Test samples per batch."""


class Federation:
    """Clients, a server and a simulated network in one process.

    Attributes:
        model: The clients' model: they train on it, and it is evaluated. Its parameters are views of `vector`.
        optimizer: The server's own model, and the optimiser that moves it.
        names: The clients' names, in the order of the partition.
        goal: What is minimised and measured.
        buffers: The model's buffers that change in training, such as batch norm's, by name.
        notes: What a user should know about the data and its split.
        server: The server's half of the protocol.
        uplinks: What each client sends, by name, of those that have taken part.
        round: How many rounds are done.
    """

    def __init__(self, config: Config, custom: Custom | None = None) -> None:
        """Load the data, split it, build the model. Everything that cannot work is refused here.

        Args:
            config: What to train.
            custom: What replaces the parts named by the configuration.
        """
        custom = custom or Custom()
        for what, name, part in (("model", config.model, custom.model), ("data", config.data, custom.data)):
            if is_own(name) and part is None:
                raise not_passed(config, what)
        self.custom = custom
        self.data = self._load_data(config, custom)
        self.config, notes = (config, ()) if custom.partition is not None else fit_to_data(config, self.data)
        self.notes = (*self.data.notes, *notes)
        config = self.config
        self.partition = custom.partition or data.make_partition(config.partition_spec, self.data, config.seed)
        self.names = self.partition.names or tuple(map(str, range(len(self.partition))))
        self.goal: Goal = goal_of(self.data, custom.loss, custom.metric)
        self.model = self._make_model(config, custom)
        self.vector = as_one_vector(self.model)
        self._tested = sharing(self.model).eval()
        for name in config.caps:
            if name not in self.names:
                raise unknown("client for the cap of", name, self.names)
        self.optimizer = config.server_optimizer(self.vector.cpu().clone())
        momentum = self.optimizer.has_momentum
        self.server = ModelServer(self._plan(), self.vector, config.rounds, self._shapes, momentum)
        self.vector.copy_(self.server.model)  # the first model may have been rounded
        self.optimizer.vector.data.copy_(self.server.target)
        self.first_orders()
        examples = dict(zip(self.names, map(float, self.partition.sizes), strict=True))
        check_rounds(self._plan(), self.size, examples, config.rounds, config.participation)
        self.uplinks: dict[str, Uplink] = {}
        batches = data.Batches(self.data, self.partition, config.batch_size, config.seed)
        decay, optimizer = config.client_weight_decay, config.client_optimizer
        own_steps = OwnSteps(config.local_steps, config.epochs, config.client_momentum, decay, optimizer)
        traits = self._traits(batches)
        self.gradients = Gradients(
            self.model, batches, own_steps if config.several_steps else None, self.goal.loss, traits
        )
        self.buffers = {name: self.model.get_buffer(name) for name in traits.buffers}
        self._buffer_bytes = sum(buffer.numel() * buffer.element_size() for buffer in self.buffers.values())
        self.network = make_network(config.network)
        for i in range(len(self.names)):  # a trace may lack some clients
            self.network.rate(i, "up", 0)
        self.bytes_up, self.bytes_down, self.seconds = 0, 0, 0.0
        self._rounded: dict[int, torch.Tensor] = {}  # the models of this round's visitors, by client
        self._parallel = Parallel(1 if traits.draws else config.threads)  # torch has one generator for all threads
        return_memory()  # what loading left behind

    @staticmethod
    def _load_data(config: Config, custom: Custom) -> data.Dataset:
        if custom.data is None:
            columns: Any = {"label": config.label, "client": config.client}
            return data.load(config.data, config.data_dir, config.augment, config.objective, **columns)
        return replace(custom.data, augment=True) if config.augment else custom.data

    def _make_model(self, config: Config, custom: Custom) -> nn.Module:
        """The federation's own model: built, or copied from the one given."""
        if custom.model is None:
            return models.build(config.model, self.data, seed=config.seed).to(config.device)
        try:
            return copy.deepcopy(custom.model).to(config.device).train()
        except (RuntimeError, TypeError) as error:
            raise InvalidInput(f"the model cannot be copied: {error}") from error

    def _plan(self) -> Plan:
        """The configuration's plan; a model that was built here is random, so that fewer bits are enough for it."""
        plan = self.config.plan()
        default = self.config.method_spec.defaults.get("first_bits")
        fewer = self.custom.model is None and default is not None and plan.first_bits == default
        return plan.replaced(first_bits=RANDOM_BITS) if fewer else plan

    def _traits(self, batches: data.Batches) -> Traits:
        """The model's side effects. A model passed in Python is tried with the smallest client's batch."""
        passed = (self.custom.model, self.custom.data, self.custom.loss)
        ours = not any(each is not None for each in passed) and models.MODELS[self.config.model].initialise is not None
        if ours:
            return Traits()
        smallest = int(self.partition.sizes.argmin())
        x, y = batches.batch(smallest, 0)
        x, y = x.to(self.config.device), y.to(self.config.device)
        try:
            return try_out(self.model, self.goal.loss, x, y)
        except Exception as error:  # whatever somebody's own model or loss may raise
            where = f"client {self.names[smallest]!r} with {len(y)} examples of shape {tuple(x.shape[1:])}"
            why = str(error) or type(error).__name__
            raise InvalidInput(f"the model cannot train on a batch of {where}: {why}") from error

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self.server.round

    @property
    def size(self) -> int:
        """The number of entries of the model."""
        return self.server.size

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        """Of the model's tensors."""
        return [tuple(parameter.shape) for parameter in self.model.parameters() if parameter.requires_grad]

    def first_orders(self) -> list[Any]:
        """The parameter that each client would get if all took part in the first round."""
        server = Server(self._plan(), self.size, self.config.rounds)
        for name, examples in zip(self.names, self.partition.sizes, strict=True):
            server.join(name, int(examples))
        return [order.amount for order in server.orders(self.names).values()]

    def step(self, asked: Sequence[int] | None = None) -> Round:
        """One round.

        Args:
            asked: The clients that take part, by their places in the partition; by default `Config.participation` of
                them, drawn at random.
        """
        t = self.round
        asked = self._asked(t) if asked is None else asked
        answering = [i for i in asked if self._chance(t, i, "fails") >= self.config.failures]
        for i in asked:
            self.server.join(self.names[i], int(self.partition.sizes[i]))
        if self.server.budget.account is not None:
            self.seconds += self.server.budget.account.wait(len(asked), self.seconds)
        orders = self.server.orders([self.names[i] for i in asked], self.seconds)
        downloads = {i: self.server.download(self.names[i]) for i in answering}
        down = [len(downloads[i].frame) + self._buffer_bytes for i in answering]
        self._rounded = {i: Replica(self._shapes).receive(each) for i, each in downloads.items() if each.version < 0}
        with one_thread():
            uploads, computed, took = self._work(t, [(i, orders[self.names[i]]) for i in answering])

        accepted = []
        for i, upload in zip(answering, uploads, strict=True):
            try:
                received = self.server.read(self.names[i], upload.frame, upload.norm)
            except OutsideBound as error:
                log.warning("round %d: client %s is left out: %s", t + 1, self.names[i], error)
                continue
            if self._chance(t, i, "late") >= self.config.late:
                accepted.append(received)
        if accepted:
            self.optimizer.step(self.server.total(accepted), self._rates(t)[1])
        self.server.advance(accepted, self.optimizer.vector if accepted else None)
        self.vector.copy_(self.server.model)
        buffers = {self.names[i]: each.buffers for i, each in zip(answering, computed, strict=True)}
        self._average_buffers({upload.client: buffers[upload.client] for upload in accepted if upload.frame})
        for i in answering:
            name = self.names[i]
            self.uplinks[name].settle(self.server.members[name].accepted_round)

        up = [len(upload.frame) + (self._buffer_bytes if upload.frame else 0) for upload in uploads]
        self.seconds += self._slowest(answering, down, took, up)
        self.bytes_up += sum(up)
        self.bytes_down += sum(down)
        counted = (sum(up), sum(down), self.bytes_up, self.bytes_down, self.seconds)
        entries = sum(len(upload.update) for upload in uploads)
        loss = self._loss(answering, [each.loss for each in computed])
        return Round(self.round, loss, len(answering), entries, *counted)

    def _average_buffers(self, buffers: Mapping[str, list[torch.Tensor]]) -> None:
        """The mean of the clients' buffers, weighted by their data; for counts, the largest.

        Buffers are sent in full, next to the frames: a running variance sent in parts would turn negative.
        """
        if not buffers or not self.buffers:
            return
        weights = torch.tensor([self.server.members[name].examples for name in buffers], dtype=torch.float64)
        weights = (weights / weights.sum()).to(self.vector.device)
        for buffer, theirs in zip(self.buffers.values(), zip(*buffers.values(), strict=True), strict=True):
            every = torch.stack(theirs)
            mean = every.is_floating_point()
            buffer.copy_(torch.tensordot(weights, every.double(), 1) if mean else every.amax(0))

    def _rates(self, round: int) -> tuple[float, float]:
        """The clients' rate and the server's. With one local step, only the server steps, with the learning rate."""
        config = self.config
        clients = rate_at(config.schedule, config.learning_rate, round, config.rounds)
        if not config.several_steps:
            return clients, clients
        usual = MOMENTUM_RATE if config.momentum else 1.0  # a difference includes the learning rate
        first = usual if config.server_rate is None else config.server_rate
        return clients, rate_at(config.server_schedule, first, round, config.rounds)

    def evaluate(self) -> tuple[float, float]:
        """The score (accuracy, unless there is another metric) and the mean loss on the whole test set."""

        def chunk(start: int) -> tuple[float, float, int]:
            x = self.data.normalise(self.data.test_x[start : start + TESTED]).to(self.config.device)
            y = self.data.test_y[start : start + TESTED].to(self.config.device)
            with torch.no_grad():
                output = forward(self._tested, x, y)
                return self.goal.score(output, y), self.goal.total(output, y), self.goal.count(y)

        with one_thread():
            results = self._parallel.map(chunk, range(0, len(self.data.test_y), TESTED))
        n = sum(count for _, _, count in results)
        return sum(score for score, _, _ in results) / n, sum(loss for _, loss, _ in results) / n

    def _asked(self, round: int) -> list[int]:
        """The clients that take part in a round."""
        everybody = list(range(len(self.names)))
        asked = max(1, int(np.ceil(self.config.participation * len(everybody) - 1e-9)))
        if asked == len(everybody):
            return everybody
        return sorted(sorted(everybody, key=lambda i: self._chance(round, i, "asked"))[:asked])

    def _chance(self, round: int, client: int, what: str) -> float:
        """A random number from 0 to 1 that is a function of the arguments and the seed."""
        if not (self.config.participation < 1 or self.config.failures or self.config.late):
            return 1.0
        purpose = ("asked", "fails", "late").index(what)
        return scramble(scramble(scramble(self.config.seed, round), client), purpose) / 2.0**64

    def _work(self, round: int, jobs: list[tuple[int, Order]]) -> tuple[list[Upload], list[Computed], list[float]]:
        """Every client's upload, what it was computed from, and how long that took.

        Each step is done for all clients of a group before the next: its code then stays in the processor's cache.
        """
        for i, _ in jobs:
            self._uplink(self.names[i])
        rate, server_rate = self._rates(round)

        def work(some: list[tuple[int, Order]]) -> list[tuple[Upload, Computed, float]]:
            began = time.perf_counter()
            models = [self._rounded.get(i, self.vector) for i, _ in some]
            starts = [
                self._uplink(self.names[i]).start(model, server_rate)
                for (i, _), model in zip(some, models, strict=True)
            ]
            ahead = starts if self.server.plan.step_ahead or self._rounded else None
            computed = self.gradients(round, [i for i, _ in some], rate, ahead)
            uploads = [self._upload(i, order, each.change) for (i, order), each in zip(some, computed, strict=True)]
            took = (time.perf_counter() - began) / len(some)
            rest = [each._replace(change=[]) for each in computed]  # free the gradients' memory
            return [(upload, each, took) for upload, each in zip(uploads, rest, strict=True)]

        results = self._parallel.in_waves(work, jobs, self.gradients.together)
        took = self._timed(round, [took for _, _, took in results])
        return [upload for upload, _, _ in results], [each for _, each, _ in results], took

    def _uplink(self, name: str) -> Uplink:
        """A client's uplink, created when it first takes part."""
        if name not in self.uplinks:
            self.uplinks[name] = Uplink(self.server.plan.for_clients(), self._shapes, self.config.device)
        return self.uplinks[name]

    def _upload(self, i: int, order: Order, gradient: list[torch.Tensor]) -> Upload:
        try:
            return self._uplink(self.names[i]).upload(gradient, order)
        except NonFiniteGradient as error:
            raise NonFiniteGradient(f"client {self.names[i]}, round {order.round}: {error}") from None

    def _timed(self, round: int, took: list[float]) -> list[float]:
        """The compute time on the simulated clock. The time measured here decides whether threads are worthwhile."""
        if round > 0:  # the first round compiles and warms up
            self._parallel.decide(took)
        seconds = self.config.compute_seconds
        return took if seconds == "measured" else [float(seconds)] * len(took)

    def _slowest(self, who: list[int], down: list[int], took: list[float], up: list[int]) -> float:
        """A synchronous round lasts as long as its slowest client: download, compute, upload."""
        slowest = 0.0
        for i, received, computed, sent in zip(who, down, took, up, strict=True):
            here = self.network.seconds(i, "down", received, self.seconds) + computed
            slowest = max(slowest, here + self.network.seconds(i, "up", sent, self.seconds + here))
        return slowest

    def _loss(self, answering: list[int], losses: list[float]) -> float | None:
        sizes = self.partition.sizes[answering]
        return float(np.dot(sizes / sizes.sum(), losses)) if answering else None

    def state_dict(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "server": self.server.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "buffers": {name: buffer.cpu().numpy() for name, buffer in self.buffers.items()},
            "clients": {name: uplink.state_dict() for name, uplink in self.uplinks.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`. State that does not fit is refused, and then nothing changes."""
        with all_or_nothing(self, "this configuration"):
            self._load(state)

    def _load(self, state: Mapping[str, Any]) -> None:
        self.seconds = finite(state["seconds"])
        self.bytes_up, self.bytes_down = whole(state["bytes_up"]), whole(state["bytes_down"])
        self.server.load_state_dict(state["server"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.vector.data.copy_(self.server.target)
        self.vector.copy_(self.server.model)
        if state["buffers"].keys() != self.buffers.keys():
            raise ValueError(f"the model's buffers are {', '.join(self.buffers)}")
        for name, buffer in self.buffers.items():
            values = torch.from_numpy(state["buffers"][name].copy())
            if (values.shape, values.dtype) != (buffer.shape, buffer.dtype):
                raise ValueError(f"the buffer {name!r} is {values.dtype} {tuple(values.shape)}")
            buffer.copy_(values)
        self.uplinks = {}
        for name, client in state["clients"].items():
            if name not in self.names:
                raise ValueError(f"there is no client {name!r}")
            self._uplink(name).load_state_dict(client)
        if whole(state["round"]) != self.round or self.seconds < 0:
            raise ValueError(f"{self.round} rounds are done, not {state['round']}, in {self.seconds} seconds")

    def snapshot(self) -> dict[str, Any]:
        return copy.deepcopy(self.state_dict())

    def rollback(self, snapshot: dict[str, Any]) -> None:
        self._load(snapshot)
