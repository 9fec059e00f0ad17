"""What an attacker tried, item by item: each held up the program once, or was near to it."""

import copy
import gzip
import io
import json
import tarfile
import threading
import tracemalloc
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import dagc.ddp
from dagc import DagcError, InvalidInput, MalformedPayload, Plan, Sparse, aggregate
from dagc._numba import compiled
from dagc.checkpoint import checkpoints
from dagc.cli import app
from dagc.data.download import fetch, unpack
from dagc.data.idx import read_idx
from dagc.data.npz import read_npz
from dagc.errors import CheckpointError, DataError, OutsideBound
from dagc.folder import finished, read_metrics, read_settings
from dagc.protocol import Client, Server
from dagc.report.runs import read_run
from dagc.training import Config, Federation, train
from dagc.wire import VALUE_CODECS, Memory, is_coded

# 12. Settings, files and addresses that are no such thing are refused with words


@pytest.mark.parametrize(
    "fields",
    [
        {"skew_ratio": 1e308},
        {"partition": "skewed:clients=10,skew_ratio=1e308,label_alpha=0.5"},
        {"partition": "from-sizes:sizes=" + "9" * 5000},
        {"learning_rate": 1e308},
        {"learning_rate": float("inf")},
        {"device": "meta"},
        {"compute_seconds": 1e308},
        {"network": "constant:up=1e308,down=1e-308"},
        {"network": "constant:latency=1e308"},
        {"task": "logistic@" + "a" * 5000},
        {"ratio": None, "rate": "1" + "0" * 400 + " B/training"},
        {"ratio": 10**400},
        {"caps": {"0": 10**5000}},
        {"seed": 10**5000},
        {"rounds": -(10**5000)},
        {"epochs": float("inf")},
        {"epochs": 1e300},
        {"local_steps": 2, "client_weight_decay": 1e308},
        {"local_steps": 2, "server_rate": 1e308},
        {"optimizer_options": {"weight_decay": 1e308}},
        {"optimizer_options": {"x" * 5000: 1}},
        {"optimizer": "Adam", "optimizer_options": {"betas": [0.9, 0.9, 0.9]}},
        {"device": "x" * 5000},
        {"clients": 3, "partition": "x" * 5000},
    ],
    ids=lambda fields: str(list(fields)),
)
def test_settings_beyond_any_training_are_refused_with_words(fields):
    with pytest.raises(DagcError) as refused:
        train(Config(**{"task": "logistic@digits", "ratio": 0.1, "rounds": 2, **fields}))
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "settings",
    [
        {"ratio": 10**5000},
        {"bytes": -(10**5000)},
        {"ratio": 0.1, "seed": 10**5000},
        {"ratio": 0.1, "caps": {"a": 10**5000}},
        {"ratio": 0.1, "options": {"a": 10**5000}},
        {"ratio": 0.1, "down": 10**5000},
        {"rate": 10**5000},
        {"method": 10**5000},
        {"method": "x" * 10**6},
        {"method": "power", "ratio": 0.1, "exponent": 10**5000},
    ],
    ids=lambda settings: str(list(settings)),
)
def test_a_plan_of_monstrous_numbers_is_refused_in_a_few_words(settings):
    with pytest.raises(InvalidInput) as refused:
        Plan(**settings)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(
    "text",
    [
        "caps = " + "[" * 5000 + "]" * 5000,
        "caps" + ".a" * 5000 + " = 1",
        "version" + ".a" * 5000 + " = 1",
        "rounds = " + "9" * 5000,
        "ratio = 0.1\nrounds = -" + "9" * 4000,
    ],
    ids=["lists", "tables", "version", "digits", "fewer digits"],
)
def test_toml_nested_5000_deep_or_with_5000_digits_is_refused(tmp_path, text):
    (tmp_path / "it.toml").write_text(text)
    with pytest.raises(InvalidInput):
        Config(**read_settings(tmp_path / "it.toml"))


