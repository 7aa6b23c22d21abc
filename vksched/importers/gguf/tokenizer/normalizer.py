"""Normalizer: sentencepiece's replacement table, which maps each longest match to its normal form.

The table is a double-array trie of 32-bit entries (Kanda: Space- and time-efficient string
dictionaries, 2018), followed by the replacements, each terminated by a zero byte.

    entry: 31: holds a value | 10-30: base | 9: base is shifted by 8 | 8: has a value | 0-7: byte
"""

from __future__ import annotations

import numpy as np

from ....common.errors import ModelFormatError
from .fields import PREFIX

MAX_KEY_BYTES = 1 << 8
"""The maximum bytes of a match; sentencepiece's own tables have about 20."""
MAX_VALUE_BYTES = 1 << 12
"""The maximum bytes of a replacement."""
MAX_GROWTH, SPARE_BYTES = 64, 1 << 12
"""The maximum growth of a text: a factor and a number of bytes. Unicode's NFKC has a factor of at
most 11: the ligature U+FDFA becomes 18 characters.
"""


class CharacterMap:
    """The replacement table of a file."""

    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little") if len(data) >= 4 else 0
        if len(data) < 4 or size % 4 or size + 4 >= len(data):
            raise _wrong("a table and texts", f"{len(data)} bytes of which {size} are the table")
        self._trie: list[int] = np.frombuffer(data, "<u4", size // 4, 4).tolist()
        self._texts = data[4 + size :]

    def replace(self, text: str) -> str:
        """Return the normal form of a text.

        Raises
        ------
        ModelFormatError
            The table is damaged, or the text grows beyond the limit.
        """
        data = text.encode()
        out: list[bytes] = []
        at, size = 0, len(data)
        left_bytes = MAX_GROWTH * size + SPARE_BYTES
        while at < size:
            length, found = self._find(data, at)
            if length:
                out.append(found)
                at += length
                left_bytes -= len(found)
                if left_bytes < 0:
                    expected = f"at most {MAX_GROWTH} bytes for each byte of a text"
                    raise _wrong(expected, f"more for one of {size} bytes")
                continue
            end = at + 1
            while end < size and data[end] & 0xC0 == 0x80:
                end += 1
            out.append(data[at:end])
            at = end
        return b"".join(out).decode("utf-8", "replace")

    def _find(self, data: bytes, start: int) -> tuple[int, bytes]:
        """Return the length of the longest match, 0 for none, and its replacement."""
        trie = self._trie
        length = value = 0
        try:
            node = _base(trie[0])
            for at in range(start, min(len(data), start + MAX_KEY_BYTES)):
                byte = data[at]
                node ^= byte
                entry = trie[node]
                if byte == 0 or entry & 0x800000FF != byte:
                    break
                node ^= _base(entry)
                if entry >> 8 & 1:
                    length, value = at - start + 1, trie[node] & 0x7FFFFFFF
            else:
                if len(data) > start + MAX_KEY_BYTES:
                    expected = f"keys of at most {MAX_KEY_BYTES} bytes"
                    raise _wrong(expected, "a longer one, or one without end")
        except IndexError:
            raise _wrong("entries within the table", "one outside of it") from None
        if not length:
            return 0, b""
        end = self._texts.find(b"\0", value, value + MAX_VALUE_BYTES + 1)
        if value >= len(self._texts) or end < 0:
            expected = f"replacements that end within the table and {MAX_VALUE_BYTES} bytes"
            raise _wrong(expected, f"one at {value}")
        return length, self._texts[value:end]


def _base(entry: int) -> int:
    return (entry >> 10) << ((entry & 1 << 9) >> 6)


def _wrong(expected: str, got: str) -> ModelFormatError:
    key = f"{PREFIX}precompiled_charsmap"
    return ModelFormatError(f"[gguf] expected {expected} in {key}, got {got}")
