"""Messages as a hostile driver draws them: those of an honest one, with something wrong in them.

    conversation --lose, say twice, turn round, change a field, a payload, a document--> messages

Attributes and names of ops stay as they are: what becomes of these is tested op by op
(tests/ops, tests/plan).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hostile import Driver, Message

from vksched.distributed.wire.channel import BEAT, DATA, FRAME, HEAD
from vksched.distributed.wire.messages import MESSAGES

MAX_CHANGES = 4
DOCUMENTS = ("missing", "prepare")
SAME = ("attrs", "op")
NUMBERS = (-1, 0, 1, 2, 3, 7, 64, 1000, 1 << 20, 1 << 31, 1 << 62, -(1 << 62))
TEXTS = ("", "cpu", "cpu:0", "node1", "node2", "s0", "s1", "../x", "\x00", "float16", "O", "é" * 99)
ANY: tuple[Any, ...] = (None, True, -1, 0.5, "", [], {}, [[]], "s0", 1 << 40)

Drawn = list[Message | bytes]
Change = Callable[[random.Random, Drawn], None]


def drawn(rng: random.Random, messages: Sequence[Message]) -> Drawn:
    """Return messages with one to four things wrong."""
    out: Drawn = list(messages)
    for _ in range(rng.randint(1, MAX_CHANGES)):
        with suppress(IndexError, ValueError):  # nothing is left to be changed
            rng.choice(CHANGES)(rng, out)
    return out


def say(driver: Driver, messages: Drawn, waits: bool = True) -> None:
    """Say messages, each once the answer to the one before is there, until the node hangs up.
    waits: else all are said at once.
    """
    for each in messages:
        if isinstance(each, bytes):
            driver.send_bytes(each)
        elif not (waits and each.ask):
            driver.send(each)
        elif driver.answer_to(each) is None:
            return


def _lose(rng: random.Random, out: Drawn) -> None:
    del out[rng.randrange(len(out))]


def _hang_up(rng: random.Random, out: Drawn) -> None:
    del out[rng.randrange(len(out)) :]


def _say_twice(rng: random.Random, out: Drawn) -> None:
    out.insert(rng.randrange(len(out) + 1), rng.choice(out))


def _turn_round(rng: random.Random, out: Drawn) -> None:
    one, other = rng.randrange(len(out)), rng.randrange(len(out))
    out[one], out[other] = out[other], out[one]


def _no_answer(rng: random.Random, out: Drawn) -> None:
    """Says a question and does not wait, or asks where nothing is answered."""
    at, text = _one(rng, out)
    out[at] = replace(text, ask=not text.ask)


def _other_kind(rng: random.Random, out: Drawn) -> None:
    at, text = _one(rng, out)
    out[at] = replace(text, kind=rng.choice(list(MESSAGES)))


def _field(rng: random.Random, out: Drawn) -> None:
    at, text = _one(rng, out)
    out[at] = replace(text, fields=_changed(rng, text.fields))


def _payload(rng: random.Random, out: Drawn) -> None:
    at, text = _one(rng, out)
    data = bytearray(text.payload)
    kind = rng.randrange(4)
    if kind == 0:
        data = bytearray()
    elif kind == 1:
        del data[rng.randrange(len(data) + 1) :]
    elif kind == 2:
        data += bytes(rng.randrange(1, 100))
    elif data and text.kind not in DOCUMENTS:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    out[at] = replace(text, payload=bytes(data))


def _document(rng: random.Random, out: Drawn) -> None:
    """Changes what a document says, so that it still is one."""
    places = [at for at, each in enumerate(out) if isinstance(each, Message) and _is_document(each)]
    at = rng.choice(places)
    message = out[at]
    assert isinstance(message, Message)
    begin = message.fields.get("hosts_bytes", 0)
    begin = begin if isinstance(begin, int) and 0 <= begin <= len(message.payload) else 0
    try:
        document = json.loads(message.payload[begin:])
    except ValueError:  # it was changed before
        return
    text = json.dumps(_changed(rng, document)).encode()
    out[at] = replace(message, payload=message.payload[:begin] + text)


def _frames(rng: random.Random, out: Drawn) -> None:
    """Says bytes that are no message."""
    sort = rng.choice((HEAD, DATA, BEAT, 0, 77))
    size = rng.choice((0, 1, 100, 1 << 20, 1 << 40, (1 << 64) - 1))
    text = rng.choice((b"", b"{}", b"[" * 5000, rng.randbytes(40), b'{"kind":"specs","ask":1}'))
    frame = FRAME.pack(sort, rng.randrange(4), len(text), size) + text + rng.randbytes(20)
    out.insert(rng.randrange(len(out) + 1), frame)


CHANGES: tuple[Change, ...] = (
    _lose,
    _hang_up,
    _say_twice,
    _turn_round,
    _no_answer,
    _other_kind,
    _field,
    _field,
    _payload,
    _document,
    _document,
    _document,
    _frames,
)


def _one(rng: random.Random, out: Drawn) -> tuple[int, Message]:
    places = [(at, each) for at, each in enumerate(out) if isinstance(each, Message)]
    return rng.choice(places)


def _is_document(messages: Message) -> bool:
    return messages.kind in DOCUMENTS and bool(messages.payload)


def _changed(rng: random.Random, data: Any) -> Any:
    """Return data with one value in it that is another, or missing, or there twice."""
    places = list(_places(data))
    if not places:
        return data
    copy = json.loads(json.dumps(data))
    *way, last = rng.choice(places)
    inside = copy
    for key in way:
        inside = inside[key]
    kind = rng.randrange(8)
    if kind == 0:
        del inside[last]
    elif kind == 1 and isinstance(inside, list):
        inside.insert(last, inside[last])
    else:
        inside[last] = _other(rng, inside[last])
    return copy


def _places(data: Any) -> list[tuple[Any, ...]]:
    keys: Sequence[Any] = ()
    if isinstance(data, dict):
        keys = [key for key in data if key not in SAME]
    elif isinstance(data, list):
        keys = range(len(data))
    out: list[tuple[Any, ...]] = []
    for key in keys:
        out.append((key,))
        out += [(key, *way) for way in _places(data[key])]
    return out


def _other(rng: random.Random, value: Any) -> Any:
    if not rng.randrange(4):
        return rng.choice(ANY)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, *NUMBERS))
    if isinstance(value, str):
        return rng.choice(TEXTS)
    if isinstance(value, list):
        return value[::-1] if rng.randrange(2) else value * 2
    return rng.choice(ANY)
