"""All rows of the case table, collected from the families' modules."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType

import numpy as np

from ..common.dtypes import NDArray
from ..common.errors import VkschedError
from ..ir.value_range import bounds_of_data, fits
from ..topology.limits import Limits
from .attention import OF_BLOCKS
from .cached_attention import OF_PROMPTS
from .case import Case, ErrorCase, FunctionCase
from .epilogue import HALVES as HALVES_OF_EPILOGUES
from .matmul import HALVES as HALVES_OF_MATMUL
from .matmul import LONG_K
from .packed import OF_MANY_ROWS
from .precision import precise

NAMES = """
arg attention beside binary cached_attention chain channel_norm conv create einsum elementwise
epilogue grouped identity index integer layout linear matmul norm packed pad pool q8_rows random
rearrange recurrent reduce resize sample scan scatter softmax sort unary widen winograd write_rows
""".split()
FAMILIES: tuple[ModuleType, ...] = tuple(
    importlib.import_module(f".{name}", __package__) for name in NAMES
)
CASES: list[Case] = [case for family in FAMILIES for case in family.CASES]
FUNCTIONS: list[FunctionCase] = [
    case for family in FAMILIES for case in getattr(family, "FUNCTIONS", ())
]
ERRORS: list[ErrorCase] = [case for family in FAMILIES for case in family.ERRORS]


def fits_32_bits(array: NDArray) -> bool:
    """Returns whether a device can hold an array: int64 is 32 bits there."""
    return array.dtype != np.int64 or fits(bounds_of_data(array))


DERIVED_PER_OP = 4
"""How many cases of each op are run again with wider and narrower types."""


def derived(cases: Iterable[Case], change: Mapping[str, str]) -> list[Case]:
    """Returns some cases of every op on other element types, such as float16 for float32.

    Taken evenly from those that such types can hold; casts name their types themselves.
    """
    able: dict[str, list[Case]] = {}
    for case in cases:
        named = case.op == "cast" or "dtype" in case.attrs
        if not case.large and not named and any(a.dtype.name in change for a in case.inputs):
            able.setdefault(case.op, []).append(case)
    picked = []
    for group in able.values():
        step = max(1, len(group) // DERIVED_PER_OP)
        picked += [case.as_dtypes(change) for case in group[::step][:DERIVED_PER_OP]]
    return [case for case in picked if is_taken(case)]


def is_taken(case: Case) -> bool:
    """Returns whether the op takes operands of these types: nextafter refuses float16, and no
    uint32 is padded with -1.
    """
    numbers = (v for v in case.attrs.values() if isinstance(v, (int, float)))
    if any(a.dtype == np.uint32 for a in case.inputs) and any(v < 0 for v in numbers):
        return False
    try:
        case.call(Limits())
    except VkschedError:
        return False
    return True


HALVES = [*derived(CASES, {"float32": "float16"}), *HALVES_OF_MATMUL, *HALVES_OF_EPILOGUES]
PRECISE = [*precise(CASES), *precise(LONG_K), *precise((*OF_PROMPTS, *OF_BLOCKS, *OF_MANY_ROWS))]
LONGS = derived(CASES, {"int32": "int64"})
UNSIGNED = derived(CASES, {"int32": "uint32"})
DOUBLES = derived(CASES, {"float32": "float64"})
