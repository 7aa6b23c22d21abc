"""Extra metrics that are not cases, for example the overhead of a run or the upload of weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ExtraMetric:
    """One value. reference: comparison value in the same unit. unit: "s", "bytes", "us/node" or
    "bytes/s".
    """

    device: str
    name: str
    value: float
    unit: str
    reference: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Return the value divided by its reference."""
        return self.value / self.reference if self.reference else None

    def cells(self) -> tuple[str, str, str]:
        """Return value, reference and ratio as text."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        reference = "" if self.reference is None else _text(self.reference, self.unit)
        return _text(self.value, self.unit), reference, ratio


def _text(value: float, unit: str) -> str:
    from ..common.formatting import format_bytes, format_seconds

    if unit == "s":
        return format_seconds(value)
    if unit == "bytes":
        return format_bytes(int(value))
    if unit == "bytes/s":
        return f"{value / 1e9:.3g} GB/s"
    return f"{value:.3g} {unit}"
