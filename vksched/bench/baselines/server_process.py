"""A server of a language model in a child process, which is stopped while others are measured."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence

START_LIMIT_S = 600.0
"""Timeout of a start: it may compile all kernels."""
_PR_SET_PDEATHSIG = 1
Command = Callable[[int], Sequence[str]]
"""Return the command of a server on a port."""


class ServerProcess:
    """A server on a free port of the loopback interface.

    env: further environment variables. Raise RuntimeError
    if the server ends before /health answers, or does not answer in time.
    """

    def __init__(self, command: Command, env: Mapping[str, str] | None = None) -> None:
        with socket.socket() as opened:
            opened.bind(("127.0.0.1", 0))
            self.port: int = opened.getsockname()[1]
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(
            list(command(self.port)),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, **(env or {})},
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        try:
            self._wait()
            self._signal("SIGSTOP")
        except BaseException:
            self.close()
            raise

    def _wait(self) -> None:
        end = time.monotonic() + START_LIMIT_S
        while time.monotonic() < end:
            if (code := self._process.poll()) is not None:
                raise RuntimeError(f"the server ended with code {code}{self._log_tail()}")
            with contextlib.suppress(OSError):
                url = f"http://127.0.0.1:{self.port}/health"
                with urllib.request.urlopen(url, timeout=10):
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the server did not start within {START_LIMIT_S:g} s")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the server run within the context. Servers may spin while they wait."""
        self._signal("SIGCONT")
        try:
            yield
        finally:
            self._signal("SIGSTOP")

    def _signal(self, name: str) -> None:
        number = getattr(signal, name, None)  # Windows has none of them
        if number is not None:
            self._process.send_signal(number)

    def _log_tail(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        return f": {lines[-1][:300]}" if lines else ""

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def _end_with_parent() -> None:
    """Let Linux kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
