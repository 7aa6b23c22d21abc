"""onnxruntime's own ops that only the host computes: of text, or of results whose size depends on
data. The reference evaluator runs them as ops of its own.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from ....errors import ModelFormatError
from ....types import NDArray
from .schemas import MICROSOFT

Results = tuple[NDArray, ...]


class ContribOp(OpRun):
    """An op of com.microsoft, whose attributes are only those that a node gives."""

    op_domain = MICROSOFT
    op_schema = None


# -- twins of ops of the default domain, for text --------------------------------------------------


class ExpandDims(ContribOp):
    """One more axis."""

    def _run(self, x: NDArray, axis: NDArray) -> Results:
        return (np.expand_dims(x, int(axis)),)


class GatherND(ContribOp):
    """Elements, or slices, by tuples of indices."""

    def _run(self, x: NDArray, indices: NDArray) -> Results:
        return (x[tuple(np.moveaxis(indices, -1, 0))],)


# -- numbers ---------------------------------------------------------------------------------------


class Inverse(ContribOp):
    """The inverse of each matrix."""

    def _run(self, x: NDArray) -> Results:
        wide = x.astype(np.float32) if x.dtype == np.float16 else x
        return (np.linalg.inv(wide).astype(x.dtype),)


class Unique(ContribOp):
    """The different elements as they first occur, where each element is among them, and how often
    each occurs.
    """

    def _run(self, x: NDArray) -> Results:
        values, first, places, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)
        at = np.argsort(order)[places.reshape(-1)]
        return values[order], at.astype(np.int64), counts[order].astype(np.int64)


class DynamicTimeWarping(ContribOp):
    """The path from the first element of costs (1, rows, columns) to the last whose sum is least.

    A step goes along both axes, or down, or along a row, in this order where sums are equal.
    """

    def _run(self, costs: NDArray) -> Results:
        costs = costs.reshape(costs.shape[-2:])
        rows, columns = costs.shape
        sums = np.full((rows + 1, columns + 1), np.inf, np.float32)
        steps = np.full(sums.shape, 2, np.int8)
        steps[:, 0] = 1
        sums[0, 0] = 0
        for diagonal in range(rows + columns - 1):
            row = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
            column = diagonal - row
            both, down, along = sums[row, column], sums[row, column + 1], sums[row + 1, column]
            taken = np.where((both < down) & (both < along), 0, np.where(
                (down < both) & (down < along), 1, 2))  # fmt: skip
            sums[row + 1, column + 1] = costs[row, column] + np.choose(taken, (both, down, along))
            steps[row + 1, column + 1] = taken
        path = []
        row_at, column_at = rows, columns
        while row_at > 0 or column_at > 0:
            path.append((row_at - 1, column_at - 1))
            step = steps[row_at, column_at]
            row_at -= step != 2
            column_at -= step != 1
        return (np.array(path[::-1], np.int32).T.copy(),)


class BifurcationDetector(ContribOp):
    """Words that were predicted, taken over as far as the source agrees, and where the source goes
    on behind the last words, if it has these once.
    """

    def _run(
        self,
        source: NDArray,
        current: NDArray,
        previous: NDArray,
        predicted: NDArray | None = None,
        min_ngram_size: int = 1,
        max_ngram_size: int = 1,
    ) -> Results:
        words, found = current, -1
        if predicted is not None:
            expected = source[int(previous.reshape(-1)[0]) :]
            differs = np.flatnonzero(predicted[: len(expected)] != expected)
            count = int(differs[0]) if differs.size else len(expected)
            words = np.concatenate([current, predicted[: count + 1]])
        for size in range(min_ngram_size, min(max_ngram_size, len(words)) + 1):
            if size > len(source):
                break
            windows = np.lib.stride_tricks.sliding_window_view(source, size)
            at = np.flatnonzero((windows == words[-size:]).all(1))
            if not at.size:
                break
            found = int(at[0]) + size
            if found >= len(source):
                break
            if at.size > 1:
                found = -1
        return words, np.full(previous.shape, found, np.int64)


# -- hashes ----------------------------------------------------------------------------------------


def _rotated(x: NDArray, bits: int) -> NDArray:
    return np.asarray(x << np.uint32(bits) | x >> np.uint32(32 - bits))


def murmur3(keys: NDArray, size: int, seed: int) -> NDArray:
    """Returns MurmurHash3_x86_32 of keys of `size` bytes each: (count, words), the last one filled
    up with zeros.
    """
    out = np.full(len(keys), seed, np.uint32)
    for at in range(keys.shape[1]):
        word = _rotated(keys[:, at] * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        out ^= word
        if 4 * at + 4 <= size:
            out = _rotated(out, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    out ^= np.uint32(size)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        out = (out ^ out >> np.uint32(shift)) * np.uint32(factor)
    return np.asarray(out ^ out >> np.uint32(16))


class MurmurHash3(ContribOp):
    """A hash of 32 bits of each element: of its bytes, of text in UTF-8."""

    def _run(self, x: NDArray, positive: int = 1, seed: int = 0) -> Results:
        made = np.empty(x.size, np.uint32)
        start = seed & 0xFFFFFFFF
        if x.dtype.kind in "OUS":
            for at, text in enumerate(x.reshape(-1)):
                data = str(text).encode()
                words = np.frombuffer(data + bytes(-len(data) % 4), "<u4")
                made[at] = murmur3(words[None], len(data), start)[0]
        else:
            words = np.ascontiguousarray(x).reshape(-1, 1).view(np.uint32)
            made[:] = murmur3(words, x.itemsize, start)
        return (made.view(np.uint32 if positive else np.int32).reshape(x.shape),)


# -- text ------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def _characters(category: str) -> str:
    """Returns the characters of a category of Unicode, as they stand within brackets."""
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
    """Returns a pattern in RE2's syntax as one of Python's."""

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
    """Returns where the first match begins, and the end of the longest one from there."""
    found = pattern.search(text, start)
    if found is None:
        return None
    for end in range(len(text), found.end(), -1):
        if pattern.fullmatch(text, found.start(), end):
            return found.start(), end
    return found.span()


def _separated(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yields what lies between matches; a match of nothing takes a character all the same."""
    start = 0
    while start <= len(text):
        found = _longest(pattern, text, start)
        if found is None:
            break
        yield text[start : found[0]]
        start = found[0] + max(1, found[1] - found[0])
    yield text[start:]


