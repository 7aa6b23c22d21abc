"""Fields: typed access to the tokenizer metadata of an untrusted GGUF file."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....common.errors import ModelFormatError
from ..read.texts import LazyStrings

PREFIX = "tokenizer.ggml."


class Fields:
    """The keys of a file with the prefix `tokenizer.ggml.`."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def has(self, key: str) -> bool:
        return PREFIX + key in self._metadata

    def text(self, key: str) -> str | None:
        value = self._metadata.get(PREFIX + key)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(key, "a text", value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(PREFIX + key)
        if value is None:
            return default
        if isinstance(value, (bool, np.bool_)):
            return bool(value)
        raise self._wrong(key, "true or false", value)

    def index(self, key: str, size: int) -> int | None:
        """Return a token id; None if the file has none, or -1."""
        value = self._metadata.get(PREFIX + key)
        if value is None:
            return None
        if isinstance(value, (bool, np.bool_)):
            raise self._wrong(key, "a whole number", value)
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise self._wrong(key, "a whole number", value) from None
        if number in (-1, 0xFFFFFFFF):
            return None
        if not 0 <= number < size:
            raise ModelFormatError(
                f"[gguf] expected {PREFIX}{key} below {size}, the number of tokens, got {number}"
            )
        return number

    def texts(self, key: str) -> list[str] | None:
        value = self._list(key, "a list of texts")
        if value is None:
            return None
        for each in value:
            if not isinstance(each, str):
                raise self._wrong(key, "a list of texts", each)
        return list(value)

    def numbers(self, key: str, at_least: int) -> list[float] | None:
        """Return at least `at_least` finite numbers; None if the file has none."""
        found = self._array(key, at_least)
        if found is None:
            return None
        numbers = np.asarray(found, np.float64)
        if not np.isfinite(numbers).all():
            at = int(np.argmin(np.isfinite(numbers)))
            raise ModelFormatError(
                f"[gguf] expected finite numbers in {PREFIX}{key}, got {numbers[at]} at {at}"
            )
        return list(numbers.tolist())

    def wholes(self, key: str, at_least: int) -> list[int] | None:
        found = self._array(key, at_least)
        if found is None:
            return None
        if len(found) and found.dtype.kind not in "iu":
            raise self._wrong(key, "a list of whole numbers", found.dtype)
        return list(found.tolist())

    def bytes(self, key: str) -> bytes | None:
        value = self._metadata.get(PREFIX + key)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        found = self.wholes(key, 0)
        if found is None:
            return None
        if any(not -128 <= each < 256 for each in found):
            raise self._wrong(key, "bytes", "numbers over 255")
        return bytes(each & 255 for each in found)

    def _array(self, key: str, at_least: int) -> np.ndarray[Any, np.dtype[Any]] | None:
        value = self._list(key, "a list of numbers")
        if value is None:
            return None
        try:
            found = np.asarray(value)
        except (ValueError, OverflowError):
            raise self._wrong(key, "a list of numbers", value) from None
        if found.ndim != 1 or (len(found) and found.dtype.kind not in "iuf"):
            raise self._wrong(key, "a list of numbers", value)
        if len(found) < at_least:
            raise ModelFormatError(
                f"[gguf] expected {at_least} numbers in {PREFIX}{key}, one for each token, "
                f"got {len(found)}"
            )
        return found

    def _list(self, key: str, what: str) -> Sequence[Any] | None:
        value = self._metadata.get(PREFIX + key)
        if value is None:
            return None
        if isinstance(value, (list, tuple, LazyStrings, np.ndarray)):
            return value  # type: ignore[return-value]
        raise self._wrong(key, what, value)

    @staticmethod
    def _wrong(key: str, what: str, value: object) -> ModelFormatError:
        return ModelFormatError(f"[gguf] expected {what} in {PREFIX}{key}, got {str(value)[:60]!r}")
