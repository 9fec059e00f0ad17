"""How many entries a budget is, how they are shared out, and how many are worth a frame."""

import numpy as np
from numpy.typing import NDArray

from dagc.allocation import apportion, apportion_bytes
from dagc.errors import InvalidInput
from dagc.policies.policy import Setting
from dagc.wire import payload_size

__all__ = ["budget_in_entries", "shared_out", "worth_a_frame"]


def budget_in_entries(setting: Setting, clients: int, bytes: int | None) -> float:
    """How many entries a round's budget is for so many clients; if it is in bytes, about."""
    if setting.ratio is not None:
        return float(int(setting.ratio * clients * setting.size * (1 + 1e-12) + 1e-9))
    assert bytes is not None
    one = apportion_bytes(
        np.ones(1), bytes, np.array([setting.size]), setting.size, setting.values, compact=setting.compact
    )
    return 0.9 * float(one[0])  # of one frame; several take more


def shared_out(
    setting: Setting, quota: NDArray[np.float64], most: NDArray[np.int64], clients: int, bytes: int | None
) -> NDArray[np.int64]:
    """Integers in proportion to the quota, none above its `most`, that meet a round's budget for so many clients."""
    if setting.ratio is None:
        assert bytes is not None
        return apportion_bytes(quota, bytes, most, setting.size, setting.values, compact=setting.compact)
    total = min(int(budget_in_entries(setting, clients, None)), int(most.sum()))
    if most[quota > 0].sum() < total:
        quota = np.maximum(quota, 1e-9 * quota.max())
    return apportion(quota, total, most, least=0)


def worth_a_frame(setting: Setting, overhead: float) -> int:
    """The fewest entries of which a frame is not more than this part something else than entries; at most 1,024."""
    if not 0 < overhead <= 1:
        raise InvalidInput(f"overhead must be above 0 and at most 1, not {overhead:g}")
    counts = np.arange(1, min(setting.size, 1024) + 1)
    taken = payload_size(setting.size, counts, setting.values, compact=setting.compact)
    empty = 2 * int(taken[0]) - int(taken[min(1, len(taken) - 1)])
    enough = counts[overhead * taken >= empty]
    return int(enough[0] if len(enough) else counts[-1])
