"""Training: clients, server, the round, checkpoints. `train` runs it all and yields the rounds."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from dagc.training.config import Config
from dagc.training.federation import Federation, Round
from dagc.training.folder import RunFolder, read_metrics, summary

__all__ = ["Config", "Federation", "Round", "RunFolder", "read_metrics", "summary", "train"]

Callback = Callable[[Federation, Round], object]


def train(config: Config, output: str | Path | None = None, callbacks: Iterable[Callback] = ()) -> Iterator[Round]:
    """Train and yield each round as it is done; stop whenever you like.

    With an output folder, everything is kept there, and the same call goes on where an earlier one stopped or was
    killed; the result is the same to the bit as if it had never been interrupted.

    Args:
        config: What to train.
        output: The run's folder, if it is to be kept.
        callbacks: Called with the federation and the round, after every round.

    Example:
        >>> config = Config(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=20)
        >>> rounds = list(train(config))
        >>> rounds[-1].accuracy > 0.5, rounds[-1].bytes_up < 30_000
        (True, True)
    """
    federation = Federation(config)
    told = list(callbacks)
    if output is None:
        yield from _rounds(federation, told, None)
        return
    with RunFolder(output, federation) as folder:
        yield from _rounds(federation, told, folder)
        if not folder.finished:
            folder.finish()


def _rounds(federation: Federation, callbacks: list[Callback], folder: RunFolder | None) -> Iterator[Round]:
    config = federation.config
    saved = federation.round
    with federation.running():
        while federation.round < config.rounds:
            result = federation.step()
            done = result.round == config.rounds
            if done or result.round % config.evaluation_interval == 0:
                accuracy, loss = federation.evaluate()
                result = replace(result, accuracy=accuracy, test_loss=loss)
            if folder is not None:
                folder.record(result)
            for callback in callbacks:
                callback(federation, result)
            if folder is not None and (done or result.round % config.checkpoint_interval == 0):
                folder.save()
                saved = result.round
            try:
                yield result
            except GeneratorExit:  # whoever listened has stopped: between two rounds, so this is a good state
                if folder is not None and saved != federation.round:
                    folder.save()
                raise
