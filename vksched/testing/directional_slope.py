"""Directional slope: compare the gradient with differences of a function along one direction.

              exact within low .. high            the function has a kink there
    slope  ___/                                   smaller steps agree: the gradient is wrong
          /   smaller steps disagree              they are inconclusive

Examples: tests/autograd/test_wrong_rules.py.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

KINK = 1e-3
"""Minimum relative difference between left and right slope at a kink."""
TELLING = 0.1
"""Maximum relative noise of a conclusive slope."""
STEEPER = 1.5
"""Near a pole, but not at a kink, a smaller step increases the difference of both sides by this
factor.
"""


@dataclass(frozen=True, slots=True)
class DirectionalSlope:
    """Differences along one direction.

    exact: the gradient's own slope. ahead, behind: slopes to either side. low, high: sums of the
    lower and higher side of each element of the results, because each may have its own kink. noise:
    rounding error of each slope. hidden: slope that rounding may hide if nothing seems to change.
    """

    exact: float
    numeric: float
    ahead: float
    behind: float
    low: float
    high: float
    noise: float
    hidden: float

    @property
    def error(self) -> float:
        """Return the error that rounding does not explain, relative to the size; NaN if sums
        overflow.
        """
        far = abs(self.numeric - self.exact) - self.noise
        return max(0.0, far) / self.size if self.size else 0.0 if far <= 0 else np.inf

    @property
    def size(self) -> float:
        return abs(self.exact) + abs(self.numeric)

    @property
    def tells(self) -> bool:
        """Return True if rounding hides at most a share TELLING of the slope."""
        return bool(self.hidden <= TELLING * self.size and np.isfinite(self.size))

    @property
    def apart(self) -> float:
        """Return the difference of both sides: nearly 0 for smooth functions."""
        return abs(self.ahead - self.behind)

    @property
    def is_kink(self) -> bool:
        """Return True if both sides differ and the gradient may lie between them."""
        wide = self.high - self.low
        more = self.noise + KINK * wide
        is_between = self.low - more <= self.exact <= self.high + more
        return is_between and wide > KINK * (abs(self.ahead) + abs(self.behind))

    def is_steady(self, finer: DirectionalSlope) -> bool:
        """Return True if smaller steps neither approach the gradient nor get steeper."""
        off = abs(self.numeric - self.exact)
        moved = abs(self.numeric - self.exact - (finer.numeric - finer.exact))
        is_pole = finer.apart > STEEPER * self.apart + self.noise + finer.noise
        return not is_pole and moved <= min(off, abs(self.numeric)) / 4 + finer.noise

    def per(self, unit: float) -> DirectionalSlope:
        """Return the slope in another unit."""
        return DirectionalSlope(*(value / unit for value in astuple(self)))
