"""Requests with pictures: their place in the queue comes first, and their bytes are bounded."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from served import Client, chat, error_of, running, wait_until
from test_serve_pictures import ask, link
from vision.chats import chat_model, encoder, picture

import vksched as vs
from vksched.common.errors import QueueFull
from vksched.serve.api_error import ApiError
from vksched.serve.limits import ServerLimits
from vksched.serve.picture_admission import PictureAdmission
from vksched.serve.server_state import ServerState

pytestmark = pytest.mark.one_set


class Engine:
    """An engine with some places in its queue."""

    def __init__(self, room: int) -> None:
        self.room = room

    def queue_full(self) -> QueueFull:
        return QueueFull("[engine] full", 3.0)


def enter(admission: PictureAdmission, room: int, count: int = 1, size: int = 0) -> Any:
    return admission.enter(Engine(room), count, size)  # type: ignore[arg-type]


def test_places_of_the_queue_are_taken_until_the_engine_has_the_request() -> None:
    admission = PictureAdmission(100)
    first = enter(admission, 3, 2)
    with pytest.raises(QueueFull):
        enter(admission, 3, 2)
    second = enter(admission, 3)
    admission.check_queue(Engine(5), 2)  # type: ignore[arg-type]
    with pytest.raises(QueueFull):
        admission.check_queue(Engine(4), 2)  # type: ignore[arg-type]
    first.release_queue()
    second.leave()
    admission.check_queue(Engine(0), 2)  # type: ignore[arg-type] # the engine itself refuses it


def test_bytes_of_all_requests_are_bounded() -> None:
    admission = PictureAdmission(100)
    first, second = enter(admission, 9, size=40), enter(admission, 9, size=30)
    with pytest.raises(ApiError) as caught:
        second.add(31)
    assert caught.value.status == 429 and caught.value.retry_after_s == 1
    first.add(-20)
    second.add(31)
    assert admission.used_bytes == 81
    with pytest.raises(ApiError) as caught:
        first.add(81)
    assert caught.value.status == 413 and caught.value.code == "pictures_too_large"
    with pytest.raises(ApiError):
        enter(admission, 9, size=20)
    second.leave()
    with pytest.raises(ApiError, match="the client left"):
        second.add(1)
    first.leave()
    dropped = enter(admission, 9, size=70)
    assert admission.used_bytes == 70
    del dropped
    gc.collect()
    assert admission.used_bytes == 0


@pytest.fixture(scope="module")
def state() -> Iterator[tuple[Client, ServerState]]:
    """A server with one slot, and one place in its queue."""
    pytest.importorskip("PIL.Image", reason="pictures need the extra 'vision'")
    golden, vision = encoder()
    model = chat_model(golden)
    with vs.Scheduler(["cpu"]) as sched:
        app = vs.serve.app(model, sched, slots=1, max_queue=1, projector=vision)
        with running(app) as port:
            yield Client(port), app.state.server
        app.close()


class Held:
    """Calls a method only once it may: each call waits."""

    def __init__(self, method: Callable[..., object]) -> None:
        self.may = threading.Event()
        self.calls = 0
        self._method = method

    def __call__(self, *args: Any, **options: Any) -> object:
        self.calls += 1
        assert self.may.wait(30)
        return self._method(*args, **options)


@pytest.mark.parametrize("method", ["open", "encode"])
def test_a_full_queue_refuses_pictures_before_they_are_read(
    state: tuple[Client, ServerState], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Two requests have all places while one of their pictures is read; others are refused."""
    client, server = state
    pictures = server.service.pictures
    held = Held(getattr(pictures, method))
    monkeypatch.setattr(pictures, method, held)
    text = chat("he", max_tokens=2)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, client, link(picture(3)))
        wait_until(lambda: held.calls == 1)
        second = pool.submit(ask, client, link(picture(4)))
        wait_until(lambda: len(server.admission._queued) == 2)
        try:
            used = server.admission.used_bytes
            assert used > 1000
            for body in ({"n": 1}, {"n": 2}):
                refused = ask(client, link(picture(5)), **body)
                assert refused.status_code == 429 and refused.headers["Retry-After"]
                assert error_of(refused)["code"] == "queue_full"
            refused = client.post("/v1/chat/completions", json=text)
            assert refused.status_code == 429 and error_of(refused)["code"] == "queue_full"
            assert held.calls <= 2 and server.admission.used_bytes == used
        finally:
            held.may.set()
        assert first.result().status_code == second.result().status_code == 200
    wait_until(lambda: not server.admission.used_bytes)
    assert client.post("/v1/chat/completions", json=text).status_code == 200


def test_pictures_have_bytes_until_the_answer_ends(
    state: tuple[Client, ServerState], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = state
    pixels = 4 * 3 * server.service.pictures.projector.pixels_shape[1] ** 2  # type: ignore[union-attr]
    monkeypatch.setattr(server.admission, "most_bytes", 3 * pixels)
    assert ask(client, link(picture(1)), stream=True).status_code == 200
    wait_until(lambda: not server.admission.used_bytes)
    many = ask(client, *[link(picture(seed)) for seed in range(4)])
    assert many.status_code == 413 and error_of(many)["code"] == "pictures_too_large"
    assert error_of(many)["param"] == "messages"
    other = server.admission.enter(server.service.engine, 1, 3 * pixels)
    refused = ask(client, link(picture(1)))
    assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
    assert error_of(refused)["code"] == "queue_full"
    other.leave()
    assert not server.admission.used_bytes
    wrong = ask(client, link(picture(1)), {"type": "text", "text": "x" * 4000})
    assert wrong.status_code == 400
    wait_until(lambda: not server.admission.used_bytes)


def test_a_picture_that_takes_long_is_refused(
    state: tuple[Client, ServerState], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = state
    limits = ServerLimits()
    bounds = limits.pictures, limits.picture_pixels
    server.service.limit_pictures(*bounds, 0.0)
    try:
        refused = ask(client, link(picture(6)))
    finally:
        server.service.limit_pictures(*bounds, limits.picture_timeout_s)
    assert refused.status_code == 400
    assert error_of(refused)["param"] == "messages[0].content[0].image_url.url"
    assert "decoded within 0 s" in error_of(refused)["message"]
