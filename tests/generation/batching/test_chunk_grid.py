"""The chunks of a prompt depend on its length only, and fit into the cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from lone_answers import chunk_by_rule

from vksched.generation.batching.chunk_grid import chunk_grid, chunk_size

SIZES = st.sets(st.sampled_from((1, 2, 8, 32, 128, 512)), min_size=1).map(sorted)


@given(st.integers(0, 1300), st.integers(0, 1300), st.integers(0, 600), SIZES)
def test_chunks_follow_the_rule(start: int, tokens: int, room: int, sizes: list[int]) -> None:
    end = start + tokens
    length = end + room
    chunks = chunk_grid(start, end, length, sizes)
    at = start
    for chunk in chunks:
        assert chunk.start == at
        assert chunk.count == chunk_by_rule(end - at, length - at, sizes)
        at = chunk.end
    assert at == end


def test_a_long_prompt() -> None:
    chunks = chunk_grid(0, 300, 4096, (1, 8, 32, 128))
    assert [chunk.count for chunk in chunks] == [128, 128, 32, 8, 4]


def test_a_chunk_that_is_half_full_is_padded() -> None:
    assert [c.count for c in chunk_grid(0, 200, 4096, (1, 8, 32, 128))] == [128, 72]


def test_no_padding_exceeds_the_cache() -> None:
    assert [c.count for c in chunk_grid(0, 200, 210, (1, 8, 32, 128))] == [128, 32, 32, 8]


def test_a_longer_prompt_has_the_same_full_chunks() -> None:
    sizes = (1, 8, 32, 128)
    short, long = chunk_grid(0, 300, 4096, sizes), chunk_grid(0, 999, 4096, sizes)
    assert short[:2] == long[:2]


def test_chunks_with_all_logits_are_small() -> None:
    """Running answers wait for the log-probabilities of a chunk, too."""
    chunks = chunk_grid(0, 300, 4096, (1, 8, 32, 128, 512), all_logits=True)
    assert [c.count for c in chunks] == [32] * 9 + [8, 4]
    assert all(c.all_logits for c in chunks)
    assert [c.count for c in chunk_grid(0, 100, 4096, (128,), all_logits=True)] == [100]


def test_chunks_above_the_grid_are_full() -> None:
    sizes = (1, 8, 32, 128, 512, 2048)
    assert [c.count for c in chunk_grid(0, 4000, 4096, sizes)] == [512] * 7 + [128] * 3 + [32]
    assert [c.count for c in chunk_grid(0, 511, 4096, sizes)] == [128] * 3 + [127]


@given(st.integers(0, 1300), st.integers(1, 1300), st.integers(0, 600))
def test_the_end_of_a_long_chunk_of_a_lone_request_may_be_padding(
    start: int, tokens: int, room: int
) -> None:
    sizes, end = [1, 8, 32, 128, 512, 2048], start + tokens
    length = end + room
    chunks = chunk_grid(start, end, length, sizes, is_alone=True)
    at = start
    for chunk in chunks:
        rest = end - at
        least = {1: 1, 8: 4, 32: 16, 128: 64, 512: 512 - 127, 2048: 2048 - 127}
        size = max(s for s in sizes if least[s] <= rest and s <= length - at)
        assert chunk.start == at and chunk.count == min(size, rest)
        assert chunk_size(sizes, rest, length - at, is_alone=True) == size
        at = chunk.end
    assert at == end


def test_chunks_of_a_lone_request_have_no_maximum() -> None:
    sizes = (1, 8, 32, 128, 512, 2048)
    chunks = chunk_grid(0, 4000, 4096, sizes, is_alone=True)
    assert [c.count for c in chunks] == [2048, 1952]
