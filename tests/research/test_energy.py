"""The energy that forms carry, training at equal bytes, and what documents show of both."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from dagc.compressors import top_k
from dagc.errors import InvalidInput
from dagc.feedback import ErrorFeedback
from dagc.protocol import broadcasts, uplink
from dagc.updates import decode_update, encode_update
from research import Store, energy, equal_bytes, factors, forms, tables
from research.energy_figure import write_energy
from research.parity import records
from research.real_updates import Real

ROOT = Path(__file__).parents[2]
SHAPES = ((60, 40), (60,), (20, 8, 3, 3), (20,))
SIZE = 60 * 40 + 60 + 20 * 72 + 20


@pytest.fixture(scope="module")
def vector():
    """Matrices of low rank, noise, and a few large entries."""
    generator = torch.Generator().manual_seed(3)
    parts = []
    for shape in SHAPES:
        rows = shape[0] if len(shape) > 1 else 1
        columns = int(np.prod(shape)) // rows
        product = torch.randn(rows, 2, generator=generator) @ torch.randn(2, columns, generator=generator)
        parts.append((product + 0.3 * torch.randn(rows, columns, generator=generator).pow(3)).reshape(-1))
    return torch.cat(parts)


@pytest.mark.parametrize("form", forms.FORMS)
def test_a_form_keeps_to_its_bytes_and_more_of_them_carry_more(form, vector):
    budgets = (4, 16, 40)
    ways = forms.carried(form, vector, SHAPES, budgets)
    unit = 0.5 * SIZE**0.5
    assert all(way.bytes <= budget * unit for way, budget in zip(ways, budgets, strict=True))
    assert all(0 <= way.share < 1 for way in ways)
    if form not in ("signs", "STC"):  # one magnitude saturates
        assert ways[0].share <= ways[1].share < ways[2].share


def test_what_is_chosen_carries_no_less_than_its_parts(vector):
    ways = {form: forms.FORMS[form](vector, SHAPES, 500).share for form in ("levels", "low rank", "chosen")}
    assert ways["chosen"] > 0.98 * max(ways.values())


def test_terms_alone_are_a_frame_that_the_library_decodes(vector):
    frame, update = forms.low_rank_frame(vector, SHAPES, 600)
    decoded = decode_update(frame, SHAPES, max_bytes=600)
    assert decoded == update
    assert len(decoded.terms) == 2
    assert not len(decoded.sparse)
    assert len(frame) > 500


def test_power_sgd_is_counted_as_its_factors_take(vector):
    rank_one = 2 * (100 + 60 + 92 + 20)
    assert forms.power_sgd(vector, SHAPES, rank_one - 1) == forms.NOTHING
    assert forms.power_sgd(vector, SHAPES, rank_one).bytes == rank_one
    everything = forms.power_sgd(vector, SHAPES, 2 * SIZE)
    assert everything.share > 0.99


@pytest.mark.parametrize(("places", "size", "bits"), [([0, 1, 2, 3], 4, 4 * 2), ([99], 100, 1 + 8), ([9, 29], 64, 14)])
def test_golomb_codes_have_the_length_of_their_rate(places, size, bits):
    found = forms.golomb_bytes(np.array(places), size)
    assert found == 4 + -(-bits // 8)


def test_computed_bytes_are_within_the_budget_and_a_real_frame_of_that_share_can_be_found(vector):
    way = forms.computed(vector, SHAPES, 500)
    assert way.bytes <= 500
    real = forms.needed(vector, SHAPES, way.share)
    around = [forms.chosen(vector, SHAPES, int(real * part)).share for part in (0.9, 1.1)]
    assert around[0] < way.share < around[1]


def row(model, what, form, carried, **more):
    return {"model": model, "what": what, "form": form, "size": 10_000, "carried": carried, **more}


@pytest.fixture
def rows():
    """Two vectors of one model: PowerSGD's rank 1 only fits into the larger budget."""
    found = []
    for what, share in (("client, round 1", 0.5), ("server, round 1", 0.7)):
        found += [row("MLP", what, "signs", [[16, share - 0.25, 790], [64, share - 0.2, 3100]])]
        found += [row("MLP", what, "PowerSGD", [[16, 0.0, 0], [64, share, 3000]])]
        found += [row("MLP", what, "chosen", [[16, share, 792], [64, share + 0.1, 3184]])]
        found += [row("MLP", what, "computed", [[16, share, 800], [64, share, 3200]], needed=[780, 1600])]
    return found


def test_tables_say_what_the_record_says(rows):
    heads, body, _ = energy.mean_table(rows)
    cells = dict(zip(heads, body[0], strict=True))
    assert (cells["bytes"], cells["signs"], cells["chosen"], cells["PowerSGD"]) == ("16 ×", "0.350", "**0.600**", "–")
    assert dict(zip(heads, body[1], strict=True))["PowerSGD"] == "0.600"
    assert [line[0] for line in energy.vector_table(rows)[1]] == [
        "MLP, Fashion-MNIST, client, round 1",
        "MLP, Fashion-MNIST, server, round 1",
    ]
    assert energy.computed_table(rows)[1] == [
        ["MLP, Fashion-MNIST", "16 ×", "0.600", "0.975", "0.975", "0.990", "2"],
        ["", "64 ×", "0.600", "0.500", "0.500", "0.995", "2"],
    ]


