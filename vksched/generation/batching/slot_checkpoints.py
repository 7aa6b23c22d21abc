"""SlotCheckpoints: the recurrent states in host memory that belong to prefixes in slots.

    --cache-ram:  | idle prefixes, with their checkpoints | checkpoints of slots: a half at most |

A checkpoint that an idle prefix has, too, counts there only. The oldest checkpoints are dropped
first. `MIN_CHECKPOINT_BYTES` are always allowed, because without checkpoints a conversation whose
last answer changes is read again from its first token.
"""

from __future__ import annotations

from collections.abc import Sequence

from .cached_prefix import Checkpoint, States
from .host_cache import HostCache
from .slot import Slot

MIN_CHECKPOINT_BYTES = 256 << 20
"""The size of checkpoints of slots that is allowed with any size of the host cache."""


class SlotCheckpoints:
    """The checkpoints of all slots, limited in size.

    host: its limit is that of idle prefixes and checkpoints.
    """

    def __init__(self, slots: Sequence[Slot], host: HostCache) -> None:
        self._slots = slots
        self._host = host
        self._limit_bytes = max(host.limit_bytes // 2, MIN_CHECKPOINT_BYTES)
        self._state_bytes = 0
        """The size of one checkpoint, 0 as long as it is unknown."""

    @property
    def allows_any(self) -> bool:
        """False if the states of one slot exceed the limit."""
        return self._state_bytes <= self._limit_bytes

    @property
    def nbytes(self) -> int:
        """The size of checkpoints that no idle prefix has. Any thread may ask."""
        return sum(each.nbytes for each in self._oldest_first())

    def add(self, slot: Slot, states: States) -> None:
        """Store the recurrent states after all tokens of a slot."""
        slot.prefix.add_checkpoint(states)
        self._state_bytes = sum(each.nbytes for each in states)
        self.limit()

    def limit(self) -> None:
        """Drop the oldest checkpoints beyond the limit, and idle prefixes that they displace."""
        before = None
        while before != len(self._host.entries):  # a dropped prefix may have had checkpoints, too
            before = len(self._host.entries)
            checkpoints = self._oldest_first()
            used = sum(each.nbytes for each in checkpoints)
            for oldest in checkpoints:
                if used <= self._limit_bytes:
                    break
                for slot in self._slots:
                    slot.prefix.drop_checkpoint(oldest)
                used -= oldest.nbytes
            self._host.reserve(used)

    def _oldest_first(self) -> list[Checkpoint]:
        idle = [entry.prefix for entry in tuple(self._host.entries)]
        stored = {each for prefix in idle for each in tuple(prefix.checkpoints.values())}
        own = {each for slot in self._slots for each in tuple(slot.prefix.checkpoints.values())}
        return sorted(own - stored, key=lambda each: each.number)