@pytest.mark.parametrize("caps", ["[" * 100_000, '{"a":' * 5000, '{"0":' + "9" * 5000 + "}"])
def test_monstrous_json_on_the_command_line_is_one_line(caps):
    for command in (["run", "logistic@digits", "--ratio", "0.1"], ["allocate", "1,2", "--ratio", "0.1"]):
        done = CliRunner().invoke(app, [*command, "--caps", caps])
        assert done.exit_code
        assert isinstance(done.exception, SystemExit | DagcError), done.exception


@pytest.mark.parametrize(
    "arguments",
    [
        ["allocate", "--sizes", "1,2", "--bytes", "1e400", "--parameters", "100"],
        ["allocate", "--sizes", "9" * 5000, "--ratio", "0.1", "--parameters", "100"],
        ["allocate", "--sizes", "1,2", "--ratio", "0.1", "--parameters", "1e308"],
        ["plan", "--sizes", "1,2", "--ratio", "0.1", "--parameters", "1e308"],
        ["compare", "logistic@digits", "--ratio", "0.1", "--seeds", "9" * 4000],
        ["compare", "logistic@digits", "--ratio", "0.1", "--methods", "x" * 10_000],
    ],
)
def test_monstrous_numbers_on_the_command_line_are_one_line(arguments):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code
    assert isinstance(done.exception, SystemExit | DagcError), done.exception


def npz(path, shape, descr="<f4"):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(path, "w") as file:
        for name in ("x.npy", "y.npy"):
            file.writestr(name, head.getvalue() + b"1234")
    return path


@pytest.mark.parametrize(
    ("shape", "descr"),
    [((10**12,), "<f4"), ((10**9, 10**9), "<f4"), ((10**40,), "<f4"), ((10**9,), "<U1000000"), ((10**10,), "<f4")],
)
def test_arrays_that_claim_to_be_huge_cost_nothing(tmp_path, shape, descr):
    path = npz(tmp_path / "x.npz", shape, descr)
    with pytest.raises(DataError, match=r"x\.npz"):
        read_npz(path)


