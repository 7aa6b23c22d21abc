"""What the executor asks of a device. `vulkan`, `cpu` and `null` implement it; tests may too.

    Device --prepare(plan, index)--> PreparedPlan               (memory, uploads, recordings: once)
    PreparedPlan: upload inputs -> submit split -> wait -> check -> fetch results   (per run, in one
    slot)

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
"""Seconds of a split and of its longest submission; None where the device cannot tell."""

TransferTimes = Mapping[str, tuple[float | None, float | None]]
"""By stage of a split that a copy queue carried out, when that began and its seconds; None where
the device cannot tell.
"""


class Closing(Protocol):
    """What holds something until it is closed."""

    def close(self) -> None:
        """Wait for what is pending and frees everything; safe to call twice."""


class PreparedPlan(Closing, Protocol):
    """One plan's share of one device."""

    def begin(self, slot: int) -> None:
        """Forget what an earlier run left in this slot."""

    def upload(self, slot: int, copy: Upload, array: NDArray) -> None:
        """Put a value where the next submission of this slot finds it. Host work only."""

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        """Start a split, or leaves it to `wait`, and returns at once. sequence_number: a number
        that this run has alone on this slot. Asked again with the same one, as after an interrupt,
        it starts what has not begun.
        """

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        """Return when the split, and so each of this device and slot that was submitted before it,
        is complete.

        Raises:
            DeviceLost, OutOfMemory, DeviceTimeout: what the driver said.
        """

    def ends_s(self, slot: int, split: int) -> float | None:
        """Return when a submitted split ends, by a simulated clock; of a real one a time in the
        past once it has, and None until then. It does not wait.
        """

    def check(self, slot: int, split: int, sequence_number: int) -> None:
        """Raise unless the complete split really ran to its end in this run: DeviceLost, or
        IndexOutOfRange where its data is at fault.
        """

    def fetch(self, slot: int, node: int) -> NDArray:
        """Return a value copied out by a complete split; a view that the slot's next run
        overwrites.
        """

    def times_s(self, slot: int, split: int) -> Times:
        """Return how long a complete split took on the device, and its longest submission."""

    def async_transfer_s(self, slot: int, split: int) -> TransferTimes:
        """Returns what the copy queue did for a complete split; nothing where it had no part."""


class Device(Protocol):
    """One logical device."""

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> DeviceSpec:
        """What the planner may know, with the memory that is free now."""

    @property
    def link(self) -> Link | None:
        """The way to the host's memory, where it is known: part of the planner's machine."""

    @property
    def states(self) -> StateStore:
        """The states that live there; those of a plan are there before it is prepared."""

    def holds(self, key: object) -> bool:
        """Return whether a weight or state (one of `Graph.keys`) is on the device now."""

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> PreparedPlan:
        """Allocates, uploads the weights that are not there yet, and records the splits of device
        `index`.
        """

    def close(self) -> None:
        """Free the device; safe to call twice."""


class BackgroundTask(Protocol):
    """What makes weights ready before a plan asks for them, on a thread of its own."""

    def wait(self) -> None:
        """Wait until all are ready."""

    def close(self) -> None:
        """Goes no further, and leaves what is ready to those who have it by now."""


@runtime_checkable
class PrefetchesWeights(Protocol):
    """A device with memory of its own that takes weights before a plan needs them."""

    def prefetch_weights(self, weights: Sequence[tuple[object, ArrayLike]]) -> BackgroundTask:
        """Begin to upload weights, by their keys in graphs; what fails is left to the plan."""


class MemoryUsage(NamedTuple):
    """What a device tells of itself at one moment; None where it does not tell.

    used_bytes: of total_bytes of its memory, by all programs. own_bytes: by this process. pci: its
    address on the bus, as 0000:03:00.0, or "".
    """

    total_bytes: int | None = None
    used_bytes: int | None = None
    own_bytes: int | None = None
    pci: str = ""


@runtime_checkable
class ReportsMemory(Protocol):
    """A device that tells how full its memory is."""

    def memory_usage(self) -> MemoryUsage:
        """Returns what there is to tell; raises DeviceError where it is closed."""
