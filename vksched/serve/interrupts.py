"""Interrupts: Ctrl-C and SIGTERM of a process that serves.

    loading   Ctrl-C --> KeyboardInterrupt
    serving   Ctrl-C, SIGTERM --> the server ends: connections, engine, devices
    ending    Ctrl-C again, or the time limit --> the process ends at once

    signal --> interpreter --one byte--> thread: time limit, second signal
                    '-- main thread, between two lines: KeyboardInterrupt, or stop

A step or a driver may never return, so that the end has a time limit. The interpreter sends the
byte, so that the limit holds although the main thread is inside a driver, if its call releases the
interpreter's lock: Kompute's calls do not. The thread stops when the interpreter ends; a timer of
the system ends the process if that hangs. A handler may interrupt any line of the main thread: it
takes no lock and starts no thread.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

LIMIT_S = 30.0
"""The time in which a process must end after the first signal."""
LAST_S = 5.0
"""The time after the limit in which the system ends a process whose threads cannot."""
STDERR = 2
NUMBERS = (signal.SIGINT, signal.SIGTERM)
END, HANDLED = 0, 255
"""Bytes to the thread: the context has ended; the main thread has handled a signal."""
MESSAGE_BYTES = 4000
"""The maximum size of a message, which a pipe takes at once."""


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
        self._sender: socket.socket | None = None
        self._former_fd = -1
        """The file of another user to which the interpreter sends a byte for each signal; it gets
        none meanwhile.
        """
        self._was_alarm_blocked = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            receiver, self._sender = socket.socketpair()
            self._sender.setblocking(False)
            threading.Thread(
                target=self._watch, args=(receiver,), name="vksched-interrupts", daemon=True
            ).start()
            fd = self._sender.fileno()
            self._former_fd = signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
            self._handle(signal.SIGINT)
            if self._until_exit:
                self._allow_timer()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._sender is None or (self._is_received and self._until_exit):
            return
        try:
            self._restore(*self._handlers)
            if self._was_alarm_blocked:
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            try:
                signal.set_wakeup_fd(self._former_fd)
            except (OSError, ValueError):  # its user closed it
                signal.set_wakeup_fd(-1)
        finally:
            self._send(END)
            self._sender.close()

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

    def _allow_timer(self) -> None:
        """Let SIGALRM end the process, unless it is in use: a parent may have ignored or blocked
        it.
        """
        if sys.platform == "win32" or _is_timer_used() or signal.SIGALRM in signal.sigpending():
            return
        if signal.getsignal(signal.SIGALRM) == signal.SIG_IGN:
            self._handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
            former = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            self._was_alarm_blocked = signal.SIGALRM in former

    def _restore(self, *numbers: int) -> None:
        for number in numbers:
            if number in self._handlers:
                signal.signal(number, self._handlers.pop(number))

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._send(HANDLED)  # the event loop of Windows takes the bytes of the interpreter
        if self._is_received:
            return  # the thread ends the process
        self._is_received = True
        if self._stop is None:
            raise KeyboardInterrupt
        self._stop()

    def _send(self, byte: int) -> None:
        with suppress(OSError):
            assert self._sender is not None
            self._sender.send(bytes([byte]))

    def _watch(self, receiver: socket.socket) -> None:
        """Wait for the first signal, then for the end of the context; exit if it does not come, or
        after a second signal.
        """
        signals, handled, end_s = 0, 0, 0.0
        with receiver:
            while True:
                receiver.settimeout(max(1e-3, end_s - time.monotonic()) if end_s else None)
                try:
                    data = receiver.recv(1)
                except TimeoutError:
                    _exit(
                        f"[serve] expected an end within {self._limit_s:g} s, got none; these "
                        f"threads still run: {_running_threads()}\n",
                        1,
                    )
                byte = data[0] if data else END
                if byte == END:
                    return
                signals, handled = signals + (byte in NUMBERS), handled + (byte == HANDLED)
                if max(signals, handled) > 1:
                    number = byte if byte in NUMBERS else signal.SIGINT
                    _exit("[serve] ended without waiting\n", 128 + number)
                if (signals or handled) and not end_s:
                    end_s = time.monotonic() + self._limit_s
                    if self._until_exit:
                        _start_timer(self._limit_s + LAST_S)


def _start_timer(seconds: float) -> None:
    """Let the system end the process, unless another timer is in use."""
    if sys.platform == "win32" or _is_timer_used():
        return
    if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _is_timer_used() -> bool:
    """Return True if the process has a timer already."""
    return sys.platform != "win32" and signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _running_threads() -> str:
    """Return the names of all other threads, and their current lines."""
    frames, found = sys._current_frames(), []
    for each in threading.enumerate():
        frame = frames.get(each.ident or 0)
        if each is not threading.current_thread() and frame is not None:
            code = frame.f_code
            place = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
            found.append(f"{each.name} ({place})")
    return ", ".join(sorted(found))


def _exit(message: str, code: int) -> None:
    """End the process at once. The message is left out if nobody reads it."""
    with suppress(OSError, ValueError):
        if sys.platform == "win32" or select.select([], [STDERR], [], 0)[1]:
            os.write(STDERR, message.encode()[:MESSAGE_BYTES])
    os._exit(code)
