"""Channels between nodes count as open once both ends have them."""

from __future__ import annotations

import pytest
from test_strangers import Door

from vksched.common.errors import HostLost
from vksched.distributed.wire.tls import place_text
from vksched.distributed.worker import transport
from vksched.distributed.worker.inbox import Inbox
from vksched.distributed.worker.transport import Peers


@pytest.mark.parametrize("kind", ["tls", "plain"])
def test_a_node_that_says_hello_and_then_nothing_is_not_reached(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "CONNECT_S", 0.5)
    door = Door(kind)  # it keeps who comes in, and never hears them
    peers = Peers("node2", "c1", door.security, Inbox())
    try:
        peers.know({"node1": (place_text(door.address), "")})
        with pytest.raises(HostLost, match="node1 cannot be reached from node2"):
            peers.channel("node1")
    finally:
        peers.close()
        door.close()
