"""Main: reads requests, renders templates and writes answers, until the requests end.

    request   length (4 bytes) | marshal of (source, values or None, seconds)
    answer    kind (1 byte) | length (4 bytes) | text in UTF-8

Without values a template is only compiled. All modules are imported before the limits are set;
afterwards the process can open no file, start no process and allocate no more memory.
"""

from __future__ import annotations

import marshal
import signal
import sys
import time
import unicodedata  # noqa: F401 - Python imports it for names beyond ASCII
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import jinja2.debug  # noqa: F401 - jinja2 imports it when a template fails

from .jinja_sandbox import WrongTemplate, compile_template

TEXT, WRONG, MEMORY = b"t", b"w", b"m"
"""The kinds of answers: a text, a template error, out of memory."""
MAX_TEMPLATES = 8
"""The maximum number of cached templates."""
GRACE_S = 0.5
"""The delay of the timer after the time limit; within the limit the sandbox reports the error
itself.
"""

_USUAL = """
{%- for m in messages if m.role %}{{ '\\n' ~ m['role'] | trim ~ m | tojson }}
{%- endfor %}{{ strftime_now('%d %b %Y') }}{{ raise_exception('end') }}"""

Render = Callable[[Mapping[str, Any], float], str]


def main(memory_bytes: int) -> None:
    """Serve requests.

    Parameters
    ----------
    memory_bytes
        The maximum address space of this process.
    """
    _warm_up()
    _limit(memory_bytes)
    known: OrderedDict[str, Render] = OrderedDict()
    while len(head := sys.stdin.buffer.read(4)) == 4:
        length = int.from_bytes(head, "little")
        kind, data = _answer(known, sys.stdin.buffer.read(length))
        sys.stdout.buffer.write(kind + len(data).to_bytes(4, "little"))
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        del data
        _stop_clocks()
        if kind == MEMORY:
            return


def _warm_up() -> None:
    """Load lazily imported parts of Python and jinja2: codecs, the time zone, modules."""
    with suppress(WrongTemplate):
        compile_template(_USUAL, GRACE_S)({"messages": [{"role": "user"}]}, GRACE_S)


def _answer(known: OrderedDict[str, Render], request: bytes) -> tuple[bytes, bytes]:
    try:
        source, values, seconds = marshal.loads(request)
        del request
        _start_clocks(seconds)
        render = known.get(source) or compile_template(source, seconds)
        known[source] = render
        known.move_to_end(source)
        if len(known) > MAX_TEMPLATES:
            known.popitem(last=False)
        text = "" if values is None else render(values, seconds)
        return TEXT, text.encode("utf-8", "surrogatepass")
    except WrongTemplate as error:
        return WRONG, str(error).encode("utf-8", "surrogatepass")
    except MemoryError:
        return MEMORY, b""


def _limit(memory_bytes: int) -> None:
    """Drop the privileges of this process that rendering does not need. Windows has no limits of
    this kind.
    """
    try:
        import resource
    except ImportError:
        return
    for ends in (signal.SIGALRM, signal.SIGXCPU):  # the parent may ignore or block them
        signal.signal(ends, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {ends})
    for name, limit in (
        ("RLIMIT_CORE", 0),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_NOFILE", 0),
        ("RLIMIT_NPROC", 0),
        ("RLIMIT_AS", memory_bytes),
    ):
        number = getattr(resource, name, None)
        if number is not None:
            with suppress(OSError, ValueError):  # macOS has some by name only
                resource.setrlimit(number, (limit, limit))


def _start_clocks(seconds: float) -> None:
    """Start timers by which the operating system kills this process after the time limit, even
    within one call.
    """
    if not hasattr(signal, "setitimer"):
        return
    import resource

    signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_S)
    limit = int(time.process_time() + seconds + GRACE_S) + 1
    allowed = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if allowed == resource.RLIM_INFINITY or limit < allowed:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, allowed))


def _stop_clocks() -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
