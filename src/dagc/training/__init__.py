"""Training on one computer: the local engine, its configuration and its folder. `train` runs it all."""

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
) -> "Training":
    """Train: iterate over the result for the rounds as they are done, or let it `run` to the end.

    With an output folder, everything is kept there, and the same call continues where an earlier one stopped or was
    killed; the result is the same to the bit as if it had never been interrupted.

    A model and data of your own take the place of what the task names. What is learnt follows from `y`: labels (whole
    numbers), numbers (floats), or the next tokens (whole numbers in the shape of `x`).

    Args:
        config: What to train.
        output: The run's folder, if it is to be kept.
        callbacks: Called with the federation and the round, after every round, e.g. `CsvLog` or `TensorBoard`.
        model: Any `nn.Module`; a copy of it is trained, from its weights.
        data: `(x, y)` as tensors or arrays, a torch data set, sequences of tokens, or a mapping from clients' names to
            any of those; see `dagc.data.as_dataset`.
        test: The same for testing; without it a fifth of the data is held out.
        partition: The positions of the training samples by client, if neither the data nor the configuration says.
        loss: `(what the model returns, y) -> the mean loss of a batch`; by default cross entropy, or the squared error.
        metric: `(what the model returns, y) -> the mean score of a batch`, of which more is better; by default
            accuracy, or R² for numbers. It is what `Round.accuracy` and reports have.

    Example:
        >>> config = Config(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=20)
        >>> rounds = list(train(config))
        >>> rounds[-1].accuracy > 0.5, rounds[-1].bytes_up < 30_000
        (True, True)
        >>> train(config).run() == rounds[-1]
        True

        Numbers of two clients, with a model of one's own:

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
    config, given = as_given(config, model, data, test, partition, loss, metric)
    return Training(Federation(config, given), output, callbacks)


class Training(Iterator[Round]):
    """A training that can be stopped between any two rounds; `train` makes it.

    Attributes:
        federation: The clients and the server.
    """

    def __init__(self, federation: Federation, output: str | Path | None, callbacks: Iterable[Callback]) -> None:
        """Get ready; the first round begins when it is asked for."""
        self.federation = federation
        self._begun = False
        self._rounds = _train(federation, output, list(callbacks))

    @property
    def model(self) -> nn.Module:
        """The model as it is now, in training mode; what the clients have."""
        return self.federation.model

    def __next__(self) -> Round:
        """Do a round."""
        self._begun = True
        return next(self._rounds)

    def run(self) -> Round | None:
        """Do all rounds that are left, and return the last; None if there were none."""
        last = None
        for result in self:
            last = result
        return last

    def close(self) -> None:
        """Stop here: with an output folder, a checkpoint is written."""
        self._begun = True
        self._rounds.close()

    def __del__(self) -> None:
        """Somebody who only calls `train` is likely to expect that it trains."""
        if not getattr(self, "_begun", True):
            warnings.warn(
                "train() was called and nothing was trained: iterate over what it returns, or call its run()",
                RuntimeWarning,
                stacklevel=2,
            )


def _train(federation: Federation, output: str | Path | None, callbacks: list[Callback]) -> Rounds:
    """Not a method of `Training`: the generator must be closed as soon as nobody holds the training any more."""
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
        except GeneratorExit:  # nobody listens any more: between two rounds, so this is a good state
            if folder is not None and saved != federation.round:
                folder.save()
            raise


def _log(federation: Federation, result: Round) -> None:
    """A round that was evaluated is of interest, any other a detail."""
    score = "" if result.accuracy is None else f", {federation.goal.metric} {result.accuracy:.4f}"
    log.log(
        DEBUG if result.accuracy is None else INFO,
        "round %d of %d: loss %s%s, %d entries, %d bytes up and %d down so far, %.3f s on the clock",
        *(result.round, federation.config.rounds, "–" if result.loss is None else f"{result.loss:.5g}", score),
        *(result.entries, result.bytes_up, result.bytes_down, result.seconds),
    )
