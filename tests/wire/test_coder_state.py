"""The coder's memory: what changes it, what it remembers, and which state is refused."""

import contextlib
import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagc import InvalidInput, MalformedPayload, decode
from dagc.wire import Memory, coder
from tests.wire.histories import (
    coded_frame,
    histories,
    shapes,
    signed,
    size_of,
    state,
)


@given(shapes(), st.booleans(), st.booleans(), st.data())
@settings(max_examples=60)
def test_reading_and_writing_leave_memory_as_it_is(shapes, clocks, signs, data):
    size = size_of(shapes)
    memory = Memory(shapes, clocks, signs)
    for sparse, most in data.draw(histories(size, signs)):
        before = state(memory)
        section = memory.write(sparse, most)
        memory.write(sparse, most, limit=max(0, len(section) - 1))
        memory.read(section, most)
        with contextlib.suppress(MalformedPayload):
            memory.read(section[:-1] + b"\x55", most)
        memory.read(Memory(shapes, clocks, signs).write(sparse, most), most, first=True)
        assert state(memory) == before
        memory.learn(sparse)


@given(shapes(), st.booleans(), st.booleans(), st.data())
@settings(max_examples=60)
def test_it_does_not_matter_for_a_memory_what_was_done_before_a_frame_is_counted(shapes, clocks, signs, data):
    """Written; read; neither, as after a restart; or something else was written and read meanwhile."""
    frames = data.draw(histories(size_of(shapes), signs))
    written, read, restarted, distracted = (Memory(shapes, clocks, signs) for _ in range(4))
    for sparse, most in frames:
        section = written.write(sparse, most)
        entries, _ = read.read(section, most)
        restarted = Memory.restored(shapes, restarted.state_dict())
        distracted.write(sparse, most)
        other, expected = data.draw(st.sampled_from(frames))
        distracted.read(distracted.write(other, expected), expected)
        for memory in (written, restarted, distracted):
            memory.learn(sparse)
        read.learn(entries)
        assert state(written) == state(read) == state(restarted) == state(distracted)


@given(shapes(), st.booleans(), st.data())
@settings(max_examples=40)
def test_a_frame_of_an_empty_memory_empties_the_receivers_when_it_is_counted(shapes, clocks, data):
    size = size_of(shapes)
    receiver, sender = Memory(shapes, clocks), Memory(shapes, clocks)
    for sparse, _ in data.draw(histories(size, True)):
        receiver.learn(sparse)
    for sparse, most in data.draw(histories(size, True)):
        first = not sender.frames
        frame = coded_frame(sparse, "sign", 0, sender, most)
        receiver.learn(decode(frame, size, memory=receiver, most=most))
        sender.learn(sparse)
        assert state(receiver) == state(sender)
        assert frame[0] >> 4 == (9 if first else 8)


@given(shapes(), st.booleans(), st.booleans(), st.data())
@settings(max_examples=30)
def test_a_restored_memory_goes_on_in_the_same_way(shapes, clocks, signs, data):
    memory = Memory(shapes, clocks, signs)
    for sparse, _ in data.draw(histories(size_of(shapes), signs)):
        memory.learn(sparse)
    saved = copy.deepcopy(memory.state_dict())
    restored = Memory.restored(shapes, saved)
    assert state(restored) == state(memory)
    for value in saved.values():
        if isinstance(value, np.ndarray):
            value[:] = 77  # what was given is not held on to
    for sparse, most in data.draw(histories(size_of(shapes), signs)):
        assert restored.write(sparse, most) == memory.write(sparse, most)
        restored.learn(sparse)
        memory.learn(sparse)
        assert state(restored) == state(memory)


def learned():
    """A memory that has counted three frames."""
    memory = Memory([(3, 4), 5])
    for start in range(3):
        memory.learn(signed(17, np.arange(start, 17, 3), np.arange(start, 17, 3) % 2, 0x3C00))
    return memory


JUNK = {
    "no tables": lambda state: state.pop("tables"),
    "no clocks": lambda state: state.pop("last"),
    "no array": lambda state: state.update(tables=[1, 2]),
    "floats": lambda state: state.update(tables=state["tables"].astype(float)),
    "short": lambda state: state.update(columns=state["columns"][:-1]),
    "two dimensions": lambda state: state.update(last=state["last"][:, None]),
    "no fingerprint": lambda state: state.pop("fingerprint"),
    "words": lambda state: state.update(frames="many"),
    "nothing": lambda state: state.update(now=None),
    "negative frames": lambda state: state.update(frames=-1),
    "too large a fingerprint": lambda state: state.update(fingerprint=1 << 32),
    "an infinite mean": lambda state: state.update(mean=0x7F80),
    "a clock beyond its end": lambda state: state.update(now=65536),
    "a clock before its beginning": lambda state: state.update(now=0),
    "times in the future": lambda state: state.update(now=2),
    "a column in the future": lambda state: state["columns"].__setitem__(1, 60_000),
    "a coordinate in the future": lambda state: state["last"].__setitem__(1, 60_000),
    "frames without a fingerprint": lambda state: state.update(fingerprint=0),
    "a fingerprint without frames": lambda state: state.update(frames=0),
    "a weight of 13 octaves": lambda state: state["tables"].__setitem__(0, 13 << 16),
    "a weight of -13 octaves": lambda state: state["tables"].__setitem__(0, -13 << 16),
    "nothing seen": lambda state: state["tables"].__setitem__(56 + 10, 0),
    "a chance of one": lambda state: state["tables"].__setitem__(2 * 56, 65536),
    "a chance of none": lambda state: state["tables"].__setitem__(2 * 56 + 50, 0),
    "too many trials": lambda state: state["tables"].__setitem__(2 * 56 + 51, 256),
    "a lean of 9": lambda state: state["tables"].__setitem__(-1, 9),
    "a lean of -9": lambda state: state["tables"].__setitem__(-4, -9),
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_junk_in_a_saved_memory_is_refused(junk):
    memory = learned()
    saved = copy.deepcopy(memory.state_dict())
    assert len(saved["tables"]) == 2 * 56 + 2 * 51 + 4  # 52 contexts and 4 rows: what the places above rely on
    assert state(Memory.restored([(3, 4), 5], saved)) == state(memory)
    junk(saved)
    with pytest.raises(InvalidInput):
        Memory.restored([(3, 4), 5], saved)


def test_a_memory_of_another_model_is_refused():
    memory = learned()
    for other in ([(4, 3), 5], [17], [(3, 4), 6]):
        with pytest.raises(InvalidInput):
            Memory.restored(other, memory.state_dict())


def test_a_model_without_entries_or_with_too_many_has_no_memory():
    with pytest.raises(InvalidInput, match="without entries"):
        Memory([(3, 0)])
    with pytest.raises(InvalidInput, match="at most"):
        Memory([coder.MOST_SIZE + 1], clocks=False)
