"""One way in: whatever a person has becomes a data set, by the names that the person uses."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset

from dagc import Config, train
from dagc.data import Dataset, Fields, load
from dagc.errors import DagcError, DataError, InvalidInput, MissingExtra
from dagc.training import Federation, iterate

ROWS = 50
COLUMNS = {
    "age": np.arange(ROWS) % 9,
    "job": np.array(["nurse", "driver"] * (ROWS // 2), dtype=object),
    "income": np.array(["high", "low", "low", "high", "low"] * (ROWS // 5), dtype=object),
    "hospital": np.array(["north"] * 30 + ["south"] * 20, dtype=object),
}


class Frame:
    """What is used of a data frame of pandas or polars."""

    def __init__(self, columns):
        self._columns = columns

    @property
    def columns(self):
        return list(self._columns)

    def __getitem__(self, name):
        return Series(self._columns[name])

    def to_numpy(self):
        return np.stack([np.asarray(column, dtype=object) for column in self._columns.values()], axis=1)


class Series:
    """What is used of a column of a frame."""

    def __init__(self, values):
        self._values = np.asarray(values)

    def __getitem__(self, key):
        raise KeyError(key)  # as pandas does for a position that is no label

    def __len__(self):
        return len(self._values)

    def to_numpy(self):
        return self._values


class Feature:
    names = ("negative", "positive")


class HuggingFace:
    """What is used of a `datasets.Dataset`."""

    def __init__(self, columns, features=None):
        self._columns, self.features = columns, features or {}

    @property
    def column_names(self):
        return list(self._columns)

    def with_format(self, kind):
        assert kind == "numpy"
        return self

    def __getitem__(self, rows):
        return self._columns


def same(one: Dataset, other: Dataset) -> bool:
    parts = ("train_x", "train_y", "test_x", "test_y")
    return all(torch.equal(getattr(one, part), getattr(other, part)) for part in parts) and (
        (one.classes, one.clients) == (other.classes, other.clients)
    )


def write_csv(path: Path, columns=COLUMNS, separator=",") -> Path:
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    lines = [separator.join(columns), *(separator.join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


NAMED = {"label": "income", "client": "hospital"}


def test_frames_files_and_data_sets_with_the_same_columns_are_the_same(tmp_path: Path) -> None:
    usual = load(write_csv(tmp_path / "a.csv"), **NAMED)
    assert (usual.classes, usual.clients, usual.shape) == (("high", "low"), ("north", "south"), (3,))
    sources = [Frame(COLUMNS), HuggingFace(COLUMNS), write_csv(tmp_path / "b.tsv", separator="\t")]
    sources += [write_csv(tmp_path / "c.csv", separator=";"), write_csv(tmp_path / "d.csv", separator="\t")]
    for source in sources:
        assert same(load(source, **NAMED), usual), source
    by_client = {
        name: Frame({key: column[rows] for key, column in COLUMNS.items() if key != "hospital"})
        for name, rows in (("north", slice(0, 30)), ("south", slice(30, 50)))
    }
    assert same(load(by_client, label="income"), usual)
    for name, frame in by_client.items():
        write_csv(tmp_path / f"{name}.csv", {key: frame[key].to_numpy() for key in frame.columns})
    for name in "abcd":
        (tmp_path / f"{name}.{'tsv' if name == 'b' else 'csv'}").unlink()
    assert same(load(tmp_path, label="income"), usual)  # a file for each client


def test_a_decimal_comma_is_a_number_where_semicolons_separate(tmp_path: Path) -> None:
    (tmp_path / "eu.csv").write_text("a;label\n" + "".join(f"{n},5;{n % 2}\n" for n in range(20)))
    data = load(tmp_path / "eu.csv")
    assert data.shape == (1,)
    assert set((data.train_x[:, 0] % 1).tolist()) == {0.5}


def test_a_missing_column_names_those_that_are_there(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv")
    known = "its columns are age, job, income, hospital"
    with pytest.raises(DataError, match=rf"a\.csv has no column 'label'; {known}: name yours with label= or --label"):
        load(path)
    with pytest.raises(
        DataError, match=rf"a\.csv has no column 'clinic'; {known}: name yours with client= or --client"
    ):
        load(path, label="income", client="clinic")
    with pytest.raises(InvalidInput, match=rf"data has no column 'label'; {known}"):
        load(Frame(COLUMNS))


def test_x_and_y_may_be_a_frame_and_a_series() -> None:
    x = Frame({key: COLUMNS[key] for key in ("age", "job")})
    data = load((x, Series(COLUMNS["income"])))
    assert (data.classes, data.shape, len(data)) == (("high", "low"), (3,), 40)
    assert load((x, Series(COLUMNS["age"] / 2))).objective == "regression"
    arrays = load((np.ones((ROWS, 2)), Series(COLUMNS["income"])))
    assert arrays.classes == ("high", "low")
    assert load((np.ones((4, 2)), ["a", "b", "a", "b"])).classes == ("a", "b")
    with pytest.raises(InvalidInput, match=r"data is a Series without labels: give a tuple \(x, y\)"):
        load(Series(COLUMNS["age"]))
    with pytest.raises(InvalidInput, match=r"y has shape \(3,\) for 50 samples"):
        load((x, Series([1, 2, 3])))


def test_missing_values_dates_and_columns_named_twice() -> None:
    gaps = Frame({"a": np.array([None, 1.0, float("nan"), 3.0] * 5), "label": np.arange(20) % 2})
    assert load(gaps).notes == ("10 missing values of 'a' are set to its mean, 2",)
    with pytest.raises(InvalidInput, match=r"the column 'day' is datetime64\[s\]; make it numbers or text"):
        load(Frame({"day": np.zeros(4, "M8[s]"), "label": np.arange(4) % 2}))
    twice = type("Twice", (Frame,), {"columns": ["a", "a"]})({"a": np.arange(4)})
    with pytest.raises(InvalidInput, match="data names a column twice"):
        load(twice)


def test_train_and_test_are_recognized_and_share_their_features() -> None:
    parts = {
        name: HuggingFace({key: column[rows] for key, column in COLUMNS.items()})
        for name, rows in (("train", slice(0, 40)), ("test", slice(40, 50)))
    }
    data = load(parts, **NAMED)
    assert (len(data), len(data.test_y), data.clients) == (40, 10, ("north", "south"))
    assert same(load(parts["train"], test=parts["test"], **NAMED), data)
    arrays = load({"train": (np.ones((8, 2)), np.arange(8)), "validation": (np.ones((2, 2)), np.arange(2))})
    assert (len(arrays), len(arrays.test_y), arrays.clients) == (8, 2, ())
    rows = {key: column for key, column in COLUMNS.items() if key != "hospital"}
    assert len(load(Frame(rows), test=Frame(rows), label="income").test_y) == ROWS
    with pytest.raises(DagcError, match="differ in the columns"):
        load(Frame(rows), test=Frame({"income": COLUMNS["income"], "x": np.arange(ROWS)}), label="income")
    with pytest.raises(InvalidInput, match="give both in one form"):
        load((np.ones((4, 2)), np.arange(4)), test=Frame(rows), label="income")


def test_pictures_of_hugging_face_have_channels_first_and_named_labels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (20, 8, 6, 3), dtype=np.uint8)
    data = load(HuggingFace({"image": images, "label": np.arange(20) % 2}, {"label": Feature}))
    assert (data.shape, data.classes) == ((3, 8, 6), ("negative", "positive"))
    assert abs(float(data.normalize(data.train_x).mean())) < 1e-4
    ragged = np.empty(4, dtype=object)
    ragged[:] = [np.zeros((size, 2, 3), np.uint8) for size in (1, 2, 3, 4)]
    with pytest.raises(InvalidInput, match="'image' has values of different shapes: pad or resize them"):
        load(HuggingFace({"image": ragged, "label": np.arange(4)}))


IDS = torch.arange(120).remainder(7).reshape(20, 6)


class Tokenized(TorchDataset):
    def __len__(self):
        return 20

    def __getitem__(self, place):
        return {"input_ids": IDS[place], "attention_mask": torch.ones(6, dtype=torch.int64), "labels": place % 2}


def test_tokenized_texts_come_as_columns_as_rows_or_as_a_pair() -> None:
    mask, labels = torch.ones_like(IDS), torch.arange(20) % 2
    inputs = {"input_ids": IDS, "attention_mask": mask}
    lists = {name: tensor.tolist() for name, tensor in inputs.items()}
    sources = [{**inputs, "labels": labels}, Tokenized(), (inputs, labels), {**lists, "labels": labels.tolist()}]
    sources.append(HuggingFace({**{name: part.numpy() for name, part in inputs.items()}, "label": labels.numpy()}))
    for source in sources:
        data = load(source)
        assert isinstance(data.train_x, Fields), source
        assert (list(data.train_x.tensors), len(data), data.classes) == ([*inputs], 16, ("0", "1")), source
    clients = load({"ann": sources[0], "bob": Tokenized()})
    assert clients.clients == ("ann", "bob")
    ragged = {"input_ids": [[1, 2, 3], [4]] * 5, "attention_mask": [[1, 1, 1], [1]] * 5, "label": [0, 1] * 5}
    padded = load(ragged)
    assert isinstance(padded.train_x, Fields)
    assert padded.train_x.tensors["attention_mask"].sum(1).unique().tolist() == [1, 3]
    texts = HuggingFace(
        {**{"text": np.array(["x"] * 20, dtype=object)}, "input_ids": IDS.numpy(), "label": labels.numpy()}
    )
    assert "text" in load(texts).notes[0]


def test_labels_and_clients_of_tokenized_texts_are_named_as_usual() -> None:
    rows = HuggingFace({"input_ids": IDS.numpy(), "stars": np.arange(20) % 3, "shop": np.repeat(["a", "b"], 10)})
    data = load(rows, label="stars", client="shop")
    assert (data.classes, data.clients, len(data)) == (("0", "1", "2"), ("a", "b"), 16)
    with pytest.raises(InvalidInput, match="no column 'star'"):
        load(rows, label="star")
    with pytest.raises(InvalidInput, match="no column 'town'"):
        load(rows, label="stars", client="town")


def test_parquet_without_pyarrow_is_answered_with_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"a\.parquet is a parquet file, which needs pyarrow: pip install pyarrow"):
        load(tmp_path / "a.parquet")


def test_parquet_is_read_with_pyarrow(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {name: column.tolist() for name, column in COLUMNS.items()}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert same(load(tmp_path / "a.parquet", **NAMED), load(Frame(COLUMNS), **NAMED))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as parquet"):
        load(tmp_path / "a.parquet", **NAMED)


def test_frames_of_pandas_are_read(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({name: column.tolist() for name, column in COLUMNS.items()})
    usual = load(Frame(COLUMNS), **NAMED)
    assert same(load(frame, **NAMED), usual)
    assert same(load(frame.astype({"job": "category", "age": "Int64"}), **NAMED), usual)


def pictures(folder: Path, labels: dict[str, int]) -> Path:
    for label, count in labels.items():
        (folder / label).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (9, 9), (number, 0, 0)).save(folder / label / f"{number}.png")
    return folder


def test_a_folder_of_labels_is_split_by_itself(tmp_path: Path) -> None:
    data = load(pictures(tmp_path / "pets", {"cat": 10, "dog": 20}))
    assert (data.classes, data.clients, len(data), len(data.test_y)) == (("cat", "dog"), (), 24, 6)
    pictures(tmp_path / "apart" / "train", {"cat": 4, "dog": 4})
    pictures(tmp_path / "apart" / "val", {"cat": 1, "dog": 2})
    apart = load(tmp_path / "apart")
    assert (apart.classes, len(apart), len(apart.test_y)) == (("cat", "dog"), 8, 3)


def test_small_data_shrinks_the_defaults_and_says_so() -> None:
    """50 rows needed 385 samples, by defaults that nobody had chosen."""
    rows = {key: column for key, column in COLUMNS.items() if key != "hospital"}
    training = iterate(Config(task="mlp@own", method="none", rounds=1, label="income"), data=Frame(rows))
    federation = training.federation
    assert len(federation.names) == 4
    assert federation.partition.sizes.min() >= 2
    assert (
        federation.notes[-1] == "40 samples are few, so defaults are smaller: clients 4, skew ratio 10, batch size 10"
    )
    assert next(training).present == 4
    again = Federation(Config(**federation.config.as_dict()), federation.custom)  # as a run's folder has it
    assert again.partition.sizes.tolist() == federation.partition.sizes.tolist()


@pytest.mark.parametrize("count", [2, 3, 5, 12, 30, 100, 300])
def test_any_number_of_samples_can_be_split(count: int) -> None:
    data = torch.randn(count, 3), torch.arange(count) % 2
    assert train(Config(task="logistic@own", method="none", rounds=1), data=data).rounds[-1].round == 1


def test_what_is_chosen_is_not_shrunk() -> None:
    data = torch.randn(50, 3), torch.arange(50) % 2
    settings = {"task": "logistic@own", "method": "none", "rounds": 1}
    chosen = iterate(Config(**settings, clients=8, batch_size=16), data=data)
    assert (len(chosen.federation.names), chosen.federation.config.batch_size) == (8, 16)
    chosen.close()
    with pytest.raises(InvalidInput, match=r"need .* samples"):
        train(Config(**settings, clients=8, skew_ratio=100), data=data)
    plenty = iterate(Config(**settings), data=(torch.randn(900, 3), torch.arange(900) % 2))
    assert plenty.federation.notes == ("a fifth of each label is the test set",)
    plenty.close()


def test_only_what_became_smaller_is_listed() -> None:
    data = torch.randn(140, 3), torch.arange(140) % 2
    settings = {"task": "logistic@own", "method": "none", "rounds": 1}
    chosen = iterate(Config(**settings, clients=3), data=data).federation
    assert chosen.config.batch_size == 32
    assert chosen.notes[-1] == "112 samples are few, so defaults are smaller: skew ratio 20"


def test_text_columns_that_may_name_the_clients_are_noted_unless_the_clients_are_known():
    words = "one per value: 'job' (2 values), 'hospital' (2 values); if one names the clients, give client= or --client"
    assert any(words in note for note in load(Frame(COLUMNS), label="income").notes)
    assert not any("client=" in note for note in load(Frame(COLUMNS), **NAMED).notes)
    unique = Frame(
        {
            "age": COLUMNS["age"],
            "label": COLUMNS["income"],
            "name": np.array([f"person {row}" for row in range(ROWS)], dtype=object),
        }
    )
    assert not any("client=" in note for note in load(unique).notes)
    with pytest.raises(InvalidInput, match=r"cannot train on a batch of .*; note: text columns .* give client="):
        iterate(model=torch.nn.Linear(3, 2), data=Frame(COLUMNS), label="income", ratio=0.5, clients=2)


def test_a_model_for_tokens_is_told_that_its_text_is_none():
    """Each sentence was one input of 0 or 1, and torch's own words about shapes were all there was."""
    rows = {"text": np.array([f"sentence {row}" for row in range(ROWS)], dtype=object), "label": COLUMNS["income"]}
    words = r"; note: the text column 'text' has 50 different values: tokenize the text first, or remove it: mat1"
    with pytest.raises(InvalidInput, match=words):
        iterate(model=torch.nn.Linear(3, 2), data=Frame(rows), clients=2)
