"""Gradient rules of products: broadcast batches, attention with all its options, rows that see no
key, and which ops the backward pass is made of.
"""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.attrs import AttrValue
from vksched.ir.build_graph import build_graph
from vksched.ir.tensor import apply
from vksched.ops.rnn.cell import GATES
from vksched.testing.numeric_gradient import compare, function_of
from vksched.testing.op_cases.linalg.attention import attention, rotary, with_layout
from vksched.testing.op_cases.linalg.matmul import attrs, swapped
from vksched.testing.op_cases.linalg.rnn import layer
from vksched.testing.op_cases.op_sample import OpSample, bools, floats


def agrees(case: OpSample) -> None:
    """Assert that differences were taken, of every operand, and that all of them agree."""
    found = compare(case)
    assert not found.wrong
    assert not found.kinks
    assert found.directions >= 3 * sum(a.dtype.kind == "f" for a in case.inputs)


# -- matmul ------------------------------------------------------------------------------------

LEADS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *(((4,), ()), ((), (4,)), ((2, 3), ()), ((), (2, 3)), ((2, 3), (1, 1)), ((1,), (2, 3))),
    *(((2, 3), (3,)), ((2, 1), (1, 3))),
]


@pytest.mark.parametrize("transposed", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize("leads", LEADS, ids=str)
def test_operands_of_a_product_are_broadcast(
    leads: tuple[tuple[int, ...], tuple[int, ...]], transposed: tuple[bool, bool]
) -> None:
    for m, k, n in ((3, 5, 2), (2, 9, 1), (1, 3, 7), (5, 1, 4)):
        a = swapped(floats(*leads[0], m, k), transposed[0])
        b = swapped(floats(*leads[1], k, n, seed=1), transposed[1])
        agrees(OpSample("matmul", (a, b, floats(n, seed=2)), attrs(*transposed)))


def ops_of(case: OpSample) -> list[str]:
    """The ops of the backward pass alone: what a gradient by all operands is made of."""
    forward = (case.op, "input", "constant")
    return [n.op for n in function_of(case).backward.nodes if n.op not in forward]


@pytest.mark.parametrize("transposed", [False, True])
def test_the_gradient_of_a_weight_is_one_product_over_the_whole_batch(transposed: bool) -> None:
    x, w = floats(4, 6, 5), swapped(floats(5, 3), transposed)
    graph = function_of(OpSample("matmul", (x, w), attrs(False, transposed))).backward
    nodes = {n.id: n for n in graph.nodes}
    products = [n for n in graph.nodes if n.op == "matmul"]
    assert "reduce_sum" not in {n.op for n in graph.nodes}
    assert sorted(n.type.shape for n in products) == sorted([(4, 6, 5), w.shape])
    (of_weight,) = (n for n in products if n.type.shape == w.shape)
    assert {nodes[i].type.shape for i in of_weight.inputs} == {(24, 5), (24, 3)}


def test_what_is_read_the_other_way_round_is_copied_only_where_that_is_less() -> None:
    w = floats(5, 3)
    few_rows, many_rows = floats(64, 5, 2), floats(64, 5, 100)
    ops = ops_of(OpSample("matmul", (few_rows, w), attrs(True, False)))
    assert "transpose" in ops and "reduce_sum" not in ops
    ops = ops_of(OpSample("matmul", (many_rows, w), attrs(True, False)))
    assert "transpose" not in ops and "reduce_sum" in ops


def test_a_product_of_columns_and_rows_is_elementwise() -> None:
    case = OpSample("matmul", (floats(7, 1, 5), floats(7, 5, 1)), attrs())
    assert "matmul" not in ops_of(case)
    agrees(case)


def test_integers_have_no_gradient() -> None:
    a = vs.input("a", (2, 3), "int32")
    x = vs.input("x", (3, 2))
    whole = vs.cast(vs.matmul(a, vs.cast(x, "int32")), "float32")
    with pytest.raises(vs.GradientError, match="x, which goes into it through"):
        vs.grad(vs.reduce_sum(whole), x)


# -- attention ---------------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, AttrValue]] = {
    "plain": {},
    "causal": {"right": 0},
    "past": {"right": 0, "past_len": 4},
    "window": {"past_len": 2, "left": 3, "right": 1},
    "blind rows at the end": {"past_len": 6, "left": 1},
    "blind rows at the start": {"past_len": -3, "right": 0},
    "softcap": {"softcap": 0.75, "scale": 1.5},
    "softcap, causal": {"softcap": 2.0, "scale": -0.5, "right": 0},
}


def hidden_row(*shape: int) -> NDArray:
    """A bool mask by which some rows see nothing, where there are rows."""
    out = bools(*shape, seed=7)
    if out.ndim > 1:
        out[..., 0, :] = False
    return out


SHAPES: dict[str, tuple[int, ...]] = {
    "each score": (2, 6, 5, 7),
    "heads alike": (2, 1, 1, 7),
    "of keys": (7,),
    "of queries": (5, 1),
    "one number": (),
}
MASKS: dict[str, NDArray | None] = {
    "none": None,
    **{f"bool, {name}": hidden_row(*shape) for name, shape in SHAPES.items()},
    **{f"float, {name}": floats(*shape, seed=5) for name, shape in SHAPES.items()},
}


@pytest.mark.each_value
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("option", OPTIONS)
def test_attention_with_each_option_and_mask(option: str, mask: str) -> None:
    case = attention((2, 6, 5, 4), (2, 7), 3, MASKS[mask], **OPTIONS[option])
    agrees(case)
    agrees(with_layout(case, (1, 1, 1, 1)))


