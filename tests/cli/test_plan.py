"""plan: what is foreseen holds in real trainings, every choice has its reason, and units are asked for."""

import json

import pytest
from typer.testing import CliRunner

from dagc import InvalidInput, Plan
from dagc.cli import app
from dagc.cli.parse import link_rate, price
from dagc.planning import MORE_ROUNDS, Fleet, choices, forecast, verdict
from dagc.policies.plan import CODED_BELOW, SIGNS_BELOW, usual_bytes
from dagc.report.words import brief
from dagc.training import Config, Federation

METHODS = ["dagc", "dagc-r, ratio 0.1 %", "top-k, ratio 0.1 %, raw frames", "stc, ratio 0.1 %", "none"]


def run(*arguments):
    done = CliRunner().invoke(app, ["plan", *map(str, arguments)], catch_exceptions=False, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.stdout


def planned(*arguments):
    return json.loads(run(*arguments, "--json"))


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "none"},
        {"method": "dagc"},
        {"method": "dagc", "ratio": 0.02},
        {"method": "dagc-r", "ratio": 0.02},
        {"method": "dagc-r", "bytes": 40, "values": "sign", "frames": "compact", "down": 60},
        {"method": "top-k", "ratio": 0.02, "frames": "raw"},
        {"method": "stc", "ratio": 0.02},
        {"method": "stc", "ratio": 0.02, "participation": 0.4},
        {"method": "none", "participation": 0.4},
        {"method": "dagc-r", "ratio": 0.02, "participation": 0.4, "first_model": "drawn"},
        {"method": "dagc", "participation": 0.1, "first_model": "drawn"},
        {"method": "top-k", "rate": "900 B/training"},
        {"method": "dagc", "bytes": 64, "rate": "60 kB/hour", "compute_seconds": 2.0},
    ],
    ids=str,
)
def test_a_training_sends_what_was_foreseen_and_no_more(settings):
    rounds = 40
    federation = Federation(Config(task="logistic@digits", rounds=rounds, skew_ratio=20, workers=10, **settings))
    sizes = dict(zip(federation.names, map(float, federation.partition.sizes), strict=True))
    fleet = Fleet(
        federation.size, sizes, settings.get("participation", 1.0), 8.4e6, 8.4e6, settings.get("compute_seconds", 0.0)
    )
    expected = forecast(federation.config.plan(), fleet, rounds)
    for _ in range(rounds):
        federation.step()
    sent, received = federation.bytes_up, federation.bytes_down
    if settings["method"] == "none":
        assert sent == pytest.approx(expected.bytes_up, rel=2e-3)
        assert received == pytest.approx(expected.bytes_down, rel=0.05 if "participation" in settings else 2e-3)
        assert federation.seconds == pytest.approx(expected.seconds, rel=2e-3)
        return
    others = "participation" in settings  # other clients come together
    slack, left = 1.1 if others else 1.0, 100  # what a round leaves of a budget in bytes, the real ones spend later
    assert 0.4 * expected.bytes_up < sent <= slack * expected.bytes_up + left
    if expected.plan.in_bytes and expected.plan.lossless:  # real frames hold more entries in the same bytes
        slack = 1.3
    assert 0.4 * expected.changes < sent + received - expected.first_download <= slack * expected.changes + 11 * left
    if not others:  # bytes that were left may all be spent by one client
        assert federation.seconds <= (max(slack, 1.05) if expected.plan.in_bytes else slack) * expected.seconds


def test_rounds_after_those_gone_through_are_like_them():
    fleet = Fleet(7850, {str(i): 1.0 + i for i in range(20)}, participation=0.25)
    for settings in ({"method": "dagc", "bytes": 64}, {"method": "dagc-r", "ratio": 0.01}, {"method": "none"}):
        plan = Plan(**settings)
        short, long = forecast(plan, fleet, 100), forecast(plan, fleet, 2000)
        assert long.bytes_up == pytest.approx(20 * short.bytes_up, rel=0.02)
        visits = [(found.changes - found.bytes_up) / (5 * found.rounds - 20) for found in (short, long)]
        assert visits[1] == pytest.approx(visits[0], rel=0.03)
        assert long.first_download == short.first_download == 20 * 31419
        assert long.round_seconds == pytest.approx(short.round_seconds, rel=0.2)


