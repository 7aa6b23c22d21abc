"""Gradients of gradients of products, and of functions that are made of them: einsum, relatives of
matmul, recurrent networks.
"""

from __future__ import annotations

import numpy as np
import pytest
from central_differences import check

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.attrs import AttrValue
from vksched.ir.tensor import apply
from vksched.testing.op_cases.linalg import einsum, linear, rnn
from vksched.testing.op_cases.linalg.attention import attention, rotary, with_layout
from vksched.testing.op_cases.linalg.matmul import attrs, swapped
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample, bools, floats

FUNCTIONS = [
    case
    for module in (einsum, linear, rnn)
    for case in module.FUNCTIONS
    if any(a.dtype.kind == "f" for a in case.inputs)
]


@pytest.mark.parametrize("case", FUNCTIONS, ids=[f"{c.function} {c.name}" for c in FUNCTIONS])
def test_functions_that_are_built_of_products(case: FunctionSample) -> None:
    """By all their floats at once, through all their results."""
    smooth = [i for i, a in enumerate(case.inputs) if a.dtype.kind == "f"]

    def build(*args: vs.Tensor) -> vs.Tensor:
        operands = [vs.constant(a) for a in case.inputs]
        for i, tensor in zip(smooth, args, strict=True):
            operands[i] = tensor
        built = case.build(*operands)
        results = (built,) if isinstance(built, vs.Tensor) else built
        return vs.concat([vs.reshape(r, (r.size,)) for r in results])

    check(build, *(case.inputs[i].astype(np.float64) for i in smooth), second=False)


def second_order(case: OpSample) -> None:
    smooth = [i for i, a in enumerate(case.inputs) if a.dtype.kind == "f"]

    def build(*args: vs.Tensor) -> vs.Tensor:
        masks = [vs.constant(a) for a in case.inputs[len(args) :]]
        return apply(case.op, [*args, *masks], case.attrs)

    check(build, *(case.inputs[i].astype(np.float64) for i in smooth))


@pytest.mark.parametrize("transposed", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize("leads", [((4,), ()), ((), (4,)), ((2, 1), (1, 3)), ((), ())], ids=str)
def test_products(
    leads: tuple[tuple[int, ...], tuple[int, ...]], transposed: tuple[bool, bool]
) -> None:
    a = swapped(floats(*leads[0], 3, 4), transposed[0])
    b = swapped(floats(*leads[1], 4, 2, seed=1), transposed[1])
    second_order(OpSample("matmul", (a, b, floats(2, seed=2)), attrs(*transposed)))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotations(interleaved: bool) -> None:
    second_order(rotary((2, 3, 4, 7), 6, (False, True), interleaved))


OPTIONS: dict[str, dict[str, AttrValue]] = {
    "plain": {},
    "causal": {"right": 0},
    "window": {"past_len": 2, "left": 3, "right": 1},
    "blind rows": {"past_len": -1, "right": 0},
    "softcap": {"softcap": 0.75, "scale": 1.5},
}
BLIND = bools(3, 7, seed=7) & (np.arange(3)[:, None] > 0)
"""By which the first of three queries sees no key."""


@pytest.mark.parametrize("mask", [None, BLIND, floats(1, 1, 7, seed=5)], ids=["", "bool", "float"])
@pytest.mark.parametrize("option", OPTIONS)
def test_attention(option: str, mask: NDArray | None) -> None:
    case = attention((1, 4, 3, 4), (2, 7), 3, mask, **OPTIONS[option])
    second_order(case)
    second_order(with_layout(case, (1, 1, 1, 1)))
