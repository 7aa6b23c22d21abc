"""Chats and servers that guess tokens: the same answers; the draft model has the same tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from gguf_models import Tiny, write
from lone_answers import streamed_answer
from tiny_vocabularies import byte_pair

import vksched as vs
from vksched.generation.batching.batching_engine import BatchingEngine
from vksched.generation.completion import CompletionRequest
from vksched.generation.slot_steps import SlotSteps
from vksched.generation.speculation.acceptance import Acceptance
from vksched.importers.gguf.model import LanguageModel
from vksched.ops.lowering import native_kernels

TINY = Tiny(kind="Q8_0", layers=1, vocabulary=261, context=256)
DRAWN = [vs.Sampling(temperature=0), vs.Sampling(seed=3), vs.Sampling(seed=4, temperature=0.3)]
PROMPT = "hey hey hey, hello hello"


def build_model(path: Path, seed: int = 0, **fields: Any) -> LanguageModel:
    write(TINY, path, np.random.default_rng(seed), {**byte_pair(), **fields})
    model = vs.load(path)
    assert isinstance(model, LanguageModel)
    return model


@pytest.mark.parametrize("how", ["ngram", "same", "other"])
def test_a_chat_with_guesses_writes_the_same_tokens(how: str, tmp_path: Path) -> None:
    """Also in the second turn, whose prompt continues the answer."""
    model = build_model(tmp_path / "model.gguf")
    small = build_model(tmp_path / "draft.gguf", 0 if how == "same" else 1)
    answers = {}
    for guesses in (False, True):
        with vs.Scheduler(["cpu"]) as sched, vs.Scheduler(["cpu"]) as own:
            draft = None if how == "ngram" else small
            speculation = vs.Speculation(ngram=draft is None, draft=draft, scheduler=own)
            chat = vs.Chat(sched, model, speculation=speculation if guesses else None)
            chat.prepare()
            found = []
            for sampling in DRAWN:
                first = chat.generate(PROMPT, 30, sampling)
                text = PROMPT + "".join(first)
                second = chat.generate(text, 10, sampling)
                list(second)
                found += [first.tokens, second.tokens]
            answers[guesses] = found
            counters = chat._core.counters()
            assert (counters.drafts > 0) == (guesses and native_kernels.has_programs())
            if how == "same" and guesses and counters.drafts:
                assert counters.accepted_tokens > counters.draft_tokens / 2
            chat.close()
            again = chat.generate(PROMPT, 30, DRAWN[0])
            list(again)
            assert again.tokens == found[0]
    assert answers[True] == answers[False]


@pytest.mark.parametrize("how", ["close", "stop string"])
def test_an_answer_that_ends_early_leaves_the_same_prefix(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its unread tokens would change the chunks of the next prompt, and with them its bits."""
    model = build_model(tmp_path / "model.gguf")
    monkeypatch.setattr(Acceptance, "best_count", lambda self, counts, *about: max(counts))
    found = {}
    for guesses in (False, True):
        with vs.Scheduler(["cpu"]) as sched, vs.Scheduler(["cpu"]) as own:
            speculation = vs.Speculation(ngram=False, draft=model, scheduler=own)
            chat = vs.Chat(sched, model, speculation=speculation if guesses else None)
            chat.prepare()
            whole = chat.generate(PROMPT, 30, DRAWN[0])
            text = "".join(whole)
            for count in (2, 3, 5, 29, 30):
                list(chat.generate([9, 8, 7], 1, DRAWN[0]))
                at = (len(text) - 2) * count // 30
                stop = text[at : at + 2] if how == "stop string" else ()
                answer = chat.generate(PROMPT, 30, DRAWN[0], stop=stop)
                if how == "stop string":
                    list(answer)
                else:
                    while len(answer.tokens) < count:
                        next(answer)
                    answer.close()
                cached = chat._core.slots()[0].cached_tokens
                assert cached == len(answer.prompt) + len(answer.tokens) - 1
                found.setdefault(guesses, []).append((answer.tokens, cached))
            drafts = chat._core.counters().drafts
            assert (drafts > 0) == (guesses and native_kernels.has_programs())
    assert found[True] == found[False]


def test_requests_of_a_server_have_the_same_bits(tmp_path: Path) -> None:
    model = build_model(tmp_path / "model.gguf")
    rng = np.random.default_rng(1)
    requests = [
        CompletionRequest(
            tuple(map(int, rng.integers(0, 9, 20 + 30 * i))), 24, DRAWN[i], frozenset(), logprobs=3
        )
        for i in range(3)
    ]
    found = {}
    for guesses in (False, True):
        with vs.Scheduler(["cpu"]) as sched:
            speculation = vs.Speculation(draft=build_model(tmp_path / "draft.gguf"))
            drafters = speculation.drafters(model, sched, 200, 3) if guesses else ()
            engine = BatchingEngine(SlotSteps(sched, model, 200, 3), drafters=drafters)
            alone = [streamed_answer(engine.submit(request)) for request in requests]
            streams = [engine.submit(request) for request in requests]
            found[guesses] = alone, [streamed_answer(stream) for stream in streams]
            if guesses and native_kernels.has_programs():
                assert engine.counters().accepted_tokens > 0
            engine.close()
    assert found[True] == found[False]
    assert found[True][0] == found[True][1]


