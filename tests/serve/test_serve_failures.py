"""Failures while answers run: errors of steps, and the ends of answers."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("starlette", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from served import Served, chat, error_of, tiny_model, wait_until

import vksched as vs
from vksched.importers.gguf.model import LanguageModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


DECODE = 4
"""The number of a call that is a decode step."""


def test_an_unexpected_error_of_a_step_is_logged_and_not_sent(
    model: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(number: int) -> None:
        if number >= DECODE:
            raise RuntimeError("/secret/path")

    served = Served(model, "hello", before_call=fail)
    with served as client, caplog.at_level(logging.ERROR, "vksched.serve"):
        response = client.post("/v1/chat/completions", json=chat())
        served.steps.before_call = None
    assert response.status_code == 500
    assert "secret" not in response.text and "RuntimeError" not in response.text
    assert served.steps.log[DECODE][0] == "decode"
    [record] = [each for each in caplog.records if each.name == "vksched.serve"]
    assert record.exc_info and isinstance(record.exc_info[1], Exception)
    cause = record.exc_info[1].__cause__
    assert isinstance(cause, RuntimeError) and cause.__traceback__ is not None


def test_a_failed_device_in_a_decode_step(model: LanguageModel) -> None:
    def fail(number: int) -> None:
        if number >= DECODE:
            raise vs.DeviceError("[simulated] the device failed")

    served = Served(model, "hello", before_call=fail)
    with served as client:
        response = client.post("/v1/chat/completions", json=chat())
        served.steps.before_call = None
    assert served.steps.log[DECODE][0] == "decode"
    assert (response.status_code, error_of(response)["code"]) == (503, "device_error")
    assert int(response.headers["Retry-After"]) >= 1


def finished(served: Served) -> dict[str, int]:
    """Return the ended requests by their reasons, once the first one has ended."""
    wait_until(lambda: bool(served.engine.counters().finished))
    return dict(served.engine.counters().finished)


@pytest.mark.parametrize("stream", (False, True))
def test_a_stop_string_is_no_disconnect_in_metrics(model: LanguageModel, stream: bool) -> None:
    served = Served(model, "hello world " * 25)
    with served as client:
        body = {"prompt": "abc", "max_tokens": 300, "temperature": 0, "stop": "wor"}
        response = client.post("/v1/completions", json={**body, "stream": stream})
        assert response.status_code == 200 and '"finish_reason":"stop"' in response.text
        assert finished(served) == {"stop": 1}


def test_a_client_that_leaves_is_a_closed_request_in_metrics(model: LanguageModel) -> None:
    served = Served(model, "hello world " * 25, before_call=lambda _: time.sleep(0.005))
    with served as client:
        data = json.dumps({"prompt": "abc", "max_tokens": 390, "stream": True}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", client.port)) as connection:
            connection.sendall(head.encode() + data)
            assert connection.recv(100)
        assert finished(served) == {"closed": 1}


@pytest.mark.parametrize("stream", (False, True))
def test_an_answer_that_the_end_of_the_engine_cuts_is_an_error(
    model: LanguageModel, stream: bool
) -> None:
    is_reached, goes_on = threading.Event(), threading.Event()

    def wait(number: int) -> None:
        if number == DECODE:
            is_reached.set()
            assert goes_on.wait(60)

    served = Served(model, "hello world " * 25, before_call=wait)
    with served as client, ThreadPoolExecutor(2) as pool:
        body = chat(max_tokens=300, stream=stream)
        asked = pool.submit(client.post, "/v1/chat/completions", json=body)
        assert is_reached.wait(60)
        closing = pool.submit(served.engine.close)
        wait_until(lambda: served.engine._loop._is_stopped)
        goes_on.set()
        closing.result(60)
        response = asked.result(60)
    if stream:
        last = json.loads(response.text.strip().rpartition("data: ")[2])
        assert last["error"]["code"] == "server_closed"
    else:
        assert (response.status_code, error_of(response)["code"]) == (503, "server_closed")
