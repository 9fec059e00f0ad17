"""Many runs at once, each in a process of its own; finished runs are not repeated."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagc.errors import DagcError, Diverged, MalformedPayload, NonFiniteGradient
from dagc.folder import finished
from dagc.plugins import load_plugins
from dagc.training import Config, iterate

DIVERGED = (Diverged, MalformedPayload, NonFiniteGradient)
"""Errors of a training in one process that only NaN or too large values can cause."""
Progress = Callable[[int, int], object]  # `(run, rounds done) -> anything`: called from time to time
Train = Callable[[dict[str, Any], Path, Callable[[], bool]], bool]
"""`(settings, folder, stopped) -> whether the run is over`."""


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C (or SIGTERM) sets instead of interrupting; a second one interrupts."""
    stop = threading.Event()

    def restore() -> None:
        for name, handler in before.items():
            signal.signal(name, handler)

    def first(number: int, frame: object) -> None:
        stop.set()
        restore()

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {name: signal.signal(name, first) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        restore()


def train_in(settings: dict[str, Any], folder: Path, stopped: Callable[[], bool]) -> bool:
    """Train in a folder until `stopped` says to leave it with a checkpoint; returns whether the run is over."""
    return all(not stopped() for _ in iterate(Config(**settings), folder))


def run_all(
    configs: Sequence[Config],
    folder: Path,
    jobs: int,
    progress: Progress = lambda run, done: None,
    diverged: Callable[[int, DagcError], object] | None = None,
    done: Callable[[int, Path], object] = lambda run, path: None,
    train: Train = train_in,
) -> list[Path]:
    """Run every configuration in a folder of its own below `folder`, and return these folders.

    Runs that are finished are left alone, and those that were interrupted continue. On `KeyboardInterrupt` each run
    stops after its round, with a checkpoint. `diverged` is called with a run whose model or gradients became NaN or too
    large (without it, that stops all runs), `done` with one that has ended. `train` does one run, in a process of its
    own: a function that can be pickled.
    """
    paths = [folder / f"{config.method}-seed{config.seed}-{config.key()}" for config in configs]
    workers = min(jobs, len(configs))
    threads = max(1, (os.cpu_count() or 1) // max(1, workers))
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    plugins = [plugin.where for plugin in load_plugins()]
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(stop, plugins))
    try:
        tasks: dict[Future[bool], int] = {}
        with _no_interrupts():
            for number, (config, path) in enumerate(zip(configs, paths, strict=True)):
                if finished(path):
                    progress(number, config.rounds)
                    done(number, path)
                else:
                    alone = config if config.threads else config.replaced(threads=threads)
                    settings = alone.explicit()  # a default that was not asked for may be adapted to the data
                    tasks[pool.submit(_run, train, settings, path)] = number
        waiting = set(tasks)
        while waiting:
            ended, waiting = wait(waiting, timeout=0.3, return_when=FIRST_COMPLETED)
            for task in ended:
                error = task.exception()
                if diverged is not None and isinstance(error, DIVERGED):
                    diverged(tasks[task], error)
                elif not task.result():
                    raise KeyboardInterrupt
                else:
                    done(tasks[task], paths[tasks[task]])
            for number in tasks.values():
                progress(number, _last_round(paths[number]))
    except BrokenProcessPool:
        raise DagcError(f"a run died (too little memory?): the same command continues from {folder}") from None
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
    return paths


def _last_round(path: Path) -> int:
    """How many rounds a run has done, from the end of its metrics."""
    try:
        with (path / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
    except OSError:
        return 0
    return int(lines[-1].partition(b'"round": ')[2].partition(b",")[0]) if lines else 0


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Block Ctrl-C for processes started in this block, and for this one until the block ends.

    A process that is still starting would print a traceback; `run_all` stops them itself.
    """
    can_block = hasattr(signal, "pthread_sigmask")  # not on Windows
    with stopping() as stop:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if can_block else set()
        try:
            yield
        finally:
            if can_block:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if stop.is_set():
        raise KeyboardInterrupt


_stop: Any = None
_orphaned = threading.Event()
_working = threading.Lock()


def _begin(stop: Any, plugins: Sequence[str]) -> None:
    """Start a process for runs. If its parent is killed, it ends after its run has stopped with a checkpoint."""
    global _stop
    _stop = stop
    load_plugins(*plugins)

    def wait_for_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        _orphaned.set()
        with _working:
            os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


def _run(train: Train, settings: dict[str, Any], folder: Path) -> bool:
    """Do one run in this process; returns whether it is over."""
    with _working, stopping() as stop:
        return train(settings, folder, lambda: stop.is_set() or _stop.is_set() or _orphaned.is_set())
