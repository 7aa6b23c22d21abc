"""PerfModel: measured costs of a device, as plain data.

Problem: rough speeds are right to a factor of ten, and a cost-based plan is as good as its costs.
Method: measurements are stored as factors on the roofline estimate, for each op, its limiting
resource and its size. Factors are interpolated linearly between sizes, both as logarithms, and are
constant beyond the last size.

    factor of softmax/bytes          estimated 2**-20 s: 6    (overheads inside the kernel)
      8 |*                                     2**-14 s: 2
      4 |   .                                  2**-17 s: sqrt(6 * 2)
      2 |      *---                            2**-10 s: 2
         -20  -14  log2 of estimated seconds

A kind is an op and its limiting resource, as "matmul/flops". "linalg/flops" is the kind of its
family, "*/flops" that of every op. The first measured one counts. Complexity: O(log points) each.
Examples: tests/plan/test_costs.py.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..common.errors import PlanError

BOUNDS = ("flops", "bytes", "rounds")
"""The limiting resource of a call: arithmetic, memory, or sequential steps."""
ANY = "*"
"""Matches every op."""
MIN_S = 2.0**-60
"""Lower bound of an estimate, because sizes are logarithms."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Factors of one kind by size.

    Parameters
    ----------
    points
        Sorted pairs: log2 of the estimated seconds, and measured seconds / estimated seconds.
    """

    kind: str
    points: tuple[tuple[float, float], ...]

    def at(self, estimate_s: float) -> float:
        """Return the factor for an estimate."""
        size = math.log2(max(estimate_s, MIN_S))
        points = self.points
        after = bisect_left(points, (size, 0.0))
        if after == 0:
            return points[0][1]
        if after == len(points):
            return points[-1][1]
        (x0, y0), (x1, y1) = points[after - 1], points[after]
        share = (size - x0) / (x1 - x0)
        return float(y0 ** (1 - share) * y1**share)


@dataclass(frozen=True, slots=True)
class PerfModel:
    """Measured costs of one device; empty by default.

    Parameters
    ----------
    curves
        Factors by kind.
    launch_s
        Overhead of one call in a submission.
    start_s
        Overhead of a submission on the device, before and after its calls.
    submit_s, fence_s
        Host time to submit, and to learn that a submission has ended.
    run_s
        Host time of a run, independent of its submissions.
    alone_s
        Host time of a run of one split that the CPU computes on the waiting thread; 0: unknown.
    flops_per_s, bytes_per_s
        The highest measured rates.
    calls
        The number of measured calls; 0: all of the above is unknown.
    when
        The day of the last measurement, as YYYY-MM-DD.
    paces
        Factors by which calls take longer in runs than measured, by op; ANY for other ops.
    """

    curves: tuple[Curve, ...] = ()
    launch_s: float = 0.0
    start_s: float = 0.0
    submit_s: float = 0.0
    fence_s: float = 0.0
    run_s: float = 0.0
    alone_s: float = 0.0
    flops_per_s: float = 0.0
    bytes_per_s: float = 0.0
    calls: int = 0
    when: str = ""
    paces: tuple[tuple[str, float], ...] = ()
    _curves: Mapping[str, Curve] = field(init=False, repr=False, compare=False)
    _paces: Mapping[str, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_curves", {curve.kind: curve for curve in self.curves})
        object.__setattr__(self, "_paces", dict(self.paces))

    def __bool__(self) -> bool:
        """Return True if calls were measured: paces alone are factors on an estimate."""
        return bool(self.calls)

    def factor(self, kinds: Iterable[str], estimate_s: float) -> tuple[float, str]:
        """Return the factor of a call by the first measured kind, and that kind; 1 and "" if none
        was measured.
        """
        for kind in kinds:
            curve = self._curves.get(kind)
            if curve is not None:
                return curve.at(estimate_s), kind
        return 1.0, ""

    def pace(self, op: str) -> float | None:
        """Return the factor by which an op takes longer than first measured; None if no run has
        shown it.
        """
        found = self._paces.get(op)
        return self._paces.get(ANY) if found is None else found

    def saw(self, op: str) -> bool:
        """Return True if runs have shown how long an op takes."""
        return op in self._paces

    def at_pace(self, paces: Mapping[str, float]) -> PerfModel:
        """Return a copy with paces that runs showed."""
        return replace(self, paces=tuple(sorted(paces.items())))

    def alone(self) -> PerfModel:
        """Return the costs of a CPU that computes a single-split run on the waiting thread."""
        if not self.alone_s:
            return self
        return replace(self, submit_s=0.0, fence_s=0.0, run_s=self.alone_s)

    def as_dict(self) -> dict[str, Any]:
        """Return the costs as plain data for json.dumps; `from_dict` reads it. Empty fields are
        left out.
        """
        out: dict[str, Any] = {
            name: getattr(self, name) for name in _NUMBERS if getattr(self, name)
        }
        if self.when:
            out["when"] = self.when
        if self.curves:
            out["curves"] = {c.kind: [list(point) for point in c.points] for c in self.curves}
        if self.paces:
            out["paces"] = dict(self.paces)
        return out

    @staticmethod
    def from_dict(data: object, where: str = "costs") -> PerfModel:
        """Return costs from plain data.

        Raises
        ------
        PlanError
            The data is invalid.
        """
        known = {*_NUMBERS, "when", "curves", "paces"}
        if not isinstance(data, Mapping) or set(data) - known:
            raise PlanError(
                f"[topology] expected a mapping with some of {', '.join(sorted(known))} as {where},"
                f" got {data!r}"
            )
        fields_: dict[str, Any] = {}
        try:
            for name in _NUMBERS & data.keys():
                fields_[name] = _number(data[name])
            fields_["calls"] = int(fields_.get("calls", 0))
            unused = sorted((_NUMBERS | {"curves"}) & data.keys() - {"calls"})
            if unused and not fields_["calls"]:  # without calls, nothing counts as measured
                raise ValueError(f"got {unused[0]} without calls; try calls: 1")
            fields_["when"] = str(data.get("when", ""))
            fields_["curves"] = tuple(
                Curve(str(kind), _points(points))
                for kind, points in sorted(data.get("curves", {}).items())
            )
            fields_["paces"] = tuple(
                sorted((str(op), _positive(pace)) for op, pace in data.get("paces", {}).items())
            )
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise PlanError(
                f"[topology] expected {where} as PerfModel.as_dict gives, {error}"
            ) from None
        return PerfModel(**fields_)


_NUMBERS = {f.name for f in fields(PerfModel) if f.default == 0}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"got {value!r} for a number")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"got {value!r} for a number of 0 or more")
    return float(value)


def _positive(value: object) -> float:
    if not _number(value) > 0:
        raise ValueError(f"got {value!r} for a number above 0")
    return float(value)  # type: ignore[arg-type]


def _points(data: Any) -> tuple[tuple[float, float], ...]:
    points = tuple(sorted((float(size), _positive(factor)) for size, factor in data))
    sizes = {size for size, _ in points}
    if not points or len(sizes) < len(points) or not all(map(math.isfinite, sizes)):
        raise ValueError(f"got {data!r} for points of distinct sizes")
    return points
