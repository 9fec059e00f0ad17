"""Tables of other people's code beside ours are what their files say."""

import contextlib
import itertools
import json
from pathlib import Path

import pytest

from dagc.errors import InvalidInput
from research import Store, tables
from research.others import OTHERS, compared

ROOT = Path(__file__).parents[2]
DAGC = {
    "theirs": "them/DAGC 1234567",
    "ours": "aaaaaaa",
    "ratios theirs": [0.004, 0.002],
    "ratios ours": [0.004, 0.002],
    "same sent tensors, ten steps": [True, True, False],
    "entries theirs/ours": [[4, 4, 4], [4, 3, 4]],
    "largest difference of residuals": 0.0,
    "a round of all clients, bytes": {
        "dense": 4000, "reported": 40.4, "entries": 1200, "int32 + fp32": 9600, "plain frames": 7000,
        "compact frames": 6000, "compact frames, signs": 1500,
    },
    "cpu of a compression, ms": {"theirs": 25.59, "ours": 0.555, "ours with frame": 744.4},
    "training": {
        "ours": "bbbbbbb",
        "evaluated after": [5, 10],
        "dagc-r": {
            "theirs": [[0.1, 0.2], [0.3, 0.2]],
            "ours, per tensor": [[0.25, 0.5], [0.25, 0.5]],
            "ours, across the model": [[0.5, 0.75], [0.5, 0.75]],
            "cpu per round theirs, s": [0.1, 0.3],
            "cpu per round ours, per tensor, s": [0.05, 0.05],
            "cpu per round ours, across the model, s": [0.04, 0.04],
        },
        "top-k": {
            "theirs": [[0.1, 0.2], [0.1, 0.2]],
            "ours, per tensor": [[0.1, 0.2], [0.1, 0.2]],
            "ours, across the model": [[0.1, 0.2], [0.1, 0.2]],
            "theirs, as many entries": [[0.1, 0.1], [0.1, 0.1]],
            "cpu per round theirs, s": [0.1, 0.1],
            "cpu per round ours, per tensor, s": [0.1, 0.1],
            "cpu per round ours, across the model, s": [0.1, 0.1],
        },
    },
}  # fmt: skip
STC = {
    "theirs": "them/STC 1234567",
    "ours": "aaaaaaa",
    "training": [
        {
            "seed": seed,
            "rounds": 24,
            "theirs": {
                "accuracy": [place / 100 for place in range(12)],
                "entries": 2400,
                "bytes_up": 3000 + 300 * seed,
                "bytes_down_one": 500.4,
                "cpu_per_round": 0.2,
            },
            "ours": {
                "accuracy": [0.5] * 12, "entries": 2400, "bytes_up": 2400, "bytes_down": 4000, "cpu_per_round": 0.0123,
            },
            "ours per tensor": {"accuracy": [0.25] * 12},
        }
        for seed in (3, 4)
    ],
}  # fmt: skip
GRACE = {
    "theirs": "them/grace 1234567",
    "ours": "aaaaaaa",
    "steps": [
        {
            "size": 2_500_000, "ratio": 0.001, "grace": 160.0, "ours": 1.0, "ours with frame": 4.0,
            "bytes grace": 20_000, "bytes ours": 12_345,
        }
    ],
}  # fmt: skip


def trained(name, seed, score, sent):
    """A federation with a codec; the first model is of 100 bytes."""
    scores = [[place, score] for place in range(1, 5)]
    sizes = {"bytes_up": sent, "bytes_down": 2 * sent + 100, "bytes_first": 100}
    return {"name": name, "seed": seed, "scores": scores, **sizes}


CODECS = {
    "theirs": "them 1",
    "ours": "aaaaaaa",
    "runs": [
        trained("no compression", 0, 0.5, 4000),
        trained("no compression", 1, 0.75, 4000),
        trained("theirs", 0, 0.25, 40),
    ],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "others").mkdir()
    for name, found in {"dagc": DAGC, "stc": STC, "grace": GRACE, "codecs": CODECS}.items():
        (tmp_path / "others" / f"{name}.json").write_text(json.dumps(found))
    return tmp_path


def test_dagc_beside_its_authors(folder):
    heads, rows, source = compared("dagc-steps", folder)
    assert heads == ["", "theirs", "ours"]
    assert [row[1:] for row in rows] == [
        ["0.400 % … 0.200 %", "0.400 % … 0.200 %"],
        ["", "0"],
        ["4", "3 to 4"],
        ["", "2 of 3"],
        ["", "0"],
        ["25.6 ms", "0.56 ms"],
        ["", "744 ms"],
    ]
    assert source == "Record: `results/others/dagc.json`; theirs: them/DAGC 1234567, ours: commit aaaaaaa, bbbbbbb."
    heads, rows, _ = compared("dagc-bytes", folder)
    assert heads == ["1,200 entries", "bytes"]
    assert [row[1] for row in rows] == ["4,000", "40", "9,600", "7,000", "6,000", "1,500"]
    heads, rows, _ = compared("dagc-accuracy", folder)
    assert heads == ["", "after 5", "after 10 rounds", "above theirs, points", "CPU per round"]
    assert rows[0] == ["DAGC-R, theirs", "20.0 ± 14.1", "20.0 ± 0.0", "", "200 ms"]
    assert rows[2] == ["DAGC-R, ours", "50.0 ± 0.0", "75.0 ± 0.0", "+42.50 ± 7.07: perhaps above", "40.0 ms"]
    assert [row[0] for row in rows[3:]] == [
        "Top-k, theirs",
        "Top-k, theirs, with as many entries in each tensor as ours",
        "Top-k, ours, `per_tensor`",
        "Top-k, ours",
    ]
    assert rows[4][3:] == ["−5.00 ± 0.00: perhaps **below**", ""]


