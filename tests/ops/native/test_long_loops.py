"""Calls whose invocations would go round their loops for seconds: refused, or made another way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import make_topology

import vksched as vs
from vksched.common.dtypes import NDArray, TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import Call, Work, get_op
from vksched.ops.conv import pool
from vksched.ops.lowering.lower import lower
from vksched.ops.lowering.strides import LOCAL_SIZE, LOOP_STEPS, SERIAL_STEPS
from vksched.plan.costs.node_cost import unsupported_reason, work_seconds
from vksched.topology.limits import Limits

GPU = Limits(max_buffer_bytes=1 << 32)
POOL: dict[str, Any] = {"stride": (1, 1), "dilation": (1, 1), "begin": (0, 0), "end": (0, 0)}
CONV: dict[str, Any] = {**POOL, "groups": 1}


def work_of(op: str, attrs: dict[str, Any], *types: TensorType) -> Work:
    declared, options = get_op(op), Attrs(attrs)
    return declared.work(types, declared.infer(types, options), options)


def lowered(op: str, attrs: dict[str, Any], *types: TensorType, limits: Limits = GPU) -> Any:
    declared, options = get_op(op), Attrs(attrs)
    return lower(declared, Call(types, declared.infer(types, options), options, limits))


def f32(*shape: int) -> TensorType:
    return TensorType(shape)


TOO_LONG: list[tuple[str, dict[str, Any], tuple[TensorType, ...]]] = [
    ("max_pool", {**POOL, "kernel": (8192, 8192), "sizes": (1, 9)}, (f32(1, 1, 8192, 8200),)),
    ("adaptive_average_pool", {"sizes": (2, 2)}, (f32(1, 3, 8192, 8192),)),
    ("adaptive_max_pool", {"sizes": (2,)}, (f32(1, 1, 1 << 27),)),
    ("conv", CONV, (f32(1, 512, 257, 256), f32(1, 512, 256, 256))),
    (
        "conv_transpose",
        {**CONV, "output_padding": (0, 0)},
        (f32(1, 4, 2, 2), f32(4, 1, 1024, 1024)),
    ),
    ("resample", {"axis": 0}, (f32(8), TensorType((2, 1 << 26), "int32"), f32(2, 1 << 26))),
]


@pytest.mark.parametrize(("op", "attrs", "types"), TOO_LONG, ids=[row[0] for row in TOO_LONG])
def test_a_gpu_refuses_what_takes_seconds(
    op: str, attrs: dict[str, Any], types: tuple[TensorType, ...]
) -> None:
    with pytest.raises(vs.UnsupportedOp, match=f"at most {SERIAL_STEPS} steps in a row"):
        lowered(op, attrs, *types)
    assert work_of(op, attrs, *types).rounds > SERIAL_STEPS


@pytest.mark.parametrize("groups", [1, 65535])
def test_no_invocation_of_many_items_goes_on_for_long(groups: int) -> None:
    limits = Limits(max_buffer_bytes=1 << 32, max_groups=(groups, 1, 1))
    attrs = {**POOL, "kernel": (512, 512), "sizes": (513, 513)}
    launches = lowered("max_pool", attrs, f32(1, 1, 1024, 1024), limits=limits).dispatches
    covered = 0
    for dispatch in launches:
        push = dict(dispatch.push)
        items = push["last_item"] - push["first_item"]
        assert -(-items // (dispatch.groups[0] * LOCAL_SIZE)) * 512 * 512 <= SERIAL_STEPS
        covered += items
    assert covered == 513 * 513
    taps = TensorType((5000, 1 << 18), "int32")
    parts = lowered("resample", {"axis": 1}, f32(3, 8), taps, f32(*taps.shape), limits=limits)
    ends = [dict(d.push)["end"] for d in parts.dispatches]
    starts = [dict(d.push)["start"] for d in parts.dispatches]
    assert starts == [0, *ends[:-1]] and ends[-1] == 15000
    for start, end, d in zip(starts, ends, parts.dispatches, strict=True):
        assert -(-(end - start) // (d.groups[0] * LOCAL_SIZE)) << 18 <= SERIAL_STEPS


LONG_RUNS: dict[str, tuple[dict[str, Any], tuple[TensorType, ...]]] = {
    "neg": ({}, (f32(1 << 29),)),
    "add": ({}, (f32(1 << 29), f32(1 << 29))),
    "where": ({}, (TensorType((1 << 29,), "bool"), f32(1 << 29), f32(1 << 29))),
    "dequantize_linear": ({"axis": 0}, (TensorType((1 << 29,), "uint8"), f32())),
}


@pytest.mark.parametrize("software", [False, True])
@pytest.mark.parametrize("op", LONG_RUNS)
def test_runs_of_fours_have_invocations_enough(op: str, software: bool) -> None:
    limits = Limits(max_buffer_bytes=1 << 32, software=software, subgroup_size=8)
    attrs, types = LONG_RUNS[op]
    (dispatch,) = lowered(op, attrs, *types, limits=limits).dispatches
    invocations = dispatch.groups[0] * dict(dispatch.constants)["LOCAL_X"]
    assert -(-types[0].size // (4 * invocations)) <= LOOP_STEPS


def graph_of(y: vs.Tensor) -> dict[str, int]:
    """How often each op is in a graph that runs on a GPU; every node of it must."""
    topology = make_topology(1, limits=GPU, memory_bytes=1 << 40, max_buffer_bytes=1 << 32)
    graph = vs.build_graph(y)[0]
    found: dict[str, int] = {}
    for node in graph.nodes:
        if node.declaration.kernel is not None:
            assert unsupported_reason(topology.devices[0], graph, node) is None
            found[node.op] = found.get(node.op, 0) + 1
    return found


def test_long_windows_are_taken_axis_by_axis() -> None:
    x = vs.input("x", (1, 1, 8192, 8200))
    assert graph_of(vs.max_pool(x, 8192, stride=1)) == {"max_pool": 1, "reduce_max": 1}
    assert "reduce_mean" in graph_of(vs.average_pool(x, (8192, 8200)))
    assert graph_of(vs.lp_pool(x, 4000, 3.0, padding=1)) == {"lp_pool": 2}
    assert "adaptive_max_pool" not in graph_of(vs.adaptive_max_pool(x, 2))
    line = vs.input("x", (1, 1, 1 << 27))
    assert "adaptive_average_pool" not in graph_of(vs.adaptive_average_pool(line, 2))
    assert graph_of(vs.adaptive_max_pool(line, 3))["reduce_max"] == 3
    image = vs.input("x", (1, 512, 256, 256))
    assert graph_of(vs.conv(image, vs.input("w", image.shape)))["reduce_sum"] == 1


def ints(*shape: int, dtype: str = "int32") -> NDArray:
    return np.random.default_rng(3).integers(-50, 50, shape).astype(dtype)


@pytest.mark.parametrize(
    ("op", "kernel", "more"),
    [
        ("max_pool", (70, 80), {"stride": (3, 2), "padding": 1}),
        ("max_pool", (90, 80), {"stride": 7, "ceil_mode": True}),
        ("max_pool", (90, 100), {}),
        ("average_pool", (70, 80), {"stride": 11, "padding": (9, 3), "ceil_mode": True}),
        ("average_pool", (70, 80), {"stride": 4, "padding": 9, "count_include_pad": True}),
        ("average_pool", (90, 50), {"dilation": (1, 2)}),
        ("lp_pool", (90, 80), {"p": 1.0}),
        ("lp_pool", (90, 80), {"p": 2.0, "padding": (0, 3)}),
        ("lp_pool", (80, 100), {"p": 3.0, "stride": 5}),
        ("adaptive_max_pool", (1, 3), {}),
        ("adaptive_average_pool", (1, 2), {}),
    ],
)
def test_long_windows_axis_by_axis_are_the_same(
    op: str, kernel: tuple[int, ...], more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the op's own reference on all axes at once."""
    x = ints(2, 2, 90, 200 if op.startswith("adaptive") else 100, dtype="float32")
    node = getattr(vs, op)(vs.input("x", x.shape), kernel, name="y", **more)
    attrs: dict[str, Any] = {"sizes": kernel}
    if not op.startswith("adaptive"):
        monkeypatch.setattr(pool, "_LONG_WINDOW", 1 << 30)
        attrs = dict(getattr(vs, op)(vs.input("x", x.shape), kernel, **more).attrs)
    expected = get_op(op).reference((x,), Attrs(attrs))
    with vs.Scheduler(["cpu"]) as sched:
        got = sched.compile(node)(x=x)
    np.testing.assert_allclose(got, expected, 1e-4, 1e-4)


