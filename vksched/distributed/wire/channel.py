"""Channel: concurrent messages to and from one peer.

    message  = head frame: kind, fields as JSON  +  data frames: its payload, CHUNK_BYTES each
    senders  --frames, fairly interleaved--> stream -->  reader thread --> waiting request: response
                                                                   '--> handler: other messages

A large payload is sent in chunks, so that a small message waits for one chunk at most. Sizes are
checked before memory is allocated; a payload is received directly into memory that the handler
provides. An invalid message closes the connection, and every pending request raises HostLost.

Examples: tests/distributed/test_channel.py.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ...common.dtypes import NDArray
from ...common.errors import DeviceTimeout, HostLost
from ...common.schema import SchemaError
from .error_codec import copy_error, error_of, fields_of
from .heartbeat import HEARTBEAT_MONITOR, STUCK_TICKS, HeartbeatMonitor
from .messages import MAX_FIELD_BYTES, Fields, Message, decode, encode
from .stream import ConnectionClosed, Stream

FRAME = struct.Struct("<BxxxIIQ")
"""Frame type, message number, bytes of fields, bytes of payload or chunk."""
HEAD, DATA, BEAT = 1, 2, 3
CHUNK_BYTES = 1 << 19
SMALL_BYTES = 1 << 14
"""Messages up to this size are sent as one piece."""
MAX_OPEN_PAYLOADS = 64
"""Maximum number of messages of one peer whose payloads are incomplete."""
BUFFER_BYTES = 1 << 16
_HEARTBEAT = FRAME.pack(BEAT, 0, 0, 0)
HEARTBEATS_BYTES = 1 << 10
"""Upper bound of the encrypted heartbeats of one tick."""

Payload = Sequence[NDArray | bytes]


class Handler(Protocol):
    """Handler of incoming messages. Methods are called on the reader thread and must be brief."""

    def place(self, message: Message, size: int) -> memoryview | None:
        """Return memory of this size for a payload, or None to allocate it. Raise SchemaError if it
        is unexpected.
        """

    def received(self, channel: Channel, message: Message) -> None:
        """Handle a complete message. Raise SchemaError if it is invalid."""

    def lost(self, channel: Channel, error: HostLost) -> None:
        """Handle the loss of the channel; called once."""


class _PartialMessage:
    """A message with an incomplete payload, and the memory left to fill: None with a number of
    bytes if it is the response to a request that has timed out.
    """

    __slots__ = ("left", "message", "size")

    def __init__(self, message: Message, size: int, left: memoryview | None) -> None:
        self.message = message
        self.size = size
        self.left = left


class _PendingRequest:
    """A pending request."""

    __slots__ = ("answer", "error", "kind", "place", "there")

    def __init__(self, kind: str, place: memoryview | None) -> None:
        self.kind = kind
        self.place = place
        self.there = threading.Event()
        self.answer: Message | None = None
        self.error: Exception | None = None


class Channel:
    """host: name of the peer, "" for the driver. start: must be called first."""

    def __init__(
        self,
        stream: Stream,
        host: str,
        handler: Handler,
        heartbeat: HeartbeatMonitor = HEARTBEAT_MONITOR,
    ) -> None:
        self.host, self.peer = host, host or "the driver"
        self.heard, self.quiet, self.stuck = True, 0, STUCK_TICKS
        self._taken_bytes = stream.taken_bytes()
        self._stream, self._handler, self._pulse = stream, handler, heartbeat
        self._numbers = itertools.count(1)
        self._asks = itertools.count(1)
        self._asked: dict[int, _PendingRequest] = {}
        self._open: dict[int, _PartialMessage] = {}
        self._large = threading.BoundedSemaphore(MAX_OPEN_PAYLOADS // 2)
        self._lock = threading.Lock()
        self._error: HostLost | None = None
        self._reader = threading.Thread(
            target=self._read, name=f"vksched-reader-{host}", daemon=True
        )

    def start(self) -> None:
        """Start the reader thread and heartbeats."""
        self._pulse.add(self)
        self._reader.start()
        if self._error is not None:  # it was lost before the monitor knew it
            self._pulse.remove(self)

    @property
    def error(self) -> HostLost | None:
        """The reason why the channel is lost, or None while it is open."""
        return self._error

    # -- outgoing ----------------------------------------------------------------------------------

    def notify(self, kind: str, fields: Fields, payload: Payload = ()) -> None:
        """Send a message; return when its payload may be overwritten. Raise HostLost if the channel
        is lost.
        """
        self._send(encode(kind, fields), payload)

    def ask(
        self,
        kind: str,
        fields: Fields,
        payload: Payload = (),
        timeout_s: float = 60.0,
        place: memoryview | None = None,
    ) -> Message:
        """Send a request and return its response.

        Parameters
        ----------
        place
            Memory for the payload of the response.

        Raises
        ------
        HostLost
            The channel is lost.
        DeviceTimeout
            No response arrived in time.
        VkschedError
            The error that the peer raised.
        """
        asked, number = _PendingRequest(kind, place), next(self._asks)
        with self._lock:
            if self._error is not None:
                raise copy_error(self._error)
            self._asked[number] = asked
        try:
            self._send(encode(kind, fields, ask=number), payload)
            if not asked.there.wait(timeout_s):
                raise DeviceTimeout(
                    f"[cluster] expected an answer of {self.peer} to {kind!r} within "
                    f"{timeout_s:g} s, got none"
                )
        finally:
            with self._lock:
                self._asked.pop(number, None)
        if asked.error is not None:
            raise asked.error
        assert asked.answer is not None
        return asked.answer

    def answer(self, question: Message, fields: Fields, payload: Payload = ()) -> None:
        """Respond to a request."""
        self._send(encode(question.kind, fields, to=question.ask), payload)

    def refuse(self, question: Message, error: BaseException) -> None:
        """Respond to a request with an error, which is raised there."""
        self._send(encode("refused", fields_of(error), to=question.ask), ())

    def close(self, why: str = "it was closed") -> None:
        """Close the channel and wait for its thread; idempotent."""
        self.mark_lost(why)
        if self._reader.is_alive() and threading.current_thread() is not self._reader:
            self._reader.join()

    def _send(self, text: bytes, payload: Payload) -> None:
        pieces = [flat(each) for each in payload]
        size, number = sum(map(len, pieces)), next(self._numbers) & 0xFFFFFFFF
        head = FRAME.pack(HEAD, number, len(text), size) + text
        if len(text) > MAX_FIELD_BYTES:
            raise ValueError(f"{len(text)} bytes of fields are too many")
        try:
            if size <= SMALL_BYTES:
                data = FRAME.pack(DATA, number, 0, size) if size else b""
                with self._stream.lock:
                    self._stream.send(b"".join([head, data, *pieces]))
            else:
                with self._large:
                    self._send_large(number, head, pieces)
        except ConnectionClosed as error:
            self.mark_lost(str(error))
            assert self._error is not None
            raise copy_error(self._error) from None

    def _send_large(self, number: int, head: bytes, pieces: Sequence[memoryview]) -> None:
        with self._stream.lock:
            self._stream.send(head)
        for piece in pieces:
            for start in range(0, len(piece), CHUNK_BYTES):
                chunk = piece[start : start + CHUNK_BYTES]
                with self._stream.lock:
                    self._stream.send(FRAME.pack(DATA, number, 0, len(chunk)), chunk)

    # -- heartbeat ---------------------------------------------------------------------------------

    def send_heartbeat(self) -> None:
        try:
            self._stream.attempt(_HEARTBEAT)
        except ConnectionClosed as error:
            self.mark_lost(str(error))

    def has_unread(self) -> bool:
        return self._stream.readable()

    def delivers(self) -> bool:
        before, self._taken_bytes = self._taken_bytes, self._stream.taken_bytes()
        return self._taken_bytes - before > HEARTBEATS_BYTES

    def mark_lost(self, why: str) -> None:
        """Close the channel; pending requests raise HostLost."""
        with self._lock:
            if self._error is not None:
                return
            self._error = HostLost(f"[cluster] {self.peer} is lost: {why}")
            self._error.host = self.host
            asked, self._asked = self._asked, {}
        self._pulse.remove(self)
        self._stream.shut()
        for each in asked.values():
            each.error = copy_error(self._error)
            each.there.set()
        self._handler.lost(self, self._error)

    # -- incoming ----------------------------------------------------------------------------------

    def _read(self) -> None:
        buffered = _Buffered(self._stream, self)
        frame = memoryview(bytearray(FRAME.size))
        try:
            while True:
                buffered.fill(frame)
                sort, number, fields, size = FRAME.unpack(frame)
                if sort == HEAD:
                    self._begin(buffered, number, fields, size)
                elif sort == DATA:
                    self._go_on(buffered, number, size)
                elif sort != BEAT or number or fields or size:
                    raise SchemaError(f"there is no frame {sort}")
        except ConnectionClosed as error:
            self.mark_lost(str(error))
        except SchemaError as error:
            self.mark_lost(f"it sent an invalid message: {error}")
        except Exception as error:
            self.mark_lost(f"{type(error).__name__}: {error}")
        finally:
            self._open.clear()
            self._stream.close()

    def _begin(self, buffered: _Buffered, number: int, fields: int, size: int) -> None:
        if fields > MAX_FIELD_BYTES:
            raise SchemaError(f"expected at most {MAX_FIELD_BYTES} bytes of fields, got {fields}")
        text = bytearray(fields)
        buffered.fill(memoryview(text))
        message = decode(bytes(text), size)
        if not size:
            self._arrived(message)
            return
        if number in self._open or len(self._open) >= MAX_OPEN_PAYLOADS:
            raise SchemaError(
                f"expected at most {MAX_OPEN_PAYLOADS} payloads under way, each with its number"
            )
        if self._is_awaited(message):
            place = self._place(message, size)
            message.payload = flat(np.empty(size, np.uint8)) if place is None else place.cast("B")
            if len(message.payload) != size:
                raise SchemaError(
                    f"expected {len(message.payload)} bytes with {message.kind}, got {size}"
                )
        self._open[number] = _PartialMessage(message, size, message.payload)

    def _is_awaited(self, message: Message) -> bool:
        """Return True if a message is no response, or its request is still pending."""
        if message.to is None:
            return True
        with self._lock:
            return message.to in self._asked

    def _place(self, message: Message, size: int) -> memoryview | None:
        if message.to is None:
            return self._handler.place(message, size)
        with self._lock:
            asked = self._asked.get(message.to)
        return None if asked is None or message.kind == "refused" else asked.place

    def _go_on(self, buffered: _Buffered, number: int, size: int) -> None:
        found = self._open.get(number)
        if found is None or not 0 < size <= min(found.size, CHUNK_BYTES):
            raise SchemaError(f"{size} bytes came for a message that does not expect them")
        if found.left is None:
            buffered.fill(memoryview(bytearray(size)))
        else:
            buffered.fill(found.left[:size])
            found.left = found.left[size:]
        found.size -= size
        if not found.size:
            del self._open[number]
            self._arrived(found.message)

    def _arrived(self, message: Message) -> None:
        if message.to is None:
            self._handler.received(self, message)
            return
        with self._lock:
            asked = self._asked.pop(message.to, None)
        if asked is None:  # the request has timed out
            return
        if message.kind == "refused":
            asked.error = error_of(message.fields, self.host)
        elif message.kind != asked.kind:
            raise SchemaError(f"expected an answer to {asked.kind}, got one to {message.kind}")
        asked.answer = message
        asked.there.set()


class _Buffered:
    """Reads small pieces from a buffer, and large ones directly to their destination."""

    def __init__(self, stream: Stream, channel: Channel) -> None:
        self._stream, self._channel = stream, channel
        self._memory = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._end = 0

    def fill(self, into: memoryview) -> None:
        while into:
            there = min(self._end - self._start, len(into))
            if there:
                into[:there] = self._memory[self._start : self._start + there]
                self._start += there
                into = into[there:]
            elif len(into) >= SMALL_BYTES:
                into = into[self._stream.receive(into) :]
                self._channel.heard = True
            else:
                self._start, self._end = 0, self._stream.receive(self._memory)
                self._channel.heard = True


def flat(piece: NDArray | bytes) -> memoryview:
    """Return the bytes of an array in the order of its elements."""
    if isinstance(piece, bytes):
        return memoryview(piece)
    return memoryview(np.ascontiguousarray(piece).reshape(-1).view(np.uint8))  # type: ignore[arg-type]
