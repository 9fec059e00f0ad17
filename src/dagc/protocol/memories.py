"""What a server remembers of each client's coded uploads, within a bound in bytes."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

from dagc.protocol.messages import Order, Upload
from dagc.sparse import Sparse
from dagc.state import Stateful, named, plain
from dagc.wire import Memory
from dagc.wire.shapes import Shapes

CLOCKS = 1 << 26
"""Bytes that the clocks of all memories may take. Clients that join after that get a memory without clocks."""
MEMORIES = 1 << 28
"""Bytes that all memories may take without their clocks. Those of the clients away for longest are dropped."""


class Memories(Stateful):
    """One `Memory` per client, by name. The clients seen most recently come last.

    A memory changes only with uploads that were accepted. If a client's frame cannot be read with its memory, and no
    readable one follows in the same round, the memory is dropped: the next order then says 0 frames, and the client
    starts again, too.
    """

    def __init__(self, shapes: Shapes, values: str) -> None:
        self._signs = values == "sign"
        self._shapes = shapes
        empty = Memory(shapes, clocks=False)
        self._room = max(1, MEMORIES // empty.nbytes)
        self._clock_bytes = 4 * empty.size
        self._forget({})

    def _forget(self, memories: dict[str, Memory]) -> None:
        """Forget all but these, and the round."""
        self.by_name = memories
        self._present: set[str] = set()
        self.unread: set[str] = set()  # those whose coded frame did not fit their memory

    def counted(self, present: Collection[str]) -> dict[str, tuple[bool, int]]:
        """A round begins with these clients: whether each one's memory has clocks, and how many frames it counted."""
        self._present |= set(present)
        counts, clocks = {}, CLOCKS // self._clock_bytes - len(self.by_name)
        for name in present:
            memory = self.by_name.pop(name, None)
            if memory is None:  # it is created when the first frame arrives
                counts[name], clocks = (clocks > 0, 0), clocks - 1
            else:
                self.by_name[name] = memory
                counts[name] = memory.clocks, memory.frames
        return counts

    def of(self, name: str, order: Order) -> Memory:
        """The memory of a client; if there is none, an empty one, which is kept if there is room.

        Only memories of clients that are not present make room. Otherwise the clients of a round would drive each
        other out, and the server would refuse their frames.
        """
        if name in self.by_name:
            return self.by_name[name]
        memory = Memory(self._shapes, order.clocks, self._signs)
        while len(self.by_name) >= self._room:
            longest_away = next(iter(self.by_name))
            if longest_away in self._present:
                return memory
            del self.by_name[longest_away]
        self.by_name[name] = memory
        return memory

    def close(self, accepted: Iterable[Upload]) -> None:
        """The round is over: count these uploads, and drop memories that did not fit."""
        for upload in accepted:
            self.unread.discard(upload.client)
            if upload.frame and upload.client in self.by_name and isinstance(upload.update, Sparse):
                self.by_name[upload.client].learn(upload.update)
        self._forget({name: memory for name, memory in self.by_name.items() if name not in self.unread})

    def state_dict(self) -> dict[str, Any]:
        return dict(plain(self.by_name))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._forget(named(partial(Memory.restored, self._shapes))(state))
