"""Ten minutes on a GPU: the same bits as on the CPU, what crosses the bus, and the speed against torch's own hooks.

    make gpu-check                                      # on the first GPU; without one it runs on the CPU and says so
    python -m benchmarks.gpu_check --parameters 100     # million parameters

Nobody of us has a GPU: please send the table that this prints, whatever it says.
"""

import argparse
import faulthandler
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import dagc.ddp
from dagc.protocol import Order, Plan, Uplink
from dagc.updates import Update

PLANS: dict[str, dict[str, Any]] = {
    "top-k 1 %": {"method": "top-k", "ratio": 0.01},
    "dagc-r 1 %, signs": {"method": "dagc-r", "ratio": 0.01, "values": "sign", "frames": "compact"},
    "dagc-r 0.1 %, int8": {"method": "dagc-r", "ratio": 0.001, "values": "int8"},
    "random-k 1 %": {"method": "random-k", "ratio": 0.01},
    "dagc": {"method": "dagc"},
}
WARM_UP, REPEATS = 4, 10
PATIENCE = 300
"""Seconds for all steps of a row."""
HANGS = "PowerSGD"  # on the CPU in bf16: once in five runs, inside torch's hook


def network(million: float) -> nn.Module:
    """Four equal layers with about so many million parameters."""
    width = max(16, int((million * 1e6 / 4) ** 0.5))
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())))


def check_bits(device: torch.device) -> list[tuple[str, str]]:
    """Each method's uploads and residuals on the device and on the CPU, three steps with equal gradients.

    Entries are chosen by exact comparisons: their frames are equal. The method `dagc` computes with matrices, so its
    frame must carry as much.
    """
    shapes = [(1000, 1000), 3]
    size, rows = 1_000_003, []
    for name, settings in PLANS.items():
        plan = Plan(**settings).for_size(size)
        halves = {place: Uplink(plan.for_clients(), shapes, place) for place in ("cpu", device)}
        amount = 4000 if plan.method_spec.encodes else 5000
        compressor = plan.policy(size).compressor
        answer = "same bits"
        for step in range(3):
            gradient = torch.randn(size, generator=torch.Generator().manual_seed(step))
            order = Order(step + 1, amount, compressor)
            uploads = [half.upload(gradient.to(place), order) for place, half in halves.items()]
            frames = [upload.frame for upload in uploads]
            for half in halves.values():
                half.settle(step + 1)
            residuals = [half.feedback.residual.cpu() for half in halves.values()]
            if plan.method_spec.encodes and frames[0] != frames[1]:  # products of matrices are rounded differently
                energies = [float(upload.update.energy) for upload in uploads if isinstance(upload.update, Update)]
                answer = f"as good within {abs(energies[1] / energies[0] - 1):.1e}"
                if energies[1] < 0.99 * energies[0]:
                    answer = f"FRAMES DIFFER in step {step}: the device's carries less"
            elif frames[0] != frames[1]:
                answer = f"FRAMES DIFFER in step {step}"
            elif not torch.equal(*residuals):
                answer = f"residuals differ by {float((residuals[0] - residuals[1]).abs().max()):.1e}"
        rows.append((name, answer))
    return rows


def bytes_over_the_bus(step: Callable[[], Any]) -> str:
    """What CUDA copies between host and device in one step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    copies = [event for event in profile.events() if "Memcpy" in event.name and "DtoD" not in event.name]
    total = sum(int(getattr(event, "nbytes", 0) or 0) for event in copies)
    return f"{len(copies)} copies" + (f", {total / 1e6:.2f} MB" if total else "")


def seconds(step: Callable[[], Any], device: torch.device) -> float:
    """The median time of a step. If one hangs, a traceback says where, and the program ends."""
    times = []
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    for number in range(WARM_UP + REPEATS):
        began = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if number >= WARM_UP:
            times.append(time.perf_counter() - began)
    faulthandler.cancel_dump_traceback_later()
    return statistics.median(times)


def hooked(kind: str, million: float, device: torch.device, half: bool) -> tuple[Callable[[], Any], Any]:
    """A backward pass under one of the hooks."""
    module = network(million).to(device)
    model = DistributedDataParallel(module.bfloat16() if half else module)
    hook = None
    if kind == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "PowerSGD":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif kind in PLANS:
        hook = dagc.ddp.register(model, examples=100, **PLANS[kind])
    width = next(module.parameters()).shape[1]
    batch = torch.randn(16, width, device=device, dtype=torch.bfloat16 if half else torch.float32)

    def step() -> None:
        model.zero_grad()
        with model.no_sync() if kind == "no exchange" else nullcontext():
            model(batch).float().square().mean().backward()

    return step, hook


def local(kind: str, million: float, device: torch.device) -> Callable[[], Any]:
    """An exchange of local steps, with as good as no training before it."""
    model = network(million).to(device)
    exchange = dagc.ddp.LocalSteps(model, examples=100, steps=1, **PLANS[kind])
    changes: list[Tensor] = [1e-3 * torch.randn_like(parameter) for parameter in model.parameters()]

    def step() -> None:
        with torch.no_grad():
            torch._foreach_add_(list(model.parameters()), changes)
        exchange.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, help="in millions; 50 on a GPU, 1 on the CPU")
    options = parser.parse_args()
    found = torch.cuda.is_available()
    device = torch.device("cuda" if found else "cpu")
    million = options.parameters or (50 if found else 1)
    dist.init_process_group("nccl" if found else "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    where = torch.cuda.get_device_name() if found else "NO GPU WAS FOUND: everything below is of the CPU"
    print(f"{where}; torch {torch.__version__}, dagc {dagc.__version__}, {million:g} million parameters\n")

    print(f"Frames and residuals on the device, against {'the CPU' if found else 'itself'}")
    bits = check_bits(device)
    for name, answer in bits:
        print(f"  {name:<22} {answer}")
    print("\nMilliseconds of a backward pass on one rank (of it: compress, exchange, decode), and what crosses the bus")
    for half in (False, True):
        for kind in ("no exchange", "dense", "fp16", "PowerSGD", *PLANS):
            if half and kind == HANGS and not found:
                continue
            step, hook = hooked(kind, million, device, half)
            took = f"{1000 * seconds(step, device):9.2f}"
            parts = "" if hook is None else " ".join(f"{1000 * part:.2f}" for part in hook.last[-3:])
            crossed = bytes_over_the_bus(step) if found and hook is not None else ""
            print(f"  {'bf16' if half else 'fp32'}  {kind:<22} {took}  {parts:<24} {crossed}".rstrip(), flush=True)
    print("\nMilliseconds of an exchange of LocalSteps on one rank, and what crosses the bus")
    for kind in PLANS:
        step = local(kind, million, device)
        took = f"{1000 * seconds(step, device):9.2f}"
        print(f"  {kind:<22} {took}  {bytes_over_the_bus(step) if found else ''}".rstrip(), flush=True)
    dist.destroy_process_group()
    if any("DIFFER" in answer for _, answer in bits):
        sys.exit("the frames of a method differ between the device and the CPU: please report this")


if __name__ == "__main__":
    main()
