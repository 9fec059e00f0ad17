"""Non-uniform D-EF-SGD: Algorithm 1 of the paper is `Federation.step`; all else here sets it up or measures it."""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os import cpu_count
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from dagc import data, models
from dagc.errors import InvalidInput
from dagc.feedback import ErrorFeedback
from dagc.network import make_network
from dagc.policies import Exchanging, Report, Setting, chosen_values, make_policy
from dagc.rate import Rate, make_rate
from dagc.sparse import Sparse
from dagc.training.client import Client, Upload
from dagc.training.config import Config
from dagc.training.gradients import Gradients
from dagc.training.server import Server
from dagc.wire import decode
from dagc.wire.frame import varint
from dagc.wire.indices import scramble

__all__ = ["Federation", "Round"]

T = TypeVar("T")
TESTED = 50
"""So many test samples go through the model at a time."""
WAVE = 16
"""So many clients work before free memory is given back, where there are more."""
SLOW = 0.002
"""Seconds that a client's work takes from which on threads pay."""


@dataclass(frozen=True)
class Round:
    """What one round did.

    Attributes:
        round: How many rounds are done, this one included.
        loss: The training loss of those present, weighted by their data.
        present: How many clients took part.
        entries: How many entries were uploaded.
        up: Bytes uploaded in this round, late uploads included.
        down: Bytes downloaded in this round.
        bytes_up: Bytes uploaded so far.
        bytes_down: Bytes downloaded so far.
        seconds: The network's clock.
        accuracy: On the test set, where this round was evaluated.
        test_loss: On the test set, where this round was evaluated.
    """

    round: int
    loss: float | None
    present: int
    entries: int
    up: int
    down: int
    bytes_up: int
    bytes_down: int
    seconds: float
    accuracy: float | None = None
    test_loss: float | None = None


class Exchanged(NamedTuple):
    """The bytes of an exchange within a round, for each client present."""

    asked: list[int]
    told: list[int]
    answered: list[int]


