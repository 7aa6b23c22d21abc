"""The places of pictures in prompts, in chunks and in prefixes."""

from __future__ import annotations

import numpy as np
import pytest
from inline_engine import InlineEngine
from lone_answers import Answer, streamed_answer
from simulated_steps import SimulatedSteps

from vksched.common.errors import SamplingError, ShapeError
from vksched.generation.completion import CompletionRequest
from vksched.generation.pictures.prompt_pictures import (
    EncodedPicture,
    Part,
    PictureTokens,
    PromptPictures,
    is_picture_id,
    text_ids,
)
from vksched.generation.sampling import Sampling

BEFORE, AFTER = [1, 2, 3], list(range(4, 16))


def encoded(
    key: int, count: int = 12, is_whole: bool = True, grid: tuple[int, int] | None = None
) -> EncodedPicture:
    rows = np.arange(count * 2, dtype=np.float32).reshape(count, 2)
    return EncodedPicture(PictureTokens(key, count, is_whole, grid), rows)


def prompt(*parts: list[int] | EncodedPicture) -> tuple[int, ...]:
    ids: list[int] = []
    for part in parts:
        ids += part.tokens.ids if isinstance(part, EncodedPicture) else part
    return tuple(ids)


def test_ids_name_the_picture_and_the_row() -> None:
    one, two = encoded(5), encoded((1 << 128) - 1)
    ids = prompt([7], one, two, [8])
    assert len(set(ids)) == len(ids) and all(map(is_picture_id, ids[1:-1]))
    assert text_ids(ids) == [7, 8]
    assert not is_picture_id((1 << 63) - 1)


def test_parts_are_text_or_tokens_of_one_picture() -> None:
    one, two = encoded(1), encoded(2, 5)
    places = PromptPictures(prompt(BEFORE, one, two, AFTER), [two, one])
    assert places.parts(0, 32) == [
        Part(0, 3),
        Part(3, 15, one, 3),
        Part(15, 20, two, 15),
        Part(20, 32),
    ]
    assert places.parts(4, 16) == [Part(4, 15, one, 3), Part(15, 16, two, 15)]
    np.testing.assert_array_equal(places.parts(5, 7)[0].rows, one.rows[2:4])
    assert places.parts(40, 50) == [Part(40, 50)] and places.parts(3, 3) == []
    assert [places.readable_before(at) for at in (2, 3, 9, 15, 16, 20, 30)] == [
        *(2, 3, 3, 15, 15, 20, 30),
    ]
    parts = PromptPictures(prompt(BEFORE, encoded(1, is_whole=False)), [encoded(1, is_whole=False)])
    assert parts.readable_before(9) == 9


def test_positions_of_pictures_in_rows_and_columns() -> None:
    one, two = encoded(1, 12, False, (3, 4)), encoded(2, 6, False, (6, 1))
    places = PromptPictures(prompt(BEFORE, one, [9], two, [9]), [one, two])
    assert (one.tokens.shift, two.tokens.shift, places.shift) == (-8, 0, -8)
    assert [places.shift_at(at) for at in (0, 2, 15, 22)] == [0, 0, -8, -8]
    (part,) = places.parts(3, 15)
    row, column = np.divmod(np.arange(12), 4)
    np.testing.assert_array_equal(places.positions(part), [[3] * 12, 3 + row, 3 + column])
    (part,) = places.parts(18, 20)  # the text before it has position 7
    np.testing.assert_array_equal(places.positions(part), [[8, 8], [10, 11], [8, 8]])


def test_incomplete_pictures_are_refused() -> None:
    one = encoded(1)
    with pytest.raises(ShapeError, match="the rows of each picture .* got none .* token 3"):
        PromptPictures(prompt(BEFORE, one), [encoded(2)])
    with pytest.raises(ShapeError, match="all 12 ids of the picture at token 3, got others"):
        PromptPictures(prompt(BEFORE, one)[:-1], [one])
    with pytest.raises(ShapeError, match="the rows of each picture .* token 0"):
        PromptPictures(prompt(one)[1:], [one])
    engine = InlineEngine()
    with pytest.raises(ShapeError, match="expected a prompt of token ids"):
        engine.submit(prompt(BEFORE, one))
    with pytest.raises(SamplingError, match="no prompt_logprobs with pictures"):
        engine.core.submit(
            CompletionRequest(prompt(BEFORE, one), pictures=(one,), prompt_logprobs=0)
        )


# -- engines ---------------------------------------------------------------------------------------


def asked(*parts: list[int] | EncodedPicture, n: int = 4) -> CompletionRequest:
    pictures = tuple(part for part in parts if isinstance(part, EncodedPicture))
    return CompletionRequest(
        prompt(*parts), n, Sampling(seed=3, repeat_penalty=1.2), pictures=pictures
    )


def answered(engine: InlineEngine, request: CompletionRequest) -> tuple[Answer, int]:
    stream = engine.stream(request)
    return streamed_answer(stream), stream.cached_tokens


def alone(request: CompletionRequest) -> Answer:
    return answered(InlineEngine(SimulatedSteps(slots=1)), request)[0]


def test_chunks_end_where_pictures_begin_and_end() -> None:
    engine, request = InlineEngine(), asked(BEFORE, encoded(1), AFTER)
    answered(engine, request)
    chunks = [entry[2:] for entry in engine.steps.log if entry[0] == "prefill"]
    assert chunks == [(0, 3), (3, 12), (15, 8), (23, 4)]
    engine = InlineEngine()
    answered(engine, asked(BEFORE, encoded(1, is_whole=False), AFTER))
    chunks = [entry[2:] for entry in engine.steps.log if entry[0] == "prefill"]
    assert chunks == [(0, 3), (3, 8), (11, 4), (15, 8), (23, 4)]


@pytest.mark.parametrize("cache_ram", [0, 1 << 20])
def test_only_rows_of_the_same_picture_are_reused(cache_ram: int) -> None:
    engine = InlineEngine(SimulatedSteps(slots=1), cache_ram=cache_ram)
    one, two = asked(BEFORE, encoded(1), AFTER), asked(BEFORE, encoded(2), AFTER)
    again = 23 if cache_ram else 3  # the picture, and 8 tokens after it
    for request, cached in ((one, 0), (two, 3), (one, again), (two, again)):
        answer, found = answered(engine, request)
        assert answer == alone(request) and found == cached
    longer = asked(BEFORE, encoded(2), AFTER, encoded(1), [5])
    answer, found = answered(engine, longer)
    assert answer == alone(longer) and found == 27


def test_a_lost_cache_is_filled_again() -> None:
    request = asked(BEFORE, encoded(1), AFTER)
    for lost_at in (1, 3, 5):
        engine = InlineEngine(SimulatedSteps(slots=1, lost_at=[lost_at]))
        answer, _ = answered(engine, request)
        assert answer[0] and answer[3] == "length"
        assert engine.steps.rows[0][3:15] == rows_of(request)


def rows_of(request: CompletionRequest) -> list[int]:
    engine = InlineEngine(SimulatedSteps(slots=1))
    answered(engine, request)
    return engine.steps.rows[0][3:15]


def test_decode_steps_get_the_shifts_of_positions() -> None:
    engine = InlineEngine()
    picture = encoded(1, 12, False, (3, 4))
    answered(engine, asked(BEFORE, picture, AFTER))
    assert engine.steps.shifts == [-8]
    answered(engine, asked(BEFORE))
    assert engine.steps.shifts is None
