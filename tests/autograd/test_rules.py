"""Every gradient rule against central differences, of the first and second order, and on devices.

Cases come from the case table and from the draws of tests/ops/. `make test` takes a few of each op,
`make test-all` all of them. What a wrong rule looks like: test_wrong_rules.py.
"""

from __future__ import annotations

from functools import cache

import pytest
from conftest import NUMPY_ONLY, THOROUGH, vulkan_names
from fuzz import DRAWS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from selection import by_tier

from vksched.ir.op import computing_ops
from vksched.ir.vjp import rule_of
from vksched.testing.check_gradients import (
    first_order,
    on_device,
    reasons,
    second_order,
    spread,
    summary,
    why_not_on_devices,
)
from vksched.testing.numeric_gradient import STRAIGHT_THROUGH, function_of, is_compared
from vksched.testing.op_cases.op_sample import OpSample
from vksched.testing.op_table import CASES

NOT_BY_DIFFERENCES = {*STRAIGHT_THROUGH, "dequantize_linear"}
"""Rules with tests of their own: differences in float64 say nothing of them."""
DEVICES = ["cpu", *vulkan_names()]
RULED = [op for op in computing_ops() if rule_of(op) and op not in NOT_BY_DIFFERENCES]
FEW, FEW_OF_DEVICES, DRAWN = by_tier(4, 6, 8), by_tier(1, 2, 4), by_tier(6, 15, 40)
SETTINGS = settings(
    max_examples=DRAWN,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
of_every_rule = pytest.mark.parametrize("op", RULED)


@cache
def few(op: str) -> list[OpSample]:
    """Some cases of an op that can be compared."""
    cases = [case for case in CASES if case.op == op]
    picked = [case for case in spread(cases, 6 * FEW) if is_compared(case)]
    return spread(picked or [case for case in cases if is_compared(case)], FEW)


def test_every_op_has_a_rule_or_a_reason() -> None:
    missing = [op for op, why in reasons().items() if not why]
    assert missing == [], "see docs/development/adding-an-op.md"


@pytest.mark.scales
@of_every_rule
def test_some_directions_count_for_every_rule(op: str) -> None:
    found = [first_order(case) for case in few(op)]
    assert [o.wrong for o in found if o.wrong] == []
    assert sum(o.directions for o in found) > 0


@pytest.mark.scales
@of_every_rule
def test_gradients_of_gradients_equal_differences(op: str) -> None:
    found = [second_order(case) for case in spread(few(op), FEW // 2)]
    assert found and [f"{o.case}: {o.wrong}" for o in found if o.wrong] == []


@pytest.mark.scales
@of_every_rule
def test_rules_take_every_float(op: str) -> None:
    """The walk refuses a gradient of another type or shape than the operand's."""
    for case in few(op):
        for dtype in ("float16", "float64"):
            function = function_of(case.as_dtypes({"float32": dtype}))
            for name, gradient in function.gradients.items():
                assert gradient.type == function.inputs[name].type


@pytest.mark.thorough
@pytest.mark.timeout(600)
@of_every_rule
def test_all_cases_equal_differences(op: str) -> None:
    wrong = [first_order(case) for case in CASES if case.op == op]
    assert [f"{o.case}: {o.wrong}" for o in wrong if o.wrong] == []


@pytest.mark.scales
@pytest.mark.timeout(600)
@pytest.mark.parametrize("op", [op for op in RULED if op in DRAWS])
def test_drawn_calls_equal_differences(op: str) -> None:
    @SETTINGS
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = DRAWS[op](data.draw)
        assert first_order(case).wrong == ""

    run()


@pytest.mark.scales
@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", DEVICES)
def test_devices_compute_the_gradient(device: str) -> None:
    """All of them, and in `make test` each gradient on one of them."""
    ops = RULED if THOROUGH else RULED[DEVICES.index(device) :: len(DEVICES)]
    cases = []
    for op in ops:
        able = [case for case in few(op) if not why_not_on_devices(case)]
        cases += able[-FEW_OF_DEVICES:]
    found = list(on_device(device, cases))
    assert [f"{o.case}: {o.wrong}" for o in found if o.wrong] == []
    assert {row.op for row in summary(found) if row.cases} >= set(ops) - NUMPY_ONLY
