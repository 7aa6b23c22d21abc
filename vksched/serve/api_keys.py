"""API keys: read from a file that others cannot read, and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Iterable
from os import PathLike

from starlette.types import ASGIApp, Receive, Scope, Send

from ..common.errors import VkschedError
from .api_error import ApiError

MAX_FILE_BYTES = 1 << 16
MIN_KEY_CHARACTERS = 16
PUBLIC = ("/", "/health")
"""Paths that need no key: the page, and the state of the server."""
HEADER = b"authorization"


class ApiKeys:
    """The keys of a server. It stores digests only, and `repr` shows none.

    Parameters
    ----------
    keys
        The keys; without any, all requests are accepted.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, key: bytes) -> str | None:
        """Return the name of a key for `CompletionRequest.cache_key`; None if it is unknown. The
        time does not depend on the key.
        """
        digest = _digest(key)
        found = [hmac.compare_digest(digest, each) for each in self._digests]
        return f"key {found.index(True)}" if any(found) else None


def read_api_keys(path: str | PathLike[str]) -> ApiKeys:
    """Read a file with one key per line; lines that begin with # are comments.

    Raises
    ------
    VkschedError
        The file cannot be read, others can read it, or a key is too short.
    """
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise VkschedError(f"[serve] cannot read the keys in {path}: {error.strerror}") from error
    if os.name == "posix" and stat.S_IMODE(about.st_mode) & 0o077:
        raise VkschedError(
            f"[serve] expected keys that only you can read, got {path} with mode "
            f"{stat.S_IMODE(about.st_mode):o}; try chmod 600, and new keys if others had access"
        )
    if len(text) > MAX_FILE_BYTES:
        raise VkschedError(f"[serve] expected at most {MAX_FILE_BYTES} bytes in {path}, got more")
    lines = [line.strip() for line in text.decode("utf-8", "replace").splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise VkschedError(f"[serve] expected a key per line in {path}, got none")
    if short := [number for number, key in enumerate(keys, 1) if len(key) < MIN_KEY_CHARACTERS]:
        raise VkschedError(
            f"[serve] expected keys of {MIN_KEY_CHARACTERS} characters and more in {path}, got "
            f"fewer in key {short[0]}; try openssl rand -hex 24"
        )
    return ApiKeys(keys)


class KeyMiddleware:
    """Refuses requests without a valid key in the header Authorization: Bearer KEY."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or route_path(scope) in PUBLIC or not self._keys:
            await self._app(scope, receive, send)
            return
        values = [value for name, value in scope["headers"] if name == HEADER]
        scheme, _, key = (values[0] if values else b"").partition(b" ")
        name = self._keys.find(key.strip()) if scheme.lower() == b"bearer" else None
        if name is None:
            error = ApiError(
                "[serve] expected a valid key in the header Authorization: Bearer KEY, got "
                f"{'another one' if values else 'none'}",
                status=401,
                code="invalid_api_key",
            )
            await error.response()(scope, receive, send)
            return
        scope.setdefault("state", {})["cache_key"] = name
        await self._app(scope, receive, send)


def route_path(scope: Scope) -> str:
    """Return the path of a request below the path at which the application is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    is_below = bool(root) and path.startswith(f"{root}/")
    return path[len(root) :] if is_below else path


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
