"""Template process: a child process that renders chat templates, which are untrusted programs.

    render --request--> child: python -I -S, jinja2, no file, no process, no environment
                        |  answers: a text, or an error of the template
                        '- too slow, too large, gone: it is killed, and the next call starts another

The sandbox in the child counts steps and sizes. For costs that it cannot count, such as those
within one call, the process has limits: address space, CPU time, and wall time, which a timer in
the child and a thread in the parent both watch. The child therefore also exits if its parent is
killed during a rendering; otherwise it waits for requests, and exits when the pipe is closed.

There is one child per process, and one rendering at a time. A forked process starts its own child.

Examples: tests/importers/test_template_process.py.
"""

from __future__ import annotations

import atexit
import marshal
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from .....common.env import word_of
from .....common.errors import ModelFormatError, VkschedError
from .....common.fork_guard import in_child

SECONDS = 5.0
"""The default time limit of a rendering in seconds."""
MEMORY_BYTES = 384 << 20
"""The address space of the child, of which Python and jinja2 use about 30 MiB."""
MAX_REQUEST_BYTES = 32 << 20
"""The maximum bytes of a request."""
MAX_REPLY_BYTES = 64 << 20
"""The maximum bytes of an answer; the sandbox counts 16 Mi characters."""
START_S = 30.0
"""The time limit for starting a child on a busy machine."""
POLL_S = 0.05
"""The interval between checks of a child's memory on systems without memory limits."""
KILL_DELAY_S = 1.0
"""The delay after the time limit at which the parent kills the child."""

