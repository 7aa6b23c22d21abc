"""String ops and n-gram counts with onnxruntime's results, where the onnx evaluator differs.

| op               | behavior of the evaluator                                            |
|------------------|----------------------------------------------------------------------|
| Cast, CastLike   | formats and parses numbers as numpy does                             |
| StringNormalizer | strips accents, drops empty strings                                  |
| StringSplit      | splits at all white space, an empty string into one part             |
| TfIdfVectorizer  | mixes up weights if n-grams are not in the order of their columns    |
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto
from onnx.helper import np_dtype_to_tensor_dtype, tensor_dtype_to_np_dtype
from onnx.reference.op_run import OpRun

from ....common.dtypes import NDArray

Results = tuple[NDArray, ...]


# -- numbers as strings --------------------------------------------------------------------------

_NUMBER = re.compile(r"\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?|nan)", re.I)
_WHOLE = re.compile(r"\s*[+-]?\d+")


def number_of(text: str) -> float:
    """Return the number that a string starts with."""
    return float(_beginning(_NUMBER, text))


def whole_of(text: str) -> int:
    """Return the integer that a string starts with."""
    return int(_beginning(_WHOLE, text))


def _beginning(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.match(text)
    if match is None:
        raise ValueError(f"expected strings that start with a number, got {text!r}")
    return match[0]


def _text_of(value: float | int | str) -> str:
    """Format a number with 8 digits, as onnxruntime does."""
    if not isinstance(value, float):
        return str(int(value)) if isinstance(value, bool) else str(value)
    if value != value:
        return "NaN"
    return f"{value:.8g}".replace("inf", "INF")


def convert_texts(x: NDArray, elem_type: int) -> NDArray:
    """Convert strings to another element type, or numbers to strings."""
    items = np.asarray(x).reshape(-1)
    if elem_type == TensorProto.STRING:
        wide = items.astype(np.float32) if items.dtype.name in _SMALL else items
        return _filled([_text_of(v) for v in wide.tolist()], object, x)
    dtype = np.dtype(tensor_dtype_to_np_dtype(elem_type))
    if dtype.kind in "iub":
        wholes = [whole_of(v) for v in items.tolist()]
        if dtype.kind == "b":
            return _filled([bool(v) for v in wholes], dtype, x)
        span = 1 << 8 * dtype.itemsize
        lowest = -span // 2 if dtype.kind == "i" else 0
        return _filled([(v - lowest) % span + lowest for v in wholes], dtype, x)
    return _filled([number_of(v) for v in items.tolist()], np.float64, x).astype(dtype)


_SMALL = ("float16", "bfloat16")


def _filled(values: Sequence[Any], dtype: Any, like: NDArray) -> NDArray:
    out = np.empty(len(values), dtype)
    out[:] = values
    return out.reshape(np.shape(like))


class Cast(OpRun):
    """Cast, with onnxruntime's conversion of strings."""

    def _run(
        self, x: NDArray, to: int, saturate: int | None = 1, round_mode: str | None = "up"
    ) -> Results:
        if to == TensorProto.STRING or np.asarray(x).dtype.kind in "OUS":
            return (convert_texts(x, to),)
        from onnx.reference.ops.op_cast import cast_to  # imports all ops

        kind = TensorProto.DataType.Name(to)
        saturates = saturate is None or bool(saturate)
        return (cast_to(x, getattr(TensorProto, kind), saturates, round_mode or "up"),)


class CastLike(OpRun):
    """Cast to the element type of another tensor."""

    def _run(self, x: NDArray, y: NDArray, saturate: int | None = 1, **_: Any) -> Results:
        kind = np.asarray(y).dtype
        to = TensorProto.STRING if kind.kind in "OUS" else np_dtype_to_tensor_dtype(kind)
        return Cast._run(self, x, to, saturate)  # type: ignore[arg-type]


# -- strings ------------------------------------------------------------------------------------


_CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


