"""An exchange of all with all, carried out and simulated: do hosts wait for their turns?

    python benchmarks/workloads/exchange.py [--hosts 4,8] [--rows 8192] [--rate 50e6] [--json]

Hosts are threads of this process, whose devices are its CPU. Each makes a value and adds those of
all others to it. Values go from one to the other in memory, but a host's port takes them one after
the other, at a rate that the machine of the plan has, too: it sleeps. So the times say how well the
walks of hosts use a network, and nothing of a real network or of computing.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.distributed.protocols import RunKey
from vksched.plan.plan import Plan
from vksched.plan.simulation.simulate_plan import simulate
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.device import Device
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link, Links
from vksched.topology.topology import Topology

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
import memory_hosts

COLUMNS, RUNS, LATENCY_S = 64, 3, 1e-4


class Paced(memory_hosts.MemoryPost):
    """The post of a host behind its port: what leaves that goes one after the other."""

    bytes_per_s = 1.0
    busy: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def send(self, run: RunKey, value: int, host: str, array: NDArray) -> None:
        with self.busy[self._host]:
            time.sleep(array.nbytes / self.bytes_per_s)
        super().send(run, value, host, array)


memory_hosts.MemoryPost = Paced  # type: ignore[misc]


def plan_of(hosts: int, rows: int, bytes_per_s: float) -> Plan:
    """Return the plan of an exchange."""
    names = [f"node{host}/cpu" for host in range(hosts)]
    devices = [DeviceSpec(name, "cpu", "numpy") for name in (*names, "cpu")]
    topology = Topology(tuple(devices), Links((), network=Link(bytes_per_s, LATENCY_S)))
    x, ends = vs.input("x", (1, COLUMNS)), []
    ones = np.ones((rows, COLUMNS), np.float32)
    terms = [
        vs.mul(vs.add(x, float(host), name=f"made{host}.add"), vs.weight(ones, name=f"w{host}"),
               name=f"made{host}")
        for host in range(hosts)
    ]  # fmt: skip
    for host in range(hosts):
        total = terms[host]
        for step in range(1, hosts):
            total = vs.add(total, terms[(host + step) % hosts], name=f"sum{host}.{step}")
        ends.append(vs.reduce_max(total, name=f"sum{host}"))
    graph, _ = vs.build_graph(ends)
    placed = [(f"{what}{host}*", names[host]) for host in range(hosts) for what in ("made", "sum")]
    return vs.plan_graph(graph, topology, overrides=placed)


def measure(hosts: int, rows: int, bytes_per_s: float) -> dict[str, float]:
    """Return the time of an exchange: lower bound by its bytes, by simulation, and by the clock."""
    plan = plan_of(hosts, rows, bytes_per_s)
    Paced.bytes_per_s = bytes_per_s

    def cpu(host: str, name: str) -> Device:
        return CpuDevice(DeviceSpec("cpu", "cpu", "numpy"))

    taken_s = []
    with memory_hosts.Cluster(plan, cpu) as cluster:
        feeds = {"x": np.zeros((1, COLUMNS), np.float32)}
        cluster.run(feeds)
        for _ in range(RUNS):
            start = time.perf_counter()
            cluster.run(feeds)
            taken_s.append(time.perf_counter() - start)
    value_s = rows * COLUMNS * 4 / bytes_per_s
    return {
        "hosts": hosts,
        "bytes_s": (hosts - 1) * value_s,
        "simulated_s": simulate(plan).seconds,
        "measured_s": median(taken_s),
    }


def main() -> None:
    """Print a line for each number of hosts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", default="4,8", help="numbers of hosts, with commas")
    parser.add_argument("--rows", type=int, default=8192, help="of 64 float32 in each value")
    parser.add_argument("--rate", type=float, default=50e6, help="bytes a second of a port")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = [measure(int(hosts), args.rows, args.rate) for hosts in args.hosts.split(",")]
    if args.json:
        print(json.dumps(found))
        return
    for each in found:
        times = ", ".join(
            f"{word} {1e3 * each[f'{word}_s']:.0f} ms"
            for word in ("bytes", "simulated", "measured")
        )
        print(f"{each['hosts']} hosts: {times}")


if __name__ == "__main__":
    main()