@pytest.mark.parametrize("size", [1, 3, 20, 10_000])
def test_a_budget_in_bytes_is_never_passed(size):
    fleet = Fleet(size, {"a": 9.0, "b": 1.0})
    found = forecast(Plan(method="dagc", bytes=12, first_model="drawn"), fleet, 50)
    assert 0 < found.bytes_up <= 50 * 2 * 12
    assert found.bytes_down <= 50 * 2 * 12


def test_the_slowest_client_and_the_links_make_the_time():
    fleet = Fleet(1000, {"a": 1.0, "b": 1.0}, up=8e3, down=8e4, compute_seconds=5.0)
    found = forecast(Plan(method="none"), fleet, 3)
    frame = 4019
    assert found.seconds == pytest.approx(3 * (5 + frame / 1e3 + frame / 1e4))
    assert found.exchange_seconds == pytest.approx(frame / 1e3 + frame / 1e4)
    assert found.largest_upload == frame


def test_the_table(tmp_path):
    (tmp_path / "clients.csv").write_text("client,size\nharbour,5000\n[/x],200\n[red]b,10\n", encoding="utf-8-sig")
    arguments = ("--sizes", tmp_path / "clients.csv", "--parameters", "11.2M", "--uplink", "2Mb/s", "--price", "$5/GB")
    found = planned(*arguments)
    assert [way["label"] for way in found["methods"]] == METHODS
    dagc, dense = found["methods"][0], found["methods"][-1]
    assert dense["bytes_total"] == pytest.approx(2 * 3 * 1000 * 44.8e6, rel=1e-3)
    assert dense["cost"] == pytest.approx(dense["bytes_total"] * 5e-9)
    assert dense["seconds"] == pytest.approx(1000 * 2 * 44.8e6 * 8 / 2e6, rel=1e-3)
    assert dense["bytes_up_per_client"] == pytest.approx(dense["bytes_up"] / 3)
    assert dagc["first_download"] == pytest.approx(3 * 44.8e6, rel=1e-3)
    assert dagc["bytes_up"] <= 3 * 1000 * usual_bytes(11_200_000)
    clients = {each["client"]: each["bytes_up"] for each in dagc["clients"]}
    assert clients["harbour"] > 2 * clients["[/x]"] > 2 * clients["[red]b"] > 0
    printed = run(*arguments)
    assert max(map(len, printed.splitlines())) <= 80
    for words in ("11,200,000 parameters, 3 clients, 2 Mb/s both ways", "cost, $", "[/x]", "[red]b", "harbour"):
        assert words in printed


@pytest.mark.parametrize(
    "arguments",
    [[], ["--clients", 5000, "--participation", 0.001, "--methods", "dagc:rounds=3000,none", "--price", "12345/kB"]],
)
def test_tables_fit_80_columns(arguments):
    assert max(map(len, run(*arguments).splitlines())) <= 80


def test_every_setting_can_be_given_for_all_and_for_one():
    found = planned(
        "--methods", "dagc,dagc-r:ratio=0.05,rounds=50,none", "--bytes", 90, "--values", "int8", "--rounds", 20
    )
    ways = found["methods"]
    assert [(way["label"], way["rounds"]) for way in ways] == [("dagc", 20), ("dagc-r, ratio 5 %", 50), ("none", 20)]
    assert ways[0]["settings"] == {"method": "dagc", "bytes": 90.0, "values": "int8"}
    assert ways[0]["bytes_up_per_client"] <= 20 * 90
    why = {choice["setting"]: choice for choice in found["choices"]}
    assert why["values"] == {"setting": "values", "chosen": "int8", "why": "as given"}
    assert (why["budget"]["chosen"], why["budget"]["why"]) == ("90 bytes per client and round", "as given")
    assert not any("same rounds" in line for line in found["verdict"])
    swept = planned("--methods", "top-k", "--ratio", "0.01,0.02", "--rounds", 5)["methods"]
    assert [way["label"] for way in swept] == ["top-k, ratio 1 %", "top-k, ratio 2 %"]
    assert swept[1]["bytes_up"] > 1.5 * swept[0]["bytes_up"]


