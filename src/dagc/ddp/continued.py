"""A warning to scripts that resume their model and optimizer, but not what dagc keeps."""

import os
import weakref
from functools import cache
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dagc.ddp.rank import log

_waiting: weakref.WeakKeyDictionary[Any, tuple[weakref.ref[Tensor], str]] = weakref.WeakKeyDictionary()
"""Hooks and local steps before the first step of their optimizer: a parameter of it, and what to do."""


def warn_if_continued(owner: Any, parameter: Tensor, remedy: str) -> None:
    """Warn in the optimizer's first step if it continues an older training, but `owner.resumed` is false."""
    _watch_optimizers()
    _waiting[owner] = weakref.ref(parameter), remedy


@cache
def _watch_optimizers() -> None:
    """Once per process: torch does not let a hook remove itself."""
    register_optimizer_step_pre_hook(_check_first_step)


def _check_first_step(optimizer: Optimizer, *_: Any) -> None:
    for owner, (reference, remedy) in list(_waiting.items()):
        parameter = reference()
        parameters = (each for group in optimizer.param_groups for each in group["params"])
        if parameter is None or not any(each is parameter for each in parameters):
            continue
        del _waiting[owner]
        state = optimizer.state.get(parameter, {})
        continued = bool(state) and float(state.get("step", 1)) > 0  # some have a state from the beginning
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")
        if (continued or restarted) and not owner.resumed:
            why = "the optimizer has a state" if continued else "torchrun has restarted this process"
            log.warning(
                "%s, but dagc begins without its own: what this rank had not sent is lost; save state_dict() with the "
                "optimizer's, and %s", why, remedy,
            )  # fmt: skip