@pytest.mark.parametrize("spans", [3, 7])
def test_uneven_long_spans(spans: int) -> None:
    x = ints(1, 2, 40_000)
    with vs.Scheduler(["cpu"]) as sched:
        got = sched.compile(vs.adaptive_max_pool(vs.input("x", x.shape, "int32"), spans))(x=x)
    assert np.array_equal(
        got, get_op("adaptive_max_pool").reference((x,), Attrs({"sizes": (spans,)}))
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_of_one_long_window(groups: int) -> None:
    x, w, bias = ints(2, 4, 200, 190), ints(6, 4 // groups, 200, 190), ints(6)
    y = vs.conv(
        *(vs.input(n, a.shape, "int32") for n, a in zip("xwb", (x, w, bias), strict=True)),
        groups=groups,
        name="y",
    )
    assert y.op != "conv" and y.name == "y"
    with vs.Scheduler(["cpu"]) as sched:
        got = sched.compile(y)(x=x, w=w, b=bias)
    expected = get_op("conv").reference((x, w, bias), Attrs({**CONV, "groups": groups}))
    assert np.array_equal(got, expected)


def test_work_counts_what_goes_on_in_order() -> None:
    indices = TensorType((1 << 20,), "int32")
    attrs = {"axis": 0, "reduction": "add"}
    in_order = work_of("scatter_elements", attrs, f32(8), indices, f32(1 << 20))
    assert in_order.rounds == 1 << 20
    at_once = work_of(
        "scatter_elements", {**attrs, "reduction": "none"}, f32(8), indices, f32(1 << 20)
    )
    assert at_once.rounds == 0
    pairs = TensorType((5000, 1), "int32")
    slices = work_of("scatter_nd", {"reduction": "add"}, f32(8, 3), pairs, f32(5000, 3))
    assert slices.rounds == 5000
    window = {**POOL, "kernel": (3, 5), "sizes": (6, 4)}
    assert work_of("max_pool", window, f32(1, 1, 8, 8)).rounds == 15
    assert work_of("conv", CONV, f32(1, 4, 8, 8), f32(2, 4, 3, 3)).rounds == 36
    assert work_of("conv", CONV, f32(1, 4, 8, 8), f32(16, 4, 1, 1)).rounds == 0


def test_rounds_take_time_where_there_are_loops() -> None:
    device, cpu = make_topology(1).devices
    assert work_seconds(device, Work(1.0, 1.0, 1e6)) == pytest.approx(1e6 * device.loop_latency_s)
    assert work_seconds(cpu, Work(1.0, 1.0, 1e6)) == work_seconds(cpu, Work(1.0, 1.0))
