"""All rows of the case table, collected from the families' modules."""

from __future__ import annotations

from types import ModuleType

from . import arg, elementwise, index, layout, matmul, norm, reduce
from .case import Case, ErrorCase, FunctionCase

FAMILIES: tuple[ModuleType, ...] = (
    arg,
    elementwise,
    index,
    layout,
    matmul,
    norm,
    reduce,
)
CASES: list[Case] = [case for family in FAMILIES for case in family.CASES]
FUNCTIONS: list[FunctionCase] = [
    case for family in FAMILIES for case in getattr(family, "FUNCTIONS", ())
]
ERRORS: list[ErrorCase] = [case for family in FAMILIES for case in family.ERRORS]
