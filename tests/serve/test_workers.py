"""`Workers`: limits of calls and of their queue, callers that leave, and the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the server needs the extra 'serve'")

from vksched.serve.api_error import ApiError
from vksched.serve.workers import PICTURES, Workers


class Gate:
    """A function that blocks until it may end."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.calls = 0

    def __call__(self, result: str) -> str:
        self.calls += 1
        self.begun.set()
        self.may_end.wait(20)
        return result


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.may_end.set()


async def reached(event: threading.Event) -> None:
    while not event.is_set():
        await asyncio.sleep(0.001)


def test_results_and_errors_are_those_of_the_function() -> None:
    async def run() -> None:
        workers = Workers(2, 20)
        assert await asyncio.gather(*(workers.call(pow, 2, n) for n in range(5))) == [
            *(1, 2, 4, 8, 16)
        ]
        with pytest.raises(ZeroDivisionError):
            await workers.call(divmod, 1, 0)
        workers.close()

    asyncio.run(run())


class Body:
    """The input of a call."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Cycles of objects are not freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_the_input_of_a_call_that_fails_is_freed_with_its_error(no_collector: None) -> None:
    def fail(body: Body) -> None:
        values = [body]
        try:
            raise KeyError(values)
        except KeyError:
            raise ApiError("a wrong value") from None

    async def run() -> None:
        workers = Workers(1, 20)
        body = Body()
        seen = weakref.ref(body)
        with contextlib.suppress(ApiError):
            await workers.call(fail, body)
        del body
        await workers.call(int)
        assert seen() is None
        workers.close()

    asyncio.run(run())


def test_a_long_call_is_an_error_of_its_caller_and_a_long_queue_is_none(gate: Gate) -> None:
    async def run() -> None:
        workers = Workers(1, 0.1)
        first = asyncio.ensure_future(workers.call(gate, "first"))
        await reached(gate.begun)
        with pytest.raises(ApiError) as queue:
            await workers.call(gate, "second")
        assert (queue.value.status, queue.value.code) == (503, "overloaded")
        assert queue.value.headers()["Retry-After"] == "1"
        with pytest.raises(ApiError) as late:
            await first
        assert (late.value.status, late.value.code) == (503, "timeout")
        assert late.value.headers()["Retry-After"] == "1"
        gate.may_end.set()
        assert await workers.call(str, 5) == "5"
        assert gate.calls == 1  # the second call never begins
        workers.close()

    asyncio.run(run())


def test_a_result_that_nobody_waits_for_is_dropped(gate: Gate) -> None:
    async def run() -> None:
        workers = Workers(1, None)
        dropped: list[str] = []
        first = asyncio.ensure_future(workers.call(gate, "first", dropped=dropped.append))
        second = asyncio.ensure_future(workers.call(gate, "second", dropped=dropped.append))
        await reached(gate.begun)
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        gate.may_end.set()
        assert await workers.call(gate, "third", dropped=dropped.append) == "third"
        assert dropped == ["first"] and gate.calls == 2
        workers.close()

    asyncio.run(run())


def test_waiting_calls_are_bounded(gate: Gate) -> None:
    async def run() -> None:
        workers = Workers(1, None, waiting=1)
        calls = [asyncio.ensure_future(workers.call(gate, "")) for _ in range(2)]
        await reached(gate.begun)
        with pytest.raises(ApiError, match="too many requests"):
            await workers.call(gate, "")
        gate.may_end.set()
        await asyncio.gather(*calls)
        assert await workers.call(str, 5) == "5"
        workers.close()

    asyncio.run(run())


def test_calls_that_were_left_wait_no_more(gate: Gate) -> None:
    """They keep neither a place nor the memory of their arguments."""

    class Picture:
        pass

    async def run() -> None:
        workers, picture = Workers(1, None, waiting=1), Picture()
        first = asyncio.ensure_future(workers.call(gate, "first"))
        await reached(gate.begun)
        for _ in range(3):
            left = asyncio.ensure_future(workers.call(str, picture))
            await asyncio.sleep(0)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
        known = weakref.ref(picture)
        del picture, left
        await asyncio.sleep(0.01)  # the event loop drops its last step
        gc.collect()
        assert known() is None
        gate.may_end.set()
        assert await workers.call(str, 5) == "5" and await first == "first"
        workers.close()

    asyncio.run(run())


def test_a_cancellation_that_comes_with_the_begin_ends_the_call(gate: Gate) -> None:
    async def run() -> None:
        workers = Workers(1, 20)
        left = asyncio.ensure_future(workers.call(gate, ""))
        await asyncio.sleep(0)
        assert gate.begun.wait(20)  # the event loop gets it in its next step, after this one
        asyncio.get_running_loop().call_soon(left.cancel)
        await asyncio.wait((left,), timeout=5)
        assert left.cancelled()
        workers.close()

    asyncio.run(run())


def test_callers_may_bound_the_queue_themselves(gate: Gate) -> None:
    async def run() -> None:
        workers = Workers(1, 0.1, None, PICTURES)
        calls = [asyncio.ensure_future(workers.call(gate, "")) for _ in range(100)]
        await reached(gate.begun)
        with pytest.raises(ApiError, match="expected the pictures to be read within 0.1 s") as late:
            await calls[0]
        assert "fewer or smaller ones" in late.value.message
        gate.may_end.set()
        for call in calls[1:]:  # they waited too long, but none was refused at once
            with pytest.raises(ApiError, match="too many requests"):
                await call
        assert gate.calls == 1
        workers.close()

    asyncio.run(run())


def test_calls_of_a_closed_server_say_it(gate: Gate) -> None:
    """Those in its queue, too: only the call that runs ends."""

    async def run() -> None:
        workers = Workers(1, None)
        first, second = (asyncio.ensure_future(workers.call(gate, "")) for _ in range(2))
        await reached(gate.begun)
        workers.close()
        gate.may_end.set()
        for closed in (second, asyncio.ensure_future(workers.call(gate, ""))):
            with pytest.raises(ApiError) as refused:
                await closed
            assert (refused.value.status, refused.value.code) == (503, "server_closed")
        assert await first == "" and gate.calls == 1

    asyncio.run(run())


def test_the_process_ends_although_a_call_goes_on() -> None:
    program = """
import asyncio, threading
from vksched.serve.workers import Workers

async def run():
    workers = Workers(1, 0.1)
    try:
        await workers.call(threading.Event().wait)
    except Exception as error:
        print(error.code)
    workers.close()

asyncio.run(run())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.stdout.split() == [b"timeout"] and done.returncode == 0
