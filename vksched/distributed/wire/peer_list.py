"""Peer list: the addresses that a worker may connect to for its drivers.

    10.0.0.0/24   10.0.0.7:7700   [fd00::7]:7700   node2.lan

A driver sends the addresses of other workers, and a worker connects to them. A list of peers
prevents drivers from probing a network through a worker. Names are compared as text and never
resolved, so that a DNS server cannot extend the list. Examples:
tests/distributed/test_peer_list.py.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from contextlib import suppress

from ...common.errors import VkschedError
from .tls import place_of

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class PeerList:
    """Addresses: networks or names, each with or without a port.

    Raises
    ------
    VkschedError
        An address is invalid.
    """

    def __init__(self, places: Sequence[str]) -> None:
        self._places = [_parse_address(each.strip()) for each in places]

    def allows(self, address: tuple[str, int]) -> bool:
        """Return True if a worker may connect to an address."""
        host, port = address
        return any(
            of in (None, port) and _matches(known, host.lower()) for known, of in self._places
        )


def _parse_address(text: str) -> tuple[Network | str, int | None]:
    host, port = text, None
    if _network(text) is None and ":" in text:
        host, port = place_of(text)
    host = host.removeprefix("[").removesuffix("]").lower()
    network = _network(host)
    if not host or (network is None and ("/" in host or ":" in host)):
        raise VkschedError(
            f"[worker] expected HOST, HOST:PORT or a network as a peer, got {text!r}; try "
            "10.0.0.0/24"
        )
    return network or host, port


def _network(text: str) -> Network | None:
    with suppress(ValueError):
        return ipaddress.ip_network(text, strict=False)
    return None


def _matches(known: Network | str, host: str) -> bool:
    if isinstance(known, str):
        return known == host
    with suppress(ValueError):
        return ipaddress.ip_address(host) in known
    return False
