"""Signals of a serving process: it ends in order, within a time limit, or at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")

from vksched.serve import interrupts as of_serve

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes get signals here")

SERVER = """
import builtins, ctypes, os, signal, sys, threading
from vksched.serve import interrupts as of_serve
from vksched.serve.http_server import Listener
from vksched.serve.interrupts import Interrupts

of_serve.LAST_S = {last_s}

def hang():  # inside C, where no handler of the interpreter runs
    lock, lib = ctypes.create_string_buffer(256), ctypes.CDLL(None)
    lib.pthread_mutex_lock(lock), lib.pthread_mutex_lock(lock)

def fill():  # the pipe of stderr, which nobody reads
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, bytes(1 << 16))
    except BlockingIOError:
        os.set_blocking(2, True)

class AtExit:
    def __del__(self):
        hang()

async def app(scope, receive, send):
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({{"type": "lifespan.startup.complete"}})
    print("ending", flush=True)
    {end}
    await send({{"type": "lifespan.shutdown.complete"}})

{before}
with Listener("127.0.0.1", 0) as listener, Interrupts({limit_s}, until_exit=True) as interrupts:
    def on_start():
        print("serves", flush=True)
        {begin}
    listener.run(app, on_start=on_start, interrupts=interrupts)
    {then}
print("ended", flush=True)
"""
NEVER = "threading.Event().wait()"
BLOCK = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])"


@contextmanager
def server(
    limit_s: float,
    end: str = "pass",
    then: str = "pass",
    begin: str = "pass",
    before: str = "pass",
    last_s: float = of_serve.LAST_S,
) -> Iterator[subprocess.Popen[str]]:
    """Start a server. begin, end: what its application does once it serves, and at the end; then:
    what follows; before: what it does first.
    """
    text = SERVER.format(
        limit_s=limit_s, end=end, then=then, begin=begin, before=before, last_s=last_s
    )
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


def test_the_main_thread_may_be_inside_a_driver() -> None:
    """The time limit, and a second signal, need no handler of the interpreter."""
    for limit_s, signals, code, text in (
        (0.5, 1, 1, "MainThread (<string>:"),
        (60, 2, 130, "[serve] ended without waiting\n"),
    ):
        with server(limit_s, begin="hang()") as process:
            for _ in range(signals):
                process.send_signal(signal.SIGINT)
                time.sleep(0.2)  # the system joins signals that follow at once
            out, err = process.communicate(timeout=30)
        assert (out, process.returncode) == ("", code) and text in err


def test_the_end_of_the_interpreter_has_a_time_limit() -> None:
    """Its last steps have no threads: a driver may hang there, too."""
    with server(0.5, then="builtins.last = AtExit()", last_s=0.1) as process:
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[0] == "ending\nended\n"
    assert process.returncode == -signal.SIGALRM


@pytest.mark.parametrize("how", ["signal.signal(signal.SIGALRM, signal.SIG_IGN)", BLOCK])
def test_an_alarm_that_was_ignored_or_blocked_ends_the_process(how: str) -> None:
    """A parent may have done it: both are inherited."""
    hang = "builtins.last = AtExit()"
    with server(0.5, then=hang, last_s=0.1, before=how) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGALRM


def test_the_timer_of_an_application_goes_on() -> None:
    """Its default action is to end the process, too."""
    timer = "signal.setitimer(signal.ITIMER_REAL, 500)"
    left = "print(300 < signal.getitimer(signal.ITIMER_REAL)[0] <= 500)"
    with server(60, then=left, before=timer) as process:
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30)[0] == "ending\nTrue\nended\n"


@pytest.mark.parametrize("how", ["signal.signal(signal.SIGALRM, signal.SIG_IGN)", BLOCK])
def test_a_context_without_signals_changes_nothing(how: str) -> None:
    """The file of an application that gets bytes of signals may be closed meanwhile, too."""
    text = f"""
import signal, socket, threading, time
from vksched.serve.interrupts import Interrupts

first, second = socket.socketpair()
second.setblocking(False)
signal.set_wakeup_fd(second.fileno())
{how}
def state():
    alarm = signal.getsignal(signal.SIGALRM), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return alarm, signal.getsignal(signal.SIGINT)
before = state()
with Interrupts(until_exit=True):
    assert state() != before
assert state() == before and signal.set_wakeup_fd(-1) == second.fileno()
signal.set_wakeup_fd(second.fileno())
with Interrupts():
    second.close()
assert signal.set_wakeup_fd(-1) == -1
while any(each.name == "vksched-interrupts" for each in threading.enumerate()):
    time.sleep(0.01)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_message_that_nobody_reads_delays_nothing() -> None:
    with server(0.5, NEVER, begin="fill()") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 1


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
