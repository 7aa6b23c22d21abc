"""/completion: llama-server's own API over the engine of /v1/completions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from served import NAME, Client, Served, error_of, tiny_model

from vksched.generation.completion import CompletionRequest
from vksched.generation.sampling import Sampling
from vksched.importers.gguf.model import LanguageModel

GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def served(model: LanguageModel) -> Served:
    return Served(model)


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Client]:
    with served as opened:
        yield opened


def complete(client: Client, prompt: Any, **more: Any) -> Any:
    response = client.post("/completion", json={"prompt": prompt, "n_predict": 6, **GREEDY, **more})
    assert response.status_code == 200, response.text
    return response.json()


def events_of(client: Client, **body: Any) -> list[dict[str, Any]]:
    """Return the objects of a stream."""
    sent = {"prompt": "hello", "n_predict": 6, **GREEDY, **body, "stream": True}
    text = client.post("/completion", json=sent).text
    lines = [line for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line[6:]) for line in lines]


def test_an_answer_has_the_tokens_and_the_defaults_of_llama_server(
    client: Client, served: Served
) -> None:
    tokenizer = served.service.tokenizer
    prompt = tuple(tokenizer.encode("hello", bos=True))
    for more, sampling in (
        (GREEDY, Sampling(temperature=0)),
        ({"temperature": None}, Sampling(0.8, 40, 0.95, 0.05, seed=7)),
    ):
        tokens = [o.token for o in served.engine.submit(CompletionRequest(prompt, 6, sampling))]
        answer = complete(client, "hello", seed=7, return_tokens=True, **more)
        assert answer["tokens"] == tokens and answer["content"] == tokenizer.decode(tokens)
    assert (answer["model"], answer["stop"], answer["stop_type"]) == (NAME, True, "limit")
    assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (6, len(prompt))
    assert answer["generation_settings"]["top_k"] == 40 and not answer["truncated"]
    assert answer["generation_settings"]["seed"] == 7 and answer["prompt"].endswith("hello")
    timings = answer["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == len(prompt) and timings["predicted_n"] == 6
    assert timings["prompt_ms"] > 0 and timings["predicted_per_second"] >= 0
    assert complete(client, list(prompt), seed=7)["content"] == complete(client, "hello")["content"]


def test_prompts_of_texts_and_tokens(client: Client, served: Served) -> None:
    ids = served.service.tokenizer.encode(" hey", bos=False)
    one = complete(client, ["hello", *ids])
    assert one["content"] == complete(client, "hello hey")["content"]
    several = complete(client, ["hello", "hey", ["hello", *ids]])
    assert [each["index"] for each in several] == [0, 1, 2]
    assert [each["content"] for each in several] == [
        complete(client, prompt)["content"] for prompt in ("hello", "hey", "hello hey")
    ]


def test_a_stream_ends_with_the_whole_record(client: Client) -> None:
    *pieces, last = events_of(client, n_probs=2)
    whole = complete(client, "hello", n_probs=2)
    assert "".join(piece["content"] for piece in pieces) == whole["content"]
    assert not any(piece["stop"] for piece in pieces) and last["stop"] and last["content"] == ""
    names = {"content", "tokens", "tokens_predicted", "stop_type", "timings", "prompt"}
    assert names <= last.keys() and last["tokens_predicted"] == 6
    probabilities = [each for piece in pieces for each in piece["completion_probabilities"]]
    assert probabilities == whole["completion_probabilities"] and len(probabilities) == 6
    first = probabilities[0]
    assert len(first["top_logprobs"]) == 2 and first["top_logprobs"][0]["id"] == first["id"]
    assert bytes(first["bytes"]).decode(errors="replace") == first["token"]
    assert first["logprob"] <= 0


def test_stop_strings_and_selected_fields(model: LanguageModel) -> None:
    with Served(model, "one two three") as client:
        found = complete(client, "hey", n_predict=-1, stop=["zero", "two"])
        assert (found["content"], found["stop_type"], found["stopping_word"]) == (
            "one ",
            "word",
            "two",
        )
        ended = complete(client, "hey", n_predict=-1)
        assert (ended["content"], ended["stop_type"]) == ("one two three", "eos")
        fields = ["content", "generation_settings/n_predict", "no such field"]
        selected = complete(client, "hey", response_fields=fields)
        assert selected == {"content": "one tw", "generation_settings/n_predict": 6}


def test_a_bias_of_tokens_and_texts(model: LanguageModel) -> None:
    with Served(model, "one") as client:
        first, *_ = complete(client, "hey", return_tokens=True)["tokens"]
        for bias in ([[first, False]], {str(first): -100}, [["o", False]], {"o": -100}):
            other = complete(client, "hey", return_tokens=True, logit_bias=bias)["tokens"]
            assert first not in other


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image_data", [{"data": "AAEC", "id": 1}]),
        ("logit_bias", [[3, True]]),
        ("logit_bias", [[3]]),
        ("logit_bias", 3),
        ("logit_bias", [[1 << 20, 1]]),
        ("mirostat", 2),
        ("n", 2),
        ("n_probs", -1),
        ("prompt", []),
        ("prompt", [1 << 20]),
        ("prompt", ["hello", 1 << 20]),
        ("temperature", "hot"),
    ],
)
def test_wrong_values_name_their_field(client: Client, field: str, value: object) -> None:
    response = client.post("/completion", json={"prompt": "hello", field: value})
    assert response.status_code == 400
    assert str(error_of(response)["param"]).partition(".")[0] == field
