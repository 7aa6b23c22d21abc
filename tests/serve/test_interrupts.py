"""Signals of a serving process: it ends in order, within a time limit, or at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes get signals here")

SERVER = """
import sys, threading
from vksched.serve.http_server import Listener
from vksched.serve.interrupts import Interrupts

async def app(scope, receive, send):
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({{"type": "lifespan.startup.complete"}})
    print("ending", flush=True)
    {end}
    await send({{"type": "lifespan.shutdown.complete"}})

with Listener("127.0.0.1", 0) as listener, Interrupts({limit_s}, until_exit=True) as interrupts:
    listener.run(app, on_start=lambda: print("serves", flush=True), interrupts=interrupts)
    {then}
print("ended")
"""
NEVER = "threading.Event().wait()"


@contextmanager
def server(
    limit_s: float, end: str = "pass", then: str = "pass"
) -> Iterator[subprocess.Popen[str]]:
    """Start a server. end: what its application does at the end; then: what follows."""
    text = SERVER.format(limit_s=limit_s, end=end, then=then)
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "serves\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server(number: signal.Signals) -> None:
    with server(60) as process:
        process.send_signal(number)
        assert process.communicate(timeout=30) == ("ending\nended\n", "")
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("end", "then", "out"),
    [
        (NEVER, "pass", "ending\n"),
        ("pass", "threading.Thread(target=threading.Event().wait).start()", "ending\nended\n"),
    ],
)
def test_the_end_has_a_time_limit(end: str, then: str, out: str) -> None:
    with server(0.5, end, then) as process:
        process.send_signal(signal.SIGINT)
        found, err = process.communicate(timeout=30)
    assert (found, process.returncode) == (out, 1)
    assert err.startswith("[serve] expected an end within 0.5 s") and "MainThread" in err


def test_a_second_signal_ends_the_process_at_once() -> None:
    with server(60, NEVER) as process:
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None and process.stdout.readline() == "ending\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "[serve] ended without waiting\n")


def test_an_interrupt_that_was_lost_ends_the_server_before_it_begins() -> None:
    text = """
import os, signal, weakref
from vksched.serve.interrupts import Interrupts

class Target: pass
def lose(_):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000): pass  # the exception is raised here, where the interpreter ignores it
with Interrupts() as interrupts:
    target = Target()
    reference = weakref.ref(target, lose)
    del target
    try:
        with interrupts.serving(lambda: None):
            print("serves")
    except KeyboardInterrupt:
        print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.stdout == "interrupted\n" and "ignored" in done.stderr
