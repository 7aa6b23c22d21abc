"""Samples of creation ops: every dtype, one value, more than a workgroup, empty, ends of ranges."""

from __future__ import annotations

import numpy as np

from .... import ops
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ..op_sample import ErrorSample, FunctionSample, OpSample, floats, ints


def creation(
    op: str, name: str, shape: tuple[int, ...], dtype: str, **attrs: AttrValue
) -> OpSample:
    all_attrs = {"shape": shape, "dtype": dtype, **attrs}
    return OpSample(op, (), all_attrs, f"{name}{shape}{dtype}".replace(" ", ""))


CASES: list[OpSample] = [
    *(
        creation("full", "", shape, "float32", value=2.5)
        for shape in ((), (1,), (7,), (5003,), (71, 73), (2, 3, 2, 1, 2, 3, 2, 3), (0,), (3, 0))
    ),
    *(
        creation("full", f"{v} ", (7,), "float32", value=v)
        for v in (0.0, np.inf, -np.inf, np.nan, 0.1)
    ),
    *(creation("full", f"{v} ", (7,), "int32", value=v) for v in (0, -1, 2**31 - 1, -(2**31))),
    *(creation("full", f"{v} ", (7,), "uint32", value=v) for v in (0, 2**32 - 1)),
    *(creation("full", f"{v} ", (7,), "int64", value=v) for v in (-5, 2**31, 2**40)),
    *(creation("full", f"{v} ", (7,), "bool", value=v) for v in (True, False)),
    *(creation("full", "", (7, n), "float16", value=v) for n, v in ((1, 0.5), (4, -3.0), (0, 1.0))),
    creation("full", "nan", (4,), "float16", value=np.nan),
    creation("full", "", (7,), "float64", value=0.1),
    *(
        creation("eye", f"{k} ", shape, "float32", diagonal=k)
        for shape in ((1, 1), (5, 5), (71, 73), (7, 3), (0, 3), (3, 0))
        for k in ((0, 1, -2) if shape[0] > 1 else (0,))
    ),
    *(creation("eye", "", (3, 5), t, diagonal=1) for t in ("int32", "uint32", "bool", "int64")),
    creation("eye", "", (3, 5), "float16", diagonal=0),
    creation("eye", "far ", (3, 5), "int32", diagonal=2**30),
    *(
        creation("arange", f"{start},{step} ", (count,), "int32", start=start, step=step)
        for count, start, step in (
            *((1, 7, 3), (7, 0, 1), (5003, -5, 7), (5, 9, -4), (0, 0, 1)),
            *((3, 2**31 - 5, 2), (2, -(2**31), 2**31 - 1)),
        )
    ),
    *(
        creation("arange", f"{start},{step} ", (count,), "float32", start=start, step=step)
        for count, start, step in (
            *((1, 0.5, 3.0), (7, 0.0, 0.1), (5003, -5.0, 0.3), (5, 9.0, -4.0), (0, 0.0, 1.0)),
        )
    ),
    creation("arange", "", (4,), "uint32", start=2**31, step=2**29),
    creation("arange", "", (5,), "int64", start=-5, step=7),
    creation("arange", "wide ", (5,), "int64", start=2**40, step=1),
    creation("arange", "widens ", (5,), "int64", start=2**31 - 3, step=1),
    creation("arange", "", (50,), "float64", start=0.1, step=0.25),
    creation("arange", "", (50,), "float16", start=0.0, step=0.25),
    *(
        creation(
            "linspace", "", (count,), "float32", start=a, step=(b - a) / max(1, count - 1), stop=b
        )
        for count, a, b in (
            *((0, 0.0, 1.0), (1, 2.0, 2.0), (2, 0.1, 0.7), (7, -1.0, 1.0), (5003, 0.3, 1e6)),
            *((50, 3.0, -2.0), (64, 1.0, 1.0)),
        )
    ),
    creation("linspace", "", (9,), "float16", start=0.0, step=0.125, stop=1.0),
    creation("linspace", "", (9,), "float64", start=0.0, step=0.1, stop=0.8),
]

_X = floats(3, 5)
FUNCTIONS = [
    *(FunctionSample("full", lambda v=v: ops.full((2, 3), v), (), repr(v)) for v in (True, 3, 0.5)),
    FunctionSample("zeros", lambda: ops.zeros(5), ()),
    FunctionSample("zeros", lambda: ops.zeros((2, 3), "bool"), (), "bool"),
    FunctionSample("ones", lambda: ops.ones((2, 3)), ()),
    FunctionSample("ones", lambda: ops.ones((2, 3), "bool"), (), "bool"),
    FunctionSample("ones", lambda: ops.ones((2, 3), "int32"), (), "int32"),
    FunctionSample("zeros_like", ops.zeros_like, (_X,)),
    FunctionSample("zeros_like", ops.zeros_like, (ints(7),), "int"),
    FunctionSample("ones_like", ops.ones_like, (_X > 0,), "bool"),
    FunctionSample("ones_like", lambda x: ops.ones_like(x, "int32"), (_X,), "other"),
    FunctionSample("full_like", lambda x: ops.full_like(x, 3), (_X,)),
    FunctionSample("eye", lambda: ops.eye(4), ()),
    FunctionSample("eye", lambda: ops.eye(4, 6, -2, "int32"), (), "more"),
    *(
        FunctionSample("arange", lambda a=a: ops.arange(*a), (), ",".join(map(repr, a)))
        for a in (
            *((5,), (2, 9), (2, 9, 3), (9, 2), (9, 2, -2), (0.5, 3), (0, 1, 0.1), (5, 5)),
            *((3.0,), (1, 0, -0.25), (0, 10, 10)),
        )
    ),
    *(
        FunctionSample("linspace", lambda a=a: ops.linspace(*a), (), ",".join(map(repr, a)))
        for a in ((0, 1), (0, 1, 7), (0, 1, 7, False), (3, -3, 1), (2, 5, 0), (1e-3, 1e3, 101))
    ),
]

ERRORS: list[ErrorSample] = [
    ErrorSample(lambda: ops.full((2,), 0.5, "int32"), DTypeError, "values of int32"),
    ErrorSample(lambda: ops.full((2,), [1, 2]), ShapeError, "one value"),  # type: ignore[arg-type]
    ErrorSample(lambda: ops.full((-2,), 1), ShapeError, "0 or more"),
    ErrorSample(lambda: ops.zeros((2,), "int8"), DTypeError, "expected one of"),
    ErrorSample(lambda: ops.ones((1,) * 9), ShapeError, "rank"),
    ErrorSample(lambda: ops.eye(-1), ShapeError, "0 or more"),
    ErrorSample(lambda: ops.arange(0, 5, 0), ShapeError, "step other than 0"),
    ErrorSample(lambda: ops.arange(float("inf")), DTypeError, "finite number as stop"),
    ErrorSample(lambda: ops.arange(5, dtype="bool"), DTypeError, "dtype of numbers"),
    ErrorSample(lambda: ops.arange(0.5, 3, dtype="int32"), DTypeError, "values of int32"),
    ErrorSample(lambda: ops.linspace(0, 1, dtype="int32"), DTypeError, "float dtype"),
    ErrorSample(lambda: ops.linspace(0, 1, -1), ShapeError, "0 or more values"),
]
