"""Tables of other people's code beside ours, from `results/others/FILE.json`: measured once, by hand."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from dagc.errors import InvalidInput, unknown
from dagc.files import failure
from dagc.report.numbers import spread
from dagc.text import in_bytes
from research.judged import judged
from research.kinds import Columns, points
from research.measured import digits

__all__ = ["OTHERS", "compared"]

CLIENTS = 10
"""Of every federation in these files, which do not say it."""
LAST = 5
"""How many evaluations the end of a training is the mean of."""
SAME = "theirs, as many entries"
"""Their code with our number of entries in each tensor, which was tried for one method only, and not timed."""
SHOWN = 6
"""How many evaluations of a training stand in a row."""


def compared(name: str, folder: Path) -> tuple[list[str], list[list[str]], str]:
    """A table of other people's code beside ours: heads, rows, and where it comes from.

    Args:
        name: One of `OTHERS`.
        folder: The records, usually `results`.

    Raises:
        InvalidInput: There is no such table, or its file is missing or damaged. The message names it.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> step = {"size": 1_000_000, "ratio": 0.01, "grace": 16.0, "ours": 1.0, "ours with frame": 2.0}
        >>> step |= {"bytes grace": 80_000, "bytes ours": 50_157}
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "others" / "grace.json"
        ...     path.parent.mkdir()
        ...     _ = path.write_text(json.dumps({"theirs": "grace fd3a7f4", "ours": "25e0f00", "steps": [step]}))
        ...     heads, rows, source = compared("grace", Path(folder))
        >>> rows[0]
        ['1.0 M entries, 1 %', '16.0 ms', '1.00 ms', '2.00 ms', '8.0', '80,000', '50,157']
        >>> source
        'Record: `results/others/grace.json`; theirs: grace fd3a7f4, ours: commit 25e0f00.'
    """
    if name not in OTHERS:
        raise unknown("table of others' code", name, OTHERS)
    path = folder / "others" / f"{name.partition('-')[0]}.json"
    try:
        found = json.loads(path.read_bytes())
        if not isinstance(found["theirs"], str) or not isinstance(found["ours"], str):
            raise ValueError("it does not say what was compared")
        parts = [found, *(part for part in found.values() if isinstance(part, dict))]  # some were measured again
        ours = ", ".join(dict.fromkeys(part["ours"] for part in parts if isinstance(part.get("ours"), str)))
        source = f"Record: `results/others/{path.name}`; theirs: {found['theirs']}, ours: commit {ours}."
        return *OTHERS[name](found), source
    except OSError as error:
        raise InvalidInput(f"there is no record {path}: {failure(error)}") from error
    except KeyError as error:
        raise InvalidInput(f"{path} is not a record of others' code: it has no {error}") from error
    except (ValueError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InvalidInput(f"{path} is not a record of others' code: {error}") from error


def _dagc_steps(found: dict[str, Any]) -> Columns:
    """What DAGC's authors compute and what ours does, on the same gradients."""
    theirs, ours = found["ratios theirs"], found["ratios ours"]
    apart = max(abs(one / other - 1) for one, other in zip(ours, theirs, strict=True))
    same, cpu = found["same sent tensors, ten steps"], found["cpu of a compression, ms"]
    entries = [_range(counts) for counts in found["entries theirs/ours"]]
    rows = [
        ["ratios of DAGC-R", *(f"{100 * ratios[0]:.3f} % … {100 * ratios[-1]:.3f} %" for ratios in (theirs, ours))],
        ["… largest relative difference", "", f"{apart:.0e}" if apart else "0"],
        [f"entries in each of {len(same)} steps", *entries],
        ["… steps with the same entries and values", "", f"{sum(same)} of {len(same)}"],
        ["… largest difference of the residuals", "", f"{found['largest difference of residuals']:g}"],
        ["CPU of a compression", _ms(cpu["theirs"]), _ms(cpu["ours"])],
        ["… with the frame", "", _ms(cpu["ours with frame"])],
    ]
    return ["", "theirs", "ours"], rows


