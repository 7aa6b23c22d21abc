"""Fault injection: a device that fails on purpose, to test how a program reacts to a GPU failure.

    FaultInjectionDevice(device, at=3, kind="lost")   submission 0, 1, 2: normal   3 and later: lost

The wrapped device does all other work, so that a failure happens with real memory allocated and
real submissions in flight. Examples: tests/engine/test_faults.py, examples/device_loss.py.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceError, DeviceLost, DeviceTimeout, OutOfMemory
from ...plan.types.plan_types import PlanValue, Upload
from ..device import Device, PreparedPlan, Reopens, WrappedPreparedPlan
from ..state_store import Item, StateStore
from .device_wrapper import WrappedDevice

KINDS = ("lost", "timeout", "sequence", "memory", "error")
CALLS = ("prepare", "stage", "submit", "wait", "check", "fetch", "states")


class FaultInjectionDevice(WrappedDevice):
    """A device that works until a chosen call and then fails.

    Parameters
    ----------
    device
        The name of a Vulkan device, or any Device but the CPU.
    at
        The number of the call that fails, counted from 0 over all graphs; None for never. May be
        set at any time.
    kind
        "lost": this call and all later ones of any kind raise DeviceLost, as real drivers do.
        "timeout": the submission is forwarded, but later waits never see its end. "sequence":
        the submission is dropped silently. "memory": OutOfMemory. "error": another DeviceError.
    call
        The counted calls, one of "prepare", "stage", "submit", "wait", "check", "fetch" and
        "states" (adding, reading and writing states).
    times
        The number of calls that fail, None for all from the first on. A lost device stays lost.

    Raises
    ------
    DeviceError
        The kind or call is unknown, a number is not an integer of at least 0, the device is the
        CPU, or it does not exist.
    """

    def __init__(
        self,
        device: str | Device,
        at: int | None,
        kind: str = "lost",
        call: str = "submit",
        times: int | None = None,
    ) -> None:
        if kind not in KINDS or call not in CALLS:
            raise DeviceError(
                f"[FaultInjectionDevice] expected a kind of {', '.join(KINDS)} and a call of "
                f"{', '.join(CALLS)}, got {kind!r} and {call!r}"
            )
        if kind in ("timeout", "sequence") and call != "submit":
            raise DeviceError(
                f'[FaultInjectionDevice] expected call="submit" for {kind!r}, got {call!r}'
            )
        self.at = at  # validated before a device is opened
        self.times = _count(times, "times")
        super().__init__(device)
        self.kind = kind
        self.call = call
        self.calls: Counter[str] = Counter()
        """Number of calls by name, including failed ones."""
        self.failed = 0
        self._hung = False
        self._lock = threading.Lock()

    @property
    def at(self) -> int | None:
        return self._at

    @at.setter
    def at(self, number: int | None) -> None:
        self._at = _count(number, "at")

    @property
    def states(self) -> StateStore:
        return FaultyStates(self)

    def reopen(self) -> FaultInjectionDevice:
        """Open the wrapped device again; it has no fault until `at` is set."""
        if not isinstance(self.device, Reopens):
            raise DeviceError(f"[reopen] expected a device that can be reopened, got {self.name}")
        return FaultInjectionDevice(self.device.reopen(), None, self.kind, self.call, self.times)

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> FaultyPreparedPlan:
        self.meet("prepare")
        return FaultyPreparedPlan(self, self.device.prepare(plan, index, progress))

    def meet(self, call: str) -> bool:
        """Count a call; raise its fault if there is one; return True if the call is to be
        dropped.
        """
        with self._lock:
            number = self.calls[call]
            self.calls[call] += 1
            hit = call == self.call and self.at is not None and number >= self.at
            hit = hit and (self.times is None or self.failed < self.times)
            self.failed += hit
            lost = self.kind == "lost" and self.failed
            self._hung = self._hung or (hit and self.kind == "timeout")
        if lost:
            raise DeviceLost(f"[{call}] {self.name} is lost (injected)")
        if self._hung and call == "wait":
            raise DeviceTimeout(f"[wait] {self.name} does not end (injected)")
        if hit and self.kind == "memory":
            raise OutOfMemory(f"[{call}] {self.name} has no memory left (injected)")
        if hit and self.kind == "error":
            raise DeviceError(f"[{call}] {self.name} failed (injected)")
        return hit and self.kind == "sequence"


def _count(number: int | None, word: str) -> int | None:
    """Return a number of calls after checking it, or None."""
    if number is None or (isinstance(number, int) and number >= 0):
        return number
    raise DeviceError(
        f"[FaultInjectionDevice] expected a whole number of 0 or more, or None, as {word}, "
        f"got {number!r}; "
        'try at=3, kind="lost"'
    )


class FaultyStates:
    """The states of a device with fault injection."""

    def __init__(self, device: FaultInjectionDevice) -> None:
        self._device = device
        self._states = device.device.states

    def holds(self, key: object) -> bool:
        return self._states.holds(key)

    def add(self, items: Iterable[Item]) -> None:
        self._device.meet("states")
        self._states.add(items)

    def read(self, key: object) -> NDArray:
        self._device.meet("states")
        return self._states.read(key)

    def write(self, key: object, array: NDArray) -> None:
        self._device.meet("states")
        self._states.write(key, array)

    def remove(self, key: object) -> None:
        self._states.remove(key)

    def keys(self) -> tuple[object, ...]:
        return self._states.keys()


class FaultyPreparedPlan(WrappedPreparedPlan):
    """One plan on a device with fault injection."""

    def __init__(self, device: FaultInjectionDevice, prepared: PreparedPlan) -> None:
        super().__init__(prepared)
        self._device = device

    def upload(self, slot: int, copy: Upload, array: NDArray) -> None:
        self._device.meet("stage")
        self._prepared.upload(slot, copy, array)

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        if not self._device.meet("submit"):
            self._prepared.submit(slot, split, sequence_number)

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        self._device.meet("wait")
        self._prepared.wait(slot, split, timeout_s)

    def check(self, slot: int, split: int, sequence_number: int) -> None:
        self._device.meet("check")
        self._prepared.check(slot, split, sequence_number)

    def fetch(self, slot: int, node: int) -> NDArray:
        self._device.meet("fetch")
        return self._prepared.fetch(slot, node)
