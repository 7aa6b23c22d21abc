"""Gradients of gradients of products, and of functions that are made of them: einsum, relatives of
matmul, recurrent networks.
"""

from __future__ import annotations

import numpy as np
import pytest
from central_differences import check

import vksched as vs
from vksched.cases import einsum, linear, recurrent
from vksched.cases.attention import rotary
from vksched.cases.case import Case, FunctionCase, floats
from vksched.cases.matmul import attrs, swapped
from vksched.ops.core.tensor import apply

FUNCTIONS = [
    case
    for module in (einsum, linear, recurrent)
    for case in module.FUNCTIONS
    if any(a.dtype.kind == "f" for a in case.inputs)
]


@pytest.mark.parametrize("case", FUNCTIONS, ids=[f"{c.function} {c.name}" for c in FUNCTIONS])
def test_functions_that_are_made_of_products(case: FunctionCase) -> None:
    """By all their floats at once, through all their results."""
    smooth = [i for i, a in enumerate(case.inputs) if a.dtype.kind == "f"]

    def build(*given: vs.Tensor) -> vs.Tensor:
        operands = [vs.constant(a) for a in case.inputs]
        for i, tensor in zip(smooth, given, strict=True):
            operands[i] = tensor
        made = case.build(*operands)
        results = (made,) if isinstance(made, vs.Tensor) else made
        return vs.concat([vs.reshape(r, (r.size,)) for r in results])

    check(build, *(case.inputs[i].astype(np.float64) for i in smooth), second=False)


def second_order(case: Case) -> None:
    check(
        lambda *given: apply(case.op, given, case.attrs),
        *(a.astype(np.float64) for a in case.inputs),
    )


@pytest.mark.parametrize("turned", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize("leads", [((4,), ()), ((), (4,)), ((2, 1), (1, 3)), ((), ())], ids=str)
def test_products(
    leads: tuple[tuple[int, ...], tuple[int, ...]], turned: tuple[bool, bool]
) -> None:
    a = swapped(floats(*leads[0], 3, 4), turned[0])
    b = swapped(floats(*leads[1], 4, 2, seed=1), turned[1])
    second_order(Case("matmul", (a, b, floats(2, seed=2)), attrs(*turned)))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotations(interleaved: bool) -> None:
    second_order(rotary((2, 3, 4, 7), 6, (False, True), interleaved))
