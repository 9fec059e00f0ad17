"""The device path on a device that counts: the bits are those of the CPU, and nothing of the model's size crosses."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dagc import InvalidInput
from dagc.ddp import LocalSteps
from dagc.ddp.hook import Bucket, Hook
from dagc.ddp.rank_model import device_of, tensor_checksum
from dagc.policies import METHODS
from dagc.protocol import Order, Plan, Server, Uplink
from dagc.sparse import Sparse
from dagc.state import checksum
from dagc.updates import Update, encode_dense, encode_update
from tests.helpers.counting_device import Elsewhere, Wrapped, counting

SHAPES = [(256, 400), (400,), (400, 100), (100,)]
SIZE = 256 * 400 + 400 + 400 * 100 + 100
MODEL = 4 * SIZE
"""Bytes of the model."""
ENTRY = 8
"""Bytes of an entry on its way: a position in 32 bits and a value."""
PLANS = {
    "top-k": {"method": "top-k", "ratio": 0.005},
    "per tensor": {"method": "top-k", "ratio": 0.005, "per_tensor": True, "values": "int8"},
    "dagc-r, signs": {"method": "dagc-r", "ratio": 0.005, "values": "sign", "frames": "compact"},
    "dagc-r, coded": {"method": "dagc-r", "ratio": 0.005, "values": "int8", "frames": "coded"},
    "random-k": {"method": "random-k", "ratio": 0.005},
    "dagc-a": {"method": "dagc-a", "threshold": 2.9},
    "accordion": {"method": "accordion", "ratio": 0.005},
    "power": {"method": "power", "ratio": 0.005},
    "hard-threshold": {"method": "hard-threshold", "threshold": 2.9},
    "stc": {"method": "stc", "ratio": 0.005},
    "thrifty": {"method": "thrifty", "ratio": 0.005},
    "none": {"method": "none"},
    "dagc": {"method": "dagc"},
    "dagc, few bytes": {"method": "dagc", "bytes": 1500},
    "dagc, clipped": {"method": "dagc", "bytes": 1500, "clip": 1.0},
    "clipped": {"method": "top-k", "ratio": 0.005, "clip": 1.0},
}
WAITS = {
    "compressors._vector.picked": 1,  # the entries
    "compressors._vector.reaching": 1,  # how many they are
    "compressors._vector.refuse_non_finite": 2,
    "ddp.hook._unscaled": 1,  # which parameters were not used
    "ddp.rank_model.tensor_checksum": 2,
    "protocol.uplink.upload": 1,  # the norm, for methods that ask for it
    "protocol.uplink.vector_norm": 2,  # for methods that train ahead
    "updates.low_rank.leading": 4,  # once per matrix, for the small decomposition
    "updates.low_rank.quantized": 4 * 2 * 8,  # four times per matrix and attempt
    "updates.vectors._reaching_there": 3,  # how many entries they are, the entries, and where
    "updates.vectors.count_magnitudes": 2,
    "updates.vectors.normalized": 1,
}
"""The functions that may wait for the device, and how often in a step; clipping takes the last six again."""


def check_crossings(plan, counts, numbers, part=14, ways=3):
    """That only what was sent has crossed, and the host has waited where it may."""
    print(numbers, counts, counts.waits)
    again = 5 if "clip" in plan or plan.get("per_tensor") else 1  # attempts, or searches
    assert counts.to_host <= (again if "clip" in plan else 1) * (MODEL // part + 16 * numbers), counts
    ways += "clip" in plan  # clipping moves entries once more
    assert counts.to_device <= ways * ENTRY * numbers + again * 4000, counts
    for function, times in counts.waits.items():
        assert times <= again * WAITS.get(function, 0), function
    if plan["method"] != "dagc":
        assert counts.synchronizations <= (6 + 5 * len(SHAPES) if plan.get("per_tensor") else 8), counts


def test_every_method_is_run():
    assert {plan["method"] for plan in PLANS.values()} == {*METHODS}


@pytest.fixture(autouse=True)
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def vector(seed):
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def tensors_of(whole):
    parts = whole.split([int(np.prod(shape)) for shape in SHAPES])
    return [part.view(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def updates():
    low_rank = torch.outer(torch.arange(1.0, 41), torch.arange(1.0, 26)).reshape(-1)
    low_rank[7] += 1e6
    yield encode_update(low_rank, [(40, 25)], 120)[1]
    yield encode_dense(low_rank, [(40, 25)], 6)[1]
    yield Update.of(Sparse(1000, [0, 7, 999], [1.5, -0.1, 1e-3]))


@pytest.mark.parametrize("weight", [1.0, -1.0, 0.3])
def test_an_update_is_added_to_a_vector_on_a_device_with_the_same_bits(weight):
    for update in updates():
        here = vector(0)[:1000].clone()
        there = Elsewhere(here.clone())
        with counting():
            update.add_to(there, weight)
        update.add_to(here, weight)
        assert torch.equal(here, there.inner)


@pytest.mark.parametrize("size", [1, 10, 8192, 8193, 100_001])
def test_a_checksum_on_a_device_is_that_of_the_cpu_and_a_thousandth_crosses(size):
    values = torch.randn(size)
    with counting() as counts:
        assert tensor_checksum(Elsewhere(values)) == checksum(values.numpy())
    assert counts.to_host <= size / 1000 + 32768


@pytest.mark.parametrize("kind", ["mps", "meta"])
def test_devices_on_which_a_step_would_fail_are_refused(kind):
    with pytest.raises(InvalidInput, match=f"the trainable parameters are on '{kind}': "):
        device_of([SimpleNamespace(device=torch.device(kind))])


def run_hook(where, plan, steps=3):
    parameters = [nn.Parameter(where(part.clone())) for part in tensors_of(vector(99))]
    with counting():
        hook = Hook(Wrapped(parameters), 100, Plan(**plan), {}, None, None)
    found, crossings = [], []
    for step in range(steps):
        whole = vector(step)
        whole[256 * 400 : 256 * 400 + 400] = 0 if step == 1 else whole[256 * 400 : 256 * 400 + 400]
        buffer = where(whole.clone())
        bucket = Bucket(buffer, parameters, tensors_of(buffer))
        with counting() as counts:
            hook.reduce([bucket])
        found.append(home(buffer))
        crossings.append(counts)
    return found, home(hook.uplink.feedback.residual), crossings, hook.last


def home(tensor):
    return tensor.inner if isinstance(tensor, Elsewhere) else tensor


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_the_hook_has_the_same_bits_on_a_device_and_only_entries_cross(plan):
    gradients, residual, _, _ = run_hook(lambda tensor: tensor, plan)
    there, kept, crossings, last = run_hook(Elsewhere, plan)
    for ours, expected in zip(there, gradients, strict=True):
        assert torch.equal(ours, expected)
    assert torch.equal(kept, residual)
    for counts in crossings:
        check_crossings(plan, counts, last.entries)


def run_client(where, plan, steps=4):
    """A client that uploads, and whose server takes every second upload."""
    plan = Plan(**plan).for_size(SIZE)
    server, found = Server(plan, SIZE, None, SHAPES), []
    with counting():
        uplink = Uplink(plan.for_clients(), SHAPES, where(torch.zeros(1)).device)
    server.join("0", 100)
    for step in range(steps):
        order = server.orders(["0"])["0"]
        change = [where(part.clone()) for part in tensors_of(vector(step))]
        with counting() as counts:
            uplink.start(where(vector(99)))
            upload = uplink.upload(change, order)
            server.close([server.read("0", upload.frame, upload.norm)] if step % 2 else [])
            uplink.settle(server.members["0"].accepted_round)
        found.append((upload.frame, len(upload.update), home(uplink.feedback.residual), counts))
    return found


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_client_sends_the_same_frames_from_a_device_and_only_entries_cross(plan):
    pairs = zip(run_client(lambda tensor: tensor, plan), run_client(Elsewhere, plan), strict=True)
    for (frame, numbers, kept, _), (other, _, kept_there, counts) in pairs:
        assert frame == other
        assert torch.equal(kept, kept_there)
        check_crossings(plan, counts, numbers)


def test_a_vector_with_tiny_or_huge_numbers_is_encoded_alike_on_a_device():
    for scale in (1e-18, 1e-14, 1e15, 1e26):
        whole = vector(0) * scale
        with counting():
            frame, update = encode_update(Elsewhere(whole), SHAPES, 1500)
        assert frame == encode_update(whole, SHAPES, 1500)[0]
        assert len(update)


def run_local(where, plan, dtype=torch.float32, **options):
    model = nn.Module()
    model.parts = nn.ParameterList([nn.Parameter(where(part.to(dtype))) for part in tensors_of(vector(99))])
    with counting():
        local = LocalSteps(model, examples=10, steps=1, plan=Plan(**plan), **options)
    crossings = []
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            change = torch.randn(parameter.shape, generator=generator).to(dtype)
            home(parameter.detach()).sub_(0.01 * change)
        with counting() as counts:
            local.step()
        crossings.append(counts)
    with counting():
        local.finish()
    return home(local.shared), home(local.uplink.feedback.residual), crossings, local.last


INT8 = {"method": "dagc-r", "ratio": 0.005, "values": "int8"}
LOCAL = {
    **{name: (plan, {}) for name, plan in PLANS.items()},
    "momentum": (INT8, {"momentum": 0.9, "outer_rate": 0.7}),
    "step-ahead": ({**INT8, "step_ahead": 0.5}, {}),
    "overlap": (INT8, {"overlap": True}),
    "bf16": (INT8, {"dtype": torch.bfloat16}),
    "dagc, overlap": ({"method": "dagc"}, {"overlap": True}),
    "dagc, bf16": ({"method": "dagc"}, {"dtype": torch.bfloat16}),
}


@pytest.mark.parametrize(("plan", "options"), LOCAL.values(), ids=LOCAL)
def test_local_steps_have_the_same_bits_on_a_device_and_only_entries_and_checksums_cross(plan, options):
    shared, residual, _, _ = run_local(lambda tensor: tensor, plan, **options)
    there, kept, crossings, last = run_local(Elsewhere, plan, **options)
    if "step_ahead" in plan or plan["method"] == "thrifty":  # norms are added up in another order
        assert torch.allclose(there, shared, atol=1e-6)
    else:
        assert torch.equal(there, shared)
        assert torch.equal(kept, residual)
    for counts in crossings:
        check_crossings(plan, counts, last.entries, part=6, ways=5)


def test_a_parameter_that_was_not_used_needs_no_mask_on_the_host():
    with counting() as counts:
        uplink = Uplink(Plan(method="top-k", ratio=0.005).for_clients(), SHAPES, Elsewhere(torch.zeros(1)).device)
        uplink.excluded = [slice(0, 256 * 400)]
        upload = uplink.upload(Elsewhere(vector(0)), Order(1, 100))
    assert upload.update.indices.min() >= 256 * 400
    assert counts.largest < 10_000


class Allocations(TorchDispatchMode):
    """Counts the bytes of new tensors of a quarter of the model or more."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        places = {tensor.untyped_storage().data_ptr() for tensor in tensors_in((args, kwargs))}
        result = operation(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if tensor.untyped_storage().data_ptr() not in places and tensor.numel() >= SIZE // 4:
                self.bytes += tensor.nbytes
        return result


def tensors_in(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_of_the_hook_makes_no_copy_of_the_model_in_any_precision(dtype):
    parameters = [nn.Parameter(part.to(dtype)) for part in tensors_of(vector(99))]
    hook = Hook(Wrapped(parameters), 100, Plan(method="dagc-r", ratio=0.005, values="int8"), {}, None, None)
    for step in range(3):
        buffer = vector(step).to(dtype)
        with Allocations() as made:
            hook.reduce([Bucket(buffer, parameters, tensors_of(buffer))])
    assert made.bytes == 0  # in the first steps, memory that is kept


@pytest.mark.parametrize(("dtype", "copies"), [(torch.float32, 0), (torch.bfloat16, 1.5)])
def test_an_exchange_of_local_steps_copies_half_precision_once_as_float32(dtype, copies):
    model = nn.Module()
    model.parts = nn.ParameterList([nn.Parameter(part.to(dtype)) for part in tensors_of(vector(99))])
    local = LocalSteps(model, examples=10, steps=1, method="dagc-r", ratio=0.005, values="int8")
    for step in range(3):
        for parameter, change in zip(model.parts, tensors_of(vector(step)), strict=True):
            parameter.data.sub_(0.01 * change.to(dtype))
        with Allocations() as made:
            local.step()
    assert made.bytes <= copies * MODEL