def gradients(
    mask: NDArray | None, dtype: str, input_dtype: str = "float32", **options: AttrValue
) -> dict[str, NDArray]:
    """The gradients of attention by its operands, as numpy's backend gives them; given_as: the
    operands are rounded to that before.
    """
    case = attention((1, 2, 4, 8), (1, 6), 8, mask, **options)
    arrays = [
        a.astype(input_dtype).astype(dtype) if a.dtype.kind == "f" else a for a in case.inputs
    ]
    names = ["q", "k", "v", "mask"][: len(arrays)]
    inputs = {n: vs.input(n, a.shape, str(a.dtype)) for n, a in zip(names, arrays, strict=True)}
    out = apply("attention", list(inputs.values()), case.attrs)
    smooth = {n: t for n, t in inputs.items() if t.dtype == dtype}
    pulled = vs.vjp(out, floats(*out.shape, seed=9).astype(dtype), smooth)
    with vs.Scheduler(["cpu"]) as sched:
        return sched.compile(pulled)(**dict(zip(names, arrays, strict=True)))


BLIND = np.array([[1, 0, 1, 1, 0, 1], [0] * 6, [0, 1, 0, 0, 0, 0], [1] * 6], bool)
"""Of four queries the second sees no key."""


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_mask_of_infinities_is_one_of_bools(dtype: str) -> None:
    by_bools = gradients(BLIND, dtype)
    by_floats = gradients(np.where(BLIND, 0, -np.inf).astype(np.float32), dtype)
    of_mask = by_floats.pop("mask")
    assert by_bools.keys() == by_floats.keys() == {"q", "k", "v"}
    for name, got in by_floats.items():
        assert got.dtype == dtype
        assert np.isfinite(got).all()
        loose = 100 if dtype == "float16" else 1  # one sums and rounds in another order
        np.testing.assert_allclose(got, by_bools[name], rtol=1e-5 * loose, atol=1e-6 * loose)
    np.testing.assert_array_equal(by_bools["q"][:, :, 1], 0)
    np.testing.assert_array_equal(of_mask[~BLIND], 0)
    assert np.abs(of_mask[3]).max() > 1e-3
    seen_alone = by_bools["q"][:, :, 2]  # a weight of 1, whatever the score
    np.testing.assert_allclose(seen_alone, 0, atol=1e-3 if dtype == "float16" else 1e-6)


def test_a_window_that_leaves_rows_blind() -> None:
    got = gradients(None, "float32", past_len=-2, right=0)
    np.testing.assert_array_equal(got["q"][:, :, :2], 0)
    np.testing.assert_array_equal(got["k"][:, :, 2:], 0)
    np.testing.assert_array_equal(got["v"][:, :, 2:], 0)
    assert all(np.isfinite(g).all() for g in got.values())
    assert np.abs(got["v"][:, :, 0]).max() > 0.1


def test_large_scores_of_float16_are_those_of_float32() -> None:
    got = gradients(None, "float16", "float16", scale=40.0)
    exact = gradients(None, "float64", "float16", scale=40.0)
    for name, g in got.items():
        assert np.isfinite(g).all()
        largest = np.abs(exact[name]).max()
        np.testing.assert_allclose(g, exact[name], atol=0.02 * largest)


def test_attention_backward_is_one_op() -> None:
    ops = ops_of(attention((1, 4, 6, 8), (2, 6), 8, bools(6, 6), right=0))
    assert set(ops) == {"attention_backward", "slice", "reshape"}
    assert ops.count("attention_backward") == 1


def test_attention_backward_with_a_trained_mask_makes_its_weights_once() -> None:
    ops = ops_of(attention((1, 4, 6, 8), (2, 6), 8, floats(6, 6), right=0))
    assert ops.count("softmax") == 1
    assert ops.count("matmul") == 5  # scores, and one for each of weights, q, k, v
    assert ops.count("transpose") == 0


def test_a_mask_that_is_added_and_not_trained_needs_no_gradient() -> None:
    q, mask = vs.input("q", (1, 2, 5, 4)), vs.input("m", (5, 5))
    pulled = vs.grad(vs.reduce_sum(vs.attention(q, q, q, mask)), {"q": q})
    ops = [n.op for n in build_graph(pulled)[0].nodes]
    assert "attention_backward" in ops
    assert "softmax" not in ops


# -- rotary ------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("batched", [(False, False), (True, True), (True, False)])
def test_rotation_and_its_angles(interleaved: bool, batched: tuple[bool, bool]) -> None:
    agrees(rotary((2, 3, 4, 7), 6, batched, interleaved))


def test_a_rotation_is_rotated_back() -> None:
    case = rotary((2, 3, 4, 6), 6)
    placeholder = vs.input("x", (2, 3, 4, 6))
    cos, sin = vs.rotary_cache(4, 6, 10.0)
    transposed = vs.rotary_embedding(placeholder, cos, sin)
    back = vs.vjp(transposed, transposed, placeholder)
    with vs.Scheduler(["cpu"]) as sched:
        got = sched.compile(back)(x=case.inputs[0])
    np.testing.assert_allclose(got, case.inputs[0], rtol=1e-5, atol=1e-6)


# -- recurrent networks ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GATES)
def test_a_recurrent_layer_of_no_turns_with_lengths_hands_its_states_back(kind: str) -> None:
    assert compare(layer(kind, (0, 2, 3), "fb", lengths=(0, 0))).wrong == ""
