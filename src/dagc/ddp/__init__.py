"""torch.distributed: ranks exchange payloads instead of dense gradients or models. Every rank runs the server's half.

In every step, as a communication hook of DDP: `hook = dagc.ddp.register(model, examples=len(dataset), ratio=0.001)`.
After many steps, around a plain module: `local = dagc.ddp.LocalSteps(model, examples=len(dataset), ratio=0.01)`.
"""

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from dagc.ddp.exchange import Exchanged
from dagc.ddp.hook import Hook
from dagc.ddp.local_steps import LocalSteps
from dagc.protocol import Plan

__all__ = ["Exchanged", "Hook", "LocalSteps", "register"]


def register(
    model: DistributedDataParallel,
    *,
    examples: int,
    plan: Plan | None = None,
    rounds: int | None = None,
    scaler: torch.amp.GradScaler | None = None,
    **settings: Any,
) -> Hook:
    """Compress what this model's ranks send each other. Call it on every rank; only `examples` may differ.

    From then on the gradient after `backward()` is Σ p_i · sparse_i, the same bits on every rank, where p_i is the
    rank's share of all examples (DDP alone would weight all ranks equally).

    Args:
        model: A model wrapped in `DistributedDataParallel`, before its first backward pass.
        examples: How many training examples this rank holds. A rank with 0 takes part, but contributes nothing.
        plan: The plan, instead of its settings.
        rounds: How many steps the training has, for a rate per training.
        scaler: The `GradScaler` of mixed precision, if there is one. Residuals are then kept unscaled, and a step in
            which any rank's gradient is not finite becomes infinite on all, so that all scalers skip it.
        settings: The plan's settings. A threshold is in the units of the gradient; a rank's name is its number, `"0"`.

    Returns:
        The hook, for `hook.last` and for checkpoints.

    Raises:
        InvalidInput: On all ranks, if the arguments cannot be used or differ between ranks.

    Example:
        >>> import torch, dagc.ddp
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 10))
        >>> hook = dagc.ddp.register(model, examples=5000, ratio=0.01)      # 40 of 4,040 bytes
        >>> model(torch.randn(32, 100)).square().mean().backward()
        >>> hook.last.round, hook.last.payload <= 40, any(p.grad.any() for p in model.parameters())
        (1, True, True)
        >>> torch.distributed.destroy_process_group()
    """
    hook = Hook(model, examples, plan, settings, rounds, scaler)
    hook.attach(model)
    return hook
