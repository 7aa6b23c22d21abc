"""The chat page in a real browser: it streams, stops, and shows speed and devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from chromium import Chromium, find_chromium
from served import Served, tiny_model, wait_until

import vksched as vs
from vksched.generation.completion import CompletionRequest, CompletionStream
from vksched.importers.gguf.model import LanguageModel

BOXES = "[...document.querySelectorAll('.message')].map((b) => [b.className, b.textContent])"
ANSWER = "hello <b>world</b> é"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    if find_chromium() is None:
        pytest.skip("no Chromium or Chrome is installed")
    pytest.importorskip("websockets", reason="the browser is driven over a WebSocket")
    try:
        started = Chromium()
    except OSError as error:
        pytest.skip(f"Chromium does not start here: {error}")
    with started:
        yield started


def say(page: Any, text: str) -> None:
    page.run("document.getElementById('temperature').value = 0")
    page.run(f"document.getElementById('prompt').value = {text!r}")
    page.run("document.getElementById('form').requestSubmit()")


def shown(page: Any) -> list[list[str]]:
    boxes: list[list[str]] = page.run(BOXES)
    return boxes


def test_a_conversation(browser: Chromium, model: LanguageModel) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        served = Served(model, ANSWER, scheduler=sched)
        with served as client:
            page = browser.open(f"http://127.0.0.1:{client.port}/")
            say(page, "hi")
            page.wait_until(f"({BOXES}).length === 2 && running === null")
            assert shown(page) == [["message user", "hi"], ["message assistant", ANSWER]]
            assert "tokens/s" in page.run("document.getElementById('speed').textContent")
            page.wait_until("document.querySelectorAll('#devices meter').length > 0")
            assert "cpu" in page.run("document.getElementById('devices').textContent")
            assert page.run("document.getElementById('model').textContent") == "tiny"
            say(page, "again")
            page.wait_until(f"({BOXES}).length === 4 && running === null")
            assert shown(page)[3] == ["message assistant", ANSWER]
            assert page.run("messages.length") == 4
            assert page.complaints == []
            assert all(url.startswith(f"http://127.0.0.1:{client.port}/") for url in page.requests)
            page.close()


def test_stop_cancels_the_answer(
    browser: Chromium, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Semaphore(40)

    def before_call(number: int) -> None:
        gate.acquire(timeout=20)

    served = Served(model, "he" * 100, before_call=before_call)
    streams: list[CompletionStream] = []
    submit = served.engine.submit

    def submit_noted(request: CompletionRequest, *about: Any) -> CompletionStream:
        streams.append(submit(request, *about))
        return streams[-1]

    monkeypatch.setattr(served.engine, "submit", submit_noted)
    with served as client:
        page = browser.open(f"http://127.0.0.1:{client.port}/")
        say(page, "hi")
        page.wait_until(f"({BOXES}).length === 2 && ({BOXES})[1][1].length > 3")
        page.run("document.getElementById('stop').click()")
        page.wait_until("running === null")
        wait_until(lambda: streams[0].finish_reason == "closed")  # not before it is cancelled
        gate.release(400)
        wait_until(lambda: served.engine.counters().finished == {"closed": 1})
        text = shown(page)[1][1]
        assert text and ("he" * 100).startswith(text) and len(text) < 200
        page.close()


def test_an_error_is_shown(browser: Chromium, model: LanguageModel) -> None:
    with Served(model, ANSWER, api_keys=["a-key-of-sixteen"]) as client:
        page = browser.open(f"http://127.0.0.1:{client.port}/")
        say(page, "hi")
        page.wait_until(f"({BOXES}).length === 3 && running === null")
        assert "Authorization" in shown(page)[2][1] and shown(page)[2][0] == "message error"
        page.run("document.getElementById('key').value = 'a-key-of-sixteen'")
        say(page, "hi")
        page.wait_until(f"({BOXES}).length === 5 && running === null")
        assert shown(page)[4] == ["message assistant", ANSWER]
        page.close()
