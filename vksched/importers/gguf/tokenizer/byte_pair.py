"""Byte-pair encoding: merges pairs with the package `tokenizers`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from ....common.errors import ModelFormatError, VkschedError, close_text
from ....common.user_warning import warn_user
from .fields import PREFIX, Fields
from .pre_tokenizer import PATTERNS, PRE, PreTokenizer
from .vocabulary import BYTE, SPACE, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library
    from tokenizers.models import BPE


def _letters() -> dict[str, int]:
    """Return the byte of each character of a byte-level token."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [each for each in range(256) if each not in plain]
    return {chr(each): each for each in plain} | {
        chr(256 + number): each for number, each in enumerate(rest)
    }


LETTERS = _letters()
LONG = 1 << 14
"""The number of characters from which a text is encoded as a batch, for which the library releases
the interpreter lock.
"""


def find_pre(fields: Fields, model: str) -> PreTokenizer:
    """Return the pre-tokenizer of a file; the default, with a warning, if the file names none."""
    if model == "gemma4":
        return PRE["gemma4"]
    name = fields.text("pre")
    if name is None or name == "":
        warn_user(f"[gguf] the file has no {PREFIX}pre; texts are cut by the pattern 'default'")
        return PRE["default"]
    if name not in PRE:
        raise ModelFormatError(
            f"[gguf] expected a known way to cut texts in {PREFIX}pre, got {name[:60]!r}"
            f"{close_text(name[:60], PRE)}"
        )
    return PRE[name]


class BytePair:
    """A BPE tokenizer that merges pairs in the order of the file's list."""

    def __init__(self, vocabulary: Vocabulary, fields: Fields, pre: PreTokenizer) -> None:
        self._vocabulary = vocabulary
        self._pre = pre
        self._library = _build(vocabulary, fields, pre)

    def encode(self, text: str) -> list[int]:
        if not self._pre.spaces:
            return self._run(text)
        out: list[int] = []
        for word in re.split(r"(\n+)", text.replace(" ", SPACE)):
            token = self._vocabulary.ids.get(word) if word.startswith("\n") else None
            out.extend(self._run(word) if token is None else (token,))
        return out

    def bytes_of(self, token: int) -> bytes:
        if self._vocabulary.types[token] == BYTE:
            return bytes([self._vocabulary.bytes_of(token)])
        text = self._vocabulary.tokens[token]
        if self._pre.spaces:
            return text.replace(SPACE, " ").encode("utf-8", "replace")
        known = all(each in LETTERS for each in text)
        return bytes(LETTERS[each] for each in text) if known else text.encode("utf-8", "replace")

    def _run(self, text: str) -> list[int]:
        if len(text) < LONG:
            return list(self._library.encode(text, add_special_tokens=False).ids)
        (encoding,) = self._library.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)


def _pairs(lines: list[str]) -> list[tuple[str, str]] | None:
    """Return the pairs of merge lines; None if they need the slower check for duplicates."""
    cut = [line.partition(" ") for line in lines]
    pairs = [(left, right) for left, _, right in cut if left]
    return pairs if len(pairs) == len(set(lines)) == len(lines) else None


def _checked_pairs(lines: list[str], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the unique pairs of merge lines.

    Raises
    ------
    ModelFormatError
        A line is not a merge of two tokens.
    """
    out: dict[tuple[str, str], None] = {}
    for number, line in enumerate(lines):
        at = line.find(" ", 1)
        left, right = line[:at], line[at + 1 :]
        if at < 0 or not right:
            raise ModelFormatError(
                f"[gguf] expected two pieces with a space between in {PREFIX}merges, "
                f"got {line[:60]!r} at {number}"
            )
        for piece in (left, right, left + right):
            if piece not in ids:
                raise ModelFormatError(
                    f"[gguf] expected merges of tokens in {PREFIX}merges, got {line[:60]!r} at "
                    f"{number}, where {piece[:60]!r} is no token"
                )
        out.setdefault((left, right))
    return list(out)


def _build(vocabulary: Vocabulary, fields: Fields, pre: PreTokenizer) -> Library:
    lines = fields.texts("merges")
    if lines is None:
        raise ModelFormatError(f"[gguf] expected a list of merges in {PREFIX}merges, got none")
    try:
        from tokenizers import Regex, Tokenizer, pre_tokenizers
    except ImportError as error:
        raise VkschedError(
            '[gguf] expected the tokenizers package, got none; try pip install "vksched[gguf]"'
        ) from error
    library = Tokenizer(_model(vocabulary.ids, lines, pre))
    if not pre.spaces:
        cuts = [pre_tokenizers.Split(Regex(each), "isolated") for each in PATTERNS[pre.patterns]]
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        library.pre_tokenizer = pre_tokenizers.Sequence([*cuts, letters])
    return library


def _model(ids: dict[str, int], lines: list[str], pre: PreTokenizer) -> BPE:
    """Return the BPE model. The library rejects merges of unknown tokens; the lines are then
    checked one by one to name the invalid one.
    """
    from tokenizers.models import BPE

    how = {"ignore_merges": pre.whole_words, "byte_fallback": pre.spaces}
    pairs = _pairs(lines)
    if pairs is not None:
        with suppress(Exception):  # the library raises plain Exception
            return BPE(vocab=ids, merges=pairs, **how)
    return BPE(vocab=ids, merges=_checked_pairs(lines, ids), **how)
