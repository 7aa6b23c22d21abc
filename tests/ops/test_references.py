"""The numpy references against oracles that share no code with them: ONNX, scipy, Python's math."""

from __future__ import annotations

import pytest

from vksched.cases.case import Case, FunctionCase
from vksched.cases.runner import check, check_function
from vksched.cases.table import CASES, FUNCTIONS

pytest.importorskip("onnx")
pytest.importorskip("scipy.special")

from oracles import FUNCTION_ORACLES, ORACLES


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_reference_equals_an_independent_oracle(case: Case) -> None:
    check(case, case.expected(), ORACLES[case.op](case), "numpy")


@pytest.mark.parametrize("case", FUNCTIONS, ids=lambda c: c.id)
def test_function_equals_an_independent_oracle(case: FunctionCase) -> None:
    oracle = FUNCTION_ORACLES[case.function](case)
    wanted = tuple(oracle) if isinstance(oracle, (tuple, list)) else (oracle,)
    check_function(case, case.expected(), wanted, "numpy")