_BOOT = "import sys; sys.path += sys.argv[2:]; from child.main import main; main(int(sys.argv[1]))"
_VARIABLES = ("TZ", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""The environment variables that a child inherits: the time zone and Python's library paths."""
_BOUNDED = sys.platform == "linux"
"""True if the operating system enforces a limit of address space."""
_ALARMS = [getattr(signal, name, None) for name in ("SIGALRM", "SIGXCPU")]
"""The signals by which the operating system ends a child that exceeds its time limits."""
_SAFER = "try a text as the prompt, or a model whose template you know"
_WAY_OUT = (
    "try VKSCHED_TEMPLATES=inprocess for a model that you trust: its template then runs in this "
    "process, whose memory it may fill"
)
_all: weakref.WeakSet[Renderer] = weakref.WeakSet()


class Renderer:
    """Renders chat templates in a child process.

    Parameters
    ----------
    seconds
        The time limit of one rendering.
    memory_bytes
        The memory limit of the child.
    """

    def __init__(self, seconds: float = SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self.seconds, self.memory_bytes = seconds, memory_bytes
        self._lock = threading.Lock()
        self._child: _Child | None = None
        _all.add(self)

    def start(self) -> None:
        """Start the child in the background, if there is none; a later rendering finds it ready."""
        if not _in_process():
            with self._lock, suppress(VkschedError):  # the rendering raises it again
                self._started()

    def render(self, source: str, values: dict[str, Any] | None = None) -> str:
        """Render a template.

        Parameters
        ----------
        source
            The template.
        values
            Its variables, of types that marshal supports; None only compiles the template.

        Raises
        ------
        ModelFormatError
            The template is invalid, or exceeds the time or memory limit.
        VkschedError
            jinja2 is missing, or no child can be started.
        """
        if _in_process():
            return _render_in_process(source, values, self.seconds)
        request = marshal.dumps((source, values, self.seconds))
        if len(request) > MAX_REQUEST_BYTES:
            raise ModelFormatError(
                f"[chat template] expected a template and messages of at most {MAX_REQUEST_BYTES} "
                f"bytes, got {len(request)}; try a shorter conversation"
            )
        with self._lock:
            used = self._child is not None and self._child.answers > 0
            kind, text = self._ask(request)
            if used and kind in (_MEMORY, _DIED):
                kind, text = self._ask(request)  # earlier renderings may have used up the memory
        if kind == _TEXT:
            return text
        raise ModelFormatError(text)

    def _ask(self, request: bytes) -> tuple[bytes, str]:
        child = self._started()
        done = False
        try:
            kind, text = child.ask(request, self.seconds)
            done = kind in (_TEXT, _WRONG)
        finally:
            if not done:  # after any failure or interrupt the next request starts a new child
                self._child = None
                child.end()
        return kind, text

    def _started(self) -> _Child:
        if self._child is None:
            self._child = _Child(self.memory_bytes)
        return self._child

    def close(self) -> None:
        """Stop the child; the next rendering starts another."""
        with self._lock:
            child, self._child = self._child, None
            if child is not None:
                child.end()

    @property
    def pid(self) -> int | None:
        """The process id of the child; None if there is none."""
        child = self._child
        return None if child is None else child.process.pid

    def _forget(self) -> None:
        """Forget the child in a forked process; it belongs to the parent."""
        child, self._child = self._child, None
        self._lock = threading.Lock()
        if child is not None:
            child.forget()

    def _leave(self) -> None:
        """Stop the child at exit, although other threads may be waiting for it."""
        if self._child is not None:
            self._child.kill()
            self._child.process.wait()


_TEXT, _WRONG, _MEMORY = b"t", b"w", b"m"
"""The kinds of answers, as in the child."""
_LATE, _DIED = b"l", b"d"
"""The kinds without an answer: after the time limit, or before."""


class _Child:
    """A child process. answers: the number of answers."""

    def __init__(self, memory_bytes: int) -> None:
        self.answers = 0
        self._memory_bytes = memory_bytes
        self._why = b""
        self._until: float | None = None
        self._ended = False
        self._watch = threading.Condition()
        try:
            self.process = subprocess.Popen(
                _command(memory_bytes),
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
                f"[chat template] expected to start a process that renders templates, got {error}; "
                f"{_WAY_OUT}"
            ) from error
        try:
            threading.Thread(
                target=self._watch_memory, name="vksched templates", daemon=True
            ).start()
        except RuntimeError as error:  # too many threads, or interpreter shutdown
            self.end()
            raise VkschedError(
                f"[chat template] expected a thread to watch a rendering, got {error}"
            ) from error

    def ask(self, request: bytes, seconds: float) -> tuple[bytes, str]:
        """Return the kind of an answer, and its text or an error message."""
        start_s = 0.0 if self.answers else START_S
        with self._watch:
            self._until = time.monotonic() + start_s + seconds + KILL_DELAY_S
            self._watch.notify()
        try:
            answer = self._exchange(request)
        finally:
            with self._watch:
                self._until = None
        if answer is None:
            return self._missing_reason(seconds)
        self.answers += 1
        kind, data = answer
        if kind == _MEMORY:
            return kind, self._too_large()
        try:
            return kind, data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return _DIED, f"[chat template] expected a text in UTF-8, got other bytes; {_SAFER}"

    def _exchange(self, request: bytes) -> tuple[bytes, bytes] | None:
        """Return the kind and bytes of an answer; None if the child is gone."""
        pipe_in, pipe_out = self.process.stdin, self.process.stdout
        assert pipe_in is not None and pipe_out is not None
        try:
            _write(pipe_in, len(request).to_bytes(4, "little") + request)
        except BrokenPipeError:
            return None
        head = _read(pipe_out, 5)
        if head is None:
            return None
        kind, length = head[:1], int.from_bytes(head[1:], "little")
        if kind not in (_TEXT, _WRONG, _MEMORY) or length > MAX_REPLY_BYTES:
            return None
        data = _read(pipe_out, length)
        return None if data is None else (kind, data)

    def _missing_reason(self, seconds: float) -> tuple[bytes, str]:
        """Return the reason for a missing answer."""
        self.kill()
        code = self.process.wait()
        if self._why == _MEMORY:
            return _MEMORY, self._too_large()
        if self._why == _LATE or -code in _ALARMS:
            return _LATE, (
                f"[chat template] expected a rendering within {seconds:g} seconds, it takes "
                f"longer; {_SAFER}"
            )
        if not self.answers and code > 0:
            raise VkschedError(
                f"[chat template] expected {sys.executable} to start and to find jinja2, got exit "
                f"code {code}; {_WAY_OUT}"
            )
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return (
            _DIED,
            f"[chat template] expected a rendering, its process ended by {ended}; {_SAFER}",
        )

    def _too_large(self) -> str:
        return (
            f"[chat template] expected a rendering within {self._memory_bytes >> 20} MiB of "
            f"memory, it needs more; {_SAFER}"
        )

    def _watch_memory(self) -> None:
        with self._watch:
            while not self._ended:
                if self._until is None:
                    self._watch.wait()
                    continue
                left = self._until - time.monotonic()
                why = _LATE if left <= 0 else b"" if _BOUNDED else self._memory_exceeded()
                if why:
                    self._why, self._until = why, None
                    self.kill()
                else:
                    self._watch.wait(left if _BOUNDED else min(left, POLL_S))

    def _memory_exceeded(self) -> bytes:
        import psutil

        try:
            size = psutil.Process(self.process.pid).memory_info().rss
        except psutil.Error:
            return b""
        return _MEMORY if size > self._memory_bytes else b""

    def kill(self) -> None:
        """Kill the process, if it has not exited."""
        self.process.kill()

    def end(self) -> None:
        """Kill the process and release its resources."""
        with self._watch:
            self._ended = True
            self._watch.notify()
        self.kill()
        self.process.wait()
        self._close()

    def forget(self) -> None:
        """Close the handles that a forked process inherited."""
        self.process.returncode = 0  # only the parent can wait for it
        self._close()

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def _in_process() -> bool:
    """Return True if the user requests rendering in this process."""
    return bool(word_of("VKSCHED_TEMPLATES", ("inprocess",)))


def _render_in_process(source: str, values: dict[str, Any] | None, seconds: float) -> str:
    _require_jinja2()
    from .child.jinja_sandbox import WrongTemplate, compile_template

    try:
        render = compile_template(source, seconds)
        return "" if values is None else render(values, seconds)
    except WrongTemplate as error:
        raise ModelFormatError(str(error)) from error


def _command(memory_bytes: int) -> list[str]:
    # A frozen application would start itself again instead of Python.
    if not sys.executable or getattr(sys, "frozen", False):
        raise VkschedError(
            f"[chat template] expected a Python to start in a process of its own, got an "
            f"application without one; {_WAY_OUT}"
        )
    folders = [str(Path(__file__).resolve().parent), *_require_jinja2()]
    start = [sys.executable, "-I", "-S", "-W", "ignore", "-c", _BOOT]
    return [*start, str(memory_bytes), *folders]


def _require_jinja2() -> list[str]:
    """Return the folders of the packages that the child imports."""
    found = [find_spec(name) for name in ("jinja2", "markupsafe")]
    origins = [spec.origin for spec in found if spec is not None and spec.origin]
    if len(origins) < len(found):
        raise VkschedError(
            '[gguf] expected the jinja2 package, got none; try pip install "vksched[gguf]"'
        )
    return list(dict.fromkeys(str(Path(origin).parent.parent) for origin in origins))


def _write(pipe: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[pipe.write(rest) :]


def _read(pipe: IO[bytes], length: int) -> bytes | None:
    """Return `length` bytes; None if fewer arrive."""
    parts: list[bytes] = []
    while length:
        part = pipe.read(min(length, 1 << 20))
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


RENDERER = Renderer()
"""The renderer of all models of this process."""


@in_child
def _after_fork() -> None:
    for each in list(_all):
        each._forget()


@atexit.register
def _at_exit() -> None:
    for each in list(_all):
        each._leave()