def _dagc_bytes(found: dict[str, Any]) -> Columns:
    """What the same entries take on the wire."""
    names = {
        "dense": "the tensors that their clients hand to their server (dense, with zeros)",
        "reported": "what their code reports: ratio × size of the model",
        "int32 + fp32": "as int32 + fp32, 8 bytes an entry",
        "plain frames": "our plain frames, fp32",
        "compact frames": "our compact frames, fp32",
        "compact frames, signs": "our compact frames, signs",
    }
    sent = found["a round of all clients, bytes"]
    return [f"{sent['entries']:,} entries", "bytes"], [[words, f"{sent[name]:,.0f}"] for name, words in names.items()]


def _dagc_accuracy(found: dict[str, Any]) -> Columns:
    """Accuracies over the seeds, how much ours is above theirs over all evaluations, and the time of a round."""
    training = found["training"]
    names = {
        "theirs": "theirs",
        SAME: "theirs, with as many entries in each tensor as ours",
        "ours, per tensor": "ours, `per_tensor`",
        "ours, across the model": "ours",
    }
    rows = []
    for method, title in (("dagc-r", "DAGC-R"), ("top-k", "Top-k")):
        for whose, words in names.items():
            if whose == SAME and whose not in training[method]:
                continue
            own, other = training[method][whose], training[method]["theirs"]
            after = [_percent(evaluated) for evaluated in zip(*own, strict=True)]
            above = "" if whose == "theirs" else _above([mean(run) for run in own], [mean(run) for run in other])
            cpu = "" if whose == SAME else _ms(1000 * mean(training[method][f"cpu per round {whose}, s"]))
            rows.append([f"{title}, {words}", *after, above, cpu])
    rounds = [f"after {rounds}" for rounds in training["evaluated after"]]
    return ["", *rounds[:-1], f"{rounds[-1]} rounds", "above theirs, points", "CPU per round"], rows


def _stc_accuracy(found: dict[str, Any]) -> Columns:
    """Accuracies over the seeds, and by how much ours ends above theirs, seed by seed."""
    runs = found["training"]
    step, left = divmod(len(runs[0]["theirs"]["accuracy"]), SHOWN)
    if left or not step:
        raise ValueError(f"{len(runs[0]['theirs']['accuracy'])} evaluations are not a multiple of {SHOWN}")
    ends, body = {}, []
    names = {"theirs": "theirs", "ours": "ours, `stc`", "ours per tensor": "ours, `stc`, `per_tensor`"}
    for whose, words in names.items():
        evaluated = list(zip(*(run[whose]["accuracy"] for run in runs), strict=True))
        if len(evaluated) != SHOWN * step:
            raise ValueError(f"{len(evaluated)} evaluations of {whose} stand beside {SHOWN * step} of theirs")
        ends[whose] = [mean(run[whose]["accuracy"][-LAST:]) for run in runs]
        above = "" if whose == "theirs" else _above(ends[whose], ends["theirs"])
        body.append([words, *map(_percent, evaluated[step - 1 :: step]), _percent(ends[whose]), above])
    rounds = runs[0]["rounds"]
    heads = [f"after {rounds * (place + 1) // SHOWN}" for place in range(SHOWN)]
    return ["", *heads[:-1], f"{heads[-1]} rounds", f"last {LAST} evaluations", "ends above theirs, points"], body


def _stc_bytes(found: dict[str, Any]) -> Columns:
    """What both send, as means over the seeds; theirs is an estimate."""
    runs = found["training"]
    rounds, sides = runs[0]["rounds"], [[run[whose] for run in runs] for whose in ("theirs", "ours")]

    def row(words: str, cell: Callable[[dict[str, Any]], float], text: str, how: Sequence[str] = ("", "")) -> list[str]:
        return [words, *(f"{mean(map(cell, side)):{text}}{said}" for side, said in zip(sides, how, strict=True))]

    how, times = (", estimated", ", sent"), [_ms(1000 * mean(one["cpu_per_round"] for one in side)) for side in sides]
    rows = [
        row("entries up per client and round", lambda side: side["entries"] / rounds / CLIENTS, ".1f"),
        row(f"bytes up, all clients, {rounds} rounds", lambda side: side["bytes_up"], ",.0f", how),
        row(f"bytes down, one client, {rounds} rounds", _down, ",.0f", how),
        row("bits per entry up", lambda side: 8 * side["bytes_up"] / side["entries"], ".2f"),
        ["CPU per round", *times],
    ]
    return [f"mean of {len(runs)} seeds", "theirs", "ours"], rows


