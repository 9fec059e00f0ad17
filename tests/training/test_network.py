"""The network's clock."""

import pytest

from dagc import InvalidInput
from dagc.network import constant, make_network, random, trace


def test_a_constant_link_takes_bits_over_rate_and_latency():
    network = constant(up=2.0, down=10.0, latency=0.25)
    assert network.seconds(0, "up", 500_000, start=3.0) == pytest.approx(0.25 + 2.0)
    assert network.seconds(7, "down", 500_000, start=0.0) == pytest.approx(0.25 + 0.4)


def test_a_transfer_goes_on_at_the_new_rate_when_the_rate_changes(tmp_path):
    (tmp_path / "links.csv").write_text("up,down\n8,80\n4,40\n")
    network = trace(file=str(tmp_path / "links.csv"))
    assert network.seconds(0, "up", 1_000_000, start=0.0) == pytest.approx(1.0)
    assert network.seconds(0, "up", 1_000_000, start=0.5) == pytest.approx(0.5 + 1.0)
    assert network.seconds(0, "up", 3_000_000, start=0.0) == pytest.approx(1 + 1 + 1 + 1)
    assert network.seconds(0, "down", 1_000_000, start=1.0) == pytest.approx(0.2)


def test_a_trace_with_clients_gives_each_its_own_rows(tmp_path):
    (tmp_path / "links.csv").write_text("client,up,down\n0,8,8\n1,1,1\n0,8,8\n")
    network = make_network(f"trace:file={tmp_path / 'links.csv'}")
    assert network.seconds(0, "up", 1_000_000, 0.0) == pytest.approx(1.0)
    assert network.seconds(1, "up", 1_000_000, 0.0) == pytest.approx(8.0)
    with pytest.raises(InvalidInput, match="no rows for client 2"):
        network.seconds(2, "up", 1, 0.0)


@pytest.mark.parametrize("period", [0.1, 0.3, 0.7, 3.3])
def test_a_period_that_is_no_binary_number_ends_like_any_other(period):
    network = make_network(f"random:period={period},spread=0")
    assert network.seconds(0, "up", 50_000_000, start=1e6) == pytest.approx(8 * 50 / 8.4)


def test_random_links_have_the_mean_change_and_are_seeded():
    network = random(mean=8.4, period=10, seed=1)
    rates = [network.rate(client, "up", slot) for client in range(50) for slot in range(100)]
    assert sum(rates) / len(rates) == pytest.approx(8.4e6, rel=0.03)
    assert len(set(rates)) == len(rates)
    assert rates[:9] == [random(mean=8.4, period=10, seed=1).rate(0, "up", slot) for slot in range(9)]
    assert rates[0] != random(seed=2).rate(0, "up", 0)
    assert network.seconds(0, "up", 1_000_000, 5.0) > 0


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("pigeon", "there is no network 'pigeon': choose one of constant, random, trace"),
        ("constant:up=0", "up must be above 0"),
        ("constant:up=fast", "up is 'fast'; it must be a number"),
        ("constant:speed=1", "speed"),
        ("random:spread=9", "spread"),
        ("constant:latency=-1", "latency"),
        ("trace:file=missing.csv", "missing.csv cannot be read"),
        ("trace", "file"),
    ],
)
def test_bad_networks_are_refused(spec, says):
    with pytest.raises(InvalidInput, match=says):
        make_network(spec)


def test_spaces_and_a_byte_order_mark_do_not_matter(tmp_path):
    (tmp_path / "links.csv").write_text("up,down\n8,8\n", encoding="utf-8-sig")
    assert (
        make_network(f"trace: latency = 0.5, file = {tmp_path / 'links.csv'}").seconds(0, "up", 1_000_000, 0.0) == 1.5
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"up,down\n", b"up,down\n1,x\n", b"up\n1\n", b"up,down\n0,1\n", b"up,down\n1,nan\n", b"up,down\n\xff"],
)
def test_bad_traces_are_refused(tmp_path, content):
    (tmp_path / "links.csv").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"links\.csv"):
        trace(file=str(tmp_path / "links.csv"))
