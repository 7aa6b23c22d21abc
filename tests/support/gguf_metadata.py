"""Reads the metadata of a GGUF file that is trusted, quickly, for tests of what is made of them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

_KINDS = "u1 i1 u2 i2 u4 i4 f4 ?1 text list u8 i8 f8".split()


def metadata(path: Path) -> dict[str, object]:
    """Return the keys and values of a file of version 2 or 3."""
    data = path.read_bytes()
    at = 24

    def number(kind: str) -> object:
        nonlocal at
        dtype = np.dtype("?" if kind == "?1" else "<" + kind)
        at += dtype.itemsize
        return np.frombuffer(data, dtype, 1, at - dtype.itemsize)[0].item()

    def text() -> str:
        nonlocal at
        (size,) = struct.unpack_from("<Q", data, at)
        at += 8 + size
        return data[at - size : at].decode("utf-8", "replace")

    def value(kind: str) -> object:
        nonlocal at
        if kind == "text":
            return text()
        if kind != "list":
            return number(kind)
        inner, size = struct.unpack_from("<IQ", data, at)
        at += 12
        if _KINDS[inner] in ("text", "list", "?1"):
            return [value(_KINDS[inner]) for _ in range(size)]
        found = np.frombuffer(data, "<" + _KINDS[inner], size, at)
        at += found.nbytes
        return found

    (count,) = struct.unpack_from("<Q", data, 16)
    out: dict[str, object] = {}
    for _ in range(count):
        key = text()
        (kind,) = struct.unpack_from("<I", data, at)
        at += 4
        out[key] = value(_KINDS[kind])
    return out
