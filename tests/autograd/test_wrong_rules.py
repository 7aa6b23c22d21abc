"""Wrong gradient rules are seen: planted ones, each with another mistake."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from test_cli import call

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir import vjp
from vksched.ir.vjp import Rule, VjpContext, sum_to
from vksched.testing import check_gradients
from vksched.testing.check_gradients import first_order, on_device, second_order, summary
from vksched.testing.numeric_gradient import (
    GradientComparison,
    compare,
    compare_second,
    function_of,
    why_not_compared,
)
from vksched.testing.op_cases.op_sample import OpSample, floats

WIDE, ROW, SQUARE = floats(5, 5), floats(5, seed=1), floats(5, 5, seed=2)
SUB, MUL = OpSample("sub", (WIDE, ROW)), OpSample("mul", (WIDE, SQUARE))
SUM = OpSample("reduce_sum", (WIDE,), {"axes": (0,), "keepdims": False})
PRODUCT = OpSample("matmul", (WIDE, SQUARE), {"transpose_a": False, "transpose_b": False})

Plant = Callable[[str, Rule], None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Replace the rule of an op."""

    def replace(op: str, rule: Rule) -> None:
        monkeypatch.setitem(vjp.RULES.rules, op, rule)

    return replace


def wrong_sign(call: VjpContext) -> vjp.VjpResult:
    return call.grad, sum_to(call.grad, call.inputs[1].shape)


def first_row(call: VjpContext) -> vjp.VjpResult:
    """Of an operand that was repeated the gradient of one use only."""
    return call.grad, vs.neg(vs.squeeze(call.grad[:1], 0))


def mean_of_rows(call: VjpContext) -> vjp.VjpResult:
    return call.grad, vs.neg(vs.reduce_mean(call.grad, 0))


def along_the_other_axis(call: VjpContext) -> vjp.VjpResult:
    (x,) = call.inputs
    return (vs.expand(vs.expand_dims(call.grad, 1), x.shape),)


def nothing_for_the_second(call: VjpContext) -> vjp.VjpResult:
    return call.grad * call.inputs[1], None


def not_transposed(call: VjpContext) -> vjp.VjpResult:
    a, b = call.inputs[:2]
    return vs.matmul(call.grad, b), vs.matmul(vs.transpose(a), call.grad)


def off_by_a_little(call: VjpContext) -> vjp.VjpResult:
    a, b = call.inputs
    return call.grad * b * 1.00001, call.grad * a


