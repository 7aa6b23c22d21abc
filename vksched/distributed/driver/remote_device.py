"""Remote devices: devices of other hosts as the driver sees them; only host plans run there.

    RemoteDevice --spec, link--> description by the worker     RemoteStates --messages--> its states

Examples: tests/distributed/test_node_server.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceError, DeviceLost, HostLost, PlanError
from ...plan.types.plan_types import PlanValue
from ...runtime.device import MemoryUsage, PreparedPlan
from ...runtime.state_store import Item
from ...topology.device_spec import DeviceSpec
from ...topology.host_names import on
from ...topology.links import Link
from ..wire.array_codec import pack, unpack
from ..wire.channel import Channel
from ..wire.messages import Message
from ..wire.stats_codec import RemoteDeviceInfo, with_host_name

STATE_S = 600.0
"""Maximum duration of a transfer of states, in seconds."""
MAX_ADDED_STATES = 256
"""Maximum number of states in one message, because the size of its fields is limited."""


class WorkerConnection(Protocol):
    """A connected worker."""

    @property
    def name(self) -> str: ...

    @property
    def channel(self) -> Channel: ...

    @property
    def error(self) -> HostLost | None: ...

    def device_info(self, name: str) -> RemoteDeviceInfo:
        """Return the worker's description of a device."""

    def holds(self, device: str, key: object) -> bool:
        """Return True if a weight of a plan is on a device."""

    def changed(self) -> None:
        """Invalidate the descriptions of its devices after an allocation or release."""


class StateNames(Protocol):
    """Names of states in messages."""

    def state_name(self, key: object) -> str: ...

    def forget_state(self, key: object) -> None: ...


class RemoteStates:
    """The states of a remote device; the driver tracks which exist there."""

    def __init__(self, worker: WorkerConnection, device: str, names: StateNames) -> None:
        self._worker, self._device, self._names = worker, device, names
        self._keys: dict[object, str] = {}
        self._types: dict[object, tuple[tuple[int, ...], str]] = {}

    def holds(self, key: object) -> bool:
        return key in self._keys

    def add(self, items: Iterable[Item]) -> None:
        pairs = [(key, np.asarray(array)) for key, array in items]
        added: list[object] = []
        try:
            for start in range(0, len(pairs), MAX_ADDED_STATES):
                some = pairs[start : start + MAX_ADDED_STATES]
                names = {key: self._names.state_name(key) for key, _ in some}
                arrays, payload = pack(array for _, array in some)
                self._ask("add", {"keys": list(names.values()), "arrays": arrays}, payload)
                self._keys.update(names)
                self._types.update((key, (a.shape, a.dtype.name)) for key, a in some)
                added += names
        except BaseException:  # either all of them or none
            for key in added:
                self.remove(key)
            raise
        finally:
            self._worker.changed()

    def read(self, key: object) -> NDArray:
        answer = self._ask("read", {"key": self._keys[key]})
        (array,) = unpack([answer.fields], answer.payload)
        if (array.shape, array.dtype.name) != self._types[key]:
            raise DeviceError(f"[cluster] {self._worker.name} returned a state of another type")
        return np.array(array, copy=True)

    def write(self, key: object, array: NDArray) -> None:
        name = self._keys.get(key)
        if name is None:
            raise DeviceLost("[state] expected a state, got none: its device failed meanwhile")
        (fields,), payload = pack([array])
        self._ask("write", {"key": name, **fields}, payload)

    def remove(self, key: object) -> None:
        name = self._keys.pop(key, None)
        self._types.pop(key, None)
        self._names.forget_state(key)
        if name is not None and self._worker.error is None:
            try:
                self._ask("remove", {"key": name})
            except DeviceError:  # no longer used; freed with the connection
                return
            finally:
                self._worker.changed()

    def keys(self) -> tuple[object, ...]:
        return tuple(self._keys)

    def _ask(self, kind: str, fields: dict[str, object], payload: object = ()) -> Message:
        request = {"device": self._device, **fields}
        return self._worker.channel.ask(kind, request, payload, STATE_S)  # type: ignore[arg-type]


class RemoteDevice:
    """A device of a worker under its name in plans; only host plans run there."""

    def __init__(self, worker: WorkerConnection, device: str, names: StateNames) -> None:
        self.worker, self._device = worker, device
        self.states = RemoteStates(worker, device, names)

    @property
    def name(self) -> str:
        return on(self.worker.name, self._device)

    @property
    def spec(self) -> DeviceSpec:
        return with_host_name(self.worker.device_info(self._device).spec, self.worker.name)

    @property
    def link(self) -> Link | None:
        return self.worker.device_info(self._device).link

    def holds(self, key: object) -> bool:
        return self.states.holds(key) or self.worker.holds(self._device, key)

    def memory_usage(self) -> MemoryUsage:
        return MemoryUsage()

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> PreparedPlan:
        raise PlanError(
            f"[cluster] expected a plan cut into parts for {self.name}, got a whole one"
        )

    def close(self) -> None:
        """Do nothing: the worker owns its devices."""
