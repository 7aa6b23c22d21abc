"""Differences between the outputs of two runtimes, for `vksched run --compare-with`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..common.dtypes import NDArray

RTOL = 1e-4
"""Default relative tolerance of float outputs; other outputs must be equal."""
SMALLEST = 1e-3
"""Default absolute tolerance, as a factor of the relative one: outputs of smaller magnitude have
few significant digits, for example the logit of an improbable token.
"""


class Tolerance(NamedTuple):
    """A float output is right if its largest difference is at most `atol`, or at most `rtol` times
    its largest magnitude.
    """

    rtol: float
    atol: float

    @classmethod
    def of(cls, rtol: float = RTOL, atol: float | None = None) -> Tolerance:
        """Return a tolerance with the default for `atol` if it is None."""
        return cls(rtol, SMALLEST * rtol if atol is None else atol)

    def accepts(self, largest: float, scale: float) -> bool:
        """Return True if a difference is within the tolerance. scale: largest magnitude."""
        return largest <= max(self.atol, self.rtol * scale)


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of one output. wrong: description of an error, or "". note: why a difference
    is acceptable.
    """

    output: str
    largest: float
    relative: float
    wrong: str = ""
    note: str = ""


DEFAULT = Tolerance.of()


def compare(
    found: Mapping[str, Any], expected: Mapping[str, Any], tolerance: Tolerance = DEFAULT
) -> list[Difference]:
    """Return the difference of each output, for sequences item by item."""
    pairs = [(name, got, expected[name]) for name, got in found.items()]
    return [d for name, got, wanted in pairs for d in _compare(name, got, wanted, tolerance)]


def _compare(name: str, got: Any, wanted: Any, tolerance: Tolerance) -> list[Difference]:
    if isinstance(got, list) and isinstance(wanted, (list, tuple)) and len(got) == len(wanted):
        pairs = enumerate(zip(got, wanted, strict=True))
        return [
            d for i, (one, other) in pairs for d in _compare(f"{name}[{i}]", one, other, tolerance)
        ]
    if isinstance(got, dict) and isinstance(wanted, dict) and list(got) == list(wanted):
        one, other = (np.array(list(m.values())) for m in (got, wanted))
        return [_numbers(name, one, other, tolerance)]
    if got is None or wanted is None or isinstance(got, list):
        same = got is None and wanted is None
        return [Difference(name, 0.0, 0.0, "" if same else "another kind of value")]
    one, other = np.asarray(got), np.asarray(wanted)
    if one.shape != other.shape or (one.dtype != other.dtype and one.dtype.kind not in "OU"):
        text = f"{one.dtype}{list(one.shape)}, expected {other.dtype}{list(other.shape)}"
        return [Difference(name, 0.0, 0.0, text)]
    return [_numbers(name, one, other, tolerance)]


def _numbers(name: str, one: NDArray, other: NDArray, tolerance: Tolerance) -> Difference:
    if one.dtype.kind in "biuOU":
        count = int(np.sum(one != other))
        wrong = f"{count} of {one.size} elements differ" if count else ""
        far = 0.0
        if count and one.dtype.kind in "iu":
            far = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max())
        return Difference(name, far, 0.0, wrong)
    kind = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = one.astype(kind), other.astype(kind)
    finite = np.isfinite(a) & np.isfinite(b)
    rest = int(np.sum(~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))))
    largest = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    scale = float(np.abs(b[finite]).max(initial=0.0))
    relative = largest / max(scale, SMALLEST)
    wrong = ""
    if not tolerance.accepts(largest, scale):
        wrong = f"over {tolerance.rtol:g} of the largest magnitude"
    if rest:
        wrong = f"{rest} of {a.size} elements are not finite on one side, or differ in that"
    return Difference(name, largest, relative, wrong)