def test_stc_beside_its_authors(folder):
    heads, rows, _ = compared("stc-accuracy", folder)
    assert heads[1:] == [
        *(f"after {rounds}" for rounds in (4, 8, 12, 16, 20)),
        *("after 24 rounds", "last 5 evaluations", "ends above theirs, points"),
    ]
    assert rows[0][1:] == [*(f"{percent:.1f} ± 0.0" for percent in (1, 3, 5, 7, 9, 11, 9)), ""]
    assert rows[2][1:] == ["25.0 ± 0.0"] * 7 + ["+16.00 ± 0.00: perhaps above"]
    heads, rows, _ = compared("stc-bytes", folder)
    assert heads == ["mean of 2 seeds", "theirs", "ours"]
    assert [row[1:] for row in rows] == [
        ["10.0", "10.0"],
        ["4,050, estimated", "2,400, sent"],
        ["500, estimated", "400, sent"],
        ["13.50", "8.00"],
        ["200 ms", "12.3 ms"],
    ]


def test_graces_top_k_beside_ours(folder):
    words = "<!-- begin: table others grace -->\n<!-- end: table -->"
    assert tables.rewritten(words, Store(folder)).splitlines()[3:-1] == [
        "| 2.5 M entries, 0.1 % | 160 ms | 1.00 ms | 4.00 ms | 40 | 20,000 | 12,345 |",
        "",
        "Record: `results/others/grace.json`; theirs: them/grace 1234567, ours: commit aaaaaaa.",
    ]


def test_an_unknown_table_is_refused(folder):
    for words, message in {
        "others gracious": "there is no table of others' code 'gracious'.*grace",
        "others": "write others NAME",
        "others grace now": "write others NAME",
    }.items():
        with pytest.raises(InvalidInput, match=message):
            tables.table(words, Store(folder))


@pytest.mark.parametrize("name", OTHERS)
def test_a_missing_or_damaged_file_is_named(folder, name):
    path = folder / "others" / f"{name.partition('-')[0]}.json"
    whole = json.loads(path.read_text())
    broken = ["", "{", "[]", "7", "null", "{}", '{"theirs": "them", "ours": "us"}', "[" * 100_000]
    broken += [json.dumps({**whole, key: None}) for key in ("theirs", "ours")]
    for text in broken:
        path.write_text(text)
        with pytest.raises(InvalidInput, match=rf"{path.name} is not a record of others' code"):
            compared(name, folder)
    for key, wrong in itertools.product(whole, (None, [], {}, "text", [None])):
        path.write_text(json.dumps({**whole, key: wrong}))
        with contextlib.suppress(InvalidInput):  # and no other error; a table needs only some of its file
            compared(name, folder)
    path.unlink()
    with pytest.raises(InvalidInput, match=rf"there is no record .*{path.name}"):
        compared(name, folder)


def test_what_differs_is_taken_seed_by_seed(folder):
    """A difference that all seeds share is clear, however far the seeds are apart."""
    runs = []
    for seed, start in enumerate((0.1, 0.3, 0.7)):
        theirs, ours = ({"accuracy": [value] * 6} for value in (start, start - 0.02))
        runs.append({"seed": seed, "rounds": 6, "theirs": theirs, "ours": ours, "ours per tensor": theirs})
    (folder / "others" / "stc.json").write_text(json.dumps({**STC, "training": runs}))
    _, rows, _ = compared("stc-accuracy", folder)
    assert [row[-1] for row in rows] == ["", "−2.00 ± 0.00: **below**", "+0.00 ± 0.00: no clear difference"]


def test_evaluations_that_do_not_fit_the_columns_are_refused(folder):
    for count in (0, 5, 13):
        runs = [{**run, "theirs": {**run["theirs"], "accuracy": [0.25] * count}} for run in STC["training"]]
        (folder / "others" / "stc.json").write_text(json.dumps({**STC, "training": runs}))
        with pytest.raises(InvalidInput, match=rf"stc\.json .* {count} evaluations are not a multiple of 6"):
            compared("stc-accuracy", folder)
    for shorter in (1, 2):  # in one run, in both
        ours = [{**run["ours"], "accuracy": [0.5] * (6 if seed < shorter else 12)} for seed, run in enumerate(runs)]
        some = [{**run, "ours": own} for run, own in zip(STC["training"], ours, strict=True)]
        (folder / "others" / "stc.json").write_text(json.dumps({**STC, "training": some}))
        with pytest.raises(InvalidInput, match=r"stc\.json is not a record of others' code"):
            compared("stc-accuracy", folder)


def test_codecs_are_compared_with_the_same_training_without_one(folder):
    heads, rows, source = compared("codecs", folder)
    assert rows == [
        ["no compression", "2", "62.5 ± 17.7", "", "4.00 kB", "8.00 kB", "100 B", "12.1 kB"],
        ["theirs", "1", "25.0", "−25.00", "40 B", "80 B", "100 B", "220 B"],
    ]
    assert len(heads) == len(rows[0])
    assert "`results/others/codecs.json`; theirs: them 1" in source
