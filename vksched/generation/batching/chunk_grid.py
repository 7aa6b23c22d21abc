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

    Each has the size of `chunk_size`, and at most MAX_LOGPROBS for logits of all tokens.

    Parameters
    ----------
    length
        The capacity of a slot in tokens.
    sizes
        The sizes of chunks that have a graph, ascending.
    is_alone
        As of `chunk_size`.
    """
    chunks = []
    if all_logits:
        sizes = [size for size in sizes if size <= MAX_LOGPROBS] or sizes[:1]
    while start < end:
        rest = end - start
        count = min(chunk_size(sizes, rest, length - start, is_alone), rest)
        chunks.append(Chunk(start, count, all_logits))
        start += count
    return chunks


def chunk_size(sizes: Sequence[int], rest: int, room: int, is_alone: bool = False) -> int:
    """Return the size of the next chunk of a prompt, which has `rest` more tokens.

    It is the largest size of which at least half is text and all rows fit into the `room` of the
    cache; above GRID, all of it is text. It is the smallest size if none fits.

    is_alone: no other request shares the prefix, or waits for the chunk: its size has no maximum,
    and the last GRID tokens of a longer one may be padding.
    """
    fitting = [size for size in sizes if size <= room and _suits(size, rest, is_alone)]
    return max(fitting or sizes[:1])


def _suits(size: int, rest: int, is_alone: bool) -> bool:
    """Return True if a chunk of a size may begin a prompt of `rest` tokens."""
    if size <= GRID:
        return size <= 2 * rest
    return size - GRID < rest if is_alone else size <= min(rest, MAX_CHUNK)
