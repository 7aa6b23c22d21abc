"""Tokenizer of com.microsoft on the CPU."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np

from ....common.dtypes import NDArray
from ....common.errors import ModelFormatError
from .contrib_base import ContribOp, Results


@lru_cache(maxsize=32)
def _characters(category: str) -> str:
    """Return the characters of a Unicode category in the syntax of a character class."""
    held = [unicodedata.category(chr(c)).startswith(category) for c in range(sys.maxunicode + 1)]
    ends = np.flatnonzero(np.diff(np.array([False, *held, False], np.int8)))
    if not ends.size:
        raise ModelFormatError(
            f"[onnx] Tokenizer: expected a category of Unicode in its pattern, got {category!r}; "
            r"try one such as \p{L} or \p{Nd}"
        )
    return "".join(f"\\U{a:08x}-\\U{b - 1:08x}" for a, b in ends.reshape(-1, 2))


@lru_cache(maxsize=256)
def _pattern(source: str) -> re.Pattern[str]:
    """Convert a pattern from RE2's syntax to Python's."""

    def category(found: re.Match[str]) -> str:
        kind = _characters(found[2].strip("{}"))
        inside = source[: found.start()].count("[") > source[: found.start()].count("]")
        if found[1] == "P" and inside:
            raise ModelFormatError(
                f"[onnx] Tokenizer: expected no {found[0]} within brackets, got {source!r}"
            )
        return kind if inside else f"[{'^' if found[1] == 'P' else ''}{kind}]"

    text = re.sub(r"\\([pP])(\w|\{\w+\})", category, source).replace(r"\z", r"\Z")
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        raise ModelFormatError(
            f"[onnx] Tokenizer: expected a regular expression, got {source!r}, {error}"
        ) from None


def _longest(pattern: re.Pattern[str], text: str, start: int) -> tuple[int, int] | None:
    """Return the start of the first match, and the end of the longest match from there."""
    found = pattern.search(text, start)
    if found is None:
        return None
    for end in range(len(text), found.end(), -1):
        if pattern.fullmatch(text, found.start(), end):
            return found.start(), end
    return found.span()


def _separated(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the parts between matches; an empty match consumes one character."""
    start = 0
    while start <= len(text):
        found = _longest(pattern, text, start)
        if found is None:
            break
        yield text[start : found[0]]
        start = found[0] + max(1, found[1] - found[0])
    yield text[start:]


def _matches(text: str, pattern: re.Pattern[str], min_length: int) -> Iterator[str]:
    """Yield matches of at least `min_length` characters; after a shorter one, continue at the next
    character.
    """
    start = 0
    while start <= len(text):
        found = _longest(pattern, text, start)
        if found is None:
            break
        if found[1] - found[0] >= min_length:
            yield text[found[0] : found[1]]
            start = found[1]
        else:
            start = found[0] + 1


class Tokenizer(ContribOp):
    """Split strings (..., count) into padded tokens (..., count, max_tokens)."""

    def _run(
        self,
        x: NDArray,
        mark: int = 0,
        mincharnum: int = 1,
        pad_value: str = "",
        separators: Sequence[str] = (),
        tokenexp: str = "",
    ) -> Results:
        if not x.size:
            return (x,)
        rows = [
            list(_tokens(str(text), list(separators), tokenexp, mincharnum))
            for text in x.reshape(-1)
        ]
        width = max(map(len, rows))
        if width and mark:
            rows = [["\x02", *row, "\x03"] for row in rows]
        width += 2 * bool(width and mark)
        out = np.full((len(rows), width), pad_value, object)
        for row, tokens in zip(out, rows, strict=True):
            row[: len(tokens)] = tokens
        return (out.reshape(*x.shape, width),)


def _tokens(text: str, separators: list[str], expression: str, min_length: int) -> Iterable[str]:
    if separators == [""] or (not separators and expression == "."):
        return text
    if not separators:
        return _matches(text, _pattern(expression), min_length)
    parts: Iterable[str] = [text]
    for separator in separators:
        pattern = _pattern(separator)
        parts = [p for part in parts for p in _separated(part, pattern) if len(p) >= min_length]
    return parts
