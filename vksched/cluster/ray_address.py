"""Ray's address: check that a gRPC server answers there before Ray is called.

Problem: if no Ray cluster runs at an address, Ray retries for a minute and then ends the process.
Method: connect and send the HTTP/2 preface; a gRPC server answers with its settings.

Ray stores the address of the local cluster in a file below the temporary folder, which is writable
for every user. The author of that file decides whose code runs. So the file counts only if it
belongs to this user or root and nobody else can write it, and Ray gets the address from the file
instead of "auto": Ray would follow links and accept files that cannot be checked. Ray searches
itself only if there is no file.

Examples: tests/cluster/test_ray_address.py, tests/cluster/test_on_ray.py.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ..common.errors import DeviceError
from ..storage.cache_folder import others_who_write

AUTO = "auto"
"""The Ray cluster that this host belongs to."""
CLIENT = "ray://"
"""Prefix of the address of a Ray cluster that this host does not belong to."""
PROBE_S = 3.0
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The preface of an HTTP/2 client with empty settings."""
SETTINGS, HEAD_BYTES = 4, 9
MAX_BYTES = 1 << 10
"""Maximum size of the file in which Ray stores an address."""


def find_ray(address: str) -> str:
    """Return the address for Ray after a server has answered there; an "auto" without a file is not
    checked.

    Raises
    ------
    DeviceError
        Nothing or another protocol answers there, or another user may have written the file.
    """
    place = _cluster_address(address)
    if place is None:
        return address
    host, _, port = place.removeprefix(CLIENT).rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_S) as probe:
            probe.settimeout(PROBE_S)
            probe.sendall(HELLO)
            head = probe.recv(HEAD_BYTES, socket.MSG_WAITALL)
    except (OSError, ValueError, OverflowError) as error:
        raise _none(address, place, str(error)) from None
    if len(head) < HEAD_BYTES or head[3] != SETTINGS:
        raise _none(address, place, "something else answers there")
    return place


def _none(address: str, place: str, why: str) -> DeviceError:
    where = repr(address) if address == place else f"{address!r}, which is {place}"
    return DeviceError(
        f"[cluster] expected a Ray cluster at {where}, got: {why}; try `ray status`, or `ray start`"
    )


def _cluster_address(address: str) -> str | None:
    """Return the address of the Ray cluster, or None if Ray has to search for it."""
    if address != AUTO:
        return address
    configured = os.environ.get("RAY_ADDRESS", AUTO)
    if configured != AUTO:
        return configured
    noted = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    try:
        with open(noted, "rb", opener=_no_link) as file:
            about = os.fstat(file.fileno())
            text = file.read(MAX_BYTES).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _not_own(noted, str(error)) from None
    why = others_who_write(about)
    if why:
        raise _not_own(noted, why)
    return text.strip() or None


def _not_own(noted: Path, why: str) -> DeviceError:
    return DeviceError(
        f"[cluster] expected {noted} to be a file that only you or root may write, got {why}; "
        "try the address of the Ray cluster instead of auto"
    )


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
