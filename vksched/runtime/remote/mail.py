"""Mail: `ports.Post` over channels: values go to other hosts at once, and come through an inbox.

    part --send--> channel of the host     inbox <-- channels of all hosts     part <--take-- inbox

Examples: tests/runtime/remote/test_node_server.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np

from ...errors import DeviceError, HostLost, RunAborted
from ...trace.schema import Wrong
from ...types import NDArray
from .channel import Channel
from .hello import exchange, hello, require_equal
from .inbox import Inbox
from .messages import Message
from .ports import RunKey
from .secure import Security, place_of
from .stream import Closed

CONNECT_S = 5.0


class Mail(Inbox):
    """channel_to: returns the channel to a host; raises HostLost."""

    def __init__(self, channel_to: Callable[[str], Channel]) -> None:
        super().__init__()
        self._channel_to = channel_to

    def send(self, run: RunKey, value: int, host: str, array: NDArray) -> None:
        if self.is_aborted(run):
            raise RunAborted(f"[cluster] run {run.ticket} of plan {run.plan} was given up")
        self._channel_to(host).tell("value", {**run._asdict(), "node": value}, [array])


class PeerMail:
    """Handles the channel of another node: takes its values, and answers what it measures by.

    is_current: whether the node has not begun another life since; the end of an earlier one is no
    news.
    """

    def __init__(self, inbox: Inbox, host: str, is_current: Callable[[], bool]) -> None:
        self._inbox, self._host, self._is_current = inbox, host, is_current
        if is_current():
            inbox.regain(host)

    def place(self, message: Message, size: int) -> memoryview | None:
        if message.kind == "echo":
            return None
        self._require_value(message)
        return self._inbox.place(message, size, self._host)

    def received(self, channel: Channel, message: Message) -> None:
        if message.kind == "echo":  # whose answer may have to wait for who reads it
            threading.Thread(target=_answer_echo, args=(channel, message), daemon=True).start()
            return
        self._require_value(message)
        self._inbox.arrived(message, self._host)

    def _require_value(self, message: Message) -> None:
        if message.kind != "value":
            raise Wrong(f"a node says {message.kind} to callers alone")

    def lost(self, channel: Channel, error: HostLost) -> None:
        if self._is_current():
            self._inbox.lose(self._host, error)


def _answer_echo(channel: Channel, message: Message) -> None:
    with suppress(HostLost):
        channel.answer(message, {}, echo_of(message))


def echo_of(message: Message) -> list[NDArray | bytes]:
    """Returns the payload of an echo: what came."""
    return [] if message.payload is None else [np.frombuffer(message.payload, np.uint8)]


class Peers:
    """The channels to other nodes of one caller, opened when they are first needed.

    name: of this node. caller, life: as in the caller's hello. inbox: for the values that come.
    """

    def __init__(self, name: str, caller: str, life: str, security: Security, inbox: Inbox) -> None:
        self._hello = hello("node", name, caller, life)
        self._security, self._inbox = security, inbox
        self._hosts: dict[str, tuple[str, str]] = {}
        """The address and the life of each node."""
        self._channels: dict[str, Channel] = {}
        self._taken: list[Channel] = []
        self._closed = False
        self._turns: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def know(self, hosts: Mapping[str, Sequence[str]]) -> None:
        """Learns where other nodes are. The caller is right about who is there: one that was lost
        from here may be reached again, and who sends to it finds out.
        """
        for host, (address, life) in hosts.items():
            self._inbox.regain(host)  # what its caller takes it for
            with self._lock:
                _, before = self._hosts.get(host, ("", life))
                self._hosts[host] = address, life
                old = self._channels.pop(host, None) if before != life else None
            if old is not None:
                old.close()

    def handler(self, host: str, life: str) -> PeerMail:
        """Returns who handles a channel of a node that is in this life."""
        return PeerMail(self._inbox, host, lambda: self._life_of(host) == life)

    def _life_of(self, host: str) -> str:
        with self._lock:
            return self._hosts.get(host, ("", ""))[1]

    def channel(self, host: str) -> Channel:
        """Returns a channel to a node.

        Raises:
            HostLost: it cannot be reached.
        """
        with self._lock:
            turn = self._turns.setdefault(host, threading.Lock())
        with turn:
            found = self._channels.get(host)
            if found is None or found.error is not None:
                found = self._channels[host] = self._connect(host)
            return found

    def take_in(self, channel: Channel) -> None:
        """Begins to hear another node, until `close`."""
        with self._lock:
            self._taken = [each for each in self._taken if each.error is None] + [channel]
        channel.start()
        if self._closed:
            channel.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels = [*self._channels.values(), *self._taken]
        for each in channels:
            each.close()

    def _connect(self, host: str) -> Channel:
        address, life = self._hosts.get(host, ("", ""))
        try:
            if not address:
                raise DeviceError(f"[cluster] nobody said where {host} is")
            stream = self._security.connect(place_of(address), CONNECT_S)
            try:
                theirs = exchange(stream, self._hello)
                require_equal(self._hello, theirs, host)
                if theirs["name"] != host:
                    raise DeviceError(
                        f"[cluster] expected {host} at {address}, got {theirs['name']}"
                    )
            except BaseException:
                stream.close()
                raise
            return self._taken_in(Channel(stream, host, self.handler(host, life)))
        except (DeviceError, Closed) as error:
            lost = HostLost(
                f"[cluster] {host} cannot be reached from {self._hello['name']}: {error}"
            )
            lost.host = host
            raise lost from error

    def _taken_in(self, channel: Channel) -> Channel:
        """Returns a channel once the other node has it too, which otherwise would not notice that
        it is lost, and would wait for what was sent on it.
        """
        channel.start()
        try:
            channel.ask("echo", {}, timeout_s=CONNECT_S)
        except DeviceError:
            channel.close()
            raise
        return channel
