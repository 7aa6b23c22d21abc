"""Grammars that take forever to compile, or exceed a limit during the answer."""

from __future__ import annotations

import json
import logging
import re
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from served import Served, chat, error_of, tiny_model
from tiny_vocabularies import sentence_piece

from vksched.common.errors import GrammarError
from vksched.importers.gguf.model import LanguageModel
from vksched.importers.gguf.tokenizer.tokenizer import Tokenizer
from vksched.serve.constraints import GrammarCompiler
from vksched.serve.limits import ServerLimits

ENDLESS = {"allOf": [{"type": "integer", "multipleOf": n} for n in (9973, 9967, 9949, 9941)]}
"""llguidance builds an automaton with a state for each remainder of the product."""
TOO_AMBIGUOUS = 'start: x{1,2000}\nx: "a"? "b"? "a"? x?'
"""It compiles, and exceeds llguidance's limit of items after some tokens."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def test_grammars_that_never_compile_are_refused_and_others_go_on(model: LanguageModel) -> None:
    limits = ServerLimits(grammar_timeout_s=0.5)
    with Served(model, "hello", limits=limits) as client:
        answers: list[Any] = []

        def send() -> None:
            body = chat(response_format=schema_format(ENDLESS))
            answers.append(client.post("/v1/chat/completions", json=body))

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert client.post("/v1/chat/completions", json=chat()).status_code == 200
        assert client.post("/tokenize", json={"content": "a"}).status_code == 200
        for thread in threads:
            thread.join()
        assert [each.status_code for each in answers] == [400] * 4
        errors = [error_of(each) for each in answers]
        assert {each["param"] for each in errors} == {"response_format"}
        assert "compiles within 0.5 seconds" in errors[0]["message"]
        body = chat(response_format=schema_format({"enum": ["hello"]}))
        content = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
        assert json.loads(content["content"]) == "hello"


def test_a_child_that_ends_is_replaced(model: LanguageModel) -> None:
    compiler = GrammarCompiler(model.tokenizer, 261)
    try:
        compiler.from_text('start: "a"', "grammar")
        process = compiler._idle[0]._process
        assert process is not None
        process.kill()
        process.wait()
        with pytest.raises(GrammarError) as raised:
            compiler.from_text('start: "b"', "grammar")
        assert raised.value.field == "grammar"
        assert compiler.from_text('start: "b"', "grammar").mask().nonzero()[0].tolist() == (
            model.tokenizer.encode("b")
        )
    finally:
        compiler.close()
    assert compiler._idle[0]._process is None


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ('root ::= "a"{5}', b"a{5}"),
        ('root ::= "hey" | "he yh" | " hey"', b"hey|he yh| hey"),
        ('root ::= [0-9]+ " h" "x"{3}', b"[0-9]+ hxxx"),
    ],
)
def test_forced_texts_have_no_space_that_the_tokenizer_adds(text: str, pattern: bytes) -> None:
    """A tokenizer of sentencepiece begins a text with a space; one within an answer has none."""
    tokenizer = Tokenizer(sentence_piece(eos_token_id=2, bos_token_id=1))
    compiler = GrammarCompiler(tokenizer, tokenizer.size)
    try:
        for seed in range(20):
            rng = np.random.default_rng(seed)
            constraint, answer = compiler.from_text(text, "grammar"), b""
            while not constraint.is_finished:
                token = int(rng.choice(np.flatnonzero(constraint.mask())))
                constraint.accept(token)  # raises GrammarError if the mask allowed a wrong token
                answer += tokenizer.bytes_of(token)
            assert re.fullmatch(pattern, answer)
    finally:
        compiler.close()


@pytest.mark.parametrize("stream", [False, True])
def test_limits_during_the_answer_are_errors_of_the_request(
    model: LanguageModel, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    with Served(model, "ab" * 50) as client, caplog.at_level(logging.DEBUG, "vksched.serve"):
        body = {"prompt": "x", "max_tokens": 60, "temperature": 0, "grammar": TOO_AMBIGUOUS}
        response = client.post("/v1/completions", json={**body, "stream": stream})
        if stream:
            last = response.text.strip().split("\n\n")[-1].removeprefix("data: ")
            error = json.loads(last)["error"]
        else:
            assert response.status_code == 400
            error = error_of(response)
    assert (error["type"], error["param"]) == ("invalid_request_error", "grammar")
    assert "items; max is 2000" in error["message"]
    assert "<state>" not in error["message"] and "Tokens" not in error["message"]
    assert not caplog.records
