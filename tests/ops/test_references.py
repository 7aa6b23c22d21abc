"""The numpy references against oracles that share no code with them: ONNX, scipy, Python's math."""

from __future__ import annotations

from functools import partial

import pytest
from failures import Failures
from op_runs import cases_of, choose_cases
from selection import select_cases

from vksched.ir.op import computing_ops
from vksched.testing.kernel_runner import check, check_function
from vksched.testing.op_table import FUNCTIONS

pytest.importorskip("onnx")
pytest.importorskip("scipy.special")

from references import FUNCTION_ORACLES, ORACLES


@pytest.mark.scales
@pytest.mark.parametrize("op", computing_ops())
def test_reference_equals_an_independent_oracle(op: str, failures: Failures) -> None:
    cases = cases_of(op)
    for case in select_cases(cases, partial(choose_cases, op), failures.only):
        with failures.of(case.id):
            check(case, case.expected(), ORACLES[op](case), "numpy")


@pytest.mark.parametrize("function", sorted({case.function for case in FUNCTIONS}))
def test_function_equals_an_independent_oracle(function: str, failures: Failures) -> None:
    for case in FUNCTIONS:
        if case.function == function and failures.wants(case.id):
            with failures.of(case.id):
                oracle = FUNCTION_ORACLES[function](case)
                wanted = tuple(oracle) if isinstance(oracle, (tuple, list)) else (oracle,)
                check_function(case, case.expected(), wanted, "numpy")