class StringNormalizer(OpRun):
    """Change the case of strings (count) or (1, count) and remove stop words; [""] if none
    remain.
    """

    def _run(
        self,
        x: NDArray,
        case_change_action: str = "NONE",
        is_case_sensitive: int = 0,
        stopwords: Sequence[str] | None = None,
        **_: Any,
    ) -> Results:
        if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
            raise ValueError(f"expected strings (count) or (1, count), got shape {x.shape}")
        compare: Callable[[str], str] = str if is_case_sensitive else str.lower
        stops = {compare(word) for word in stopwords or ()}
        change = _CASES[case_change_action]
        texts = [change(text) for text in x.reshape(-1).tolist() if compare(text) not in stops]
        return (np.array(texts or [""], object).reshape((1, -1) if x.ndim == 2 else -1),)


class StringSplit(OpRun):
    """Return the padded parts of each string, and their number."""

    def _run(
        self, x: NDArray, delimiter: str | None = None, maxsplit: int | None = None
    ) -> Results:
        max_splits = -1 if maxsplit is None else maxsplit
        parts = [_parts(text, delimiter, max_splits) for text in x.reshape(-1).tolist()]
        counts = np.array([len(p) for p in parts], np.int64)
        width = int(counts.max(initial=0))
        out = np.full((len(parts), width), "", object)
        for row, found in zip(out, parts, strict=True):
            row[: len(found)] = found
        return out.reshape((*x.shape, width)), counts.reshape(x.shape)


def _parts(text: str, delimiter: str | None, max_splits: int) -> list[str]:
    if delimiter:
        return text.split(delimiter, max_splits) if text else []
    found: list[str] = []
    rest = text.strip(" ")
    while rest and len(found) != max_splits:
        part, _, rest = rest.partition(" ")
        found.append(part)
        rest = rest.lstrip(" ")
    return [*found, rest] if rest else found


class TfIdfVectorizer(OpRun):
    """Return weighted n-gram counts of each row: (rows, items) -> (rows, columns).

    An n-gram may skip up to max_skip_count items between neighbors, always the same number.
    """

    def _run(self, x: NDArray, mode: str, **_: Any) -> Results:
        get = self._attribute
        places = {gram: i for i, gram in enumerate(self._grams())}
        columns = get("ngram_indexes")
        weights = (mode != "TF" and get("weights")) or [1.0] * len(columns)
        lengths = range(get("min_gram_length"), get("max_gram_length") + 1)
        rows = x.reshape(-1, x.shape[-1]).tolist()
        out = np.zeros((len(rows), max(columns) + 1), np.float32)
        for row, items in zip(out, rows, strict=True):
            for gram, count in Counter(_windows(items, lengths, get("max_skip_count"))).items():
                i = places.get(gram)
                if i is not None:
                    row[columns[i]] += weights[i] * (1 if mode == "IDF" else count)
        return (out.reshape((*x.shape[:-1], -1)),)

    def _attribute(self, name: str) -> Any:
        return getattr(self, name)

    def _grams(self) -> Iterator[tuple[Any, ...]]:
        """Yield the n-grams of the pool in their order."""
        pool = self._attribute("pool_strings") or self._attribute("pool_int64s")
        starts = self._attribute("ngram_counts")
        for length, (start, end) in enumerate(
            zip(starts, [*starts[1:], len(pool)], strict=True), 1
        ):
            for at in range(start, end, length):
                yield tuple(pool[at : at + length])


def _windows(items: Sequence[Any], lengths: range, skips: int) -> Iterator[tuple[Any, ...]]:
    for length in lengths:
        for step in range(1, (skips if length > 1 else 0) + 2):
            for start in range(len(items) - (length - 1) * step):
                yield tuple(items[start : start + (length - 1) * step + 1 : step])


OPS: tuple[type[OpRun], ...] = (Cast, CastLike, StringNormalizer, StringSplit, TfIdfVectorizer)
"""All ops of this module."""
