"""CachedPrefix: the tokens whose keys and values are in a slot, or in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from .chunk_grid import Chunk


@dataclass
class CachedPrefix:
    """A sequence of tokens whose keys and values are cached.

    Parameters
    ----------
    cache_key
        Only requests with the same key may use it.
    chunks
        The chunks of a prompt that computed the first rows. Later rows are those of decode steps.
    """

    cache_key: str = ""
    tokens: list[int] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens that chunks of a prompt computed."""
        return self.chunks[-1].end if self.chunks else 0

    def tokens_in_full_chunks(self, size: int) -> int:
        """Return the number of tokens in the first chunks of at least a size, which longer prompts
        have, too. Chunks with the logits of all tokens are of requests that reuse no prefixes.
        """

        def is_shared(chunk: Chunk) -> bool:
            return chunk.count >= size and not chunk.all_logits

        return sum(chunk.count for chunk in takewhile(is_shared, self.chunks))

    def clear(self) -> None:
        self.tokens.clear()
        self.chunks.clear()

    def truncate(self, tokens: int) -> None:
        """Forget all tokens after the first ones."""
        del self.tokens[tokens:]
        while self.prompt_tokens > tokens:
            self.chunks.pop()

    def first(self, tokens: int) -> CachedPrefix:
        """Return a copy of the first tokens."""
        prefix = CachedPrefix(self.cache_key, list(self.tokens), list(self.chunks))
        prefix.truncate(tokens)
        return prefix

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
