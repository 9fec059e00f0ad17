"""The server's side: a wrapper around any strategy, which goes on seeing whole models and knows nothing of this."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi, Result, Strategy
from numpy.typing import NDArray

from dagc.compressors import COMPRESSORS
from dagc.errors import InvalidInput
from dagc.flower.intake import Sent, Upload, answers, introductions, uploads
from dagc.flower.layout import Model
from dagc.flower.messages import ASK, MODEL, RECORD, TRAIN, Order
from dagc.flower.roster import Client
from dagc.flower.run import Run, ServerFolder
from dagc.flower.state import FILE_NAME, state_folder
from dagc.policies import Exchanging, Report
from dagc.sparse import aggregate
from dagc.training import Round
from dagc.wire.indices import scramble

__all__ = ["DataAware"]

AVERAGING = {kind.aggregate_train for kind in (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)}
"""Strategies that look at nothing but the weighted mean of the replies."""
ACCURACY, LOSS, TRAIN_LOSS = ("accuracy", "eval_acc"), ("loss", "eval_loss"), ("train_loss", "loss")
"""Metrics of the app that `dagc report` draws."""
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
log = getLogger("flwr.dagc")


class DataAware(Strategy):
    """Let every node send as much as its data is worth; whatever it does not send, it keeps for later.

    Args:
        strategy: What the app used before. Those that average (FedAvg, FedProx, FedAvgM, FedAdam, …) are given the mean
            of all replies, so that entries which nobody sent stay as they are, to the bit; all others get each node's
            model.
        ratio: The budget as the mean ratio of entries sent, or
        threshold: as the mean threshold, in the units of the model's change in a round, or
        bytes: as payload bytes per round, all nodes together. One of the three, as the method needs.
        method: A name in `dagc.policies.POLICIES`.
        exponent: Of `power` and `dagc-global`; 2/3 if not given.
        options: What else the method takes, by name.
        values: The value codec of uploads; with a ratio also "auto".
        whole: Patterns of names of arrays that are never compressed, beside batch norm's buffers and whatever is not
            float32.
        seed: For methods that draw.
        run: The run's name. With it, the server keeps everything in a folder, and another `flwr run` with the same name
            goes on where this one ended or was killed.
        folder: Where the folder of that name is; `runs` in `DAGC_STATE` or the user's folder for states, if not given.

    Example:
        >>> strategy = DataAware(FedAvg(fraction_train=0.5), ratio=0.01)
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        ratio: float | None = None,
        threshold: float | None = None,
        bytes: int | None = None,
        method: str = "dagc-r",
        exponent: float | None = None,
        options: Mapping[str, float] | None = None,
        values: str = "fp32",
        whole: Sequence[str] = (),
        seed: int = 0,
        run: str | None = None,
        folder: str | Path | None = None,
    ) -> None:
        """Nothing happens before `start`."""
        if run is not None and not FILE_NAME.fullmatch(run):
            raise InvalidInput(f"run is {run!r}: name it with letters, digits, '-', '_' and '.'")
        self.strategy = strategy
        self.method, self.values, self.seed, self.name = method, values, seed, run
        self.budget = {
            "ratio": ratio, "threshold": threshold, "bytes": bytes, "exponent": exponent, "options": options or {},
        }  # fmt: skip
        self.whole = tuple(whole)
        self.folder = Path(folder).expanduser() if folder is not None else state_folder() / "runs"
        self._run: Run | None = None
        self._keep: ServerFolder | None = None
        self._timeout = 3600.0
        self._sent: list[Sent] = []
        self._asked: list[Sent] = []
        self._parameters: dict[int, Any] = {}
        self._result: Round | None = None
        self._evaluates = False
        self._up = self._down = 0
        self._began = 0.0

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """As any strategy's; rounds that a run of the same name has behind it count."""
        run = self._run = Run(initial_arrays, self.method, self.budget, self.values, self.whole)
        self._timeout, self._evaluates, self._keep = timeout, evaluate_fn is not None, None
        if self.name is not None:
            self._keep = ServerFolder(self.folder / self.name, run, num_rounds, self.seed)
        with self._keep or nullcontext():
            done = run.round
            if self._keep is not None:
                where = f"goes on after round {done}" if done else "begins"
                log.info("dagc: run %s %s; it is kept in %s", self.name, where, self._keep.path.absolute())
            evaluate = None if evaluate_fn is None else self._evaluation(evaluate_fn, done)
            self._began = time.monotonic() - run.seconds
            left = max(0, num_rounds - done)
            result = super().start(
                grid, run.layout.join(run.model), left, timeout, train_config, evaluate_config, evaluate
            )
            if self._keep is not None and left:
                self._keep.finish()
        result.arrays = run.layout.join(run.model)
        for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, kind, {done + number: metrics for number, metrics in getattr(result, kind).items()})
        return result

    def summary(self) -> None:
        """Tell what is used, then what the inner strategy has to tell."""
        budget = ", ".join(f"{name} {value}" for name, value in self.budget.items() if value)
        log.info("\t├──> dagc: %s, %s, values as %s", self.method, budget or "no budget", self.values)
        self.strategy.summary()

    # Training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask what must be known first, then give everybody the model and what it may send."""
        run = self._started()
        self._up = self._down = 0
        messages = list(self.strategy.configure_train(run.round + 1, arrays, config, grid))
        outlines = self._ask(messages, grid)
        met = [(run.roster.at(message.metadata.dst_node_id), message) for message in messages]
        pairs = sorted(((c, m) for c, m in met if c is not None and c.examples), key=lambda pair: pair[0].number)
        if run.policy.needs_exchange:
            pairs = [(client, message) for client, message in pairs if client.number in outlines]
        present = [client for client, _ in pairs]
        parameters = run.parameters(present, outlines) if present else []
        self._parameters = {client.number: given for client, given in zip(present, parameters, strict=True)}
        self._sent = []
        for (client, message), parameter in zip(pairs, parameters, strict=True):
            self._sent.append(self._give(message, TRAIN, client, parameter=parameter, **self._how(client)))
        return [sent.message for sent in self._sent]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode and check what came, let the inner strategy make the new model of it, and count."""
        run, replies = self._started(), list(replies)
        self._up += sum(len(array.data) for reply in replies if reply.has_content() for array in _arrays(reply))
        good = uploads(self._sent, replies, run, self._examples)
        arrays, metrics = self._aggregate(good, [reply for reply in replies if reply.has_error()])
        model = None if arrays is None else run.layout.split(arrays)
        for upload in good:
            upload.client.has = max(upload.client.has, run.round)
            if model is not None:
                upload.client.taken = run.round + 1
        run.advance(model, [Report(up.client.number, up.norm, len(up.sparse), up.bytes) for up in good])
        run.bytes_up += self._up
        loss = _number(metrics, TRAIN_LOSS)
        self._result = Round(run.round, loss, len(good), sum(len(up.sparse) for up in good), 0, 0, 0, 0, 0.0)
        return (None if arrays is None else run.layout.join(run.model)), metrics

    def _aggregate(self, good: list[Upload], errors: list[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the inner strategy makes of the uploads: of their mean if that is all it looks at, else of each."""
        run = self._started()
        number = run.round + 1
        if not good or type(self.strategy).aggregate_train not in AVERAGING:
            for upload in good:
                own = Model(run.model.vector - upload.sparse.dense(), upload.whole)
                upload.reply.content[upload.arrays] = run.layout.join(own)
            return self.strategy.aggregate_train(number, [*(upload.reply for upload in good), *errors])

        weights = np.array([upload.client.examples for upload in good])
        shares = run.roster.weights[[upload.client.number for upload in good]]
        update = aggregate([upload.sparse for upload in good], shares)
        whole = [
            sum(w * array.astype(np.float64) for w, array in zip(weights / weights.sum(), arrays, strict=True))
            for arrays in zip(*(upload.whole for upload in good), strict=True)
        ]
        contents = [upload.reply.content for upload in good]
        first = good[0]
        mean = run.layout.join(Model(run.model.vector - update, whole))
        together = RecordDict({first.arrays: mean, "metrics": MetricRecord({self._examples: float(weights.sum())})})
        assert isinstance(self.strategy, FedAvg)
        metrics_of = self.strategy.train_metrics_aggr_fn
        self.strategy.train_metrics_aggr_fn = lambda _, key: metrics_of(contents, key)
        first.reply.content = together
        try:
            return self.strategy.aggregate_train(number, [first.reply, *errors])
        finally:
            self.strategy.train_metrics_aggr_fn = metrics_of

    def _ask(self, messages: list[Message], grid: Grid) -> dict[int, NDArray[np.int64]]:
        """Ask new nodes who they are and how many examples they hold: the allocation needs that.

        With a method that looks at everybody's entries before it decides, all are asked, and their outlines returned by
        their numbers. What a node computes to answer, it keeps for the order that follows.
        """
        run, asked = self._started(), []
        bins = cast(Exchanging, run.policy).bins if run.policy.needs_exchange else 0
        for message in messages:
            about = message.metadata
            client = run.roster.at(about.dst_node_id)
            if bins or client is None:
                ask = Message(
                    message.content, about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id
                )
                asked.append(self._give(ask, ASK, client, bins=bins, **self._how(client)))
        if not asked:
            return {}
        log.info("dagc: asking %d nodes for their examples%s", len(asked), " and outlines" if bins else "")
        replies = list(grid.send_and_receive([sent.message for sent in asked], timeout=self._timeout))
        here = {message.metadata.dst_node_id for message in messages}
        outlines = {}
        for answer, node, outline in introductions(asked, replies, run):
            known = run.roster.called(answer.name)
            if known is not None and known.node in here and known.node != node:
                log.warning(
                    "dagc: node %d is left out: it says it is %s, and so does node %d. Give each node its own "
                    "partition-id or dagc-name in --node-config",
                    node, answer.name, known.node,
                )  # fmt: skip
                continue
            client = run.roster.meet(answer.name, node, answer.examples)
            client.has = run.round
            self._up += len(answer.outline or b"")
            if outline is not None:
                outlines[client.number] = outline
        return outlines

    def _how(self, client: Client | None) -> dict[str, Any]:
        """How a client compresses, and what was taken from it."""
        policy = self._started().policy
        return {
            "taken": -1 if client is None else client.taken,
            "compressor": next(name for name, kind in COMPRESSORS.items() if kind is policy.compressor),
            "values": self._started().values,
            "seed": "0" if client is None else f"{scramble(self.seed, client.number):x}",
            "norm": policy.wants_norms,
        }

    # Evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Give those who evaluate the new model, in as few bytes as those who train."""
        run = self._started()
        messages = list(self.strategy.configure_evaluate(run.round, arrays, config, grid))
        self._asked = [self._give(message, MODEL, run.roster.at(message.metadata.dst_node_id)) for message in messages]
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the inner strategy does it."""
        run, replies = self._started(), list(replies)
        for sent, _ in answers(self._asked, replies, f"evaluating round {run.round}"):
            if sent.client is not None:
                sent.client.has = max(sent.client.has, sent.order.model)
        metrics = self.strategy.aggregate_evaluate(run.round, replies)
        self._close(metrics, done=not self._evaluates)
        return metrics

    def _evaluation(self, evaluate: Evaluate, done: int) -> Evaluate:
        """The app's evaluation on the server, with the run's own numbers of the rounds."""

        def evaluation(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            metrics = evaluate(done + number, arrays)
            if number:
                self._close(metrics, done=True)
            return metrics

        return evaluation

    def _close(self, metrics: MetricRecord | None, done: bool) -> None:
        """Note what was measured; with the round done, write its line and a checkpoint before anybody is told."""
        run = self._started()
        if self._result is None:
            return
        accuracy, loss = _number(metrics, ACCURACY), _number(metrics, LOSS)
        if accuracy is not None:
            self._result = replace(self._result, accuracy=accuracy, test_loss=loss)
        if not done:
            return
        run.bytes_down += self._down
        run.seconds = time.monotonic() - self._began
        result = replace(
            self._result, up=self._up, down=self._down, bytes_up=run.bytes_up, bytes_down=run.bytes_down,
            seconds=run.seconds,
        )  # fmt: skip
        if self._keep is not None:
            self._keep.close_round(result, self._parameters)
        log.info(
            "dagc: round %d: %d of %d nodes, %s entries, %s bytes up, %s down; so far %s up, %s down",
            result.round, result.present, len(self._sent),
            *(f"{n:,}" for n in (result.entries, result.up, result.down, result.bytes_up, result.bytes_down)),
        )  # fmt: skip
        self._result = None

    # Both

    def _give(self, message: Message, kind: str, client: Client | None, **more: Any) -> Sent:
        """Put the model, as this client needs it, and what it is to do into a message of the inner strategy."""
        run = self._started()
        names = list(message.content.array_records)
        if len(names) != 1:
            raise InvalidInput(f"the strategy sends {len(names)} ArrayRecords to a node; dagc needs one, the model")
        since = -1 if client is None else client.has
        record, length = run.download(since)
        order = Order(
            kind, self.name or "", run.lineage, run.round + 1, run.round, since, names[0], run.checksum,
            layout=run.layout.text if since < 0 else "", **{"examples": self._examples, **more},
        )  # fmt: skip
        # The inner strategy gives all nodes one and the same content: each gets its own.
        message.content = RecordDict({**dict(message.content.items()), names[0]: record, RECORD: order.write()})
        self._down += length
        return Sent(message, order, client)

    @property
    def _examples(self) -> str:
        """The name of the metric that tells a node's weight."""
        return str(getattr(self.strategy, "weighted_by_key", "num-examples"))

    def _started(self) -> Run:
        if self._run is None:
            raise InvalidInput("nothing is to be done before DataAware.start")
        return self._run


def _arrays(reply: Message) -> Iterable[Any]:
    return (array for record in reply.content.array_records.values() for array in record.values())


def _number(metrics: MetricRecord | None, names: tuple[str, ...]) -> float | None:
    """The first of these metrics that is there."""
    for name in names:
        value = None if metrics is None else metrics.get(name)
        if isinstance(value, int | float):
            return float(value)
    return None
