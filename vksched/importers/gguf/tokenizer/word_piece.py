"""WordPiece: BERT's tokenizer, which splits each word greedily into the longest tokens from the
left.

In a GGUF file, tokens at the start of a word begin with "▁"; continuation tokens do not.
"""

from __future__ import annotations

import unicodedata

from ....common.errors import ModelFormatError
from .fields import PREFIX, Fields
from .vocabulary import CONTROL, SPACE, UNKNOWN, Vocabulary

_HAN = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
"""Characters that are words by themselves."""


class WordPiece:
    def __init__(self, vocabulary: Vocabulary, fields: Fields) -> None:
        self._vocabulary = vocabulary
        if "unknown" not in vocabulary.roles:
            raise ModelFormatError(
                f"[gguf] expected {PREFIX}unknown_token_id for a tokenizer of the model bert, "
                "got none"
            )
        self._unknown = vocabulary.roles["unknown"]
        self._longest = max(map(len, vocabulary.tokens))
        self._lower = fields.flag("normalizer.lowercase", True)
        self._strip = fields.flag("normalizer.strip_accents", self._lower)

    def encode(self, text: str) -> list[int]:
        out: list[int] = []
        for word in self._words(text):
            out.extend(self._cut(SPACE + word) or [self._unknown])
        return out

    def bytes_of(self, token: int) -> bytes:
        text = self._vocabulary.tokens[token]
        if self._vocabulary.types[token] not in (CONTROL, UNKNOWN):
            text = text.replace(SPACE, " ")
        return text.encode("utf-8", "replace")

    def _cut(self, word: str) -> list[int]:
        """Return the tokens of a word; empty if a part of it has no token."""
        ids = self._vocabulary.ids
        out: list[int] = []
        at = 0
        while at < len(word):
            for end in range(min(len(word), at + self._longest), at, -1):
                token = ids.get(word[at:end])
                if token is not None:
                    out.append(token)
                    at = end
                    break
            else:
                return []
        return out

    def _words(self, text: str) -> list[str]:
        if self._strip:
            text = unicodedata.normalize("NFD", text)
        out: list[str] = []
        word: list[str] = []
        for each in text:
            kind = unicodedata.category(each)
            alone = kind[0] == "P" or (each < "\x7f" and kind[0] == "S") or _is_han(ord(each))
            if each.isspace() or kind[0] == "Z" or alone:
                if word:
                    out.append("".join(word))
                    word = []
                if alone:
                    out.append(each.lower() if self._lower else each)
                continue
            if each in "\0\ufffd" or kind[0] == "C" or (self._strip and kind[0] == "M"):
                continue
            word.append(each.lower() if self._lower else each)
        return [*out, "".join(word)] if word else out


def _is_han(code: int) -> bool:
    return code >= 0x3400 and any(first <= code <= last for first, last in _HAN)
