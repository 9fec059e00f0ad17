"""Coded frames in a federation where everything goes wrong: memories agree or start again, and no value is lost."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dagc import InvalidInput
from dagc.protocol import Replica, Uplink
from tests.helpers.states import copied
from tests.wire.histories import plain, state
from tests.wire.lossy import CLIENT_FAULTS, NAMES, PLANS, SERVER_FAULTS, SHAPES, Network


@pytest.mark.parametrize("plan", PLANS)
@given(
    rounds=st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(NAMES), st.sampled_from(CLIENT_FAULTS), max_size=3),
            st.sampled_from([None] * 6 + SERVER_FAULTS),
        ),
        min_size=3,
        max_size=16,
    )
)
@settings(max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking would take minutes
def test_memories_agree_or_start_again_and_nothing_is_lost_whatever_goes_wrong(plan, rounds):
    """The network checks itself in every step."""
    network = Network(plan)
    for faults, server_fault in rounds:
        network.round(faults, server_fault)
    network.round()  # settles what is pending, and may still be refused
    network.round()
    network.round()
    since = len(network.log)
    network.round()
    for name in NAMES:
        assert "refused" not in network.outcomes(name, since)
        memory, other = network.clients[name].uplink.memory, network.server.receiver.memories.by_name.get(name)
        network.clients[name].uplink.settle(network.server.members[name].accepted_round)
        if memory is not None and other is not None and memory.frames == other.frames:
            assert state(memory) == state(other)


def broadcast(server):
    """What the server remembers of its broadcasts."""
    return plain(server.downlink.state_dict()["budgeted"]["entries"]["memory"])


def warm(plan="same"):
    """A network in which coded frames are in use, and everybody remembers some."""
    network = Network(plan)
    for _ in range(6):
        network.round()
    assert min(network.coded.values()) >= 3
    return network


def undisturbed(outcomes):
    """No frame was refused, and some were coded; where another frame is smaller, that is sent."""
    return "coded" in outcomes and set(outcomes) <= {"coded", "read"}


def after(fault, plan="same", rounds=4):
    """The uploads of client 0 from a fault on, the other clients being undisturbed; and the network."""
    network = warm(plan)
    since = len(network.log)
    network.round({"0": fault})
    for _ in range(rounds):
        network.round()
    for name in "12":
        assert undisturbed(network.outcomes(name, since))
    return network.outcomes("0", since), network


def agree(network, name="0"):
    client, other = network.clients[name], network.server.receiver.memories.by_name[name]
    client.uplink.settle(network.server.members[name].accepted_round)
    return client.uplink.memory.frames > 0 and state(client.uplink.memory) == state(other)


@pytest.mark.parametrize("plan", ["lossless", "same", "exact"])
@pytest.mark.parametrize(
    "fault",
    [
        "absent",
        "order lost",
        "upload lost",
        "not closed",
        "duplicated",
        "restarted",
        "download repeated",
    ],
)
def test_memories_stay_the_same(plan, fault):
    """Nobody has counted the frame, or both have: no frame is refused, nothing starts again."""
    outcomes, network = after(fault, plan)
    assert undisturbed(outcomes)
    assert agree(network)
    assert network.server.receiver.memories.by_name["0"].frames == network.counted["0"]


def test_a_damaged_frame_costs_the_memory_and_nothing_else():
    outcomes, network = after("damaged")
    assert undisturbed(outcomes)
    assert agree(network)
    assert network.server.receiver.memories.by_name["0"].frames == outcomes.count("coded")


def test_a_late_frame_costs_nothing_if_the_right_one_arrives():
    outcomes, network = after("late")
    assert undisturbed(outcomes)
    assert agree(network)
    assert network.server.receiver.memories.by_name["0"].frames == network.counted["0"]


def test_a_client_that_forgot_everything_starts_again():
    outcomes, network = after("forgotten")
    assert "refused" not in outcomes
    assert agree(network)
    assert network.server.receiver.memories.by_name["0"].frames == outcomes.count("coded") <= 5


def test_a_client_with_an_old_backup_starts_again():
    """It has counted fewer frames than the server, and sees that in its order."""
    outcomes, network = after("old backup")
    assert "refused" not in outcomes
    assert agree(network)
    assert network.server.receiver.memories.by_name["0"].frames == outcomes.count("coded") <= 5


def test_a_backup_with_as_many_frames_but_others_is_refused_once():
    """Its pending upload was lost, but a later one was taken: it counts the one in place of the other."""
    network = warm()
    network.round({"0": "upload lost"})
    backup = copied(network.clients["0"])
    network.round()
    network.replace("0", backup)
    since = len(network.log)
    for _ in range(4):
        network.round()
    outcomes = network.outcomes("0", since)
    assert outcomes[:2] == ["full model", "refused"]
    assert undisturbed(outcomes[2:])
    assert agree(network)


def test_a_server_with_an_older_state_starts_again_with_every_client():
    network = warm()
    since = len(network.log)
    network.round({}, "older state")
    for _ in range(4):
        network.round()
    for name in NAMES:
        outcomes = network.outcomes(name, since)
        assert outcomes.count("refused") <= 1
        assert outcomes.count("full model") == 1
        assert undisturbed(outcomes[2:])
        assert agree(network, name)


def test_a_server_that_restarts_between_rounds_changes_nothing():
    network, undisturbed = warm(), warm()
    for _ in range(4):
        network.round({}, "restarted")
        undisturbed.round()
    assert network.log == undisturbed.log
    for name in NAMES:
        assert state(network.server.receiver.memories.by_name[name]) == state(
            undisturbed.server.receiver.memories.by_name[name]
        )


@pytest.mark.parametrize("fault", ["download damaged", "download out of order"])
def test_a_client_that_is_out_of_sync_gets_the_full_model(fault):
    outcomes, network = after(fault)
    assert outcomes[0] == "full model"
    assert outcomes.count("full model") == 1
    assert agree(network)
    memory = broadcast(network.server)
    for name in NAMES:
        network.download(name, None)
        assert state(network.clients[name].replica.memory) == memory


def test_a_client_that_joins_late_hears_what_the_others_hear():
    network = Network("same")
    for _ in range(5):
        network.round({"2": "absent"})
    for _ in range(3):
        network.round()
    for name in NAMES:
        network.download(name, None)
        assert state(network.clients[name].replica.memory) == broadcast(network.server)
    assert agree(network, "2")


def test_a_download_for_somebody_who_is_not_known_costs_the_others_nothing():
    alone, watched = Network("same"), Network("same")
    for _ in range(8):
        alone.round()
        onlooker = Replica(SHAPES)
        for version in (-1, None):
            assert torch.equal(onlooker.receive(watched.server.introduction(version)), watched.server.model)
        watched.round()
    assert broadcast(alone.server)["frames"] > 3
    assert alone.downloads == watched.downloads


def test_who_was_not_known_when_it_downloaded_hears_what_the_others_hear():
    network = Network("same")
    for _ in range(5):
        network.round({"2": "absent"})
    download = network.server.introduction()
    network.clients["2"].replica.receive(download)
    network.server.arrived("2", download)
    since = len(network.log)
    for _ in range(3):
        network.round()
    assert "full model" not in network.outcomes("2", since)
    for name in NAMES:
        network.download(name, None)
        assert state(network.clients[name].replica.memory) == broadcast(network.server)


def test_a_client_that_was_away_for_long_still_agrees():
    network = warm()
    for _ in range(5):
        network.round({"0": "absent"})
    since = len(network.log)
    for _ in range(3):
        network.round()
    assert undisturbed(network.outcomes("0", since))
    assert agree(network)


def test_a_state_with_a_coded_upload_but_without_its_memory_is_refused():
    network = warm()
    saved = copied(network.clients["0"].uplink)
    assert saved["counts"]
    uplink = Uplink(network.server.plan.for_clients(), SHAPES)
    with pytest.raises(InvalidInput, match="the memory is missing"):
        uplink.load_state_dict({**saved, "memory": None})
    assert uplink.sent_round == 0