def test_caps_and_switches():
    arguments = ("--sizes", "50,50,10", "--ratio", 0.1, "--parameters", 1000, "--rounds", 10, "--per-tensor")
    free, capped = (planned(*arguments, *more)["methods"] for more in ([], ["--caps", '{"0": 0.01, "1": 0.02}']))
    assert [way["settings"].get("caps") for way in capped[:2]] == [{"0": 0.01, "1": 0.02}] * 2
    assert free[0]["settings"]["per_tensor"] is True
    for before, after in zip(free[1]["clients"][:2], capped[1]["clients"][:2], strict=True):
        assert after["bytes_up"] < before["bytes_up"] / 2


def test_what_was_chosen_and_why():
    small, large = (Fleet(size, {"a": 1000.0, "b": 10.0}) for size in (7850, CODED_BELOW + 1))
    why = {choice.setting: choice for choice in choices(Plan(method="dagc"), small)}
    assert list(why) == ["budget", "allocation", "values", "frames", "overhead", "down", "step_ahead"]
    assert why["budget"].chosen == f"{usual_bytes(7850):g} bytes per client and round"
    assert why["allocation"].why.startswith("sizes differ 100:1; ")
    assert (why["values"].chosen, why["frames"].chosen) == ("sign", "coded")
    assert f"below {100 * SIGNS_BELOW:g} %" in why["values"].why
    assert f"{CODED_BELOW:,}" in why["frames"].why
    assert "31.4 kB of memory" in why["frames"].why
    assert "37 entries" in why["overhead"].why
    assert why["down"].why.startswith("44 bytes per visit")
    why = {choice.setting: choice for choice in choices(Plan(method="dagc", ratio=0.2), large)}
    assert (why["values"].chosen, why["frames"].chosen) == ("int8", "compact")
    assert why["budget"].why == "as given"
    many = Fleet(CODED_BELOW, {str(i): 1.0 for i in range(100)})
    why = {choice.setting: choice for choice in choices(Plan(method="dagc"), many)}
    assert "for the first 64 of 100 clients" in why["frames"].why
    assert why["allocation"].chosen == "the same for all"
    few = Fleet(7850, {str(i): 1.0 for i in range(500)}, participation=0.02)
    rarest = Fleet(7850, {str(i): 1.0 for i in range(10_000)}, participation=1e-4)
    ways = [({}, few), ({"bytes": 20_000}, small), ({}, rarest), ({"method": "stc", "ratio": 0.01}, few)]
    whys = [{one.setting: one for one in choices(Plan(**{"method": "dagc", **each}), fleet)} for each, fleet in ways]
    downs = [why["down"].why.partition(";")[0] for why in whys]
    assert downs == [
        "275 bytes per visit, because clients come rarely",
        "20,000 bytes per visit",
        "31,419 bytes per visit, because clients come rarely",
        "6.25 times what a client may send, because clients come rarely",
    ]


@pytest.mark.parametrize(
    ("budget", "size", "codec", "reason"),
    [
        (12, 134, "sign", "below 10 %"),
        (16, 134, "sign", "but fewer than 48"),
        (47, 134, "sign", "but fewer than 48"),
        (48, 134, "int8", "exact values matter"),
        (784, 7850, "sign", "below 10 %"),
        (785, 7850, "int8", "exact values matter"),
    ],
)
def test_signs_or_exact_values_as_chosen_and_as_explained(budget, size, codec, reason):
    plan = Plan(method="dagc", bytes=budget)
    assert plan.for_size(size).values == codec
    (found,) = [one for one in choices(plan, Fleet(size, {"a": 1000.0, "b": 10.0})) if one.setting == "values"]
    assert found.chosen == codec
    assert reason in found.why


