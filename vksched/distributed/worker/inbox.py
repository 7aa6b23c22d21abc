"""Inbox: received values until the part that needs them takes them.

    reader threads --place, arrived--> (run, value) --take--> the thread that walks the part

Problem: values arrive before their run has started here, after it was aborted, or never. Method: a
plan declares which values may arrive, from which host and of which type; others are refused before
memory is allocated. An ended run is remembered by its sequence number; its late values are read and
dropped. Examples: tests/distributed/test_inbox.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...common.dtypes import NDArray, TensorType, numpy_dtype
from ...common.errors import DeviceTimeout, HostLost, RunAborted
from ...common.schema import SchemaError
from ..protocols import RunKey
from ..wire.error_codec import copy_error
from ..wire.messages import Fields, Message
from .buffer_pool import BufferPool

AHEAD = 4
"""Maximum number of runs of one slot with buffered values; one runs at a time."""

Awaited = Mapping[int, tuple[str, TensorType]]
"""Host and type of each expected value."""


def run_of(fields: Fields) -> RunKey:
    """Return the run of a message."""
    return RunKey(fields["plan"], fields["slot"], fields["sequence_number"])


@dataclass(slots=True)
class _Plan:
    """awaited: expected values. ended: sequence number of the last ended run of each slot."""

    slots: int
    awaited: Awaited
    ended: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Run:
    arrays: dict[int, NDArray] = field(default_factory=dict)
    aborted: bool = False


class Inbox:
    """The inbox of one driver, or of one host for one driver."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._plans: dict[int, _Plan] = {}
        self._runs: dict[RunKey, _Run] = {}
        self._lost: dict[str, HostLost] = {}
        self._buffer_pool = BufferPool()
        self._most_bytes = 0
        """Maximum size of a value of all plans so far."""

    def expect(self, plan: int, slots: int, awaited: Awaited) -> None:
        """Expect values of a plan, in addition to earlier calls."""
        with self._changed:
            known = self._plans.setdefault(plan, _Plan(slots, {}))
            known.awaited = {**known.awaited, **awaited}
            self._most_bytes = max(self._most_bytes, *(_bytes(t) for _, t in awaited.values()), 0)

    def forget(self, plan: int) -> None:
        """Refuse values of a plan from now on."""
        with self._changed:
            self._plans.pop(plan, None)
            self._runs = {run: each for run, each in self._runs.items() if run.plan != plan}
            self._buffer_pool.forget(lambda key: key[0] == plan)

    # -- reader threads ----------------------------------------------------------------------------

    def place(self, message: Message, size: int, sender: str) -> memoryview:
        """Return memory for a value. Raise SchemaError if it is not expected, has another sender or
        another size.
        """
        run, value = run_of(message.fields), message.fields["node"]
        with self._changed:
            plan = self._plans.get(run.plan)
            if plan is None:  # the plan was released meanwhile
                if size > self._most_bytes:
                    raise SchemaError(f"{size} bytes came for plan {run.plan}, which is not here")
                return memoryview(bytearray(size))
            host, type_ = plan.awaited.get(value, (None, None))
            if host != sender or type_ is None or not 0 <= run.slot < plan.slots:
                raise SchemaError(
                    f"nobody awaits value {value} of {run} from {sender or 'the driver'}"
                )
            waiting = [r for r in self._runs if (r.plan, r.slot) == (run.plan, run.slot)]
            if run not in self._runs and len(waiting) >= AHEAD:
                raise SchemaError(f"values of more than {AHEAD} runs of one slot came")
            expected = _bytes(type_)
            if size != expected:
                raise SchemaError(f"expected {expected} bytes of value {value}, got {size}")
            return self._buffer_pool.acquire((run.plan, run.slot, value), size)

    def arrived(self, message: Message, sender: str) -> None:
        """Store a complete value; see `place`."""
        if message.payload is None:  # it has no elements
            message.payload = self.place(message, 0, sender)
        run, value = run_of(message.fields), message.fields["node"]
        with self._changed:
            plan = self._plans.get(run.plan)
            if plan is None or run.sequence_number <= plan.ended.get(run.slot, -1):
                return
            _, type_ = plan.awaited[value]
            flat = self._buffer_pool.lend((run.plan, run.slot, value), message.payload)
            array = flat.view(numpy_dtype(type_.dtype)).reshape(type_.shape)
            self._runs.setdefault(run, _Run()).arrays[value] = array
            self._changed.notify_all()

    def mark_lost(self, host: str, error: HostLost) -> None:
        """Make pending `take` calls for a host raise."""
        with self._changed:
            self._lost[host] = error
            self._changed.notify_all()

    def mark_recovered(self, host: str) -> None:
        """Accept values of a recovered host again."""
        with self._changed:
            self._lost.pop(host, None)

    # -- parts, see `protocols.TensorTransport` ----------------------------------------------------

    def recv(self, run: RunKey, value: int, host: str, timeout_s: float) -> NDArray:
        until_s = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = self._runs.setdefault(run, _Run())
                if found.aborted:
                    raise RunAborted(
                        f"[cluster] run {run.sequence_number} of plan {run.plan} was given up"
                    )
                if value in found.arrays:
                    return found.arrays.pop(value)
                if host in self._lost:
                    raise copy_error(self._lost[host])
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise _late(run, value, host, timeout_s)
                self._changed.wait(left_s)

    def has_arrived(self, run: RunKey, value: int, host: str) -> bool:
        found = self._runs.get(run)
        return found is not None and value in found.arrays

    def is_aborted(self, run: RunKey) -> bool:
        found = self._runs.get(run)
        return found is not None and found.aborted

    def abort(self, run: RunKey) -> None:
        with self._changed:
            plan = self._plans.get(run.plan)
            if plan is not None and run.sequence_number > plan.ended.get(run.slot, -1):
                self._runs.setdefault(run, _Run()).aborted = True
                self._changed.notify_all()

    def end(self, run: RunKey) -> None:
        with self._changed:
            plan = self._plans.get(run.plan)
            if plan is not None:
                plan.ended[run.slot] = max(run.sequence_number, plan.ended.get(run.slot, -1))
            for each in [
                r
                for r in self._runs
                if r[:2] == run[:2] and r.sequence_number <= run.sequence_number
            ]:
                del self._runs[each]


def _bytes(type_: TensorType) -> int:
    return type_.size * numpy_dtype(type_.dtype).itemsize


def _late(run: RunKey, value: int, host: str, timeout_s: float) -> DeviceTimeout:
    error = DeviceTimeout(
        f"[cluster] expected value {value} of plan {run.plan} from {host or 'the driver'} within "
        f"{timeout_s:g} s, got none"
    )
    error.host = host
    return error
