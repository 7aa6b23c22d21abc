"""Meta devices: simulated devices that compute no values, for replays without weights and inputs.

Times, waits and bytes are those of simulated devices. All values are zeros without memory.
Examples: tests/trace/test_replay.py.
"""

from __future__ import annotations

import numpy as np

from ...common.dtypes import NDArray, Progress, TensorType, numpy_dtype
from ...plan.types.plan_types import PlanValue
from .simulated_device import SimulatedDevice, SimulatedPreparedPlan


def meta_array(type_: TensorType) -> NDArray:
    """Return zeros of a type that use no memory of their own."""
    return np.broadcast_to(np.zeros((), numpy_dtype(type_.dtype)), type_.shape)


class MetaDevice(SimulatedDevice):
    """A simulated device without values; see SimulatedDevice."""

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> MetaPreparedPlan:
        return MetaPreparedPlan(self, plan, index)


class MetaPreparedPlan(SimulatedPreparedPlan):
    """One plan on a meta device."""

    def _snapshot(self, array: NDArray) -> NDArray:
        return array

    def _has_operands(self, slot: int, split: int) -> bool:
        return True

    def _compute(self, slot: int, split: int) -> None:
        for copy in self._plan.splits[split].downloads:
            self._values[slot][copy.node] = meta_array(self._plan.graph.nodes[copy.node].type)