@pytest.mark.parametrize(
    ("case", "rule", "operand"),
    [
        (SUB, wrong_sign, "x1"),
        (SUB, first_row, "x1"),
        (SUB, mean_of_rows, "x1"),
        (SUM, along_the_other_axis, "x0"),
        (MUL, nothing_for_the_second, "x1"),
        (PRODUCT, not_transposed, "x0"),
        (MUL, off_by_a_little, "x0"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_rule_is_seen(plant: Plant, case: OpSample, rule: Rule, operand: str) -> None:
    assert first_order(case).wrong == ""
    plant(case.op, rule)
    found = first_order(case)
    assert found.wrong.startswith(f"by {operand}: ") and "differences give" in found.wrong
    (row,) = summary([found])
    assert (row.op, row.by, row.wrong) == (case.op, "differences", 1)


def test_a_sum_that_is_left_out_is_seen(plant: Plant) -> None:
    plant("sub", lambda call: (call.grad, vs.neg(call.grad)))
    assert first_order(SUB).wrong == (
        "[vjp] the rule of sub gave float64[5,5], float64[5,5] for operands of float64[5,5], "
        "float64[5] (in sub); the rule is wrong"
    )


def test_a_number_that_is_none_is_seen(plant: Plant) -> None:
    plant("exp", lambda call: (call.grad * float("nan"),))
    assert "no number where differences give one" in first_order(OpSample("exp", (WIDE,))).wrong


def test_one_wrong_element_among_many_is_seen(plant: Plant) -> None:
    x = floats(5003)
    mask = np.ones(5003, np.float64)
    mask[4321] = 0.9
    plant("exp", lambda call: (call.grad * call.output * vs.constant(mask),))
    assert first_order(OpSample("exp", (x,))).wrong


def test_a_rule_that_cannot_be_pulled_through_is_seen_by_the_second_order(plant: Plant) -> None:
    def stopped(call: VjpContext) -> vjp.VjpResult:
        a, b = call.inputs
        return call.grad * vs.stop_gradient(b), call.grad * vs.stop_gradient(a)

    assert second_order(MUL).wrong == ""
    plant("mul", stopped)
    assert first_order(MUL).wrong == ""
    assert "differences give" in second_order(MUL).wrong


def test_an_op_without_a_rule_within_a_gradient_is_named(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("exp", lambda call: (vs.tan(call.grad * call.output),))
    monkeypatch.delitem(vjp.RULES.rules, "tan", raising=False)
    assert "tan has no gradient rule" in second_order(OpSample("exp", (WIDE,))).wrong


def test_a_device_that_computes_a_gradient_wrongly_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    (right,) = on_device("cpu", [MUL])
    assert right.wrong == "" and right.error < 1e-6
    real = check_gradients._run

    def changed(*args: object) -> dict[str, NDArray]:
        built = {name: array.copy() for name, array in real(*args).items()}  # type: ignore[arg-type]
        built["x1"][2, 3] += 1e-3
        return built

    monkeypatch.setattr(check_gradients, "_run", changed)
    (found,) = on_device("cpu", [MUL])
    assert found.wrong.startswith("by x1: ") and found.wrong.endswith("and 0 others")


# -- where differences say nothing ---------------------------------------------------------------


def test_kinks_do_not_count(plant: Plant) -> None:
    plant("relu", lambda call: (call.grad * vs.cast(call.inputs[0] > 0.0, call.grad.dtype),))
    x = np.asarray([-1.0, 0.0, 2.0], np.float32)
    found = compare(OpSample("relu", (x,)))
    assert found.wrong == "" and found.kinks > 0 and found.directions >= 2
    assert compare(OpSample("relu", (x[::2],))).kinks == 0


def test_infinite_slopes_do_not_count(plant: Plant) -> None:
    plant("sqrt", lambda call: (call.grad * (0.5 / call.output),))
    found = compare(OpSample("sqrt", (np.asarray([0.0, 1.0, 4.0], np.float32),)))
    assert found.wrong == "" and found.kinks > 0 and found.directions > 0


def test_rounding_does_not_count() -> None:
    """Differences of large sums tell little of small slopes."""
    found = compare(OpSample("add", (floats(7) * 1e6, floats(7) * 1e-6)))
    assert found.wrong == "" and found.error < 1e-6


FAR = OpSample("fmod", (floats(997) * 1e3, np.abs(floats(997, seed=1)) * 1e-3 + 1e-5))
"""Differences over many jumps: quotients of a million and more."""


def test_jumps_within_a_step_do_not_count(plant: Plant) -> None:
    found = first_order(FAR)
    assert found.wrong == "" and found.directions > 10
    assert second_order(FAR).wrong == ""
    plant("fmod", lambda call: (call.grad * 1.01, call.grad * 0.0))
    assert "differences give" in first_order(FAR).wrong


def test_jumps_nearer_than_any_step_have_no_second_order() -> None:
    (x, y), attrs = FAR.inputs, FAR.attrs
    found = second_order(OpSample("fmod", (x * 1e10, y), attrs))
    assert found.reason == "the gradient has steps too near to each other" and not found.directions


def test_steps_of_large_operands_are_as_long_as_they_seem(plant: Plant) -> None:
    case = OpSample("sin", (np.linspace(1e6, 2e6, 97, dtype=np.float32),))
    assert first_order(case).wrong == "" and first_order(case).directions > 0
    plant("sin", lambda call: (call.grad * vs.cos(call.inputs[0]) * 1.001,))
    assert "differences give" in first_order(case).wrong


def test_terms_that_add_up_to_nothing_may_leave_their_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a mask that is the same along the axis the gradient is 0."""
    x, mask = floats(3, 50, 7), floats(7, seed=1)
    case = OpSample("log_softmax", (x, mask), {"axis": 0})
    (right,) = on_device("cpu", [case])
    assert right.wrong == "" and right.reason == ""
    real = check_gradients._run

    def changed(*args: object) -> dict[str, NDArray]:
        built = real(*args)  # type: ignore[arg-type]
        return {**built, "x1": built["x1"] + np.float32(1e-4)}

    monkeypatch.setattr(check_gradients, "_run", changed)
    (found,) = on_device("cpu", [case])
    assert found.wrong.startswith("by x1: ")


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (OpSample("argmax", (WIDE,), {"axis": 0}), "the op has no rule"),
        (OpSample("exp", (np.full(3, np.inf, np.float32),)), "operands are not finite"),
        (OpSample("exp", (np.full(3, 800, np.float32),)), "the result is not finite"),
        (OpSample("neg", (np.arange(3),)), "no operand has floats"),
        (OpSample("exp", (floats(50_000),)), "it is large"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.op,
)
def test_what_cannot_be_compared_says_why(case: OpSample, why: str) -> None:
    assert why_not_compared(case) == why
    assert first_order(case).reason == why


def test_outcomes_add_up() -> None:
    total = GradientComparison(2, 1, 0.5) + GradientComparison(3, 0, 0.25, "bad")
    assert total == GradientComparison(5, 1, 0.5, "bad")


def test_second_order_has_the_known_values() -> None:
    """Of sum(c * x * y): its gradients (c y, c x), times d and e, have the gradient c e by x."""
    function = function_of(OpSample("mul", (WIDE, SQUARE)).as_dtypes({"float32": "float64"}))
    feeds = function.second.feeds
    from vksched.testing.numeric_gradient import evaluate

    got = evaluate(function.second.backward, feeds)
    np.testing.assert_allclose(got["x0"], feeds["c y"] * feeds["c d x1"])
    np.testing.assert_allclose(got["x1"], feeds["c y"] * feeds["c d x0"])
    assert compare_second(MUL).directions > 0


# -- the command ---------------------------------------------------------------------------------


def test_the_command_compares_rules(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "ops", "grad", "-o", "mul", "-o", "neg", "-d", "cpu")
    first = [line.split()[:2] for line in out.splitlines()]
    assert code == 0 and ["mul", "differences"] in first and ["neg", "cpu"] in first
    assert ["mul", "second"] in first and " 0 wrong; -v names what is not compared" in out
    code, out, _ = call(capsys, "ops", "grad", "-o", "mul", "-d", "cpu", "-v")
    assert code == 0 and "not compared: mul-fgrid-100_100 by cpu: operands are not finite" in out
    code, text, _ = call(capsys, "ops", "grad", "-o", "neg", "-d", "cpu", "--json")
    found = json.loads(text)
    assert code == 0 and {o["by"] for o in found["outcomes"]} == {
        "differences",
        "second order",
        "cpu",
    }
    assert {"op": "stop_gradient", "reason": "is there to stop it"} in found["without"]


def test_the_command_ends_with_1_where_a_rule_is_wrong(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    plant("neg", lambda call: (call.grad,))
    code, out, _ = call(capsys, "ops", "grad", "-o", "neg", "-d", "cpu")
    assert code == 1 and "wrong: neg-fmany-5003 by differences: by x0: " in out
    assert " 0 wrong" not in out


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("-o", "negg"), "expected an op with cases, got 'negg'; close: neg"),
        (("-o", "stop_gradient"), "got stop_gradient, which is there to stop it"),
        (("-d", "vulkan:99"), "got 'vulkan:99'"),
    ],
)
def test_bad_arguments_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], match: str
) -> None:
    code, _, err = call(capsys, "ops", "grad", *arguments)
    assert code == 1 and match in err and err.count("\n") == 1
