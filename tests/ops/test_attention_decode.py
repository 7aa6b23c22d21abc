"""Attention of a decode step in one dispatch: its choice, its parts, and runs in a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray, TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import COUNTERS, Call, get_op
from vksched.ops.attention.attention_decode import decode_parts, decode_rows
from vksched.ops.lowering.lower import Lowering, lower, variants_of
from vksched.runtime.device import Device
from vksched.runtime.vulkan import device_probe, staging, vulkan_device
from vksched.topology.limits import Limits

GPU = Limits(storage_buffers=16, memory_model=True, memory_model_checked=True, shared_bytes=32768)
HEADS, SHARED, SIZE, LENGTH = 8, 2, 64, 1200


def lowered(limits: Limits, queries: int = 1, heads: int = HEADS) -> Lowering:
    """The dispatches of a decode step."""
    shapes = (1, heads, queries, SIZE), *[(1, SHARED, LENGTH, SIZE)] * 2, ()
    new = [TensorType((1, SHARED, queries, SIZE))] * 2
    types = tuple(TensorType(s, "float32" if s else "int32") for s in shapes)
    x = [vs.input(f"x{i}", t.shape, t.dtype) for i, t in enumerate((*types, *new))]
    y = vs.attention(*x[:3], kv_len=x[3], k_new=x[4], v_new=x[5], causal=True)
    graph, _ = vs.build_graph([y])
    node = next(n for n in graph.nodes if n.op == "attention_with_kvcache")
    attrs: Attrs = node.attrs
    return lower(get_op(node.op), Call((*types, *new), node.type, attrs, limits))


def test_a_gpu_with_the_memory_model_has_one_dispatch() -> None:
    (one,) = lowered(GPU).dispatches
    assert one.shader == "attention_decode" and COUNTERS in one.operands and not one.barrier
    assert lowered(GPU).counters == SHARED


@pytest.mark.parametrize(
    "limits",
    [
        replace(GPU, memory_model=False),
        replace(GPU, memory_model_checked=False),
        replace(GPU, storage_buffers=8),
        replace(GPU, software=True),
    ],
)
def test_others_combine_parts_in_a_dispatch_of_its_own(limits: Limits) -> None:
    lowering = lowered(limits)
    assert lowering.dispatches[-1].shader == "attention_combine" and not lowering.counters


def test_a_mask_is_no_key_count() -> None:
    q, k, mask = (vs.input(n, (1, 2, m, SIZE)) for n, m in (("q", 1), ("k", SIZE), ("mask", 1)))
    graph, _ = vs.build_graph([vs.attention(q, k, k, mask)])
    node = next(n for n in graph.nodes if n.op == "attention")
    call = Call(graph.input_types(node), node.type, node.attrs, GPU)
    for variant in variants_of(get_op("attention"), call):
        lowering = lower(get_op("attention"), replace(call, variant=variant))
        assert all("decode" not in dispatch.shader for dispatch in lowering.dispatches)


def test_many_queries_have_other_kernels() -> None:
    assert lowered(GPU, queries=5).dispatches[0].shader != "attention_decode"
    assert lowered(GPU, queries=4).dispatches[0].shader == "attention_decode"


def test_one_query_of_a_head_is_a_tile() -> None:
    (one,) = lowered(GPU, heads=SHARED).dispatches
    assert dict(one.constants)["ROWS"] == 1 and one.groups[0] == SHARED


def test_tiles_fit_shared_memory() -> None:
    least = replace(GPU, shared_bytes=16384)
    assert decode_rows(GPU, 8, 256, 256) == 8 and decode_rows(least, 8, 256, 256) == 4
    assert decode_rows(least, 8, 128, 128) == 8 and decode_rows(least, 1, 128, 128) == 1
    for depth, columns in ((100, 64), (64, 100), (64, 1024), (4096, 64)):
        assert not decode_rows(least, 1, depth, columns)


def test_parts_fill_the_cores() -> None:
    for cores, parts in ((132, 66), (16, 8), (1, 1), (0, 64)):
        assert decode_parts(replace(GPU, cores=cores), 4, 1 << 16) == parts
    for cores, tiles, parts in ((20, 32, 2), (24, 32, 2), (16, 32, 1), (132, 32, 9)):
        assert decode_parts(replace(GPU, cores=cores), tiles, 4096) == parts
    assert decode_parts(replace(GPU, cores=132), 4, 640) == 10  # of 64 keys
    assert decode_parts(replace(GPU, cores=10000), 1, 1 << 20) == 128


# -- on devices ------------------------------------------------------------------------------------

NAMES = [d.name for d in device_probe.list_devices() if d.name != "cpu" and d.limits.memory_model]


@pytest.fixture(params=NAMES or [None])
def device(request: pytest.FixtureRequest) -> Device:
    """A software device that is taken for a GPU."""
    if request.param is None:
        pytest.skip("no device here has the Vulkan memory model")
    info = device_probe.resolve(request.param)
    limits = replace(info.limits, software=False, memory_model_checked=True)
    spec = replace(device_probe.device_spec(info), limits=limits)
    return vulkan_device.VulkanDevice(spec, info.index)


def values(*shape: int, seed: int) -> NDArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("heads", [HEADS, SHARED])
def test_runs_leave_counters_for_the_next_ones(heads: int, device: Device) -> None:
    """Runs of two slots, with one part, with several and with none, again and again."""
    keys, new = (values(1, SHARED, n, SIZE, seed=n) for n in (LENGTH, 1))
    q, used = vs.input("q", (1, heads, 1, SIZE)), vs.input("used", (), "int32")
    y = vs.attention(
        *(q, vs.weight(keys), vs.weight(keys[:, :, ::-1].copy())),
        kv_len=used,
        k_new=vs.weight(new),
        v_new=vs.weight(-new),
        causal=True,
    )
    with vs.Scheduler([device], copies=2) as sched, vs.Scheduler(["cpu"]) as on_cpu:
        run, wanted = sched.compile(y), on_cpu.compile(y)
        assert run.plan.inner_barriers == 0
        counts = (LENGTH, 0, 700, 255, 256, LENGTH, 300) * 2
        rows = [values(1, heads, 1, SIZE, seed=i) for i in range(len(counts))]
        pending = [run.submit(q=x, used=np.int32(n)) for x, n in zip(rows, counts, strict=True)]
        for future, x, count in zip(pending, rows, counts, strict=True):
            expected = wanted(q=x, used=np.int32(count))
            np.testing.assert_allclose(future.result(), expected, rtol=1e-5, atol=1e-5)


def test_counters_of_a_killed_dispatch_are_reset(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that ends some workgroups and keeps the device leaves counters above 0."""
    slots: list[Any] = []
    init = vulkan_device._Slot.__init__

    def dirty(slot: Any, context: Any, *args: Any) -> None:
        init(slot, context, *args)
        slots.append(slot)
        staging.upload(context, slot.counters, [np.repeat(np.uint32([3, 0]), SHARED)])

    monkeypatch.setattr(vulkan_device._Slot, "__init__", dirty)
    keys = vs.weight(values(1, SHARED, LENGTH, SIZE, seed=1))
    q, used = vs.input("q", (1, HEADS, 1, SIZE)), vs.input("used", (), "int32")
    y = vs.attention(q, keys, keys, kv_len=used)
    with vs.Scheduler([device], copies=1) as sched, vs.Scheduler(["cpu"]) as on_cpu:
        run, wanted = sched.compile(y), on_cpu.compile(y)
        assert len(slots) == 1
        for seed in range(4):
            operands: dict[str, Any] = {
                "q": values(1, HEADS, 1, SIZE, seed=seed),
                "used": np.int32(LENGTH),
            }
            got, expected = run(**operands), wanted(**operands)
            is_right = np.allclose(got, expected, rtol=1e-5, atol=1e-5)
            assert is_right == (seed > 0), f"run {seed}"
