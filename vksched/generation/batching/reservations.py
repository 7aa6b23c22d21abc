"""Reservations: places in the queue of an engine for requests that are not ready yet.

    reserve(2) --> Reservation: 2 places --submit, submit--> queue
                        '-- release, or dropped --> free places

Pictures and grammars take time and memory before a request can be submitted. A request with a
place is never refused then, and requests without one leave the reserved places free.

Examples: tests/generation/batching/test_reservations.py.
"""

from __future__ import annotations

from collections.abc import Callable

from ...common.errors import QueueFull


class Reservations:
    """The reserved places of one queue. The owner of the queue calls `reserve`, `admits` and
    `Reservation.redeem` with its lock.

    room: returns the number of places of the queue, with the reserved ones. full: returns the error
    of a full queue.
    """

    def __init__(self, room: Callable[[], int], full: Callable[[], QueueFull]) -> None:
        self._room, self._full = room, full
        self._places: set[object] = set()

    @property
    def count(self) -> int:
        """The number of reserved places."""
        return len(self._places)

    @property
    def room(self) -> int:
        """The number of places that nobody reserved."""
        return max(0, self._room() - self.count)

    def reserve(self, count: int) -> Reservation:
        """Return `count` places; raise QueueFull if there are fewer that nobody reserved."""
        if self.room < count:
            raise self._full()
        return Reservation(self._places, count)

    def admits(self, reservation: Reservation | None) -> bool:
        """Return True if a request has a place. Raise QueueFull if it has none, and others have
        reserved all free places.
        """
        if reservation is not None and reservation.count:
            return True
        if self.count and not self.room:
            raise self._full()
        return False


class Reservation:
    """Places of one user. Dropping it frees them, without a lock: the garbage collector does it."""

    def __init__(self, places: set[object], count: int) -> None:
        self._places = places
        self._own = [object() for _ in range(count)]
        places.update(self._own)

    @property
    def count(self) -> int:
        """The number of places that are left."""
        return len(self._own)

    def redeem(self) -> None:
        """Give up one place, as the queue has its request now."""
        try:
            self._places.discard(self._own.pop())
        except IndexError:  # another thread released them
            pass

    def release(self) -> None:
        """Free all places."""
        while self._own:
            self.redeem()

    def __del__(self) -> None:
        self.release()