def _matches(text: str, pattern: re.Pattern[str], least: int) -> Iterator[str]:
    """Yields matches of some characters or more; of a shorter one, the first is passed over."""
    start = 0
    while start <= len(text):
        found = _longest(pattern, text, start)
        if found is None:
            break
        if found[1] - found[0] >= least:
            yield text[found[0] : found[1]]
            start = found[1]
        else:
            start = found[0] + 1


class Tokenizer(ContribOp):
    """Texts (..., count) as their parts (..., count, most), filled up with a text."""

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
        most = max(map(len, rows))
        if most and mark:
            rows = [["\x02", *row, "\x03"] for row in rows]
        most += 2 * bool(most and mark)
        out = np.full((len(rows), most), pad_value, object)
        for row, tokens in zip(out, rows, strict=True):
            row[: len(tokens)] = tokens
        return (out.reshape(*x.shape, most),)


def _tokens(text: str, separators: list[str], expression: str, least: int) -> Iterable[str]:
    if separators == [""] or (not separators and expression == "."):
        return text
    if not separators:
        return _matches(text, _pattern(expression), least)
    parts: Iterable[str] = [text]
    for separator in separators:
        pattern = _pattern(separator)
        parts = [p for part in parts for p in _separated(part, pattern) if len(p) >= least]
    return parts


HOST_OPS: tuple[type[Any], ...] = (
    BifurcationDetector,
    DynamicTimeWarping,
    ExpandDims,
    GatherND,
    Inverse,
    MurmurHash3,
    Tokenizer,
    Unique,
)
"""All of these ops, by their names."""


def has_host_op(op_type: str, domain: str) -> bool:
    """Returns whether the host computes an op of onnxruntime's own."""
    return domain == MICROSOFT and any(op.__name__ == op_type for op in HOST_OPS)
