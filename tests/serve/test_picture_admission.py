"""Requests with pictures: their place in the queue comes first, and their bytes are bounded."""

from __future__ import annotations

import gc
import json
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from served import Client, chat, error_of, running, wait_until
from test_serve_pictures import ask, link
from vision.chats import chat_model, encoder, picture

import vksched as vs
from vksched.common.errors import QueueFull
from vksched.generation.batching.reservations import Reservation, Reservations
from vksched.generation.conversation.picture_parts import source_size
from vksched.serve.api_error import ApiError
from vksched.serve.generation_job import GenerationJob
from vksched.serve.limits import ServerLimits
from vksched.serve.picture_admission import PictureAdmission, PicturePlace
from vksched.serve.schemas.chat import ChatRequest
from vksched.serve.server_state import ServerState

pytestmark = pytest.mark.one_set


class Engine:
    """An engine with some places in its queue."""

    def __init__(self, room: int = 9) -> None:
        about = (lambda: room), lambda: QueueFull("[engine] full", 3.0)
        self.reservations = Reservations(*about)

    def reserve(self, count: int) -> Reservation:
        return self.reservations.reserve(count)


def enter(admission: PictureAdmission, engine: Engine, count: int = 1, size: int = 0) -> Any:
    return admission.enter(engine, count, size)  # type: ignore[arg-type]


def test_places_of_the_queue_are_those_of_the_request_until_it_leaves() -> None:
    admission, engine = PictureAdmission(100), Engine(3)
    first = enter(admission, engine, 2)
    with pytest.raises(QueueFull):
        enter(admission, engine, 2)
    second = enter(admission, engine)
    assert engine.reservations.room == 0
    second.leave()
    with pytest.raises(ApiError):
        enter(admission, engine, size=101)
    gc.collect()
    assert engine.reservations.room == 1
    del first
    gc.collect()
    assert engine.reservations.room == 3


def test_bytes_of_all_requests_are_bounded() -> None:
    admission, engine = PictureAdmission(100), Engine()
    first, second = enter(admission, engine, size=40), enter(admission, engine, size=30)
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
        enter(admission, engine, size=20)
    second.leave()
    with pytest.raises(ApiError, match="the client left"):
        second.add(1)
    first.leave()
    dropped = enter(admission, engine, size=70)
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
        wait_until(lambda: server.service.engine.room == 0)
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


