"""Metadata: reads the keys of a GGUF file, each with a number, a Boolean, a string or an array.

count of keys, then for each:  name | type | value        array:  type | count | values
"""

from __future__ import annotations

from typing import TypeAlias

from gguf.constants import GGUFValueType

from ....common.dtypes import NDArray
from ....common.errors import ModelFormatError
from ....storage.model_file import ModelFile
from .cursor import Cursor
from .limits import MAX_DEPTH, MAX_KEY_BYTES, MAX_NESTED, MAX_STRINGS
from .texts import LazyStrings

Value: TypeAlias = bool | int | float | str | NDArray | LazyStrings | tuple["Value", ...]
"""The value of a key. An array of numbers or Booleans is a read-only NDArray, an array of strings
or arrays is a tuple, and an array of many strings is a LazyStrings.
"""

_NUMBERS = {
    GGUFValueType.UINT8: ("B", "u1"),
    GGUFValueType.INT8: ("b", "i1"),
    GGUFValueType.UINT16: ("H", "u2"),
    GGUFValueType.INT16: ("h", "i2"),
    GGUFValueType.UINT32: ("I", "u4"),
    GGUFValueType.INT32: ("i", "i4"),
    GGUFValueType.FLOAT32: ("f", "f4"),
    GGUFValueType.BOOL: ("B", "u1"),
    GGUFValueType.UINT64: ("Q", "u8"),
    GGUFValueType.INT64: ("q", "i8"),
    GGUFValueType.FLOAT64: ("d", "f8"),
}
"""The types of Python's struct and of numpy."""
MIN_KEY_BYTES = 8 + 1 + 4 + 1
"""The minimum bytes of a key with its value."""
MANY = 1 << 10
"""The number of strings from which on an array is decoded lazily."""
_LENGTH_BYTES = 8
_ARRAY_HEAD_BYTES = 4 + 8


def read_metadata(cursor: Cursor, count: int, file: ModelFile) -> dict[str, Value]:
    """Return the next `count` values by key. file: the file of the cursor.

    Raises
    ------
    ModelFormatError
        A key occurs twice, a type is unknown, or a value is truncated.
    """
    reader = _ValueReader(cursor, file)
    out: dict[str, Value] = {}
    for number in range(count):
        key = cursor.name(MAX_KEY_BYTES, f"metadata {number}")
        if key in out:
            raise ModelFormatError(
                f"[gguf] metadata {number}: expected each key once, got {key!r} again"
            )
        out[key] = reader.read(f"key {key!r}")
    return out


class _ValueReader:
    """The reader of one file's values, with totals for the limits."""

    def __init__(self, cursor: Cursor, file: ModelFile) -> None:
        self._cursor, self._file = cursor, file
        self._strings = MAX_STRINGS
        self._nested = MAX_NESTED

    def read(self, what: str) -> Value:
        """Return the next value, which follows its type."""
        return self._value(self._type(what), what)

    def _type(self, what: str) -> GGUFValueType:
        found = self._cursor.number("I", f"{what}, type")
        try:
            return GGUFValueType(found)
        except ValueError:
            raise ModelFormatError(
                f"[gguf] {what}: expected a type of 0 to {max(GGUFValueType)}, got {found}"
            ) from None

    def _value(self, kind: GGUFValueType, what: str) -> Value:
        if kind == GGUFValueType.STRING:
            return self._cursor.texts(1, what)[0]
        if kind == GGUFValueType.ARRAY:
            return self._array(what, 1)
        number = self._cursor.number(_NUMBERS[kind][0], what)
        if kind != GGUFValueType.BOOL:
            return number  # type: ignore[no-any-return]
        if number > 1:
            raise ModelFormatError(f"[gguf] {what}: expected a truth value of 0 or 1, got {number}")
        return bool(number)

    def _array(self, what: str, depth: int) -> Value:
        kind = self._type(f"{what}, elements")
        if kind == GGUFValueType.STRING:
            count = self._cursor.count(_LENGTH_BYTES, self._strings, f"{what}, count of strings")
            self._strings -= count
            start = self._cursor.at
            if count >= MANY and self._cursor.skip_texts(count, what):
                return LazyStrings(self._file, start, self._cursor.at, count)
            return tuple(self._cursor.texts(count, what))
        if kind == GGUFValueType.ARRAY:
            count = self._cursor.count(_ARRAY_HEAD_BYTES, self._nested, f"{what}, count of arrays")
            self._nested -= count
            if depth >= MAX_DEPTH:
                raise ModelFormatError(
                    f"[gguf] {what}: expected at most {MAX_DEPTH} arrays inside each other, got "
                    "more"
                )
            return tuple([self._array(what, depth + 1) for _ in range(count)])
        dtype = _NUMBERS[kind][1]
        count = self._cursor.count(int(dtype[1]), len(self._cursor.data), f"{what}, count")
        numbers = self._cursor.numbers(dtype, count, what)
        if kind != GGUFValueType.BOOL:
            return numbers
        if count and numbers.max() > 1:
            raise ModelFormatError(
                f"[gguf] {what}: expected truth values of 0 or 1, got {numbers.max()}"
            )
        return numbers.view(bool)
