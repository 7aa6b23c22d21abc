"""Domains of attributes: calls have what their ops declare, and nothing else is taken."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest

import vksched as vs
from vksched.common.dtypes import MAX_ELEMENTS, TensorType
from vksched.common.errors import DTypeError, GraphError, ShapeError, VkschedError
from vksched.ir.attr_domains import (
    AttrCall,
    Axes,
    Axis,
    Dims,
    Domain,
    Flag,
    Float,
    Int,
    Nullable,
    Optional,
    TupleOf,
    Value,
    as_many_as,
    dtype_of,
    one_of,
    rank_of,
    wholes,
)
from vksched.ir.attrs import Attrs, AttrValue
from vksched.ir.check_call import domains_of
from vksched.ir.evaluate import infer
from vksched.ir.op import all_ops, get_op
from vksched.ops.elementwise.program_domains import Constants, Epilogue, Instrs
from vksched.testing.op_table import CASES, PRECISE

CUBE = TensorType((2, 3, 4))
ASKED = AttrCall("op", (CUBE, TensorType((5,), "int32")), Attrs({"axes": (0, 1)}))
STEP: AttrValue = ("add", (0, 1), ())
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("domain", "inside", "outside"),
    [
        (Flag(), [True, False], [0, 1, None, "True", (True,)]),
        (Int(-1, 3), [-1, 0, 3], [-2, 4, True, 1.0, None, "1", (1,), 1 << 70]),
        (Float(), [0, -1, 0.5, -3e38], [NAN, INF, -INF, 1e39, True, "0", None, 1 << 200]),
        (Float(0.0), [0.0, 2], [-1e-30, -1]),
        (one_of("add", 2), ["add", 2], ["mul", 2.0, "", True, None]),
        (dtype_of(), ["float32", "int64"], ["int8", "object", 4, None]),
        (Axis(), [0, 2], [-1, 3, True, 1.0, None]),
        (Axis(1), [0], [1, -1]),
        (Axis(more=1), [0, 3], [-1, 4]),
        (Axis(7, of_scalar=True), [0], [1]),
        (Axes(), [(), (0,), (0, 1, 2)], [(1, 0), (0, 0), (-1,), (3,), 0, None, (True,), ((0,),)]),
        (Axes(in_order=False), [(), (1, 0), (2,)], [(1, 1), (3,)]),
        (Axes(in_order=False, every=True), [(1, 0, 2)], [(1, 0), (0, 1, 1), (0, 1, 3)]),
        (Dims(), [(), (0, 5), (1,) * 8], [(-1,), (1,) * 9, (1 << 62,), 4, (2.0,), (True,)]),
        (Dims(2), [(3, 4)], [(3,), (3, 4, 5)]),
        (Dims(low=-1), [(-1, 2)], [(-2, 2)]),
        (wholes(1, 9, rank_of()), [(1, 2, 9)], [(1, 2), (0, 1, 2), (1, 2, 10), 1, (1, 2, True)]),
        (wholes(0, 9, as_many_as("axes")), [(1, 2)], [(1,), (1, 2, 3)]),
        (TupleOf(Flag(), least=1, most=2), [(True,), (True, False)], [(), (1,), (True,) * 3]),
        (Nullable(Int(0)), [None, 0], [-1, "None"]),
        (Optional(Int(0)), [0], [-1, None]),
        (Value(), [0, 1.5, NAN, INF, -3e38], [True, "x", None, 1e39, 1 << 200]),
        (Value(has_nan=False), [INF], [NAN]),
        (Instrs(), [(STEP,), (STEP, ("cast", (0,), (("to", "bool"),)))], [(), STEP, ((), ()), "x"]),
        (Instrs(), [], [(("add", (0, 1)),), (("add", (), ()),), ((1, (0,), ()),), (STEP,) * 2000]),
        (Instrs(), [], [(("add", (0.5,), ()),), (("a", (0,), (("k", 1), ("k", 2))),)]),
        (Constants(), [(), (("float32", 7), ("bool", 1))], [(("int64", 1),), (("bool", 2),), 3]),
        (Constants(), [], [(("float32", -1),), (("float32", 1 << 32),), (("float32",),)]),
        (
            Epilogue(),
            [(1, (STEP,), ()), (2, (STEP,), ())],
            [(3, (STEP,), ()), (True, (STEP,), ()), ()],
        ),
        (Epilogue(), [], [(1, (), ()), (1, (STEP,), ((),)), (1.0, (STEP,), ())]),
    ],
)
def test_values_inside_and_outside(
    domain: Domain, inside: list[AttrValue], outside: list[AttrValue]
) -> None:
    for value in inside:
        assert domain.expected(value, ASKED) == "", value
    for value in outside:
        with pytest.raises((ShapeError, DTypeError), match=r"^\[op\] expected .+ as a, got "):
            domain.check("a", value, ASKED)


@pytest.mark.parametrize(
    ("dtype", "inside", "outside"),
    [
        ("int32", [-(2**31), 5], [2**31, 1.0, True]),
        ("uint32", [0, 2**32 - 1], [-1]),
        ("int64", [2**63 - 1], [2**63]),
        ("bool", [True], [1, 0.0]),
        ("float16", [65504.0, NAN, 1], [65536.0, 1e9]),
        ("float64", [1e300], [True]),
    ],
)
def test_values_of_an_element_type(
    dtype: str, inside: list[AttrValue], outside: list[AttrValue]
) -> None:
    for asked in (
        AttrCall("op", (TensorType((1,), dtype),), Attrs()),
        AttrCall("op", (), Attrs({"dtype": dtype})),
    ):
        assert [v for v in inside if Value().expected(v, asked)] == []
        assert [v for v in outside if not Value().expected(v, asked)] == []


def test_an_error_shows_no_more_than_the_start_of_a_value() -> None:
    with pytest.raises(ShapeError) as caught:
        Axes().check("axes", tuple(range(100_000)), ASKED)
    assert len(str(caught.value)) < 300


# -- ops -------------------------------------------------------------------------------------------


def test_cases_have_the_attributes_that_their_ops_declare() -> None:
    """And each declared one is in a case, so nothing is declared for nothing."""
    used: dict[str, set[str]] = defaultdict(set)
    for case in (*CASES, *PRECISE):
        used[case.op].update(case.attrs)
    for name, op in all_ops().items():
        assert op.opaque or op.attrs is not None, f"{name} declares no attributes"
        assert op.operands[0] <= op.operands[1], name
        if name in used:
            assert used[name] == set(domains_of(op)), name
        else:
            assert op.leaf or op.stateful or op.opaque, f"{name} has no case"


@pytest.mark.parametrize(
    ("attrs", "match"),
    [
        ({"axis": 0, "exclusive": False}, "expected an attribute reverse, got none"),
        ({"axis": 0, "exclusive": False, "reverse": 0}, "expected True or False as reverse, got 0"),
        (
            {"axis": 0, "exclusive": False, "reverse": False, "eps": 0.5},
            "expected attributes axis, exclusive, reverse, got 'eps'",
        ),
        (
            {"axis": 0, "exclusive": False, "reverse": False, "precision": "mixed"},
            "got 'precision'",
        ),
        ({"axis": 3, "exclusive": False, "reverse": False}, r"an axis in 0\.\.2 as axis, got 3"),
        ({"axis": -1, "exclusive": False, "reverse": False}, r"an axis in 0\.\.2 as axis, got -1"),
    ],
)
def test_a_call_has_the_attributes_of_its_op(attrs: dict[str, AttrValue], match: str) -> None:
    with pytest.raises(ShapeError, match=match):
        infer(get_op("cumsum"), (CUBE,), Attrs(attrs))


@pytest.mark.parametrize(
    ("op", "count", "attrs", "match"),
    [
        ("add", 1, {}, "expected 2 operands, got 1"),
        ("add", 3, {}, "expected 2 operands, got 3"),
        ("relu", 2, {}, "expected 1 operands, got 2"),
        ("concat", 0, {"axis": 0}, "expected 1 to"),
        ("matmul", 4, {"transpose_a": False, "transpose_b": False}, "expected 2 to 3 operands"),
    ],
)
def test_a_call_has_the_operands_of_its_op(
    op: str, count: int, attrs: dict[str, AttrValue], match: str
) -> None:
    with pytest.raises(ShapeError, match=match):
        infer(get_op(op), (TensorType((4, 4)),) * count, Attrs(attrs))


def test_precisions_are_attributes_of_ops_with_factors_alone() -> None:
    plain: dict[str, AttrValue] = {"transpose_a": False, "transpose_b": False}
    pair = (TensorType((4, 4)),) * 2
    assert infer(get_op("matmul"), pair, Attrs({**plain, "precision": "mixed"})) == pair[0]
    with pytest.raises(ShapeError, match="as precision, got 'exact'"):
        infer(get_op("matmul"), pair, Attrs({**plain, "precision": "exact"}))
    with pytest.raises(ShapeError, match="got 'precision'"):
        infer(get_op("add"), pair, Attrs({"precision": "mixed"}))


@pytest.mark.parametrize(
    "epilogue",
    [
        (1, (("add", (0, 5), ()),), ()),  # a register that is not there
        (1, (("matmul", (0, 0), ()),), ()),
        (1, (("fused_elementwise", (0,), (("steps", ()), ("constants", ()))),), ()),
        (1, (("clip", (0,), (("low", math.nan), ("high", None))),), ()),
        (1, (("elu", (0,), ()),), ()),  # a step without its attributes
        (2, (("add", (0, 1), ()),), ()),  # a residual that is not there
    ],
)
def test_an_epilogue_is_a_program_of_elementwise_steps(epilogue: AttrValue) -> None:
    attrs: dict[str, AttrValue] = {"transpose_a": False, "transpose_b": False, "epilogue": epilogue}
    with pytest.raises(VkschedError):
        infer(get_op("matmul"), (TensorType((4, 4)),) * 2, Attrs(attrs))


@pytest.mark.parametrize(
    "ends", [{"low": 1}, {"high": 1}, {"low": 2, "high": 1}, {"low": False, "high": True}]
)
def test_bounds_of_an_input_are_two_numbers_in_order(ends: dict[str, AttrValue]) -> None:
    own: dict[str, AttrValue] = {"shape": (2,), "dtype": "int32"}
    assert infer(get_op("input"), (), Attrs({**own, "low": 1, "high": 2})).shape == (2,)
    with pytest.raises((DTypeError, ShapeError), match="bounds|as low"):
        infer(get_op("input"), (), Attrs({**own, **ends}))
    with pytest.raises(DTypeError, match="of an integer input"):
        infer(get_op("input"), (), Attrs({**own, "dtype": "float32", "low": 1, "high": 2}))


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(1 << 62,), (1 << 62, 0), (1 << 31, 1 << 31), (MAX_ELEMENTS + 1,), (1 << 20,) * 8]
)
def test_no_tensor_has_more_elements_than_a_computer_holds(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match="at most 2\\^40 elements"):
        TensorType(shape)
    with pytest.raises(ShapeError):
        vs.full(shape, 0.0)
    assert TensorType((MAX_ELEMENTS,)).size == MAX_ELEMENTS


def test_results_may_not_grow_beyond_it_either() -> None:
    row = vs.input("x", (1 << 30,))
    with pytest.raises(ShapeError, match="at most 2\\^40 elements"):
        vs.concat([row] * 1025)
    with pytest.raises(ShapeError, match="at most 2\\^40 elements"):
        vs.pad(row, (1 << 40, 1 << 40))
    with pytest.raises((ShapeError, GraphError)):
        vs.one_hot(vs.input("i", (1 << 20,), "int32"), 1 << 31)


def test_no_window_has_the_cpu_write_out_far_more_than_it_reads() -> None:
    """A part of some kilobytes could ask for all memory; padding of dilated windows is no such."""
    wide: dict[str, AttrValue] = {"stride": (1022, 1022), "dilation": (1, 1)}
    wide |= {"begin": (511, 511), "end": (511, 511)}
    x, w = TensorType((1, 8192, 1, 1)), TensorType((1, 8192, 1, 1))
    calls = {
        "conv": ((x, w), {**wide, "groups": 1}),
        "max_pool_indices": ((x,), {**wide, "kernel": (1, 1), "sizes": (2, 2)}),
        "depthwise_conv_weight_grad": (
            (x, TensorType((1, 8192, 2, 2))),
            {**wide, "kernel": (1, 1)},
        ),
    }
    for op, (inputs, attrs) in calls.items():
        with pytest.raises(ShapeError, match="expected a padding of"):
            infer(get_op(op), inputs, Attrs(attrs))
    for channels, sizes, dilation in ((1, (8, 8), 520), (1, (8, 8, 8), 48), (2048, (33, 33), 36)):
        x, w = vs.input("x", (8, channels, *sizes)), vs.input("w", (1, channels, *[3] * len(sizes)))
        assert vs.conv(x, w, padding=dilation, dilation=dilation).shape == (8, 1, *sizes)
