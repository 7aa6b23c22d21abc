"""Chunk grid: the chunks in which a prompt is prefilled.

    tokens   0         128       256  288  296  300
             |  128    |  128    | 32 | 8  | 4  |    sizes 1, 8, 32, 128

The grid depends on the length of the prompt only. The bits of keys and values depend on the chunk
that computed them, so a request has the same result whatever the engine runs at the same time.

Examples: tests/generation/batching/test_chunk_grid.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..step_runner import MAX_LOGPROBS

GRID = 128
"""The size of chunks on whose ends prompts of different lengths share prefixes."""
MAX_CHUNK = 512
"""The maximum size of a chunk: running answers wait for it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a prompt: `count` tokens from token `start`."""

    start: int
    count: int
    all_logits: bool = False
    """Return the logits after each token."""

    @property
    def end(self) -> int:
        return self.start + self.count


def chunk_grid(
    start: int,
    end: int,
    length: int,
    sizes: Sequence[int],
    all_logits: bool = False,
    is_alone: bool = False,
) -> list[Chunk]:
    """Return the chunks of a prompt of `end` tokens from token `start`.

    A chunk has the largest size of which at least half is text and all rows fit into the cache;
    above GRID, all of it is text. The smallest size is used if none fits, and sizes of at most
    MAX_LOGPROBS for logits of all tokens.

    Parameters
    ----------
    length
        The capacity of a slot in tokens.
    sizes
        The sizes of chunks that have a graph, ascending.
    is_alone
        No other request shares the prefix, or waits for the chunk: its size has no maximum, and the
        last GRID tokens of a longer one may be padding.
    """
    chunks = []
    if all_logits:
        sizes = [size for size in sizes if size <= MAX_LOGPROBS] or sizes[:1]
    while start < end:
        rest, room = end - start, length - start
        fitting = [size for size in sizes if size <= room and _suits(size, rest, is_alone)]
        count = min(fitting[-1] if fitting else sizes[0], rest)
        chunks.append(Chunk(start, count, all_logits))
        start += count
    return chunks


def _suits(size: int, rest: int, is_alone: bool) -> bool:
    """Return True if a chunk of a size may begin a prompt of `rest` tokens."""
    if size <= GRID:
        return size <= 2 * rest
    return size - GRID < rest if is_alone else size <= min(rest, MAX_CHUNK)
