"""Ray's address: is there something that speaks gRPC, as Ray does, before Ray itself is asked?

Problem: of an address where no Ray is, Ray asks again for a minute and then ends the whole process.
Method: connect, and begin as a client of HTTP/2 does; a server of gRPC answers with its settings.

Ray notes the address of this computer's cluster in a file below the temporary folder, where every
user may write. Whoever writes it decides whose code is run. So the file counts only if this user or
root owns it and nobody else may write it, and Ray is given the address that was read, not the word:
Ray would read a link, or a file that cannot be judged, itself. Only where there is none Ray looks.
Examples: tests/cluster/test_ray_address.py, tests/cluster/test_on_ray.py.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ..common.errors import DeviceError
from ..storage.disk_cache import others_who_write

AUTO = "auto"
"""The Ray cluster that this computer is in."""
CLIENT = "ray://"
"""Before the address of a Ray cluster that this computer is not in."""
PROBE_S = 3.0
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client of HTTP/2 begins, with settings that say nothing."""
SETTINGS, HEAD_BYTES = 4, 9
MAX_BYTES = 1 << 10
"""Of the file in which Ray notes an address."""


def find_ray(address: str) -> str:
    """Return the address that Ray is to be given, once something there may be Ray; an "auto" that
    Ray has to look for is not judged.

    Raises:
        DeviceError: what is there is not, or nothing is; or somebody else may have said so.
    """
    place = _place(address)
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


def _place(address: str) -> str | None:
    """Return where a Ray cluster is; None where Ray has to look for it."""
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
