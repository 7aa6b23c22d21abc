"""Overflow fallback: the response to values beyond the range of float16 in a language model.

    mixed --logits not finite--> mixed, rows scaled --not finite--> float32, cache in float32

Kernels convert to float16 as IEEE 754 defines: a value above 65,504 becomes infinite, and with it
all results of its row, up to the logits. A text whose logits are not finite is therefore processed
again, first with scaled rows (`scaled_rows.py`), then in float32; with a warning both times. The
change is kept for later texts. Examples: tests/generation/test_scaled_rows.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..ir.precision import HALF, MIXED, SINGLE
from .device_precision import FLOAT32_CACHE

if TYPE_CHECKING:
    from ..engine.request_precision import Precision

SCALED = (
    "values of this model exceed the range of float16, up to 65,504; rows are scaled by powers of "
    "two from now on"
)
EXACT = (
    "values of this model exceed the range of float16, up to 65,504, even in scaled rows; it is "
    "computed in float32 from now on"
)


AS_ASKED, SCALED_ROWS, FLOAT32 = range(3)
"""The levels of the fallback."""


class OverflowFallback:
    """How a model's steps are computed after overflows of float16.

    level: AS_ASKED, SCALED_ROWS or FLOAT32. notes: the warnings until now.
    """

    def __init__(self) -> None:
        self.level = AS_ASKED
        self.notes: list[str] = []

    def advance(self, precision: Precision | None, cache_types: Collection[str]) -> bool:
        """Go to the next level after logits that are not finite; return False if there is none.

        precision, cache_types: the precision and the element types of the KV cache in use.
        """
        modes = set(precision.values()) if isinstance(precision, Mapping) else {precision}
        if self.level == AS_ASKED and modes & {MIXED, HALF}:
            self.level = SCALED_ROWS
            self.notes.append(SCALED)
        elif self.level != FLOAT32 and (modes != {SINGLE} or set(cache_types) != {FLOAT32_CACHE}):
            self.level = FLOAT32
            self.notes.append(EXACT)
        else:
            return False
        return True