def _down(side: dict[str, Any]) -> float:
    """What one client downloads: they count one, we all."""
    return float(side["bytes_down_one"] if "bytes_down_one" in side else side["bytes_down"] / CLIENTS)


def _grace(found: dict[str, Any]) -> Columns:
    """Time and bytes of a step of Top-k; the times faster include our frame."""
    heads = ["", "GRACE", "ours", "ours, with the frame", "times faster", "bytes: GRACE", "bytes: ours"]
    rows = []
    for step in found["steps"]:
        words = f"{step['size'] / 1e6:.1f} M entries, {100 * step['ratio']:g} %"
        times = [_ms(step[name]) for name in ("grace", "ours", "ours with frame")]
        faster = step["grace"] / step["ours with frame"]
        sent = f"{step['bytes grace']:,}", f"{step['bytes ours']:,}"
        rows.append([words, *times, f"{faster:.{int(faster < 10)}f}", *sent])
    return heads, rows


def _codecs(found: dict[str, Any]) -> Columns:
    """Trainings that differ in the codec only: how they end, and what all clients send and receive."""
    every = found["runs"]
    names = list(dict.fromkeys(run["name"] for run in every))
    plain = {run["seed"]: run for run in every if run["name"] == names[0]}
    heads = ["", "seeds", "last 3 evaluations, %", "difference, points", "up", "down", "first models", "total"]
    rows = []
    for name in names:
        runs = [run for run in every if run["name"] == name and run["seed"] in plain]
        ends = [_ended(run) for run in runs]
        gaps = [end - _ended(plain[run["seed"]]) for run, end in zip(runs, ends, strict=True)]
        up, first = mean(run["bytes_up"] for run in runs), mean(run["bytes_first"] for run in runs)
        down = mean(run["bytes_down"] for run in runs) - first
        gap = "" if name == names[0] else points(spread(gaps))
        amounts = [in_bytes(each) for each in (up, down, first, up + down + first)]
        rows.append([name, str(len(runs)), _percent(ends), gap, *amounts])
    return heads, rows


def _ended(run: dict[str, Any]) -> float:
    return float(mean(score for _, score in run["scores"][-3:]))


OTHERS: dict[str, Callable[[dict[str, Any]], Columns]] = {
    "dagc-steps": _dagc_steps,
    "dagc-bytes": _dagc_bytes,
    "dagc-accuracy": _dagc_accuracy,
    "stc-accuracy": _stc_accuracy,
    "stc-bytes": _stc_bytes,
    "grace": _grace,
    "codecs": _codecs,
}
"""Every table, by a name that begins with its file's."""


def _ms(milliseconds: float) -> str:
    """A time with three digits.

    Example:
        >>> _ms(0.744), _ms(2.559), _ms(9.996), _ms(442.88)
        ('0.74 ms', '2.56 ms', '10.0 ms', '443 ms')
    """
    return f"{digits(milliseconds)} ms"


def _above(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """By how many points ours is above theirs, seed by seed, and whether that is clear.

    Example:
        >>> _above([0.50, 0.71, 0.62], [0.52, 0.73, 0.64]), _above([0.5, 0.7, 0.6], [0.5, 0.7, 0.6])
        ('−2.00 ± 0.00: **below**', '+0.00 ± 0.00: no clear difference')
    """
    gap = spread([one - other for one, other in zip(ours, theirs, strict=True)])
    return f"{points(gap)}: {judged(gap, len(ours), 'above', '**below**')}"


def _percent(values: Sequence[float]) -> str:
    found = spread([100 * value for value in values])
    return f"{found.mean:.1f}" + ("" if found.sd is None else f" ± {found.sd:.1f}")


def _range(counts: Sequence[int]) -> str:
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
