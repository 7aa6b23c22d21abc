"""SlotSteps of a model with recurrent states: padded chunks, checkpoints, and refused steps."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import language
import numpy as np
import pytest
from language import convert

import vksched as vs
from vksched.common.errors import ModelFormatError, ShapeError
from vksched.generation.batching.engine_core import EngineCore
from vksched.generation.batching.token_stream import TokenStream
from vksched.generation.completion import CompletionRequest
from vksched.generation.layer_placement.place_layers import cache_bytes_of
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.model import LanguageModel

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
GOLDEN = language.load("qwen35")
IDS = GOLDEN.ids.tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    convert.write(GOLDEN, path)
    loaded = vs.load(path)
    assert isinstance(loaded, LanguageModel)
    return loaded


@pytest.fixture(scope="module")
def sched() -> Iterator[vs.Scheduler]:
    with vs.Scheduler(["cpu"]) as scheduler:
        yield scheduler


@pytest.fixture(scope="module")
def steps(model: LanguageModel, sched: vs.Scheduler) -> Iterator[SlotSteps]:
    runner = SlotSteps(sched, model, 48, 2)
    yield runner
    runner.close()


def test_chunks_with_padding_and_all_logits(steps: SlotSteps) -> None:
    logits = steps.prefill(1, IDS[:13], 0, all_logits=True)  # of 8 and 8 tokens
    np.testing.assert_allclose(logits, GOLDEN.wanted[:13], **CLOSE)
    logits = steps.prefill(1, IDS[13:39], 13)  # one of 32
    np.testing.assert_allclose(logits, GOLDEN.wanted[38], **CLOSE)
    np.testing.assert_allclose(steps.decode([1], IDS[39:], [39])[0], GOLDEN.wanted[39], **CLOSE)


def test_a_slot_goes_back_to_a_checkpoint_only(steps: SlotSteps) -> None:
    steps.prefill(0, IDS[:13], 0)
    states, rows = steps.read_states(0), steps.read_rows(0, 13)
    logits = steps.decode([0], IDS[13:14], [13])
    np.testing.assert_allclose(logits[0], GOLDEN.wanted[13], **CLOSE)
    with pytest.raises(ShapeError, match="after the 14 that slot 0 has .* try write_states"):
        steps.decode([0], IDS[13:14], [13])
    steps.write_states(0, states, 13)
    np.testing.assert_array_equal(steps.decode([0], IDS[13:14], [13]), logits)
    steps.write_rows(1, rows)
    steps.write_states(1, states, 13)
    np.testing.assert_array_equal(steps.decode([1], IDS[13:14], [13]), logits)
    assert steps.is_recurrent and steps.verify_sizes == ()


def test_the_check_of_narrow_rows_leaves_the_states(
    model: LanguageModel, sched: vs.Scheduler
) -> None:
    steps = SlotSteps(sched, model, 48, 2, cache_type="f16")
    steps.prefill(0, IDS[:13], 0)
    logits = steps.decode([0], IDS[13:14], [13])[0]
    steps.close()
    np.testing.assert_allclose(logits, GOLDEN.wanted[13], rtol=0.02, atol=0.02)


def test_answers_with_reused_prefixes_are_those_without(
    model: LanguageModel, sched: vs.Scheduler
) -> None:
    prompts = [IDS, [*IDS[:33], 4, 5], [*IDS[:33], 9]]
    core = EngineCore(SlotSteps(sched, model, 48, 2), frozenset())

    def stream(prompt: list[int]) -> TokenStream:
        request = CompletionRequest(tuple(prompt), 4, logprobs=2)
        return TokenStream(core.submit(request), core, core.step)

    alone = []
    for prompt in prompts:
        alone.append(list(stream(prompt)))
        core.end_all("closed")  # it forgets the prefixes
    streams = [stream(prompt) for prompt in prompts]
    assert [list(each) for each in streams] == alone
    assert [each.cached_tokens for each in streams] == [0, 32, 32]
    core.close()


def test_states_without_rows_move_to_the_host(sched: vs.Scheduler, tmp_path: pathlib.Path) -> None:
    golden = language.load("mamba2")
    convert.write(golden, tmp_path / "mamba2.gguf")
    model = vs.load(tmp_path / "mamba2.gguf")
    assert isinstance(model, LanguageModel)
    core = EngineCore(SlotSteps(sched, model, 48, 1), frozenset(), cache_ram=1 << 24)
    first = (golden.ids.tolist() * 40)[:39]
    answers = []
    for prompt in (first, [3] * 39, first):
        request = CompletionRequest(tuple(prompt), 4, logprobs=2)
        stream = TokenStream(core.submit(request), core, core.step)
        answers.append((list(stream), stream.cached_tokens))
    assert answers[2][0] == answers[0][0]
    assert [cached for _, cached in answers] == [0, 0, 32]
    core.close()


def test_the_size_of_the_cache_is_known_before_it_exists(
    model: LanguageModel, sched: vs.Scheduler
) -> None:
    cache = model.cache(48, slots=2)
    predicted = cache_bytes_of(model, cache)
    model.step(cache, 1, rows=1)
    assert predicted == sum(state.type.host_bytes for state in cache.states.values())
    assert set(cache.recurrent_states) == {
        f"blk.{layer}.{kind}_state" for layer in (0, 2) for kind in ("conv", "delta")
    }


def test_a_recurrent_draft_model_is_refused(model: LanguageModel, sched: vs.Scheduler) -> None:
    speculation = vs.Speculation(ngram=False, draft=model)
    with pytest.raises(ModelFormatError, match="draft model whose layers all have attention"):
        speculation.drafters(model, sched, 48, 1)
