"""Cursor: reads numbers and strings of a file in sequence, with bounds checks."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import numpy as np

from ....common.dtypes import NDArray
from ....common.errors import ModelFormatError
from ....ops.lowering import native_kernels

_LENGTH = struct.Struct("<Q")
_layout = cache(lambda codes: struct.Struct(f"<{codes}"))


class Cursor:
    """A reader from the start to the end of a file; all numbers are little-endian.

    data: the whole file. at: the number of bytes that were read.
    """

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    @property
    def left(self) -> int:
        """The number of bytes that were not read."""
        return len(self.data) - self.at

    def take(self, size: int, what: str) -> memoryview:
        """Return the next bytes.

        Raises
        ------
        ModelFormatError
            The file ends before that.
        """
        if size > self.left:
            raise ModelFormatError(
                f"[gguf] {what}: expected {size} bytes from byte {self.at}, got a file of "
                f"{len(self.data)} bytes; try to get it again, as it is cut off or damaged"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, code: str, what: str) -> Any:
        """Return a number. code: the type as in Python's struct: "I", "Q", "f"."""
        return self.fields(code, what)[0]

    def fields(self, codes: str, what: str) -> tuple[Any, ...]:
        """Return consecutive numbers of several types."""
        layout = _layout(codes)
        if layout.size > self.left:
            self.take(layout.size, what)  # raises the error
        self.at += layout.size
        return layout.unpack_from(self.data, self.at - layout.size)

    def numbers(self, dtype: str, count: int, what: str) -> NDArray:
        """Return numbers as a read-only view of the file."""
        element_type = np.dtype(dtype).newbyteorder("<")
        return np.frombuffer(self.take(count * element_type.itemsize, what), element_type)

    def count(self, min_bytes: int, max_count: int, what: str) -> int:
        """Return the number of items that follow.

        min_bytes: the minimum size of an item. max_count: the maximum number.

        Raises
        ------
        ModelFormatError
            The number is larger than that, or than the rest of the file can hold.
        """
        found = int(self.number("Q", what))
        if found > min(max_count, self.left // min_bytes):
            raise ModelFormatError(
                f"[gguf] {what}: expected at most {min(max_count, self.left // min_bytes)} with "
                f"{self.left} bytes left of the file, got {found}; the file is cut off or damaged"
            )
        return found

    def name(self, max_bytes: int, what: str) -> str:
        """Return a UTF-8 string.

        Raises
        ------
        ModelFormatError
            It is empty, too long, or not UTF-8.
        """
        size = self.count(1, max_bytes, f"{what}, length of its name")
        raw = bytes(self.take(size, what))
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = ""
        if not text:
            raise ModelFormatError(f"[gguf] {what}: expected a name in UTF-8, got {raw[:40]!r}")
        return text

    def texts(self, count: int, what: str) -> list[str]:
        """Return strings. Invalid UTF-8 is decoded with `surrogateescape`, because vocabulary
        entries may be parts of a character.
        """
        out, at = native_kernels.gguf_strings(self.data, self.at, count) or _texts(
            self.data, self.at, count
        )
        self._skip_to(at, len(out), count, what)
        return out

    def skip_texts(self, count: int, what: str) -> bool:
        """Skip strings that lie within the file without decoding them; return False, without a
        change of the position, if only `texts` can read them.
        """
        skipped = native_kernels.skip_gguf_strings(self.data, self.at, count)
        if skipped is None:
            return False
        found, at = skipped
        self._skip_to(at, found, count, what)
        return True

    def _skip_to(self, at: int, found: int, count: int, what: str) -> None:
        if found < count:
            raise ModelFormatError(
                f"[gguf] {what}: expected {count} strings, got {found} and one that ends "
                f"behind byte {len(self.data)}, the last of the file; it is cut off or damaged"
            )
        self.at = at


def _texts(data: memoryview, at: int, count: int) -> tuple[list[str], int]:
    """The Python implementation of `loops.gguf_strings`."""
    out = []
    for _ in range(count):
        start = at + _LENGTH.size
        end = start + (_LENGTH.unpack_from(data, at)[0] if start <= len(data) else 0)
        if end > len(data) or start > len(data):
            break
        out.append(str(data[start:end], "utf-8", "surrogateescape"))
        at = end
    return out, at
