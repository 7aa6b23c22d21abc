"""What runs inside of a network of its own; see `namespaces.run_inside`.

inside_networks.py models N             example models over N nodes, and in one process
inside_networks.py COUNT FAULT ...      each fault before COUNT of the caller's messages
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import clusters
import numpy as np
import train_gpt
import two_cards
from chaos import LIMIT_S, NAMES, STATES, converse, is_stopped, left_behind, wrong
from forked_nodes import Forked
from graphs import transformer
from namespaces import FAULTS, SHARED_MEMORY, Network
from pipeline import network as layers

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.distributed.wire.channel import Channel
from vksched.ir.graph import Graph

MESSAGES = 60
"""Of the caller in a conversation, at least."""
HEALED_S = 4.0


@contextmanager
def networked() -> Iterator[Network]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clusters.make_credentials().save(folder / "key")
        forked = Forked(folder / "key", folder, "tls")
        try:
            yield Network(forked)
        finally:
            codes = forked.close()
        assert set(codes) <= {0}, codes
        assert left_behind() == [] and not os.listdir(SHARED_MEMORY)


# -- the numbers of one process --------------------------------------------------------------------


Model = tuple[vs.Tensor, Mapping[vs.Tensor, vs.Tensor]]
MODELS: dict[str, Callable[[], Model]] = {
    "layers": lambda: (layers(), {}),
    "transformer": lambda: (transformer(layers=3)[0][0], {}),
    "wide transformer": lambda: (two_cards.build(layers=2, hidden=64, heads=4), {}),
    "training": train_gpt.build,
}


def over_nodes(count: int) -> None:
    """Run the models in this process and over nodes; the numbers are the same to the bit."""
    with networked() as network:
        nodes = [network.start(f"node{i + 1}") for i in range(count)]
        cluster = vs.Cluster([node.address for node in nodes], clusters.make_credentials())
        with vs.Scheduler(["cpu"], optimize=False) as alone:
            want = {name: outputs_of(alone, model(), 0) for name, model in MODELS.items()}
        with vs.Scheduler(cluster=cluster, optimize=False) as sched:
            for name, model in MODELS.items():
                found = outputs_of(sched, model(), count)
                same = [np.array_equal(a, b) for a, b in zip(found, want[name], strict=True)]
                assert all(same), f"{name} over {count} nodes gave other numbers"
                print(f"{name} over {count} nodes: the numbers of one process")


def outputs_of(sched: vs.Scheduler, model: Model, count: int) -> list[NDArray]:
    out, updates = model
    graph, _ = vs.build_graph([out], updates=updates)
    ops = [node.name for node in graph.ops]
    at = {name: f"node{i * count // len(ops) + 1}/cpu" for i, name in enumerate(ops) if count}
    run = sched.compile(out, at, updates=updates)
    used = {run.plan.topology.devices[split.device].name for split in run.plan.splits}
    assert used >= set(at.values())
    return [np.asarray(run(**feeds_of(graph, turn))) for turn in range(2)]


def feeds_of(graph: Graph, seed: int) -> dict[str, NDArray]:
    rng = np.random.default_rng(seed)
    return {
        node.name: rng.integers(0, 9, node.type.shape, node.type.dtype)
        if "int" in node.type.dtype
        else rng.standard_normal(node.type.shape, node.type.dtype)
        for node in graph.inputs
    }


# -- faults ----------------------------------------------------------------------------------------


class Messages:
    """Counts the messages of this process's channels; `reached` is called before one of them."""

    def __init__(self, at: int, reached: Callable[[], None]) -> None:
        self.count, self._at, self._reached = 0, at, reached
        self._lock = threading.Lock()

    def note(self) -> None:
        with self._lock:
            if self.count == self._at:
                self._reached()
            self.count += 1

    @contextmanager
    def counted(self) -> Iterator[None]:
        send, arrived = Channel._send, Channel._arrived

        def sending(*args: object) -> None:
            self.note()
            send(*args)  # type: ignore[arg-type]

        def arriving(*args: object) -> None:
            self.note()
            arrived(*args)  # type: ignore[arg-type]

        with patch.object(Channel, "_send", sending), patch.object(Channel, "_arrived", arriving):
            yield


def with_faults(count: int, faults: Sequence[str]) -> None:
    bad = []
    with networked() as network, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for fault in faults:
            turn = list(FAULTS).index(fault)
            first = turn * MESSAGES // count // len(FAULTS)
            for at in range(first, MESSAGES, MESSAGES // count):
                states = STATES[(at + turn) % len(STATES)]
                for _ in range(3 if fault.startswith("slow") else 1):
                    found = tried_at(network, fault, states, at)
                    if not found:  # else: beside others, it may have been slower than it says
                        break
                bad += [f"{fault} at {at}, states: {states}: {each}" for each in found]
    assert not bad, "\n".join(bad)
    print(f"{len(faults)} faults at {count} messages")


def tried_at(network: Network, fault: str, states: str, at: int) -> list[str]:
    nodes = {name: network.start(name, brief=True) for name in NAMES}
    healing: list[threading.Timer] = []

    def reached() -> None:
        FAULTS[fault](network, nodes)
        if fault.startswith("slow"):
            healing.append(threading.Timer(HEALED_S, network.heal, [NAMES]))
            healing[-1].start()

    addresses = [node.address for node in nodes.values()]
    messages = Messages(at, reached)
    with messages.counted():
        done = converse(addresses, states, "tls")
    found = wrong(done, states, fault)
    for node in nodes.values():
        found += [] if is_stopped(node) else node.wrong_in(node.wait_free, LIMIT_S)
    for timer in healing:
        timer.join()
    network.heal([name for name, node in nodes.items() if node.alive])
    return found + [each for node in nodes.values() for each in node.wrong_in(node.end, LIMIT_S)]


if __name__ == "__main__":
    if sys.argv[1] == "models":
        over_nodes(int(sys.argv[2]))
    else:
        with_faults(int(sys.argv[1]), sys.argv[2:])
