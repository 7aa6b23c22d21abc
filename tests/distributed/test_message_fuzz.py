"""Whatever a driver with the key says, a node answers or ends the session, and holds nothing of it.

`make test-all` draws many more sessions. A session that fails is drawn again by its seed:
`VKSCHED_TESTS=rest pytest tests/distributed/test_message_fuzz.py -k 'holds_nothing and 17'`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import clusters
import pytest
from conftest import vulkan_names
from drawn_messages import drawn, say
from hostile import Driver, Message, Watched, conversation
from selection import draws

from vksched.cluster.worker_process import ClusterWorker
from vksched.distributed.wire.stream import ConnectionClosed

SESSIONS = 12
"""Of a seed."""
SEEDS = draws(4, 400)
HANGS_S = 20.0
SPECS = Message("specs", {}, ask=True)
REACH = Message("reach", {"host": "node2", "hosts": {"node2": ["127.0.0.1:1", "w"]}}, ask=True)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterWorker]:
    about = clusters.make_credentials(), "plain", ["cpu"]
    folder: Path = tmp_path_factory.mktemp("weights")
    worker = ClusterWorker("node1", "127.0.0.1:0", *about, cache_folder=folder)
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def honest_messages(node: ClusterWorker) -> list[Message]:
    """What an honest driver says."""
    return [REACH, *conversation(node)]


@pytest.fixture
def watched(node: ClusterWorker) -> Iterator[Watched]:
    built = Watched(node)
    yield built
    built.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_answers_or_ends_the_session_and_holds_nothing(
    node: ClusterWorker, honest_messages: list[Message], watched: Watched, seed: int
) -> None:
    rng, late = random.Random(seed), list[str]()
    for number in range(SESSIONS):
        messages, begin_s = drawn(rng, honest_messages), time.monotonic()
        driver = Driver(node.address)
        try:
            with suppress(ConnectionClosed):
                say(driver, messages, waits=number % 3 > 0)
                driver.answer_to(SPECS)
        finally:
            driver.close()
        if time.monotonic() - begin_s > HANGS_S:
            late.append(f"session {number}: {messages}")
    assert late == []
    assert watched.left() == []
    honest = Driver(node.address)
    kinds = [
        honest.answer_to(each) for each in honest_messages[1:] if each.ask and each.kind != "read"
    ]
    assert all(each is not None for each in kinds)
    honest.close()
    node.wait_until_free()


@pytest.mark.own_devices
@pytest.mark.parametrize("seed", draws(1, 12))
@pytest.mark.parametrize("device", vulkan_names()[-1:])
def test_a_node_holds_nothing_on_a_card(tmp_path: Path, device: str, seed: int) -> None:
    """As above, of states, weights and recordings of a Vulkan device."""
    about = clusters.make_credentials(), "plain", [device]
    node = ClusterWorker("node1", "127.0.0.1:0", *about, cache_folder=tmp_path)
    rng, messages = random.Random(seed), conversation(node, device)
    watched = Watched(node)
    try:
        assert node._opened.devices[0].context.robust  # type: ignore[attr-defined]
        for number in range(SESSIONS if seed else 3):
            driver = Driver(node.address)
            with suppress(ConnectionClosed):
                say(driver, drawn(rng, messages), waits=number % 3 > 0)
                driver.answer_to(SPECS)
            driver.close()
        assert watched.left() == []
    finally:
        watched.close()
        node.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_peer_is_answered_or_sent_away(
    node: ClusterWorker, honest_messages: list[Message], watched: Watched, seed: int
) -> None:
    """Of a connection of another node only values and echoes are taken."""
    rng, driver = random.Random(seed), Driver(node.address)
    say(
        driver,
        [each for each in honest_messages if each.kind in ("missing", "weight", "add", "prepare")],
    )
    plan = next(each.fields["plan"] for each in honest_messages if each.kind == "prepare")
    run = {"plan": plan, "slot": 0, "sequence_number": 0, "node": 0}
    own = [Message("echo", {}, b"x", ask=True), Message("value", run, bytes(16)), *honest_messages]
    for _ in range(SESSIONS):
        peer = Driver(node.address, "worker", "node2", driver=driver.name)
        with suppress(ConnectionClosed):
            say(peer, drawn(rng, rng.sample(own, 4)))
        peer.close()
    assert driver.answer_to(SPECS) is not None
    driver.close()
    assert watched.left() == []
