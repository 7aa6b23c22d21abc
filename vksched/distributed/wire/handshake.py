"""Handshake: the first message of both ends, with their identities and versions.

Plans name ops, kernels and layouts, so both ends must have equal versions of them. An error lists
all differences. Examples: tests/distributed/test_strangers.py.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

from ... import ops as ops
from ...common.errors import DeviceError, ShaderError
from ...common.formatting import printable
from ...common.schema import SchemaError, Whole, check, parse, record
from ...common.version import __version__
from ...ir.op import all_ops
from ...ops.lowering import native_kernels
from ...runtime.vulkan.shaders import load_manifest
from .messages import HELLO, Fields
from .stream import ConnectionClosed, Stream

PROTOCOL = 3
MAX_BYTES = 1 << 12
HELLO_S = 5.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
"""Name of a worker, as in plans before the slash."""
_SIZE = struct.Struct("<I")
_HOST_OPS = "onnx."
"""ONNX ops that only the CPU runs are declared when a file uses them."""
_COMPARED = {
    "version": "vksched",
    "shaders": "shaders",
    "ops": "ops",
}


def hello(role: str, name: str, driver: str, pair: str = "") -> dict[str, object]:
    """Return the HELLO fields of this process; see `messages.HELLO`."""
    return {
        "role": role,
        "name": name,
        "driver": driver,
        "pair": pair,
        "protocol": PROTOCOL,
        "version": __version__,
        "shaders": shaders_hash(),
        "ops": ops_hash(),
    }


def exchange(stream: Stream, mine: Fields) -> Fields:
    """Send HELLO and return the peer's HELLO, without comparing them. Raise ConnectionClosed if it
    sends none.
    """
    until_s, text = time.monotonic() + HELLO_S, json.dumps(mine).encode()
    with stream.lock:
        stream.send(_SIZE.pack(len(text)) + text, until_s=until_s)
    head = bytearray(_SIZE.size)
    stream.receive_all(memoryview(head), until_s)
    (size,) = _SIZE.unpack(head)
    if size > MAX_BYTES:
        raise ConnectionClosed(f"its hello has {size} bytes")
    payload = bytearray(size)
    stream.receive_all(memoryview(payload), until_s)
    try:
        theirs: Fields = parse(payload, dict[str, Any], "its hello")
        protocol = check(theirs, record(protocol=Whole), "its hello")["protocol"]
        if protocol != PROTOCOL:
            raise SchemaError(f"expected protocol {PROTOCOL}, got {protocol}")
        check(theirs, HELLO, "its hello")
    except SchemaError as error:
        raise ConnectionClosed(f"its hello is invalid: {error}") from None
    return theirs


def require_equal(mine: Fields, theirs: Fields, who: str) -> None:
    """Raise DeviceError with all differences."""
    off = [
        f"{word} {mine[key]} here and {printable(str(theirs[key]))} there"
        for key, word in _COMPARED.items()
        if mine[key] != theirs[key]
    ]
    if off:
        raise DeviceError(
            f"[cluster] expected the same vksched here and at {who}, got {'; '.join(off)}; try "
            "installing the same version at both, with shaders of the same compiler"
        )


@cache
def shaders_hash() -> str:
    """Return a hash of all compiled shaders, or "none"."""
    try:
        manifest = load_manifest()
    except ShaderError:
        return "none"
    return _hash(f"{name} {entry['sha256']}" for name, entry in sorted(manifest.items()))


def ops_hash() -> str:
    """Return a hash of the names of all ops and of the formats of quantized weights."""
    names = sorted(name for name in all_ops() if not name.startswith(_HOST_OPS))
    return _hash((*names, f"words {native_kernels.QUANT_LAYOUT_VERSION}"))


def _hash(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
