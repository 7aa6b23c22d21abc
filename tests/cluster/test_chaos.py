"""Whatever goes wrong, at whichever message: right results or one clear error, and nothing is left.

`VKSCHED_CHAOS=all` has each fault come before each message of a conversation.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import clusters
import numpy as np
import pytest
from chaos import (
    FAULTS,
    LIMIT_S,
    STATES,
    Lab,
    chaotic,
    compiled,
    converse,
    expected,
    fed,
    on_nodes,
    tried,
    wrong,
)
from counted_transport import Counter
from forked_nodes import Forked
from selection import by_tier
from test_schedulers import used, wait_for

import vksched as vs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")

FRAMES = 136
"""Of a conversation without faults, and a few that come after one."""
REQUESTED = os.environ.get("VKSCHED_CHAOS", str(by_tier(1, 4, 16)))
COUNT = FRAMES if REQUESTED == "all" else int(REQUESTED)
"""Of the messages that each fault comes before."""
AT_ONCE = int(os.environ.get("VKSCHED_CHAOS_AT_ONCE", "6"))
"""Conversations, which wait most of the time."""
ALL_S = 3600 if COUNT > 16 else 300


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    folder = tmp_path_factory.mktemp("chaos")
    clusters.make_credentials().save(folder / "key")
    built = Forked(folder / "key", folder, "plain")
    yield built
    assert set(built.close()) <= {0}


def test_a_conversation_without_faults_has_so_many_messages(forked: Forked) -> None:
    with chaotic():
        for states in STATES:
            found, frames = tried(forked, "", states, -1)
            assert found == []
            assert FRAMES - 40 < len(frames) <= FRAMES


@pytest.mark.scales
@pytest.mark.timeout(ALL_S)
def test_results_are_right_or_one_error_tells_why(forked: Forked) -> None:
    cases = [
        (fault, STATES[(at + turn) % len(STATES)], at)
        for turn, fault in enumerate(FAULTS)
        for at in range(turn * FRAMES // COUNT // len(FAULTS), FRAMES, FRAMES // COUNT)
    ]
    with chaotic(), ThreadPoolExecutor(AT_ONCE) as threads:
        done = list(threads.map(lambda case: tried(forked, *case), cases))
    bad = [
        f"{fault} at {at} ({', '.join(frames[at : at + 1])}), states: {states}: {'; '.join(found)}"
        for (fault, states, at), (found, frames) in zip(cases, done, strict=True)
        if found
    ]
    print(f"{len(cases)} conversations with {len(FAULTS)} faults at {FRAMES} messages")
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("writes", range(5))
def test_a_full_disk_costs_a_node_its_cache_and_no_more(
    forked: Forked, tmp_path: Path, writes: int
) -> None:
    with chaotic():
        lab = Lab(forked, "plain", Counter(), full=writes, cache=str(tmp_path / "cache"))
        done = converse(lab.addresses, "plain")
        assert wrong(done, "plain", "slow") == [] and done.error is None and not done.failed_devices
        assert lab.close() == []
    there = [path.name for path in (tmp_path / "cache").iterdir()]
    assert len(there) == (writes == 4) and not [name for name in there if name.endswith(".tmp")]


def test_nodes_cut_off_each_other_are_reported_and_used_together_once_they_are_not(
    forked: Forked,
) -> None:
    with chaotic():
        lab = Lab(forked, "none", Counter())
        for wire in lab.peers.values():
            wire.cut = True
        begin_s = time.monotonic()
        with pytest.warns(vs.VkschedWarning, match=r"node1 does not reach node2.*ports of both"):
            sched = on_nodes(lab.addresses)
        assert time.monotonic() - begin_s < LIMIT_S
        with sched:
            run, want = compiled(sched, "none"), expected("none")[1]
            with pytest.warns(vs.VkschedWarning, match=r"node\d failed.*out of use until"):
                assert np.array_equal(run(x=fed(1))["out"], want)
            (left_out,) = {name.split("/")[0] for name in sched.failed_devices}
            assert sched._membership._hosts.hosts[left_out].error is None  # the driver reaches it
            for wire in lab.peers.values():
                wire.cut = False
            wait_for(lambda: not sched.failed_devices)
            assert np.array_equal(run(x=fed(1))["out"], want)
            assert used(run) == {"node1/cpu", "node2/cpu"}
        assert lab.close() == []
