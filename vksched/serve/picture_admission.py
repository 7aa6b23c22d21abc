"""PictureAdmission: places and memory for requests whose pictures are being read.

    enter: a place in the engine's queue, bytes of the URLs --> decode --> encode --> queue
           full: 429                                            pixels     rows       until the end

Decoding and encoding take time and memory, so a request with pictures reserves its places in the
engine's queue before them. The bytes of all requests that wait or run have a limit. Examples:
tests/serve/test_picture_admission.py.
"""

from __future__ import annotations

import threading

from ..generation.batching.reservations import Reservation
from .api_error import ApiError, client_left
from .engine_interface import ServingEngine


class PictureAdmission:
    """Bounds the requests with pictures. All methods are thread-safe.

    Parameters
    ----------
    most_bytes
        The maximum size of the pictures of all requests: their URLs until they are decoded, their
        pixels until they are encoded, and the rows of their tokens until the answer ends.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        """The bytes of each place; the garbage collector removes those of dropped ones."""

    @property
    def used_bytes(self) -> int:
        """The size of the pictures of all requests."""
        return sum(list(self._sizes.values()))

    def enter(self, engine: ServingEngine, count: int, size: int) -> PicturePlace:
        """Return a place for a request of `count` answers whose pictures have `size` bytes.

        Raises
        ------
        QueueFull
            The queue is full, with the places that others have.
        ApiError
            The pictures are too large, or those of all requests together.
        """
        place = PicturePlace(self, engine.reserve(count))
        with self._lock:
            self._add(place, size)
        return place

    def add(self, place: PicturePlace, size: int) -> None:
        """See `PicturePlace.add`."""
        with self._lock:
            if place.is_left:
                raise client_left()
            self._add(place, size)

    def _add(self, place: PicturePlace, size: int) -> None:
        own = self._sizes.get(id(place), 0) + size
        if size > 0 and own > self.most_bytes:
            raise ApiError(
                f"[messages] expected pictures of at most {self.most_bytes} bytes in memory, got "
                f"{own} or more; try fewer or smaller pictures",
                "messages",
                status=413,
                code="pictures_too_large",
            )
        if size > 0 and self.used_bytes + size > self.most_bytes:
            raise ApiError(
                f"[messages] expected at most {self.most_bytes} bytes of pictures of all requests, "
                "got more; try again later",
                "messages",
                status=429,
                code="queue_full",
                retry_after_s=1,
            )
        self._sizes[id(place)] = own

    def leave(self, place: PicturePlace) -> None:
        """See `PicturePlace.leave`."""
        with self._lock:
            place.is_left = True
            self.drop(place)

    def drop(self, place: PicturePlace) -> None:
        """Forget a place that nothing uses; the garbage collector must not wait for a lock."""
        self._sizes.pop(id(place), None)


class PicturePlace:
    """The memory of one request, and its places in the engine's queue. Dropping it leaves."""

    def __init__(self, admission: PictureAdmission, queue: Reservation) -> None:
        self.is_left = False
        self.queue = queue
        self._admission = admission

    def add(self, size: int) -> None:
        """Add bytes, or remove them if `size` is negative; raise ApiError if there are too many, or
        the request has left.
        """
        self._admission.add(self, size)

    def leave(self) -> None:
        """Free the memory and the places."""
        self.queue.release()
        self._admission.leave(self)

    def __del__(self) -> None:
        self._admission.drop(self)
