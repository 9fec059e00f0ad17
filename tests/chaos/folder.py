"""Faults around the local engine: it is stopped, killed, cannot read or write, and must end with the same bits."""

import shutil
import warnings
from functools import cache, partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dagc.checkpoint import checkpoints
from dagc.errors import CheckpointError, InvalidInput
from dagc.training import Config, iterate, train
from tests.chaos.faults import Broken, Faults, Killed, newer_version, refused
from tests.chaos.plugin import plugins

__all__ = ["break_folder"]

SHARED: dict[str, Any] = {
    "task": "logistic@digits", "clients": 4, "skew_ratio": 10, "rounds": 9, "threads": 1, "checkpoint_every": 2,
    "failures": 0.2, "late": 0.2, "seed": 5,
}  # fmt: skip
PLANS: tuple[dict[str, Any], ...] = (
    {"method": "dagc", "local_steps": 2},
    {"method": "dagc", "participation": 0.25, "rounds": 24, "failures": 0.4},
    {"method": "dagc", "bytes": 100, "down": 150, "clip": 1.0, "norm_bound": 20, "first_bits": 5},
    {"method": "dagc-r", "ratio": 0.02, "local_steps": 2, "first_model": "drawn", "participation": 0.6},
    {"method": "stc", "bytes": 40, "participation": 0.6},
    {"method": "random-k", "bytes": 60, "values": "int8", "optimizer_options": {"momentum": 0.5}},
    {"method": "accordion", "ratio": 0.02, "options": {"interval": 1}, "optimizer": "Adam", "learning_rate": 0.01},
    {"method": "thrifty", "bytes": 40, "down": 60, "local_steps": 2},
    {"method": "none", "down": 200},
    {"method": "dagc", "down": "same", "first_model": "drawn", "momentum": 0.5},
    {"method": "somebody's", "ratio": 0.02, "down": 60},
)
"""The second has clients that come so rarely that they visit."""
MOST = 200
"""Starts after which a run should have ended, whatever happens."""
RESULT = ("metrics.jsonl", "model.safetensors", "result.json")


def _config(number: int) -> Config:
    return Config(**{**SHARED, **PLANS[number]})


@cache
def _undisturbed(number: int) -> tuple[bytes, ...]:
    """What a run leaves in its folder that nothing happens to."""
    with TemporaryDirectory() as folder:
        train(_config(number), folder)
        return tuple((Path(folder) / name).read_bytes() for name in RESULT)


def break_folder(faults: Faults, folder: Path) -> None:
    """Rounds of four clients, started as often as it takes; `Broken` if they end with other bits."""
    number, path = faults.number(len(PLANS)), folder / "run"
    with warnings.catch_warnings(), plugins():
        warnings.simplefilter("ignore")  # a damaged checkpoint is reported
        config = _config(number)
        for starts in count(1):
            if _ended(config, path, faults):
                break
            if starts == MOST:
                raise Broken(f"the run has not ended after {MOST} starts")
            kept = checkpoints(path / "checkpoints")
            if len(kept) > 1 and faults.happens("damaged checkpoint", 0.2):
                kept[0].write_bytes(faults.damaged(kept[0].read_bytes()))
            elif kept and faults.happens("checkpoint of a newer version", 0.1):
                with newer_version(kept[0], "run"):
                    refused("a checkpoint of a newer version", partial(next, iterate(config, path, []), None))
            if (path / "metrics.jsonl").exists() and faults.happens("half a line", 0.2):
                with (path / "metrics.jsonl").open("ab") as lines:
                    lines.write(b'{"round": 3, "lo')
        if tuple((path / name).read_bytes() for name in RESULT) != _undisturbed(number):
            raise Broken("the run ended with other bits than one that nothing happened to")
    shutil.rmtree(path)


def _ended(config: Config, path: Path, faults: Faults) -> bool:
    """Train until the end, or until something happens."""

    def kill(*_: object) -> None:
        if faults.happens("killed", 0.1):
            raise Killed

    training = iterate(config, path, [kill])
    while True:
        try:
            with faults.disk(0.1), faults.reading(0.03, path):
                result = next(training, None)
                if result is not None and faults.happens("stopped", 0.1):
                    training.close()
                    return False
        except (Killed, CheckpointError):
            return False
        except InvalidInput as error:
            if "be read" not in str(error):  # it names the file, which stays
                raise
            return False
        if result is None:
            return True
