"""What messages between computers cost: over nodes of this computer, beside plain TCP and beside
one process. `python benchmarks/workloads/remote.py [--json]`

    rates      bytes there and back, through a node and through plain TCP, in turns
    runs       a chain of ops over two nodes, the same in one process, and its bytes by plain TCP,
               in turns

Nodes and the TCP server are processes of their own. All shares one computer's cores and its
loopback: ratios hold for it alone, and say nothing of a real network's rate.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

import vksched as vs
from vksched.distributed.driver.client import RemoteWorkers
from vksched.distributed.driver.cluster_executor import ClusterExecutor
from vksched.distributed.wire.channel import Channel
from vksched.distributed.wire.credentials import Credentials
from vksched.distributed.wire.tls import SECURITY, Security
from vksched.plan.multi_host.host_plan_codec import HostPlanCodec
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.executors.executor_context import ExecutorContext
from vksched.runtime.vulkan import device_probe
from vksched.topology.topology import Topology
from vksched.trace.events import SystemClock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from node_processes import NodeProcess, node_processes

NAMES = ("node1", "node2")
SIZES = {64: 200, 1 << 20: 40, 1 << 26: 5}
"""Bytes, and how often they are sent."""
ROWS = {1: 300, 1 << 10: 40, 1 << 16: 7}
"""KiB between two nodes, and how many runs."""
TIMEOUT_S = 60.0


def echo_server(ready: multiprocessing.connection.Connection) -> None:  # type: ignore[name-defined]
    """Send back what comes, each message behind its size."""
    server = socket.create_server(("127.0.0.1", 0))
    ready.send(server.getsockname()[1])
    own, _ = server.accept()
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory = memoryview(bytearray(max(SIZES)))
    while head := own.recv(8, socket.MSG_WAITALL):
        data = memory[: int.from_bytes(head, "little")]
        read_all(own, data)
        own.sendall(data)


def read_all(own: socket.socket, into: memoryview) -> None:
    while into:
        into = into[own.recv_into(into) :]


def tcp_echo(own: socket.socket, sent: np.ndarray, back: np.ndarray) -> None:
    own.sendall(len(sent).to_bytes(8, "little"))
    own.sendall(memoryview(sent))
    read_all(own, memoryview(back))


def node_echo(channel: Channel, sent: np.ndarray, back: np.ndarray) -> None:
    channel.ask("echo", {}, [sent], TIMEOUT_S, memoryview(back))


def in_turns(calls: Mapping[str, Callable[[], object]], times: int) -> dict[str, float]:
    """Return the fewest seconds of each call, taken in turns: other programs share the cores."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(times):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - begin)
    return {name: min(each) for name, each in found.items()}


def rates(channels: Mapping[str, Channel], own: socket.socket) -> list[dict[str, object]]:
    """Return the round-trip times of messages of each size."""
    out: list[dict[str, object]] = []
    for size, times in SIZES.items():
        sent, back = np.ones(size, np.uint8), np.zeros(size, np.uint8)
        calls: dict[str, Callable[[], object]] = {"tcp": lambda s=sent, b=back: tcp_echo(own, s, b)}
        for kind, channel in channels.items():
            calls[kind] = lambda c=channel, s=sent, b=back: node_echo(c, s, b)
        in_turns(calls, 2)
        took = in_turns(calls, times)
        out.append({"bytes": size, **{f"{name}_s": each for name, each in took.items()}})
    return out


def chain(rows: int) -> vs.Tensor:
    """A chain from 256 numbers to 256, with as many KiB as rows between its first two ops."""
    x = vs.input("x", (1, 256))
    wide = vs.mul(vs.broadcast_to(x, (rows, 256)), 2.0, name="a")
    return vs.mul(vs.neg(wide, name="b")[:1], 3.0, name="c")


