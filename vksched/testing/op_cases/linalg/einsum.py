"""Samples of einsum: each equation is the name of its sample."""

from __future__ import annotations

from typing import Any

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.tensor import Tensor, constant, input
from ..op_sample import ErrorSample, FunctionSample, bools, floats, ints

CASES: list[Any] = []


def case(equation: str, *inputs: NDArray) -> FunctionSample:
    return FunctionSample("einsum", lambda *x: ops.einsum(equation, *x), inputs, equation)


EQUATIONS: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
    # one operand: transposes, sums, diagonals
    *(("ij->ji", ((3, 4),)), ("ba", ((3, 4),)), ("ij->", ((3, 4),)), ("ij->i", ((3, 4),))),
    *(("ii", ((4, 4),)), ("ii->i", ((4, 4),)), ("iij->j", ((3, 3, 4),)), ("iji->ij", ((3, 4, 3),))),
    *(("iii->i", ((3, 3, 3),)), ("ijij->ji", ((2, 3, 2, 3),)), ("ii->i", ((1, 1),))),
    *(("...ii->...i", ((2, 5, 4, 4),)), ("...ij->...ji", ((2, 5, 3, 4),)), ("...", ((2, 3),))),
    *(("i...->...", ((2, 3, 4),)), ("i...j", ((2, 3, 4),)), ("->", ((),)), ("ii", ((0, 0),))),
    # two: matmuls, in every memory order
    *((f"{a},{b}->{c}", (x, y)) for a, x in (("ij", (3, 4)), ("ji", (4, 3)))
      for b, y in (("jk", (4, 5)), ("kj", (5, 4))) for c in ("ik", "ki")),
    *(("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))), ("bij,jbk->ikb", ((2, 3, 4), (4, 2, 5)))),
    *(("...ij,...jk->...ik", ((2, 1, 3, 4), (5, 4, 2))), ("...i,...i->...", ((2, 1, 3), (4, 3)))),
    *(("...i,i", ((2, 3), (3,))), ("i...,...j->j...i", ((2, 3), (3, 4)))),
    *(("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))), ("abcd,cd->ab", ((2, 3, 4, 5), (4, 5)))),
    # two: elementwise, outer, sums over axes of one operand, sizes of 1
    *(("i,j->ij", ((3,), (4,))), ("i,i->i", ((3,), (3,))), ("ij,ij->", ((3, 4), (3, 4)))),
    *(("ij,kl->", ((3, 4), (2, 5))), ("ij,j->", ((3, 4), (4,))), (",ij->ji", ((), (3, 4)))),
    *(("ij,jk->ik", ((3, 1), (4, 5))), ("ij,ij->ij", ((3, 1), (1, 4))), ("i,i->", ((3,), (1,)))),
    *(("ii,ij->j", ((3, 3), (3, 4))), ("aij,ajj->ai", ((2, 3, 4), (2, 4, 4)))),
    *(("ij,jk->ki", ((0, 3), (3, 2))), ("ij,jk->ik", ((2, 0), (0, 3))), ("i,j", ((0,), (1,)))),
    # more, in numpy's order
    *(("ij,jk,kl->il", ((2, 9), (9, 3), (3, 4))), ("i,i,i->", ((4,), (4,), (4,)))),
    *(("ab,bc,cd,de->ae", ((2, 3), (3, 8), (8, 2), (2, 5))), ("i,j,k->kji", ((2,), (3,), (4,)))),
    *(("bqd,bkd,bkv->bqv", ((2, 3, 4), (2, 5, 4), (2, 5, 6))), ("ij,j,i->", ((3, 4), (4,), (3,)))),
    *(("...ab,...bc,ca->...", ((2, 3, 4), (2, 4, 5), (5, 3))), ("i, i j -> j", ((3,), (3, 4)))),
]  # fmt: skip
FUNCTIONS = [
    *(
        case(equation, *(floats(*shape, seed=i) for i, shape in enumerate(shapes)))
        for equation, shapes in EQUATIONS
    ),
    *(
        FunctionSample("einsum", lambda *x, e=e: ops.einsum(e, *x), inputs, f"{e} int")
        for e, inputs in (
            ("ij,jk->ik", (ints(3, 4), ints(4, 5, seed=1))),
            ("iij->j", (ints(3, 3, 4),)),
        )
    ),
]


def refused(equation: Any, match: str, *shapes: tuple[int, ...]) -> ErrorSample:
    def build() -> Tensor:
        return ops.einsum(equation, *(input(f"x{i}", s) for i, s in enumerate(shapes)))

    return ErrorSample(build, ShapeError, match)


ERRORS = [
    refused(5, "an equation such as", (3,)),
    refused("i->", "at least one operand"),
    refused("i1->i", "letters, commas", (3, 3)),
    refused("i->j->k", "at most one ->", (3,)),
    refused("...i...", "letters, commas", (3, 3)),
    refused("i,j", "one term for each of 1", (3,)),
    refused("ij", "expected 2 axes for 'ij', got 1", (3,)),
    refused("i", "expected 1 axes for 'i', got 2", (3, 3)),
    refused("i...->i", "... in the result too", (3, 4)),
    refused("ij->ii", "distinct letters", (3, 4)),
    refused("ij->k", "that an operand has", (3, 4)),
    refused("ij,jk", "one size for 'j', got 4 and 5", (3, 4), (5, 2)),
    refused("ii", "one size for 'i'", (1, 3)),
    refused("abcde,fghij->abcdefghij", "at most 8 axes", (1,) * 5, (1,) * 5),
    ErrorSample(lambda: ops.einsum("i->", constant(bools(3))), DTypeError, "numbers, got bool"),
]