def test_where_compression_is_not_worth_it():
    def words(rounds=100, **fleet):
        there = Fleet(7850, {"a": 1.0, "b": 1.0}, **fleet)
        return verdict("dagc", forecast(Plan(method="dagc"), there, rounds), forecast(Plan(method="none"), there, 100))

    fast = words(up=1e9, down=1e9, compute_seconds=60)
    assert fast[-1] == "Not worth it for time: dense frames take 0.50 ms of a round of 60.0 s. Worth it for bytes."
    assert "0.00084 %" in fast[0]
    assert "takes longer with any more rounds" in fast[1]
    assert f"dagc took up to {MORE_ROUNDS[1]} times" in fast[1]
    known = words(rounds=150, up=1e4, down=1e4)
    assert known[1:] == ["dagc takes 1.5 times the rounds of no compression here.", "Worth it for time and bytes."]
    assert words(rounds=1_000_000, up=1e4, down=1e4)[-1].startswith("Not worth it for time and bytes")
    assert words(up=1e4, down=1e4)[-1] == "Worth it for time and bytes."
    assert words(up=1e5, down=1e5, compute_seconds=1.0)[-1].startswith("May be worth it for time")


def test_a_large_budget_is_not_worth_it_at_all():
    fleet = Fleet(7850, {"a": 1.0, "b": 1.0}, compute_seconds=1.0)
    both = (forecast(plan, fleet, 100) for plan in (Plan(method="dagc-r", ratio=0.9), Plan(method="none")))
    assert verdict("dagc-r", *both)[-1].startswith("Not worth it for time and bytes: ")


def test_the_first_download_is_named_and_can_be_saved():
    assert any("40.0 MB of every row are the first download" in line for line in planned("--rounds", 10)["verdict"])
    drawn = planned("--rounds", 10, "--first-model", "drawn")
    assert not any("first download" in line for line in drawn["verdict"])
    assert {way["first_download"] for way in drawn["methods"]} == {0.0}


def test_the_verdict_counts_first_downloads():
    fleet = Fleet(7850, {"a": 1.0, "b": 1.0})
    sent, drawn = (Plan(method="none", first_model=first) for first in ("sent", "drawn"))
    ours = forecast(Plan(method="dagc"), fleet, 3)

    def times(dense):
        return verdict("dagc", ours, dense)[1]

    both, saved = forecast(sent, fleet, 3), forecast(drawn, fleet, 3)
    left = saved.bytes_up + saved.bytes_down - ours.first_download
    assert f" {brief(both.changes / ours.changes)} times as many before it sends more (the first" in times(both)
    assert f" {brief(left / ours.changes)} times as many" in times(saved)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan") / "compare"
    arguments = ["compare", "logistic@digits", "--methods", "dagc-r,none,dagc-a:threshold=0.01", "--ratio", 0.05]
    arguments += ["--seeds", 2, "--rounds", 60, "--evaluate-every", 3, "--jobs", 1, "--output", folder]
    assert CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False).exit_code == 0
    return folder


