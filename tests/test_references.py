"""The numpy references against oracles that share no code with them: ONNX, scipy, Python's math."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from op_cases import Case
from op_runner import check
from test_ops import CASES

from vksched.types import NDArray

onnx = pytest.importorskip("onnx")
scipy_special = pytest.importorskip("scipy.special")

Oracle = Callable[[Case], NDArray]


def by_onnx(op_type: str, names: tuple[str, ...] = (), **fixed: Any) -> Oracle:
    """The ONNX reference implementation of one node; names: attributes of the case to hand on."""

    def compute(case: Case) -> NDArray:
        return run_onnx(op_type, case.inputs, {n: case.attrs[n] for n in names} | fixed)

    return compute


def run_onnx(op_type: str, inputs: tuple[NDArray, ...], attrs: dict[str, Any]) -> NDArray:
    from onnx.reference import ReferenceEvaluator

    names = [f"x{i}" for i in range(len(inputs))]
    types = [onnx.helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs]
    values = [
        onnx.helper.make_tensor_value_info(n, t, x.shape)
        for n, t, x in zip(names, types, inputs, strict=True)
    ]
    node = onnx.helper.make_node(op_type, names, ["y"], **attrs)
    out = onnx.helper.make_tensor_value_info("y", types[0], None)
    graph = onnx.helper.make_graph([node], "one", values, [out])
    opset = onnx.helper.make_opsetid("", 18)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    with np.errstate(all="ignore"):
        result = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))[0]
    return np.asarray(result)


def in_double(compute: Callable[..., Any]) -> Oracle:
    """A formula on float64 operands."""

    def oracle(case: Case) -> NDArray:
        with np.errstate(all="ignore"):
            result = compute(*(x.astype(np.float64) for x in case.inputs))
            return np.asarray(result, np.float32)

    return oracle


def elementwise(compute: Callable[..., Any]) -> Oracle:
    """A Python function of Python numbers, value by value."""

    def oracle(case: Case) -> NDArray:
        arrays = np.broadcast_arrays(*case.inputs)
        flat = [compute(*values) for values in zip(*(a.ravel().tolist() for a in arrays))]  # noqa: B905
        dtype = case.expected().dtype
        if dtype == np.int32:
            flat = [(int(v) + 2**31) % 2**32 - 2**31 for v in flat]
        return np.asarray(flat, dtype).reshape(arrays[0].shape)

    return oracle


def int_divide(a: int, b: int) -> int:
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def int_power(a: int, b: int) -> int:
    if b >= 0:
        return pow(a, b, 2**32)
    return 1 if a == 1 else (1 if b % 2 == 0 else -1) if a == -1 else 0


def cast(case: Case) -> NDArray:
    def one(value: float) -> float:
        if case.attrs["to"] == "bool":
            return value != 0
        if case.attrs["to"] == "int32" and isinstance(value, float):
            fits = math.isfinite(value) and -(2**31) <= value < 2**31
            return int(value) if fits else -(2**31)
        return value

    return elementwise(one)(case)


def gelu_tanh(x: NDArray) -> NDArray:
    return x * scipy_special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


def matmul(case: Case) -> NDArray:
    a, b = (x.astype(np.float64 if x.dtype == np.float32 else object) for x in case.inputs[:2])
    left = "...km" if case.attrs["transpose_a"] else "...mk"
    right = "...nk" if case.attrs["transpose_b"] else "...kn"
    if a.dtype == object:
        left_first = a.swapaxes(-1, -2) if case.attrs["transpose_a"] else a
        right_first = b.swapaxes(-1, -2) if case.attrs["transpose_b"] else b
        out = (left_first[..., :, None, :] * right_first.swapaxes(-1, -2)[..., None, :, :]).sum(-1)
    else:
        with np.errstate(all="ignore"):
            out = np.einsum(f"{left},{right}->...mn", a, b)
    if len(case.inputs) > 2:
        out = out + case.inputs[2].astype(a.dtype)
    if a.dtype == object:
        return np.asarray((out + 2**31) % 2**32 - 2**31, np.int32)
    return np.asarray(out, np.float32)


def reduce(compute: Callable[..., Any]) -> Oracle:
    def oracle(case: Case) -> NDArray:
        x = case.inputs[0]
        axes = case.attrs["axes"]
        assert isinstance(axes, tuple)
        kept = [a for a in range(x.ndim) if a not in axes]
        columns = math.prod(x.shape[int(a)] for a in axes)  # type: ignore[arg-type]
        rows = math.prod(x.shape[a] for a in kept)
        flat = x.transpose((*kept, *map(int, axes))).reshape(rows, columns).tolist()  # type: ignore[arg-type]
        dtype = x.dtype
        values = [compute(row) for row in flat]
        if dtype == np.int32:
            values = [(v + 2**31) % 2**32 - 2**31 for v in values]
        return np.asarray(values, dtype).reshape(case.expected().shape)

    return oracle


def with_nan(compute: Callable[[list[float]], float]) -> Callable[[list[float]], float]:
    """numpy's max and min: NaN wins."""
    return lambda row: math.nan if any(v != v for v in row) else compute(row)


