"""Chats about pictures: answers equal those of graphs of the whole text, whatever is reused."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from vision.chats import MARKERS, TOP, Oracle, chat_model, encoder, picture

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import MessageError, ModelFormatError
from vksched.generation.batching.token_stream import TokenStream
from vksched.generation.completion import CompletionRequest
from vksched.generation.pictures.prompt_pictures import is_picture_id, text_ids
from vksched.generation.text_stream import TextStream

pytestmark = pytest.mark.one_set

GREEDY = vs.Sampling(temperature=0)
N = 4


class Talk:
    """A chat, and the oracle of its answers."""

    def __init__(self, sched: vs.Scheduler, folder: Path) -> None:
        golden, self.vision = encoder()
        self.model = chat_model(golden, folder)
        self.chat = vs.Chat(sched, self.model, projector=self.vision)
        self.oracle = Oracle(sched, self.model, self.vision)

    def answer(self, *messages: dict[str, object]) -> TextStream:
        stream = self.chat.generate(list(messages), N, GREEDY)
        "".join(stream)
        return stream

    def logprobs(self, *messages: dict[str, object]) -> tuple[NDArray, TokenStream]:
        """Return the log-probabilities of the most likely tokens of each place of an answer."""
        found = self.chat._encoder.encode_prompt(list(messages))
        pictures = self.chat._encode_pictures(found)
        request = CompletionRequest(tuple(found.tokens), N, GREEDY, logprobs=TOP, pictures=pictures)
        stream = TokenStream(self.chat._core.submit(request), self, self.chat._core.step)
        tops = [[chance for _, chance in each.logprobs.top] for each in stream if each.logprobs]
        return np.array(tops), stream

    def wanted(self, *parts: str | NDArray) -> tuple[list[int], list[NDArray]]:
        """Return the answer to one message of the user with parts, and its log-probabilities; see
        `Oracle.greedy`.
        """
        return self.oracle.greedy(self.prompt(*parts), N)

    def prompt(self, *parts: str | NDArray) -> list[int | NDArray]:
        encode, out = self.model.tokenizer.encode, []
        text = "<|im_start|>user\n"
        for part in parts:
            if isinstance(part, str):
                text += part
            else:
                out += [*encode(f"{text}\n\n{MARKERS[0]}", special=True), part]
                text = f"{MARKERS[1]}\n\n"
        return [*out, *encode(f"{text}<|im_end|><|im_start|>", special=True)]


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    pytest.importorskip("PIL.Image", reason="pictures need the extra 'vision'")
    with vs.Scheduler(["cpu"]) as sched:
        yield Talk(sched, tmp_path_factory.mktemp("chat"))


def user(*parts: object) -> dict[str, object]:
    listed = [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts]
    return {"role": "user", "content": listed}


def shown(array: NDArray) -> dict[str, object]:
    return {"type": "image", "image": array}


def png(array: NDArray) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(array).save(data, "png")
    return data.getvalue()


def linked(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_answers_equal_those_of_the_whole_text(talk: Talk, tmp_path: Path) -> None:
    first, second = picture(1), picture(2)
    wanted, chances = talk.wanted("he", first, "sees", second, "hel")
    (tmp_path / "p.png").write_bytes(png(second))
    data = f"data:image/png;base64,{base64.b64encode(png(first)).decode()}"
    answer = talk.answer(user("he", linked(data), "sees", linked(str(tmp_path / "p.png")), "hel"))
    assert list(answer.tokens) == wanted
    ids = answer.prompt
    assert sum(map(is_picture_id, ids)) == 8
    texts = [each for each in talk.prompt("he", first, "sees", second, "hel") if type(each) is int]
    assert text_ids(ids) == texts
    # the same pixels as an array: nothing is encoded or computed again
    again = talk.answer(user("he", shown(first), "sees", shown(second), "hel"))
    assert list(again.tokens) == wanted and again.prompt == ids
    assert again._state.stream is not None
    assert again._state.stream.cached_tokens == len(ids) - 1
    talk.chat._core.truncate(0, 0)
    message = user("he", shown(first), "sees", shown(second), "hel")
    np.testing.assert_allclose(talk.logprobs(message)[0], chances, rtol=1e-4, atol=1e-4)


def test_rows_of_another_picture_are_never_reused(talk: Talk) -> None:
    first, second = picture(1), picture(3)
    wanted = [talk.wanted(each, "he")[1] for each in (first, second)]
    assert np.abs(np.subtract(*wanted)).max() > 0.01
    prompts: list[tuple[int, ...]] = []
    talk.chat._core.truncate(0, 0)
    for each, chances in zip((first, second, first), (*wanted, wanted[0]), strict=True):
        found, stream = talk.logprobs(user(shown(each), "he"))
        np.testing.assert_allclose(found, chances, rtol=1e-4, atol=1e-4)
        start = next(at for at, each in enumerate(stream.request.prompt) if is_picture_id(each))
        assert stream.cached_tokens == (start if prompts else 0)
        prompts.append(stream.request.prompt)
    assert text_ids(prompts[0]) == text_ids(prompts[1]) and prompts[0] != prompts[1]


def test_a_prompt_that_ends_in_a_picture_reads_it_whole_again(talk: Talk) -> None:
    talk.chat._core.truncate(0, 0)
    found = talk.chat._encoder.encode_prompt([user(shown(picture(1)), "hel")])
    place = next(at for at, each in enumerate(found.tokens) if is_picture_id(each))
    rows = talk.chat._encode_pictures(found)
    tokens = tuple(found.tokens[: place + 4])
    for cached in (0, place):
        request = CompletionRequest(tokens, 1, GREEDY, pictures=rows)
        state = talk.chat._core.submit(request)
        while talk.chat._core.step():
            pass
        assert state.cached_tokens == cached and state.generated == 1


def test_errors_name_the_place(talk: Talk, tmp_path: Path) -> None:
    (tmp_path / "none.png").write_bytes(b"no picture")
    for part, field, text in (
        (linked("https://example.org/p.png"), ".image_url.url", "no addresses are fetched"),
        (linked("data:image/png,abc"), ".image_url.url", "a data: URL such as"),
        (linked("data:image/png;base64,a"), ".image_url.url", "valid base64"),
        (linked(str(tmp_path / "none.png")), ".image_url.url", "a picture as PNG, JPEG"),
        (shown(np.zeros((2, 2), np.uint8)), ".image", "pixels .height, width, 3. of uint8"),
        ({"type": "image"}, ".image", "a data: URL, got None"),
        ({"type": "video"}, ".type", "a part of type text, got 'video'"),
    ):
        with pytest.raises(MessageError, match=text) as caught:
            talk.chat.encode([user("he", part)])
        assert caught.value.field == f"messages[0].content[1]{field}"
    with vs.Scheduler(["cpu"]) as sched:
        plain = vs.Chat(sched, talk.model)
        with pytest.raises(MessageError, match="got 'image'; models read text only without a proj"):
            plain.encode([user(shown(picture(1)))])


def test_a_projector_of_another_model_is_refused(talk: Talk) -> None:
    with pytest.raises(ModelFormatError, match="language model of gemma3 with width 32 for this"):
        talk.vision.check_model("qwen2", 32)
    with pytest.raises(ModelFormatError, match="got gemma3 with width 64; try the projector"):
        talk.vision.check_model("gemma3", 64)
