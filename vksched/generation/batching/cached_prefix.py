"""CachedPrefix: the tokens whose keys and values are in a slot, or in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any

import numpy as np

from ..pictures.prompt_pictures import is_picture_id
from .chunk_grid import Chunk

States = Sequence[np.ndarray[Any, Any]]
MAX_CHECKPOINTS = 4
"""The maximum number of checkpoints of a prefix: their size does not depend on its length."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Recurrent states in host memory; several prefixes may share them. number: grows by age."""

    states: States
    number: int = field(default_factory=count().__next__)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.states)


@dataclass
class CachedPrefix:
    """A sequence of tokens whose keys and values are cached.

    Parameters
    ----------
    cache_key
        Only requests with the same key may use it.
    chunks
        The chunks of a prompt that computed the first rows. Later rows are those of decode steps.
    checkpoints
        The recurrent states after some numbers of tokens, in host memory.
    """

    cache_key: str = ""
    tokens: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens that chunks of a prompt computed."""
        return self.chunks[-1].end if self.chunks else 0

    def tokens_in_full_chunks(self, size: int) -> int:
        """Return the number of tokens in the first chunks of at least a size, which longer prompts
        have, too. Chunks with the logits of all tokens are of requests that reuse no prefixes. All
        chunks up to the last picture are shared, because chunks end where pictures begin and end.
        """
        starts = [c.start for c in self.chunks if is_picture_id(self.tokens[c.start])]
        last = starts[-1] if starts else -1

        def is_shared(chunk: Chunk) -> bool:
            return (chunk.count >= size or chunk.start <= last) and not chunk.all_logits

        return sum(chunk.count for chunk in takewhile(is_shared, self.chunks))

    def clear(self) -> None:
        self.tokens.clear()
        self.chunks.clear()
        self.checkpoints.clear()

    def truncate(self, tokens: int) -> None:
        """Forget all tokens after the first ones."""
        del self.tokens[tokens:]
        while self.prompt_tokens > tokens:
            self.chunks.pop()
        for end in [end for end in self.checkpoints if end > tokens]:
            del self.checkpoints[end]

    def first(self, tokens: int) -> CachedPrefix:
        """Return a copy of the first tokens."""
        lists = list(self.tokens), list(self.chunks), dict(self.checkpoints)
        prefix = CachedPrefix(self.cache_key, *lists)
        prefix.truncate(tokens)
        return prefix

    def add_checkpoint(self, states: States) -> None:
        """Store the recurrent states after all tokens."""
        self.checkpoints[len(self.tokens)] = Checkpoint(states)
        self._drop_closest()

    def merge_checkpoints(self, part: CachedPrefix) -> None:
        """Add the checkpoints of a prefix that is a part of this one."""
        self.checkpoints = {**part.checkpoints, **self.checkpoints}
        self._drop_closest()

    def _drop_closest(self) -> None:
        """Drop the checkpoints that are closest to their neighbours if there are too many, but
        never the last one.
        """
        while len(self.checkpoints) > MAX_CHECKPOINTS:
            ends = [0, *sorted(self.checkpoints)]
            gaps = {end: ends[i + 2] - ends[i] for i, end in enumerate(ends[1:-1])}
            del self.checkpoints[min(gaps, key=gaps.__getitem__)]

    def states_before(self, tokens: int) -> int:
        """Return the largest number of tokens, at most `tokens`, whose recurrent states are stored
        or in the slot; 0 if there are none.
        """
        known = {*tuple(self.checkpoints), len(self.tokens)}  # any thread may ask
        return max((end for end in known if end <= tokens), default=0)

    def drop_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Drop a checkpoint if it is one of this prefix."""
        for end in [end for end, each in self.checkpoints.items() if each is checkpoint]:
            del self.checkpoints[end]

    def append_chunk(self, chunk: Chunk, ids: Sequence[int], is_prompt: bool) -> None:
        """Append the tokens of a chunk. is_prompt: the chunk belongs to the grid of a prompt."""
        if is_prompt and chunk.start == self.prompt_tokens == len(self.tokens):
            self.chunks.append(chunk)
        self.tokens += ids

    def exact_match(self, text: Sequence[int], chunks: Sequence[Chunk], cache_key: str) -> int:
        """Return the number of tokens that the chunks of a prompt would compute again, to the bit.

        The last chunk is never among them, because its logits are needed. chunks: in order.
        """
        end = 0
        if cache_key != self.cache_key:
            return end
        for own, chunk in zip(self.chunks, chunks[:-1], strict=False):
            if own != chunk or self.tokens[chunk.start : own.end] != text[chunk.start : own.end]:
                break
            end = own.end
        return end

    def token_match(self, text: Sequence[int], cache_key: str) -> int:
        """Return the number of tokens that a text has in common, without its last one."""
        if cache_key != self.cache_key:
            return 0
        return min(common_prefix(self.tokens, text), len(text) - 1)

    def is_part_of(self, other: CachedPrefix) -> bool:
        """Return True if another prefix begins with this one, with the same chunks."""
        return (
            self.cache_key == other.cache_key
            and self.chunks == other.chunks[: len(self.chunks)]
            and self.tokens == other.tokens[: len(self.tokens)]
        )


def common_prefix(known: list[int], text: Sequence[int]) -> int:
    """Return the length of the common prefix of two token sequences."""
    low, high = 0, min(len(known), len(text))
    while low < high:  # known[:low] matches
        middle = (low + high + 1) // 2
        if known[low:middle] == list(text[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
