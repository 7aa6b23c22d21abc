"""What differences of a function along one direction say of its gradient: the same, another, or
nothing.

              exact within low .. high            the function has a kink there
    slope  ___/                                   smaller steps say the same: the gradient is wrong
          /   smaller steps say something else    they tell nothing

Examples: tests/autograd/test_wrong_rules.py.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

KINK = 1e-3
"""Of differences to the left beside those to the right: from here on they belong to a kink."""
TELLING = 0.1
"""Up to this share of a slope its noise leaves something to be told."""
STEEPER = 1.5
"""Both sides differ more by this with a smaller step near a pole, not at a kink."""


@dataclass(frozen=True, slots=True)
class Slope:
    """Differences along one direction, beside the gradient's own slope: exact.

    ahead, behind: to either side. low, high: with the lower or higher of both sides for each
    element of the results, as each may have a kink of its own. noise: how far rounding may put each
    off. hidden: how much of it rounding may hide where nothing seems to change.
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
        """What rounding does not explain, as a share of the size; NaN where sums overflow."""
        far = abs(self.numeric - self.exact) - self.noise
        return max(0.0, far) / self.size if self.size else 0.0 if far <= 0 else np.inf

    @property
    def size(self) -> float:
        return abs(self.exact) + abs(self.numeric)

    @property
    def tells(self) -> bool:
        """Whether rounding leaves digits that tell something."""
        return bool(self.hidden <= TELLING * self.size and np.isfinite(self.size))

    @property
    def apart(self) -> float:
        """How far both sides differ: next to nothing where all is smooth."""
        return abs(self.ahead - self.behind)

    @property
    def is_kink(self) -> bool:
        """Whether both sides differ and the gradient may be one between them."""
        wide = self.high - self.low
        more = self.noise + KINK * wide
        is_between = self.low - more <= self.exact <= self.high + more
        return is_between and wide > KINK * (abs(self.ahead) + abs(self.behind))

    def is_steady(self, finer: Slope) -> bool:
        """Return whether smaller steps neither come nearer to the gradient nor get steeper."""
        off = abs(self.numeric - self.exact)
        moved = abs(self.numeric - self.exact - (finer.numeric - finer.exact))
        is_pole = finer.apart > STEEPER * self.apart + self.noise + finer.noise
        return not is_pole and moved <= min(off, abs(self.numeric)) / 4 + finer.noise

    def per(self, unit: float) -> Slope:
        """Return the slope per another unit."""
        return Slope(*(value / unit for value in astuple(self)))
