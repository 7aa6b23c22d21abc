"""The engine over the steps of a model: answers do not depend on other requests, to the bit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from conftest import Scheds
from gguf_models import Tiny, logits_of, write
from lone_answers import Answer, streamed_answer
from test_executor import null_devices
from tiny_vocabularies import byte_pair

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.generation.batching.batching_engine import BatchingEngine
from vksched.generation.completion import CompletionRequest
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.model import LanguageModel

pytestmark = pytest.mark.one_set

TINY = Tiny(kind="Q8_0", layers=1, vocabulary=261, context=512)
LENGTH = 300
GREEDY = vs.Sampling(temperature=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, dict[str, NDArray]]:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    weights = write(TINY, path, np.random.default_rng(0), byte_pair())
    model = vs.load(path)
    assert isinstance(model, LanguageModel)
    return model, weights


@pytest.fixture(scope="module")
def engine(
    scheds: Scheds, model: tuple[LanguageModel, dict[str, NDArray]]
) -> Iterator[BatchingEngine]:
    engine = BatchingEngine(SlotSteps(scheds[0], model[0], LENGTH, 8), cache_ram=10**8)
    yield engine
    engine.close()


def prompts() -> list[list[int]]:
    """Return prompts of different lengths; the last four share 140 tokens."""
    rng = np.random.default_rng(7)
    stem = rng.integers(0, 256, 140).tolist()
    lengths = (1, 9, 40, 131)
    return [rng.integers(0, 256, n).tolist() for n in lengths] + [
        [*stem, *rng.integers(0, 256, n)] for n in (1, 7, 20, 90)
    ]


def requests(key: str) -> list[CompletionRequest]:
    """Return greedy and drawn requests. key: prefixes are shared among requests with it."""
    return [
        CompletionRequest(
            tuple(map(int, prompt)),
            6 + i,
            GREEDY if i % 2 else vs.Sampling(seed=i),
            ends=frozenset(),
            logprobs=3,
            cache_key=key and f"{key}{i if key != 'shared' else ''}",
        )
        for i, prompt in enumerate(prompts())
    ]


@pytest.fixture(scope="module")
def alone(engine: BatchingEngine) -> list[Answer]:
    """The answers of requests that run one by one, without a reused prefix."""
    return [streamed_answer(engine.submit(request)) for request in requests("alone")]


@pytest.mark.parametrize("others", (1, 3, 7))
def test_other_requests_do_not_change_a_bit(
    engine: BatchingEngine, alone: list[Answer], others: int
) -> None:
    both = list(zip(requests(f"{others} "), alone, strict=True))
    for at in range(0, 8, others + 1):
        group = both[at : at + others + 1]
        streams = [engine.submit(request) for request, _ in group]
        assert [streamed_answer(stream) for stream in streams] == [answer for _, answer in group]


def test_a_reused_prefix_does_not_change_a_bit(engine: BatchingEngine, alone: list[Answer]) -> None:
    for _ in range(2):
        streams = [engine.submit(request) for request in requests("shared")]
        assert [streamed_answer(stream) for stream in streams] == alone
    assert [stream.cached_tokens for stream in streams][4:] == [136, 128, 128, 128]


def test_cancelled_requests_do_not_change_a_bit(
    engine: BatchingEngine, alone: list[Answer]
) -> None:
    for at, request in enumerate(requests("cancelled ")):
        others = [engine.submit(other) for other in requests(f"{at} others ")[:5]]
        stream = engine.submit(request)
        first = [next(stream)]
        for other in others:
            other.close()
        answer = streamed_answer(stream)
        assert [first[0].token, *answer[0]] == alone[at][0]
        assert answer[1] == alone[at][1][1:]


def test_greedy_tokens_are_those_of_numpy(
    engine: BatchingEngine, model: tuple[LanguageModel, dict[str, NDArray]]
) -> None:
    texts = [prompt[:20] for prompt in prompts()[1:5]]
    streams = [engine.submit(CompletionRequest(tuple(t), 5, GREEDY, frozenset())) for t in texts]
    for text, stream in zip(texts, streams, strict=True):
        assert [output.token for output in stream] == greedy(model[1], text, 5)


def greedy(weights: dict[str, NDArray], prompt: Sequence[int], n: int) -> list[int]:
    text = list(prompt)
    for _ in range(n):
        text.append(int(logits_of(TINY, weights, np.array(text))[-1].argmax()))
    return text[len(prompt) :]


def test_log_probabilities_of_a_prompt(
    engine: BatchingEngine, model: tuple[LanguageModel, dict[str, NDArray]]
) -> None:
    prompt = prompts()[5]
    request = CompletionRequest(tuple(prompt), 0, prompt_logprobs=1)
    stream = engine.submit(request)
    assert list(stream) == []
    logits = logits_of(TINY, model[1], np.array(prompt)).astype(np.float64)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    wanted = logits[np.arange(len(prompt) - 1), prompt[1:]]
    found = [entry.logprob for entry in stream.prompt_logprobs]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3)
    tops = [entry.top[0][0] for entry in stream.prompt_logprobs]
    assert np.mean(np.array(tops) == logits[:-1].argmax(axis=1)) > 0.95


def test_prefixes_in_host_memory_do_not_change_a_bit(
    scheds: Scheds, model: tuple[LanguageModel, dict[str, NDArray]]
) -> None:
    engine = BatchingEngine(SlotSteps(scheds[0], model[0], LENGTH, 1), cache_ram=10**8)
    rounds = []
    for _ in range(2):
        streams = [engine.submit(request) for request in requests("own ")]
        answers = [streamed_answer(stream) for stream in streams]
        rounds.append((answers, [stream.cached_tokens for stream in streams]))
    (fresh, none), (reused, cached) = rounds
    assert reused == fresh
    assert none == [0] * 8
    assert cached == [0, 0, 0, 128, 128, 128, 128, 128]
    assert engine.counters().host_cache_bytes > 0
    engine.close()


@pytest.mark.parametrize("at", (1, 8))
def test_answers_go_on_after_a_loss(
    model: tuple[LanguageModel, dict[str, NDArray]], at: int
) -> None:
    wanted = [greedy(model[1], prompt[:20], 8) for prompt in prompts()[1:4]]
    device, other = null_devices(2)[1]
    lossy = vs.FaultInjectionDevice(device, at=at, times=1)
    with warnings.catch_warnings(), vs.Scheduler([lossy, other]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        placement = {"blk.*": lossy.name, "output*": other.name}
        engine = BatchingEngine(SlotSteps(sched, model[0], LENGTH, 4, placement))
        streams = [
            engine.submit(CompletionRequest(tuple(prompt[:20]), 8, GREEDY, frozenset()))
            for prompt in prompts()[1:4]
        ]
        assert [[output.token for output in stream] for stream in streams] == wanted
        assert engine.counters().cache_losses == 1
        engine.close()