def test_an_array_that_is_no_archive_is_refused(tmp_path):
    with (tmp_path / "x.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match=r"x\.npz"):
        read_npz(tmp_path / "x.npz")


@contextmanager
def little_memory(most):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


BOMB = 200_000_000


def test_archives_do_not_unpack_to_hundreds_of_times_their_size(tmp_path):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": (BOMB,)})
    zeros = bytes(1_000_000)
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for name in ("x.npy", "y.npy"):
            with file.open(name, "w") as member:
                member.write(head.getvalue())
                for _ in range(BOMB // len(zeros)):
                    member.write(zeros)
    with gzip.open(tmp_path / "x.gz", "wb", compresslevel=1) as file:
        file.write(b"\0\0\x08\x01" + BOMB.to_bytes(4, "big"))
        for _ in range(BOMB // len(zeros)):
            file.write(zeros)
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz", compresslevel=1) as tar:
        for number in range(BOMB // len(zeros)):
            member = tarfile.TarInfo(f"set/{number}")
            member.size = len(zeros)
            tar.addfile(member, io.BytesIO(zeros))
    with little_memory(150_000_000):
        for path, use in (
            ("x.npz", read_npz),
            ("x.gz", read_idx),
            ("x.tar.gz", lambda path: unpack(path, tmp_path / "set")),
        ):
            with pytest.raises(DataError, match="would unpack to"):
                use(tmp_path / path)
    assert not (tmp_path / "set").exists()
    assert not list(tmp_path.glob(".set*"))


class Hostile(BaseHTTPRequestHandler):
    """Answers with whatever header the path says."""

    def do_GET(self):
        kind = self.path.strip("/")
        self.send_response(302 if kind.startswith("to") else 200)
        length = {"words": "many", "digits": "9" * 5000, "negative": "-5"}.get(kind)
        if length:
            self.send_header("Content-Length", length)
        if kind == "to-nowhere":
            self.send_header("Location", "http://[bad/x")
        if kind == "to-long":
            self.send_header("Location", f"http://{'a' * 200}/x")
        if kind == "to-file":
            self.send_header("Location", "file:///etc/hostname")
        self.end_headers()
        self.wfile.write(b"x")

    def log_message(self, *_):
        pass


@pytest.fixture
def hostile():
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", ["words", "digits", "negative"])
def test_a_length_that_is_none_is_not_believed(hostile, tmp_path, kind):
    fetch(f"{hostile}/{kind}", tmp_path / "f", None, pause=0, attempts=1)
    assert (tmp_path / "f").read_bytes() == b"x"


@pytest.mark.parametrize("kind", ["to-nowhere", "to-long", "to-file"])
def test_a_redirect_to_what_is_no_address_is_refused(hostile, tmp_path, kind):
    with pytest.raises(DataError):
        fetch(f"{hostile}/{kind}", tmp_path / "f", None, pause=0, attempts=1)
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize("url", ["http://[", "http://[::1", f"http://{'a' * 70_000}/f", "http://./f", "http://\n/f"])
def test_what_is_no_address_is_refused(tmp_path, url):
    with pytest.raises(DataError):
        fetch(url, tmp_path / "f", None, pause=0, attempts=1)


# 13. Entries that nobody has checked do not reach memory


def unchecked(size, indices, values=None):
    indices = np.asarray(indices, np.int64)
    return Sparse.trusted(size, indices, np.ones(len(indices), np.float32) if values is None else values)


@pytest.fixture(params=["auto", "torch"])
def kernels(request, monkeypatch):
    monkeypatch.setenv("DAGC_KERNELS", request.param)
    compiled.cache_clear()
    yield request.param
    compiled.cache_clear()


@pytest.mark.parametrize("indices", [[-1], [100_000], [5, -(2**62)], [2**62], [-5, 5], [5, 7, 100_001]], ids=str)
def test_a_sum_of_entries_outside_of_the_vector_is_refused(kernels, indices):
    good, bad = Sparse(100_000, [0, 99_999], [1.0, 1.0]), unchecked(100_000, indices)
    for these in ([good, bad], [bad]):
        with pytest.raises(InvalidInput, match=f"client {len(these) - 1} do not ascend"):
            aggregate(these, np.ones(len(these)))


def test_a_sum_of_entries_in_disorder_stays_within_its_memory(kernels):
    """Kernels may add them up all the same."""
    bad = unchecked(100_000, np.tile([0, 99_999], 100_000))
    if kernels == "torch":
        with pytest.raises(InvalidInput, match="client 0 do not ascend"):
            aggregate([bad], [1])
    with pytest.raises(InvalidInput, match="one value per index"):
        aggregate([unchecked(10, [1, 2, 3], np.ones(2, np.float32))], [1])


def test_what_a_compressor_of_somebody_else_selects_is_looked_at():
    for wrong in ([-1], [10], [3, 2], [4, 4]):
        feedback = dagc.ErrorFeedback(lambda vector, parameter, *, seed=0, w=wrong: unchecked(10, w), 10)
        with pytest.raises(InvalidInput, match="selected an entry twice, or one that is not in"):
            feedback.step(torch.ones(10), 1)
        assert not feedback.residual.any()


def test_what_a_codec_of_somebody_else_reads_is_looked_at(monkeypatch):
    frame = dagc.encode(Sparse(10, [1, 2], [1.0, 2.0]))
    for wrong in ([1.0], [1.0, 2.0, 3.0], [[1.0, 2.0]]):
        codec = VALUE_CODECS["fp32"]._replace(read=lambda *_, w=wrong: np.array(w, np.float32))
        monkeypatch.setitem(VALUE_CODECS, "fp32", codec)
        with pytest.raises(MalformedPayload, match="value codec 0 returned bad entries"):
            dagc.decode(frame, 10)


@pytest.mark.parametrize(
    "indices", [[-1], [100_000], [5, 2], [4, 4], [2**62], [-(2**62), 5], [0] * 3000, range(5000, 0, -1)], ids=str
)
def test_nothing_is_made_of_entries_that_are_not_in_the_vector(kernels, indices):
    """Kernels that write gaps between indices would run over their memory, or for ever."""
    bad = unchecked(100_000, np.array(indices))
    ways = [{}, {"values": "sign"}, {"memory": Memory([100_000], signs=False)}]
    for way in ways:
        with pytest.raises(InvalidInput, match="do not ascend"):
            dagc.encode(bad, **way)
    feedback = dagc.ErrorFeedback(dagc.top_k, 100_000)
    for use in (bad.dense, lambda: feedback.unsend(bad)):
        with pytest.raises(InvalidInput, match="do not ascend"):
            use()
    assert not feedback.residual.any()


def test_a_seed_from_which_other_entries_follow_is_found_out():
    """The server would read other places than the client believes it has sent."""
    drawn = dagc.random_k(torch.zeros(10), 3, seed=5)
    others = np.setdiff1d(np.arange(10), drawn.indices)[:3]
    for indices, right in ((drawn.indices, True), (others, False)):
        values = np.ones(3, np.float32)
        chosen = Sparse.trusted(10, indices, values, drawn.seed)
        feedback = dagc.ErrorFeedback(lambda vector, parameter, *, seed=0, c=chosen: c, 10)
        if right:
            assert feedback.step(torch.ones(10), 3).seed == drawn.seed
        else:
            with pytest.raises(InvalidInput, match="its seed does not draw"):
                feedback.step(torch.ones(10), 3)


def doubled(number, read=lambda section, count: np.frombuffer(section, "<f4") / 2):
    """A value codec of somebody else."""
    return VALUE_CODECS["fp32"]._replace(
        id=number, write=lambda values: (2 * values).astype("<f4").tobytes(), read=read
    )


@pytest.mark.parametrize("way", [{}, {"memory": Memory([10], signs=False)}], ids=list)
def test_codecs_that_were_registered_later_are_read(monkeypatch, way):
    monkeypatch.setitem(VALUE_CODECS, "doubled", doubled(9))
    sparse = Sparse(10, [1, 7], [1.0, 2.0])
    frame = dagc.encode(sparse, "doubled", **way)
    assert dagc.decode(frame, 10, values="doubled", **way) == sparse


@pytest.mark.parametrize("number", [0, 2, 16, -1])
def test_a_codec_with_a_number_of_another_is_refused(monkeypatch, number):
    """Or frames would be read by the other one, and be something else."""
    sparse = Sparse(10, [1, 7], [1.0, 2.0])
    monkeypatch.setitem(VALUE_CODECS, "thief", doubled(number))
    with pytest.raises(InvalidInput, match="value codec 'thief' has the number"):
        dagc.encode(sparse, "thief")


@pytest.mark.parametrize("wrong", [np.ones(1), np.ones(3), np.full(2, np.nan), np.ones((2, 1))], ids=str)
def test_what_a_value_codec_of_somebody_else_reads_is_looked_at_in_coded_frames_too(monkeypatch, wrong):
    monkeypatch.setitem(VALUE_CODECS, "doubled", doubled(9))
    for memory in (None, Memory([10], signs=False)):
        frame = dagc.encode(Sparse(10, [1, 7], [1.0, 2.0]), "doubled", memory=memory)
        assert is_coded(frame) == (memory is not None)
        with monkeypatch.context() as other:
            other.setitem(VALUE_CODECS, "doubled", doubled(9, lambda *_: wrong.astype(np.float32)))
            with pytest.raises(MalformedPayload):
                dagc.decode(frame, 10, memory=memory)


# 6. Files that have changed since they were written are noticed

RUN = {"task": "logistic@digits", "ratio": 0.1, "rounds": 4, "clients": 3, "skew_ratio": 2, "checkpoint_every": 2}


@pytest.fixture
def half_done(tmp_path):
    """A run that was stopped after two of four rounds."""
    training = train(Config(**RUN), tmp_path / "run")
    next(training)
    next(training)
    training.close()
    return tmp_path / "run"


def test_every_bit_of_the_metrics_matters_to_a_resumed_run(half_done):
    lines = half_done / "metrics.jsonl"
    good = lines.read_bytes()
    for at in range(0, len(good), 7):
        lines.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl was changed or damaged"):
            next(iterate(Config(**RUN), half_done))
    lines.write_bytes(bytes(range(128, 256)) * (len(good) // 128 + 1))
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl was changed or damaged"):
        next(iterate(Config(**RUN), half_done))
    lines.write_bytes(good)
    assert train(Config(**RUN), half_done).rounds[-1].round == 4


def test_settings_that_were_changed_under_a_half_done_run_are_refused(half_done):
    config = half_done / "config.toml"
    config.write_text(config.read_text().replace("ratio = 0.1", "ratio = 0.2"))
    done = CliRunner().invoke(app, ["resume", str(half_done)])
    assert isinstance(done.exception, InvalidInput)
    assert "config.toml was changed since the last checkpoint" in str(done.exception)


def test_numbers_that_are_written_in_another_way_do_not_change_settings(half_done):
    config = half_done / "config.toml"
    for one, other in (("skew_ratio = 2.0", "skew_ratio = 2"), ("ratio = 0.1", "ratio = 1e-1")):
        assert one in config.read_text()
        config.write_text(config.read_text().replace(one, other))
    assert CliRunner().invoke(app, ["resume", str(half_done)]).exception is None
    assert finished(half_done)
    assert Config(ratio=0.1, down="64").key() == Config(ratio=0.1, down=64).key()


@pytest.mark.parametrize("damage", ["bit", "cut", "gone"])
def test_a_finished_run_whose_model_is_damaged_is_not_finished(half_done, damage):
    train(Config(**RUN), half_done)
    model = half_done / "model.safetensors"
    good = model.read_bytes()
    assert finished(half_done)
    if damage == "gone":
        model.unlink()
    else:
        model.write_bytes(good[:-1] if damage == "cut" else good[:-1] + bytes([good[-1] ^ 1]))
    assert not finished(half_done)
    train(Config(**RUN), half_done)
    assert model.read_bytes() == good
    assert finished(half_done)


# 8. A run's numbers may be anybody's: what is no number of a run is refused, with its line


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *(("round", number) for number in (0, -1, 1e308, 10**400, 2.5)),
        *(("entries", number) for number in (-1, 1e308, 10**400)),
        *(("bytes_down", number) for number in (-5, 1.7e308, 10**400)),
        *(("seconds", number) for number in (-5, 1e300, True)),
    ],
)
def test_numbers_that_no_run_has_are_refused_with_their_line(half_done, name, number):
    lines = read_metrics(half_done)
    lines[1][name] = number
    (half_done / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InvalidInput, match=rf"line 2 of .*metrics\.jsonl has .* as {name}"):
        read_run(half_done)


@pytest.mark.parametrize("accuracy", [1.7e308, -1e308, float("inf"), 10**400])
def test_an_accuracy_that_a_node_made_up_is_as_good_as_none(half_done, accuracy, tmp_path):
    lines = read_metrics(half_done)
    lines[1]["score"] = accuracy
    (half_done / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert np.isnan(read_run(half_done).rows[1]["score"])
    done = CliRunner().invoke(app, ["report", str(half_done), "--output", str(tmp_path / "report")])
    assert done.exception is None, done.exception


# 3. Uploads far larger than most, claims of more examples than anybody holds


def bounded(**plan):
    server = Server(Plan(method="dagc-r", ratio=0.1, **plan), torch.zeros(100))
    for name in "abcd":
        server.join(name, 10)
    return server, {name: Client([100]) for name in "abcd"}


def one_round(server, clients, size=None):
    """Everybody uploads ones, but for those in `size`; returned are those who were left out."""
    uploads, left_out = [], []
    for name, order in server.orders(clients).items():
        clients[name].settle(order.accepted_round)
        clients[name].receive(server.download(name))
        frame = clients[name].upload(torch.full((100,), (size or {}).get(name, 1.0)), order).frame
        try:
            uploads.append(server.read(name, frame))
        except OutsideBound:
            left_out.append(name)
    server.close(uploads, server.model - server.total(uploads) if uploads else None)
    return left_out


def test_an_upload_far_larger_than_most_is_not_taken_and_goes_back_into_the_residual():
    server, clients = bounded(norm_bound=10)
    assert one_round(server, clients) == []
    assert one_round(server, clients, {"c": 1e6, "d": 20.0}) == ["c", "d"]
    before = server.model.clone()
    assert before.abs().max() < 10
    assert [server.members[name].accepted_round for name in "abcd"] == [2, 2, 1, 1]
    assert clients["c"].pending is not None
    clients["c"].settle(server.members["c"].accepted_round)
    assert clients["c"].feedback.residual.sum() > 99e6, "nothing is lost"
    again, _ = bounded(norm_bound=10)
    again.load({k: np.array(v) for k, v in server.arrays().items()}, json.loads(json.dumps(server.numbers())))
    assert one_round(again, clients) == ["c", "d"], "the norms are in the state"


def test_a_change_that_all_go_through_is_followed():
    server, clients = bounded(norm_bound=10)
    for _ in range(5):
        assert one_round(server, clients) == []
    refused = [len(one_round(server, clients, dict.fromkeys("abcd", 1000.0))) for _ in range(12)]
    assert refused[0] == 4
    assert refused[-1] == 0


def test_a_minority_does_not_move_the_bound():
    server, clients = bounded(norm_bound=10)
    one_round(server, clients)
    for t in range(60):
        assert one_round(server, clients, {"d": 1000.0 * 1.5 ** min(t, 20)}) == ["d"]
    assert server.model.abs().max() < 1000


def test_without_a_bound_nothing_is_refused_or_kept():
    server, clients = bounded()
    one_round(server, clients)
    assert one_round(server, clients, {"c": 1e6}) == []
    assert server.numbers()["norms"] == []


def test_claims_count_up_to_a_limit():
    server = Server(Plan(method="dagc-r", ratio=0.1, most_examples=500), torch.zeros(100))
    for name, examples in (("a", 1e9), ("b", 499), ("c", 500)):
        server.join(name, examples)
    assert [member.examples for member in server.members.values()] == [500, 499, 500]
    server.join("b", 1e15)
    assert server.members["b"].examples == 500


@pytest.mark.parametrize("wrong", [{"norm_bound": 1}, {"norm_bound": float("inf")}, {"most_examples": 0}])
def test_bounds_that_bound_nothing_are_refused(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Plan(method="dagc-r", ratio=0.1, **wrong)


def test_the_local_engine_leaves_a_client_out_and_names_it(monkeypatch, caplog):
    fields = {**RUN, "method": "dagc-r", "clients": 5, "rounds": 8, "norm_bound": 10, "most_examples": 300}
    usual = Federation._upload

    def spoilt(self, i, order, gradient):
        return usual(self, i, order, [g * 1e5 for g in gradient] if (i, order.round) == (2, 5) else gradient)

    monkeypatch.setattr(Federation, "_upload", spoilt)
    federation = Federation(Config(**fields))
    rounds = [federation.step() for _ in range(8)]
    assert "round 5: client 2 is left out: its upload has norm" in caplog.text
    assert federation.server.members["2"].accepted_round == 4
    assert federation.vector.abs().max() < 10
    assert max(member.examples for member in federation.server.members.values()) == 300
    assert all(one.loss < 10 for one in rounds)


def test_a_damaged_checkpoint_does_not_push_the_good_one_out(half_done):
    """A run goes back behind a damaged checkpoint and saves at another round."""
    config = Config(**{**RUN, "checkpoint_every": 3})
    training = train(config, half_done)
    next(training)
    training.close()
    newest, older = checkpoints(half_done / "checkpoints")
    newest.write_bytes(newest.read_bytes()[:-1])
    training = train(Config(**{**RUN, "checkpoint_every": 9}), half_done)
    with pytest.warns(UserWarning, match="is damaged"):
        next(training)
    next(training)
    training.close()
    assert [path.name for path in checkpoints(half_done / "checkpoints")] == ["round-00000004.state", older.name]


# 1. No gradient passes a budget in bytes: zeros are left out, and all entries need no indices


@pytest.mark.parametrize("frames", ["compact", "coded"])
@pytest.mark.parametrize("values", ["fp32", "int8", "sign"])
@pytest.mark.parametrize("method", ["dagc-r", "power", "top-k", "random-k"])
def test_no_gradient_passes_a_budget_in_bytes(method, values, frames):
    rng = np.random.default_rng(7)
    for size in (3, 40, 1000):
        for budget in (15, 80, 200, 700, 4000):
            server = Server(Plan(method=method, bytes=budget, values=values, frames=frames), torch.zeros(size))
            clients = {name: Client([size]) for name in "abc"}
            for name, examples in zip("abc", (5000, 200, 200), strict=True):
                server.join(name, examples)
            sent = 0
            for t in range(4):
                uploads = []
                for name, order in server.orders(clients).items():
                    clients[name].settle(order.accepted_round)
                    clients[name].receive(server.download(name))
                    change = rng.standard_normal(size).astype(np.float32) ** 3
                    change[rng.random(size) < rng.choice([0, 0.1, 0.9])] = 0
                    frame = clients[name].upload(torch.from_numpy(change), order).frame
                    sent += len(frame)
                    uploads.append(server.read(name, frame))
                server.close(uploads, server.model - server.total(uploads))
                assert sent <= 3 * budget * (t + 1), (size, budget, t)


# 7. What holds residuals is for its owner alone


def test_only_its_owner_can_read_the_checkpoints_of_a_run(half_done):
    kept = half_done / "checkpoints"
    assert kept.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in kept.iterdir()} == {0o600}


# 9. What is no state is not loaded


@pytest.fixture(params=["plain", "coded"])
def hook(request):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 10))
    settings = {"bytes": 40, "overhead": 0.25, "values": "sign", "norm_bound": 5, "frames": request.param}
    hook = dagc.ddp.register(model, examples=50, **settings)
    for _ in range(3):
        model(torch.ones(4, 20)).sum().backward()
    yield hook
    torch.distributed.destroy_process_group()


def places(state, before=()):
    """Every place in a state."""
    found = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in found:
        yield (*before, key)
        yield from places(value, (*before, key))


def as_text(state):
    arrays = {name: array.tolist() for name, array in state["arrays"].items()}
    return json.dumps({**state, "arrays": arrays}, sort_keys=True)


def test_junk_at_any_place_of_a_state_is_refused_or_fits_and_a_refused_one_leaves_no_trace(hook):
    good, refused = hook.state_dict(), 0
    before = as_text(good)
    for place in places(good):
        for junk in (None, "x", [], {"a": 1}, float("nan"), -5, torch.zeros(3)):
            state = copy.deepcopy(good)
            at = state
            for key in place[:-1]:
                at = at[key]
            at[place[-1]] = junk
            try:
                hook.load_state_dict(state)
            except InvalidInput:
                refused += 1
            else:
                hook.load_state_dict(good)
            assert as_text(hook.state_dict()) == before, place
    assert refused > 100
