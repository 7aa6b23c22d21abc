"""Rules for arithmetic, reductions and quantised models, where onnx's own node tests do not look:
narrow types, old versions, ends of ranges, the com.microsoft domain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray

onnx = pytest.importorskip("onnx")
import ml_dtypes  # noqa: E402 - it comes with onnx
from models.structure import SEVEN_BITS  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

FALLS_BACK = pytest.mark.filterwarnings("ignore::vksched.common.user_warning.VkschedWarning")
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", params=["cpu", "vulkan:0"])
def sched(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    if request.param != "cpu" and request.param not in {d.name for d in vs.devices()}:
        pytest.skip("no such device")
    names = ["cpu"] if request.param == "cpu" else [request.param, "cpu"]
    with vs.Scheduler(names) as sched:
        yield sched


def model(
    op: str,
    inputs: list[NDArray],
    version: int,
    domain: str,
    known: tuple[int, ...],
    results: int,
    **attrs: Any,
) -> onnx.ModelProto:
    names = [f"x{i}" for i in range(len(inputs))]
    outputs = [f"y{i}" for i in range(results)]
    node = helper.make_node(op, names, outputs, domain=domain, **attrs)
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, inputs, strict=True)
    ]
    graph = helper.make_graph(
        [node],
        "g",
        [info for i, info in enumerate(infos) if i not in known],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(inputs[i], names[i]) for i in known],
    )
    opsets = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(
    sched: vs.Scheduler,
    op: str,
    *inputs: NDArray,
    version: int = 21,
    domain: str = "",
    known: tuple[int, ...] = (),
    results: int = 1,
    host: bool = False,
    **attrs: Any,
) -> NDArray:
    """Return the first result of one node. host: whether the reference evaluator is to run it."""
    proto = model(op, list(inputs), version, domain, known, results, **attrs)
    compiled = sched.compile(vs.load(proto))
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if i not in known}
    found = compiled(**feeds)["y0"]
    ops = [node.op for plan in compiled.plans for node in plan.graph.ops]
    assert any(name.startswith("onnx.") for name in ops) == host, ops
    return found


def same(got: NDArray, want: NDArray) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_narrow_integers_wrap(sched: vs.Scheduler, op: str, dtype: type) -> None:
    ends = np.iinfo(dtype)
    a = np.array([ends.min, ends.max, ends.max, 100, 7, 0], dtype)
    b = np.array([ends.max, ends.max, 1, 3, 2, 5], dtype)
    want = {"Add": a + b, "Sub": a - b, "Mul": a * b, "Div": (a / b).astype(dtype)}[op]
    same(run(sched, op, a, b), want)


def test_four_bits_wrap_too(sched: vs.Scheduler) -> None:
    x = np.arange(-20, 20, dtype=np.int32)
    for kind in (ml_dtypes.int4, ml_dtypes.uint4):
        to = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        got = run(sched, "Cast", x, to=to)
        low = int(ml_dtypes.iinfo(kind).min)
        np.testing.assert_array_equal(got.astype(np.int32), (x - low) % 16 + low)


@pytest.mark.parametrize("op", ["Add", "Mul", "Div", "Sqrt"])
def test_bfloat16_is_rounded_once(sched: vs.Scheduler, op: str) -> None:
    a, b = (np.abs(RNG.standard_normal(301)).astype(ml_dtypes.bfloat16) for _ in range(2))
    compute = {"Add": np.add, "Mul": np.multiply, "Div": np.divide, "Sqrt": np.sqrt}[op]
    operands = (a,) if op == "Sqrt" else (a, b)
    want = compute(*(v.astype(np.float64) for v in operands)).astype(ml_dtypes.bfloat16)
    same(run(sched, op, *operands), want)


def test_ops_without_a_rule_of_their_own_for_bfloat16_round_once(sched: vs.Scheduler) -> None:
    a, b = (RNG.standard_normal((7, 7)).astype(ml_dtypes.bfloat16) for _ in range(2))
    got = run(sched, "MatMul", a, b)
    assert got.dtype == a.dtype
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2**-8, atol=1e-5)
    peak = run(sched, "GlobalAveragePool", a.reshape(1, 1, 7, 7), version=22).astype(np.float64)
    np.testing.assert_allclose(peak.reshape(()), a.astype(np.float64).mean(), rtol=2**-8)


def test_division_of_integers_truncates(sched: vs.Scheduler) -> None:
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    same(run(sched, "Div", a, b), np.array([3, -3, -3, 3], np.int32))
    same(run(sched, "Mod", a, b), a % b)
    same(run(sched, "Mod", a, b, fmod=1), np.fmod(a, b))


@FALLS_BACK
def test_powers_of_integers_are_exact(sched: vs.Scheduler) -> None:
    base = np.arange(1, 20, dtype=np.int32)
    same(run(sched, "Pow", base, np.full(19, 5.0, np.float32)), base**5)
    same(run(sched, "Pow", base, np.full(19, 5, np.int64)), base**5)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0])
def test_known_exponents(sched: vs.Scheduler, exponent: float) -> None:
    x = np.linspace(0.1, 3, 30, dtype=np.float32).reshape(5, 6)
    got = run(sched, "Pow", x, np.array([exponent], np.float32), known=(1,))
    np.testing.assert_allclose(got, x**exponent, rtol=1e-5)


def test_clip_by_attributes_and_by_operands(sched: vs.Scheduler) -> None:
    x = np.linspace(-3, 3, 13, dtype=np.float32)
    same(run(sched, "Clip", x, version=7, max=1.5), np.minimum(x, np.float32(1.5)))
    low, high = np.float32(-1).reshape(()), np.float32(2).reshape(())
    for known in ((), (1, 2)):
        same(run(sched, "Clip", x, low, high, known=known), np.clip(x, -1, 2))
    x8 = np.arange(-9, 9, dtype=np.int8)
    same(run(sched, "Clip", x8, np.int8(-3).reshape(()), known=(1,)), np.maximum(x8, -3))


@pytest.mark.parametrize(("opset", "axis"), [(7, None), (12, -2), (13, None)])
def test_softmax_was_over_all_axes_behind(
    sched: vs.Scheduler, opset: int, axis: int | None
) -> None:
    x = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    attrs = {} if axis is None else {"axis": axis}
    e = np.exp(x.astype(np.float64))
    behind = (1, 2) if opset < 13 else (2,)
    got = run(sched, "Softmax", x, version=opset, **attrs)
    np.testing.assert_allclose(got, e / e.sum(behind, keepdims=True), rtol=1e-5)


def test_dropout_keeps_all_where_nothing_is_trained(sched: vs.Scheduler) -> None:
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    for opset in (7, 10, 12):
        same(run(sched, "Dropout", x, version=opset, results=2), x)


def test_topk_with_k_as_an_attribute(sched: vs.Scheduler) -> None:
    x = np.array([[3, 1, 2], [5, 9, 7]], np.float32)
    same(run(sched, "TopK", x, version=9, results=2, k=2), np.array([[3, 2], [9, 7]], np.float32))


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceL1", "ReduceSumSquare"])
def test_reductions_of_integers(sched: vs.Scheduler, op: str) -> None:
    x = RNG.integers(-50, 50, (3, 4, 5), np.int32)
    axes = np.array([0, -1], np.int64)
    wide = {"ReduceL1": np.abs(x), "ReduceSumSquare": x * x}.get(op, x)
    reduce = np.max if op == "ReduceMax" else np.sum
    want = reduce(wide, axis=(0, 2)).astype(np.int32)
    same(run(sched, op, x, axes, known=(1,), keepdims=0), want)


def test_the_largest_of_nothing(sched: vs.Scheduler) -> None:
    for dtype, least in ((np.float32, -np.inf), (np.int32, -(2**31)), (np.uint8, 0)):
        x, axes = np.zeros((2, 0), dtype), np.array([1], np.int64)
        same(run(sched, "ReduceMax", x, axes, known=(1,)), np.full((2, 1), least, dtype))


@FALLS_BACK
def test_random_values_need_a_seed_to_be_the_same(sched: vs.Scheduler) -> None:
    x = np.zeros((40, 50), np.float32)
    first = run(sched, "RandomNormalLike", x, seed=3.0, mean=1.0)
    assert 0.9 < first.mean() < 1.1
    same(run(sched, "RandomNormalLike", x, seed=3.0, mean=1.0), first)
    free = run(sched, "RandomNormalLike", x, host=True)
    assert not np.array_equal(run(sched, "RandomNormalLike", x, host=True), free)


@FALLS_BACK
def test_samples_follow_their_probabilities(sched: vs.Scheduler) -> None:
    probabilities = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]], np.float32)
    with np.errstate(divide="ignore"):
        x = np.log(probabilities) + np.float32(3)
    for attrs in ({"seed": 1.0}, {}):
        drawn = run(sched, "Multinomial", x, host=not attrs, sample_size=4000, **attrs)
        assert drawn.dtype == np.int32 and drawn.shape == (2, 4000)
        found = np.stack([np.bincount(row, minlength=3) for row in drawn]) / 4000
        np.testing.assert_allclose(found, probabilities, atol=0.05)
        coins = run(sched, "Bernoulli", np.full((50, 80), 0.3, np.float32), host=not attrs, **attrs)
        assert abs(float(coins.mean()) - 0.3) < 0.05


# -- quantised ---------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [(), (1, 2)])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint16])
def test_quantising_per_axis_and_back(
    sched: vs.Scheduler, dtype: type, known: tuple[int, ...]
) -> None:
    ends = np.iinfo(dtype)
    x = np.array([[0.5, -0.5, 1.5, 300, -300], [2.5, -2.5, 0.25, 1e9, -1e9]], np.float32)
    scale = np.array([1.0, 0.5], np.float32)
    zero = np.array([1, 2], dtype)
    want = np.rint(x.astype(np.float64) / scale[:, None]) + zero[:, None]
    want = np.clip(want, ends.min, ends.max).astype(dtype)
    same(run(sched, "QuantizeLinear", x, scale, zero, axis=0, known=known), want)
    back = (want.astype(np.float32) - zero[:, None]) * scale[:, None]
    same(run(sched, "DequantizeLinear", want, scale, zero, axis=0, known=known), back)


def scalar(value: float, dtype: type = np.float32) -> NDArray:
    return np.array(value, dtype)


U8, I8 = np.uint8, np.int8
A, B = RNG.integers(0, 256, (4, 6), U8), RNG.integers(-SEVEN_BITS, SEVEN_BITS + 1, (6, 5), I8)
IMAGE = RNG.integers(0, 256, (2, 3, 6, 6), U8)
OUT = (scalar(0.05), scalar(120, U8))
ONE, TWO = (A, scalar(0.03), scalar(128, U8)), (A[::-1].copy(), scalar(0.02), scalar(3, U8))
COLUMNS = np.linspace(0.01, 0.02, 5, dtype=np.float32)
BIAS = RNG.standard_normal(5).astype(np.float32)
WHOLE = RNG.integers(-500, 500, 5).astype(np.int32)
ZEROS = RNG.integers(-5, 5, 5).astype(I8)
MICROSOFT: dict[str, tuple[str, tuple[NDArray, ...], dict[str, Any]]] = {
    "add": ("QLinearAdd", (*ONE, *TWO, *OUT), {}),
    "mul": ("QLinearMul", (*ONE, *TWO, *OUT), {}),
    "sigmoid": ("QLinearSigmoid", (*ONE, scalar(1 / 256), scalar(0, U8)), {}),
    "leaky": ("QLinearLeakyRelu", (*ONE, *OUT), {"alpha": 0.1}),
    "softmax": ("QLinearSoftmax", (*ONE, scalar(1 / 256), scalar(0, U8)), {"opset": 13}),
    "softmax 12": (
        *("QLinearSoftmax", (IMAGE, *ONE[1:], scalar(1 / 256), scalar(0, U8))),
        {"opset": 12, "axis": 2},
    ),
    "mean": ("QLinearGlobalAveragePool", (IMAGE, *ONE[1:], *OUT), {}),
    "pool": (
        *("QLinearAveragePool", (IMAGE, *ONE[1:], *OUT)),
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
    ),
    "concat": ("QLinearConcat", (*OUT, *ONE, *TWO), {"axis": 1}),
    "gemm": ("QGemm", (*ONE, B, scalar(0.01), scalar(0, I8), WHOLE, *OUT), {}),
    "gemm transposed": ("QGemm", (*ONE, B.T.copy(), COLUMNS, ZEROS, WHOLE), {"transB": 1}),
    "to float": (
        "MatMulIntegerToFloat",
        (A, B, scalar(0.05), COLUMNS, scalar(128, U8), ZEROS, BIAS),
        {},
    ),
    "dynamic": (
        "DynamicQuantizeMatMul",
        (RNG.standard_normal((4, 6)).astype(np.float32), B, scalar(0.02), scalar(3, I8), BIAS),
        {},
    ),
}


@pytest.mark.parametrize("name", MICROSOFT)
def test_quantised_ops_of_microsoft_equal_onnxruntime(sched: vs.Scheduler, name: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    op, inputs, attrs = MICROSOFT[name]
    proto = model(op, list(inputs), 17, "com.microsoft", (), 1, **attrs).SerializeToString()
    session = runtime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    want = session.run(None, {f"x{i}": x for i, x in enumerate(inputs)})[0]
    got = run(sched, op, *inputs, version=17, domain="com.microsoft", **attrs)
    assert got.dtype == want.dtype
    step = 1 if want.dtype != np.float32 else 1e-5  # a tie may fall to either side
    assert np.abs(got.astype(np.float64) - want.astype(np.float64)).max() <= step


@pytest.mark.parametrize(("a", "b"), [((6,), (6,)), ((4, 6), (6,)), ((6,), (6, 5))])
def test_quantised_products_take_vectors(
    sched: vs.Scheduler, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    left, right = RNG.integers(0, 255, a), RNG.integers(0, 255, b)
    inputs = left.astype(U8), scalar(0.25), scalar(3, U8)
    inputs += right.astype(U8), scalar(0.5), scalar(5, U8)
    got = run(sched, "QLinearMatMul", *inputs, scalar(64.0), scalar(7, U8), version=17)
    want = np.clip(np.rint((left - 3) @ (right - 5) / 512) + 7, 0, 255)
    np.testing.assert_array_equal(got, want)
