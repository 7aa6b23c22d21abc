"""Sharding rules against the references: what the parts of a call give, put together, is what the
call gives. Every factor of every case of the table is tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray, TensorType
from vksched.ir import sharding_rule, vjp
from vksched.ir.attrs import Attrs
from vksched.ir.evaluate import infer
from vksched.ir.op import all_ops, computing_ops, get_op
from vksched.ir.sharding_rule import (
    ANY,
    PARTIAL_MEAN,
    PARTIAL_SUM,
    REPLICATE,
    RULES,
    Factor,
    Sharded,
    factors_of,
    sharding,
)
from vksched.testing.op_cases.op_sample import OpSample
from vksched.testing.op_table import CASES

MOST = 200_000
"""Elements of a result: larger cases say nothing more about a rule."""
OPS = sorted({case.op for case in CASES if isinstance(case, OpSample) and case.op in RULES.rules})


def sharded(case: OpSample) -> Sharded:
    return Sharded(case.types, case.result_type(), Attrs(case.attrs))


def in_parts(units: int, parts: int) -> list[int]:
    """Units of uneven parts: the first one is the smallest."""
    sizes = [max(1, units // (parts + 1))] * (parts - 1)
    return [*sizes, units - sum(sizes)]


def taken(array: NDArray, axis: int, begin: int, end: int) -> NDArray:
    return np.ascontiguousarray(np.take(array, range(begin, end), axis))


def operands(case: OpSample, factor: Factor, begin: int, end: int, part: int) -> list[NDArray]:
    """What one part reads. Terms: the first part has the array, the others have zeros."""
    out: list[NDArray] = []
    for array, form in zip(case.inputs, factor.operands, strict=True):
        if isinstance(form, int):
            scale = array.shape[form] // factor.units
            assert scale * factor.units == array.shape[form], "an axis is no multiple of its units"
            out.append(taken(array, form, begin * scale, end * scale))
        elif form is PARTIAL_SUM and part:
            out.append(np.zeros_like(array))
        else:
            out.append(array)
    return out


def results(case: OpSample, factor: Factor, sizes: list[int]) -> Iterator[NDArray]:
    op, begin = case.declaration, 0
    for part, size in enumerate(sizes):
        changed = factor.attrs(begin, size) if factor.units else {}
        attrs = Attrs({**case.attrs, **changed})
        arrays = operands(case, factor, begin, begin + size, part)
        inputs = tuple(
            TensorType(a.shape, t.dtype) for a, t in zip(arrays, case.types, strict=True)
        )
        built = np.asarray(op.reference(tuple(arrays), attrs))
        assert infer(op, inputs, attrs).shape == built.shape
        yield built
        begin += size


def together(factor: Factor, built: list[NDArray], sizes: list[int]) -> NDArray:
    if isinstance(factor.result, int):
        return np.concatenate(built, factor.result)
    if factor.result is PARTIAL_MEAN and factor.units:
        total = sum(sizes)
        return np.sum([m * np.float32(s / total) for m, s in zip(built, sizes, strict=True)], 0)
    return np.sum(built, axis=0, dtype=built[0].dtype)


def check_samples(case: OpSample, factor: Factor, parts: int) -> None:
    sizes = in_parts(factor.units, parts) if factor.units else [0] * parts
    with np.errstate(all="ignore"):
        whole = np.asarray(case.declaration.reference(case.inputs, Attrs(case.attrs)))
        got = together(factor, list(results(case, factor, sizes)), sizes)
    assert got.shape == whole.shape
    assert got.dtype == whole.dtype
    if whole.dtype.kind != "f":
        np.testing.assert_array_equal(got, whole)
        return
    finite = np.abs(whole[np.isfinite(whole)])
    scale = float(finite.max()) if finite.size else 1.0
    np.testing.assert_allclose(got, whole, rtol=1e-3, atol=2e-6 * max(scale, 1e-3))


def is_telling(case: OpSample, factor: Factor) -> bool:
    """Return True if a sum of terms differs from the whole: with infinities it does not."""
    if isinstance(factor.result, int):
        return True
    return all(a.dtype.kind != "f" or bool((np.abs(a) < 1e4).all()) for a in case.inputs)


@pytest.mark.parametrize("op", OPS)
def test_parts_give_the_whole(op: str) -> None:
    tried = 0
    for case in CASES:
        if not isinstance(case, OpSample) or case.op != op or case.result_type().size > MOST:
            continue
        for factor in factors_of(op, sharded(case)):
            for parts in (2, 3):
                if (factor.units == 0 or factor.units >= parts) and is_telling(case, factor):
                    try:
                        check_samples(case, factor, parts)
                    except Exception as error:
                        raise AssertionError(f"{case.id} {case.attrs} {factor} {parts}") from error
                    tried += 1
    assert tried or op in ("bitcast", "optimization_barrier")


def test_every_op_has_a_rule_or_a_reason() -> None:
    for op in computing_ops():
        assert (op in RULES.rules) != bool(RULES.reason(op)), op


def test_an_op_has_one_rule() -> None:
    with pytest.raises(vs.VkschedError, match="two rules"):
        sharding("matmul")(lambda call: ())


def factors(op: str, *shapes: tuple[int, ...], **attrs: object) -> set[tuple[object, object, int]]:
    types = tuple(TensorType(shape) for shape in shapes)
    built = Attrs(attrs)  # type: ignore[arg-type]
    call = Sharded(types, infer(get_op(op), types, built), built)
    return {(f.operands, f.result, f.units) for f in factors_of(op, call)}


def test_the_rule_of_a_product_is_rows_terms_and_columns() -> None:
    found = factors("matmul", (4, 6), (6, 8), transpose_a=False, transpose_b=False)
    assert found == {
        ((0, REPLICATE), 0, 4),
        ((1, 0), PARTIAL_SUM, 6),
        ((REPLICATE, 1), 1, 8),
        ((PARTIAL_SUM, REPLICATE), PARTIAL_SUM, 0),
        ((REPLICATE, PARTIAL_SUM), PARTIAL_SUM, 0),
    }


def test_a_reshape_is_cut_by_heads() -> None:
    apart = factors("reshape", (2, 5, 12), shape=(2, 5, 4, 3))
    assert {((0,), 0, 2), ((1,), 1, 5), ((2,), 2, 4)} <= apart
    joined = factors("reshape", (2, 5, 4, 3), shape=(2, 5, 12))
    assert ((2,), 2, 4) in joined
    assert factors("reshape", (6, 4), shape=(4, 6)) == {
        ((0,), 0, 2),
        ((PARTIAL_SUM,), PARTIAL_SUM, 0),
    }


def test_an_event_may_lie_in_any_layout() -> None:
    assert ((0, ANY), 0, 3) in factors("optimization_barrier", (3,), (7, 7))


@pytest.mark.parametrize("rules", [sharding_rule, vjp])
def test_every_rule_names_an_op(rules: ModuleType) -> None:
    """Rules are declared before some of their ops, so a wrong name shows only here."""
    assert {*rules.RULES.rules, *rules.RULES.reasons} <= all_ops().keys()
