"""How calls of arithmetic, reductions, products and quantised ops are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto
from onnx_calls import Drawn, Source, calls

SPECIAL = ("Abs", "Ceil", "Floor", "Neg", "Round", "IsNaN", "IsInf", "Relu", "Sigmoid",
           "Tanh", "Exp", "Erf", "Softplus", "LeakyRelu", "HardSigmoid", "HardSwish",
           "ThresholdedRelu", "Reciprocal", "Sqrt", "Log", "Softsign")  # fmt: skip
UNIT = ("Acos", "Asin", "Atanh")
FLOATS = ("float16", "float32", "float64")


@calls(
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Ceil", "Cos"),
    *("Cosh", "Erf", "Exp", "Floor", "HardSwish", "IsNaN", "Log", "Mish", "Neg", "Not"),
    *("Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign"),
    *("Sqrt", "Tan", "Tanh", "Identity"),
)
def unary(s: Source) -> Drawn:
    dtype = s.dtype()
    x = s.values(s.shape(), dtype, special=s.op in SPECIAL)
    if s.op in UNIT:
        x = np.clip(x * 0.3, -1, 1).astype(dtype)
    elif s.op == "Acosh":
        x = (np.abs(x) + 1).astype(dtype)
    elif s.op == "Tan":
        x = np.clip(x, -1.2, 1.2)
    return [x], {}


NUMBERS = {
    "Celu": ("alpha",), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",), "Selu": ("alpha", "gamma"), "ThresholdedRelu": ("alpha",),
    "Shrink": ("bias", "lambd"), "Swish": ("alpha",),
}  # fmt: skip


@calls(*NUMBERS)
def activation(s: Source) -> Drawn:
    only = (
        ("float32", "float16") if s.op == "Shrink" else ()
    )  # of integers bodies and kernels differ
    x = s.values(s.shape(), s.dtype(0, *only), special=s.op in SPECIAL)
    return [x], {n: round(0.1 + 2 * s.rng.random(), 2) for n in NUMBERS[s.op] if s.chance(0.6)}


@calls("IsInf")
def is_inf(s: Source) -> Drawn:
    names = ("detect_negative", "detect_positive")
    feeds = {n: s.int(0, 1) for n in names if s.chance(0.6)}
    return [s.values(s.shape(), s.dtype(), special=True)], feeds


@calls("Gelu")
def gelu(s: Source) -> Drawn:
    return [s.values(s.shape(), s.dtype())], {"approximate": s.pick("none", "tanh", None)}


@calls("PRelu")
def prelu(s: Source) -> Drawn:
    shape, dtype = s.shape(1, 4), s.dtype()
    slope = [s.pick(1, d) for d in shape[s.int(0, len(shape)) :]]
    return [s.values(shape, dtype), s.values(slope, dtype)], {}


@calls("Add", "Sub", "Mul", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "And", "Or", "Xor", "Equal",
       "Less", "LessOrEqual", "Greater", "GreaterOrEqual")  # fmt: skip
def binary(s: Source) -> Drawn:
    dtype, (a, b) = s.dtype(), s.broadcasts(2)
    return [s.values(a, dtype, special=True), s.values(b, dtype, special=True)], {}


@calls("Div", "Mod")
def division(s: Source) -> Drawn:
    """Of integers by what is not 0 or -1, where processors trap."""
    dtype, (a, b) = s.dtype(), s.broadcasts(2)
    y = s.values(b, dtype)
    if dtype.kind in "iu":
        y = np.where((y == 0) | (y == -1 if dtype.kind == "i" else y == 0), 3, y).astype(dtype)
    elif s.op == "Mod":
        y = np.where(np.abs(y) < 0.3, 0.75, y).astype(dtype)
    fmod = {"fmod": 1 if dtype.kind == "f" else s.int(0, 1)} if s.op == "Mod" else {}
    full = False if fmod.get("fmod") and dtype.kind != "f" else None  # onnxruntime goes over double
    return [s.values(a, dtype, special=s.op == "Div", full=full), y], fmod


@calls("Pow")
def power(s: Source) -> Drawn:
    a, b = s.broadcasts(2)
    base = s.dtype()
    exponent = s.dtype(1) if s.opset >= 12 else base
    x = s.values(a, base, full=False)
    if exponent.kind in "iu":
        low = 0 if base.kind in "iu" or exponent.kind == "u" else -2
        y = s.rng.integers(low, 4, b).astype(exponent)
    else:
        y = s.rng.choice([0.0, 0.5, 1.0, 2.0, 3.0], b).astype(exponent)
    if s.chance(0.3):
        y = np.full(s.pick((), (1,), (1, 1)), s.pick(0, 1, 2, 3), exponent)
    if base.kind == "f" and s.chance(0.7):
        x = np.abs(x) + base.type(0.25)
    return [x, y], {}


@calls("BitShift")
def shift(s: Source) -> Drawn:
    dtype, (a, b) = s.dtype(), s.broadcasts(2)
    most = dtype.itemsize * 8 - 1
    y = s.rng.integers(0, most, b, endpoint=True).astype(dtype)
    return [s.values(a, dtype), y], {"direction": s.pick("LEFT", "RIGHT")}


@calls("Sum", "Mean", "Max", "Min")
def several(s: Source) -> Drawn:
    dtype = s.dtype()
    shapes = s.broadcasts(s.int(1, 4))
    if s.opset < 8:
        shapes = [shapes[0]] * len(shapes)
    return [s.values(a, dtype, special=True) for a in shapes], {}


@calls("Where")
def where(s: Source) -> Drawn:
    dtype, (c, a, b) = s.dtype(1), s.broadcasts(3)
    return [s.values(c, bool), s.values(a, dtype, True), s.values(b, dtype, True)], {}


@calls("Clip")
def clip(s: Source) -> Drawn:
    dtype = s.dtype()
    low, high = (s.values((), dtype, full=False) if s.chance(0.7) else None for _ in range(2))
    # whether an end that is left out cuts infinities is read in two ways
    x = s.values(s.shape(), dtype, special=low is not None and high is not None)
    if s.opset < 11:
        return [x], {
            "min": None if low is None else float(low),
            "max": None if high is None else float(high),
        }
    return [x, low, high], {}


CASTS = ("FLOAT", "FLOAT16", "DOUBLE", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32",
         "INT64", "UINT64", "BOOL", "BFLOAT16")  # fmt: skip


@calls("Cast")
def cast(s: Source) -> Drawn | None:
    dtype, target = s.dtype(), s.pick(*CASTS)
    x = s.values(s.shape(), dtype)
    if dtype.kind == "f" and target.startswith("UINT"):
        x = np.abs(x)  # below 0 the result is undefined
    if target == "BFLOAT16" and s.opset < 13:
        return None
    return [x], {"to": getattr(TensorProto, target)}


# -- reductions ------------------------------------------------------------------------------------


@calls("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd",
       "ReduceSum", "ReduceSumSquare", "ReduceMax", "ReduceMin")  # fmt: skip
def reduction(s: Source) -> Drawn | None:
    integral = {"ReduceLogSumExp": (), "ReduceSumSquare": ("int32", "int64")}
    only = (*integral[s.op], *FLOATS) if s.op in integral else ()
    x = s.values(s.shape(), s.dtype(0, *only), scale=1.0, full=False)
    s.reference = not x.size  # of nothing onnxruntime gives other shapes
    if s.op in ("ReduceMean", "ReduceSumSquare") and not x.size and x.dtype.kind != "f":
        return None
    if s.op == "ReduceProd" and x.dtype.kind != "f":
        x = x % x.dtype.type(3)
    if s.op == "ReduceLogSum":
        x = np.abs(x) + x.dtype.type(1)
    attrs: dict[str, Any] = {"keepdims": s.pick(0, 1, None)}
    axes = s.axes(x.ndim) if s.chance(0.7) else None
    if s.opset < (13 if s.op == "ReduceSum" else 18):
        if s.opset < 11 and axes is not None:
            axes = [a % x.ndim for a in axes]
        return [x], {**attrs, "axes": axes or None}
    attrs["noop_with_empty_axes"] = s.pick(0, 1, None)
    if axes is None and s.chance(0.5):
        axes = []
    return [x, None if axes is None else s.vector(axes)], attrs


@calls("ArgMax", "ArgMin")
def arg(s: Source) -> Drawn:
    x = s.values(s.shape(1, 4, empty=False), s.dtype())
    axis = s.axis(x.ndim) if s.opset >= 11 else s.int(0, x.ndim - 1)
    last = s.pick(0, 1, None) if s.opset >= 12 else None
    return [x], {
        "axis": axis if s.chance(0.8) else None,
        "keepdims": s.pick(0, 1, None),
        "select_last_index": last,
    }


@calls("CumSum")
def running(s: Source) -> Drawn:
    x = s.values(s.shape(1, 4), s.dtype(), full=False)
    axis = np.array(s.axis(x.ndim), s.pick(np.int32, np.int64))
    return [x, axis.reshape(s.pick((), (1,)) if s.chance(0.2) else ())], {
        "exclusive": s.pick(0, 1, None),
        "reverse": s.pick(0, 1, None),
    }


@calls("TopK")
def topk(s: Source) -> Drawn:
    x = s.values(s.shape(1, 4, empty=False), s.dtype())
    axis = s.axis(x.ndim) if s.opset >= 11 else s.int(0, x.ndim - 1)
    if s.chance(0.3):
        axis = x.ndim - 1
    k = s.int(0 if s.opset >= 10 else 1, x.shape[axis])
    attrs: dict[str, Any] = {"axis": axis}
    if s.opset < 10:
        return [x], {**attrs, "k": k}, 2
    if s.opset >= 11:
        attrs["largest"] = s.pick(0, 1, None)
    return [x, s.vector([k])], attrs, 2


@calls("Softmax", "LogSoftmax", "Hardmax")
def softmax(s: Source) -> Drawn:
    dtype = s.dtype(0, "float32") if s.op == "Hardmax" and s.opset < 13 else s.dtype()
    x = s.values(s.shape(1, 4), dtype, scale=4.0)
    axis = s.axis(x.ndim) if s.opset >= 11 else s.int(0, x.ndim - 1)
    return [x], {"axis": axis if s.chance(0.7) or x.ndim == 1 else None}


@calls("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def loss(s: Source) -> Drawn:
    batch, classes, *rest = s.shape(2, 4, empty=False)
    dtype = s.pick(np.float32, np.float32, np.float64)
    x = s.values((batch, classes, *rest), dtype)
    labels = s.rng.integers(0, classes, (batch, *rest)).astype(s.pick(np.int32, np.int64))
    weights = np.abs(s.values((classes,), dtype)) + dtype(0.1) if s.chance(0.5) else None
    attrs: dict[str, Any] = {"reduction": s.pick("mean", "sum", "none", None)}
    if s.chance(0.5):
        attrs["ignore_index"] = s.pick(0, classes - 1, -1)
        labels = np.where(s.rng.random(labels.shape) < 0.3, attrs["ignore_index"], labels).astype(
            labels.dtype
        )
    return [x, labels, weights], attrs, s.int(1, 2) if s.op.startswith("Soft") else 1


# -- products --------------------------------------------------------------------------------------


@calls("MatMul")
def matmul(s: Source) -> Drawn:
    dtype = s.dtype()
    m, k, n = (s.size() for _ in range(3))
    before = s.broadcasts(2, 2)
    a, b = [*before[0], m, k], [*before[1], k, n]
    if s.chance(0.15):
        a = [k]
    if s.chance(0.15):
        b = [k]
    return [s.values(a, dtype, full=False), s.values(b, dtype, full=False)], {}


@calls("Gemm")
def gemm(s: Source) -> Drawn:
    dtype = s.dtype()
    m, k, n = (s.size(False) for _ in range(3))
    left, right = s.int(0, 1), s.int(0, 1)
    shapes = [(m, n), (n,), (1, n), (m, 1), (1, 1), (1,)] + [()] * (s.opset >= 11)
    c = s.values(s.pick(*shapes), dtype, full=False)
    number = (lambda: round(float(s.rng.normal()), 2)) if dtype.kind == "f" else lambda: 2.0
    return [
        s.values((k, m) if left else (m, k), dtype, full=False),
        s.values((n, k) if right else (k, n), dtype, full=False),
        None if s.opset >= 11 and s.chance(0.3) else c,
    ], {
        "transA": left or None,
        "transB": right or None,
        "alpha": number() if s.chance(0.4) else None,
        "beta": number() if s.chance(0.4) else None,
    }


EQUATIONS = (
    "ij,jk->ik", "ij,jk", "...ij,...jk->...ik", "bij,bjk->bik", "ij->ji", "ii->i", "ii", "i,i->",
    "ij->", "i,j->ij", "bhid,bhjd->bhij", "...i,...i->...", "ij,ij->ij", "ijk->kj", "...ij->...ji",
    "a...,...->a...", "b n d , d e -> b n e", "ij,jk,kl->il", "bij,kij->bk", "...ii->...i",
)  # fmt: skip


@calls("Einsum")
def einsum(s: Source) -> Drawn:
    dtype = s.dtype(0, "float32", "float64", "int32", "int64", "float16")
    equation = s.pick(*EQUATIONS)
    sizes = {c: s.size(False) for c in "abcdehijkln"}
    before = s.shape(0, 2, empty=False)
    operands = []
    for term in equation.replace(" ", "").split("->")[0].split(","):
        shape: list[int] = []
        for part in term.replace("...", "."):
            shape += before if part == "." else [sizes[part]]
        operands.append(s.values(shape, dtype, full=False, scale=1.0))
    return operands, {"equation": equation}


# -- quantised -------------------------------------------------------------------------------------

BYTES = (np.uint8, np.int8)


def scale_of(s: Source, shape: tuple[int, ...] = (), dtype: Any = np.float32) -> Any:
    """Scales; powers of 2 among them, so that quotients end in .5."""
    built = s.rng.choice([0.25, 0.5, 0.125], shape) if s.chance(0.5) else s.rng.random(shape) + 0.01
    return np.asarray(built).astype(dtype)


def zero_of(s: Source, dtype: Any, shape: tuple[int, ...] = ()) -> Any:
    return np.zeros(shape, dtype) if s.chance(0.2) else s.values(shape, dtype, full=True)


@calls("QuantizeLinear", "DequantizeLinear")
def quantize(s: Source) -> Drawn:
    shape = s.shape(1 if s.opset >= 13 else 0, 4, empty=False)
    attrs: dict[str, Any] = {}
    parameters: tuple[int, ...] = s.pick((), (), (1,) if len(shape) else ())
    if s.opset >= 13 and s.chance(0.5):
        axis = s.axis(len(shape))
        attrs["axis"] = axis
        parameters = (shape[axis],)
        if s.opset >= 21 and s.chance(0.5):
            block = s.int(1, shape[axis])
            attrs["block_size"] = block
            at = axis % len(shape)
            parameters = (*shape[:at], -(-shape[axis] // block), *shape[at + 1 :])
            if -(-shape[axis] // block) != shape[axis] / block:
                attrs["block_size"], parameters = 1, shape
    floats = (np.float32, np.float32, np.float16) if s.opset >= 19 else (np.float32,)
    kind = s.pick(*floats)
    ints = (*BYTES, np.uint16, np.int16) if s.opset >= 21 else BYTES
    held = s.pick(*ints)
    scale = scale_of(s, parameters, kind)
    zero = zero_of(s, held, parameters) if s.chance(0.7) else None
    if s.op == "DequantizeLinear":
        if s.chance(0.2):
            held, zero = np.int32, None
        return [s.values(shape, held, full=True), scale, zero], attrs
    x = s.values(shape, kind, scale=s.pick(2.0, 30.0, 200.0))
    if kind == np.float32 and s.chance(0.15):
        x = (
            s.values(shape, np.int32, full=False)
            if s.opset < 19
            else s.values(shape, kind, scale=1e5)
        )
    return [x, scale, zero], attrs


@calls("DynamicQuantizeLinear")
def dynamic_quantize(s: Source) -> Drawn:
    x = s.values(s.shape(0, 4, empty=False))
    sign = s.pick(0, 1, -1)
    return [sign * np.abs(x) if sign else x], {}, 3


@calls("MatMulInteger")
def matmul_integer(s: Source) -> Drawn:
    m, k, n = (s.size(False) for _ in range(3))
    a, b = s.pick(*BYTES), s.pick(*BYTES)
    before = s.broadcasts(2, 2)
    rows = s.pick((), (), (1,))
    columns = s.pick((), (1,), (n,))
    return [
        s.values((*before[0], m, k), a, full=True),
        s.values((*before[1], k, n), b, full=True),
        zero_of(s, a, rows) if s.chance(0.7) else None,
        zero_of(s, b, columns) if s.chance(0.7) else None,
    ], {}


@calls("QLinearMatMul")
def qlinear_matmul(s: Source) -> Drawn:
    m, k, n = (s.size(False) for _ in range(3))
    a = s.pick(*BYTES)
    b = np.int8 if a == np.int8 else s.pick(*BYTES)
    before = s.broadcasts(2, 1)
    columns = s.pick((), (), (n,))
    return [
        s.values((*before[0], m, k), a, full=True), scale_of(s), zero_of(s, a),
        s.values((*before[1], k, n), b, full=True), scale_of(s, columns), zero_of(s, b, columns),
        scale_of(s) * np.float32(s.pick(1, 8, 50)), zero_of(s, a),
    ], {}  # fmt: skip
