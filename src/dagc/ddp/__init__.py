"""PyTorch DDP: a communication hook that exchanges payloads instead of dense gradients; every rank is the server.

One line in a training script: `hook = dagc.ddp.register(model, examples=len(dataset), ratio=0.001)`.
"""

import torch
from torch.nn.parallel import DistributedDataParallel

from dagc.ddp.hook import Hook, Step, on_bucket
from dagc.errors import InvalidInput

__all__ = ["Hook", "Step", "register"]


def register(
    model: DistributedDataParallel,
    *,
    examples: int,
    ratio: float | None = None,
    threshold: float | None = None,
    bytes: int | None = None,
    method: str = "dagc-r",
    exponent: float | None = None,
    values: str = "fp32",
    per_tensor: bool = False,
    seed: int = 0,
    scaler: torch.amp.GradScaler | None = None,
) -> Hook:
    """Compress what this model's ranks send each other; call it on every rank with the same arguments but `examples`.

    From then on the gradient after `backward()` is Σ p_i · sparse_i, the same bits on every rank, where p_i is the
    rank's part of all examples (DDP alone would weigh all ranks alike).

    Args:
        model: A model wrapped in `DistributedDataParallel`, before its first backward pass.
        examples: How many training examples this rank holds. A rank with 0 takes part without a say.
        ratio: The budget as the mean ratio of entries sent, or
        threshold: as the mean threshold, in the units of the gradient (divide one in the units of the update by the
            learning rate), or
        bytes: as payload bytes per step, all ranks together. One of the three, as the method needs.
        method: A name in `dagc.policies.POLICIES`.
        exponent: Of `power` and `dagc-global`; 2/3 if not given.
        values: The value codec; "auto" takes the one that was measured to be best for the budget.
        per_tensor: Select within each parameter tensor instead of over the whole model.
        seed: For methods that draw.
        scaler: The `GradScaler` of mixed precision, if there is one. Residuals are then kept unscaled, and a step in
            which any rank's gradient is not finite becomes infinite on all, so that all scalers skip it.

    Returns:
        The hook, for `hook.last` and for checkpoints.

    Raises:
        InvalidInput: If the arguments are unusable or not the same everywhere; on all ranks.

    Example:
        >>> import torch, dagc.ddp
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 10))
        >>> hook = dagc.ddp.register(model, examples=5000, ratio=0.01)
        >>> model(torch.randn(32, 100)).square().mean().backward()
        >>> hook.last.entries, sum(int(parameter.grad.count_nonzero()) for parameter in model.parameters())
        (10, 10)
        >>> torch.distributed.destroy_process_group()
    """
    if not isinstance(model, DistributedDataParallel):
        raise InvalidInput(f"the model is a {type(model).__name__}: wrap it in DistributedDataParallel first")
    budget = {"ratio": ratio, "threshold": threshold, "bytes": bytes, "exponent": exponent}
    hook = Hook(model, examples, method, values, budget, per_tensor=per_tensor, seed=seed, scaler=scaler)
    try:
        model.register_comm_hook(hook, on_bucket)
    except RuntimeError as error:
        raise InvalidInput("this model has a communication hook already: wrap its module in DDP anew") from error
    return hook
