"""SentencePiece BPE: merges the pair whose token has the highest score first.

    ▁ h e y  --(h e: -3, ▁ h: -5)-->  ▁ he y  -->  ▁he y  -->  ▁hey

The package `tokenizers` gives each merge a unique rank, so it cannot break ties between equal
scores by position, as sentencepiece does. Complexity: O(n log n) for a word of length n. Words are
split before "▁" if no token spans that position, and cached.
"""

from __future__ import annotations

import heapq
import re

from .vocabulary import BYTE, CONTROL, SPACE, USER_DEFINED, Vocabulary

_MAX_WORDS, _MAX_LETTERS = 1 << 16, 64
"""The maximum number of cached words, and their maximum length."""


class SentencePiece:
    """A tokenizer that merges by score; characters without a token become byte tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bytes = vocabulary.byte_ids()
        self._words: dict[str, list[int]] = {}
        crossing = re.compile(f"[^{SPACE}]{SPACE}")
        cut = not any(crossing.search(each) for each in vocabulary.tokens)
        self._cut = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+" if cut else r"(?s).+")

    def encode(self, text: str) -> list[int]:
        out: list[int] = []
        for word in self._cut.findall(text.replace(" ", SPACE)):
            found = self._words.get(word)
            if found is None:
                found = self._merge(word)
                if len(word) <= _MAX_LETTERS:
                    if len(self._words) >= _MAX_WORDS:
                        self._words.clear()
                    self._words[word] = found
            out.extend(found)
        return out

    def bytes_of(self, token: int) -> bytes:
        return piece_bytes(self._vocabulary, token)

    def _merge(self, word: str) -> list[int]:
        ids, scores = self._vocabulary.ids, self._vocabulary.scores
        size = len(word)
        ends = list(range(1, size + 1))
        """The end of the piece that starts at each position; 0 if there is none."""
        starts = list(range(-1, size))
        """The start of the piece before the one that starts at each position."""
        queue: list[tuple[float, int, int, int]] = []

        def offer(left: int, middle: int) -> None:
            end = ends[middle]
            token = ids.get(word[left:end])
            if token is not None:
                heapq.heappush(queue, (-scores[token], left, middle, end))

        for each in range(1, size):
            offer(each - 1, each)
        while queue:
            _, left, middle, end = heapq.heappop(queue)
            if ends[left] != middle or ends[middle] != end:
                continue
            ends[left], ends[middle] = end, 0
            if end < size:
                starts[end] = left
                offer(left, end)
            if left > 0:
                offer(starts[left], left)
        out: list[int] = []
        at = 0
        while at < size:
            piece = word[at : ends[at]]
            at = ends[at]
            token = ids.get(piece)
            out.extend(self._fall_back(piece) if token is None else (token,))
        return out

    def _fall_back(self, piece: str) -> list[int]:
        """Return the byte tokens of a character; the unknown token for bytes without one."""
        found = [self._bytes.get(each) for each in piece.encode()]
        known = [each for each in found if each is not None]
        if len(known) == len(found):
            return known
        unknown = self._vocabulary.roles.get("unknown")
        return [] if unknown is None else [unknown]


def piece_bytes(vocabulary: Vocabulary, token: int) -> bytes:
    """Return the bytes of a sentencepiece token."""
    kind, text = vocabulary.types[token], vocabulary.tokens[token]
    if kind == BYTE:
        return bytes([vocabulary.bytes_of(token)])
    if kind not in (CONTROL, USER_DEFINED):
        text = text.replace(SPACE, " ")
    return text.encode("utf-8", "replace")
