"""The energy that forms of an update carry, by bytes, on real updates: the source of `docs/studies/energy.md`.

`python -m research.energy --data FOLDER --updates FOLDER` runs what is missing and appends it to the record,
`results/energy.jsonl`. The trainings keep their updates in the second folder. It can be stopped and started again at
any time.
"""

import argparse
import json
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from research import parts
from research.forms import FORMS, carried, computed, needed
from research.measured import in_markdown
from research.origin import source_commit
from research.parity import records
from research.real_updates import TASKS, Real, kept

__all__ = ["BUDGETS", "ENERGIES", "MODELS", "SHOWN", "shares"]

RESULTS = Path(__file__).parents[1] / "results" / "energy.jsonl"
BUDGETS = (0.25, 1, 4, 16, 40, 64)
"""In multiples of ½√d bytes; `dagc` takes 40 of them unless it is given others, or a tenth of a byte per entry."""
COMPUTED, COMPARED = "computed", (16, 64)
"""The forms whose bytes are only computed, and with which budgets they are compared."""
SHOWN = ("signs", "int8", "levels", "low rank", "chosen", "PowerSGD", "STC", "NNCodec")
"""The forms in the order of tables. A record of NNCodec is made with its own package."""
MODELS = {
    "MLP": "MLP, Fashion-MNIST",
    "CNN": "CNN, CIFAR-10",
    "LSTM": "LSTM, Shakespeare",
    "GPT": "GPT",
    "LoRA": "LoRA",
}

Rows = Sequence[Mapping[str, Any]]
Table = tuple[list[str], list[list[str]], str]


def measured(model: str, real: Real, form: str) -> dict[str, Any]:
    """A row of the record."""
    row: dict[str, Any] = {"model": model, "what": real.what, "form": form, "size": len(real.vector)}
    row["commit"] = source_commit()
    if form != COMPUTED:
        ways = carried(form, real.vector, real.shapes, BUDGETS)
        return row | {"carried": [[b, round(w.share, 4), w.bytes] for b, w in zip(BUDGETS, ways, strict=True)]}
    row["carried"], row["needed"] = [], []
    for budget in COMPARED:
        way = computed(real.vector, real.shapes, int(budget * 0.5 * math.sqrt(len(real.vector))))
        row["carried"].append([budget, round(way.share, 4), way.bytes])
        row["needed"].append(needed(real.vector, real.shapes, way.share))
    return row


def missing(path: Path, models: Sequence[str], forms: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The models and forms that are not recorded, or not all of whose vectors are."""
    counts: dict[tuple[str, str], int] = {}
    for row in records(path):
        key = row["model"], row["form"]
        counts[key] = counts.get(key, 0) + 1
    for model in models:
        yield from ((model, form) for form in forms if counts.get((model, form), 0) < 6)


def shares(rows: Rows, model: str, form: str, budget: float, what: str = "") -> list[float]:
    """What a form carries of each vector of a model whose name begins so, with one budget."""
    chosen = [row for row in rows if (row["model"], row["form"]) == (model, form) and row["what"].startswith(what)]
    return [share for row in chosen for at, share, used in row["carried"] if at == budget and used]


def mean_table(rows: Rows) -> Table:
    """For each model and three budgets: the mean share of its vectors, by form."""
    body = []
    for model, name in MODELS.items():
        for budget in (1, 4, 16, 40, 64):
            found = [shares(rows, model, form, budget) for form in SHOWN]
            if any(found):
                body.append([name, f"{budget} ×", *_best(each and statistics.mean(each) for each in found)])
                name = ""
    return ["", "bytes", *SHOWN], body, _source(rows, "Mean of six vectors; the largest share is bold")


def vector_table(rows: Rows) -> Table:
    """For each vector: the share with 16 times ½√d bytes, by form."""
    body = []
    for model, name in MODELS.items():
        for what in dict.fromkeys(row["what"] for row in rows if row["model"] == model):
            found = [shares(rows, model, form, 16, what) for form in SHOWN]
            body.append([f"{name}, {what}", *_best(each and each[0] for each in found)])
    return ["16 ×", *SHOWN], body, _source(rows, "The largest share is bold")


def computed_table(rows: Rows) -> Table:
    """The bytes of real frames against computed ones that carry as much, and how full a real frame is."""
    heads = ["", "bytes", "computed forms carry", "real / computed bytes, mean", "largest", "real / allowed bytes"]
    heads.append("vectors")
    body = []
    for model, name in MODELS.items():
        for place, budget in enumerate(COMPARED):
            each = [row for row in rows if (row["model"], row["form"]) == (model, COMPUTED)]
            full = [
                used / int(budget * 0.5 * math.sqrt(row["size"]))
                for row in rows
                for at, _, used in row["carried"]
                if (row["model"], row["form"], at) == (model, "chosen", budget)
            ]
            if each and full:
                ratios = [row["needed"][place] / row["carried"][place][2] for row in each]
                carry = statistics.mean(row["carried"][place][1] for row in each)
                cells = [f"{value:.3f}" for value in (carry, statistics.mean(ratios), max(ratios))]
                body.append([name, f"{budget} ×", *cells, f"{statistics.mean(full):.3f}", str(len(each))])
                name = ""
    return heads, body, _source(rows, "The bytes allowed are those of the second column")


ENERGIES: dict[str, Callable[[Rows], Table]] = {"mean": mean_table, "vectors": vector_table, "computed": computed_table}
"""What documents may show: `<!-- begin: table energy NAME -->`."""


def _best(values: Any) -> list[str]:
    """Shares as cells, the largest in bold; a dash where there is none."""
    texts = [f"{value:.3f}" if value else "–" for value in values]
    most = max((text for text in texts if text != "–"), default="")
    return [f"**{text}**" if text == most else text for text in texts]


def _source(rows: Rows, note: str) -> str:
    commits = ", ".join(dict.fromkeys(row["commit"] for row in rows if row.get("commit")))
    made = f", commit {commits}" if commits else ""
    return f"Record: `results/energy.jsonl`{made}. {note}. Bytes in multiples of ½√d."


def main() -> None:
    """Measure what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="the data folder")
    parser.add_argument("--updates", type=Path, default=Path("runs/updates"), help="where to keep the real updates")
    parser.add_argument("--records", type=Path, default=RESULTS)
    parser.add_argument("--models", default=",".join(TASKS))
    parser.add_argument("--forms", default=",".join([*FORMS, COMPUTED]))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    parts.load()
    if options.table:
        for table in ENERGIES.values():
            heads, rows, source = table(records(options.records))
            print(in_markdown(heads, rows), source, sep="\n\n", end="\n\n")
        return
    os.nice(10)
    torch.set_num_threads(1)
    for model, form in missing(options.records, options.models.split(","), options.forms.split(",")):
        done = {row["what"] for row in records(options.records) if (row["model"], row["form"]) == (model, form)}
        for real in kept(model, options.updates, options.data):
            if real.what not in done:
                row = measured(model, real, form)
                with options.records.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        print(f"{model:5} {form}", flush=True)


if __name__ == "__main__":
    main()