def exact_sum(row: list[float]) -> float:
    if all(math.isfinite(v) for v in row):
        return math.fsum(row) if any(isinstance(v, float) for v in row) else sum(row)
    return sum(row)


def mean(row: list[float]) -> float:
    return exact_sum(row) / len(row) if row else math.nan


def layer_norm(case: Case) -> NDArray:
    inputs, attrs = list(case.inputs), case.attrs
    axis, eps = attrs["axis"], attrs["eps"]
    shape = inputs[0].shape[int(axis) :]  # type: ignore[arg-type]
    scale = inputs[1] if attrs["scaled"] else np.ones(shape, np.float32)
    rest = [inputs[-1]] if attrs["shifted"] else []
    wide = tuple(x.astype(np.float64) for x in (inputs[0], scale, *rest))
    result = run_onnx("LayerNormalization", wide, {"axis": axis, "epsilon": eps})
    return np.asarray(result, np.float32)


def rms_norm(case: Case) -> NDArray:
    x = case.inputs[0].astype(np.float64)
    rows = x.reshape(*x.shape[: int(case.attrs["axis"])], -1)  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        length = np.linalg.norm(rows, axis=-1, keepdims=True)
        value = rows / np.sqrt(length**2 / max(1, rows.shape[-1]) + case.attrs["eps"])  # type: ignore[operator]
    value = value.reshape(x.shape)
    return np.asarray(value * case.inputs[1] if case.attrs["scaled"] else value, np.float32)


def softmax(case: Case) -> NDArray:
    x = case.inputs[0].astype(np.float64)
    if x.size == 0:
        return case.inputs[0]
    with np.errstate(all="ignore"):
        return np.asarray(scipy_special.softmax(x, axis=case.attrs["axis"]), np.float32)


def sliced(case: Case) -> NDArray:
    keys: list[slice] = [slice(None)] * case.inputs[0].ndim
    fields = (case.attrs[n] for n in ("axes", "starts", "stops", "steps"))
    for axis, start, stop, step in zip(*fields, strict=True):  # type: ignore[arg-type]
        keys[axis] = slice(start, stop, step)
    return case.inputs[0][tuple(keys)]


def transpose(case: Case) -> NDArray:
    if not case.attrs["axes"]:
        return case.inputs[0]
    return run_onnx("Transpose", case.inputs, {"perm": case.attrs["axes"]})


def float_or_int(on_floats: Oracle, on_ints: Oracle) -> Oracle:
    return lambda case: (on_floats if case.inputs[0].dtype == np.float32 else on_ints)(case)


ORACLES: dict[str, Oracle] = {
    **{op: in_double(getattr(np, op)) for op in ("sqrt", "exp", "log", "tanh")},
    "rsqrt": in_double(lambda x: 1 / np.sqrt(x)),
    "erf": in_double(scipy_special.erf),
    "gelu": in_double(lambda x: x * scipy_special.ndtr(x)),
    "gelu_tanh": in_double(gelu_tanh),
    "sigmoid": in_double(scipy_special.expit),
    "silu": in_double(lambda x: x * scipy_special.expit(x)),
    "relu": elementwise(lambda x: x if x > 0 or x != x else 0),
    "neg": elementwise(lambda x: -x),
    "abs": elementwise(abs),
    "logical_not": by_onnx("Not"),
    "cast": cast,
    "add": float_or_int(in_double(np.add), elementwise(lambda a, b: a + b)),
    "sub": float_or_int(in_double(np.subtract), elementwise(lambda a, b: a - b)),
    "mul": float_or_int(in_double(np.multiply), elementwise(lambda a, b: a * b)),
    "div": float_or_int(in_double(np.divide), elementwise(int_divide)),
    "pow": float_or_int(in_double(np.power), elementwise(int_power)),
    "maximum": elementwise(lambda a, b: math.nan if a != a or b != b else max(a, b)),
    "minimum": elementwise(lambda a, b: math.nan if a != a or b != b else min(a, b)),
    "equal": elementwise(lambda a, b: a == b),
    "not_equal": elementwise(lambda a, b: a != b),
    "less": elementwise(lambda a, b: a < b),
    "less_equal": elementwise(lambda a, b: a <= b),
    "greater": elementwise(lambda a, b: a > b),
    "greater_equal": elementwise(lambda a, b: a >= b),
    "logical_and": by_onnx("And"),
    "logical_or": by_onnx("Or"),
    "logical_xor": by_onnx("Xor"),
    "where": elementwise(lambda c, a, b: a if c else b),
    "gather": by_onnx("Gather", ("axis",)),
    "reshape": lambda case: np.reshape(case.inputs[0].ravel(), case.expected().shape),
    "transpose": transpose,
    "slice": sliced,
    "concat": by_onnx("Concat", ("axis",)),
    "expand": lambda case: case.inputs[0] + np.zeros(case.attrs["shape"], case.inputs[0].dtype),  # type: ignore[arg-type]
    "matmul": matmul,
    "reduce_sum": reduce(exact_sum),
    "reduce_mean": reduce(mean),
    "reduce_max": reduce(with_nan(max)),
    "reduce_min": reduce(with_nan(min)),
    "softmax": softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_reference_equals_an_independent_oracle(case: Case) -> None:
    check(case, case.expected(), ORACLES[case.op](case), "numpy")
