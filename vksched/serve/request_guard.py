"""RequestGuard: refuses requests by their headers: too many, or of a page of another site.

A page can send requests to a server on the same machine, and with a domain of its own that resolves
to 127.0.0.1 (DNS rebinding) read the answers. Its requests have a foreign Origin, or a foreign
Host.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from .api_error import ApiError

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")


class RequestGuard:
    """Refuses large headers, foreign origins and foreign hosts.

    Parameters
    ----------
    header_bytes
        The maximum size of all headers.
    origins
        The origins that may send requests from browsers, besides the server's own; "*" allows all.
    hosts
        The names in the header Host that are accepted; none accepts all.
    """

    def __init__(
        self,
        app: ASGIApp,
        header_bytes: int,
        origins: Sequence[str] = (),
        hosts: Sequence[str] = (),
    ) -> None:
        self._app = app
        self._header_bytes = header_bytes
        self._origins = frozenset(origins)
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._refused(scope)) is not None:
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refused(self, scope: Scope) -> ApiError | None:
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if size + len(scope.get("raw_path", b"")) > self._header_bytes:
            return ApiError(
                f"[serve] expected headers of at most {self._header_bytes} bytes, got {size}",
                status=431,
            )
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts and _name_of(host) not in self._hosts:
            return ApiError(
                f"[serve] expected one of {', '.join(sorted(self._hosts))} in the header Host, got "
                f"{host[:100]!r}",
                status=403,
                code="unknown_host",
            )
        if origin is None or "*" in self._origins or origin in self._origins:
            return None
        if _is_own(origin.lower(), host.lower()):
            return None
        return ApiError(
            f"[serve] expected a request of this server's own page, got one of {origin[:100]!r}; "
            "--cors-origin allows other sites",
            status=403,
            code="unknown_origin",
        )


def _is_own(origin: str, host: str) -> bool:
    """Return True if an origin has the name and port of the header Host. The schemes differ behind
    a proxy that ends TLS.
    """
    scheme, _, place = origin.partition("://")
    default = {"http": ":80", "https": ":443"}.get(scheme)
    if default is None or not host:
        return False
    return place.removesuffix(default) == host.removesuffix(default)


def _name_of(host: str) -> str:
    """Return the name in a header Host without its port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
