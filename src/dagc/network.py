"""A simulated network: how long transfers take over links that differ between clients and change over time.

It gives the time that a federation on such links would have taken, however long this computer takes.
"""

import csv
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from dagc.draws import scramble
from dagc.errors import InvalidInput
from dagc.spec import read_spec

__all__ = ["NETWORKS", "Network", "constant", "make_network", "random", "trace"]

Direction = Literal["up", "down"]
LinkRate = Callable[[int, Direction, int], float]
"""`(client, direction, slot) -> bits per second` during the slot of that number."""


class Network(NamedTuple):
    """Links whose rate is constant within slots of time.

    Attributes:
        rate: The rate of a client's link in a slot, in bits per second.
        slot: The length of a slot in seconds; infinity if the rate never changes.
        latency: Seconds for each transfer, before its first byte arrives.
    """

    rate: LinkRate
    slot: float
    latency: float

    def seconds(self, client: int, direction: Direction, bytes: float, start: float) -> float:
        """How long a transfer that starts at `start` takes.

        Example:
            >>> constant(up=8.0, down=80.0, latency=0.05).seconds(client=3, direction="up", bytes=1_000_000, start=0)
            1.05
        """
        bits, now = 8.0 * bytes, start + self.latency
        number = 0 if math.isinf(self.slot) else int(now // self.slot)
        while True:
            rate, end = self.rate(client, direction, number), (number + 1) * self.slot
            room = rate * max(0.0, end - now)
            if bits <= room:
                return now + bits / rate - start
            # The slot's number is counted, not computed from the time: that may round to the slot just ended.
            bits, now, number = bits - room, max(now, end), number + 1


def constant(*, up: float = 8.4, down: float = 8.4, latency: float = 0.0) -> Network:
    """The same rates, in Mb/s, for all clients at all times."""
    _check(latency, up=up, down=down)
    rates = {"up": up * 1e6, "down": down * 1e6}
    return Network(lambda client, direction, slot: rates[direction], math.inf, latency)


def random(
    *,
    mean: float = 8.4,
    spread: float = 0.5,
    down: float = 1.0,
    period: float = 10.0,
    latency: float = 0.0,
    seed: int = 0,
) -> Network:
    """Log-normal rates that change every `period` seconds, independently for each client.

    The mean uplink is in Mb/s, the downlink so many times faster, and `spread` the standard deviation of the rate's
    logarithm.
    """
    _check(latency, mean=mean, down=down, period=period)
    if not 0 <= spread <= 2:
        raise InvalidInput(f"spread must be from 0 to 2, not {spread}")
    factor = {"up": 1.0, "down": down}

    @lru_cache(maxsize=100_000)
    def rate(client: int, direction: Direction, slot: int) -> float:
        key = scramble(scramble(seed, client), 2 * slot + (direction == "down"))
        u, v = (scramble(key, i) / 2.0**64 for i in (0, 1))
        normal = math.sqrt(-2 * math.log(1 - u)) * math.cos(2 * math.pi * v)
        return mean * 1e6 * factor[direction] * math.exp(spread * normal - spread**2 / 2)

    return Network(rate, period, latency)


def trace(*, file: str, latency: float = 0.0) -> Network:
    """Rates from a CSV file with the columns `up` and `down` in Mb/s, one row per second, repeated at its end.

    Client i starts at row 97·i, so that clients differ. With a column `client`, each has its own rows instead.
    """
    _check(latency)
    rows: dict[int, list[dict[Direction, float]]] = {}
    try:
        with Path(file).open(newline="", encoding="utf-8-sig") as lines:
            for number, row in enumerate(csv.DictReader(lines), start=2):
                try:
                    rates: dict[Direction, float] = {"up": float(row["up"]) * 1e6, "down": float(row["down"]) * 1e6}
                    client = int(row.get("client") or -1)
                except (KeyError, TypeError, ValueError):
                    raise InvalidInput(
                        f"{file}, line {number}: needs numbers in the columns up and down, has {row}"
                    ) from None
                if not all(1e-3 <= value <= 1e18 for value in rates.values()):
                    raise InvalidInput(f"{file}, line {number}: rates must be from 1e-9 to 1e12, not {row}")
                rows.setdefault(client, []).append(rates)
    except OSError as error:
        raise InvalidInput(f"the trace {file} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"the trace {file} cannot be read as CSV: {error}") from error
    if not rows:
        raise InvalidInput(f"the trace {file} has no rows")

    def rate(client: int, direction: Direction, slot: int) -> float:
        if -1 in rows:
            return rows[-1][(slot + 97 * client) % len(rows[-1])][direction]
        if client not in rows:
            raise InvalidInput(f"the trace {file} has no rows for client {client}")
        return rows[client][slot % len(rows[client])][direction]

    return Network(rate, 1.0, latency)


NETWORKS: dict[str, Callable[..., Network]] = {"constant": constant, "random": random, "trace": trace}
"""Every kind of network by name."""


def make_network(spec: str) -> Network:
    """Parse a network: `constant:up=8.4,down=50`, `random:mean=8.4,seed=1`, `trace:file=links.csv`.

    Example:
        >>> make_network("constant:up=1,latency=0.1").latency
        0.1
    """
    function, options = read_spec(spec, "network", NETWORKS)
    return function(**options)


def _check(latency: float, **rates: float) -> None:
    for name, rate in rates.items():
        if not 1e-9 <= rate <= 1e12:
            raise InvalidInput(f"{name} must be above 0, from 1e-9 to 1e12, not {rate}")
    if not 0 <= latency <= 1e9:
        raise InvalidInput(f"latency must be from 0 to 1e9 seconds, not {latency}")