def runs(
    processes: Mapping[str, NodeProcess],
    nodes: RemoteWorkers,
    own: socket.socket,
    rows: int,
    times: int,
) -> dict[str, object]:
    """Return the seconds of a run over two nodes and in this process, and of the same bytes one
    way by TCP.
    """
    hosts = {n: nodes.connect(p.address) for n, p in processes.items()}
    cpu = CpuDevice(device_probe.device_spec(device_probe.resolve("cpu")))
    devices = [*(d for node in hosts.values() for d in node.devices), cpu]
    topology = Topology(tuple(device.spec for device in devices)).verify()
    graph, _ = vs.build_graph([chain(rows)])
    at = (("a", "node1/cpu"), ("b", "node2/cpu"), ("c", "node2/cpu"))
    plan = vs.plan_graph(graph, topology, overrides=at, copies=1)
    working = [topology.host_of(split.device) for split in plan.splits]
    assert [name for name in working if name] == list(NAMES), plan.explain()
    context = ExecutorContext(devices, vs.Trace(), TIMEOUT_S)
    executor = ClusterExecutor(plan, hosts, nodes.transport, context)
    (node,) = [node.id for node in graph.nodes if node.op == "input"]
    x, sent = np.ones((1, 256), np.float32), np.ones(rows << 10, np.uint8)
    back = np.zeros_like(sent)
    with vs.Scheduler(["cpu"], optimize=False) as sched:
        alone = sched.compile([chain(rows)])
        calls: dict[str, Callable[[], object]] = {
            "two nodes": lambda: executor.run({node: x}),
            "one process": lambda: alone(x=x),
            "tcp there and back": lambda: tcp_echo(own, sent, back),
        }
        in_turns(calls, 2 + times // 10)
        took = in_turns(calls, times)
        assert np.array_equal(executor.run({node: x}).outputs[0], alone(x=x)[0])
    executor.close()
    cpu.close()
    for each in hosts.values():
        each.close()
    overhead_s = took["two nodes"] - took["one process"]
    return {
        "bytes": rows << 10,
        "splits": len(plan.splits),
        "seconds": took,
        "overhead_s": overhead_s,
    }


def measure() -> dict[str, object]:
    """Return all figures."""
    out: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as name:
        key, credentials = Path(name) / "key", Credentials.make()
        credentials.save(key)
        ours, theirs = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(
            target=echo_server, args=(theirs,), daemon=True
        )
        server.start()
        own = socket.create_connection(("127.0.0.1", ours.recv()))
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channels: dict[str, Channel] = {}
        for kind in SECURITY:
            nodes = RemoteWorkers(Security(credentials, kind), HostPlanCodec(), SystemClock())
            with node_processes(key, Path(name), "cpu", NAMES, kind) as processes:
                out[f"runs {kind}"] = [
                    runs(processes, nodes, own, rows, times) for rows, times in ROWS.items()
                ]
            nodes.close()
        with (
            node_processes(key, Path(name), "cpu", ["a"], "tls") as one,
            node_processes(key, Path(name), "cpu", ["a"], "plain") as two,
        ):
            for kind, processes in zip(SECURITY, (one, two), strict=True):
                nodes = RemoteWorkers(Security(credentials, kind), HostPlanCodec(), SystemClock())
                channels[kind] = nodes.connect(processes["a"].address).channel
            out["rates"] = rates(channels, own)
            for channel in channels.values():
                channel.close()
        own.close()
        server.join()
    return out


def show(found: Mapping[str, object]) -> None:
    for kind in SECURITY:
        for run in found[f"runs {kind}"]:  # type: ignore[attr-defined]
            each = ", ".join(f"{name} {s * 1e3:.2f} ms" for name, s in run["seconds"].items())
            one_way_s = run["seconds"]["tcp there and back"] / 2
            more = f"{run['overhead_s'] * 1e3:.2f} ms more than one process"
            share = f"{one_way_s / run['overhead_s']:.2f} of TCP's rate"
            print(f"{kind}: {run['bytes']} B from node to node: {each}; {more}, {share}")
    for row in found["rates"]:  # type: ignore[attr-defined]
        tcp_s = row["tcp_s"]
        shares = ", ".join(f"{kind} {tcp_s / row[f'{kind}_s']:.2f}" for kind in SECURITY)
        about = f"{tcp_s * 1e6:.0f} us ({2 * row['bytes'] / tcp_s / 1e9:.2f} GB/s)"
        print(f"{row['bytes']} B there and back: tcp {about}; of its rate {shares}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    figures = measure()
    if parser.parse_args().json:
        print(json.dumps(figures, indent=1))
    else:
        show(figures)
