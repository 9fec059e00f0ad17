"""Flower in this process: equal to the local engine to the bit, whatever goes whole and whatever strategy there is."""

import difflib
import json
import logging
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian

from dagc.errors import DagcError, InvalidInput, MalformedPayload
from dagc.flower import DataAware
from dagc.flower.layout import Layout
from dagc.flower.messages import VERSION, Answer
from dagc.folder import read_metrics
from dagc.policies import POLICIES, Plan
from dagc.training import Config, Federation
from tests.flower.apps import NODES, WithBatchNorm, client_app, fed_avg, flat, kept_by, start, states, task
from tests.helpers.local_grid import LocalGrid

__all__ = ["states"]

# The same training as in the local engine

BUDGETS = {"ratio": {"ratio": 0.02}, "threshold": {"threshold": 0.01}, "bytes": {"bytes": 225}}


def budget_of(method):
    return BUDGETS[POLICIES[method].budgets[0]] if POLICIES[method].budgets else {}


@pytest.mark.parametrize(
    ("method", "values", "budget", "options"),
    [
        *((method, "fp32", budget_of(method), {}) for method in POLICIES if method != "accordion"),
        ("accordion", "fp32", BUDGETS["ratio"], {"interval": 2.0, "change": 0.05}),
        *(("dagc-r", values, BUDGETS["ratio"], {}) for values in ("int8", "sign", "auto")),
        ("power", "int8", BUDGETS["bytes"], {}),
    ],
)
def test_model_residuals_and_bytes_are_those_of_the_local_engine(states, method, values, budget, options):
    rounds = 9
    grid = LocalGrid(client_app(), NODES)
    config = Config(
        task="logistic@digits", method=method, values=values, options=options, clients=NODES, skew_ratio=10,
        rounds=rounds, local_steps=2, threads=1, **budget,
    )  # fmt: skip
    engine = Federation(config)
    plan = engine.server.plan if values != "auto" else Plan(method=method, values=values, options=options, **budget)
    result = start(DataAware(fed_avg(), plan.replaced(seed=0), run="one"), grid, rounds)
    expected = [engine.step() for _ in range(rounds)]
    assert torch.equal(flat(result.arrays), engine.vector)
    if engine.server.plan.downward() is None:
        assert torch.equal(engine.vector, engine.optimizer.vector.detach())
    for name, uplink in engine.uplinks.items():
        assert torch.equal(kept_by(states, "one", name).uplink.feedback.residual, uplink.feedback.residual)
    lines = read_metrics(states / "runs" / "one")
    assert [line["up"] for line in lines] == [one.up for one in expected]
    assert [line["down"] for line in lines[1:]] == [one.down for one in expected[1:]]
    assert [line["entries"] for line in lines] == [one.entries for one in expected]


