"""The recipes in docs/how-to/own-data.md, run on tiny files of the shape that they speak of."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from dagc.data import load, make_partition

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "own-data.md"


def _recipe(word: str) -> str:
    blocks = [block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if ">>>" not in block]
    chosen = [block for block in blocks if word in block]
    assert len(chosen) == 1, f"{len(chosen)} recipes speak of {word}"
    return chosen[0]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_adult_from_the_file_to_a_trained_model(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for number in range(300):
        country = "United-States" if number < 250 else "Cuba"
        rich = rng.random() < 0.4
        rows.append(
            f"{30 + 20 * rich}, {'?' if number % 7 == 0 else 'Private'}, {77516 + number}, Bachelors, {9 + 4 * rich}, "
            f"Never-married, Sales, Not-in-family, White, Male, 0, 0, 40, {country}, {'>50K' if rich else '<=50K'}"
        )
    Path("adult.data").write_text("\n".join(rows) + "\n\n")
    exec(_recipe('"adult.data"'), {})
    data = load("adult.csv")
    assert data.clients == ("Cuba", "United-States")
    assert data.classes == ("<=50K", ">50K")
    assert make_partition("by-client", data).sizes.tolist() == [200, 40]
    exec(_recipe('load("adult.csv")'), {})
    percent = float(capsys.readouterr().out.split("%")[0])
    assert percent > 95


def test_shakespeare_by_role() -> None:
    Path("tinyshakespeare_by_role.json").write_text(json.dumps({"A": ["to be or not " * 10] * 2, "B": ["hm " * 30]}))
    exec(_recipe("shakespeare.npz"), {})
    data = load("shakespeare.npz")
    assert data.clients == ("A", "B")
    assert data.shape[0] == 20
    assert (data.train_x.sum(-1) == 1).all()


def test_audiomnist_by_speaker() -> None:
    speakers = np.repeat([3, 9], [15, 5])
    np.savez("audiomnist.npz", x=np.zeros((20, 32, 32), np.uint8), digit=np.arange(20) % 10, speaker=speakers)
    exec(_recipe("audiomnist-by-speaker.npz"), {})
    data = load("audiomnist-by-speaker.npz")
    assert (data.clients, data.shape) == (("3", "9"), (32, 32))


def test_wisdm_by_person() -> None:
    rows = "\n".join(f"{n},{30 + n % 3},{n / 10},?,1,{'Jogging' if n % 2 else 'Sitting'}" for n in range(30))
    Path("wisdm_ar_v1.1_transformed.arff").write_text(f'@relation a\n@attribute "X0" numeric\n@data\n{rows}\n')
    text = Path("wisdm_ar_v1.1_transformed.arff").read_text().replace(",?,", ",2,", 25)
    Path("wisdm_ar_v1.1_transformed.arff").write_text(text)
    exec(_recipe("wisdm.csv"), {})
    data = load("wisdm.csv")
    assert data.clients == ("30", "31", "32")
    assert data.classes == ("Jogging", "Sitting")
    assert data.shape == (3,)
