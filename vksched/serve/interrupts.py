"""Interrupts: Ctrl-C and SIGTERM of a process that serves.

    loading   Ctrl-C --> KeyboardInterrupt
    serving   Ctrl-C, SIGTERM --> the server ends: connections, engine, devices
    ending    Ctrl-C again, or the time limit --> the process ends at once

A step or a driver may never return, so that the end has a time limit. A handler may interrupt any
line of the main thread: it takes no lock and starts no thread.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

LIMIT_S = 30.0
"""The time in which a process must end after the first signal."""
STDERR = 2


class Interrupts:
    """The handlers of both signals, as a context of the main thread; other threads change nothing.

    Parameters
    ----------
    limit_s
        The time in seconds in which the context must end after the first signal.
    until_exit
        The process must end in this time, not only the context.
    """

    def __init__(self, limit_s: float = LIMIT_S, until_exit: bool = False) -> None:
        self._limit_s = limit_s
        self._until_exit = until_exit
        self._stop: Callable[[], object] | None = None
        self._is_received = False
        self._handlers: dict[int, Any] = {}
        self._events: SimpleQueue[bool] = SimpleQueue()
        """True for the first signal, False for the end of the context."""

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            threading.Thread(target=self._watch, name="vksched-interrupts", daemon=True).start()
            self._handle(signal.SIGINT)
        return self

    def __exit__(self, *raised: object) -> None:
        if not (self._is_received and self._until_exit):
            self._events.put(False)
            self._restore(*self._handlers)

    @contextmanager
    def serving(self, stop: Callable[[], object]) -> Iterator[None]:
        """Call a function at the first signal, instead of raising an exception.

        Raises
        ------
        KeyboardInterrupt
            Ctrl-C came before, and the exception was lost in a callback of the interpreter.
        """
        self._stop = stop
        if self._is_received:
            raise KeyboardInterrupt
        if self._handlers:
            self._handle(signal.SIGTERM)
        try:
            yield
        finally:
            self._stop = None
            self._restore(signal.SIGTERM)

    def _handle(self, number: int) -> None:
        self._handlers[number] = signal.signal(number, self._receive)

    def _restore(self, *numbers: int) -> None:
        for number in numbers:
            if number in self._handlers:
                signal.signal(number, self._handlers.pop(number))

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._is_received:
            _exit("[serve] ended without waiting\n", 128 + number)
        self._is_received = True
        self._events.put(True)
        if self._stop is None:
            raise KeyboardInterrupt
        self._stop()

    def _watch(self) -> None:
        """Wait for the first signal, then for the end of the context; exit if it does not come."""
        try:
            if self._events.get():
                self._events.get(timeout=self._limit_s)
        except Empty:
            own = threading.current_thread()
            names = sorted({each.name for each in threading.enumerate() if each is not own})
            running = ", ".join(names)
            _exit(
                f"[serve] expected an end within {self._limit_s:g} s, got none; these threads "
                f"still run: {running}\n",
                1,
            )


def _exit(message: str, code: int) -> None:
    """End the process at once."""
    os.write(STDERR, message.encode())
    os._exit(code)
