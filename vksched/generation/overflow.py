"""Overflow fallback: the response to values beyond the range of float16 in a language model.

    mixed --logits not finite--> mixed, rows scaled --not finite--> float32, f32 cache for f16
                                                                    |
                              f32 cache for q8_0 <--not finite------'

Kernels convert to float16 as IEEE 754 defines: a value above 65,504 becomes infinite, and with it
all results of its row, up to the logits; a key becomes NaN in an f16 cache (kv_cache.py). A text
whose logits are not finite is therefore processed again, first with scaled rows (`scaled_rows.py`),
then in float32; with a warning each time. The change is kept for later texts.

An f16 cache is replaced together with the mode. A q8_0 cache, whose range is 127 times as large, is
kept until float32 does not suffice. Examples: tests/generation/test_scaled_rows.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ..ir.precision import HALF, MIXED, SINGLE
from .device_precision import FLOAT16_CACHE, FLOAT32_CACHE

if TYPE_CHECKING:
    from ..engine.request_precision import Precision

SCALED = (
    "logits are not finite; values of this model may exceed the range of float16, up to 65,504: "
    "rows are scaled by powers of two from now on"
)
DAMAGED = (
    "logits are not finite in float32, either: float16 is not the cause; the weights may be damaged"
)
AS_ASKED, SCALED_ROWS, EXACT = range(3)
"""The levels of the fallback: in the requested mode, with scaled rows, in float32."""


class OverflowFallback:
    """How a model's steps are computed after overflows of float16.

    level: AS_ASKED, SCALED_ROWS or EXACT. notes: the warnings until now.
    """

    def __init__(self) -> None:
        self.level = AS_ASKED
        self.notes: list[str] = []
        self._has_float32_cache = False

    @property
    def is_exact(self) -> bool:
        """True if the model is computed in float32."""
        return self.level == EXACT

    def precision(self, asked: Precision) -> Precision:
        """Return the precision by which layers are placed. asked: that without an overflow."""
        return SINGLE if self.is_exact else asked

    def cache_type(self, asked: str) -> str:
        """Return the element type of the KV cache. asked: that without an overflow."""
        return FLOAT32_CACHE if self._has_float32_cache else asked

    def advance(self, precision: Precision | None, cache_types: Collection[str]) -> bool:
        """Go to the next level after logits that are not finite; return False if there is none.

        precision, cache_types: the precision and the element types of the KV cache in use.
        """
        modes = set(precision.values()) if isinstance(precision, Mapping) else {precision}
        others = [kind for kind in cache_types if kind != FLOAT32_CACHE]
        if self.level == AS_ASKED and modes & {MIXED, HALF}:
            self.level = SCALED_ROWS
            self.notes.append(SCALED)
        elif modes != {SINGLE}:
            self._has_float32_cache = FLOAT16_CACHE in others
            self.notes.append(exact_note(modes, others, self.level == SCALED_ROWS))
            self.level = EXACT
        elif others:
            self._has_float32_cache = True
            self.notes.append(cache_note(others))
            self.level = EXACT
        else:
            return False
        return True


def exact_note(modes: Collection[str | None], cache_types: Collection[str], scaled: bool) -> str:
    """Return the warning of a change to float32.

    cache_types: those in use, without f32. scaled: rows were scaled.
    """
    mode = "with scaled rows, either" if scaled else f"in {_joined(modes, SINGLE)}"
    cache = ""
    if FLOAT16_CACHE in cache_types:
        cache = ", with a KV cache in f32 instead of f16,"
    elif cache_types:
        cache = f", with the KV cache in {_joined(cache_types)} as before,"
    return f"logits are not finite {mode}; this model is computed in float32{cache} from now on"


def cache_note(cache_types: Collection[str]) -> str:
    """Return the warning of a change of the KV cache alone."""
    kinds = _joined(cache_types)
    return (
        f"logits are not finite in float32 with a KV cache in {kinds}; keys or values may exceed "
        f"its range, and it is f32 from now on"
    )


def _joined(names: Collection[str | None], without: str = "") -> str:
    return ", ".join(sorted({name for name in names if name and name != without}))
