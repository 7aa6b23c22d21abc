"""EngineGroup: several engines of one model behind the interface of one.

    request --the least expected time, prefixes included--> engine 0: vulkan:0
                                                            engine 1: vulkan:1
    vulkan:1 is lost: engine 1 --requests with their tokens--> engine 0

Each engine has its own slots, KV cache and thread. A request stays on one engine unless the
engine's devices are lost. Examples: tests/generation/device_split/test_engine_group.py.
"""

from __future__ import annotations

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
        group = weakref.ref(self)  # the threads of engines must not hold the group
        for index, member in enumerate(self.members):
            member.engine.set_successor(partial(_successor_in, group, index))

    @property
    def length(self) -> int:
        """The maximum number of tokens of a prompt and its answer together."""
        return self.members[0].engine.length

    def submit(self, request: CompletionRequest) -> TokenStream:
        """Queue a request at the engine that will end it first; see `InferenceEngine.submit`.

        Raises
        ------
        QueueFull
            The queues of all engines are full.
        """
        full: list[QueueFull] = []
        for member in self._by_expected_time(request):
            try:
                return member.engine.submit(request, owner=self)
            except QueueFull as error:
                full.append(error)
        raise min(full, key=lambda error: error.retry_after_s)

    @property
    def room(self) -> int:
        """The number of requests that `submit` would accept now."""
        return sum(member.engine.room for member in self._working)

    def queue_full(self) -> QueueFull:
        """Return the error of `submit` with full queues."""
        full = [member.engine.queue_full() for member in self._working]
        return min(full, key=lambda error: error.retry_after_s)

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
            self._working, key=lambda member: member.engine.expected_s(request, member.speeds)
        )

    @property
    def _working(self) -> Sequence[GroupMember]:
        """The engines that work, or all if none does."""
        return [member for member in self.members if member.is_working] or self.members

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


def _successor_in(group: weakref.ref[EngineGroup], index: int) -> HandOver | None:
    found = group()
    return None if found is None else found.successor(found.members[index])
