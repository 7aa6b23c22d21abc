"""HostCache: keys and values of idle prefixes, and their recurrent states, in host memory.

    slot --read_rows, before another request overwrites it--> host memory, up to a limit in bytes
         <--write_rows, if a prompt begins with these tokens--

The least recently used prefix is dropped first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cached_prefix import CachedPrefix

Rows = Sequence[np.ndarray[Any, Any]]


@dataclass(eq=False)
class HostPrefix:
    """A prefix in host memory."""

    prefix: CachedPrefix
    rows: Rows

    @property
    def nbytes(self) -> int:
        return self.row_bytes + sum(each.nbytes for each in self.prefix.checkpoints.values())

    @property
    def row_bytes(self) -> int:
        return sum(each.nbytes for each in self.rows)


class HostCache:
    """Prefixes in host memory, the most recently used last.

    Parameters
    ----------
    limit_bytes
        The maximum size of all prefixes and of `reserved_bytes`; 0 stores nothing.

    Attributes
    ----------
    reserved_bytes
        The part of the limit that others use; see `reserve`.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.entries: list[HostPrefix] = []
        self.used_bytes = self.reserved_bytes = 0
        self._bytes_per_token = 0.0

    def add(self, prefix: CachedPrefix, read: Callable[[int], Rows]) -> None:
        """Store a prefix, unless it is a part of one that is stored, which gets its checkpoints.

        Parameters
        ----------
        read
            Returns the keys and values of the first tokens.
        """
        count = len(prefix.tokens)
        if not count or self._bytes_per_token * count > self.limit_bytes or not self.limit_bytes:
            return
        for entry in self.entries:
            if prefix.is_part_of(entry.prefix):
                self.used_bytes -= entry.nbytes
                entry.prefix.merge_checkpoints(prefix)
                self.used_bytes += entry.nbytes
                self.use(entry)
                self._drop_oldest()
                return
        new = HostPrefix(prefix, read(count))
        self._bytes_per_token = new.row_bytes / count
        for entry in [e for e in self.entries if e.prefix.is_part_of(prefix)]:
            new.prefix.merge_checkpoints(entry.prefix)
            self._remove(entry)
        if new.nbytes + self.reserved_bytes > self.limit_bytes:
            return
        self.entries.append(new)
        self.used_bytes += new.nbytes
        self._drop_oldest()

    def reserve(self, nbytes: int) -> None:
        """Leave a part of the limit to others; drop the prefixes that do not fit."""
        self.reserved_bytes = nbytes
        self._drop_oldest()

    def use(self, entry: HostPrefix) -> None:
        """Mark an entry as the most recently used one."""
        self.entries.remove(entry)
        self.entries.append(entry)

    def clear(self) -> None:
        self.entries.clear()
        self.used_bytes = self.reserved_bytes = 0

    def _drop_oldest(self) -> None:
        while self.entries and self.used_bytes + self.reserved_bytes > self.limit_bytes:
            self._remove(self.entries[0])

    def _remove(self, entry: HostPrefix) -> None:
        self.entries.remove(entry)
        self.used_bytes -= entry.nbytes
