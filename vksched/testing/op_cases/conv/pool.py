"""Samples of pooling: all window shapes, padding, NaN, adaptive windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import ops
from ....common.dtypes import Shape
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import input
from ..op_sample import ErrorSample, FunctionSample, floats, fp16_array, ints
from .conv import call, edges

WINDOWS: list[tuple[str, Shape, Any, dict[str, Any]]] = [
    ("one", (1, 1, 1), 1, {}),
    ("1d", (2, 3, 17), 3, {}),
    ("1d", (1, 2, 301), 5, {"stride": 2, "padding": (2, 1)}),
    ("2d", (2, 3, 13, 11), 3, {"stride": 2, "padding": 1}),
    ("2d", (1, 5, 7, 16), (2, 5), {"stride": (1, 3), "padding": (1, 0, 0, 2)}),
    ("3d", (2, 3, 5, 6, 7), (2, 3, 2), {"stride": (1, 2, 3), "padding": (0, 1, 1)}),
    ("many", (3, 7, 31, 33), 2, {"stride": 1}),
    ("whole", (2, 5, 9, 8), (9, 8), {}),
    ("dilated", (1, 3, 12, 11), (3, 2), {"stride": 1, "dilation": (2, 5), "padding": (2, 3)}),
    ("ceil", (1, 3, 8, 9), 3, {"stride": 2, "ceil_mode": True}),
    ("ceil padded", (2, 2, 7, 10), (2, 3), {"stride": 3, "padding": 1, "ceil_mode": True}),
    ("ceil over all", (1, 2, 4, 4), 5, {"stride": 2, "ceil_mode": True}),
    ("ceil over the end", (1, 2, 5), 2, {"stride": 4, "padding": 1, "ceil_mode": True}),
    *(
        (f"{rule} by {stride}", (1, 2, 8, 7), (4, 3), {"padding": rule, "stride": stride})
        for rule in ("same_upper", "same_lower", "valid")
        for stride in (1, (2, 3))
    ),
    ("no images", (0, 3, 5), 2, {}),
    ("no channels", (2, 0, 5, 5), 2, {}),
]
POOLS: list[tuple[str, dict[str, Any], str]] = [
    ("max_pool", {}, ""),
    ("max_pool_indices", {}, ""),
    ("average_pool", {}, ""),
    ("average_pool", {"count_include_pad": True}, "pad"),
    ("lp_pool", {}, ""),
]
NAN, INF = np.nan, np.inf
EDGES = edges(floats(2, 3, 9, 10), NAN, INF, -INF, NAN, -0.0, 0.0, INF)
EDGES[0, 1] = -np.inf
TIES = np.asarray(np.round(floats(2, 3, 9, 10)), np.float32)

SIZES: list[tuple[Shape, Any]] = [
    *(((1, 1, 1), 2), ((2, 3, 17), 5), ((2, 3, 5), 17), ((2, 3, 12, 10), (4, 5))),
    *(((1, 4, 7, 11), (3, 13)), ((2, 2, 5, 6, 7), (2, 4, 3)), ((1, 3, 40, 41), 7)),
    *(((2, 3, 7, 5), (1, 2)), ((0, 3, 5), 2), ((2, 3, 5, 4), (0, 2))),
]

CASES = [
    *(
        call(op, (floats(*x),), " ".join(filter(None, (name, kind))), kernel=kernel, **more, **own)
        for op, own, kind in POOLS
        for name, x, kernel, more in WINDOWS
    ),
    *(
        call(op, (ints(*x),), f"int {name}", kernel=kernel, **more)
        for op in ("max_pool", "max_pool_indices")
        for name, x, kernel, more in WINDOWS[:8]
    ),
    *(
        call(op, (EDGES,), f"edges {kind}", kernel=3, stride=2, padding=1, **own)
        for op, own, kind in POOLS
    ),
    *(
        call(op, (x,), f"ties {x.dtype.kind}", kernel=3, stride=1, padding=1)
        for op in ("max_pool", "max_pool_indices")
        for x in (TIES, np.full((1, 2, 5), -(2**31), np.int32))
    ),
    *(
        call(op, (x,), f"only padding {kind}{x.dtype.kind}", kernel=2, padding=3, stride=1, **own)
        for op, own, kind in POOLS
        for x in (floats(1, 2, 4), *((ints(1, 2, 4),) if "max" in op else ()))
    ),
    *(  # axes of size 1 need no stride
        call(op, (floats(1, 2, 5),), f"only {dilation}", kernel=1, dilation=dilation, padding=2)
        for op in ("max_pool", "max_pool_indices", "average_pool", "lp_pool")
        for dilation in (2**31 - 1, 2**33)
    ),
    *(
        call(op, (floats(1, 2, 5),), f"huge stride {ceil}", kernel=4, stride=2**40, ceil_mode=ceil)
        for op in ("max_pool", "max_pool_indices", "average_pool", "lp_pool")
        for ceil in (False, True)
    ),
    *(
        call("lp_pool", (floats(2, 3, 9, 8),), f"p {p}", kernel=3, p=p, stride=2, padding=1)
        for p in (1, 2.0, 3, 0.5, 2.5)
    ),
    call("lp_pool", (edges(floats(1, 2, 30), NAN, INF, -INF, 0.0),), "edges p", kernel=2, p=3),
    *(
        call(op, (floats(*x),), f"to {sizes}", sizes=sizes)
        for op in ("adaptive_max_pool", "adaptive_average_pool")
        for x, sizes in SIZES
    ),
    *(call("adaptive_max_pool", (ints(*x),), f"int to {s}", sizes=s) for x, s in SIZES[:6]),
    *(
        call(op, (EDGES,), "edges", sizes=(4, 7))
        for op in ("adaptive_max_pool", "adaptive_average_pool")
    ),
    # more positions per window than an invocation may read on a CPU driver
    call("max_pool_indices", (floats(1, 1, 200, 190),), "long", large=True, kernel=(190, 180)),
]


def function(name: str, shape: Shape, case: str, **more: Any) -> FunctionSample:
    """Return a sample of ops.<name> with keywords."""
    return FunctionSample(name, lambda x: getattr(ops, name)(x, **more), (floats(*shape),), case)


FUNCTIONS = [
    *(
        function(name, shape, "")
        for name in ("global_max_pool", "global_average_pool", "global_lp_pool")
        for shape in ((1, 1, 1), (2, 5, 7, 9), (2, 3, 4, 3, 5), (3, 70, 41))
    ),
    *(function("global_lp_pool", (2, 3, 5, 7), f"p {p}", p=p) for p in (1, 3)),
    *(
        function(name, (2, 3, 7, 5), "to one", sizes=1)
        for name in ("adaptive_max_pool", "adaptive_average_pool")
    ),
    *(
        FunctionSample(
            "global_lp_pool",
            lambda x, p=p: ops.global_lp_pool(x, p),
            (fp16_array(2, 3, 5, 7, scale=scale),),
            f"p {p} float16 of {scale:g}",
        )
        for p in (1, 2, 3)
        for scale in (300.0, 1e-4)
    ),
    FunctionSample("global_max_pool", ops.global_max_pool, (ints(2, 3, 5),), "int"),
]


def refused(
    op: str,
    match: str,
    shape: Shape,
    *rest: Any,
    error: type[Exception] = ShapeError,
    dtype: str = "float32",
    **more: Any,
) -> ErrorSample:
    """Return a refused call of ops.<op> on an input of a shape."""
    return ErrorSample(
        lambda: getattr(ops, op)(input("x", shape, dtype), *rest, **more), error, match
    )


SLIDING = ("max_pool", "max_pool_indices", "average_pool", "lp_pool")
ADAPTIVE = ("adaptive_max_pool", "adaptive_average_pool")
GLOBAL = ("global_max_pool", "global_average_pool", "global_lp_pool")
_TOO_LARGE: list[tuple[str, dict[str, Any]]] = [
    ("dilation below 1073741824", {"dilation": 2**30}),
    ("dilation below", {"dilation": 2**40, "padding": 2**40}),
    ("stride below", {"stride": 2**30, "padding": 2**30}),
    ("window below", {"dilation": 2**30 - 1, "padding": 2**29}),
    ("padded size below", {"padding": 2**29}),
]
ERRORS = [
    *(refused(op, "1 to 3 spatial axes", (2, 3), 2) for op in (*SLIDING, *ADAPTIVE)),
    *(refused(op, "1 to 3 spatial axes", (2, 3)) for op in GLOBAL),
    *(refused(op, "kernel of 1 or more", (2, 3, 5), 0) for op in SLIDING),
    *(refused(op, "one for each of 2", (2, 3, 5, 5), (2, 2, 2)) for op in SLIDING),
    *(refused(op, "stride of 1 or more", (2, 3, 5), 2, stride=0) for op in SLIDING),
    *(refused(op, "padding of 0 or more", (2, 3, 5), 2, padding=-1) for op in SLIDING),
    *(refused(op, "within the padded", (2, 3, 5), 7) for op in SLIDING),
    *(refused(op, match, (2, 3, 5), 2, **more) for op in SLIDING for match, more in _TOO_LARGE),
    *(refused(op, "sizes of 0 or more", (2, 3, 5), -1) for op in ADAPTIVE),
    *(refused(op, "values along", (2, 3, 0), 1) for op in ADAPTIVE),
    *(
        refused(op, "cast", (1, 1, 5), 2, error=DTypeError, dtype="int32")
        for op in ("average_pool", "lp_pool", "adaptive_average_pool")
    ),
    *(
        refused(op, "float32 or int32", (1, 1, 5), 2, error=DTypeError, dtype="bool")
        for op in ("max_pool", "max_pool_indices", "adaptive_max_pool")
    ),
    *(
        refused("lp_pool", match, (1, 1, 5), 2, p, error=DTypeError)
        for p, match in (
            *((p, "over 0") for p in (0, -1, 1e-300, 1e-40)),
            *((p, "number as p") for p in (float("inf"), 1e39, "2")),
        )
    ),
    *(
        refused("global_lp_pool", match, (1, 1, 5), p, error=DTypeError)
        for p, match in ((1e-300, "over 0"), (1e39, "number as p"))
    ),
]