@pytest.mark.parametrize("how", ["ngram", "draft"])
def test_guesses_on_a_vulkan_device_have_the_same_bits(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft model is on the CPU. Guesses are taken whether or not they gain time; few tokens
    are likely, so that some guesses are right.
    """
    if not vulkan_names() or not native_kernels.has_programs():
        pytest.skip("no Vulkan device, or no native loops")
    model = build_model(tmp_path / "model.gguf")
    bias = dict.fromkeys(range(4), 90.0)
    requests = [
        CompletionRequest((0, 1, 2, 3, at), 16, replace(drawn, logit_bias=bias), logprobs=2)
        for at, drawn in enumerate(DRAWN[:2])
    ]
    device, found = vulkan_names()[0], {}
    with vs.Scheduler([device]) as sched, vs.Scheduler(["cpu"]) as own:
        draft = model if how == "draft" else None
        speculation = vs.Speculation(ngram=draft is None, draft=draft, scheduler=own)
        steps = SlotSteps(sched, model, 64, 2, {"*": device})
        engine = BatchingEngine(steps, drafters=speculation.drafters(model, sched, 64, 2))
        for guesses in (False, True):
            count = max if guesses else lambda counts: 0
            monkeypatch.setattr(Acceptance, "best_count", lambda s, counts, *_, f=count: f(counts))
            streams = [engine.submit(request) for request in requests]
            found[guesses] = [streamed_answer(stream) for stream in streams]
            assert (engine.counters().drafts > 0) == guesses
        engine.close()
    assert found[True] == found[False]


def test_a_draft_model_has_the_same_tokens(tmp_path: Path) -> None:
    model, rng = build_model(tmp_path / "model.gguf"), np.random.default_rng(0)
    tokens = list(byte_pair()["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    tokens[17], tokens[18] = tokens[18], tokens[17]
    other = build_model(tmp_path / "other.gguf", **{"tokenizer.ggml.tokens": tokens})
    with vs.Scheduler(["cpu"]) as sched:
        with pytest.raises(vs.ModelFormatError, match="expected token 17 of the draft model"):
            vs.Chat(sched, model, speculation=vs.Speculation(draft=other))
        vocabulary: dict[str, Any] = byte_pair()
        for name, more in (("tokens", "more"), ("token_type", 1), ("scores", 0.0)):
            if (key := f"tokenizer.ggml.{name}") in vocabulary:
                vocabulary[key] = [*vocabulary[key], more]
        write(replace(TINY, vocabulary=262), tmp_path / "more.gguf", rng, vocabulary)
        larger = vs.load(tmp_path / "more.gguf")
        with pytest.raises(vs.ModelFormatError, match="a draft model with 261 tokens, got 262"):
            vs.Chat(sched, model, speculation=vs.Speculation(draft=larger))


@pytest.mark.parametrize("padded", ["model", "draft"])
def test_unused_tokens_may_pad_one_vocabulary(padded: str, tmp_path: Path) -> None:
    """As in the files of one family, by the sizes that suit their matrices."""
    fields: dict[str, Any] = byte_pair()
    for name, more in (("tokens", "[PAD{}]"), ("token_type", 5), ("scores", 0.0)):
        if (key := f"tokenizer.ggml.{name}") in fields:
            pads = [more.format(n) if isinstance(more, str) else more for n in range(200)]
            fields[key] = [*fields[key], *pads]
    rng = np.random.default_rng(0)
    write(replace(TINY, vocabulary=461), tmp_path / "padded.gguf", rng, fields)
    longer, shorter = vs.load(tmp_path / "padded.gguf"), build_model(tmp_path / "model.gguf")
    assert isinstance(longer, LanguageModel)
    model, draft = (longer, shorter) if padded == "model" else (shorter, longer)
    pads = dict.fromkeys(range(261, 461), 90.0) if padded == "model" else {}
    samplings = [*DRAWN, vs.Sampling(temperature=0, logit_bias=pads)]
    found = {}
    for guesses in (False, True):
        with vs.Scheduler(["cpu"]) as sched:
            speculation = vs.Speculation(ngram=False, draft=draft) if guesses else None
            chat = vs.Chat(sched, model, 100, speculation=speculation)
            answers = [chat.generate(PROMPT, 24, sampling) for sampling in samplings]
            for answer in answers:
                list(answer)
            found[guesses] = [answer.tokens for answer in answers]
            assert chat._core.speculator._drafters or not guesses
    assert found[True] == found[False]
    assert (max(found[True][-1]) > 260) == (padded == "model")


@pytest.mark.parametrize("is_prepared", [True, False])
def test_without_verify_steps_a_warning_says_why(
    is_prepared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_kernels, "has_programs", lambda: False)
    with vs.Scheduler(["cpu"]) as sched:
        chat = vs.Chat(sched, build_model(tmp_path / "m.gguf"), speculation=vs.Speculation())
        with pytest.warns(vs.VkschedWarning, match="no tokens are guessed") as caught:
            if is_prepared:
                chat.prepare(PROMPT)
            assert list(chat.generate(PROMPT, 3))
            assert list(chat.generate(PROMPT, 3))
        assert len(caught) == 1
