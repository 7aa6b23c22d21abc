"""A node that stands still most of the time loses its work: time on the host counts, not that of
its devices alone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import clusters
import numpy as np
import pytest
from conftest import needs_posix
from node_processes import node_processes

import vksched as vs
from vksched.engine.executable import CompiledGraph

ATTEMPTS = 8
"""A busy computer may measure a link too slow for the work of two devices."""
RUNS = 240
STOPPED_S, GOES_ON_S = 0.1, 0.01
FAR = "node1/cpu"
X = np.ones((256, 512), np.float32)


def branches(rng: np.random.Generator) -> vs.Tensor:
    """Two chains of products, one for each computer."""
    x, ends = vs.input("x", X.shape), list[vs.Tensor]()
    for i in range(2):
        h = x
        for k in range(4):
            values = (rng.standard_normal((512, 512)) * 0.05).astype(np.float32)
            h = vs.tanh(vs.matmul(h, vs.weight(values), name=f"b{i}.{k}"))
        ends.append(h)
    return vs.add(*ends)


@contextmanager
def standing_still(process: int) -> Iterator[None]:
    """Has a process stand still for nine tenths of the time until the block ends."""
    ends = threading.Event()

    def stop_and_go() -> None:
        while not ends.is_set():
            os.kill(process, signal.SIGSTOP)
            ends.wait(STOPPED_S)
            os.kill(process, signal.SIGCONT)
            ends.wait(GOES_ON_S)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        os.kill(process, signal.SIGCONT)


def works_far(run: CompiledGraph) -> bool:
    """Return True if the plan has work for the node."""
    return run.plan.topology.index(FAR) in run.plan.working


@needs_posix
def test_a_node_that_stands_still_most_of_the_time_loses_its_work(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    key, output = tmp_path / "key", branches(rng)
    credentials = clusters.make_credentials()
    credentials.save(key)
    with vs.Scheduler(["cpu"]) as alone:
        expected = alone.compile(output)(x=X)
    with node_processes(key, tmp_path, "cpu", ["node1"]) as nodes:
        node = nodes["node1"]
        cluster = vs.Cluster([node.address], credentials)
        for _ in range(ATTEMPTS):
            with vs.Scheduler([FAR, "cpu"], cluster=cluster) as sched:
                run = sched.compile(output)
                if works_far(run):
                    with standing_still(node.process.pid):
                        count = 0
                        while count < RUNS and (works_far(run) or count < 40):
                            count += 1
                            assert np.allclose(run(x=X), expected, rtol=1e-4, atol=1e-4)
                    assert not works_far(run), run.plan.notes
                    return
        pytest.fail("no plan has one chain there and one here")
