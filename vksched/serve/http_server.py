"""The HTTP server: uvicorn, with time limits for clients that are slow to send their headers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Generator
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..common.errors import VkschedError
from .api_error import ApiError, server_closed
from .interrupts import Interrupts
from .limits import ServerLimits
from .lingering_transport import LingeringTransport

KEEP_ALIVE_S = 30
SHUTDOWN_S = 5


def uvicorn_config(
    app: ASGIApp, host: str, port: int, limits: ServerLimits, **options: Any
) -> uvicorn.Config:
    """Return uvicorn's settings. options: further ones, for example `ssl_certfile`."""
    return uvicorn.Config(
        _answering_at_end(app),
        host=host,
        port=port,
        http=_protocol(limits.header_timeout_s, limits.connections),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level="error",  # warnings are of clients that send no HTTP
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=limits.header_bytes,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        **options,
    )


def _answering_at_end(app: ASGIApp) -> ASGIApp:
    """Return an application whose requests get an error if uvicorn cancels them, as it does with
    those that still run some seconds after the first signal.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        kind = None

        async def send_noting_kind(message: Message) -> None:
            nonlocal kind
            if message["type"] == "http.response.start":
                kind = dict(message.get("headers", ())).get(b"content-type", b"")
            await send(message)

        try:
            await app(scope, receive, send_noting_kind)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            ending = server_closed()
            if kind is None:
                await ending.response({"Connection": "close"})(scope, receive, send)
            elif kind.startswith(b"text/event-stream"):
                event = f"data: {json.dumps(ending.body())}\n\n".encode()
                await send({"type": "http.response.body", "body": event})
            else:
                raise

    return answer


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request on a connection that exceeds their maximum number."""
    refused = ApiError(
        "[serve] expected fewer open connections; try again later",
        status=503,
        code="overloaded",
        retry_after_s=1,
    )
    await refused.response({"Connection": "close"})(scope, receive, send)


def _protocol(header_timeout_s: float, connections: int) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a time limit for the headers of each request, a maximum number
    of connections, and answers that reach clients which still send.
    """

    lingering: set[LingeringTransport] = set()

    class TimedProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _lingering: LingeringTransport

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._lingering = LingeringTransport(
                transport, self.loop, self._client_sends, lingering
            )
            super().connection_made(self._lingering)  # type: ignore[arg-type]
            if len(self.connections) > connections:
                self.app = _refuse
            self._start_timer()

        def data_received(self, data: bytes) -> None:
            if self._lingering.is_lingering:
                self._lingering.drop(data)
                return
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._start_timer()  # a part of the headers: the keep-alive timer has ended
            else:
                self._stop_timer()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.trailing_data[0] and self.cycle.response_complete:
                self._start_timer()  # a part of the next headers came with this request

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            self._lingering.close_now()
            super().connection_lost(exc)

        def _start_timer(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(header_timeout_s, self._time_out)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _time_out(self) -> None:
            self._timer = None
            self._lingering.close_now()

        def _client_sends(self) -> bool:
            return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    return TimedProtocol


class Listener:
    """A socket that is bound before the model is loaded, so that a used port is an early error.

    Raises
    ------
    VkschedError
        The address cannot be used.
    """

    def __init__(self, host: str, port: int) -> None:
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self.socket = socket.socket(family, socket.SOCK_STREAM)
            try:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self.socket.bind(address)
            except OSError:
                self.socket.close()
                raise
        except OSError as error:
            raise VkschedError(
                f"[serve] cannot listen on {host}, port {port}: {error.strerror or error}; try "
                "another --port"
            ) from error
        self.host, self.port = host, int(self.socket.getsockname()[1])

    @property
    def address(self) -> str:
        """The host and port as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *raised: object) -> None:
        self.socket.close()

    def run(
        self,
        app: ASGIApp,
        limits: ServerLimits | None = None,
        on_start: Callable[[], object] = lambda: None,
        interrupts: Interrupts | None = None,
        **options: Any,
    ) -> None:
        """Serve an application until Ctrl-C or SIGTERM.

        Parameters
        ----------
        on_start
            Called once clients can connect.
        interrupts
            The handlers of signals, which also bound what follows; by default they end with this
            call.
        options
            See `uvicorn_config`.
        """
        config = uvicorn_config(app, self.host, self.port, limits or ServerLimits(), **options)
        server = _Server(config, on_start)
        with contextlib.ExitStack() as stack:
            handlers = interrupts or stack.enter_context(Interrupts())
            stack.enter_context(handlers.serving(server.stop))
            server.run(sockets=[self.socket])


class _Server(uvicorn.Server):
    """uvicorn's server with a call once it listens. `Interrupts` has the handlers of signals."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_start = on_start

    def stop(self) -> None:
        """Let `run` return."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no handlers."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()
