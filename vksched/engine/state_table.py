"""The states of a scheduler: where each lives, its value while it lives nowhere, and what is known
of it when its device fails.

    vs.state --compile--> on a device <--read, write-- caller
                              |  the device fails
                              v
                  last copy of the host, or lost: StateLost until it is written

One run that uses states goes on at a time, whatever graph it belongs to. A state may lie in pieces,
each with a home of its own; who reads it gets it whole. The first graph that uses it decides that,
until nobody uses it any more. Examples: tests/engine/test_states.py,
tests/engine/test_config_run.py.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

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

Key = Tensor | StatePiece
"""A state that lies whole, or a piece of one."""


class StateTable:
    """The states of one scheduler."""

    def __init__(self, devices: Callable[[], Sequence[Device]]) -> None:
        self._devices = devices
        self._turn = threading.RLock()
        """Held by the run that uses states, and by the caller who reads or writes one."""
        self._running = False
        self._lock = threading.RLock()
        """For what follows; never held while a run goes on."""
        self._copies: dict[Key, NDArray] = {}
        """Values of states that live nowhere, and good copies of those that live somewhere."""
        self._lost: dict[Key, str] = {}
        self._users: Counter[Key] = Counter()
        self._pieces: dict[Tensor, tuple[StatePiece, ...]] = {}
        """Of each state that lies in pieces these, in order."""
        self._failed: set[str] = set()
        """Devices whose states were taken away."""

    # -- for the caller ----------------------------------------------------------------------------

    def read(self, state: Tensor) -> NDArray:
        """Return a copy of a state's value, as the last run left it.

        Raises:
            StateLost: it was on a device that failed.
        """
        self._require_state("read", state)
        with self._turn, self._lock:
            return self._whole(state)

    def write(self, state: Tensor, value: object) -> None:
        """Give a state a value; one that was lost can be used again."""
        self._require_state("write", state)
        array = self._checked(state, value)
        with self._turn, self._lock:
            if self._running:
                raise PlanError(
                    f"[write] expected no run under way, got an observer of one, which writes "
                    f"{state.name!r}"
                )
            keys = self._keys(state)
            homes = [self._home(key) for key in keys]
            if any(homes):
                # until all is written: an interrupted write leaves neither value
                for key in keys:
                    self._lost[key] = "a write was not completed"
                    self._copies.pop(key, None)
            for key, home in zip(keys, homes, strict=True):
                part = _part(key, array)
                if home is not None:
                    with _blaming(home):
                        home.states.write(key, part)
                self._copies[key] = part
            for key in keys:
                self._lost.pop(key, None)

    def delete_state(self, state: Tensor) -> None:
        """Forget a state's value and frees its memory; it starts anew when it is used again."""
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
        """Return how a state lies that somebody uses: its pieces with the names of their devices,
        none where it lies whole. None where a graph is free to choose.
        """
        with self._lock:
            if not self._is_used(state):
                return None
            homes = [(piece, self._home(piece)) for piece in self._pieces.get(state, ())]
            return tuple((piece, home.name if home else None) for piece, home in homes)

    @contextmanager
    def running(self, graph: Graph) -> Iterator[None]:
        """While a run of a graph with states goes on; waits for another one that uses states.

        Raises:
            StateLost: the value of one is not known.
        """
        with self._turn:
            if self._running:
                raise PlanError("[run] an observer of a run with states starts another such run")
            with self._lock:
                if self._lost:
                    for node_id in dict.fromkeys(graph.states.values()):
                        self._value(_key(graph, node_id))
            self._running = True
            try:
                yield
            finally:
                self._running = False

    def place(self, plan: Plan, devices: Sequence[Device]) -> None:
        """Put the states of a plan where it says, and counts it among their users.

        Raises:
            StateLost: the value of one is not known. OutOfMemory: there is no room for one.
        """
        with self._lock:
            self._part(plan)
            for device, memory in zip(devices, plan.memory, strict=True):
                keys = [_key(plan.graph, state) for state in memory.states]
                new = [(key, self._value(key)) for key in keys if not device.states.holds(key)]
                if new:
                    with _blaming(device):
                        if device.name in self._failed:  # since this was planned
                            raise DeviceError(f"[state] {device.name} is out of use")
                        device.states.add(new)
                    self._copies.update(new)
            self._users.update(_states(plan))

    def release(self, plan: Plan) -> None:
        """Take a plan off the users of its states; these keep their values."""
        with self._lock:
            self._users.subtract(_states(plan))

    def finish_run(
        self,
        plan: Plan,
        devices: Sequence[Device],
        backups: Sequence[NDArray],
        failed: Mapping[int, str] | None = None,
    ) -> list[DeviceError]:
        """Notes what a run has written. kept: copies of next values, as in
        `Graph.backed_up_states`.

        failed: devices, with the reason, on which the new values may not be in place. A copy is
        written there again, in case the device lives; a state without one is lost.
        """
        graph = plan.graph
        copies = dict(zip(graph.backed_up_states, backups, strict=True))
        broken: list[DeviceError] = []
        with self._lock:
            for held, value, home in plan.written:
                state = _key(graph, held)
                self._copies.pop(state, None)
                # a device that came back meanwhile has not what this run wrote before
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
                now = self._home(state)  # elsewhere, where a graph was made anew meanwhile
                if now is not None:
                    try:
                        now.states.write(state, copies[value])
                    except DeviceError as error:
                        broken.append(_out_of_use(now, error))
        return broken

    def mark_lost(self, name: str) -> None:
        """Notes that a device has failed: of its states the host's copies are left."""
        device = next(d for d in self._devices() if d.name == name)
        with self._lock:
            self._failed.add(name)
            for key in device.states.keys():
                assert isinstance(key, (Tensor, StatePiece))
                if key not in self._copies:
                    self._lost.setdefault(key, f"it lived on {device.name}, which failed")
                device.states.remove(key)

    def is_in_use(self, device: Device) -> bool:
        """Whether a device is in use; in place of one that came back there is another."""
        return any(known is device for known in self._devices())

    def recover(self, name: str) -> None:
        """Notes that a device has come back, without the states that it had."""
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
            initial = (key.state if isinstance(key, StatePiece) else key).data
            assert initial is not None, key
            found = _part(key, initial)
        return found

    def _whole(self, state: Tensor) -> NDArray:
        """Return a copy of a state's value, put together of its pieces."""
        parts: list[NDArray] = []
        for key in self._keys(state):
            value, home = self._value(key), self._home(key)
            if home is None:
                parts.append(np.array(value, copy=True))
            else:
                with _blaming(home):
                    parts.append(home.states.read(key))
        pieces = self._pieces.get(state)
        return np.concatenate(parts, pieces[0].axis) if pieces else parts[0]

    def _part(self, plan: Plan) -> None:
        """Bring the states of a plan into the pieces in which it has them.

        Raises:
            PlanError: a graph that is compiled has one in others.
        """
        wanted: dict[Tensor, tuple[StatePiece, ...]] = {}
        for key in _states(plan):
            whole = key.state if isinstance(key, StatePiece) else key
            more = (key,) if isinstance(key, StatePiece) else ()
            wanted[whole] = (*wanted.get(whole, ()), *more)
        for state, found in wanted.items():
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
def _blaming(device: Device) -> Iterator[None]:
    """Name the device in the errors that it raises."""
    try:
        yield
    except DeviceError as error:
        error.device = error.device or device.name
        error.during = error.during or "moving states"
        raise


def _out_of_use(device: Device, error: DeviceError) -> DeviceError:
    """Return an error that quarantines a device: it holds old states, whatever the cause."""
    out = DeviceError(f"[state] a next value could not be put in its place: {error}")
    out.device, out.during = device.name, "moving states"
    return out


def _key(graph: Graph, node_id: int) -> Key:
    key = graph.keys[node_id]
    assert isinstance(key, (Tensor, StatePiece))
    return key


def _named(key: Key) -> str:
    if isinstance(key, Tensor):
        return repr(key.name)
    end = key.start + key.size
    return f"{key.state.name!r}, {key.start}..{end - 1} of axis {key.axis},"


def _part(key: Key, array: NDArray) -> NDArray:
    """Returns what a key stands for of the whole value."""
    if isinstance(key, Tensor):
        return array
    cut = (slice(None),) * key.axis + (slice(key.start, key.start + key.size),)
    return np.ascontiguousarray(array[cut])


def _states(plan: Plan) -> list[Key]:
    return [_key(plan.graph, s) for s in dict.fromkeys(plan.graph.states.values())]
