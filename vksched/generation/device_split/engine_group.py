"""EngineGroup: several engines of one model behind the interface of one.

    request --the least expected time, prefixes included--> engine 0: vulkan:0
                                                            engine 1: vulkan:1
    vulkan:1 is lost: engine 1 --requests with their tokens--> engine 0

Each engine has its own slots, KV cache and thread. A request stays on one engine unless the
engine's devices are lost. Examples: tests/generation/device_split/test_engine_group.py.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Protocol

from ...common.errors import QueueFull, VkschedError
from ...common.fork_guard import ProcessBound
from ..batching.batching_engine import BatchingEngine
from ..batching.engine_core import HandOver
from ..batching.engine_counters import EngineCounters
from ..batching.engine_load import EngineSpeeds
from ..batching.request_state import RequestState
from ..batching.reservations import Reservation, Reservations
from ..batching.slot import SlotStatus
from ..batching.token_stream import TokenStream
from ..completion import CompletionRequest


class OwnDevices(Protocol):
    """The devices of one engine, as `DeviceSubset`."""

    @property
    def is_working(self) -> bool:
        """Return True if one of them works."""

    def use_all(self) -> None:
        """Allow other devices once they have failed."""


@dataclass(frozen=True)
class GroupMember:
    """An engine of a group.

    Parameters
    ----------
    speeds
        The predicted times of its steps.
    subset
        Its own devices; None if it shares all devices with the others.
    """

    engine: BatchingEngine
    speeds: EngineSpeeds = EngineSpeeds()
    subset: OwnDevices | None = None

    @property
    def is_working(self) -> bool:
        """Return True if one of its own devices works."""
        return self.subset is None or self.subset.is_working


class EngineGroup(ProcessBound):
    """Several engines with one model; it implements `InferenceEngine`.

    Parameters
    ----------
    members
        At least one engine. The group closes them.
    """

    _INSTEAD = "to send the path of the model, and to create the engines in each process"

    def __init__(self, members: Sequence[GroupMember]) -> None:
        self.members = tuple(members)
        self._lock = threading.Lock()
        """Held while a request, or a reservation, gets its places."""
        about = partial(_room, self.members), partial(_queue_full, self.members)
        self._reservations = Reservations(*about)
        group = weakref.ref(self)  # the threads of engines must not hold the group
        for index, member in enumerate(self.members):
            member.engine.set_successor(partial(_successor_in, group, index))

    @property
    def length(self) -> int:
        """The maximum number of tokens of a prompt and its answer together."""
        return self.members[0].engine.length

    def submit(
        self, request: CompletionRequest, reservation: Reservation | None = None
    ) -> TokenStream:
        """Queue a request at the engine that will end it first; see `InferenceEngine.submit`.

        Raises
        ------
        QueueFull
            The queues of all engines are full.
        """
        with self._lock:
            is_reserved = self._reservations.admits(reservation)
            members = self._by_expected_time(request)
            stream = self._submit_to(members, request)
            if stream is None and is_reserved:
                stream = members[0].engine.submit(request, reservation, owner=self)
            elif stream is None:
                raise _queue_full(self.members)
            elif reservation is not None:
                reservation.redeem()
        return stream

    def _submit_to(
        self, members: Sequence[GroupMember], request: CompletionRequest
    ) -> TokenStream | None:
        """Queue a request at the first engine whose queue has room; return None if none has."""
        for member in members:
            try:
                return member.engine.submit(request, owner=self)
            except QueueFull:
                continue
        return None

    def reserve(self, count: int) -> Reservation:
        """Return places in the queues of all engines; see `InferenceEngine.reserve`."""
        with self._lock:
            return self._reservations.reserve(count)

    @property
    def room(self) -> int:
        """The number of requests that `submit` would accept now."""
        return self._reservations.room

    def counters(self) -> EngineCounters:
        """Return the sums of the engines' counters."""
        each = [member.engine.counters() for member in self.members]
        sums = {
            field.name: sum(getattr(counters, field.name) for counters in each)
            for field in fields(EngineCounters)
            if field.name not in ("finished", "kv_cache_usage")
        }
        finished: Counter[str] = Counter()
        for counters in each:
            finished.update(counters.finished)
        slots = [len(member.engine.slots()) for member in self.members]
        used = sum(n * c.kv_cache_usage for n, c in zip(slots, each, strict=True))
        return EngineCounters(**sums, finished=dict(finished), kv_cache_usage=used / sum(slots))

    def slots(self) -> list[SlotStatus]:
        """Return the state of each slot, numbered over all engines, with its engine."""
        each = [
            replace(status, engine=number)
            for number, member in enumerate(self.members)
            for status in member.engine.slots()
        ]
        return [replace(status, index=index) for index, status in enumerate(each)]

    def prepare(self) -> None:
        """Compile all steps of all engines."""
        for member in self.members:
            member.engine.prepare()

    def close(self) -> None:
        """Cancel all requests and free the KV caches; raise the first error at the end."""
        errors: list[VkschedError] = []
        for member in self.members:
            try:
                member.engine.close()
            except VkschedError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _by_expected_time(self, request: CompletionRequest) -> list[GroupMember]:
        """Return the engines in use, the one that ends a request first at the beginning."""
        return sorted(
            _working(self.members),
            key=lambda member: member.engine.expected_s(request, member.speeds),
        )

    def successor(self, member: GroupMember) -> HandOver | None:
        """Return the function that takes the requests of an engine whose KV cache was lost; None if
        it continues, because its devices work or no other engine's do.
        """
        if member.is_working:
            return None
        if not any(other.is_working for other in self.members):
            assert member.subset is not None
            member.subset.use_all()
            return None
        return self._adopt

    def _adopt(self, state: RequestState) -> None:
        """Continue a request at the engine that will end it first."""
        try:
            self._by_expected_time(state.request)[0].engine.adopt(state)
        except VkschedError as error:  # the group is being closed
            state.end("closed", error)


def _working(members: Sequence[GroupMember]) -> Sequence[GroupMember]:
    """Return the engines that work, or all if none does."""
    return [member for member in members if member.is_working] or members


def _room(members: Sequence[GroupMember]) -> int:
    """Return the number of places in the queues of the engines in use."""
    return sum(member.engine.room for member in _working(members))


def _queue_full(members: Sequence[GroupMember]) -> QueueFull:
    """Return the error of `submit` with full queues."""
    full = [member.engine.queue_full() for member in _working(members)]
    return min(full, key=lambda error: error.retry_after_s)


def _successor_in(group: weakref.ref[EngineGroup], index: int) -> HandOver | None:
    found = group()
    return None if found is None else found.successor(found.members[index])
