"""Training on one computer: the local engine, its configuration and its folder. `train` is the entry point."""

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from logging import DEBUG, INFO, getLogger
from pathlib import Path
from typing import Any

from torch import nn

from dagc.data import Partition
from dagc.folder import read_metrics, summary
from dagc.training.callbacks import CsvLog, TensorBoard, ToTarget
from dagc.training.config import OWN, SOLUTION, Config
from dagc.training.federation import Federation, Round
from dagc.training.folder import RunFolder
from dagc.training.given import as_given
from dagc.training.objective import Loss, Metric

__all__ = [
    "OWN",
    "SOLUTION",
    "Config",
    "CsvLog",
    "Federation",
    "Round",
    "RunFolder",
    "TensorBoard",
    "ToTarget",
    "Training",
    "read_metrics",
    "summary",
    "train",
]

log = getLogger("dagc.training")
Callback = Callable[[Federation, Round], object]
Rounds = Generator[Round, None, None]


def train(
    config: Config,
    output: str | Path | None = None,
    callbacks: Iterable[Callback] = (),
    *,
    model: nn.Module | None = None,
    data: Any = None,
    test: Any = None,
    partition: Partition | Mapping[str, Sequence[int]] | None = None,
    loss: Loss | None = None,
    metric: Metric | None = None,
    label: str | None = None,
    client: str | None = None,
) -> "Training":
    """Train a model. Iterate over the result to get each round as it is done, or call its `run` to train to the end.

    With an output folder, everything is stored there, and the same call continues where an earlier one stopped or was
    killed. The result is the same, bit for bit, as if it had never been interrupted.

    Your own model and data replace those named by the task. What is learned depends on `y`: classes (integers),
    numbers (floats), or the next tokens (integers in the shape of `x`).

    Args:
        config: What to train.
        output: The run's folder; nothing is stored if not given.
        callbacks: Called after every round with the federation and the round, e.g. `CsvLog` or `TensorBoard`.
        model: Any `nn.Module`. A copy of it is trained, starting from its weights.
        data: `(x, y)` as tensors or arrays, a torch data set, sequences of tokens, or a mapping from clients' names to
            any of those; see `dagc.data.load`.
        test: The same for testing. If not given, a fifth of the data is held out.
        partition: The positions of the training samples by client, if neither data nor configuration say.
        loss: `(what the model returns, y) -> the mean loss of a batch`; by default cross entropy, or the squared error.
        metric: `(what the model returns, y) -> the mean score of a batch`, where more is better; by default accuracy,
            or R² for numbers. It becomes `Round.accuracy`, and is shown in reports.
        label: The column of the data to predict, if not `label`.
        client: The column with the owner of each row, if not `client`.

    Example:
        >>> config = Config(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=20)
        >>> rounds = list(train(config))
        >>> rounds[-1].accuracy > 0.5, rounds[-1].bytes_up < 30_000
        (True, True)
        >>> train(config).run() == rounds[-1]
        True

        Regression with two clients and a model of your own:

        >>> import torch
        >>> x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
        >>> y = x @ torch.tensor([1.0, -2.0, 0.5, 3.0])
        >>> own = {"ann": (x[:250], y[:250]), "bob": (x[250:], y[250:])}
        >>> training = train(Config(method="dagc-r", ratio=0.5, rounds=60), model=torch.nn.Linear(4, 1), data=own)
        >>> training.run().accuracy > 0.9
        True
        >>> training.model.weight.shape
        torch.Size([1, 4])
    """
    config, given = as_given(config, model, data, test, partition, loss, metric, label, client)
    return Training(Federation(config, given), output, callbacks)


class Training(Iterator[Round]):
    """A training that can be stopped between any two rounds; returned by `train`.

    Attributes:
        federation: The clients and the server.
    """

    _last: Round | None

    def __init__(self, federation: Federation, output: str | Path | None, callbacks: Iterable[Callback]) -> None:
        """Prepare the training. The first round starts when it is asked for."""
        self.federation = federation
        self._output, self._last = output, None
        self._begun = False
        self._rounds = _train(federation, output, list(callbacks))

    @property
    def model(self) -> nn.Module:
        """The current model of the clients, in training mode."""
        return self.federation.model

    def __next__(self) -> Round:
        """Run one round."""
        self._begun = True
        self._last = next(self._rounds)
        return self._last

    def run(self) -> Round:
        """Run all remaining rounds, and return the last; that of the run's folder, if it is finished already."""
        for _ in self:
            pass
        if self._last is None:
            assert self._output is not None  # otherwise there was a round
            self._last = Round(**{"loss": None, **read_metrics(self._output)[-1]})  # what is None is not written
        return self._last

    def close(self) -> None:
        """Stop here: with an output folder, a checkpoint is written."""
        self._begun = True
        self._rounds.close()

    def __del__(self) -> None:
        """Warn if nothing was trained: calling `train` alone does nothing."""
        if not getattr(self, "_begun", True):
            warnings.warn(
                "train() was called, but nothing was trained: iterate over its result, or call the result's run()",
                RuntimeWarning,
                stacklevel=2,
            )


def _train(federation: Federation, output: str | Path | None, callbacks: list[Callback]) -> Rounds:
    """Not a method of `Training`: the generator must be closed as soon as the training is garbage-collected."""
    if output is None:
        yield from _each_round(federation, callbacks, None)
        return
    with RunFolder(output, federation) as folder:
        yield from _each_round(federation, callbacks, folder)
        if not folder.finished:
            folder.finish()


def _each_round(federation: Federation, callbacks: list[Callback], folder: RunFolder | None) -> Rounds:
    config = federation.config
    saved = federation.round
    log.info(
        "%s, %s: %d clients, %d parameters, from round %d to %d",
        *(config.task, config.method, len(federation.names), federation.size, saved + 1, config.rounds),
    )
    while federation.round < config.rounds:
        result = federation.step()
        done = result.round == config.rounds
        if done or result.round % config.evaluation_interval == 0:
            accuracy, loss = federation.evaluate()
            result = replace(result, accuracy=accuracy, test_loss=loss)
        _log(federation, result)
        if folder is not None:
            folder.record(vars(result))
        for callback in callbacks:
            callback(federation, result)
        if folder is not None and (done or result.round % config.checkpoint_interval == 0):
            folder.save()
            saved = result.round
            log.debug("round %d: checkpoint in %s", saved, folder.path)
        try:
            yield result
        except GeneratorExit:  # the caller stopped between two rounds: this is a good state
            if folder is not None and saved != federation.round:
                folder.save()
            raise


def _log(federation: Federation, result: Round) -> None:
    """Evaluated rounds are logged as INFO, others as DEBUG."""
    score = "" if result.accuracy is None else f", {federation.goal.metric} {result.accuracy:.4f}"
    log.log(
        DEBUG if result.accuracy is None else INFO,
        "round %d of %d: loss %s%s, %d entries, %d bytes up and %d down so far, %.3f s on the clock",
        *(result.round, federation.config.rounds, "–" if result.loss is None else f"{result.loss:.5g}", score),
        *(result.entries, result.bytes_up, result.bytes_down, result.seconds),
    )
