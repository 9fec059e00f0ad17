"""The server's side: a wrapper around any strategy, which still sees whole models and knows nothing of this."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dagc.errors import InvalidInput, TooFewNodes
from dagc.flower import strategies
from dagc.flower.layout import AppModel
from dagc.flower.logs import log
from dagc.flower.node import FILE_NAME, state_folder
from dagc.flower.round import LATE, Round, Sent
from dagc.flower.run import METRIC, FlowerFolder, FlowerRun
from dagc.folder import SCORE
from dagc.protocol import Plan
from dagc.settings import Setting

SCORES, LOSS, TRAIN_LOSS = (METRIC, "eval_acc"), ("loss", "eval_loss"), ("train_loss", "loss")  # which are drawn
UP, DOWN, TOTAL = "dagc-mb-up", "dagc-mb-down", "dagc-mb-total"  # of a round, and both ways in all rounds so far
MB = 1_000_000
CLIP = "clipping_norm"  # under which a strategy tells nodes the bound of what they send
NODES = Setting("integer", "", least=0, note="a number of nodes, or 0 to never stop")
PATIENCE = Setting("integer", "", least=1, note="a number of rounds from 1 on")
BUDGET = Setting("number", "", above=0, note="a number of MB above 0")
# The methods of `DataAware` that a round goes through.
OURS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "summary")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class InnerStrategy:
    """The inner strategy as its own `start` sees it, which may be somebody's own: `DataAware` does the rounds.

    It passes for the inner strategy, so that `super().start(…)` works there.
    """

    def __init__(self, outer: Strategy, inner: Strategy) -> None:
        object.__setattr__(self, "_outer", outer)
        object.__setattr__(self, "_inner", inner)

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        return type(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer if name in OURS else self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)


class DataAware(Strategy):
    """Let every node send as much as its data is worth; whatever it does not send, it keeps for later.

    Attributes that it does not have are those of the inner strategy, whose own `start` runs the rounds.

    Args:
        strategy: What the app used before. Those that average are given one reply, the mean of all, so that entries
            which nobody sent stay as they are, to the bit; all others get each node's model.
        plan: The plan; or give its settings. A threshold is in the units of the model's change in a round.
        whole: Patterns of names of arrays that are never compressed, like batch norm's buffers, integers and float64.
        run: The run's name: it is kept in a folder, and another `flwr run` with this name continues it. "" is no name.
        folder: Where the folder of that name is; `runs` in `DAGC_STATE`, or in Flower's folder, if not given.
        min_nodes: How many nodes must contribute to a round; 0: none.
        patience: The run ends with `TooFewNodes` after so many rounds in a row with fewer, or at once if nobody has
            ever contributed and all nodes answer with errors.
        budget_mb: What may be sent in both directions, in MB (10^6 bytes); for the log only, which also warns.
        strategy_state: The attributes that a strategy of your own keeps from round to round, for runs with a name.
        settings: The plan's settings, by the names that `dagc.Plan` has for them.

    Example:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> strategy = DataAware(FedAvg(fraction_train=0.5), bytes=2000)
        >>> strategy.min_train_nodes
        2
    """

    def __init__(
        self,
        strategy: Strategy,
        plan: Plan | None = None,
        *,
        whole: Sequence[str] = (),
        run: str | None = None,
        folder: str | Path | None = None,
        min_nodes: int = 1,
        patience: int = 3,
        budget_mb: float | None = None,
        strategy_state: Collection[str] | None = None,
        **settings: Any,
    ) -> None:
        if isinstance(strategy, DataAware):
            raise InvalidInput("DataAware is given a DataAware: wrap the strategy once, with all settings")
        strategies.check_kind(strategy)
        strategies.check_names(DataAware, strategy, settings)
        if run and not (isinstance(run, str) and FILE_NAME.fullmatch(run)):
            raise InvalidInput(f"run is {run!r}: name it with letters, digits, '-', '_' and '.'")
        if isinstance(whole, str):
            raise InvalidInput(f"whole is {whole!r}: give a list of names or patterns, [{whole!r}]")
        self.min_nodes, self.patience = NODES.number("min_nodes", min_nodes), PATIENCE.number("patience", patience)
        self.budget_mb = None if budget_mb is None else BUDGET.number("budget_mb", budget_mb)
        if plan is not None and settings:
            raise InvalidInput(f"give a plan or settings, not both: {', '.join(settings)} could be in the plan")
        if strategies.includes(strategy, strategies.COMPARING):
            settings.setdefault("overhead", 0.0)  # whoever waits cannot be compared
        self.plan = plan if plan is not None else Plan(**settings)
        self.strategy, self.name = strategy, run or None
        if self.name is not None:
            strategies.check_state(strategy, strategy_state)
        self.whole, self.strategy_state = tuple(whole), strategy_state
        self.folder = Path(folder).expanduser() if folder is not None else state_folder() / "runs"
        self._run: FlowerRun | None = None
        self._keep: FlowerFolder | None = None
        self._round: Round | None = None
        self._timeout, self._evaluates, self._down = 3600.0, False, 0  # the latter: bytes in earlier metrics

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "strategy" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
        **options: Any,
    ) -> Result:
        """As the inner strategy's; rounds that a run of the same name has behind it count."""
        strategies.check_votes(self.strategy, self.plan)
        run = FlowerRun(initial_arrays, self.plan, self.whole, num_rounds, self.strategy, self.strategy_state)
        self._run, self._round, self._keep = run, None, None
        self._timeout, self._evaluates = timeout, evaluate_fn is not None
        if self.name is not None:
            settings = {"strategy": type(self.strategy).__name__, **run.server.plan.changed()}
            self._keep = FlowerFolder(self.folder / self.name, run, num_rounds, settings)
        with self._keep or nullcontext():
            done, self._down = run.round, run.bytes_down
            if self._keep is not None:
                self._begin(self._keep, done, num_rounds)
            left = max(0, num_rounds - done)
            chosen = {"train_config": train_config, "evaluate_config": evaluate_config, **options}
            if evaluate_fn is not None:
                chosen["evaluate_fn"] = self._evaluation(evaluate_fn, done)
            result: Result = type(self.strategy).start(
                InnerStrategy(self, self.strategy),  # type: ignore[arg-type]
                grid=grid,
                initial_arrays=run.layout.join(run.model, wide=True),
                num_rounds=left,
                timeout=timeout,
                **{name: value for name, value in chosen.items() if value is not None},
            )
            self._close_round()
            if self._keep is not None and run.round and (left or not self._keep.finished):
                self._keep.finish()
        if isinstance(result, Result):
            result.arrays = run.layout.join(run.served)
            for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
                setattr(result, kind, {done + number: metrics for number, metrics in getattr(result, kind).items()})
        return result

    def _begin(self, keep: FlowerFolder, done: int, rounds: int) -> None:
        """Begin to keep the run, and log where that is, and whether something is left to do."""
        where = keep.path.absolute()
        if not done:
            keep.begin()
        if done < rounds:
            state = f"continues after round {done}" if done else "begins"
            log.info("dagc: run %s %s; it is kept in %s", self.name, state, where)
        else:
            log.warning(
                "dagc: run %s has been trained for %d rounds already, and %d are wanted: its model is returned as it "
                "is. To train it longer, ask for more rounds; for another run, choose another run name or delete %s",
                self.name, done, rounds, where,
            )  # fmt: skip

    def summary(self) -> None:
        """Log the plan, then what the inner strategy has to say."""
        words = [f"{name} {value}" for name, value in self.plan.changed().items()]
        usual = None if self._run is None else self._run.server.plan.bytes
        if usual is not None and not self.plan.budgets_set:
            words.append(f"by default {usual:,.0f} bytes per node and round")
        if self._run is not None and self._run.server.plan.step_ahead:
            words.append("train_loss is of the models that nodes train from, ahead of the server's by what they keep")
        log.info("\t├──> dagc: %s", ", ".join(words))
        self.strategy.summary()

    # Training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask what must be known first, then give everybody the model and what it may send."""
        run = self._started()
        self._close_round()  # a `start` of somebody's own need not evaluate
        current = self._round = Round(run, self.name or "")
        wanted = list(self.strategy.configure_train(current.number, arrays, config, grid))
        current.sampled = bool(wanted)
        current.introduce(wanted, grid, self._timeout)
        if not run.round and run.names:
            run.check_rounds(len(wanted))
        unknown = sorted(set(self.plan.caps) - set(run.server.members))
        if unknown and not run.round:
            known = ", ".join(run.server.members)
            log.warning("dagc: caps name %s, but no such node is here; the nodes are %s", ", ".join(unknown), known)
        return current.order(wanted, self._clip(config))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode and check what came, let the inner strategy make the new model of it, and count."""
        run, current, replies = self._started(), self._current(), list(replies)
        records = [each for reply in replies if reply.has_content() for each in reply.content.array_records.values()]
        current.up = sum(len(array.data) for record in records for array in record.values())
        good = current.uploads(replies)
        self._require_nodes(current, len(good))
        arrays, metrics = self._aggregate(good, current.failures(good))
        run.advance([each.upload for each in good], None if arrays is None else run.layout.split(arrays))
        run.bytes_up += current.up
        current.result = {
            "round": run.round,
            "loss": _number(metrics, TRAIN_LOSS),
            "present": len(good),
            "entries": sum(len(each.upload.update) for each in good),
        }
        metrics = MetricRecord() if metrics is None else metrics
        total = run.bytes_up + run.bytes_down
        metrics.update({UP: current.up / MB, DOWN: (run.bytes_down - self._down) / MB, TOTAL: total / MB})
        self._down = run.bytes_down
        return (None if arrays is None else run.layout.join(run.model, wide=True)), metrics

    def _aggregate(self, good: list[Sent], errors: list[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the inner strategy makes of the uploads: of their mean if that is all it looks at, else of each."""
        number = self._current().number
        if not good or not strategies.averages(self.strategy):
            return self.strategy.aggregate_train(number, [*map(self._with_model, good), *errors])
        inner: Any = self.strategy
        mean = Message(self._mean(good), reply_to=good[0].message)
        arrays, _ = inner.aggregate_train(number, [mean, *errors])
        return arrays, inner.train_metrics_aggr_fn([each.reply.content for each in good], inner.weighted_by_key)

    def _with_model(self, sent: Sent) -> Message:
        """A node's reply with its model: what the server has, moved by what the node sent."""
        run = self._started()
        model = run.model.vector - sent.upload.update.dense()
        if strategies.includes(self.strategy, strategies.CLIPPING) and torch.equal(model, run.model.vector):
            model[0] += max(1e-6 * abs(float(model[0])), 1e-12)  # Flower divides by the length of the change
        sent.reply.content[sent.arrays] = run.layout.join(AppModel(model, sent.whole), wide=True)
        return sent.reply

    def _mean(self, good: list[Sent]) -> RecordDict:
        """All replies as one: their mean, weighted by examples, of which it has the sum."""
        run, content = self._started(), good[0].reply.content
        weights = np.array([run.server.members[each.answer.name].examples for each in good])
        shares = weights / weights.sum()
        whole = [
            sum(share * array.astype(np.float64) for share, array in zip(shares, arrays, strict=True))
            for arrays in zip(*(each.whole for each in good), strict=True)
        ]
        model = AppModel(run.model.vector - run.server.total([each.upload for each in good]), whole)
        records = [each.metrics for each in good]
        means = {name: np.tensordot(shares, [each[name] for each in records], axes=1).tolist() for name in records[0]}
        claim = MetricRecord({**means, run.examples: float(weights.sum())})
        mean: dict[str, Any] = {
            good[0].arrays: run.layout.join(model, wide=True),
            next(iter(content.metric_records)): claim,
        }
        return RecordDict({**dict(content.items()), **mean})

    def _clip(self, config: ConfigRecord) -> float | None:
        """The bound of a strategy that expects nodes to clip what they send; with it, dagc clips as well.

        Flower's own mods clip what the app has learned in a round, and what was kept back before comes on top of that.
        """
        bound = config.get(CLIP)
        clip = float(bound) if isinstance(bound, int | float) else None
        whole = [piece.name for piece in self._started().layout.whole]
        if whole and (clip is not None or self.plan.clip is not None):
            raise InvalidInput(
                f"clip bounds what is compressed, but {', '.join(whole):.200} goes whole: use a model without such "
                "arrays, e.g. with group norm instead of batch norm"
            )
        return clip

    def _require_nodes(self, current: Round, nodes: int) -> None:
        """Stop if too few nodes have contributed for some rounds, with what is wrong with the others.

        The last of these rounds is not over then: a run with a name repeats it when it is started again.
        """
        run = current.run
        if not current.sampled or nodes + len(current.recovering) >= self.min_nodes:
            run.poor = 0
            return
        run.poor += 1
        tried = any(member.accepted_round for member in run.server.members.values())
        hopeless = not nodes and not tried and LATE not in current.left_out.values()
        if run.poor < self.patience and not hopeless:
            return
        who = f"{nodes} nodes contribute, fewer than min_nodes = {self.min_nodes}" if nodes else "no node contributes"
        again = f", as in the {run.poor - 1} rounds before" if run.poor > 1 else ""
        causes = current.causes() or "The strategy has sampled too few"
        raise TooFewNodes(f"round {current.number}: {who}{again}. {causes}")

    # Evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Give those who evaluate the new model, in as few bytes as those who train."""
        current = self._current()
        return current.evaluate(self.strategy.configure_evaluate(current.run.round, arrays, config, grid))

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the inner strategy does it, of those replies that it can add up."""
        current, replies = self._current(), list(replies)
        errors = [reply for reply in replies if reply.has_error()]
        good = current.evaluations(replies)
        metrics = self.strategy.aggregate_evaluate(current.run.round, [*good, *errors])
        self._note(metrics)
        if not self._evaluates:
            self._close_round()
        return metrics

    def _evaluation(self, evaluate: Evaluate, done: int) -> Evaluate:
        """The app's evaluation on the server, with the run's own numbers of the rounds."""

        def evaluation(number: int, arrays: ArrayRecord) -> MetricRecord | None:
            run = self._started()
            metrics = evaluate(done + number, run.layout.join(run.served))
            if number:
                self._note(metrics)
                self._close_round()
            return metrics

        return evaluation

    def _note(self, metrics: MetricRecord | None) -> None:
        current, score = self._round, _number(metrics, SCORES)
        if current is not None and current.result is not None and score is not None:
            current.result |= {SCORE: score, "test_loss": _number(metrics, LOSS)}

    def _close_round(self) -> None:
        """Write a round's line and a checkpoint before any node hears of it."""
        run, current = self._started(), self._round
        if current is None or current.result is None:
            return
        result = {**current.result, "up": current.up, "down": current.down}
        result |= {"bytes_up": run.bytes_up, "bytes_down": run.bytes_down, "seconds": run.seconds}
        current.result = None
        if self._keep is not None:
            self._keep.close_round(result, {name: order.amount for name, order in current.orders.items()})
        now, total, budget = current.up + current.down, run.bytes_up + run.bytes_down, self.budget_mb
        log.info(
            "dagc: round %d: %d of %d nodes, %s entries, %s bytes up, %s down; %.3f MB so far%s",
            result["round"], result["present"], len(current.trained) + len(current.unmet),
            *(f"{result[name]:,}" for name in ("entries", "up", "down")),
            total / MB, "" if budget is None else f" of {budget:,g} MB ({total / MB / budget:.2%})",
        )  # fmt: skip
        if budget is not None and total > budget * MB >= total - now:
            log.warning("dagc: the budget of %g MB is used up; the run goes on", budget)

    def _started(self) -> FlowerRun:
        if self._run is None:
            raise InvalidInput(
                "this strategy has not been started: call DataAware.start; other wrappers go inside, as in "
                "DataAware(DifferentialPrivacyServerSideFixedClipping(FedAvg(), …))"
            )
        return self._run

    def _current(self) -> Round:
        self._started()
        if self._round is None:
            raise InvalidInput("the strategy's start() aggregates a round that it has not configured")
        return self._round


def _number(metrics: Mapping[str, Any] | None, names: tuple[str, ...]) -> float | None:
    """The first of these metrics that is there."""
    values = [metrics[name] for name in names if name in metrics] if metrics is not None else []
    return next((float(value) for value in values if isinstance(value, int | float)), None)
