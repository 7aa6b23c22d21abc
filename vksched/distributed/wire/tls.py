"""Security: encrypt a connection and authenticate both ends.

    driver                                       worker
      <------ TLS 1.3, each presents the certificate -->     security "tls" only
      -- greeting, 32 random bytes -------------->
      <-------------- greeting, 32 random bytes --
      -- HMAC(secret, "driver", both) ----------->           checked first: a stranger gets only
      <--------- HMAC(secret, "worker", both) ------           random bytes

Before authentication only a few bytes of fixed length are read, in a limited time. With "plain" the
connection is neither encrypted nor protected from an attacker on the network: use it only on
networks that nobody else can reach. Examples: tests/distributed/test_strangers.py.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import time

from ...common.errors import DeviceError, VkschedError
from .credentials import Credentials
from .stream import ConnectionClosed, Stream

SECURITY = ("tls", "plain")
GREETING = b"vksched\n"
NONCE_BYTES = 32
PROOF_BYTES = 32
HANDSHAKE_S = 5.0
"""Maximum seconds from the first byte to the last proof."""


class Security:
    """Security of the connections of one cluster. Raise VkschedError for an unknown mode."""

    def __init__(self, credentials: Credentials, kind: str = "tls") -> None:
        if kind not in SECURITY:
            raise VkschedError(
                f"[cluster] expected a security of {' or '.join(SECURITY)}, got {kind!r}"
            )
        self.kind = kind
        self._secret = credentials.secret
        self._contexts = (
            {server: credentials.context(server) for server in (False, True)}
            if kind == "tls"
            else {}
        )

    def accept(self, own: socket.socket) -> Stream:
        """Return a stream to an authenticated peer. Raise ConnectionClosed if authentication fails
        or takes too long.
        """
        return self._secured(own, server=True)

    def connect(self, address: tuple[str, int], timeout_s: float) -> Stream:
        """Return a stream to a worker. Raise DeviceError if it cannot be reached or is not
        authenticated.
        """
        try:
            own = socket.create_connection(address, timeout_s)
        except OSError as error:
            raise DeviceError(
                f"[cluster] expected a worker at {place_text(address)}, got none: "
                f"{error.strerror or error}; try `vksched worker --listen {place_text(address)}`"
            ) from error
        try:
            return self._secured(own, server=False)
        except ConnectionClosed as error:
            raise DeviceError(
                f"[cluster] expected a worker of this cluster at {place_text(address)}, got another"
                f" one, or one with other credentials or security: {error}; try the same file and "
                f"security ({self.kind}) at both ends"
            ) from None

    def _secured(self, own: socket.socket, server: bool) -> Stream:
        until_s = time.monotonic() + HANDSHAKE_S
        stream: Stream | None = None
        try:
            if self._contexts:
                own.settimeout(HANDSHAKE_S)
                own = self._contexts[server].wrap_socket(own, server_side=server)
            stream = Stream(own)
            self._prove(stream, server, until_s)
            return stream
        except (ConnectionClosed, OSError, ValueError) as error:  # includes ssl's errors
            (stream or own).close()
            raise ConnectionClosed(str(getattr(error, "reason", None) or error)) from None
        except BaseException:
            (stream or own).close()
            raise

    def _prove(self, stream: Stream, server: bool, until_s: float) -> None:
        mine = secrets.token_bytes(NONCE_BYTES)
        if server:
            theirs = _greeting(stream, until_s)
            stream.send(GREETING + mine, until_s=until_s)
            self._check(stream, b"driver" + theirs + mine, until_s)
            stream.send(self._proof(b"worker" + theirs + mine), until_s=until_s)
        else:
            stream.send(GREETING + mine, until_s=until_s)
            theirs = _greeting(stream, until_s)
            stream.send(self._proof(b"driver" + mine + theirs), until_s=until_s)
            self._check(stream, b"worker" + mine + theirs, until_s)

    def _proof(self, text: bytes) -> bytes:
        return hmac.new(self._secret, text, hashlib.sha256).digest()

    def _check(self, stream: Stream, text: bytes, until_s: float) -> None:
        if not hmac.compare_digest(_read(stream, PROOF_BYTES, until_s), self._proof(text)):
            raise ConnectionClosed("it does not know the secret of this cluster")


def _greeting(stream: Stream, until_s: float) -> bytes:
    """Return the random bytes of the peer."""
    if _read(stream, len(GREETING), until_s) != GREETING:
        raise ConnectionClosed("it uses another protocol")
    return _read(stream, NONCE_BYTES, until_s)


def _read(stream: Stream, size: int, until_s: float) -> bytes:
    out = bytearray(size)
    stream.receive_all(memoryview(out), until_s)
    return bytes(out)


def place_text(address: tuple[str, int]) -> str:
    """Return an address as text: host:port."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def place_of(text: str) -> tuple[str, int]:
    """Parse an address. Raise VkschedError if it is invalid."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise VkschedError(f"[cluster] expected HOST:PORT, got {text!r}; try 127.0.0.1:7700")
    return host.removeprefix("[").removesuffix("]"), int(port)
