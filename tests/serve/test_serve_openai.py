"""The official openai package against a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("openai", reason="the openai package is not installed")
pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

import openai
from served import NAME, Served, tiny_model

import vksched as vs
from vksched.importers.gguf.model import LanguageModel

KEY = "a-key-of-sixteen"
ANSWER = "hello é!"
MESSAGES: Any = [{"role": "user", "content": "hey"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def client(model: LanguageModel) -> Iterator[Any]:
    served = Served(model, ANSWER, api_keys=[KEY])
    with vs.Scheduler(["cpu"]) as sched:
        served.service.embedder = vs.Embedder(sched, model, "mean", 64)
        with served as opened, connect(opened.port) as connected:
            yield connected


def connect(port: int, key: str = KEY) -> Any:
    url = f"http://127.0.0.1:{port}/v1"
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)


def test_chat(client: Any) -> None:
    answer = client.chat.completions.create(
        model=NAME, messages=MESSAGES, temperature=0, logprobs=True, top_logprobs=2
    )
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
    assert len(choice.logprobs.content[0].top_logprobs) == 2
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream(client: Any) -> None:
    chunks = list(
        client.chat.completions.create(
            model=NAME, messages=MESSAGES, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == ANSWER
    assert chunks[-1].usage.completion_tokens > 3
    with client.chat.completions.stream(model=NAME, messages=MESSAGES, temperature=0) as stream:
        assert stream.get_final_completion().choices[0].message.content == ANSWER


def test_text_completions(client: Any) -> None:
    answer = client.completions.create(
        model=NAME, prompt=["a", "b"], temperature=0, max_tokens=3, logprobs=1, echo=True
    )
    assert answer.choices[1].text.startswith("bhe")
    assert answer.choices[0].logprobs.token_logprobs[0] is None


def test_a_schema(model: LanguageModel) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with Served(model) as opened, connect(opened.port) as client:
        answer = client.chat.completions.create(model=NAME, messages=MESSAGES, response_format=form)
        assert json.loads(answer.choices[0].message.content) == {"a": 1}


def test_embeddings_and_models(client: Any) -> None:
    vectors = client.embeddings.create(model=NAME, input=["a", "hello"]).data
    assert len(vectors) == 2 and sum(x * x for x in vectors[0].embedding) == pytest.approx(1)
    assert [each.id for each in client.models.list().data] == [NAME]


def test_errors(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model=NAME, messages=MESSAGES, temperature=-1)
    assert wrong.value.param == "temperature" and "got -1" in wrong.value.message
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    port = int(str(client.base_url).split(":")[2].split("/")[0])
    with connect(port, "wrong") as other, pytest.raises(openai.AuthenticationError):
        other.models.list()
