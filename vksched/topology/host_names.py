"""Hosts: the computers of a plan, as the names of devices tell them.

    vulkan:0, cpu                of the caller's own computer, whose name is ""
    node1/vulkan:0, node1/cpu    of the host node1

The memory of a host has the name of its CPU: links from host to host, and from a host to its
devices, end there. Examples: tests/topology/test_hosts.py.
"""

from __future__ import annotations

from ..common.errors import PlanError

DRIVER = ""
"""The name of the caller's own computer."""
CPU = "cpu"
"""The name of a host's CPU, without the host."""


def host_of(name: str) -> str:
    """Return the host of a device by its name, "" for the caller's own."""
    return name.partition("/")[0] if "/" in name else DRIVER


def device_of(name: str) -> str:
    """Return the name of a device as its host calls it."""
    return name.partition("/")[2] if "/" in name else name


def on(host: str, name: str) -> str:
    """Return the name of a host's device in a plan over several hosts."""
    return f"{host}/{name}" if host != DRIVER else name


def check_name(name: str) -> str:
    """Return the name of a device.

    Raises:
        PlanError: it has a slash that does not stand between a host and a device.
    """
    if "/" in name and not all(map(_is_one, name.split("/", 1))):
        raise PlanError(
            f"[topology] expected HOST/DEVICE or DEVICE as the name of a device, got {name!r}; try "
            "a name with one slash at most"
        )
    return name


def _is_one(part: str) -> bool:
    return bool(part) and "/" not in part