class Federation:
    """Clients, a server, a policy and the network between them, on this computer.

    Everything random is a function of the seed and the round, and clients are added up in order, so the same
    configuration gives the same bits with any number of threads, and after a resume.
    """

    def __init__(self, config: Config) -> None:
        """Load, split, build; whatever cannot work is refused here."""
        self.config = config
        self.data = data.load(config.data, config.data_dir, config.augment)
        self.partition = data.make_partition(config.partition_spec, self.data, config.seed)
        self.weights = self.partition.weights
        self._holding: list[int] = np.flatnonzero(self.weights > 0).tolist()
        self.model = models.build(config.model, self.data, seed=config.seed).to(config.device)
        rate = config.learning_rate if config.local_steps == 1 else 1.0  # a model difference holds the step already
        n = self.partition.workers
        self.server = Server(self.model, n, config.optimizer, rate, **config.optimizer_options)
        size = len(self.server.vector)
        compact = config.frames == "compact"
        budget = config.budget()
        self.values = chosen_values(config.values, self.weights, size, config.ratio, config.round_bytes)
        more = {
            "values": self.values,
            "exponent": config.exponent,
            "options": config.method_options,
            "compact": compact,
        }
        setting = Setting(self.weights, size, **budget, **more)  # type: ignore[arg-type]
        self.policy = make_policy(config.method, setting)
        batches = data.Batches(self.data, self.partition, config.batch_size, config.seed)
        self.gradients = Gradients(self.model, batches, config.learning_rate, config.local_steps)
        device = config.device
        memories = [
            ErrorFeedback(self.policy.compressor, size, values=self.values, seed=seed, device=device)
            for seed in (scramble(config.seed, i) for i in range(n))
        ]
        self.clients = [Client(i, feedback, compact) for i, feedback in enumerate(memories)]
        self.rate = None if config.budget_rate is None else make_rate(config.budget_rate)
        self.network = make_network(config.network)
        for i in self._holding:  # a trace may not have everybody
            self.network.rate(i, "up", 0)
        self.round, self.bytes_up, self.bytes_down, self.seconds = 0, 0, 0, 0.0
        self.reports: list[Report] = []
        self._threads = config.threads
        self._pool: ThreadPoolExecutor | None = None
        _give_back_memory()  # what loading left behind

    def step(self) -> Round:
        """One iteration of Algorithm 1."""
        t = self.round
        present = self._present(t)
        if self.rate is not None:
            self._allow(t, self.rate)
        down = [len(self.server.download(i)) for i in present]
        if self.policy.needs_exchange:
            uploads, took, told = self._exchange(t, present, cast(Exchanging, self.policy))
        else:
            uploads, took = self._work(t, present, self.policy.parameters(t, present, self.reports))
            told = None

        taken = [self._chance(t, i, "late") >= self.config.late for i in present]
        received = [self._received(upload, t) for upload in uploads]
        for i, upload, in_time in zip(present, uploads, taken, strict=True):
            if not in_time:
                self.clients[i].feedback.unsend(upload.sparse)
        in_order = [k for k, in_time in enumerate(taken) if in_time]
        self.server.step([received[k] for k in in_order], self.weights[[present[k] for k in in_order]])

        self.round += 1
        up = [len(upload.payload) for upload in uploads]
        self.seconds += self._duration(present, down, took, up, told)
        if told is not None:
            down = [sum(each) for each in zip(down, told.asked, told.answered, strict=True)]
            up = [sum(each) for each in zip(up, told.told, strict=True)]
        self.reports = [
            Report(i, upload.norm, len(upload.sparse), bytes)
            for i, upload, bytes in zip(present, uploads, up, strict=True)
        ]
        return self._measured(present, uploads, sum(up), sum(down))

    def evaluate(self) -> tuple[float, float]:
        """Accuracy and mean loss on the whole test set."""

        def chunk(start: int) -> tuple[int, float]:
            x = self.data.normalise(self.data.test_x[start : start + TESTED]).to(self.config.device)
            y = self.data.test_y[start : start + TESTED].to(self.config.device)
            with torch.no_grad():
                scores = self.model(x)
            return int((scores.argmax(1) == y).sum()), float(cross_entropy(scores, y, reduction="sum"))

        n = len(self.data.test_y)
        results = self._map(chunk, range(0, n, TESTED))
        return sum(right for right, _ in results) / n, sum(loss for _, loss in results) / n

    @contextmanager
    def running(self) -> Iterator[None]:
        """One torch thread per client's work while training, so that no sum depends on the number of threads."""
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None

    def _allow(self, round: int, rate: Rate) -> None:
        """Tell the policy what this round may take: what is allowed by now and was not spent; wait if that is time."""
        usual = self.config.budget_bytes
        self.seconds += rate.wait(self.bytes_up + (usual or 0), self.seconds)
        left = max(0, rate.allowed(round, self.config.rounds, self.seconds) - self.bytes_up)
        self.policy.allow(left if usual is None else min(usual, left))  # type: ignore[attr-defined]

    def _present(self, round: int) -> list[int]:
        """Who is asked and answers: at least one of those with data."""
        holding = self._holding
        asked = max(1, int(np.ceil(self.config.participation * len(holding) - 1e-9)))
        order = (
            holding if asked == len(holding) else sorted(holding, key=lambda i: self._chance(round, i, "asked"))[:asked]
        )
        answers = [i for i in order if self._chance(round, i, "fails") >= self.config.failures] or [order[0]]
        return sorted(answers)

    def _chance(self, round: int, client: int, what: str) -> float:
        """A number from 0 to 1 that is the same whenever this is asked."""
        if not (self.config.participation < 1 or self.config.failures or self.config.late):
            return 1.0
        purpose = ("asked", "fails", "late").index(what)
        return scramble(scramble(scramble(self.config.seed, round), client), purpose) / 2.0**64

    def _work(self, round: int, present: list[int], parameters: list[Any]) -> tuple[list[Upload], list[float]]:
        """Everybody's upload and how long it took to compute.

        Step by step for all who are taken together, not client by client: the processor has each step's code at hand.
        """

        def work(jobs: list[tuple[int, Any]]) -> list[tuple[Upload, float]]:
            began = time.perf_counter()
            computed = self.gradients(round, [i for i, _ in jobs])
            uploads = self._uploads(round, [(*job, *one) for job, one in zip(jobs, computed, strict=True)])
            took = (time.perf_counter() - began) / len(jobs)
            return [(upload, took) for upload in uploads]

        results = self._in_waves(work, list(zip(present, parameters, strict=True)))
        return [upload for upload, _ in results], self._timed(round, [took for _, took in results])

    def _exchange(
        self, round: int, present: list[int], policy: Exchanging
    ) -> tuple[list[Upload], list[float], Exchanged]:
        """The same with what clients tell before they know what to send. All gradients are kept until then."""
        floors = policy.ask(present)

        def look(jobs: list[tuple[int, int]]) -> list[tuple[tuple[Any, ...], bytes, float]]:
            began = time.perf_counter()
            computed = self.gradients(round, [i for i, _ in jobs])
            messages = [
                policy.tell(self.clients[i].histogram(round, gradient, policy.bins, floor), floor)
                for (i, floor), (_, gradient) in zip(jobs, computed, strict=True)
            ]
            took = (time.perf_counter() - began) / len(jobs)
            return [(one, message, took) for one, message in zip(computed, messages, strict=True)]

        looked = self._in_waves(look, list(zip(present, floors, strict=True)))
        messages = [message for _, message, _ in looked]
        counts = policy.answer(present, floors, messages)
        jobs = [(i, k, *one) for i, k, (one, _, _) in zip(present, counts, looked, strict=True)]
        uploads = self._in_waves(lambda some: self._uploads(round, some), jobs)
        told = Exchanged([len(varint(f)) for f in floors], list(map(len, messages)), [len(varint(k)) for k in counts])
        return uploads, self._timed(round, [took for _, _, took in looked]), told

    def _uploads(self, round: int, jobs: list[tuple[int, Any, float, list[torch.Tensor]]]) -> list[Upload]:
        """Of clients with a parameter, a loss and a gradient each."""
        selected = [self.clients[i].select(round, parameter, gradient) for i, parameter, _, gradient in jobs]
        return [
            self.clients[i].upload(round, parameter, sparse, loss, gradient, norm=self.policy.wants_norms)
            for (i, parameter, loss, gradient), sparse in zip(jobs, selected, strict=True)
        ]

    def _in_waves(self, function: Callable[[Any], list[T]], jobs: list[Any]) -> list[T]:
        """A function of some clients' jobs, for all of them: on threads, and with memory given back now and then."""
        results: list[T] = []
        while len(results) < len(jobs):
            wave = jobs[len(results) : len(results) + WAVE]
            together = self.gradients.together
            for some in self._map(function, [wave[i : i + together] for i in range(0, len(wave), together)]):
                results += some
            if len(jobs) > WAVE:
                _give_back_memory()
        return results

    def _timed(self, round: int, took: list[float]) -> list[float]:
        """The time that computing takes on the clock; from what it took here it is decided whether threads pay."""
        if self._threads is None and round > 0:  # the first round compiles and warms up
            self._threads = (cpu_count() or 1) if min(took) > SLOW else 1
        given = self.config.compute_seconds
        return took if given == "measured" else [float(given)] * len(took)

    def _received(self, upload: Upload, round: int) -> Sparse:
        """What the server reads; of a client that was to send nothing, nothing."""
        return decode(upload.payload, size=len(self.server.vector), round=round) if upload.payload else upload.sparse

    def _map(self, function: Callable[[Any], T], jobs: Iterable[Any]) -> list[T]:
        """In order, on threads if they pay; each thread runs torch on one."""
        if (self._threads or 1) == 1:
            return [function(job) for job in jobs]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, initializer=torch.set_num_threads, initargs=(1,))
        return list(self._pool.map(function, jobs))

    def _duration(
        self, present: list[int], down: list[int], took: list[float], up: list[int], told: Exchanged | None
    ) -> float:
        """A synchronous round lasts as long as its slowest client: download, compute, upload.

        With an exchange, the answers wait for the slowest to tell; who is to send nothing then is done.
        """
        if told is None:
            return self._slowest(present, down, took, up, self.seconds)
        asked = [sum(each) for each in zip(down, told.asked, strict=True)]
        until = self._slowest(present, asked, took, told.told, self.seconds)
        sending = [k for k, bytes in enumerate(up) if bytes]
        who, answered, sent = ([each[k] for k in sending] for each in (present, told.answered, up))
        return until + self._slowest(who, answered, [0.0] * len(who), sent, self.seconds + until)

    def _slowest(self, who: list[int], down: list[int], took: list[float], up: list[int], start: float) -> float:
        slowest = 0.0
        for i, received, computed, sent in zip(who, down, took, up, strict=True):
            here = self.network.seconds(i, "down", received, start) + computed
            slowest = max(slowest, here + self.network.seconds(i, "up", sent, start + here))
        return slowest

    def _measured(self, present: list[int], uploads: list[Upload], up: int, down: int) -> Round:
        self.bytes_up += up
        self.bytes_down += down
        share = self.weights[present] / self.weights[present].sum()
        loss = float(sum(p * upload.loss for p, upload in zip(share, uploads, strict=True)))
        entries = sum(len(upload.sparse) for upload in uploads)
        counted = (up, down, self.bytes_up, self.bytes_down, self.seconds)
        return Round(self.round, loss, len(present), entries, *counted)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All arrays of the state: the server's and the clients' residuals."""
        state = {f"server.{name}": tensor for name, tensor in self.server.state_dict().items()}
        for client in self.clients:
            state[f"residual.{client.number}"] = client.feedback.residual
        return state

    def numbers(self) -> dict[str, Any]:
        """The rest of the state, as JSON can hold it."""
        return {
            "round": self.round,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "seconds": self.seconds,
            "steps": [client.feedback.steps for client in self.clients],
            "reports": [list(report) for report in self.reports],
            "policy": self.policy.state_dict(),
        }

    def restore(self, tensors: dict[str, torch.Tensor], numbers: dict[str, Any]) -> None:
        """Go on from `tensors` and `numbers`."""
        try:
            self.round, self.seconds = int(numbers["round"]), float(numbers["seconds"])
            self.bytes_up, self.bytes_down = int(numbers["bytes_up"]), int(numbers["bytes_down"])
            self.reports = [Report(*report) for report in numbers["reports"]]
            self.policy.load_state_dict(numbers["policy"])
            of_server = {name.removeprefix("server."): t for name, t in tensors.items() if name.startswith("server.")}
            self.server.load_state_dict(of_server, self.round)
            for client, steps in zip(self.clients, numbers["steps"], strict=True):
                residual = tensors[f"residual.{client.number}"].numpy()
                client.feedback.load_state_dict({"residual": residual, "steps": np.array(steps)})
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidInput(f"the state does not fit this configuration: {error}") from error


def _give_back_memory() -> None:
    """Give free memory back to the system: small uploads that are kept break up what large gradients leave behind.

    With 200 clients of a CNN that would be 500 MB. A matter of glibc's allocator; others do without.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
