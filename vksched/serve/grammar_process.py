"""GrammarProcess: a child process that tries to compile grammars, which may take forever.

compile(kind, text) --> child --grammar or error--> compiled again in this process
                        '- too slow, too large, gone: it is killed; the next call starts another
"""

from __future__ import annotations

import marshal
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import llguidance

from ..common.errors import GrammarError, VkschedError

MEMORY_BYTES = 2 << 30
"""The address space of a child."""
START_S = 30.0
"""The time in which a child must start on a busy machine."""
MAX_REPLY_BYTES = 64 << 20
_VARIABLES = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass(frozen=True)
class GrammarTokens:
    """The tokens that a child needs. names: the bytes of each. begin: None if there is none.
    options: those of schemas.
    """

    names: list[bytes]
    ends: list[int]
    begin: int | None
    options: Mapping[str, Any]


class GrammarProcess:
    """A child process. Only one thread at a time compiles; any may call `close`.

    Parameters
    ----------
    seconds
        The time limit of one grammar.
    """

    def __init__(self, tokens: GrammarTokens, seconds: float) -> None:
        self._tokens = tokens
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = self._is_busy = False
        self._is_new = True

    def compile(self, kind: str, text: str, param: str, what: str) -> str:
        """Return a grammar in llguidance's own form.

        Parameters
        ----------
        kind
            "schema", "text" (GBNF or Lark) or "lark".
        param, what
            The field of the request and the name of the grammar's form, for errors.

        Raises
        ------
        GrammarError
            The grammar is invalid, or it takes too much time or memory.
        """
        process = self._started()
        limit_s = self._seconds + (START_S if self._is_new else 0.0)
        late = threading.Event()

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit_s, kill)
        timer.daemon = True
        answer = None
        timer.start()
        try:
            assert process.stdin is not None and process.stdout is not None
            with suppress(OSError):
                if self._is_new:
                    _send(process.stdin, self._first())
                _send(process.stdin, (kind, text, self._seconds))
                answer = _receive(process.stdout)
        finally:
            timer.cancel()
            with self._lock:
                self._is_busy = False
                ends = answer is None or self._is_closed
            if ends:
                self._end(process)
        if answer is None:
            raise self._missing(process.returncode, late.is_set(), param, what)
        self._is_new = False
        is_valid, result = answer
        if not is_valid:
            raise GrammarError(
                f"[{param}] expected a {what} that can be enforced, got an error in it: "
                f"{grammar_message(result)}",
                param,
            )
        return str(result)

    def close(self) -> None:
        """Kill the child, also while another thread waits for it."""
        with self._lock:
            self._is_closed = True
            process, is_busy = self._process, self._is_busy
        if process is not None:
            process.kill()
            if not is_busy:
                self._end(process)

    def _first(self) -> tuple[object, ...]:
        tokens = self._tokens
        return tokens.names, tokens.ends, tokens.begin, dict(tokens.options), MEMORY_BYTES

    def _missing(self, code: int, is_late: bool, param: str, what: str) -> VkschedError:
        """Return the error for a missing answer."""
        if code > 0 and self._is_new:
            return VkschedError(
                f"[{param}] expected {sys.executable} to start and to find llguidance, got exit "
                f"code {code}"
            )
        if is_late or -code == 14:  # SIGALRM
            limit = f"{self._seconds:g} seconds"
        else:
            limit = f"{MEMORY_BYTES >> 20} MiB of memory"
        return GrammarError(
            f"[{param}] expected a {what} that compiles within {limit}, it needs more; try a "
            "simpler one",
            param,
        )

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_closed:
                raise VkschedError("[grammar] expected an open server, it is closed")
            if self._process is None:
                self._is_new = True
                self._process = _start()
            self._is_busy = True
            return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._process = None
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()


def grammar_message(text: str) -> str:
    """Return llguidance's message without the dump of its state, which has the answer's text."""
    return text.partition("\n<state>")[0].partition("<state>")[0][:500]


def _start() -> subprocess.Popen[bytes]:
    folder = Path(llguidance.__file__).resolve().parent.parent
    program = Path(__file__).with_name("grammar_child.py")
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(program), str(folder)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=os.sep,
            env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
            start_new_session=True,  # Ctrl-C is for the parent
        )
    except OSError as error:
        raise VkschedError(
            f"[grammar] expected to start a process that compiles grammars, got {error}"
        ) from error


def _send(pipe: IO[bytes], value: object) -> None:
    data = marshal.dumps(value)  # type: ignore[arg-type]
    rest = memoryview(len(data).to_bytes(4, "little") + data)
    while rest:
        rest = rest[pipe.write(rest) :]


def _receive(pipe: IO[bytes]) -> tuple[bool, str] | None:
    """Return an answer; None if there is none."""
    head = _read(pipe, 4)
    if head is None or (length := int.from_bytes(head, "little")) > MAX_REPLY_BYTES:
        return None
    data = _read(pipe, length)
    return None if data is None else marshal.loads(data)


def _read(pipe: IO[bytes], length: int) -> bytes | None:
    parts = []
    while length:
        part = pipe.read(length)
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