def test_what_nodes_train_on_is_the_servers_model_bit_for_bit_and_is_downloaded_whole_only_once(states):
    seen = []
    grid = LocalGrid(client_app(seen=seen), NODES)
    strategy = DataAware(fed_avg(fraction_train=0.5), method="dagc-r", ratio=0.02, run="half")
    models = [flat(ArrayRecord(task().build().state_dict()))]
    start(strategy, grid, 12, evaluate_fn=lambda number, arrays: (number and models.append(flat(arrays))) or None)
    assert len(seen) == 24
    for number, (_, before, _) in enumerate(seen):
        assert torch.equal(before, models[number // 2])
    assert len({part for part, _, _ in seen}) == NODES
    whole = len(models[0]) * 4
    lines = read_metrics(states / "runs" / "half")
    assert sum(line["down"] for line in lines) < NODES * (whole + 100) + 12 * whole / 2
    assert sum(line["down"] > whole for line in lines) <= NODES


def test_those_who_evaluate_get_the_new_model_in_few_bytes_too(states):
    seen = []
    strategy = DataAware(FedAvg(), ratio=0.02, run="evaluated")
    result = start(strategy, LocalGrid(client_app(seen=seen), NODES), 3)
    last = [before for who, before, _ in seen if who == "evaluate"][-NODES:]
    assert all(torch.equal(model, flat(result.arrays)) for model in last)
    lines = read_metrics(states / "runs" / "evaluated")
    assert [line["score"] for line in lines] == [0.5] * 3
    assert lines[-1]["down"] < 2_000


@pytest.mark.parametrize("inner", [fed_avg, lambda: FedMedian(fraction_evaluate=0.0)])
def test_batch_norm_goes_whole_and_stays_sound(inner):
    grid = LocalGrid(client_app(model=WithBatchNorm), NODES)
    start(DataAware(inner(), method="dagc-r", ratio=0.1, values="sign", run="norm"), grid, 7, model=WithBatchNorm)
    strategy = DataAware(inner(), method="dagc-r", ratio=0.1, values="sign", run="norm")
    arrays = start(strategy, grid, 15, model=WithBatchNorm).arrays
    state = arrays.to_torch_state_dict()
    assert state["body.2.running_var"].min() > 0
    assert state["body.2.num_batches_tracked"] == 30
    assert state["body.2.num_batches_tracked"].dtype == torch.int64
    assert state["precise"].dtype == torch.float64
    assert all(tensor.isfinite().all() for tensor in state.values())


def test_arrays_can_be_kept_whole_by_name():
    arrays = ArrayRecord(nn.Linear(3, 2).state_dict())
    assert Layout.of(arrays).size == 8
    assert Layout.of(arrays, ["bias"]).size == 6
    assert Layout.read(Layout.of(arrays, ["bias"]).text).pieces == Layout.of(arrays, ["bias"]).pieces
    with pytest.raises(InvalidInput, match="nothing to compress"):
        Layout.of(arrays, ["*"])
    with pytest.raises(MalformedPayload):
        Layout.read('[["a", [-1], "object", 0]]')


@pytest.mark.parametrize("spoil", ["short", "bits", "nan"])
def test_arrays_that_go_whole_are_checked(spoil):
    layout = Layout.of(ArrayRecord(nn.BatchNorm1d(3).state_dict()))
    model = layout.split(ArrayRecord(nn.BatchNorm1d(3).state_dict()))
    if spoil == "nan":
        model.whole[0][0] = np.nan
    payload = layout.pack(b"frame", model.whole)
    payload = {"short": payload[-20:], "bits": payload[:-6] + b"xx" + payload[-4:], "nan": payload}[spoil]
    with pytest.raises(MalformedPayload):
        layout.unpack(payload)


# Other strategies


@pytest.mark.parametrize(
    "make",
    [fed_avg, lambda: FedAvgM(fraction_evaluate=0.0, server_momentum=0.5), lambda: FedAdam(fraction_evaluate=0.0),
     lambda: FedMedian(fraction_evaluate=0.0)],
)  # fmt: skip
def test_without_compression_any_strategy_ends_where_it_would_without_us(make):
    plain = start(make(), LocalGrid(client_app(mods=()), NODES), 4)
    ours = start(DataAware(make(), method="none"), LocalGrid(client_app(), NODES), 4)
    assert torch.allclose(flat(ours.arrays), flat(plain.arrays), rtol=1e-5, atol=1e-6)
    for number in range(1, 5):
        got, expected = ours.train_metrics_clientapp[number], plain.train_metrics_clientapp[number]
        assert got["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)


def test_a_zero_that_loses_its_sign_on_the_server_costs_nobody_a_round(states, caplog):
    def negative_zeros():
        model = task().build()
        for parameter in model.parameters():
            parameter.data.fill_(-0.0)
        return model

    strategy = DataAware(FedAdam(fraction_evaluate=0.0), ratio=0.02, run="zeros")
    start(strategy, LocalGrid(client_app(), NODES), 4, model=negative_zeros)
    assert [line["present"] for line in read_metrics(states / "runs" / "zeros")] == [NODES] * 4
    assert "out of sync" not in caplog.text


def test_the_mod_lets_other_servers_pass():
    plain = start(fed_avg(), LocalGrid(client_app(mods=()), NODES), 2)
    same = start(fed_avg(), LocalGrid(client_app(), NODES), 2)
    assert torch.allclose(flat(same.arrays), flat(plain.arrays), atol=1e-6)  # FedAvg adds up in any order


# The example


def test_the_example_changes_four_lines_of_code():
    folder = Path(__file__).parents[2] / "examples" / "flower"
    changed = []
    for path in sorted((folder / "before" / "digits").glob("*.py")):
        after = folder / "after" / "digits" / path.name
        changed += [
            line
            for line in difflib.unified_diff(path.read_text().splitlines(), after.read_text().splitlines(), n=0)
            if line.startswith("+") and not line.startswith("+++")
        ]
    assert changed == [
        "+from dagc.flower import compress_with",
        "+app = ClientApp(mods=[compress_with(lambda context: ArrayRecord(build(context.run_config).state_dict()))])",
        "+from dagc.flower import DataAware",
        '+    strategy = DataAware(strategy, ratio=config["ratio"], down=config["down"], first_model="drawn", '
        'run=config["run"])',
    ]


@pytest.mark.parametrize(
    ("kind", "more"), [("before", {}), ("after", {}), ("after", {"optimizer": "AdamW", "learning-rate": 0.002})]
)
def test_the_example_learns(states, monkeypatch, kind, more):
    folder = Path(__file__).parents[2] / "examples" / "flower" / kind
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "digits"]:
        monkeypatch.delitem(sys.modules, name)
    from digits.client_app import app as client
    from digits.server_app import app as server

    config = {
        **tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"],
        "rounds": 8,
        "run": "digits",
        **more,
    }
    grid = LocalGrid(client, 3, run_config=config)
    server(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))
    if kind == "after":
        lines = read_metrics(states / "runs" / "digits")
        assert lines[-1]["score"] > 0.8
        assert lines[-1]["bytes_up"] < 8 * 3 * 4 * 37_510 / 40


@pytest.mark.parametrize(("switch", "ratio"), [(False, 0.0), (True, 0.0), (True, 0.05)])
def test_the_template_learns_with_the_switch_on_and_off(states, monkeypatch, switch, ratio):
    folder = Path(__file__).parents[2] / "examples" / "flower-template"
    monkeypatch.syspath_prepend(str(folder))
    from myapp.client_app import app as client
    from myapp.server_app import app as server
    from myapp.task import build

    config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {"dagc": switch, "ratio": ratio, "num-server-rounds": 6, "run": "template"}
    grid, sizes = LocalGrid(client, 3, run_config=config), []

    def weigh(reply):
        arrays = [array for record in reply.content.array_records.values() for array in record.values()]
        sizes.append(sum(len(array.data) for array in arrays))
        return [reply]

    grid.on_reply = weigh
    torch.manual_seed(0)
    server(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))
    if switch:
        assert read_metrics(states / "runs" / "template")[-1]["score"] > 0.7
    parameters = sum(parameter.numel() for parameter in build().parameters())
    assert (sum(sizes) < 6 * 3 * 4 * parameters / 5) == switch


