"""Device protocols: the interface between executors and devices. Implemented by `vulkan`, `cpu` and
`simulated`, and by tests.

    Device --prepare(plan, index)--> PreparedPlan               (memory, uploads, recordings: once)
    PreparedPlan: upload inputs -> submit split -> wait -> check -> fetch results   (in each run)

A slot is one of the plan's `copies` sets of memory; a slot carries one run at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from ..common.dtypes import NDArray, Progress
from ..plan.types.plan_types import PlanValue, Upload
from ..storage.lazy_array import ArrayLike
from ..topology.device_spec import DeviceSpec
from ..topology.links import Link
from .state_store import StateStore

Times = tuple[float | None, float | None]
"""Seconds of a split and of its longest submission; None if the device has no timestamps."""

TransferTimes = Mapping[str, tuple[float | None, float | None]]
"""By stage of a split on the transfer queue, its start and its seconds; None without timestamps."""


class Closeable(Protocol):
    """An object that must be closed."""

    def close(self) -> None:
        """Wait for pending work and free everything; safe to call twice."""


class PreparedPlan(Closeable, Protocol):
    """One plan on one device.

    Order of calls in a run, per slot: `begin`, then for each split `upload`, `submit`, `wait`,
    `check`, `fetch`.
    """

    def begin(self, slot: int) -> None:
        """Reset a slot for a new run."""

    def upload(self, slot: int, copy: Upload, array: NDArray) -> None:
        """Stage a value for the next submission of this slot. Host work only."""

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        """Start a split and return immediately; a device may defer it to `wait`.

        Parameters
        ----------
        sequence_number
            Unique to this run within the slot. If it is repeated, as after KeyboardInterrupt, only
            work that has not begun is started.
        """

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        """Wait for a split, and so for all earlier submissions of this device and slot.

        Raises
        ------
        DeviceLost, OutOfMemory, DeviceTimeout
            The error of the driver.
        """

    def ends_s(self, slot: int, split: int) -> float | None:
        """Return the end time of a submitted split without waiting. Simulated devices know it in
        advance; real devices return a past time once it has ended, else None.
        """

    def check(self, slot: int, split: int, sequence_number: int) -> None:
        """Check that a finished split ran completely in this run.

        Raises
        ------
        DeviceLost
            It did not run.
        IndexOutOfRange
            An index of its inputs is out of range.
        """

    def fetch(self, slot: int, node: int) -> NDArray:
        """Return a downloaded value of a finished split; a view, which the slot's next run
        overwrites.
        """

    def times_s(self, slot: int, split: int) -> Times:
        """Return the device seconds of a finished split, and of its longest submission."""

    def async_transfer_s(self, slot: int, split: int) -> TransferTimes:
        """Return the transfer queue's times of a finished split; empty if it did not use that
        queue.
        """


class WrappedPreparedPlan:
    """A prepared plan that forwards all calls to another one; subclasses change some of them."""

    def __init__(self, prepared: PreparedPlan) -> None:
        self._prepared = prepared

    def begin(self, slot: int) -> None:
        self._prepared.begin(slot)

    def upload(self, slot: int, copy: Upload, array: NDArray) -> None:
        self._prepared.upload(slot, copy, array)

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        self._prepared.submit(slot, split, sequence_number)

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        self._prepared.wait(slot, split, timeout_s)

    def ends_s(self, slot: int, split: int) -> float | None:
        return self._prepared.ends_s(slot, split)

    def check(self, slot: int, split: int, sequence_number: int) -> None:
        self._prepared.check(slot, split, sequence_number)

    def fetch(self, slot: int, node: int) -> NDArray:
        return self._prepared.fetch(slot, node)

    def times_s(self, slot: int, split: int) -> Times:
        return self._prepared.times_s(slot, split)

    def async_transfer_s(self, slot: int, split: int) -> TransferTimes:
        return self._prepared.async_transfer_s(slot, split)

    def close(self) -> None:
        self._prepared.close()


class Device(Protocol):
    """One logical device."""

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> DeviceSpec:
        """The device spec for the planner, with the memory that is free now."""

    @property
    def link(self) -> Link | None:
        """The link to the host's memory, if it is known."""

    @property
    def states(self) -> StateStore:
        """The states on the device; those of a plan must exist before it is prepared."""

    def holds(self, key: object) -> bool:
        """Return True if a weight or state (one of `Graph.keys`) is on the device now."""

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> PreparedPlan:
        """Allocate memory, upload missing weights, and record the splits of device `index`."""

    def close(self) -> None:
        """Free the device; safe to call twice."""


@runtime_checkable
class Reopens(Protocol):
    """A device that can be opened again after a failure."""

    def reopen(self) -> Device:
        """Open the closed device again, without its weights and states; raise DeviceError if that
        fails.
        """


class BackgroundTask(Protocol):
    """A background thread that prepares weights before a plan needs them."""

    def wait(self) -> None:
        """Wait until all are ready."""

    def close(self) -> None:
        """Stop, and release the weights that no plan uses."""


@runtime_checkable
class PrefetchesWeights(Protocol):
    """A device with its own memory that can prefetch weights."""

    def prefetch_weights(self, weights: Sequence[tuple[object, ArrayLike]]) -> BackgroundTask:
        """Start to upload weights, by their keys in graphs; the plan uploads those that fail."""


class MemoryUsage(NamedTuple):
    """The memory usage of a device; None for unknown values.

    Parameters
    ----------
    used_bytes
        Used part of total_bytes, by all programs.
    own_bytes
        The part of this process.
    pci
        The bus address, as 0000:03:00.0, or "".
    """

    total_bytes: int | None = None
    used_bytes: int | None = None
    own_bytes: int | None = None
    pci: str = ""


@runtime_checkable
class ReportsMemory(Protocol):
    """A device that reports its memory usage."""

    def memory_usage(self) -> MemoryUsage:
        """Return the memory usage; raise DeviceError if the device is closed."""
