"""State table: the states of a scheduler: their locations, their values while on no device, and
their recovery after a device failure.

    vs.state --compile--> on a device <--read, write-- caller
                              |  the device fails
                              v
                  last backup on the host, or lost: StateLost until it is written

Runs that share a state execute one at a time, across all graphs; others overlap (state_locks.py).
A state may be sharded, each piece on its own device; a read returns the whole. The first graph that
uses a state determines its location until no graph uses it. Examples: tests/engine/test_states.py,
tests/engine/test_config_run.py.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np

from ..common.dtypes import NDArray, numpy_dtype
from ..common.errors import (
    DeviceError,
    DTypeError,
    GraphError,
    PlanError,
    ShapeError,
    StateLost,
)
from ..ir.graph import Graph
from ..ir.tensor import Tensor, convert
from ..ops.creation.state import StatePiece, check_values
from ..plan.plan import Plan
from ..runtime.device import Device
from .state_locks import StateLocks

Key = Tensor | StatePiece
"""A whole state, or a piece of a sharded one."""


class StateTable:
    """The states of one scheduler."""

    def __init__(self, devices: Callable[[], Sequence[Device]]) -> None:
        self._devices = devices
        self._in_use = StateLocks()
        """The states of runs, and of a read or write."""
        self._states_of: WeakKeyDictionary[Graph, frozenset[Tensor]] = WeakKeyDictionary()
        """The states of graphs that ran."""
        self._lock = threading.RLock()
        """Guards the following fields; never held during a run."""
        self._copies: dict[Key, NDArray] = {}
        """The values of states on no device, and valid backups of others."""
        self._lost: dict[Key, str] = {}
        self._users: Counter[Key] = Counter()
        self._pieces: dict[Tensor, tuple[StatePiece, ...]] = {}
        """The pieces of sharded states, in order."""
        self._failed: set[str] = set()
        """Devices whose states were marked as lost."""

    # -- reads and writes --------------------------------------------------------------------------

    def read(self, state: Tensor) -> NDArray:
        """Return a copy of a state's value after the last run; raise StateLost if its device has
        failed.
        """
        self._require_state("read", state)
        with self._in_use.hold(frozenset({state})), self._lock:
            return self._whole(state)

    def write(self, state: Tensor, value: object) -> None:
        """Set the value of a state, even of a lost one."""
        self._require_state("write", state)
        array = self._checked(state, value)
        if self._in_use.is_holder:
            raise PlanError(
                f"[write] cannot write state {state.name!r} from an observer of a running graph"
            )
        with self._in_use.hold(frozenset({state})), self._lock:
            keys = self._keys(state)
            homes = [self._home(key) for key in keys]
            if any(homes):
                # mark as lost until complete: an interrupted write keeps neither value
                for key in keys:
                    self._lost[key] = "a write was not completed"
                    self._copies.pop(key, None)
            for key, home in zip(keys, homes, strict=True):
                part = _part(key, array)
                if home is not None:
                    with _naming_device(home):
                        home.states.write(key, part)
                self._copies[key] = part
            for key in keys:
                self._lost.pop(key, None)

    def delete_state(self, state: Tensor) -> None:
        """Delete a state's value and free its memory; its next use starts with the initial
        value.
        """
        self._require_state("delete_state", state)
        with self._lock:
            if self._is_used(state):
                raise PlanError(
                    f"[delete_state] expected a state that no compiled graph uses, got "
                    f"{state.name!r}; try run.close() first"
                )
            self._forget(state)

    # -- for compiled graphs -----------------------------------------------------------------------

    def locations(self, state: Tensor) -> tuple[tuple[StatePiece, str | None], ...] | None:
        """Return the location of a state in use: its pieces with device names, empty if it is
        whole; None if no graph uses it.
        """
        with self._lock:
            if not self._is_used(state):
                return None
            homes = [(piece, self._home(piece)) for piece in self._pieces.get(state, ())]
            return tuple((piece, home.name if home else None) for piece, home in homes)

    @contextmanager
    def running(self, graph: Graph) -> Iterator[None]:
        """Hold the states of a graph during its run, after other runs with one of them; raise
        StateLost if a value is lost.
        """
        if self._in_use.is_holder:
            raise PlanError("[run] an observer of a stateful run must not start another one")
        states = self._states_of.get(graph)
        if states is None:
            keys = (_key(graph, node_id) for node_id in graph.states.values())
            states = frozenset(map(_whole_state, keys))
            self._states_of[graph] = states
        with self._in_use.hold(states):
            with self._lock:
                if self._lost:
                    for node_id in dict.fromkeys(graph.states.values()):
                        self._value(_key(graph, node_id))
            yield

    def place(self, plan: Plan, devices: Sequence[Device]) -> None:
        """Place the states of a plan on their devices, and add it to their users. Raise StateLost
        if a value is lost, OutOfMemory if a device has no memory for it.
        """
        with self._lock:
            self._part(plan)
            for device, memory in zip(devices, plan.memory, strict=True):
                keys = [_key(plan.graph, state) for state in memory.states]
                new = [(key, self._value(key)) for key in keys if not device.states.holds(key)]
                if new:
                    with _naming_device(device):
                        if device.name in self._failed:  # it failed after planning
                            raise DeviceError(f"[state] {device.name} is out of use")
                        device.states.add(new)
                    self._copies.update(new)
            self._users.update(_states(plan))

    def release(self, plan: Plan) -> None:
        """Remove a plan from the users of its states; their values are retained."""
        with self._lock:
            self._users.subtract(_states(plan))

    def finish_run(
        self,
        plan: Plan,
        devices: Sequence[Device],
        backups: Sequence[NDArray],
        failed: Mapping[int, str] | None = None,
    ) -> list[DeviceError]:
        """Record the states that a run has written.

        backups: copies of next values, as in `Graph.backed_up_states`, or none if they could not be
        read. failed: devices, with the reason, on which the update may be incomplete. The backup is
        written there again, in case the device works; a state without one is lost.
        """
        graph = plan.graph
        copies = dict(zip(graph.backed_up_states, backups, strict=bool(backups)))
        broken: list[DeviceError] = []
        with self._lock:
            for held, value, home in plan.written:
                state = _key(graph, held)
                self._copies.pop(state, None)
                # a device that returned meanwhile lacks earlier updates of this run
                gone = devices[home].name in self._failed or not devices[home].states.holds(state)
                if gone:
                    devices[home].states.remove(state)
                if value in copies:
                    self._copies[state] = copies[value]
                    self._lost.pop(state, None)
                if not gone and (failed is None or home not in failed):
                    continue
                if value not in copies:
                    why = f"{devices[home].name} failed" if gone else (failed or {})[home]
                    self._lost[state] = f"it was being written when this happened: {why}"
                    continue
                now = self._home(state)  # another device, if a graph was replanned meanwhile
                if now is not None:
                    try:
                        now.states.write(state, copies[value])
                    except DeviceError as error:
                        broken.append(_out_of_use(now, error))
        return broken

    def mark_torn(self, plan: Plan, devices: Sequence[Device], reason: str) -> None:
        """Restore the states that a run writes to their values before it, because their device
        failed, which is out of use next; a state without a backup is lost.
        """
        with self._lock:
            for held, _, home in plan.written:
                state = _key(plan.graph, held)
                if state not in self._copies:
                    self._lost[state] = f"it was being written when this happened: {reason}"
                devices[home].states.remove(state)

    def mark_lost(self, name: str) -> None:
        """Mark the states of a failed device as lost, except for their backups."""
        device = next(d for d in self._devices() if d.name == name)
        with self._lock:
            self._failed.add(name)
            for key in device.states.keys():
                assert isinstance(key, (Tensor, StatePiece))
                if key not in self._copies:
                    self._lost.setdefault(key, f"it lived on {device.name}, which failed")
                device.states.remove(key)

    def is_in_use(self, device: Device) -> bool:
        """Return True if a device object is in use, not replaced by a reopened one."""
        return any(known is device for known in self._devices())

    def recover(self, name: str) -> None:
        """Record that a device has returned, without its former states."""
        with self._lock:
            self._failed.discard(name)

    def close(self) -> None:
        """Free the states of all devices."""
        for device in self._devices():
            for key in device.states.keys():
                device.states.remove(key)

    # -- helpers -----------------------------------------------------------------------------------

    def _home(self, key: Key) -> Device | None:
        return next((d for d in self._devices() if d.states.holds(key)), None)

    def _keys(self, state: Tensor) -> tuple[Key, ...]:
        return self._pieces.get(state) or (state,)

    def _is_used(self, state: Tensor) -> bool:
        return any(self._users[key] for key in self._keys(state))

    def _value(self, key: Key) -> NDArray:
        if key in self._lost:
            raise StateLost(
                f"[state] the value of {_named(key)} is lost: {self._lost[key]}; try "
                "sched.write(state, value), and vs.state(..., backup=True) to keep a copy"
            )
        found = self._copies.get(key)
        if found is None:
            initial = _whole_state(key).data
            assert initial is not None, key
            found = _part(key, initial)
        return found

    def _whole(self, state: Tensor) -> NDArray:
        """Return a copy of a state's value, concatenated from its pieces."""
        parts: list[NDArray] = []
        for key in self._keys(state):
            value, home = self._value(key), self._home(key)
            if home is None:
                parts.append(np.array(value, copy=True))
            else:
                with _naming_device(home):
                    parts.append(home.states.read(key))
        pieces = self._pieces.get(state)
        return np.concatenate(parts, pieces[0].axis) if pieces else parts[0]

    def _part(self, plan: Plan) -> None:
        """Shard the states of a plan as it requires; raise PlanError if a compiled graph has one in
        other pieces.
        """
        required: dict[Tensor, tuple[StatePiece, ...]] = {}
        for key in _states(plan):
            whole = _whole_state(key)
            more = (key,) if isinstance(key, StatePiece) else ()
            required[whole] = (*required.get(whole, ()), *more)
        for state, found in required.items():
            pieces = tuple(sorted(found, key=lambda piece: piece.start))
            if self._pieces.get(state, ()) == pieces:
                continue
            if self._is_used(state):
                raise PlanError(
                    f"[state] expected {state.name!r} in {len(pieces) or 'no'} pieces, got it in "
                    f"{len(self._pieces.get(state, ())) or 'none'} by another graph; try to close "
                    "that run, or the same config for both"
                )
            self._cut(state, pieces)

    def _cut(self, state: Tensor, pieces: tuple[StatePiece, ...]) -> None:
        lost = next((self._lost[key] for key in self._keys(state) if key in self._lost), None)
        value = None if lost is not None else self._whole(state)
        self._forget(state)
        if pieces:
            self._pieces[state] = pieces
        for key in self._keys(state):
            if value is None:
                self._lost[key] = lost or ""
            else:
                self._copies[key] = _part(key, value)

    def _forget(self, state: Tensor) -> None:
        for key in self._keys(state):
            for device in self._devices():
                device.states.remove(key)
            self._copies.pop(key, None)
            self._lost.pop(key, None)
        self._pieces.pop(state, None)

    def _require_state(self, what: str, state: object) -> None:
        if not isinstance(state, Tensor) or state.op != "state":
            raise GraphError(f"[{what}] expected a state, got {state!r}; try vs.state(array)")

    def _checked(self, state: Tensor, value: object) -> NDArray:
        if isinstance(value, (np.ndarray, np.generic)):
            array = np.array(value, order="C", copy=True)
            if array.dtype != numpy_dtype(state.dtype):
                raise DTypeError(
                    f"[write] expected {state.dtype} for {state.name!r}, got {array.dtype}"
                )
        else:
            array = np.array(convert(f"write: {state.name!r}", value, state.dtype))
        if array.shape != state.shape:
            raise ShapeError(
                f"[write] expected shape {state.shape} for {state.name!r}, got {array.shape}"
            )
        check_values(state, array)
        return array


