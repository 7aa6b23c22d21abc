"""Pictures in /v1/chat/completions: data: URLs of a message."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import Client, Served, running, tiny_model
from vision.chats import chat_model, encoder, picture

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.serve.limits import ServerLimits

pytestmark = pytest.mark.one_set

LIMITS = ServerLimits(pictures=2, picture_pixels=1000)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Client, vs.Chat]]:
    pytest.importorskip("PIL.Image", reason="pictures need the extra 'vision'")
    golden, vision = encoder()
    model = chat_model(golden)
    with vs.Scheduler(["cpu"]) as sched:
        chat = vs.Chat(sched, model, projector=vision)
        app = vs.serve.app(model, sched, slots=2, projector=vision, limits=LIMITS)
        with running(app, LIMITS) as port:
            yield Client(port), chat
        app.close()


def link(array: NDArray) -> dict[str, object]:
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(array).save(data, "png")
    return linked(f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}")


def linked(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def ask(client: Client, *parts: object, **more: Any) -> Any:
    body = {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 3, **more}
    return client.post("/v1/chat/completions", json=body)


def test_answers_equal_those_of_a_chat(served: tuple[Client, vs.Chat]) -> None:
    client, chat = served
    text = {"type": "text", "text": "hel"}
    for seeds in ((1, 2), (2, 1), (1, 2)):
        parts = [link(picture(seed)) for seed in seeds]
        stream = chat.generate(
            [{"role": "user", "content": [*parts, text]}], 3, vs.Sampling(temperature=0)
        )
        wanted = "".join(stream)
        answer = ask(client, *parts, text, temperature=0, n=2)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert [each["message"]["content"] for each in body["choices"]] == [wanted] * 2
        assert body["usage"]["prompt_tokens"] == len(stream.prompt)


def test_wrong_pictures_are_named(served: tuple[Client, vs.Chat], tmp_path: Path) -> None:
    client, _ = served
    place = "messages[0].content[1].image_url.url"
    (tmp_path / "p.png").write_bytes(b"x")
    for url, text in (
        ("https://example.org/p.png", "no addresses are fetched"),
        (str(tmp_path / "p.png"), "expected a data: URL such as"),
        (f"file://{tmp_path / 'p.png'}", "no addresses are fetched"),
        ("data:image/png;base64,AAAA", "a picture as PNG, JPEG"),
        ("data:image/png;base64,A", "valid base64"),
        (link(np.zeros((40, 40, 3), np.uint8))["image_url"]["url"], "of 1 to 1000 pixels"),  # type: ignore[index]
    ):
        answer = ask(client, {"type": "text", "text": "he"}, linked(url))
        error = answer.json()["error"]
        assert answer.status_code == 400 and error["param"] == place and text in error["message"]
    answer = ask(client, *[link(picture(1))] * 3)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[2]"
    assert "at most 2 pictures" in answer.json()["error"]["message"]


def test_templates_show_no_pictures(served: tuple[Client, vs.Chat]) -> None:
    messages = [{"role": "user", "content": [linked("data:image/png;base64,AAEC")]}]
    refused = served[0].post("/apply-template", json={"messages": messages})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "messages"
    assert "messages without pictures" in refused.json()["error"]["message"]


def test_a_server_without_a_projector_file_says_it(tmp_path: Path) -> None:
    with Served(tiny_model(tmp_path)) as client:
        answer = ask(client, link(picture(1)))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages[0].content[0].type"
    assert "without a projector file (mmproj)" in answer.json()["error"]["message"]