def posted(port: int, *parts: object) -> socket.socket:
    """Return a connection that has sent a request."""
    body = json.dumps({"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 2})
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json"
    sender = socket.create_connection(("127.0.0.1", port))
    sender.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    return sender


@pytest.mark.parametrize(("method", "calls"), [("open", 2), ("encode", 1)])
def test_clients_that_leave_free_their_places_at_once(
    state: tuple[Client, ServerState], monkeypatch: pytest.MonkeyPatch, method: str, calls: int
) -> None:
    """Nothing is decoded or encoded for them after the pictures that are being read."""
    client, server = state
    pictures = server.service.pictures
    held = Held(getattr(pictures, method))
    monkeypatch.setattr(pictures, method, held)
    parts = [link(picture(10)), link(picture(11))]
    senders = [posted(client.port, *parts) for _ in range(2)]
    try:
        wait_until(lambda: server.service.engine.room == 0 and held.calls == calls)
        for each in senders:
            each.close()
        wait_until(lambda: server.service.engine.room == 2 and not server.admission.used_bytes)
        text = client.post("/v1/chat/completions", json=chat("he", max_tokens=2))
        assert text.status_code == 200
    finally:
        held.may.set()
    wait_until(lambda: not server.picture_worker._waiting + server.picture_readers._waiting)
    assert held.calls == calls


def test_a_text_does_not_take_the_place_of_pictures(
    state: tuple[Client, ServerState], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request was there first, and waited for a thread."""
    client, server = state
    start = GenerationJob.start
    begin, encode = Held(start), Held(server.service.encode_picture)

    def start_later(job: GenerationJob, *about: Any) -> object:
        return start(job, *about) if about[2] else begin(job, *about)

    monkeypatch.setattr(GenerationJob, "start", start_later)
    monkeypatch.setattr(server.service, "encode_picture", encode)
    others = server.service.engine.reserve(1)
    with ThreadPoolExecutor(2) as pool:
        text = pool.submit(client.post, "/v1/chat/completions", json=chat("he", max_tokens=2))
        wait_until(lambda: begin.calls == 1)
        admitted = pool.submit(ask, client, link(picture(3)))
        wait_until(lambda: encode.calls == 1)
        begin.may.set()
        assert text.result().status_code == 429
        encode.may.set()
        assert admitted.result().status_code == 200
    others.release()


def test_urls_and_pixels_are_dropped_before_their_bytes_are(
    state: tuple[Client, ServerState], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = state
    pictures, add = server.service.pictures, PicturePlace.add
    open_ = pictures.open  # type: ignore[union-attr]
    opened, found = list[weakref.ref[object]](), list[tuple[int, int]]()

    def open_picture(*about: Any) -> object:
        result = open_(*about)
        opened.append(weakref.ref(result))
        return result

    def note(place: PicturePlace, size: int) -> None:
        if size < 0:
            bodies = [each for each in gc.get_objects() if isinstance(each, ChatRequest)]
            urls = sum(source_size(body.messages) for body in bodies)
            found.append((urls, sum(each() is not None for each in opened)))
        add(place, size)

    monkeypatch.setattr(pictures, "open", open_picture)
    monkeypatch.setattr(PicturePlace, "add", note)
    assert ask(client, link(picture(20)), link(picture(21))).status_code == 200
    assert found == [(0, 2), (0, 1), (0, 0)]


def test_wrong_fields_are_found_before_pictures_are_decoded(
    state: tuple[Client, ServerState], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = state
    held = Held(server.service.pictures.open)  # type: ignore[union-attr]
    monkeypatch.setattr(server.service.pictures, "open", held)
    tool = {"type": "function", "function": {"name": "f"}}
    for param, more in (
        ("n", {"n": 100}),
        ("tools", {"tools": [tool], "tool_choice": "required"}),
        ("grammar", {"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"'}),
        ("max_tokens", {"max_completion_tokens": 4}),
        ("logit_bias", {"logit_bias": {"99999999": 1}}),
        ("reasoning_effort", {"reasoning_effort": "low"}),
    ):
        refused = ask(client, link(picture(3)), **more)
        assert refused.status_code == 400 and param in (error_of(refused)["param"] or "")
    assert not held.calls and server.service.engine.room == 2
    assert not server.admission.used_bytes


def test_a_closed_application_encodes_no_further_pictures() -> None:
    pytest.importorskip("PIL.Image", reason="pictures need the extra 'vision'")
    golden, vision = encoder()
    with vs.Scheduler(["cpu"]) as sched, ThreadPoolExecutor(2) as pool:
        app = vs.serve.app(chat_model(golden), sched, slots=1, projector=vision)
        with running(app) as port:
            server: ServerState = app.state.server
            pictures = server.service.pictures
            assert pictures is not None
            held = Held(pictures.encode)
            pictures.encode = held  # type: ignore[method-assign]
            cut = pool.submit(ask, Client(port), link(picture(3)), link(picture(4)))
            wait_until(lambda: held.calls == 1)
            closing = pool.submit(app.close)  # type: ignore[attr-defined]
            wait_until(lambda: server.service._is_closed)
            held.may.set()
            closing.result()
            refused = cut.result()
            assert (refused.status_code, error_of(refused)["code"]) == (503, "server_closed")
            assert held.calls == 1 and not pictures._runs and not pictures._known
            wait_until(lambda: not server.admission.used_bytes)


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
