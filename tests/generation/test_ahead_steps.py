"""Decode steps that are submitted before the host knows their token: the same text, to the bit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import vulkan_names
from gguf_models import Tiny, write

import vksched as vs
from vksched.generation.batching.engine_core import EngineCore
from vksched.generation.batching.token_stream import TokenStream
from vksched.generation.compiled_steps import StepSize
from vksched.generation.completion import CompletionRequest
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.model import LanguageModel

TINY = replace(Tiny(layers=2, vocabulary=61), kind="F16")
PROMPT = (3, 1, 4, 1, 5)
GREEDY = vs.Sampling(temperature=0)
pytestmark = pytest.mark.skipif(not vulkan_names(), reason="no Vulkan device")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    path = tmp_path_factory.mktemp("ahead") / "tiny.gguf"
    write(TINY, path, np.random.default_rng(5))
    loaded = vs.load(path)
    assert isinstance(loaded, LanguageModel)
    return loaded


@pytest.fixture(scope="module", params=[1, 2])
def steps(model: LanguageModel, request: pytest.FixtureRequest) -> Iterator[SlotSteps]:
    """Steps over one slot and over two, with those ahead."""
    with vs.Scheduler(vulkan_names()[-1:]) as sched:
        opened = SlotSteps(sched, model, 48, request.param, ahead=True)
        opened.steps.decide()
        opened._ahead.prepare(opened.steps.run(opened._size(1)))
        yield opened
        opened.close()


def greedy(steps: SlotSteps, count: int) -> list[int]:
    """Return the tokens after the prompt, by steps one after the other."""
    logits, text = steps.prefill(0, PROMPT, 0), list[int]()
    for start in range(len(PROMPT), len(PROMPT) + count):
        text.append(GREEDY.choose(logits))
        logits = steps.decode([0], text[-1:], [start])[0]
    return text


def test_tokens_are_those_of_steps_one_by_one(steps: SlotSteps) -> None:
    assert steps.decodes_ahead
    expected = greedy(steps, 20)
    assert len(set(expected)) > 3, "the text must tell tokens apart"
    found = [GREEDY.choose(steps.prefill(0, PROMPT, 0))]

    def take(token: int) -> bool:
        found.append(token)
        return len(found) < 12

    start = len(PROMPT)
    steps.decode_ahead(0, found[0], start, 20, take)
    assert found == expected[:12]
    # the step that was submitted too many left nothing that the next ones see
    steps.decode_ahead(0, found[-1], start + 11, 8, lambda token: not found.append(token))
    assert found == expected[:20]
    logits = steps.decode([0], expected[5:6], [start + 5])[0]
    assert GREEDY.choose(logits) == expected[6]


def test_a_full_slot_ends_the_text(steps: SlotSteps) -> None:
    first = GREEDY.choose(steps.prefill(0, PROMPT, 0))
    found: list[int] = []
    start = len(PROMPT)
    steps.decode_ahead(0, first, start, 48 - start, lambda token: not found.append(token))
    assert len(found) == 48 - start
    with pytest.raises(vs.ShapeError, match="at most 48 in a slot"):
        steps.decode_ahead(0, first, start, 49 - start, lambda token: True)


@pytest.mark.parametrize("ends", [(), (7,), (2,)])
def test_an_engine_writes_the_same_answer(steps: SlotSteps, ends: tuple[int, ...]) -> None:
    """Also if a token ends the answer while the next step runs; and the prefix is reused."""
    text = greedy(steps, 24)
    of_text = frozenset(text[place] for place in ends)
    request = CompletionRequest(PROMPT, 24, GREEDY, ends=of_text)
    core = EngineCore(steps)
    answers = []
    for decodes_ahead in (False, True, True):
        core.runner = core._steps._runner = _Only(steps, decodes_ahead)  # type: ignore[assignment]
        stream = TokenStream(core.submit(request), core, core.step)
        answers.append(([output.token for output in stream], stream.finish_reason))
    expected = text[: min((n for n, t in enumerate(text) if t in of_text), default=24)]
    assert answers[0] == (expected, "stop" if ends else "length")
    assert answers[1] == answers[2] == answers[0]


class _Only:
    """The steps, with or without those ahead."""

    def __init__(self, steps: SlotSteps, decodes_ahead: bool) -> None:
        self._steps = steps
        self.decodes_ahead = decodes_ahead

    def __getattr__(self, name: str) -> object:
        return getattr(self._steps, name)


def test_a_lost_device_is_seen_by_the_next_step(model: LanguageModel) -> None:
    device = vs.FaultInjectionDevice(vulkan_names()[-1], None, "lost", "wait")
    with warnings.catch_warnings(), vs.Scheduler([device]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        steps = SlotSteps(sched, model, 48, 1, ahead=True)
        first = GREEDY.choose(steps.prefill(0, PROMPT, 0))
        steps._ahead.prepare(steps.steps.run(steps._size(1)))
        found: list[int] = []
        device.at = device.calls["wait"] + 3
        steps.decode_ahead(0, first, len(PROMPT), 9, lambda token: not found.append(token))
        assert len(found) == 3
        with pytest.raises(vs.StateLost):
            steps.decode([0], found[-1:], [len(PROMPT) + 3])
        assert not steps.decodes_ahead
        steps.close()


def test_logits_that_are_not_finite_end_the_steps_ahead(steps: SlotSteps) -> None:
    first, found = GREEDY.choose(steps.prefill(0, PROMPT, 0)), list[int]()
    rows = [np.full_like(each, np.nan) for each in steps.read_rows(0, len(PROMPT))]
    steps.write_rows(0, rows)
    steps.decode_ahead(0, first, len(PROMPT), 9, lambda token: not found.append(token))
    assert found == []


def test_an_overflow_of_steps_ahead_is_that_of_a_step(
    steps: SlotSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It empties all slots if another mode is left, without a step that computes it again."""
    first = GREEDY.choose(steps.prefill(0, PROMPT, 0))
    rows = [np.full_like(each, np.nan) for each in steps.read_rows(0, len(PROMPT))]
    steps.write_rows(0, rows)
    monkeypatch.setattr(steps.steps, "handle_overflow", lambda: True)
    version = steps.cache_version
    with pytest.raises(vs.StateLost, match="logits are not finite"):
        steps.decode_ahead(0, first, len(PROMPT), 9, lambda token: True)
    assert steps.cache_version > version and not steps._is_cache_checked


