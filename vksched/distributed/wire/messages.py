"""Messages: the table of all messages between hosts of a cluster.

    kind -> fields with their types, maximum payload size, fields of the response

A message that is not in the table, or has an unknown field, another type or more bytes, closes the
connection: the peer is authenticated, so it is defective. The receiver checks all numbers of nodes,
plans and devices. JSON payloads: json_payload.py. Examples: tests/distributed/test_channel.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypedDict, get_type_hints

from ...common.schema import Number, SchemaError, Whole, check, parse, record

MAX_FIELD_BYTES = 1 << 16
DOCUMENT_BYTES = 1 << 25
"""Maximum size of graphs and plans; a part of 100,000 nodes has about 20 MiB. Parsing blocks the
whole process, and peers must not consider it dead.
"""
ECHO_BYTES = 1 << 26
"""Maximum size of an echo of the link benchmark."""
ARRAY_BYTES = 1 << 36
"""Maximum size of a weight, a state or the values of a run; `Handler.place` checks the exact size.
"""

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class MessageFormat:
    """Format of a message. answer: fields of its response, or None without a response."""

    fields: Fields = field(default_factory=dict)
    payload_bytes: int = 0
    answer: MessageFormat | None = None

    @cached_property
    def kind(self) -> Any:
        """The type of the fields."""
        return record(**self.fields)


class ByteRange(TypedDict):
    """A byte range in a file, see `lazy_array.Origin`: the last components of the file's path, and
    the file's size.
    """

    path: str
    bytes: Whole
    start: Whole
    size: Whole
    shape: list[Whole]
    dtype: str
    blocks: str


class _InFile(TypedDict, total=False):
    file: ByteRange


class WeightDocument(_InFile):
    """A weight of a part."""

    hash: str


class ArrayDocument(TypedDict):
    """uniform: all elements are equal, and the payload has one."""

    dtype: str
    shape: list[Whole]
    uniform: bool


RUN = {"plan": Whole, "slot": Whole, "sequence_number": Whole}
"""A run: the driver's number of its plan, the slot, and its sequence number there."""
ARRAY = get_type_hints(ArrayDocument, include_extras=True)
HOSTS = dict[str, tuple[str, str]]
"""Addresses of a driver's workers with the pair secrets of connections to them; see HELLO."""
ERROR = {"error": str, "text": str, "device": str, "host": str}
_NOTHING = MessageFormat()
HELLO = record(
    role=str,
    name=str,
    driver=str,
    pair=str,
    protocol=Whole,
    version=str,
    shaders=str,
    ops=str,
)
"""Fields of the first message; see handshake.py.

role: driver or worker. driver: random name of the driver that sends it, or that the worker works
for. pair: the secret of a connection between two workers, which authenticates them to each other.
The driver sends it only to these two, and replaces it when either of them reconnects.
"""
MESSAGES: dict[str, MessageFormat] = {
    # driver to worker
    "specs": MessageFormat(answer=MessageFormat({}, DOCUMENT_BYTES)),
    "clock": MessageFormat(answer=MessageFormat({"came_s": Number, "left_s": Number})),
    "echo": MessageFormat({}, ECHO_BYTES, MessageFormat({}, ECHO_BYTES)),
    "measure": MessageFormat(
        {"host": str, "hosts": HOSTS},
        0,
        MessageFormat({"bytes_per_s": Number, "latency_s": Number}),
    ),
    "reach": MessageFormat({"host": str, "hosts": HOSTS}, 0, _NOTHING),
    "missing": MessageFormat({"plan": Whole}, DOCUMENT_BYTES, MessageFormat({}, DOCUMENT_BYTES)),
    "weight": MessageFormat({"plan": Whole, "hash": str}, ARRAY_BYTES, _NOTHING),
    "prepare": MessageFormat({"plan": Whole, "hosts_bytes": Whole}, DOCUMENT_BYTES, _NOTHING),
    "release_plan": MessageFormat({"plan": Whole}),
    "start": MessageFormat({**RUN, "traced": bool}, ARRAY_BYTES),
    "commit": MessageFormat(RUN),
    "abort": MessageFormat(RUN),
    "add": MessageFormat(
        {"device": str, "keys": list[str], "arrays": list[ArrayDocument]}, ARRAY_BYTES, _NOTHING
    ),
    "read": MessageFormat({"device": str, "key": str}, 0, MessageFormat(ARRAY, ARRAY_BYTES)),
    "write": MessageFormat({"device": str, "key": str, **ARRAY}, ARRAY_BYTES, _NOTHING),
    "remove": MessageFormat({"device": str, "key": str}, 0, _NOTHING),
    # worker to driver
    "progress": MessageFormat({"plan": Whole, "what": str, "done": Whole, "total": Whole}),
    "ready": MessageFormat(RUN),
    "done": MessageFormat(RUN, DOCUMENT_BYTES),
    "failed": MessageFormat({**RUN, **ERROR, "torn": list[Whole] | None}),
    # to the receiver of the value
    "value": MessageFormat({**RUN, "node": Whole}, ARRAY_BYTES),
    # to the sender of a failed request
    "refused": MessageFormat(ERROR),
}


class _Numbers(TypedDict, total=False):
    ask: Whole | None
    to: Whole | None


class _Envelope(_Numbers):
    kind: str


@dataclass(slots=True)
class Message:
    """A received message. ask: number for its response. to: number of the request that it answers.
    payload: None without a payload.
    """

    kind: str
    fields: Fields
    ask: int | None = None
    to: int | None = None
    payload: memoryview | None = None


def encode(kind: str, fields: Fields, ask: int | None = None, to: int | None = None) -> bytes:
    """Return kind and fields as bytes."""
    data: dict[str, Any] = {"kind": kind, **fields}
    if ask is not None:
        data["ask"] = ask
    if to is not None:
        data["to"] = to
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()


def decode(text: bytes, payload_bytes: int) -> Message:
    """Return a message without its payload of `payload_bytes`. Raise SchemaError if it does not
    match the table.
    """
    try:
        data = parse(text, dict[str, Any], "a message")
        check(data, _Envelope, "a message")
    except SchemaError as error:
        raise SchemaError(f"it is no message: {error}") from None
    kind, ask, to = (data.pop(name, None) for name in ("kind", "ask", "to"))
    form = _form(kind, to is not None)
    check(data, form.kind, kind)
    if data.keys() - form.fields.keys():
        raise SchemaError(f"expected {sorted(form.fields)} in {kind}, got {sorted(data)}")
    if payload_bytes > form.payload_bytes:
        raise SchemaError(
            f"expected at most {form.payload_bytes} bytes with {kind}, got {payload_bytes}"
        )
    if (ask is not None) != (to is None and form.answer is not None):
        raise SchemaError(f"{kind} came with an unexpected request number, or without one")
    return Message(kind, data, ask, to)


def _form(kind: str, answers: bool) -> MessageFormat:
    form: MessageFormat | None = MESSAGES.get(kind)
    if form is not None and answers and kind != "refused":
        form = form.answer
    if form is None or (kind == "refused" and not answers):
        raise SchemaError(f"there is no {'answer' if answers else 'message'} {kind!r}")
    return form
