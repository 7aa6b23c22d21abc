"""Runs over several hosts by simulation: known timelines, each message where it must count, and the
same plan on one host as the oracle where the network takes no time.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from graphs import CPU, A, B, chain, diamond, fan_out, transformer

import vksched as vs
from vksched.plan.multi_host.host_plan import Recv
from vksched.plan.plan import Plan
from vksched.plan.simulation.plan_metrics import plan_metrics
from vksched.plan.simulation.simulate_plan import program_of, run_program, simulate
from vksched.plan.types.plan_types import Split
from vksched.planner.partition.host_partition import cut
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.host_names import on
from vksched.topology.links import Link, Links
from vksched.topology.perf_model import PerfModel
from vksched.topology.topology import Topology

FREE = Link(math.inf, 0.0)
ONE, TWO = "node1/null:0", "node2/null:0"
VALUE_BYTES = 8 * 64 * 4


def topology_of(names: Sequence[str], network: Link, bus: Link = FREE, **spec: object) -> Topology:
    """Devices of these names, on hosts that are joined by one kind of network."""
    base = DeviceSpec("", "null", flops_per_s=1e9, bytes_per_s=math.inf, submit_s=0.0)
    devices = [replace(base, name=name, **spec) for name in names]  # type: ignore[arg-type]
    return Topology((*devices, replace(base, name=CPU, kind="cpu")), Links((), bus, network))


def plan_of(
    built: tuple[Sequence[vs.Tensor], dict[str, str]], topology: Topology, copies: int = 1
) -> Plan:
    graph, _ = vs.build_graph(built[0])
    return vs.plan_graph(graph, topology, overrides=list(built[1].items()), copies=copies)


def waits_for(network: Link, devices: Sequence[str] = (ONE, ONE, TWO)) -> float:
    """The seconds of a chain over two hosts."""
    return simulate(plan_of(chain(devices), topology_of((ONE, TWO), network))).seconds


def test_each_message_takes_its_latency() -> None:
    # start, transfer and result are one behind the other; what else is said is done by then
    none, some = waits_for(Link(math.inf, 0.0)), waits_for(Link(math.inf, 0.5))
    assert some - none == pytest.approx(3 * 0.5)


def test_bytes_take_the_network_once_for_each_crossing() -> None:
    none, some = waits_for(FREE), waits_for(Link(1e3, 0.0))
    # input, crossing and result are as large as each other
    assert some - none == pytest.approx(3 * VALUE_BYTES / 1e3)


def test_a_value_goes_to_a_host_once() -> None:
    names = (ONE, "node2/null:0", "node2/null:1")
    built = fan_out([names[1], names[2]])
    built[1]["a"] = ONE
    network = Link(1e3, 0.0)
    slow = simulate(plan_of(built, topology_of(names, network))).seconds
    free = simulate(plan_of(built, topology_of(names, FREE))).seconds
    # input, one transfer, two results over one network
    assert slow - free == pytest.approx(4 * VALUE_BYTES / 1e3)


@pytest.mark.parametrize("named", [True, False])
def test_links_of_pairs_work_side_by_side_and_ports_do_not(named: bool) -> None:
    # the halves of a diamond go to two hosts, and come back from them
    names = (ONE, TWO, "node3/null:0")
    topology = topology_of(names, Link(1e3, 0.0))
    memory = [topology.memory_of(host) for host in topology.hosts]
    if named:
        ends = itertools.combinations(memory, 2)
        pairs = tuple((a, b, topology.links.network) for a, b in ends)
        topology = replace(topology, links=replace(topology.links, pairs=pairs))
    built = diamond(ONE, TWO, names[2], ONE)
    slow = simulate(plan_of(built, topology)).seconds
    free = simulate(plan_of(built, topology_of(names, FREE))).seconds
    # by ports the second half goes out behind the first one, and comes in behind it
    assert slow - free == pytest.approx((4 if named else 5) * VALUE_BYTES / 1e3)


def test_values_over_one_link_are_one_behind_the_other() -> None:
    names = (ONE, TWO, "node2/null:1")
    built = diamond(ONE, TWO, names[2], ONE)
    slow = simulate(plan_of(built, topology_of(names, Link(1e3, 0.0)))).seconds
    free = simulate(plan_of(built, topology_of(names, FREE))).seconds
    # input, the value for both halves once, two values on the way back, result
    assert slow - free == pytest.approx(5 * VALUE_BYTES / 1e3)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("devices", [[A, A, B], [A, B, A, B], [B, CPU, A]])
def test_a_free_network_is_as_good_as_one_host_for_a_chain(
    devices: Sequence[str], copies: int
) -> None:
    costs = PerfModel(launch_s=1e-6, start_s=2e-5, submit_s=5e-5, fence_s=3e-5, calls=1)
    bus = Link(1e7, 1e-5)
    far = {A: on("node1", A), B: on("node2", B), CPU: CPU}
    near = plan_of(chain(devices), topology_of((A, B), FREE, bus, costs=costs), copies)
    apart = topology_of((far[A], far[B]), FREE, bus, costs=costs)
    plan = plan_of(chain([far[d] for d in devices]), apart, copies)
    assert program_of(plan).walks is not None and program_of(near).walks is None
    assert simulate(plan).seconds == pytest.approx(simulate(near).seconds)


def test_hosts_submit_side_by_side() -> None:
    # one host hands over both halves, one after the other; two do that at once
    costs = PerfModel(submit_s=1.0, calls=1)
    near = plan_of(diamond(None, A, B, A), topology_of((A, B), FREE, costs=costs))
    far = plan_of(diamond(None, ONE, TWO, ONE), topology_of((ONE, TWO), FREE, costs=costs))
    assert simulate(near).seconds - simulate(far).seconds == pytest.approx(1.0, rel=1e-3)


def test_each_host_begins_a_run_in_its_own_time() -> None:
    costs = PerfModel(run_s=1.0, calls=1)
    near = plan_of(chain([A, B]), topology_of((A, B), FREE, costs=costs))
    far = plan_of(chain([ONE, TWO]), topology_of((ONE, TWO), FREE, costs=costs))
    assert simulate(near).seconds == pytest.approx(1.0, rel=1e-3)
    assert simulate(far).seconds == pytest.approx(1.0, rel=1e-3)  # at once, not one by one


def test_a_stream_over_hosts_has_the_period_of_its_slowest_part() -> None:
    plan = plan_of(chain([ONE, ONE, TWO]), topology_of((ONE, TWO), Link(1e9, 1e-5)), copies=64)
    metrics = plan_metrics(plan)
    busy = simulate(plan).busy_s
    wire_s = VALUE_BYTES / 1e9
    assert metrics.period_s == pytest.approx(max(*busy.values(), wire_s), rel=0.02)
    assert metrics.latency_s > 3e-5


@pytest.mark.parametrize("hosts", [2, 3, 5, 8])
def test_in_an_exchange_of_all_with_all_no_host_waits_for_its_turn(hosts: int) -> None:
    # each host makes a value and needs the sum of all: its port brings one behind the other
    network, x = Link(1e3, 0.0), vs.input("x", (8, 64))
    built = [vs.mul(x, float(host + 1), name=f"made{host}") for host in range(hosts)]
    sums = []
    for host in range(hosts):
        total = built[host]
        for step in range(1, hosts):
            total = vs.add(total, built[(host + step) % hosts], name=f"sum{host}.{step}")
        sums.append(vs.reduce_max(total, name=f"sum{host}"))
    names = [f"node{host}/null:0" for host in range(hosts)]
    placed = {f"{what}{host}*": names[host] for host in range(hosts) for what in ("made", "sum")}
    plan = plan_of((sums, placed), topology_of(names, network))
    value_s = VALUE_BYTES / network.bytes_per_s
    input_s = hosts * value_s  # the caller's port brings the input to all, one behind the other
    exchange_s = simulate(plan).seconds - input_s
    assert (hosts - 1) * value_s <= exchange_s <= (hosts + 0.5) * value_s


def test_states_are_written_when_all_hosts_are_ready_and_informed() -> None:
    one, two = (vs.state(np.zeros((8, 64), np.float32), name=name) for name in ("s1", "s2"))
    x = vs.input("x", (8, 64))
    a, b = vs.add(x, one, name="a"), vs.add(x, two, name="b")
    graph, _ = vs.build_graph([vs.reduce_sum(x, name="y")], updates={one: a, two: b})
    overrides = [("s1", ONE), ("a", ONE), ("s2", TWO), ("b", TWO), ("y", ONE)]

    def seconds(network: Link) -> float:
        plan = vs.plan_graph(graph, topology_of((ONE, TWO), network), overrides=overrides)
        assert plan.commits
        return simulate(plan).seconds

    # start, ready, commit, done
    assert seconds(Link(math.inf, 0.5)) - seconds(FREE) == pytest.approx(4 * 0.5)


def test_each_host_waits_for_its_own_splits_only() -> None:
    outputs, _ = transformer(3)
    graph, _ = vs.build_graph(outputs)
    topology = topology_of((ONE, TWO), Link(1e9, 1e-4))
    plan = vs.plan_graph(graph, topology, overrides=[("layer.0.*", ONE), ("layer.[12].*", TWO)])
    walks = program_of(plan).walks
    assert walks is not None
    for split, waits, takes in zip(plan.splits, walks.waits, walks.takes, strict=True):
        here = walks.on[split.device]
        assert {walks.on[plan.splits[w].device] for w in waits} <= {here}
        for message in takes:
            assert message.target == here != message.source
            assert message.split is not None
            assert walks.on[plan.splits[message.split].device] == message.source
            assert message in walks.sends[message.split]
    assert _waited(plan.splits, walks) == {split.id for split in plan.splits}


def _waited(splits: Sequence[Split], walks: object) -> set[int]:
    """The splits that their own host knows to be complete at the end."""
    last: dict[int, int] = {}
    every = [*walks.waits, *walks.ready]  # type: ignore[attr-defined]
    for split in (split for waits in every for split in waits):
        device = splits[split].device
        last[device] = max(split, last.get(device, -1))
    return {split.id for split in splits if split.id <= last.get(split.device, -1)}


def test_energy_of_copies_is_of_the_host_that_makes_them() -> None:
    bus = Link(1e3, 0.0)
    topology = topology_of((ONE, TWO), FREE, bus)
    cpus = [replace(topology.devices[-1], name=f"node{i}/cpu", busy_watts=100.0) for i in (1, 2)]
    idle = replace(topology.devices[-1], busy_watts=0.0, idle_watts=0.0)
    gpus = [replace(d, busy_watts=0.0, idle_watts=0.0) for d in topology.devices[:2]]
    cpus = [replace(cpu, idle_watts=0.0) for cpu in cpus]
    whole = Topology((gpus[0], cpus[0], gpus[1], cpus[1], idle), topology.links)
    plan = plan_of(chain([ONE, TWO]), whole)
    copied_s = 4 * VALUE_BYTES / 1e3  # into and out of both devices
    assert plan_metrics(plan).energy_j == pytest.approx(100.0 * copied_s, rel=1e-3)


def test_runs_share_the_network_between_two_hosts() -> None:
    plan = plan_of(chain([ONE, TWO]), topology_of((ONE, TWO), Link(1e3, 0.0)), copies=4)
    done = run_program(program_of(plan), 8, 4)
    assert done.seconds >= 8 * VALUE_BYTES / 1e3


def _crossings_of_parts(plan: Plan) -> Counter[tuple[int, str, str]]:
    """How many values each host takes of each other one before which split, as parts say."""
    run = len(plan.splits) - len(plan.commits)
    out: Counter[tuple[int, str, str]] = Counter()
    for part in cut(plan):
        for position, steps in part.steps.items():
            own = part.numbers[position] if position < len(part.numbers) else run
            for step in steps:
                if isinstance(step, Recv):
                    out[min(own, run), step.host, part.host] += 1
    return out


def _crossings_of_walks(plan: Plan) -> Counter[tuple[int, str, str]]:
    """The same, as the simulator has it."""
    walks = program_of(plan).walks
    assert walks is not None
    names = sorted({plan.topology.host_of(s.device) for s in plan.splits} | {""})
    run = len(plan.splits) - len(plan.commits)
    out: Counter[tuple[int, str, str]] = Counter()
    ends = [(run, messages) for messages in walks.ends]
    for position, messages in [*enumerate(walks.takes), *ends]:
        for message in messages:
            if message.wire_s:
                out[min(position, run), names[message.source], names[message.target]] += 1
    return out


@pytest.mark.parametrize(
    "built",
    [
        chain([ONE, TWO, CPU, ONE]),
        diamond(ONE, TWO, "node3/null:0", ONE),
        fan_out([TWO, "node2/null:1", ONE]),
        (transformer(3)[0], {"layer.[02].*": ONE, "layer.1.*": TWO}),
    ],
)
def test_walks_bring_what_the_parts_of_a_plan_take(
    built: tuple[Sequence[vs.Tensor], dict[str, str]],
) -> None:
    names = (ONE, TWO, "node2/null:1", "node3/null:0")
    built[1].update({"a": ONE} if "r0" in built[1] else {})
    plan = plan_of(built, topology_of(names, Link(1e9, 1e-5)))
    assert _crossings_of_walks(plan) == _crossings_of_parts(plan)
    assert sum(_crossings_of_parts(plan).values()) > 1
