"""The server's side: a wrapper around any strategy, which still sees whole models and knows nothing of this."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    MultiKrum,
    Result,
    Strategy,
)  # fmt: skip
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM

from dagc.errors import InvalidInput, TooFewNodes, shown
from dagc.flower.intake import Received, Sent, evaluations, introductions, uploads
from dagc.flower.layout import AppModel
from dagc.flower.logs import log
from dagc.flower.messages import ASK, MODEL, RECORD, TRAIN, Instruction, record_of
from dagc.flower.node import FILE_NAME, state_folder
from dagc.flower.run import FlowerFolder, FlowerRun, chain_of
from dagc.protocol import Order, Plan, Settings

__all__ = ["DataAware"]

AVERAGING = {kind.aggregate_train for kind in (FedAvg, FedAvgM, FedAdagrad, FedAdam, FedYogi)}
"""Strategies that look at nothing but the weighted mean of the replies."""
BY_ENTRY, BY_NODE = (FedMedian, FedTrimmedAvg, Bulyan), (MultiKrum,)
"""Strategies that compare what nodes send, entry by entry or as a whole; who sends nothing votes for no change."""
CLIPPING = (DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyServerSideAdaptiveClipping)
"""Strategies that divide by the length of what each node sends."""
LEAST_RATIO = 0.1
"""With 2 % of the entries from each of seven nodes a median learnt nothing, with 20 % it did, if slower."""
ACCURACY, LOSS, TRAIN_LOSS = ("accuracy", "eval_acc"), ("loss", "eval_loss"), ("train_loss", "loss")
"""Metrics of the app that `dagc report` draws."""
UP, DOWN, TOTAL = "dagc-mb-up", "dagc-mb-down", "dagc-mb-total"
"""Metrics of ours beside those of the app: MB sent in a round, and both ways in all rounds so far."""
MB = 1_000_000
NOTHING = Array(np.array(-0.0, np.float32))
"""Added to any number, it leaves all of its bits as they are."""
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class DataAware(Strategy):
    """Let every node send as much as its data is worth; whatever it does not send, it keeps for later.

    Args:
        strategy: What the app used before. Those that average (FedAvg, FedProx, FedAvgM, FedAdam, …) are given the mean
            of all replies, so that entries which nobody sent stay as they are, to the bit; all others get each node's
            model.
        whole: Patterns of names of arrays that are never compressed, beside batch norm's buffers, integers and float64.
        run: The run's name. With it, the server keeps everything in a folder, and another `flwr run` with the same name
            continues where this one ended or was killed. None or "", which a run config can hold: it has no name.
        folder: Where the folder of that name is; `runs` in `DAGC_STATE`, or in Flower's folder, if not given.
        min_nodes: The run ends with `TooFewNodes` in a round to which fewer nodes contribute: most often something is
            wrong with all of them; 0: it never does.
        budget_mb: What may be sent in both directions, in MB (10^6 bytes). It is for the log, which also warns when the
            run is beyond; bounds are `bytes`, `rate` and `down`.
        settings: The plan: what `dagc.Plan` takes, by the same names. A threshold is in the units of the model's change
            in a round; bytes are those of the compressed arrays.

    Example:
        >>> strategy = DataAware(FedAvg(fraction_train=0.5), ratio=0.01)
        >>> strategy = DataAware(FedAvg(), bytes=64, values="sign", overhead=0.125)
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        whole: Sequence[str] = (),
        run: str | None = None,
        folder: str | Path | None = None,
        min_nodes: int = 1,
        budget_mb: float | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        """Check everything; the work begins with `start`."""
        if run and not FILE_NAME.fullmatch(run):
            raise InvalidInput(f"run is {run!r}: name it with letters, digits, '-', '_' and '.'")
        if not isinstance(strategy, Strategy):
            raise InvalidInput(
                f"DataAware goes around a strategy of flwr.serverapp.strategy, not {shown(strategy)}: write "
                "DataAware(FedAvg())"
            )
        if isinstance(min_nodes, bool) or not isinstance(min_nodes, int) or min_nodes < 0:
            raise InvalidInput(f"min_nodes is {shown(min_nodes)}: it must be a number of nodes, or 0 to never stop")
        if budget_mb is not None and not (isinstance(budget_mb, int | float) and 0 < budget_mb < float("inf")):
            raise InvalidInput(f"budget_mb is {shown(budget_mb)}: it must be a number of MB above 0")
        self.strategy = strategy
        self.min_nodes, self.budget_mb = min_nodes, budget_mb
        if any(isinstance(each, BY_ENTRY + BY_NODE) for each in chain_of(strategy)):
            settings.setdefault("overhead", 0.0)  # whoever waits cannot be compared
        self.plan = Plan(**settings)
        self.name = run or None
        if isinstance(whole, str):
            raise InvalidInput(f"whole is {whole!r}: give a list of names or patterns, [{whole!r}]")
        self.whole = tuple(whole)
        self.folder = Path(folder).expanduser() if folder is not None else state_folder() / "runs"
        self._run: FlowerRun | None = None
        self._keep: FlowerFolder | None = None
        self._timeout = 3600.0
        self._sent: list[Sent] = []
        self._unmet: list[Sent] = []
        self._asked: list[Sent] = []
        self._orders: dict[str, Order] = {}
        self._result: dict[str, Any] | None = None
        self._metrics = MetricRecord()
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
        self._check_votes()
        run = self._run = FlowerRun(initial_arrays, self.plan, self.whole, num_rounds, self.strategy)
        self._timeout, self._evaluates, self._keep = timeout, evaluate_fn is not None, None
        if self.name is not None:
            settings = {"strategy": type(self.strategy).__name__, "rounds": num_rounds, **run.server.plan.settings()}
            self._keep = FlowerFolder(self.folder / self.name, run, settings)
        with self._keep or nullcontext():
            done = run.round
            if self._keep is not None:
                self._tell_where(self._keep, done, num_rounds)
            evaluate = None if evaluate_fn is None else self._evaluation(evaluate_fn, done)
            self._began = time.monotonic() - run.seconds
            left = max(0, num_rounds - done)
            result = super().start(
                grid, run.layout.join(run.model, wide=True), left, timeout, train_config, evaluate_config, evaluate
            )
            if self._keep is not None and run.round and (left or not self._keep.finished):
                self._keep.finish()
        result.arrays = run.layout.join(run.served)
        for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, kind, {done + number: metrics for number, metrics in getattr(result, kind).items()})
        return result

    def _check_votes(self) -> None:
        """Refuse strategies that compare nodes with plans in which most have nothing to compare."""
        plan = self.plan
        for strategy in chain_of(self.strategy):
            name = type(strategy).__name__
            if plan.method != "none" and isinstance(strategy, BY_ENTRY) and not (plan.ratio or 0) >= LEAST_RATIO:
                raise InvalidInput(
                    f"{name} compares what nodes say about each entry, and with this plan most say nothing, so that "
                    f"the model would not move: give a ratio of {LEAST_RATIO} or more, or use FedAvg with norm_bound"
                )
            if isinstance(strategy, BY_ENTRY + BY_NODE) and (plan.overhead or plan.in_bytes):
                raise InvalidInput(
                    f"{name} compares nodes, and with this plan some of them send nothing in most rounds: give a ratio "
                    "instead of bytes, with overhead=0, or use FedAvg with norm_bound"
                )

    def _tell_where(self, keep: FlowerFolder, done: int, rounds: int) -> None:
        """Log where the run is kept, and whether something is left to do."""
        where = keep.path.absolute()
        if not done:
            keep.begin()
            log.info("dagc: run %s begins; it is kept in %s", self.name, where)
        elif done < rounds:
            log.info("dagc: run %s continues after round %d; it is kept in %s", self.name, done, where)
        else:
            log.warning(
                "dagc: run %s has been trained for %d rounds already, and %d are wanted: its model is returned as it "
                "is. To train it longer, ask for more rounds; for another run, choose another run name or delete %s",
                self.name, done, rounds, where,
            )  # fmt: skip

    def summary(self) -> None:
        """Log the plan, then what the inner strategy has to say."""
        words = ", ".join(f"{name} {value}" for name, value in self.plan.settings().items())
        log.info("\t├──> dagc: %s", words)
        self.strategy.summary()

    # Training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask what must be known first, then give everybody the model and what it may send."""
        run = self._started()
        self._up = self._down = 0
        run.left_out, run.recovering = {}, set()
        messages = list(self.strategy.configure_train(run.round + 1, arrays, config, grid))
        self._ask(messages, grid)
        here = {run.names[node]: message for message in messages if (node := message.metadata.dst_node_id) in run.names}
        if messages:
            self._enough(len(here))
        clip = self._clip(config)
        unmet = sorted(set(self.plan.caps) - set(run.server.members))
        if unmet and not run.round:
            known = ", ".join(run.server.members)
            log.warning("dagc: caps name %s, but no such node is here; the nodes are %s", ", ".join(unmet), known)
        self._orders = run.server.orders(here, time.monotonic() - self._began, clip)
        self._sent = [self._give(here[name], TRAIN, name, order) for name, order in self._orders.items()]
        return [sent.message for sent in self._sent]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode and check what came, let the inner strategy make the new model of it, and count."""
        run, replies = self._started(), list(replies)
        self._up += sum(len(array.data) for reply in replies if reply.has_content() for array in _arrays(reply))
        good = uploads(self._sent, replies, run, self._examples)
        if self._sent:
            self._enough(len(good))
        arrays, metrics = self._aggregate(good, list(self._failures(replies, good)))
        run.close([one.upload for one in good], None if arrays is None else run.layout.split(arrays))
        run.bytes_up += self._up
        self._result = {
            "round": run.round,
            "loss": _number(metrics, TRAIN_LOSS),
            "present": len(good),
            "entries": sum(len(one.upload.sparse) for one in good),
        }
        self._metrics = MetricRecord() if metrics is None else metrics
        self._count()
        return (None if arrays is None else run.layout.join(run.model, wide=True)), self._metrics

    def _failures(self, replies: list[Message], good: list[Received]) -> Iterator[Message]:
        """Errors, and those for replies that were left out: the inner strategy counts them."""
        run, waiting = self._started(), {one.message.metadata.message_id: one for one in self._sent}
        for unmet in self._unmet:
            yield Message(Error(ErrorCode.UNKNOWN, run.left_out.get(str(unmet))), reply_to=unmet.message)
        for one in good:
            del waiting[one.reply.metadata.reply_to_message_id]
        for reply in replies:
            sent = waiting.pop(reply.metadata.reply_to_message_id, None)
            if reply.has_error():
                yield reply
            elif sent is not None:
                yield Message(Error(ErrorCode.UNKNOWN, run.left_out.get(str(sent))), reply_to=sent.message)

    def _count(self) -> None:
        """Put what was sent into the round's metrics."""
        run = self._started()
        total = run.bytes_up + run.bytes_down + self._down
        self._metrics.update({UP: self._up / MB, DOWN: self._down / MB, TOTAL: total / MB})

    def _aggregate(self, good: list[Received], errors: list[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the inner strategy makes of the uploads: of their mean if that is all it looks at, else of each."""
        run = self._started()
        number = run.round + 1
        if not good or type(self.strategy).aggregate_train not in AVERAGING:
            clips = any(isinstance(each, CLIPPING) for each in chain_of(self.strategy))
            for one in good:
                own = run.model.vector - one.upload.sparse.dense()
                if clips and torch.equal(own, run.model.vector):  # a change too small to matter, but not of length 0
                    own[0] += max(1e-6 * abs(float(own[0])), 1e-12)
                one.reply.content[one.arrays] = run.layout.join(AppModel(own, one.whole), wide=True)
            return self.strategy.aggregate_train(number, [*(one.reply for one in good), *errors])

        update = run.server.total([one.upload for one in good])
        weights = np.array([run.server.members[one.upload.client].examples for one in good])
        whole = [
            sum(w * array.astype(np.float64) for w, array in zip(weights / weights.sum(), arrays, strict=True))
            for arrays in zip(*(one.whole for one in good), strict=True)
        ]
        contents = [one.reply.content for one in good]
        mean = run.layout.join(AppModel(run.model.vector - update, whole), wide=True)
        nothing = ArrayRecord({piece.name: NOTHING for piece in run.layout.pieces})
        for place, one in enumerate(good):  # the first has all of the weight, so that the mean stays as it is
            claim = MetricRecord({self._examples: 0.0 if place else float(weights.sum())})
            one.reply.content = RecordDict({good[0].arrays: nothing if place else mean, "metrics": claim})
        assert isinstance(self.strategy, FedAvg)
        metrics_of = self.strategy.train_metrics_aggr_fn
        self.strategy.train_metrics_aggr_fn = lambda _, key: metrics_of(contents, key)
        try:
            return self.strategy.aggregate_train(number, [*(one.reply for one in good), *errors])
        finally:
            self.strategy.train_metrics_aggr_fn = metrics_of

    def _ask(self, messages: list[Message], grid: Grid) -> None:
        """Ask new nodes who they are and how many examples they hold: the allocation needs that.

        What a node computes to answer, it keeps for the order that follows.
        """
        run, asked = self._started(), []
        self._unmet = []
        for message in messages:
            about = message.metadata
            if about.dst_node_id not in run.names:
                ask = Message(
                    message.content, about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id
                )
                asked.append(self._give(ask, ASK, None))
        if not asked:
            return
        log.info("dagc: asking %s for their examples", "1 node" if len(asked) == 1 else f"{len(asked)} nodes")
        replies = list(grid.send_and_receive([sent.message for sent in asked], timeout=self._timeout))
        alive = set(grid.get_node_ids())
        for name, node, examples in introductions(asked, replies, run):
            known = run.node(name)
            if known is not None and known != node and known in alive:
                why = f"it says it is {name}, and so does node {known}: give each its own partition-id or dagc-name"
                run.left_out[f"node {node}"] = why
                log.warning("dagc: node %d is left out: %s", node, why)
                continue
            run.meet(name, node, examples)
        self._unmet = [one for one in asked if one.message.metadata.dst_node_id not in run.names]

    def _clip(self, config: ConfigRecord) -> float | None:
        """The bound of a strategy that expects nodes to clip what they send; with it, dagc does so, too.

        Flower's own mods clip what the app has learnt in a round, and what was kept back before comes on top of that.
        """
        bound = config.get(KEY_CLIPPING_NORM)
        clip = float(bound) if isinstance(bound, int | float) else None
        whole = [piece.name for piece in self._started().layout.whole]
        if whole and (clip is not None or self.plan.clip is not None):
            raise InvalidInput(
                f"clip bounds what is compressed, but {', '.join(whole):.200} goes whole: use a model without such "
                "arrays, e.g. with group norm instead of batch norm"
            )
        return clip

    def _enough(self, nodes: int) -> None:
        """Stop if too few nodes can contribute to this round, with what is wrong with the others.

        The round is not over then: a run with a name repeats it when it is started again.
        """
        run = self._started()
        if nodes + len(run.recovering) >= self.min_nodes:
            return
        nodes_by_cause: dict[str, list[str]] = {}
        for node, why in run.left_out.items():
            nodes_by_cause.setdefault(why, []).append(node)
        causes = "; ".join(f"{', '.join(those):.200}: {why}" for why, those in nodes_by_cause.items())
        who = f"{nodes} nodes contribute, fewer than min_nodes = {self.min_nodes}" if nodes else "no node contributes"
        raise TooFewNodes(f"round {run.round + 1}: {who}. {causes or 'The strategy has sampled too few'}")

    # Evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Give those who evaluate the new model, in as few bytes as those who train."""
        run = self._started()
        messages = list(self.strategy.configure_evaluate(run.round, arrays, config, grid))
        self._asked = [self._give(message, MODEL, run.names.get(message.metadata.dst_node_id)) for message in messages]
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the inner strategy does it, of those replies that it can add up."""
        run, replies = self._started(), list(replies)
        errors = [reply for reply in replies if reply.has_error()]
        good = evaluations(self._asked, replies, run, self._examples)
        metrics = self.strategy.aggregate_evaluate(run.round, [*good, *errors])
        self._close(metrics, done=not self._evaluates)
        return metrics

    def _evaluation(self, evaluate: Evaluate, done: int) -> Evaluate:
        """The app's evaluation on the server, with the run's own numbers of the rounds."""

        def evaluation(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            run = self._started()
            metrics = evaluate(done + number, run.layout.join(run.served))
            if number:
                self._close(metrics, done=True)
            return metrics

        return evaluation

    def _close(self, metrics: MetricRecord | None, done: bool) -> None:
        """Note what was measured; with the round done, write its line and a checkpoint before any node hears of it."""
        run, result = self._started(), self._result
        if result is None:
            return
        accuracy = _number(metrics, ACCURACY)
        if accuracy is not None:
            result |= {"accuracy": accuracy, "test_loss": _number(metrics, LOSS)}
        if not done:
            return
        self._count()
        run.bytes_down += self._down
        run.seconds = time.monotonic() - self._began
        result |= {"up": self._up, "down": self._down}
        result |= {"bytes_up": run.bytes_up, "bytes_down": run.bytes_down, "seconds": run.seconds}
        if self._keep is not None:
            self._keep.close_round(result, {name: order.parameter for name, order in self._orders.items()})
        log.info(
            "dagc: round %d: %d of %d nodes, %s entries, %s bytes up, %s down; so far %s up, %s down",
            result["round"], result["present"], len(self._sent) + len(self._unmet),
            *(f"{result[name]:,}" for name in ("entries", "up", "down", "bytes_up", "bytes_down")),
        )  # fmt: skip
        self._report(result["up"] + result["down"], run.bytes_up + run.bytes_down)
        self._result = None

    def _report(self, now: int, total: int) -> None:
        """Log the MB of a round and of all so far, and how much of the budget that is."""
        budget = ""
        if self.budget_mb is not None:
            budget = f" of {self.budget_mb:,g} MB ({total / MB / self.budget_mb:.2%})"
        log.info("dagc: %.3f MB in this round, %.3f MB so far%s", now / MB, total / MB, budget)
        if self.budget_mb is not None and total > self.budget_mb * MB >= total - now:
            log.warning("dagc: the budget of %g MB is used up; the run goes on", self.budget_mb)

    # Both

    def _give(self, message: Message, kind: str, client: str | None, order: Order | None = None) -> Sent:
        """Put the model, as this client needs it, and what it is to do into a message of the inner strategy."""
        run = self._started()
        names = list(message.content.array_records)
        if len(names) != 1:
            raise InvalidInput(f"the strategy sends {len(names)} ArrayRecords to a node; dagc needs one, the model")
        download = run.download(client, message.metadata.dst_node_id)
        payload = run.layout.pack(download.frame, run.model.whole)
        fields: dict[str, Any] = {"round": run.round + 1}
        if order is not None:
            fields = {**order._asdict(), "seed": f"{order.seed:x}"}
        instruction = Instruction(
            kind, run.lineage, names[0], download.since, download.version, download.checksum, download.steps,
            run=self.name or "", layout=run.layout.text if client is None or download.since < 0 else "",
            examples=self._examples, **fields,
        )  # fmt: skip
        # The inner strategy gives all nodes one and the same content: each gets its own.
        records = {**dict(message.content.items()), names[0]: record_of(payload), RECORD: instruction.write()}
        message.content = RecordDict(records)
        self._down += len(payload)
        return Sent(message, instruction, client)

    @property
    def _examples(self) -> str:
        """The name of the metric that is a node's weight."""
        keys = (getattr(strategy, "weighted_by_key", None) for strategy in chain_of(self.strategy))
        return str(next(filter(None, keys), "num-examples"))

    def _started(self) -> FlowerRun:
        if self._run is None:
            raise InvalidInput(
                "this strategy has not been started: call DataAware.start; other wrappers go inside, as in "
                "DataAware(DifferentialPrivacyServerSideFixedClipping(FedAvg(), …))"
            )
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
