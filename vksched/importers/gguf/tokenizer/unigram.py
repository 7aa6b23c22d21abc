"""Unigram: sentencepiece's unigram model, which selects the segmentation with the maximum sum of
scores.

    best[end] = max over tokens that end there of best[start] + score

Complexity: the length of the text times the number of distinct token lengths for a first character.
"""

from __future__ import annotations

import math
from bisect import insort

from ....common.errors import ModelFormatError
from .fields import PREFIX, Fields
from .normalizer import CharacterMap
from .sentence_piece import piece_bytes
from .vocabulary import NORMAL, SPACE, UNUSED, USER_DEFINED, Vocabulary

_PENALTY = 10.0
"""The penalty of an unknown character relative to the minimum score."""


class Unigram:
    def __init__(self, vocabulary: Vocabulary, fields: Fields) -> None:
        self._vocabulary = vocabulary
        self._prefix = fields.flag("add_space_prefix", False)
        self._merge_spaces = fields.flag("remove_extra_whitespaces", False)
        data = fields.bytes("precompiled_charsmap")
        self._map = CharacterMap(data) if data else None
        if "unknown" not in vocabulary.roles:
            raise ModelFormatError(
                f"[gguf] expected {PREFIX}unknown_token_id for a tokenizer of the model t5, "
                "got none"
            )
        self._unknown = vocabulary.roles["unknown"]
        normal = [vocabulary.scores[each] for each in vocabulary.of_type(NORMAL)]
        self._unknown_score = min(normal, default=0.0) - _PENALTY
        self._scores = dict.fromkeys(vocabulary.of_type(USER_DEFINED), 0.0)
        for each in vocabulary.of_type(NORMAL, UNUSED):
            self._scores[each] = vocabulary.scores[each]
        self._ids = {vocabulary.tokens[each]: each for each in self._scores}
        self._lengths: dict[str, list[int]] = {}
        for first, length in {(each[0], len(each)) for each in self._ids}:
            insort(self._lengths.setdefault(first, []), length)

    def encode(self, text: str) -> list[int]:
        text = self._normalize(text)
        size = len(text)
        best = [0.0] + [-math.inf] * size
        tokens, starts = [self._unknown] * (size + 1), [0] * (size + 1)
        for start, first in enumerate(text):
            whole = False
            for length in self._lengths.get(first, ()):
                end = start + length
                if end > size:
                    break
                token = self._ids.get(text[start:end])
                if token is not None:
                    whole = whole or length == 1
                    score = best[start] + self._scores[token]
                    if score > best[end]:
                        best[end], tokens[end], starts[end] = score, token, start
            if not whole and best[start] + self._unknown_score > best[start + 1]:
                best[start + 1] = best[start] + self._unknown_score
                tokens[start + 1], starts[start + 1] = self._unknown, start
        out: list[int] = []
        while size:
            token = tokens[size]
            if not (out and out[-1] == token == self._unknown):
                out.append(token)
            size = starts[size]
        return out[::-1]

    def bytes_of(self, token: int) -> bytes:
        return piece_bytes(self._vocabulary, token)

    def _normalize(self, text: str) -> str:
        if self._map is not None:
            text = self._map.replace(text)
        out: list[str] = []
        prepended = inside = False
        for each in text:
            if each == " ":
                inside = False
                if not self._merge_spaces:
                    out.append(SPACE)
                continue
            if not inside:
                inside = True
                if self._merge_spaces or (self._prefix and not prepended):
                    out.append(SPACE)
                    prepended = True
            out.append(each)
        return "".join(out)
