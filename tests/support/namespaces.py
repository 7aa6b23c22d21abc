"""Networks of the test's own: a process with a bridge, and nodes behind it, each in a namespace.

    unshare --> inside: bridge 10.77.0.1 --port--> node1 10.77.0.2
                                         --port--> node2 10.77.0.3

Users, network and mounts are unshared: the network of the computer is neither used nor changed. A
port that is taken off the bridge drops what comes, silently, and so do two ports for each other
that are both isolated.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from forked_nodes import START_S, Forked, ForkedNode

UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--", "sh", "-c"]
SHARED_MEMORY = "/dev/shm"
OWN_MEMORY = f"mount -t tmpfs none {SHARED_MEMORY}"
"""So that all that is left there is the test's."""
EXAMPLES = Path(__file__).parents[2] / "examples"
PORT = 7700
SLOW_BITS_PER_S = 224_000
"""At which 64 KiB take longer than a silence that counts as a loss."""
TOOLS = ("unshare", "nsenter", "ip", "bridge", "tc")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
QUEUE = "root tbf rate {} burst 4kb limit 1mb"
TRY = " && ".join(
    [
        OWN_MEMORY,
        "ip link add vstry type bridge",
        "ip link add vsa type veth peer name vsb",
        "ip link set vsa master vstry",
        "bridge link set dev vsa isolated on",
        f"tc qdisc replace dev vsa {QUEUE.format(SLOW_BITS_PER_S)}",
        "unshare --net true",
    ]
)
"""All that these networks need of the system."""


def why_not() -> str:
    """Return why there can be no networks of one's own here; "" where there can."""
    if sys.platform != "linux":
        return "only Linux has network namespaces"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if missing:
        return f"network namespaces need {', '.join(missing)}"
    tried = subprocess.run(
        [*UNSHARE, TRY],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": PATH},
    )
    text = tried.stderr.strip()
    return f"this system makes no network namespaces: {text}" if tried.returncode else ""


def run_inside(script: Path, *arguments: str, limit_s: float) -> str:
    """Run a script in a network of its own, and returns what it prints."""
    paths = [*filter(None, sys.path), str(EXAMPLES)]
    done = subprocess.run(
        [*UNSHARE, f'{OWN_MEMORY} && exec "$0" "$@"', sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        env={
            **os.environ,
            "PATH": PATH,
            "PYTHONPATH": os.pathsep.join(paths),
            "OPENBLAS_NUM_THREADS": "1",  # it rounds by how many there are
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Network:
    """The bridge of this process's own network, and the nodes at it; see `run_inside`."""

    def __init__(self, forked: Forked) -> None:
        self._forked, self._count = forked, 0
        self._ports: dict[str, str] = {}
        _do("ip link set lo up")
        _do("ip link add br0 type bridge")
        _do("ip addr add 10.77.0.1/24 dev br0")
        _do("ip link set br0 up")

    def start(self, name: str, **how: object) -> ForkedNode:
        """Return a node in a network of its own; another one of that name has another address."""
        self._count += 1
        place, port = f"10.77.0.{1 + self._count}", f"port{self._count}"
        node = self._forked.start(name, apart=True, address=f"{place}:{PORT}", **how)
        node.wait(bool, START_S)  # what it notes first is that it is apart
        _do(f"ip link add {port} type veth peer name end0 netns {node.pid}")
        _do(f"ip link set {port} master br0 up")
        there = f"nsenter --net=/proc/{node.pid}/ns/net ip"
        _do(f"{there} link set lo up")
        _do(f"{there} addr add {place}/24 dev end0")
        _do(f"{there} link set end0 up")
        self._ports[name] = port
        return node

    def cut_off(self, name: str) -> None:
        """Drop all packets to a node and from it."""
        _do(f"ip link set {self._ports[name]} nomaster")

    def cut_apart(self, *names: str) -> None:
        """Drop all packets between nodes; the caller reaches all of them."""
        for name in names:
            _do(f"bridge link set dev {self._ports[name]} isolated on")

    def slow(self, name: str, bits_per_s: int) -> None:
        """Has packets to a node queue for a link that is so slow."""
        _do(f"tc qdisc replace dev {self._ports[name]} {QUEUE.format(bits_per_s)}")

    def heal(self, names: Sequence[str]) -> None:
        """Make the network of nodes whole again."""
        for port in (self._ports[name] for name in names):
            _do(f"ip link set {port} master br0 up")
            _do(f"bridge link set dev {port} isolated off")
            subprocess.run(f"tc qdisc del dev {port} root".split(), stderr=subprocess.DEVNULL)


Fault = Callable[[Network, Mapping[str, ForkedNode]], None]
FAULTS: dict[str, Fault] = {
    "kill node1": lambda _, nodes: nodes["node1"].signal(signal.SIGKILL),
    "kill node2": lambda _, nodes: nodes["node2"].signal(signal.SIGKILL),
    "stop node1": lambda _, nodes: nodes["node1"].signal(signal.SIGSTOP),
    "stop node2": lambda _, nodes: nodes["node2"].signal(signal.SIGSTOP),
    "cut node1 off": lambda network, _: network.cut_off("node1"),
    "cut node2 off": lambda network, _: network.cut_off("node2"),
    "cut nodes off each other": lambda network, nodes: network.cut_apart(*nodes),
    "slow way to node1": lambda network, _: network.slow("node1", SLOW_BITS_PER_S),
    "slow way to node2": lambda network, _: network.slow("node2", SLOW_BITS_PER_S),
}
"""What may go wrong in a network, beside its nodes."""


def _do(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
