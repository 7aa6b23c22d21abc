"""Client states: the states of one driver on the devices of a worker.

    add --> StateKey --> device.states      prepare --pin--> the states that a plan uses
    remove --pinned? with the last plan that uses it --> free

Problem: a plan is checked and recorded for states of certain types, and the driver may send another
state with an equal name meanwhile. Method: from the check until a plan is released its states are
pinned. A pinned state is not replaced, and one that its driver removes is freed with the last plan.
Examples: tests/distributed/test_client_states.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...common.dtypes import NDArray, TensorType
from ...common.errors import DeviceError, DeviceLost, OutOfMemory
from ...common.formatting import format_bytes
from ...common.user_warning import warn
from ...plan.multi_host.host_plan import HostPlan
from ...runtime.device import Device

At = tuple[str, str]
"""A device and the name of a state."""


class StateKey:
    """Key of a driver's state on the devices of this worker. homes: number of devices that hold
    it.
    """

    __slots__ = ("homes", "name")

    def __init__(self, name: str) -> None:
        self.name, self.homes = name, 0


class ClientStates:
    """Thread-safe; one call at a time."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = {device.name: device for device in devices}
        self._types: dict[At, TensorType] = {}
        """Types of the resident states."""
        self._keys: dict[str, StateKey] = {}
        """Keys by name, including states to be freed."""
        self._pinned: dict[int, frozenset[At]] = {}
        """The states that each plan uses."""
        self._unpinning: set[int] = set()
        """Plans that are being released."""
        self._removed: set[At] = set()
        """Pinned states that the driver has removed."""
        self._stopped = False
        self._changed = threading.Condition(threading.RLock())

    def __len__(self) -> int:
        """Return the number of states on devices, including states to be freed."""
        return len(self._types) + len(self._removed)

    # -- plans -------------------------------------------------------------------------------------

    def key(self, name: str) -> StateKey:
        """Return the key of a resident state.

        Raises
        ------
        DeviceLost
            The state is not resident.
        """
        with self._changed:
            found = self._keys.get(name)
        if found is None:
            raise _gone(name)
        return found

    def pin(self, number: int, part: HostPlan) -> None:
        """Pin the states that a plan uses until `unpin`.

        Raises
        ------
        DeviceError
            A state is not resident or has another type than in the plan.
        """
        with self._changed:
            used = set()
            for at, key, type_ in _used(part):
                held = self._types.get(at)
                if held is None or self._keys.get(at[1]) is not key:
                    raise _gone(at[1])
                if held != type_:
                    raise DeviceError(
                        f"[cluster] expected {held} for a state on {at[0]}, got {type_}"
                    )
                used.add(at)
            self._pinned[number] = frozenset(used)

    def begin_unpin(self, number: int) -> None:
        """Mark a plan as being released: `add` of its states waits for `unpin`."""
        with self._changed:
            if number in self._pinned:
                self._unpinning.add(number)

    def unpin(self, number: int) -> None:
        """Unpin the states of a plan that does not run any more."""
        with self._changed:
            used = self._pinned.pop(number, frozenset())
            self._unpinning.discard(number)
            for at in self._removed.intersection(used).difference(*self._pinned.values()):
                self._removed.discard(at)
                self._free(at)
            self._changed.notify_all()

    # -- driver ------------------------------------------------------------------------------------

    def add(self, device: str, names: Sequence[str], arrays: Sequence[NDArray]) -> None:
        """Make states resident; replace earlier ones that no plan uses.

        Raises
        ------
        DeviceError
            A name is repeated, a plan uses a state, or the device is unknown.
        OutOfMemory
            The device has not enough memory; none of the states is resident then.
        """
        if len(set(names)) != len(names) or len(names) != len(arrays):
            raise DeviceError(
                f"[cluster] expected one name for each of {len(arrays)} states, each once, got "
                f"{len(names)} names, {len(set(names))} of them different"
            )
        with self._changed:
            there, places = self._device(device), [(device, name) for name in names]
            self._wait_until_free(places)
            for at in places:
                self._drop(at)
            types = [_type_of(array) for array in arrays]
            _require_room(there, sum(type_.host_bytes for type_ in types))
            keys = [self._keys.get(name) or StateKey(name) for name in names]
            try:
                there.states.add(list(zip(keys, arrays, strict=True)))
            except BaseException:
                for key in keys:
                    there.states.remove(key)
                raise
            for key in keys:
                key.homes += 1
            self._keys.update(zip(names, keys, strict=True))
            self._types.update(zip(places, types, strict=True))

    def read(self, device: str, name: str) -> NDArray:
        """Return the value of a state; raise DeviceError if it is not resident."""
        with self._held((device, name)) as (there, key):
            return there.states.read(key)

    def write(self, device: str, name: str, array: NDArray) -> None:
        """Write a state; raise DeviceError if it is not resident or has another type."""
        with self._held((device, name)) as (there, key):
            expected = self._types[device, name]
            if _type_of(array) != expected:
                raise DeviceError(
                    f"[cluster] expected {expected} for a state, got {_type_of(array)}"
                )
            there.states.write(key, array)

    def remove(self, device: str, name: str) -> None:
        """Free a state, now or with the last plan that uses it."""
        with self._changed:
            self._device(device)
            at = device, name
            if at not in self._types:
                return
            if any(at in used for used in self._pinned.values()):
                del self._types[at]
                self._removed.add(at)
            else:
                self._drop(at)

    def stop(self) -> None:
        """Refuse new states; pending calls of `add` give up."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        """Free all states; called once no plan runs any more."""
        with self._changed:
            self._pinned.clear()
            left = [*self._types, *self._removed]
            self._types.clear()
            self._removed.clear()
            for at in left:
                try:
                    self._free(at)
                except Exception as error:  # the remaining states are freed nevertheless
                    warn(f"[cluster] freeing a state of a driver failed: {error!r}")

    # -- helpers, called with the lock held --------------------------------------------------------

    def _device(self, name: str) -> Device:
        found = self._devices.get(name)
        if found is None:
            raise DeviceError(f"[cluster] there is no device {name!r} here")
        return found

    @contextmanager
    def _held(self, at: At) -> Iterator[tuple[Device, StateKey]]:
        with self._changed:
            there = self._device(at[0])
            if at not in self._types:
                raise DeviceError(f"[cluster] there is no state {at[1]!r} on {at[0]}")
            yield there, self._keys[at[1]]

    def _wait_until_free(self, places: Sequence[At]) -> None:
        wanted = set(places)

        def users() -> set[int]:
            return {n for n, used in self._pinned.items() if not wanted.isdisjoint(used)}

        self._changed.wait_for(lambda: self._stopped or not users() & self._unpinning)
        if self._stopped:
            raise DeviceError("[cluster] the driver has gone")
        left = sorted(users())
        if left:
            raise DeviceError(
                f"[cluster] expected states that no plan uses, got some of plan {left[0]}; try to "
                "release its plan first"
            )

    def _drop(self, at: At) -> None:
        if self._types.pop(at, None) is not None:
            self._free(at)

    def _free(self, at: At) -> None:
        device, name = at
        key = self._keys[name]
        self._devices[device].states.remove(key)
        key.homes -= 1
        if not key.homes:
            del self._keys[name]


def _used(part: HostPlan) -> Iterator[tuple[At, StateKey, TensorType]]:
    """Yield the states of a part on each device that holds them."""
    plan, graph = part.plan, part.plan.graph
    names = [spec.name for spec in plan.topology.devices]
    for node in graph.initial:
        key = graph.keys[node]
        homes = {number for number, memory in enumerate(plan.memory) if node in memory.states}
        for number in homes | {plan.placements[node].device}:
            assert isinstance(key, StateKey)
            yield (names[number], key.name), key, graph.nodes[node].type


def _require_room(device: Device, size_bytes: int) -> None:
    """Raise OutOfMemory if states exceed a device's free memory."""
    free = device.spec.memory_bytes
    if size_bytes > free:
        raise OutOfMemory(
            f"[state] expected states of at most {format_bytes(free)} on {device.name}, got "
            f"{format_bytes(size_bytes)}; try another device"
        )


def _gone(name: str) -> DeviceLost:
    return DeviceLost(
        f"[state] expected a state {name[:64]!r}, got none: its device failed meanwhile"
    )


def _type_of(array: NDArray) -> TensorType:
    return TensorType(array.shape, array.dtype.name)
