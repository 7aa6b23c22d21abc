"""An engine whose runner submits greedy steps ahead: the same answers, and nobody waits longer."""

from __future__ import annotations

from typing import Any

import pytest
from inline_engine import InlineEngine
from simulated_steps import SimulatedSteps

from vksched.generation.batching import batch_steps
from vksched.generation.batching.token_stream import TokenStream
from vksched.generation.sampling import Sampling

GREEDY = Sampling(temperature=0)
PROMPT = tuple(range(5))


def engine(decodes_ahead: bool = True, **options: Any) -> InlineEngine:
    return InlineEngine(SimulatedSteps(decodes_ahead=decodes_ahead), **options)


def names(opened: InlineEngine) -> list[str]:
    return [str(entry[0]) for entry in opened.steps.log]


def answer(opened: InlineEngine, **fields: Any) -> tuple[list[int], str]:
    stream = opened.submit(PROMPT, **{"max_tokens": 20, "sampling": GREEDY, **fields})
    return [output.token for output in stream], stream.finish_reason


def test_one_turn_decodes_many_tokens() -> None:
    plain, ahead = engine(False), engine()
    assert answer(ahead) == answer(plain)
    assert names(plain).count("decode") == 19
    assert names(ahead)[-2:] == ["prefill", "decode_ahead"] and "decode" not in names(ahead)
    assert ahead.core.counters().decode_steps == 19
    # the prefix of the answer is reused, with the rows of the step that was one too many behind it
    assert answer(ahead) == answer(plain)


def test_the_end_of_an_answer_drops_the_step_ahead() -> None:
    tokens, _ = answer(engine(False))
    ends = frozenset(tokens[9:10])
    plain, ahead = engine(False, ends=ends), engine(ends=ends)
    for max_tokens in (20, 9, 3, 2, 1):
        assert answer(ahead, max_tokens=max_tokens) == answer(plain, max_tokens=max_tokens)


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": Sampling(seed=3)},
        {"sampling": Sampling(temperature=0, repeat_penalty=1.2)},
        {"sampling": Sampling(temperature=0, logit_bias={3: -1.0})},
        {"sampling": Sampling(temperature=0, presence_penalty=0.5)},
        {"logprobs": 2},
    ],
)
def test_other_requests_need_logits_on_the_host(fields: dict[str, Any]) -> None:
    opened = engine()
    assert answer(opened, **fields) == answer(engine(False), **fields)
    assert "decode_ahead" not in names(opened)


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("number", [1, 2, 5])
def test_new_requests_and_cancellations_end_the_steps_ahead(
    number: int, is_cancelled: bool
) -> None:
    """After a token of the first answer, a request comes, and maybe the answer is cancelled."""
    second: list[TokenStream] = []

    def observe(name: str, seconds: float) -> None:
        is_due = opened.core.counters().generated_tokens == number + 1 and not second
        if name == "time_between_tokens" and is_due:
            second.append(opened.submit(PROMPT[:3], 4, sampling=GREEDY))
            if is_cancelled:
                first.close()

    opened = engine(observer=observe)
    first = opened.submit(PROMPT, 20, sampling=GREEDY)
    opened.run()
    assert names(opened)[:3] == ["prefill", "decode_ahead", "prefill"], "no further token before"
    other = engine(False).submit(PROMPT[:3], 4, sampling=GREEDY)
    assert [output.token for output in second[0]] == [output.token for output in other]
    if not is_cancelled:
        assert [output.token for output in first] == answer(engine(False))[0]


def test_a_turn_ends_after_some_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_steps, "MAX_AHEAD", 4)
    opened = engine()
    assert answer(opened) == answer(engine(False))
    counts = [entry[3] for entry in opened.steps.log if entry[0] == "decode_ahead"]
    assert counts == [4, 4, 4, 4, 3]


def test_a_lost_cache_costs_no_token() -> None:
    expected = answer(engine(False))
    for at in (2, 3):
        opened = InlineEngine(SimulatedSteps(decodes_ahead=True, lost_at=(at,)))
        found, reason = answer(opened)
        assert len(found) == 20 and reason == expected[1]


def test_an_error_of_the_steps_ends_the_request() -> None:
    def fail(number: int) -> None:
        if opened.steps.log[-1][0] == "decode_ahead":
            raise ValueError("broken")

    opened = InlineEngine(SimulatedSteps(decodes_ahead=True, before_call=fail))
    with pytest.raises(Exception, match="broken"):
        answer(opened)
    opened.steps.before_call = None
    assert answer(opened) == answer(engine(False))
