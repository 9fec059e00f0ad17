"""Training on one computer: the local engine, its configuration and its folder. `train` is the entry point."""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from inspect import signature
from logging import DEBUG, INFO, getLogger
from pathlib import Path
from typing import Any, ParamSpec

import numpy as np
from rich.console import Console
from rich.progress import track
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from dagc.data import Partition
from dagc.errors import InvalidInput, shown
from dagc.files import write_atomically
from dagc.folder import Folder, read_metrics, summary
from dagc.policies import Plan
from dagc.training.callbacks import EarlyStopping, TensorBoard
from dagc.training.config import OWN, SOLUTION, Config
from dagc.training.custom import customize
from dagc.training.federation import Federation
from dagc.training.gradients import separate
from dagc.training.objective import Loss, Metric
from dagc.training.result import Result, Round

__all__ = [
    "OWN",
    "SOLUTION",
    "Callback",
    "Config",
    "EarlyStopping",
    "Federation",
    "Result",
    "Round",
    "RunFolder",
    "TensorBoard",
    "Training",
    "iterate",
    "read_metrics",
    "summary",
    "train",
]

log = getLogger("dagc.training")
MODEL = "model.safetensors"
Callback = Callable[[Federation, Round], object]
"""Called after every round with the federation and the round; the training stops if it returns True."""
P = ParamSpec("P")


def iterate(
    config: Config | None = None,
    output: str | Path | None = None,
    callbacks: Callback | Iterable[Callback] = (),
    *,
    plan: Plan | None = None,
    model: nn.Module | str | None = None,
    data: Any = None,
    test: Any = None,
    partition: Partition | Mapping[str, Sequence[int]] | None = None,
    loss: Loss | None = None,
    metric: Metric | None = None,
    **settings: Any,
) -> "Training":
    """Train a model round by round: iterate over the result to get each round as it is done.

    The first round starts when it is asked for. Your own model and data replace those named by the task. What is
    learned depends on `y`: classes (integers), numbers (floats), or the next tokens (integers in the shape of `x`).

    Args:
        config: What to train; or give its settings as keywords.
        output: The run's folder; nothing is stored if not given.
        callbacks: Called after every round with the federation and the round, e.g. `TensorBoard`. The training stops
            early if one returns True.
        plan: The settings of a plan, as other engines take them.
        model: Any `nn.Module`: a copy of it is trained, starting from its weights. Or a name such as `mlp`.
        data: `(x, y)` as tensors or arrays, a torch data set, sequences of tokens, or a mapping from clients' names to
            any of those; see `dagc.data.load`.
        test: The same for testing. If not given, a fifth of the data is held out.
        partition: The positions of the training samples by client, if neither data nor configuration say.
        loss: `(what the model returns, y) -> the mean loss of a batch`; by default cross entropy, or the squared error.
        metric: `(what the model returns, y) -> the mean score of a batch`, where more is better; by default accuracy,
            or R² for numbers. It becomes `Round.score`, and is shown in reports.
        settings: Fields of `Config`, if `config` is not given.

    Example:
        >>> for round in iterate(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=20):
        ...     if round.bytes_up > 5_000:
        ...         break
        >>> round.round < 20
        True
    """
    if isinstance(config, nn.Module):
        raise InvalidInput("the model is given without its keyword: write model=…, data=…")
    if isinstance(config, str):
        raise InvalidInput(f"config is {shown(config)}, a text: write task={shown(config)}")
    if plan is not None and config is not None:
        raise InvalidInput("give config or plan, not both")
    if plan is not None:
        settings = _with_plan(plan, settings)
    if config is not None and settings:
        raise InvalidInput(f"config is given, and so is {next(iter(settings))}: put it into the Config")
    callbacks = [callbacks] if callable(callbacks) else list(callbacks)
    for callback in callbacks:
        _check_callback(callback)
    config, custom = customize(config or Config(**settings), model, data, test, partition, loss, metric)
    return Training(Federation(config, custom), output, callbacks)