@contextmanager
def _naming_device(device: Device) -> Iterator[None]:
    """Add the device's name to errors raised inside the context."""
    try:
        yield
    except DeviceError as error:
        error.device = error.device or device.name
        error.during = error.during or "moving states"
        raise


def _out_of_use(device: Device, error: DeviceError) -> DeviceError:
    """Return an error that quarantines a device, because it holds outdated states, whatever the
    cause.
    """
    out = DeviceError(f"[state] a next value could not be written: {error}")
    out.device, out.during = device.name, "moving states"
    return out


def _key(graph: Graph, node_id: int) -> Key:
    key = graph.keys[node_id]
    assert isinstance(key, (Tensor, StatePiece))
    return key


def _whole_state(key: Key) -> Tensor:
    return key.state if isinstance(key, StatePiece) else key


def _named(key: Key) -> str:
    if isinstance(key, Tensor):
        return repr(key.name)
    end = key.start + key.size
    return f"{key.state.name!r}, {key.start}..{end - 1} of axis {key.axis},"


def _part(key: Key, array: NDArray) -> NDArray:
    """Return the part of the whole value that a key refers to."""
    if isinstance(key, Tensor):
        return array
    cut = (slice(None),) * key.axis + (slice(key.start, key.start + key.size),)
    return np.ascontiguousarray(array[cut])


def _states(plan: Plan) -> list[Key]:
    return [_key(plan.graph, s) for s in dict.fromkeys(plan.graph.states.values())]
