"""The local engine: all clients and the server in one process. `Federation.step` is a round of Algorithm 1."""

import copy
import time
from collections.abc import Mapping, Sequence
from logging import getLogger
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dagc import data, models
from dagc.draws import scramble
from dagc.errors import InvalidInput, NonFiniteGradient, OutsideBound, unknown
from dagc.network import make_network
from dagc.policies import Plan
from dagc.protocol import ModelServer, Order, Replica, Server, Uplink, Upload
from dagc.protocol.outlook import check_rounds
from dagc.state import all_or_nothing, finite, whole
from dagc.training.config import Config
from dagc.training.custom import Custom, fit_to_data
from dagc.training.gradients import Gradients, Traits, sharing, try_out
from dagc.training.objective import forward, goal_of, notes_of, with_enough_outputs
from dagc.training.optimizer import as_one_vector, rate_at
from dagc.training.parallel import Parallel, one_thread, return_memory
from dagc.training.result import Round

log = getLogger("dagc.training")
MOMENTUM_RATE = 0.5
"""The server's rate with momentum, if none is given: the best of what was tried with a momentum of 0.9."""
RANDOM_BITS = 4  # bits per entry of a random first model: training from it ends where it ends from the exact one
TESTED = 50  # test samples per batch


class _Turn(NamedTuple):
    """A client's part of a round: its place, what it uploads, and what that took."""

    place: int
    upload: Upload
    loss: float
    buffers: list[Tensor]
    down: int
    up: int
    seconds: float