def _with_plan(plan: Plan, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings, and those of a plan, whose threshold is in the units of what clients compress."""
    if not isinstance(plan, Plan) or isinstance(plan, Config):
        raise InvalidInput(f"plan is {shown(plan)}: give a dagc.Plan, or a Config as config=")
    both = [name for name in settings if name in Plan.schema()]
    if both:
        raise InvalidInput(f"give a plan or settings, not both: {', '.join(both)} could be in the plan")
    if plan.threshold is not None:
        several = Config(**settings).several_steps
        settings = {"threshold_units": "update" if several else "gradient", **settings}
    return {**settings, **plan.explicit()}


def _check_callback(callback: Any) -> None:
    """Refuse what cannot be called with the federation and the round."""
    name = getattr(callback, "__name__", type(callback).__name__)
    if isinstance(callback, type):
        raise InvalidInput(f"the callback {name} is a class: write callbacks=[{name}(…)], with parentheses")
    try:
        signature(callback).bind(None, None)
    except TypeError as error:
        raise InvalidInput(
            f"the callback {name} cannot be called with a federation and a round ({error}): write "
            "callbacks=[lambda federation, round: …]"
        ) from None
    except ValueError:
        pass  # written in C: its parameters are not known


def _called_like(other: Callable[P, Any]) -> Callable[[Callable[..., Result]], Callable[P, Result]]:
    """Give a function the parameters of another."""

    def mark(function: Callable[..., Result]) -> Callable[P, Result]:
        function.__signature__ = signature(other).replace(return_annotation=Result)  # type: ignore[attr-defined]
        return function

    return mark


@_called_like(iterate)
def train(*args: Any, **settings: Any) -> Result:
    """Train a model. Takes what `iterate` takes.

    With an output folder, everything is stored there, and the same call continues where an earlier one stopped or was
    killed. The result is the same, bit for bit, as if it had never been interrupted.

    Example:
        >>> result = train(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=20)
        >>> result.score > 0.5, result.bytes_up < 30_000, len(result.rounds)
        (True, True, 20)

        Regression with two clients and a model of your own:

        >>> import torch
        >>> x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
        >>> y = x @ torch.tensor([1.0, -2.0, 0.5, 3.0])
        >>> data = {"ann": (x[:250], y[:250]), "bob": (x[250:], y[250:])}
        >>> result = train(model=torch.nn.Linear(4, 1), data=data, method="dagc-r", ratio=0.5, rounds=60)
        >>> result.score > 0.9, result.metric, result.model.weight.shape
        (True, 'R²', torch.Size([1, 4]))
    """
    training = iterate(*args, **settings)
    rounds, folder = list(_shown(training)), training.folder
    if folder is not None:
        rounds = [Round(**{"loss": None, **row}) for row in read_metrics(folder)]  # what is None is not written
    federation = training.federation
    return Result(separate(training.model), rounds, federation.goal.metric, federation.notes)


def _shown(training: "Training") -> Iterable[Round]:
    """The rounds of a training, with a bar while they are done on a terminal, and a line in a notebook."""
    console = Console(stderr=True)
    total, done = training.federation.config.rounds, training.federation.round
    if console.is_jupyter:
        return _in_notebook(training, total)
    if not console.is_terminal:
        return training
    return track(training, "training", total, done, console=console, transient=True)


def _in_notebook(training: Iterable[Round], total: int) -> Iterator[Round]:
    """The rounds, with a line of text that counts them: rich's bar needs ipywidgets in a notebook."""
    line = import_module("IPython.display").display({"text/plain": "training"}, raw=True, display_id=True)
    for result in training:
        if result.round % max(1, total // 100) == 0 or result.round == total:
            line.update({"text/plain": f"training: round {result.round:,} of {total:,}"}, raw=True)
        yield result


class Training(Iterator[Round]):
    """A training that can be stopped between any two rounds; returned by `iterate`.

    Attributes:
        federation: The clients and the server.
        folder: Where everything is stored; None if nothing is.
    """

    def __init__(self, federation: Federation, output: str | Path | None, callbacks: Iterable[Callback]) -> None:
        self.federation, self.folder = federation, output
        self._rounds = _rounds(federation, output, list(callbacks))

    @property
    def model(self) -> nn.Module:
        """The current model of the clients, in training mode."""
        return self.federation.model

    def __next__(self) -> Round:
        return next(self._rounds)

    def close(self) -> None:
        """Stop here: with an output folder, a checkpoint is written."""
        self._rounds.close()


class RunFolder(Folder):
    """Everything of one run on disk, with the model, and the sizes and first parameters of all clients."""

    def __init__(self, path: str | Path, federation: Federation) -> None:
        super().__init__(path, federation)
        self.federation = federation
        self._written: set[str] = set()  # the settings in config.toml

    def finish(self) -> None:
        """Write the model, then the result."""
        model = {name: value.contiguous().clone() for name, value in self.federation.model.state_dict().items()}
        with self.writing(), write_atomically(self.path / MODEL) as file:
            try:
                save_file(model, file.name)
            except SafetensorError as error:
                raise OSError(str(error)) from error
        self.conclude({**summary(read_metrics(self.path)), "config": self.federation.config.key(), "model": MODEL})

    def _key(self) -> str:
        """Of the settings in the file only, so that new settings and defaults of later versions change nothing."""
        return self.federation.config.key(self._written)

    def _claim(self, settings: dict[str, Any] | None) -> None:
        """Refuse a folder that holds another run; write the settings and the clients to a new one."""
        config = self.federation.config
        if settings is None:
            settings = {name: value for name, value in config.as_dict().items() if value is not None}
            self.describe(settings, self._clients())
        else:
            self._recognize()
        self._written = set(settings)
        held = Config(**settings)
        if held.key() != config.key():
            both = ((name, theirs, getattr(config, name)) for name, theirs in held.as_dict().items())
            other = [f"{name} is {theirs!r} there, {ours!r} here" for name, theirs, ours in both if theirs != ours]
            raise InvalidInput(f"{self.path} holds another run ({'; '.join(other)}): choose another --output")

    def _recognize(self) -> None:
        """Refuse the folder of a run that was given another model or other data."""
        try:
            known = json.loads((self.path / "clients.json").read_bytes()).get("given")
        except (OSError, ValueError, AttributeError, RecursionError):
            return  # a report will say what is wrong with it
        if known != self.federation.custom.fingerprint:
            raise InvalidInput(
                f"{self.path} holds a run that was given another model or other data: pass the same ones, with the "
                "same initial weights, or choose another folder"
            )

    def _clients(self) -> dict[str, Any]:
        federation = self.federation
        return {
            "data": federation.data.name,
            "classes": list(federation.data.label_names),
            "notes": list(federation.notes),
            "metric": federation.goal.metric,
            "given": federation.custom.fingerprint,
            "parameters": federation.size,
            "sizes": federation.partition.sizes.tolist(),
            "names": list(federation.names),
            "first_parameters": federation.first_orders(),
        }


def _rounds(
    federation: Federation, output: str | Path | None, callbacks: list[Callback]
) -> Generator[Round, None, None]:
    """Not a method of `Training`: the generator must be closed as soon as the training is garbage-collected."""
    config = federation.config
    evaluation_interval = config.evaluate_every or max(1, config.rounds // 20)
    checkpoint_interval = config.checkpoint_every or max(1, config.rounds // 10)
    with nullcontext() if output is None else RunFolder(output, federation) as folder:
        saved, last = federation.round, config.rounds
        log.info(
            "%s, %s: %d clients, %d parameters, from round %d to %d",
            *(config.task, config.method, len(federation.names), federation.size, saved + 1, last),
        )
        stopped = folder is not None and folder.finished  # a callback may have ended it early
        while federation.round < last and not stopped:
            result = federation.step()
            if result.round % evaluation_interval == 0 or result.round == last:
                score, loss = federation.evaluate()
                result = replace(result, score=score, test_loss=loss)
            _log(federation, result)
            if folder is not None:
                folder.record(vars(result))
            for callback in callbacks:
                stopped |= isinstance(answer := callback(federation, result), bool | np.bool_) and bool(answer)
            if folder is not None and (stopped or result.round % checkpoint_interval == 0 or result.round == last):
                folder.save()
                saved = result.round
            try:
                yield result
            except GeneratorExit:  # the caller stopped between two rounds: this is a good state
                if folder is not None and saved != federation.round:
                    folder.save()
                raise
        if folder is not None and not folder.finished:
            folder.finish()


def _log(federation: Federation, result: Round) -> None:
    """Evaluated rounds are logged as INFO, others as DEBUG."""
    score = "" if result.score is None else f", {federation.goal.metric} {result.score:.4f}"
    log.log(
        DEBUG if result.score is None else INFO,
        "round %d of %d: loss %s%s, %d entries, %d bytes up and %d down so far, %.3f s on the clock",
        *(result.round, federation.config.rounds, "–" if result.loss is None else f"{result.loss:.5g}", score),
        *(result.entries, result.bytes_up, result.bytes_down, result.seconds),
    )