def test_only_what_is_missing_is_measured(tmp_path, rows):
    path = tmp_path / "energy.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows[:1] * 6))
    assert list(energy.missing(path, ["MLP", "CNN"], ["signs", "int8"])) == [
        ("MLP", "int8"),
        ("CNN", "signs"),
        ("CNN", "int8"),
    ]


def test_the_figure_is_the_same_each_time_and_has_a_line_per_form(tmp_path, rows):
    for name in ("a.svg", "b.svg"):
        write_energy(rows, tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert all(form in text for form in energy.SHOWN)


def test_the_documents_figure_is_what_the_record_says(tmp_path):
    write_energy(records(ROOT / "results" / "energy.jsonl"), tmp_path / "energy.svg")
    shown = ROOT / "docs" / "images" / "energy.svg"
    drawn = [re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()) for path in (tmp_path / "energy.svg", shown)]
    assert drawn[0] == drawn[1], "make results"
    assert (ROOT / "results" / "energy.jsonl").stat().st_size < 300_000


def ended(form, seed, score, budget=16.0):
    scores = [[1, 0.1], [2, score], [3, score], [4, score]]
    return {"task": "mlp", "form": form, "budget": budget, "momentum": 0.9, "seed": seed, "scores": scores,
            "bytes_up": 1, "bytes_down": 1}  # fmt: skip


def test_ends_are_compared_on_shared_seeds(tmp_path):
    some = [ended("signs", 0, 0.80), ended("chosen", 0, 0.84), ended("chosen", 1, 0.90), ended("int8", 1, 0.89)]
    (tmp_path / "equal-bytes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in some))
    assert equal_bytes.end_table(some)[1] == [
        ["MLP, Fashion-MNIST", "16 ×", "momentum 0.9", "80.0", "89.0", "–", "87.0 ± 4.2", "+4.0", "+1.0", "1–2"]
    ]
    assert "| +4.0 |" in tables.table("equal end", Store(tmp_path))
    with pytest.raises(InvalidInput, match="there is no table of equal 'and'"):
        tables.table("equal and", Store(tmp_path))


def test_trainings_at_equal_bytes_differ_in_their_form_alone(monkeypatch, tmp_path):
    task = {"task": "mlp@digits", "rounds": 3, "local_steps": 4, "learning_rate": 0.1, "evaluate_every": 1}
    monkeypatch.setitem(equal_bytes.TASKS, "mlp", task)
    runs = {form: equal_bytes.run(("mlp", form, 16.0, 0.9, 0), None) for form in equal_bytes.FORMS}
    (tmp_path / "r.jsonl").write_text(json.dumps(runs["signs"]) + "\n")
    keys = [("mlp", form, 16.0, 0.9, 0) for form in equal_bytes.FORMS]
    assert list(equal_bytes.missing(tmp_path / "r.jsonl", keys)) == keys[1:]
    most = equal_bytes.configured(keys[0], None).bytes
    up = {form: run["bytes_up"] / (3 * 10 * most) for form, run in runs.items()}
    assert all(0.9 < part <= 1 for part in up.values()), up
    assert len({tuple(map(tuple, run["scores"])) for run in runs.values()}) == 4  # levels are not what dagc sends
    assert broadcasts.encode_update is uplink.encode_update is forms.encode_update  # as they were


def test_a_reset_leaves_no_residual_where_entries_were_sent(monkeypatch):
    task = {"task": "mlp@digits", "rounds": 2, "local_steps": 2, "learning_rate": 0.1, "evaluate_every": 1}
    monkeypatch.setitem(equal_bytes.TASKS, "mlp", task)
    plain = ErrorFeedback(top_k, 4, values="sign")
    with equal_bytes.reset():
        changed = ErrorFeedback(top_k, 4, values="sign")
        for feedback in (plain, changed):
            feedback.step(torch.tensor([1.0, 5.0, 2.0, -3.0]), 2)
        assert changed.residual.tolist() == [1.0, 0.0, 2.0, 0.0]
        _, update = changed.encode(torch.zeros(4), lambda vector: encode_update(vector, [4], 40))
        assert not changed.residual[update.sparse.indices].any()
    again = ErrorFeedback(top_k, 4, values="sign")
    again.step(torch.tensor([1.0, 5.0, 2.0, -3.0]), 2)
    assert again.residual.tolist() == [1.0, 1.0, 2.0, 1.0]  # as it was
    runs = [equal_bytes.run(("mlp", form, 16.0, 0.9, 0), None) for form in ("signs", *equal_bytes.RESETS)]
    assert len({tuple(map(tuple, run["scores"])) for run in runs}) == 3
    assert equal_bytes.reset_table([{**run, "seed": 0} for run in runs[:1]])[1] == []


def test_factors_with_an_entropy_coder_carry_more_and_ours_carry_most():
    generator = torch.Generator().manual_seed(2)
    left, right = torch.randn(60, 30, generator=generator), torch.randn(30, 80, generator=generator)
    vector = ((left * torch.logspace(0, -2, 30)) @ right).reshape(-1)
    row = factors.measured("MLP", Real("client, round 1", vector, [(60, 80)]))
    shares = {tuple(key): share for *key, share in row["carried"]}
    assert all(shares[40, levels, True] > shares[40, levels, False] for levels in (11, 15, 31))
    assert shares[40, "dagc", True] > max(shares[40, levels, False] for levels in factors.LEVELS)
    body = factors.factor_table([row])[1]
    assert [len(line) for line in body] == [5] * 7
    assert body[0][0] == "5 values, 2.3 bits"
