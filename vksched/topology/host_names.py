"""Host names: the hosts of a plan, which are prefixes of the names of devices.

    vulkan:0, cpu                of the driver, whose name is ""
    node1/vulkan:0, node1/cpu    of the host node1

The memory of a host has the name of its CPU: links from host to host, and from a host to its
devices, end there. Examples: tests/topology/test_hosts.py.
"""

from __future__ import annotations

from ..common.errors import PlanError

DRIVER = ""
"""The name of the driver's own host."""
CPU = "cpu"
"""The name of a host's CPU, without the host."""


def host_of(name: str) -> str:
    """Return the host of a device by its name, "" for the driver."""
    return name.partition("/")[0] if "/" in name else DRIVER


def device_of(name: str) -> str:
    """Return the name of a device on its host."""
    return name.partition("/")[2] if "/" in name else name


def on(host: str, name: str) -> str:
    """Return the name of a host's device in a multi-host plan."""
    return f"{host}/{name}" if host != DRIVER else name


def check_name(name: str) -> str:
    """Return the name of a device after checking it.

    Raises
    ------
    PlanError
        It has a slash that does not separate a host from a device.
    """
    if "/" in name and not all(map(_is_one, name.split("/", 1))):
        raise PlanError(
            f"[topology] expected HOST/DEVICE or DEVICE as the name of a device, got {name!r}; try "
            "a name with one slash at most"
        )
    return name


def _is_one(part: str) -> bool:
    return bool(part) and "/" not in part
