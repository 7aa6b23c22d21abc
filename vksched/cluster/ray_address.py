"""Ray's address: is there something that speaks gRPC, as Ray does, before Ray itself is asked?

Problem: of an address where no Ray is, Ray asks again for a minute and then ends the whole process.
Method: connect, and begin as a client of HTTP/2 does; a server of gRPC answers with its settings.
Examples: tests/cluster/test_on_ray.py.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ..errors import DeviceError

AUTO = "auto"
"""The Ray cluster that this computer is in."""
CLIENT = "ray://"
"""Before the address of a Ray cluster that this computer is not in."""
PROBE_S = 3.0
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client of HTTP/2 begins, with settings that say nothing."""
SETTINGS, HEAD_BYTES = 4, 9


def require_ray(address: str) -> None:
    """Returns when something at an address may be Ray; an "auto" that Ray has to look for is not
    judged.

    Raises:
        DeviceError: what is there is not, or nothing is.
    """
    place = _place(address)
    if place is None:
        return
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


def _none(address: str, place: str, why: str) -> DeviceError:
    where = repr(address) if address == place else f"{address!r}, which is {place}"
    return DeviceError(
        f"[cluster] expected a Ray cluster at {where}, got: {why}; try `ray status`, or `ray start`"
    )


def _place(address: str) -> str | None:
    """Returns where a Ray cluster is; None where Ray has to look for it."""
    if address != AUTO:
        return address
    told = os.environ.get("RAY_ADDRESS", AUTO)
    if told != AUTO:
        return told
    try:
        folder = Path(os.environ.get("RAY_TMPDIR", "/tmp"))
        return (folder / "ray" / "ray_current_cluster").read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