def test_rounds_and_bytes_of_runs(finished):
    found = planned("--runs", finished, "--accuracy", 0.7, "--uplink", "10kb/s", "--compute-seconds", 1)
    ways = {way["method"]: way for way in found["methods"]}
    assert (found["clients"], found["parameters"]) == (10, 650)
    assert len(ways) == 3
    for method, way in ways.items():
        runs = [path.parent for path in finished.rglob("config.toml") if f'method = "{method}"' in path.read_text()]
        assert len(runs) == 2
        rows = [[json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()] for path in runs]
        there = [next(row for row in lines if row.get("accuracy", 0) >= 0.7) for lines in rows]
        for name, key in (("rounds", "round"), ("bytes_up", "bytes_up"), ("bytes_down", "bytes_down")):
            assert way[name] == pytest.approx(sum(row[key] for row in there) / 2)
    frame = 2619
    assert ways["none"]["seconds"] == pytest.approx(round(ways["none"]["rounds"]) * (1 + 2 * 8 * frame / 1e4), rel=0.01)
    assert ways["dagc-a"]["seconds"] is None  # what thresholds send is not known before
    assert found["verdict"][0].startswith("dagc-r, ratio 5 % takes the fewest bytes to 70 %, ")
    printed = run("--runs", finished, "--accuracy", 0.7)
    assert "until 70 %, measured" in printed
    assert max(map(len, printed.splitlines())) <= 80
    never = run("--runs", finished, "--accuracy", 1)
    assert "0 of 2 seeds got there" in never
    assert "No method reached 100 % with all seeds." in never


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--uplink", "8.4"], r"--uplink is '8.4': 8.4 of what\? Write 8.4Mb/s for bits, 8.4MB/s for bytes"),
        (["--downlink", "200k"], r"200k of what\? Write 200kb/s for bits"),
        (["--uplink", "fast"], "'fast': write a rate with its unit"),
        (["--uplink", "0Mb/s"], "--uplink is 0Mb/s: it must be above 0"),
        (["--price", "5"], r"5 for what\? Write 5/GB or 5/MB"),
        (["--price", "cheap"], "'cheap': write a price and what it is for"),
        (["--price", "-5/GB"], "'-5/GB': write a price and what it is for"),
        (["--page", "/"], "cannot be written to /, which is a folder: name a file"),
        (["--parameters", "many"], "'many': write a number"),
        (["--parameters", "8Mb/s"], "'8Mb/s': write a number"),
        (["--parameters", "0"], "it must be at least 1"),
        (["--parameters", "1e30"], r"at most 2\^48"),
        (["--sizes", "5,x"], "size 'x'"),
        (["--sizes", "5,-3"], "weight -3"),
        (["--sizes", "missing.csv"], r"missing\.csv cannot be read"),
        (["--sizes", "5,3", "--clients", "2"], "--sizes lists the clients"),
        (["--compute-seconds", "-5"], "compute_seconds is"),
        (["--compute-seconds", "measured"], "before training, give seconds"),
        (["--participation", "0"], "participation is"),
        (["--ratio", "3"], "ratio is 3"),
        (["--threshold", "0.1", "--methods", "dagc-a"], "depends on the gradients: give a ratio or bytes"),
        (["--methods", "dagc:local-steps=5"], "local_steps does not affect the bytes"),
        (["--methods", "dagcr"], "did you mean 'dagc-r'"),
        (["--caps", '{"9": 0.1}', "--clients", "3"], "no client for the cap of '9'"),
        (["--accuracy", "0.9"], "only runs show when it is reached"),
        (["--runs", "nowhere"], "give the accuracy to reach"),
        (["--runs", "nowhere", "--accuracy", "0.9", "--clients", "3"], "--clients is known from the runs in --runs"),
        (["--runs", "nowhere", "--accuracy", "0.9"], "there is no folder nowhere"),
        (["--methods", "top-k", "--rate", "1 kB/training", "--page", "plan.html"], "for which the page has no slider"),
        (["--methods", "none", "--page", "missing/plan.html/x"], "the page cannot be written"),
    ],
)
def test_bad_input_is_refused(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "missing").write_text("a file")
    with pytest.raises(InvalidInput, match=says):
        run(*arguments)


def test_two_clients_of_one_name_are_refused(tmp_path):
    (tmp_path / "clients.csv").write_text("client,size\na,5\na,3\n")
    with pytest.raises(InvalidInput, match="two clients are called 'a'"):
        run("--sizes", tmp_path / "clients.csv")


@pytest.mark.parametrize(
    ("text", "bits"), [("8.4Mb/s", 8.4e6), ("200 kbit/s", 2e5), ("1.5MB/s", 12e6), ("2Gbps", 2e9), ("300b/s", 300)]
)
def test_rates_have_units(text, bits):
    assert link_rate(text, "--uplink") == pytest.approx(bits)


@pytest.mark.parametrize(
    ("text", "found"), [("10/GB", (1e-8, "")), ("$0.1/MB", (1e-7, "$")), ("5 EUR/GB", (5e-9, "EUR"))]
)
def test_prices_have_units(text, found):
    amount, currency = price(text, "--price")
    assert (amount, currency) == (pytest.approx(found[0]), found[1])
