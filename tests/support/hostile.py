"""A driver that has the key and says what it likes, and what a node holds when it has gone."""

from __future__ import annotations

import gc
import itertools
import json
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import clusters
import numpy as np
import pytest

import vksched as vs
from vksched.cluster.worker_process import ClusterWorker
from vksched.distributed.wire.channel import CHUNK_BYTES, DATA, FRAME, HEAD, Channel, Payload, flat
from vksched.distributed.wire.handshake import exchange, hello
from vksched.distributed.wire.messages import encode
from vksched.distributed.wire.stream import ConnectionClosed, Stream
from vksched.distributed.wire.tls import Security, place_of
from vksched.distributed.worker.server import Server
from vksched.distributed.worker.session import Session
from vksched.runtime.vulkan.device_handle import live_bytes

WAIT_S = 60.0
_names = itertools.count()


@dataclass(frozen=True)
class Message:
    """A message: its kind, its fields and its payload. ask: whether it wants an answer."""

    kind: str
    fields: dict[str, Any]
    payload: bytes = b""
    ask: bool = False


class Driver:
    """Connects to a node by itself, and knows nothing of what may be said. security: "plain"."""

    def __init__(self, address: str, role: str = "driver", name: str = "", **about: str) -> None:
        self.name = about.pop("driver", f"hostile{next(_names)}")
        stream = Security(clusters.make_credentials(), "plain").connect(place_of(address), WAIT_S)
        exchange(stream, {**hello(role, name, self.name), **about})
        self._stream: Stream = stream
        self._numbers = itertools.count(1)

    def send(self, messages: Message) -> int:
        """Say a message, in frames as a driver does; return the number of its question."""
        number = next(self._numbers)
        text = encode(messages.kind, messages.fields, number if messages.ask else None)
        self.send_bytes(FRAME.pack(HEAD, number, len(text), len(messages.payload)) + text)
        for at in range(0, len(messages.payload), CHUNK_BYTES):
            piece = messages.payload[at : at + CHUNK_BYTES]
            self.send_bytes(FRAME.pack(DATA, number, 0, len(piece)) + piece)
        return number

    def send_bytes(self, data: bytes) -> None:
        """Say any bytes; raise Closed where the node has hung up, or reads no more for long."""
        with self._stream.lock:
            self._stream.send(data, until_s=time.monotonic() + WAIT_S)

    def answers(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield what the node says, until it hangs up."""
        heads: dict[int, tuple[dict[str, Any], bytearray, int]] = {}
        while True:
            try:
                sort, number, fields, size = FRAME.unpack(self._read(FRAME.size))
                if sort == HEAD:
                    heads[number] = json.loads(self._read(fields)), bytearray(), size
                elif sort == DATA:
                    heads[number][1].extend(self._read(size))
            except ConnectionClosed:
                self.close()
                return
            if number in heads and len(heads[number][1]) == heads[number][2]:
                head, payload, _ = heads.pop(number)
                yield head, bytes(payload)

    def answer_to(self, messages: Message) -> dict[str, Any] | None:
        """Say a question and return its answer; None where the node hangs up instead."""
        with suppress(ConnectionClosed):
            number = self.send(messages)
            for fields, _ in self.answers():
                if fields.get("to") == number:
                    return fields
        return None

    def _read(self, size: int) -> bytes:
        out = bytearray(size)
        self._stream.receive_all(memoryview(out), time.monotonic() + WAIT_S)
        return bytes(out)

    def close(self) -> None:
        self._stream.close()


@contextmanager
def recorded(node: str) -> Iterator[list[Message]]:
    """Note what drivers of this process say to a node."""
    messages: list[Message] = []
    send = Channel._send

    def noting(self: Channel, text: bytes, payload: Payload) -> None:
        fields = json.loads(text)
        if self.host == node and "to" not in fields:
            kind, ask = fields.pop("kind"), fields.pop("ask", None)
            data = b"".join(bytes(flat(piece)) for piece in payload)
            messages.append(Message(kind, fields, data, ask is not None))
        send(self, text, payload)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "_send", noting)
        yield messages


def conversation(node: ClusterWorker, device: str = "cpu") -> list[Message]:
    """Have an honest driver use a device of a node, and return what it said: weights, states,
    plans, runs.
    """
    weight = np.arange(64, dtype=np.float32).reshape(8, 8)
    x, held = vs.input("x", (4, 8)), vs.state(np.zeros((4, 8), np.float32), name="held")
    after = vs.add(held, vs.relu(x @ vs.weight(weight, name="w")), name="after")
    cluster = vs.Cluster([node.address], clusters.make_credentials(), "plain")
    with (
        recorded(node.name) as text,
        vs.Scheduler([f"{node.name}/{device}"], cluster=cluster) as sched,
    ):
        place = {"*": f"{node.name}/{device}"}
        run = sched.compile({"out": after * 2}, updates={held: after}, placement=place)
        for _ in range(2):
            run(x=np.ones((4, 8), np.float32))
        assert sched.read(held).sum() == 2 * 4 * weight.sum()
        sched.write(held, np.zeros((4, 8), np.float32))
        run.close()
        sched.delete_state(held)
    node.wait_until_free()
    kinds = {each.kind for each in text}
    assert kinds >= {"missing", "weight", "add", "prepare", "start", "commit", "read", "write"}, (
        kinds
    )
    return [each for each in text if each.kind not in ("echo", "clock")]


class Watched:
    """What one node held at first, and what it holds now."""

    def __init__(self, node: ClusterWorker) -> None:
        self.node = node
        self._sessions: list[weakref.ref[Session]] = []
        self._patch = pytest.MonkeyPatch()
        start, server = Session.start, node._server
        assert isinstance(server, Server)

        def noting(session: Session, channel: Channel) -> None:
            if session._here is server._here:
                self._sessions.append(weakref.ref(session))
            start(session, channel)

        self._patch.setattr(Session, "start", noting)
        self.before = self._threads()
        self.bytes_before = sum(live_bytes.values())

    def left(self) -> list[str]:
        """Return what is held of sessions that have ended."""
        self.node.wait_until_free()
        out = [
            f"{device.name}: {len(device.states.keys())} states"
            for device in self.node._opened.devices
            if device.states.keys()
        ]
        weights = [getattr(device, "weights", None) for device in self.node._opened.devices]
        out += [f"{each.resident_bytes} B of weights" for each in weights if each and each._pages]
        until_s = time.monotonic() + WAIT_S
        while (more := self._threads() - self.before) and time.monotonic() < until_s:
            time.sleep(0.001)  # the last thread of a session is the one that frees it
        out += sorted(each.name for each in more)
        gc.collect()
        if sum(live_bytes.values()) > self.bytes_before:
            out.append(f"{sum(live_bytes.values()) - self.bytes_before} B of devices")
        out += [f"a session of {s.driver}" for ref in self._sessions if (s := ref()) is not None]
        return out

    def _threads(self) -> set[threading.Thread]:
        kinds = ("session", "part", "send", "weights", "echo", "reader", "free", "door")
        names = tuple(f"vksched-{kind}" for kind in kinds)
        return {each for each in threading.enumerate() if each.name.startswith(names)}

    def close(self) -> None:
        self._patch.undo()


def play(driver: Driver, messages: Sequence[Message], ends: bool = True) -> None:
    """Say messages one after the other, each once its answer is there; then hang up."""
    with suppress(ConnectionClosed):
        for each in messages:
            if not each.ask:
                driver.send(each)
            elif driver.answer_to(each) is None:
                break
    if ends:
        driver.close()


def numbered(messages: Sequence[Message], plan: int) -> list[Message]:
    """Return messages with another number of their plan."""
    return [
        replace(each, fields={**each.fields, "plan": plan}) if "plan" in each.fields else each
        for each in messages
    ]