def test_steps_ahead_are_compiled_again_after_a_loss(steps: SlotSteps) -> None:
    """An idle engine does it, graph by graph, after all graphs that answers need."""
    steps.forget()
    assert not steps.decodes_ahead
    assert not steps.prepare_ahead(), "nothing uses the model"
    first = GREEDY.choose(steps.prefill(0, PROMPT, 0))
    expected = [first, *greedy(steps, 8)[1:]]
    needed = set(steps.steps.runs)
    core = EngineCore(steps)
    while core.step():
        assert len(needed) <= len(steps.steps.runs) <= len(needed) + 1 or steps.decodes_ahead
        needed = set(steps.steps.runs)
    assert steps.decodes_ahead
    assert {steps._size(tokens) for tokens in steps.chunk_sizes} <= steps.steps.runs.keys()
    assert GREEDY.choose(steps.prefill(0, PROMPT, 0)) == first
    found = [first]
    steps.decode_ahead(0, first, len(PROMPT), 7, lambda token: not found.append(token))
    assert found == expected


def test_steps_ahead_without_memory_do_not_exist(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are optional: no layers move for them."""
    with vs.Scheduler(vulkan_names()[-1:]) as sched:
        steps = SlotSteps(sched, model, 48, 1, ahead=True)
        expected = GREEDY.choose(steps.prefill(0, PROMPT, 0))
        compile_ = sched.compile

        def refuse(*args: object, ahead: bool = False, **options: object) -> object:
            if ahead:
                raise vs.OutOfMemory("[compile] full")
            return compile_(*args, **options)  # type: ignore[call-overload]

        monkeypatch.setattr(sched, "compile", refuse)
        steps._ahead.prepare(steps.steps.run(steps._size(1)))
        assert not steps.decodes_ahead
        steps.forget()
        steps.prefill(0, PROMPT, 0)
        assert not steps.prepare_ahead()
        assert GREEDY.choose(steps.prefill(0, PROMPT, 0)) == expected
        steps.close()


def test_a_graph_without_memory_leaves_answers_alone(
    steps: SlotSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was compiled for steps ahead after a loss; no request needs it."""
    compiled, refused = steps.steps._compiled, list[StepSize]()
    core = EngineCore(steps)
    request = CompletionRequest(PROMPT, 6, GREEDY, ends=frozenset())

    def refuse(size: StepSize) -> object:
        if size.tokens == 32:
            refused.append(size)
            raise vs.OutOfMemory("[plan] no memory for a step of 32 tokens")
        return compiled(size)

    def answer() -> list[int]:
        stream = TokenStream(core.submit(request), core, core.step)
        return [output.token for output in stream]

    if not steps.decodes_ahead:
        steps._ahead.prepare(steps.steps.run(steps._size(1)))
    expected = answer()
    monkeypatch.setattr(steps.steps, "_compiled", refuse)
    steps.forget()
    assert answer() == expected and not refused
    while core.step():
        pass
    assert len(refused) == 1 and not steps.decodes_ahead and not core.step()
    version = steps.cache_version
    assert answer() == expected and steps.cache_version == version
    monkeypatch.undo()
    steps._ahead.prepare(steps.steps.run(steps._size(1)))
    assert steps.decodes_ahead, "later tests need them"


def test_steps_ahead_are_off_without_prepare_and_on_cpus(model: LanguageModel) -> None:
    with vs.Scheduler(vulkan_names()[-1:]) as sched:
        steps = SlotSteps(sched, model, 48, 1)
        steps.steps.decide()
        steps._ahead.prepare(steps.steps.run(steps._size(1)))
        assert not steps.decodes_ahead, "a CPU driver needs the cores of the host"
        steps.forget()
        steps.prefill(0, PROMPT, 0)
        assert not steps.prepare_ahead(), "they were never compiled"
        steps.close()


def test_steps_ahead_are_compiled_last(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are optional: their memory must not lack for a graph that is needed."""
    with vs.Scheduler(["cpu"]) as sched:
        steps = SlotSteps(sched, model, 48, 2)
        monkeypatch.setattr(SlotSteps, "row_counts", (1, 2))
        compiled: list[int] = []
        monkeypatch.setattr(
            steps._ahead, "prepare", lambda decode: compiled.append(len(steps.steps.runs))
        )
        steps.prepare()
        assert steps._size(1, 2) in steps.steps.runs
        assert compiled == [len(steps.steps.runs)]
        steps.close()