# The rest


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "magic", "ratio": 0.1}, "there is no method 'magic'"),
        ({"method": "dagc-a"}, "method 'dagc-a' needs a budget: give threshold"),
        ({"ratio": 0.1, "bytes": 20}, "give one budget, not ratio and bytes"),
        ({"ratio": 0.1, "threshold": 0.1}, "method 'dagc' takes no threshold"),
        ({"ration": 0.1}, "there is no setting 'ration': did you mean 'ratio'"),
        ({"ratio": 0.1, "options": {"interval": 5}}, "method 'dagc' takes no options"),
        ({"ratio": 2.0}, "ratio is 2"),
        ({"ratio": 0.1, "values": "fp7"}, "fp7"),
        ({"ratio": 0.1, "caps": {"partition-0": 1e-6}}, "the cap 1e-06 of 'partition-0' is below one entry"),
    ],
)
def test_bad_arguments_are_refused_before_any_message_is_sent(options, words):
    grid = LocalGrid(client_app(), NODES)
    grid.on_reply = lambda reply: pytest.fail("a message was sent")
    with pytest.raises(InvalidInput, match=words):
        start(DataAware(fed_avg(), **options), grid, 1)


def test_what_is_not_started_says_so():
    with pytest.raises(InvalidInput, match="has not been started"):
        DataAware(fed_avg(), ratio=0.1).aggregate_train(1, [])


def test_dagc_report_draws_a_flower_run(states, tmp_path, capsys, monkeypatch):
    from dagc.cli import main

    for method, budget in (("dagc-r", {"ratio": 0.02}), ("none", {})):
        strategy = DataAware(fed_avg(), method=method, run=f"digits-{method}", **budget)
        start(
            strategy, LocalGrid(client_app(), NODES), 4,
            evaluate_fn=lambda number, arrays: MetricRecord({"accuracy": 0.2 + number / 10, "loss": 1.0}),
        )  # fmt: skip
    result = json.loads((states / "runs" / "digits-dagc-r" / "result.json").read_text())
    assert result["final_score"] == pytest.approx(0.6)
    folders = [str(states / "runs" / f"digits-{method}") for method in ("dagc-r", "none")]
    monkeypatch.setattr("sys.argv", ["dagc", "report", *folders, "--output", str(tmp_path / "page")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    page = (tmp_path / "page" / "report.html").read_text()
    assert "trained with Flower" in page


def test_records_are_complete_or_refused():
    with pytest.raises(MalformedPayload, match="not complete"):
        Answer.read({"version": VERSION, "kind": "train"})
    with pytest.raises(MalformedPayload, match="another version"):
        Answer.read({})
    assert issubclass(MalformedPayload, DagcError)


@pytest.mark.parametrize(("settings", "named"), [({}, True), ({"ratio": 0.02}, False)])
def test_the_log_names_the_budget_that_nobody_has_set(caplog, settings, named):
    with caplog.at_level(logging.INFO, "dagc.flower"):
        start(DataAware(fed_avg(), **settings), LocalGrid(client_app(), NODES), 1)
    assert ("by default 65 bytes per node and round" in caplog.text) == named
