"""Measurement: the parts that the autotuner and the calibrator share.

    tune=... --> Mode --> Measurement of a device --> results --> VariantCache, CostCache
                          time budget, crash marker, progress

Examples: tests/tuning/test_calibrate.py, tests/tuning/test_tuner.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from types import TracebackType

from ..common.env import is_on
from ..common.errors import DeviceError, PlanError
from ..runtime.device import Device
from ..storage.crash_marker import CrashMarker

FIRST_USE_S = 3.0
"""Total time that a scheduler spends on tuning hardware devices unless the user asks for more."""

Tell = Callable[[str, int, int], None]
"""A progress callback: (description, done, total), in calls."""


@dataclass(frozen=True, slots=True)
class Mode:
    """Tuning mode of a scheduler.

    Parameters
    ----------
    reads
        True if cached results are used.
    budget_s
        Time for measuring missing results.
    software
        True if CPU drivers are measured, too.
    """

    reads: bool
    budget_s: float = 0.0
    software: bool = False


def mode_of(tune: object) -> Mode:
    """Return the mode of a scheduler's `tune` argument; VKSCHED_TUNE=0 disables "auto"."""
    if tune == "auto":
        on = is_on("VKSCHED_TUNE", True)
        return Mode(on, FIRST_USE_S if on else 0.0)
    if tune is False:
        return Mode(False)
    if tune is True:
        return Mode(True, math.inf, software=True)
    if isinstance(tune, (int, float)) and tune > 0:
        return Mode(True, float(tune), software=True)
    raise PlanError(
        f'[Scheduler] expected tune of "auto", True, False or seconds above 0, got {tune!r}'
    )


def no_progress(what: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass
class Measurement:
    """The measurement of one device, which begins now; a context manager.

    Parameters
    ----------
    budget_s
        Its time.
    tell
        The progress callback.
    results
        The file of results, in whose folder the crash marker is; None: there is no marker.
    device, during
        The device, and the name of the measurement, for errors of the device.

    Attributes
    ----------
    forgiven_s
        Seconds that do not count.
    marker
        The crash marker; it stays if the device fails.
    """

    budget_s: float = math.inf
    tell: Tell = no_progress
    results: InitVar[Path | None] = None
    device: str = ""
    during: str = ""
    forgiven_s: float = field(default=0.0, init=False)
    marker: CrashMarker = field(init=False)

    def __post_init__(self, results: Path | None) -> None:
        self.marker = CrashMarker(results)
        self._start = time.monotonic()

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self._start - self.forgiven_s

    @property
    def left_s(self) -> float:
        return self.budget_s - self.spent_s

    @property
    def over(self) -> bool:
        return self.left_s <= 0

    def __enter__(self) -> Measurement:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if isinstance(error, DeviceError):
            error.device, error.during = self.device, self.during
        self.marker.close(failed=isinstance(error, DeviceError))


def is_busy(device: Device) -> bool:
    """Return True if a device is busy: measurements would be wrong and would delay a run."""
    from ..runtime.vulkan.vulkan_device import VulkanDevice  # needs the native modules

    return isinstance(device, VulkanDevice) and device.busy()


@contextmanager
def progress_bar(quiet: bool = False, title: str = "tuning") -> Iterator[Tell]:
    """Yield a progress callback that draws a bar on stderr, if stderr is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    from ..common.console import DescriptionColumn, ProgressBars

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressBars(*columns, DescriptionColumn(), quiet=quiet) as bars:
        task = bars.add_task("", total=None)

        def tell(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total)

        yield tell
