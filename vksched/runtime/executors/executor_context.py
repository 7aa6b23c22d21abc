"""ExecutorContext: the arguments that all executors share.

Examples: tests/runtime/test_executor.py, tests/scheduler/test_streams.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...common.dtypes import Progress
from ...trace import Trace
from ..device import Device


@dataclass(frozen=True, slots=True)
class ExecutorContext:
    """The environment in which an executor runs its plan.

    Parameters
    ----------
    devices
        The devices, in the order of the plan's topology.
    timeout_s
        Maximum time to wait for one split.
    progress
        Called while the plan is prepared.
    run_numbers
        The counter of run numbers.
    plan_number
        The number of the plan in events.
    """

    devices: Sequence[Device]
    trace: Trace
    timeout_s: float
    progress: Progress | None = None
    run_numbers: Iterator[int] = field(default_factory=itertools.count)
    plan_number: int = -1
