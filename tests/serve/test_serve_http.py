"""A real server: disconnects, slow and wrong clients, a full queue."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from served import Served, chat, tiny_model, wait_until

from vksched.importers.gguf.model import LanguageModel
from vksched.serve import http_server, lingering_transport
from vksched.serve.limits import ServerLimits

LIMITS = ServerLimits(header_timeout_s=0.3, body_timeout_s=0.3, send_timeout_s=1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


def message(path: str, body: dict[str, object] | None = None, more: str = "") -> bytes:
    """Return an HTTP request."""
    data = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n{more}\r\n"
    return head.encode() + data


@contextlib.contextmanager
def connection(port: int, data: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as opened:
        opened.sendall(data)
        yield opened


def received(opened: socket.socket) -> bytes:
    """Return all that arrives until the server closes the connection."""
    parts = []
    while part := opened.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def ask(port: int, data: bytes) -> bytes:
    with connection(port, data) as opened:
        return received(opened)


def requests_of(served: Served) -> int:
    counters = served.engine.counters()
    return counters.running + counters.waiting


CLOSE = "Connection: close\r\n"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_cancels_its_request(model: LanguageModel, stream: bool) -> None:
    steps, may_run = threading.Event(), threading.Semaphore(0)

    def before_call(number: int) -> None:
        if number > 12:  # the prompt has been read
            steps.set()
            may_run.acquire(timeout=20)

    served = Served(model, before_call=before_call)
    with served as client:
        body = chat(max_tokens=300, stream=stream, ignore_eos=True)
        with connection(client.port, message("/v1/chat/completions", body)):
            assert steps.wait(20)
            assert served.engine.counters().running == 1
        may_run.release()
        for _ in range(200):
            may_run.release()
            if not served.engine.counters().running:
                break
            time.sleep(0.01)
        counters = served.engine.counters()
        assert counters.running == 0 and counters.finished == {"closed": 1}
        assert counters.generated_tokens < 250
        for _ in range(1000):
            may_run.release()
        other = ask(client.port, message("/v1/chat/completions", chat(), CLOSE))
        assert b"200 OK" in other and b"chat.completion" in other


def test_a_full_queue_is_a_429(model: LanguageModel) -> None:
    go = threading.Event()
    served = Served(model, before_call=lambda number: go.wait(20) and None, max_queue=1)
    with served as client, contextlib.ExitStack() as stack:
        data = message("/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}, CLOSE)
        opened = [stack.enter_context(connection(client.port, data)) for _ in range(5)]
        wait_until(lambda: requests_of(served) == 5)
        refused = ask(client.port, data)
        assert b"429" in refused.split(b"\r\n")[0] and b"retry-after: " in refused.lower()
        assert b'"code":"queue_full"' in refused
        go.set()
        for each in opened:
            assert received(each).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


def test_slow_clients_time_out(model: LanguageModel) -> None:
    served = Served(model, "hi", limits=LIMITS)
    with served as client:
        start = time.monotonic()
        assert ask(client.port, b"") == b""
        assert ask(client.port, b"POST /v1/completions HTT") == b""
        assert ask(client.port, b"GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ") == b""
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n{"
        assert b"408" in ask(client.port, head).split(b"\r\n")[0]
        assert time.monotonic() - start < 15
        with connection(client.port, message("/health")) as opened:
            opened.sendall(b"GET /hea")
            assert received(opened).endswith(b'{"status":"ok"}')
        assert b"200 OK" in ask(client.port, message("/health", more=CLOSE))


def test_garbage_and_large_headers_are_refused(model: LanguageModel) -> None:
    with Served(model, "hi") as client:
        assert b"400" in ask(client.port, b"\x16\x03\x01\x00\xff garbage\r\n\r\n").split(b"\r\n")[0]
        large = message("/health", more=f"X-Large: {'a' * 100_000}\r\n{CLOSE}")
        assert ask(client.port, large).split()[1] in (b"400", b"431")
        assert b"200 OK" in ask(client.port, message("/health", more=CLOSE))


def test_pings_keep_a_stream_open(model: LanguageModel) -> None:
    go = threading.Event()
    limits = ServerLimits(ping_s=1)
    served = Served(model, before_call=lambda number: go.wait(20) and None, limits=limits)
    with served as client:
        data = message("/v1/completions", {"prompt": "a", "max_tokens": 1, "stream": True}, CLOSE)
        with connection(client.port, data) as opened:
            text = b""
            while b": ping" not in text:
                text += opened.recv(1 << 16)
            go.set()
            assert b"data: [DONE]" in received(opened)


LARGE = 12 << 20
"""The size of a body that no buffer of a connection holds."""


@pytest.mark.parametrize("more", [CLOSE, ""])
def test_answers_reach_clients_that_still_send(model: LanguageModel, more: str) -> None:
    """The body is too large, or the key is missing, and the client sends all before it reads."""
    key = "a-key-of-sixteen"
    with Served(model, "hi", api_keys=[key]) as client:
        for status, line in ((b"413", f"Authorization: Bearer {key}\r\n"), (b"401", "")):
            head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n"
            with connection(client.port, f"{head}{line}{more}\r\n".encode()) as opened:
                begun = opened.recv(12, socket.MSG_PEEK)  # the answer is there before the body
                assert begun == b"HTTP/1.1 " + status
                opened.sendall(b" " * LARGE)
                answer = b""
                while b'"error"' not in answer:
                    answer += opened.recv(1 << 16)
                assert answer.startswith(begun)


def test_few_refused_clients_send_at_the_same_time(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering_transport, "IDLE_S", 60.0)
    monkeypatch.setattr(lingering_transport, "MOST_LINGERING", 1)
    with Served(model, "hi") as client:
        head = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n{CLOSE}\r\n".encode()
        for _ in range(2):  # the place is free again once the first client has left
            with connection(client.port, head) as first:
                assert received(first).startswith(b"HTTP/1.1 405")
                with connection(client.port, head) as second:
                    assert received(second).startswith(b"HTTP/1.1 405")
                    end = time.monotonic() + 20
                    with pytest.raises(ConnectionError):
                        while time.monotonic() < end:
                            second.sendall(b" ")
                            time.sleep(0.01)
                for _ in range(3):
                    first.sendall(b" ")
                    time.sleep(0.01)


def test_refused_clients_cannot_send_forever(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering_transport, "IDLE_S", 0.2)
    monkeypatch.setattr(lingering_transport, "MOST_S", 0.5)
    with Served(model, "hi") as client:
        head = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n{CLOSE}\r\n".encode()
        with connection(client.port, head) as idle, connection(client.port, head) as busy:
            assert received(idle).startswith(b"HTTP/1.1 405")
            end = time.monotonic() + 20
            with pytest.raises(ConnectionError):
                while time.monotonic() < end:
                    busy.sendall(b" ")
                    time.sleep(0.01)
            with pytest.raises(ConnectionError):
                while time.monotonic() < end:
                    idle.sendall(b" ")
                    time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_answers_that_the_end_of_the_server_cuts_are_errors(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """A step does not end within the time that running answers have."""
    monkeypatch.setattr(http_server, "SHUTDOWN_S", 1)
    gate, reached = threading.Event(), threading.Event()

    def wait(calls: int) -> None:
        if calls > 2:
            reached.set()
            gate.wait(30)

    with ThreadPoolExecutor(1) as pool:
        with Served(model, before_call=wait) as client:
            body = chat(max_tokens=50, stream=stream)
            answer = pool.submit(client.post, "/v1/chat/completions", json=body)
            assert reached.wait(30)
            threading.Timer(2, gate.set).start()  # after the requests, before the engine ends
        cut = answer.result(30)
    if stream:
        assert cut.status_code == 200
        *_, last = [line for line in cut.text.split("\n") if line.startswith("data: ")]
        error = json.loads(last.removeprefix("data: "))["error"]
    else:
        assert cut.status_code == 503 and cut.headers["Retry-After"] == "5"
        error = cut.json()["error"]
    assert error["code"] == "server_closed" and error["type"] == "server_error"
