"""Lists of peers: a node connects where its owner says, and nowhere else."""

from __future__ import annotations

import pytest

from vksched.common.errors import VkschedError
from vksched.distributed.wire.peer_list import PeerList


def test_addresses_are_allowed_by_network_host_and_port() -> None:
    peers = PeerList(["10.0.0.0/24", " 10.1.0.7:7700", "[fd00::7]:7700", "fd01::/16", "Node2.lan"])
    for allowed in (
        ("10.0.0.255", 22),
        ("10.1.0.7", 7700),
        ("fd00::7", 7700),
        ("fd01:1::2", 1),
        ("node2.LAN", 7700),
    ):
        assert peers.allows(allowed), allowed
    for other in (
        ("10.0.1.0", 22),
        ("10.1.0.7", 22),
        ("10.1.0.70", 7700),
        ("fd00::7", 7701),
        ("node2", 7700),
        ("127.0.0.1", 7700),
        ("", 0),
    ):
        assert not peers.allows(other), other
    assert not PeerList([]).allows(("127.0.0.1", 7700))


@pytest.mark.parametrize("text", ["", "10.0.0.0/33", "a/b", "10.0.0.1:x", "::1:2:x", "h:99999"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(VkschedError, match="expected HOST"):
        PeerList([text])
