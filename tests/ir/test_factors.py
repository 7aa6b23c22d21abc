"""What the words of a precision mean: numpy's results against sums of exact products."""

from __future__ import annotations

import numpy as np
import pytest
from failures import Failures

from vksched.common.dtypes import NDArray
from vksched.ir.attrs import Attrs
from vksched.ir.evaluate import compute
from vksched.ir.op import all_ops, get_op
from vksched.ir.precision import (
    BRAIN,
    HALF,
    MIXED,
    PRECISION,
    SINGLE,
    as_bfloat16,
    precision_of,
    with_word,
)
from vksched.ops.lowering.lower import cache_key
from vksched.testing.op_cases.op_sample import OpSample, floats
from vksched.testing.op_cases.sample_values import f32
from vksched.testing.op_table import CASES
from vksched.topology.limits import Limits

PLAIN = {"transpose_a": False, "transpose_b": False}
WITH_FACTORS = {
    *("matmul", "quantized_linear", "moe_linear", "quantized_moe_linear", "attention"),
    *("attention_backward", "attention_with_kvcache", "conv", "conv_transpose", "winograd_conv"),
    "depthwise_conv_weight_grad",
}


def product(word: str, *inputs: NDArray) -> NDArray:
    return compute(get_op("matmul"), inputs, with_word(PLAIN, word))


def test_products_convolutions_and_attention_have_factors() -> None:
    assert {name for name, op in all_ops().items() if op.roundable_operands} == WITH_FACTORS


def test_mixed_rounds_operands_and_nothing_else() -> None:
    a, b, bias = floats(7, 300), floats(300, 5, seed=1), floats(5, seed=2)
    rounded = (x.astype(np.float16).astype(np.float64) for x in (a, b))
    expected = np.matmul(*rounded) + bias
    np.testing.assert_allclose(product(MIXED, a, b, bias), expected, rtol=1e-5, atol=1e-5)
    assert np.abs(product(SINGLE, a, b, bias) - expected).max() > 1e-4


def test_sums_of_mixed_are_not_bounded_by_float16() -> None:
    a, b = np.full((1, 4096), 32, np.float32), np.full((4096, 1), 32, np.float32)
    assert product(MIXED, a, b)[0, 0] == 4096 * 1024
    assert product(HALF, a, b)[0, 0] == np.inf


def test_float16_rounds_the_result_too() -> None:
    built = product(HALF, floats(7, 30), floats(30, 5, seed=1))
    np.testing.assert_array_equal(built, built.astype(np.float16))
    assert built.dtype == np.float32


def test_bfloat16_rounds_operands_to_the_even_one_of_two() -> None:
    a = f32(1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -3e38, 1e-40, 0).reshape(6, 1)
    built = product(BRAIN, a, np.ones((1, 1), np.float32))[:, 0]
    near = [1, 1 + 2**-6, 1 + 2**-7, -3e38, 1e-40]
    np.testing.assert_allclose(built[:5], near, rtol=2**-8, atol=2**-134)
    np.testing.assert_array_equal(built[:3], np.array(near[:3], np.float32))
    np.testing.assert_array_equal(as_bfloat16(built), built)
    assert product(BRAIN, *(np.full((1, 1), 1e18, np.float32),) * 2)[0, 0] > 9e35  # no overflow
    for wild in (np.inf, -np.inf, np.nan, np.array([0xFFFFFFFF], np.uint32).view(np.float32)[0]):
        np.testing.assert_array_equal(as_bfloat16(f32(wild)), f32(wild))
    assert as_bfloat16(a.astype(np.float64)).dtype == np.float64


def test_bfloat16_sums_in_float32_and_keeps_them() -> None:
    a, b = floats(7, 300), floats(300, 5, seed=1)
    expected = np.matmul(*(as_bfloat16(x).astype(np.float64) for x in (a, b)))
    np.testing.assert_allclose(product(BRAIN, a, b), expected, rtol=1e-5, atol=1e-5)
    assert np.abs(product(SINGLE, a, b) - expected).max() > 1e-3


def test_references_keep_other_widths() -> None:
    a, b = floats(3, 4).astype(np.float64), floats(4, 2).astype(np.float64)
    assert product(HALF, a, b).dtype == np.float64
    whole = np.array([[70001]], np.int32)
    assert product(HALF, whole, np.array([[1]], np.int32))[0, 0] == 70001


def test_a_word_is_part_of_what_a_call_is_tuned_under() -> None:
    keys = set()
    for word in (SINGLE, MIXED, HALF, BRAIN):
        attrs = dict(with_word(PLAIN, word))
        call = OpSample("matmul", (floats(2, 3), floats(3, 4)), attrs).call(Limits())
        keys.add(cache_key(get_op("matmul"), call))
    assert len(keys) == 4


def test_a_word_is_taken_off_again() -> None:
    attrs = Attrs(PLAIN)
    assert precision_of(attrs) == SINGLE
    mixed = with_word(attrs, MIXED)
    assert mixed[PRECISION] == MIXED and with_word(mixed, SINGLE) == attrs


SMALL = [
    case
    for case in CASES
    if case.declaration.roundable_operands
    and not case.large
    and case.result_type().dtype == "float32"
]


@pytest.mark.parametrize("op", sorted({case.op for case in SMALL}))
def test_mixed_stays_near(op: str, failures: Failures) -> None:
    for case in SMALL:
        if case.op == op and failures.wants(case.id):
            with failures.of(case.id):
                stays_near(case)


def stays_near(case: OpSample) -> None:
    """Every op takes the attribute, and rounding operands costs no more than it may."""
    mixed = OpSample(case.op, case.inputs, {**case.attrs, PRECISION: MIXED}, case.name)
    got, expected = mixed.expected(), case.expected()
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    tame = all(
        np.abs(a[np.isfinite(a)]).max(initial=0) < 1e3 for a in case.inputs if a.dtype.kind == "f"
    )
    finite = np.isfinite(got) & np.isfinite(expected)
    if tame and finite.any():
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        largest = max(1e-3, float(np.abs(expected[finite]).max()))
        assert np.abs(got[finite] - expected[finite]).max() < 2**-7 * largest
