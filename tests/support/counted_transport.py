"""Wires that count the frames of unencrypted connections, and are cut or slow when a test says so.

    caller or node --Wire: whole frames, one by one--> node         Counter: one count for all wires

What goes wrong goes wrong between two frames, on whichever wire the second of them comes: `reached`
is called then, before that frame goes on. A cut wire is silent: it takes no bytes and ends nothing,
as a network that drops packets.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from relays import Relay, shut

from vksched.distributed.wire.channel import BEAT, DATA, FRAME
from vksched.distributed.wire.tls import GREETING, NONCE_BYTES, PROOF_BYTES

PIECE = 1 << 12
REPORT_S = 0.02
SLOW_BYTES_PER_S = 28_000
"""At which 64 KiB take longer than a silence that counts as a loss."""
SIZE_BYTES = 4
"""Before the text of a hello."""


class Counter:
    """Counts frames but for beats. at: `reached` is called before this one; -1: never."""

    def __init__(self, at: int = -1, reached: Callable[[], None] = lambda: None) -> None:
        self.frames: list[str] = []
        self._at, self._reached = at, reached
        self._lock = threading.Lock()

    def note(self, what: str) -> None:
        with self._lock:
            if len(self.frames) == self._at:
                self._reached()
            self.frames.append(what)


class Wire(Relay):
    """Listens at `address` and passes frames on to a node. cut: silent. slow_bytes: so many go at
    SLOW_BYTES_PER_S before it is fast again. delay_s: delay of each frame.
    """

    def __init__(self, name: str, target: str, counter: Counter) -> None:
        self.name, self.target = name, target
        self.cut, self.slow_bytes, self.delay_s = False, 0, 0.0
        self._counter = counter
        self._closed = False
        super().__init__(f"wire-{name}")

    def close(self) -> None:
        with self._lock:
            self._closed = True
        super().close()

    def _accept(self) -> None:
        while True:
            try:
                own, _ = self._listening.accept()
            except OSError:
                return
            host, port = self.target.split(":")
            try:
                other = socket.create_connection((host, int(port)))
            except OSError:  # nobody is there: the caller's connection ends, too
                own.close()
                continue
            for each in (own, other):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets += [own, other]
                for source, target, sign in ((own, other, ">"), (other, own, "<")):
                    thread = threading.Thread(
                        target=self._pump, args=(source, target, sign), daemon=True
                    )
                    self._threads.append(thread)
                    thread.start()
                if self._closed:
                    own.shutdown(socket.SHUT_RDWR)
                    other.shutdown(socket.SHUT_RDWR)

    def _pump(self, source: socket.socket, target: socket.socket, sign: str) -> None:
        with suppress(OSError, EOFError):
            read = source.makefile("rb")
            for what, size in (("greeting", len(GREETING) + NONCE_BYTES), ("proof", PROOF_BYTES)):
                self._pass(f"{sign}{what}", _exactly(read, size), target)
            size = _exactly(read, SIZE_BYTES)
            hello = _exactly(read, int.from_bytes(size, "little"))
            self._pass(f"{sign}hello", size + hello, target)
            while True:
                frame = _exactly(read, FRAME.size)
                sort, _, fields, size = FRAME.unpack(frame)
                text = _exactly(read, size if sort == DATA else fields)
                what = "data" if sort == DATA else "" if sort == BEAT else json.loads(text)["kind"]
                self._pass(f"{sign}{what}" if what else "", frame + text, target)
        shut(source, target)

    def _pass(self, what: str, piece: bytes, target: socket.socket) -> None:
        if what:
            self._counter.note(f"{self.name} {what}")
        while self.cut and not self._closed:
            time.sleep(REPORT_S)
        if self.delay_s and not self._closed:
            time.sleep(self.delay_s)
        while piece:
            some = piece[:PIECE] if self.slow_bytes > 0 and not self._closed else piece
            if len(some) < len(piece):
                self.slow_bytes -= len(some)
                time.sleep(len(some) / SLOW_BYTES_PER_S)
            target.sendall(some)
            piece = piece[len(some) :]


def _exactly(read: object, size: int) -> bytes:
    found: bytes = read.read(size)  # type: ignore[attr-defined]
    if len(found) < size:
        raise EOFError
    return found