class Federation:
    """Clients, a server and a simulated network in one process.

    Attributes:
        model: The clients' model: they train on it, and it is evaluated. Its parameters are views of `vector`.
        optimizer: The server's own model, and the optimizer that moves it.
        names: The clients' names, in the order of the partition.
        goal: What is minimized and measured.
        buffers: The model's buffers that change in training, such as batch norm's, by name.
        notes: What a user should know about the data and its split.
        server: The server's half of the protocol.
        uplinks: What each client sends, by name, of those that have taken part.
    """

    def __init__(self, config: Config, custom: Custom | None = None) -> None:
        """Load the data, split it, build the model. Everything that cannot work is refused here."""
        self.custom = custom = custom or Custom()
        self.data = custom.data_of(config)
        self.config, notes = (config, ()) if custom.partition is not None else fit_to_data(config, self.data)
        self.notes = (*self.data.notes, *notes)
        config = self.config
        self.partition = custom.partition or data.make_partition(config.partition_spec, self.data, config.seed)
        self.names = self.partition.names or tuple(map(str, range(len(self.partition))))
        for name in config.caps:
            if name not in self.names:
                raise unknown("client for the cap of", name, self.names)
        self.goal = goal_of(self.data, custom.loss, custom.metric)
        self.notes += notes_of(self.data, custom.metric) if config.objective == "auto" else ()
        self.model = custom.model_of(config, self.data)
        self.vector = as_one_vector(self.model)
        self._tested = sharing(self.model).eval()
        self._shapes = [tuple(each.shape) for each in self.model.parameters() if each.requires_grad]
        self.optimizer = config.server_optimizer(self.vector.cpu().clone())
        self.server = ModelServer(self._plan(), self.vector, config.rounds, self._shapes, self.optimizer.has_momentum)
        self._follow_server()  # the first model may have been rounded
        self.first_orders()
        self._present = max(1, ceil(config.participation * len(self.names) - 1e-9))
        examples = dict(zip(self.names, map(float, self.partition.sizes), strict=True))
        check_rounds(self.server.plan, self.size, examples, config.rounds, self._present)
        self.uplinks: dict[str, Uplink] = {}
        batches = data.Batches(self.data, self.partition, config.batch_size, config.seed)
        traits = self._traits(batches)
        self.gradients = Gradients(self.model, batches, config, self.goal.loss, traits)
        self.buffers = {name: self.model.get_buffer(name) for name in traits.buffers}
        self._buffer_bytes = sum(buffer.numel() * buffer.element_size() for buffer in self.buffers.values())
        self.network = make_network(config.network)
        for place in range(len(self.names)):  # a trace may lack some clients
            self.network.rate(place, "up", 0)
        self.bytes_up, self.bytes_down, self.seconds = 0, 0, 0.0
        self._parallel = Parallel(1 if traits.draws else config.threads)  # torch has one generator for all threads
        return_memory()  # what loading left behind

    def _plan(self) -> Plan:
        """The configuration's plan; a model that was built here is random, so that fewer bits are enough for it."""
        plan = self.config.plan()
        default = self.config.method_spec.defaults.get("first_bits")
        fewer = self.custom.model is None and default is not None and plan.first_bits == default
        return plan.replaced(first_bits=RANDOM_BITS) if fewer else plan

    def _traits(self, batches: data.Batches) -> Traits:
        """The model's side effects. A model passed in Python is tried with the smallest client's batch."""
        passed = (self.custom.model, self.custom.data, self.custom.loss)
        if all(each is None for each in passed) and models.MODELS[self.config.model].initialize is not None:
            return Traits()
        smallest = int(self.partition.sizes.argmin())
        x, y = batches.batch(smallest, 0)
        loss = with_enough_outputs(self.goal.loss, self.data) if self.custom.loss is None else self.goal.loss
        try:
            return try_out(self.model, loss, x.to(self.config.device), y.to(self.config.device))
        except Exception as error:  # whatever somebody's own model or loss may raise
            where = f"client {self.names[smallest]!r} with {len(y)} examples of shape {tuple(x.shape[1:])}"
            why = (str(error) or type(error).__name__).rstrip(".")
            notes = [f"; note: {note}" for note in self.data.notes]
            text = "".join(note for note in notes if "text column" in note)  # the likely reason
            others = "".join(note for note in notes if "text column" not in note)
            raise InvalidInput(f"the model cannot train on a batch of {where}{text}: {why}{others}") from error

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self.server.round

    @property
    def size(self) -> int:
        """The number of entries of the model."""
        return self.server.size

    def first_orders(self) -> list[Any]:
        """The parameter that each client would get if all took part in the first round."""
        server = Server(self.server.plan, self.size, self.config.rounds)
        for name, examples in zip(self.names, self.partition.sizes, strict=True):
            server.join(name, int(examples))
        return [order.amount for order in server.orders(self.names).values()]

    def step(self, asked: Sequence[int] | None = None) -> Round:
        """One round, in which those at these places of the partition take part; by default, some drawn at random."""
        t = self.round
        asked = self._asked(t) if asked is None else asked
        for i in asked:
            self.server.join(self.names[i], int(self.partition.sizes[i]))
        if self.server.budget.account is not None:
            self.seconds += self.server.budget.account.wait(len(asked), self.seconds)
        orders = self.server.orders([self.names[i] for i in asked], self.seconds)
        answering = [i for i in asked if self._chance(t, i, "fails") >= self.config.failures]
        with one_thread():
            turns = self._work(t, {i: orders[self.names[i]] for i in answering})

        accepted = []
        for turn in turns:
            try:
                received = self.server.read(self.names[turn.place], turn.upload.frame, turn.upload.norm)
            except OutsideBound as error:
                log.warning("round %d: client %s is left out: %s", t + 1, self.names[turn.place], error)
                continue
            if self._chance(t, turn.place, "late") >= self.config.late:
                accepted.append(received)
        if accepted:
            self.optimizer.step(self.server.total(accepted), self._rates(t)[1])
        self.server.advance(accepted, self.optimizer.vector if accepted else None)
        self.vector.copy_(self.server.model)
        buffers = {self.names[turn.place]: turn.buffers for turn in turns}
        self._average_buffers({upload.client: buffers[upload.client] for upload in accepted if upload.frame})
        for name in buffers:
            self.uplinks[name].settle(self.server.members[name].accepted_round)

        up, down = sum(turn.up for turn in turns), sum(turn.down for turn in turns)
        self.seconds += max(map(self._duration, turns), default=0.0)  # a round lasts as long as its slowest client
        self.bytes_up += up
        self.bytes_down += down
        entries = sum(len(turn.upload.update) for turn in turns)
        counted = (entries, up, down, self.bytes_up, self.bytes_down, self.seconds)
        sizes = self.partition.sizes[answering]
        loss = float(np.dot(sizes / sizes.sum(), [turn.loss for turn in turns])) if turns else None
        return Round(self.round, loss, len(turns), *counted)

    def _average_buffers(self, buffers: Mapping[str, list[Tensor]]) -> None:
        """The mean of the clients' buffers, weighted by their data; for counts, the largest.

        Buffers are sent in full, next to the frames: a running variance sent in parts would turn negative.
        """
        if not buffers or not self.buffers:
            return
        weights = torch.tensor([self.server.members[name].examples for name in buffers], dtype=torch.float64)
        weights = (weights / weights.sum()).to(self.vector.device)
        for buffer, theirs in zip(self.buffers.values(), zip(*buffers.values(), strict=True), strict=True):
            stacked = torch.stack(theirs)
            mean = stacked.is_floating_point()
            buffer.copy_(torch.tensordot(weights, stacked.double(), 1) if mean else stacked.amax(0))

    def _rates(self, round: int) -> tuple[float, float]:
        """The clients' rate and the server's. With one local step, only the server steps, with the learning rate."""
        config = self.config
        clients = rate_at(config.schedule, config.learning_rate, round, config.rounds, config.schedule_options)
        if not config.several_steps:
            return clients, clients
        usual = MOMENTUM_RATE if config.momentum else 1.0  # a difference includes the learning rate
        first = usual if config.server_rate is None else config.server_rate
        return clients, rate_at(config.server_schedule, first, round, config.rounds, config.schedule_options)

    def evaluate(self) -> tuple[float, float]:
        """The score (accuracy, unless there is another metric) and the mean loss on the whole test set."""

        def chunk(start: int) -> tuple[float, float, int]:
            x = self.data.normalize(self.data.test_x[start : start + TESTED]).to(self.config.device)
            y = self.data.test_y[start : start + TESTED].to(self.config.device)
            count = self.goal.count(y)
            with torch.no_grad():
                output = forward(self._tested, x, y)
                loss = float(self.goal.loss(output, y)) * count if count else 0.0
                return self.goal.score(output, y), loss, count

        with one_thread():
            chunks = self._parallel.map(chunk, range(0, len(self.data.test_y), TESTED))
        scores, losses, counts = map(sum, zip(*chunks, strict=True))
        return scores / counts, losses / counts

    def _asked(self, round: int) -> list[int]:
        """The clients that take part in a round."""
        everybody = list(range(len(self.names)))
        if self._present == len(everybody):
            return everybody
        return sorted(sorted(everybody, key=lambda i: self._chance(round, i, "asked"))[: self._present])

    def _chance(self, round: int, client: int, what: str) -> float:
        """A random number from 0 to 1 that is a function of the arguments and the seed."""
        purpose = ("asked", "fails", "late").index(what)
        return scramble(scramble(scramble(self.config.seed, round), client), purpose) / 2.0**64

    def _work(self, round: int, orders: Mapping[int, Order]) -> list[_Turn]:
        """Every client's download, training and upload.

        Each step is done for all clients of a group before the next: its code then stays in the processor's cache.
        """
        downloads = {i: self.server.download(self.names[i]) for i in orders}
        visited = {i: Replica(self._shapes).receive(each) for i, each in downloads.items() if each.version < 0}
        for i in orders:
            self._uplink(self.names[i])
        rate, server_rate = self._rates(round)

        def work(group: list[int]) -> list[_Turn]:
            began = time.perf_counter()
            starts = [self.uplinks[self.names[i]].start(visited.get(i, self.vector), server_rate) for i in group]
            ahead = starts if self.server.plan.step_ahead or visited else None
            computed = self.gradients(round, group, rate, ahead)
            uploads = [self._upload(i, orders[i], each.change) for i, each in zip(group, computed, strict=True)]
            took = (time.perf_counter() - began) / len(group)
            down = [len(downloads[i].frame) + self._buffer_bytes for i in group]
            up = [len(upload.frame) + (self._buffer_bytes if upload.frame else 0) for upload in uploads]
            return [
                _Turn(i, upload, each.loss, each.buffers, received, sent, took)
                for i, upload, each, received, sent in zip(group, uploads, computed, down, up, strict=True)
            ]

        turns = self._parallel.in_waves(work, list(orders), self.gradients.together)
        if round > 0:  # the first round compiles and warms up
            self._parallel.decide([turn.seconds for turn in turns])
        return turns

    def _uplink(self, name: str) -> Uplink:
        if name not in self.uplinks:
            self.uplinks[name] = Uplink(self.server.plan.for_clients(), self._shapes, self.config.device)
        return self.uplinks[name]

    def _upload(self, i: int, order: Order, gradient: list[Tensor]) -> Upload:
        try:
            return self.uplinks[self.names[i]].upload(gradient, order)
        except NonFiniteGradient as error:
            raise NonFiniteGradient(f"client {self.names[i]}, round {order.round}: {error}") from None

    def _duration(self, turn: _Turn) -> float:
        """The seconds of a client's download, computing and upload on the simulated clock."""
        fixed = self.config.compute_seconds
        computed = turn.seconds if isinstance(fixed, str) else float(fixed)
        trained = self.network.seconds(turn.place, "down", turn.down, self.seconds) + computed
        return trained + self.network.seconds(turn.place, "up", turn.up, self.seconds + trained)

    def _follow_server(self) -> None:
        self.optimizer.vector.data.copy_(self.server.target)
        self.vector.copy_(self.server.model)

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
        self._follow_server()
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
