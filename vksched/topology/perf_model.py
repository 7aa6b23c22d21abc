"""PerfModel: what was measured of a device's speed, as plain data.

Problem: rough speeds are right to a factor of ten, and a plan by cost is as good as its seconds.
Method: what was measured is kept as a factor on the estimate by work and ceilings, for each op,
for what bounds the call, and for its size. Between two sizes the factor goes in a straight line,
both in logarithms. Beyond the last one it stays.

    factor of softmax/bytes          estimated 2**-20 s: 6    (overheads inside the kernel)
      8 |*                                     2**-14 s: 2
      4 |   .                                  2**-17 s: sqrt(6 * 2)
      2 |      *---                            2**-10 s: 2
         -20  -14  log2 of estimated seconds

A kind is an op and a bound, as "matmul/flops". "linalg/flops" stands for its family, "*/flops"
for every op. The first one that was measured counts. Complexity: O(log points) each. Examples:
tests/plan/test_costs.py.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..common.errors import PlanError

BOUNDS = ("flops", "bytes", "rounds")
"""What takes the time of a call: arithmetic, memory, or steps that go one after the other."""
ANY = "*"
"""Stands for every op."""
MIN_S = 2.0**-60
"""Of an estimate: a call that moves nothing still has a size."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Factors of one kind by size.

    points: (log2 of the estimated seconds, measured seconds over estimated ones), by size.
    """

    kind: str
    points: tuple[tuple[float, float], ...]

    def at(self, estimate_s: float) -> float:
        """Return the factor of a call of this size."""
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
    """What was measured of one device; nothing by default.

    curves: factors by kind. launch_s: of one call in a submission, beside its work. start_s: of a
    submission, on the device itself, before and after its calls. submit_s, fence_s: host time to
    hand a submission over, and to learn of its end. run_s: host time of a run, whatever it submits.
    alone_s: all host time of a run of one split, which the CPU computes on the thread that waits
    for it; 0: unknown. flops_per_s, bytes_per_s: the largest rates seen. calls: how many were
    measured; 0: all the above is unknown. when: the day of the last one, as YYYY-MM-DD. paces: how
    many times longer than that calls take now, as runs showed, by op; under ANY for ops that no run
    had.
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
        """Whether calls were measured: paces alone are factors on what is still an estimate."""
        return bool(self.calls)

    def factor(self, kinds: Iterable[str], estimate_s: float) -> tuple[float, str]:
        """Return the factor of a call by the first of some kinds that was measured, and which one
        that is; 1 and "" where none was.
        """
        for kind in kinds:
            curve = self._curves.get(kind)
            if curve is not None:
                return curve.at(estimate_s), kind
        return 1.0, ""

    def pace(self, op: str) -> float | None:
        """Return how many times longer than first measured an op takes now; None where no run has
        told.
        """
        found = self._paces.get(op)
        return self._paces.get(ANY) if found is None else found

    def saw(self, op: str) -> bool:
        """Whether runs have told how long an op takes."""
        return op in self._paces

    def at_pace(self, paces: Mapping[str, float]) -> PerfModel:
        """Return the same costs with what runs showed."""
        return replace(self, paces=tuple(sorted(paces.items())))

    def alone(self) -> PerfModel:
        """Return the costs of a CPU that computes a run of one split on the thread that waits."""
        if not self.alone_s:
            return self
        return replace(self, submit_s=0.0, fence_s=0.0, run_s=self.alone_s)

    def as_dict(self) -> dict[str, Any]:
        """Return the costs as plain data that json.dumps takes; `from_dict` makes costs of that.
        Fields that say nothing are left out.
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

        Raises:
            PlanError: what is wrong.
        """
        known = {*_NUMBERS, "when", "curves", "paces"}
        if not isinstance(data, Mapping) or set(data) - known:
            raise PlanError(
                f"[topology] expected a mapping with some of {', '.join(sorted(known))} as {where},"
                f" got {data!r}"
            )
        given: dict[str, Any] = {}
        try:
            for name in _NUMBERS & data.keys():
                given[name] = _number(data[name])
            given["calls"] = int(given.get("calls", 0))
            unused = sorted((_NUMBERS | {"curves"}) & data.keys() - {"calls"})
            if unused and not given["calls"]:  # then nothing counts as measured
                raise ValueError(f"got {unused[0]} without calls; try calls: 1")
            given["when"] = str(data.get("when", ""))
            given["curves"] = tuple(
                Curve(str(kind), _points(points))
                for kind, points in sorted(data.get("curves", {}).items())
            )
            given["paces"] = tuple(
                sorted((str(op), _positive(pace)) for op, pace in data.get("paces", {}).items())
            )
        except (TypeError, ValueError, OverflowError, AttributeError) as error:
            raise PlanError(
                f"[topology] expected {where} as PerfModel.as_dict gives, {error}"
            ) from None
        return PerfModel(**given)


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
