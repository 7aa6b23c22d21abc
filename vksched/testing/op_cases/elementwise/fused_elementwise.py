"""Samples of fused elementwise ops: every function, every kind of operand, long chains."""

from __future__ import annotations

from collections.abc import Sequence

from ....common.dtypes import FLOAT32, NDArray
from ....common.errors import ShapeError
from ....ir.attrs import AttrValue
from ....ir.tensor import apply, as_tensor
from ....ops.elementwise.fused_elementwise import BINARY, MAX_COST, UNARY, Instr, program_attrs
from ....ops.elementwise.pointwise import word
from ..op_sample import ErrorSample, OpSample, bools, floats, ints
from ..sample_values import EDGES, binary_sample, f32, sample, tolerance, unary_sample
from .unary import attrs as attrs_of


def fused_elementwise(
    steps: Sequence[Instr],
    inputs: Sequence[NDArray],
    name: str,
    constants: Sequence[float] = (),
    nmse: float = 1e-10,
) -> OpSample:
    """Return a fused elementwise op of steps; constants are float32."""
    words = [(FLOAT32, word(value, FLOAT32)) for value in constants]
    return OpSample("fused_elementwise", tuple(inputs), program_attrs(steps, words), name, nmse)


def step(op: str, *registers: int, **attrs: AttrValue) -> Instr:
    return op, registers, tuple(sorted(attrs.items()))


def _one_per_function() -> list[OpSample]:
    """Return each function once, followed by an add so that it is not the only step."""
    out = []
    for name in (*UNARY, *BINARY, "where"):
        op, _, dtype = name.rpartition("_")
        if name == "where":
            inputs: tuple[NDArray, ...] = (bools(3, 8), sample(FLOAT32, 3, 8), floats(3, 8, seed=2))
        elif "_to_" in name:
            dtype, to = name.split("_to_")
            back = step("cast", 1, to=dtype) if f"{to}_to_{dtype}" in UNARY else step("neg", 1)
            of_cast = (step("cast", 0, to=to), back)
            out.append(fused_elementwise(of_cast, (sample(dtype, 3, 8),), name, nmse=0.0))
            continue
        elif op in ("logical_not", "bitwise_and", "bitwise_or", "bitwise_xor"):
            inputs = (bools(3, 8), bools(3, 8, seed=1))[: 1 if op == "logical_not" else 2]
            steps = (step(op, *range(len(inputs))), step("logical_not", len(inputs)))
            out.append(fused_elementwise(steps, inputs, name, nmse=0.0))
            continue
        elif name in UNARY:
            inputs = (unary_sample(op, dtype, 3, 8),)
        else:
            inputs = (binary_sample(op, dtype, 3, 8), binary_sample(op, dtype, 3, 8, seed=1))
        first_attrs = attrs_of(op, dtype, 0) if len(inputs) == 1 else {}
        first = step(op or "where", *range(len(inputs)), **first_attrs)
        is_bool = len(inputs) == 2 and op.split("_")[0] in ("equal", "not", "less", "greater")
        second = step("logical_not" if is_bool else "neg", len(inputs))
        out.append(fused_elementwise((first, second), inputs, name, nmse=tolerance(op)))
    return out


SUM = (step("add", 0, 1), step("mul", 2, 0))
"""(a + b) * a."""
LONG = (*SUM, *(step("add", i, 1) for i in range(3, 9)))
NUMBERS = [0.5 + i / 64 for i in range(32)]


def _many(i: int) -> Instr:
    """-(x * number + y) - y, repeated."""
    x = 33 + i if i else 0
    return (step("mul", x, 2 + i // 4 % 32), step("add", x, 1), step("neg", x), step("sub", x, 1))[
        i % 4
    ]


PAIRS = [
    ((1,), (1,)),
    ((7,), ()),
    ((1000,), (1000,)),
    ((3, 37), (37,)),
    ((3, 36), (36,)),
    ((5, 40), (5, 1)),
    ((2, 3, 8, 12), (2, 1, 8, 1)),
    ((2, 3, 4, 5, 4), (1, 3, 1, 5, 1)),
    ((2, 2, 3, 2, 2, 3), (1, 2, 1, 2, 1, 3)),
    ((33, 130), (33, 130)),
    ((0, 3), (3,)),
]
CASES = [
    *_one_per_function(),
    *(fused_elementwise(SUM, (floats(*a), floats(*b, seed=1)), "sum") for a, b in PAIRS),
    *(fused_elementwise(SUM, (floats(*b), floats(*a, seed=1)), "sum") for a, b in PAIRS if a != b),
    fused_elementwise(LONG, (floats(5, 13), floats(13, seed=1)), "eight steps"),
    *(
        fused_elementwise(
            [_many(i) for i in range(MAX_COST)],
            (floats(5, n), floats(n, seed=1)),
            "the most steps",
            NUMBERS,
        )
        for n in (12, 13)
    ),
    fused_elementwise(
        (step("mul", 0, 1), step("add", 4, 2), step("sub", 5, 3), step("relu", 6)),
        (floats(5, 13),),
        "constants",
        (0.5, -0.0, 3.25),
    ),
    fused_elementwise((step("gelu", 0), step("mul", 1, 1)), (EDGES[FLOAT32],), "edges"),
    fused_elementwise(
        (step("relu", 0), step("neg", 1)), (EDGES[FLOAT32],), "edges of relu", nmse=0.0
    ),
    *(
        fused_elementwise(
            (
                step("add", 0, 1),
                step("mul", 5, 2),
                step("sub", 6, 3),
                step("maximum", 7, 4),
            ),
            (floats(4, n), floats(n, seed=1), floats(4, 1, seed=2), floats(4, n, seed=3), f32(0.5)),
            "five operands",
        )
        for n in (8, 7)
    ),
    *(
        fused_elementwise(
            (step("add", 0, 1), step("mul", 4, 2), step("where", 3, 5, 0)),
            (floats(3, n), floats(n, seed=1), floats(3, 1, seed=2), bools(3, n)),
            "four operands",
        )
        for n in (20, 19)
    ),
    *(
        fused_elementwise(
            (step("add", 0, 1), step("mul", 3, 2)),
            (floats(3, n), floats(n, seed=1), floats(3, 1, seed=2)),
            "three operands",
        )
        for n in (20, 19)
    ),
    fused_elementwise(
        (step("cast", 0, to=FLOAT32), step("mul", 2, 1)),
        (ints(3, 9), floats(3, 9)),
        "of integers",
    ),
]


def _apply(steps: Sequence[Instr], *inputs: NDArray) -> None:
    apply("fused_elementwise", [as_tensor(x) for x in inputs], program_attrs(steps, ()))


ERRORS = [
    ErrorSample(lambda: _apply((step("add", 0, 7),), floats(3)), ShapeError, "reads a register"),
    ErrorSample(lambda: _apply((), floats(3)), ShapeError, "at least one step"),
    ErrorSample(
        lambda: _apply((step("neg", 0), step("add", 2, 1)), floats(3), floats(2, 3)),
        ShapeError,
        "steps of one shape",
    ),
]
