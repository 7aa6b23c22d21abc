"""Graphs and machines drawn from a seed, on which plans have to keep their promises.

    seed -> ops of all kinds, weights, states -> graph --+
         -> 2 to 6 devices, tight, picky, shared, slow --+--> Case --plan_graph--> Plan
         -> pins, observers, what is there already ------+

The same seed draws the same case. `most` bounds the ops, so that hypothesis finds small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.graph import Graph
from vksched.plan.costs.op_support import OpSupport
from vksched.plan.plan import Plan
from vksched.planner.memory.draft import finish
from vksched.planner.memory.fit import most_copies
from vksched.planner.placement.candidate_devices import PlacementHints
from vksched.planner.planner import POLICIES
from vksched.planner.search.candidates import Candidates
from vksched.planner.search.evaluate import fitted
from vksched.schedule import TaskGraph, policies, schedule
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.links import Link, Links
from vksched.topology.perf_model import PerfModel
from vksched.topology.topology import Topology

ROWS, COLUMNS = 8, 32
EVERY = (*POLICIES, "single", *(name for name in policies() if name not in POLICIES))
"""All policies of plans: "single" has all on the first device, the others follow a schedule of
node groups, whether or not that is fast.
"""
NO_GATHER = Limits(storage_buffers=3)
HOST_BYTES = 1 << 40


@dataclass(frozen=True, eq=False)
class Case:
    """What plan_graph is asked for, but for the policy."""

    graph: Graph
    topology: Topology
    overrides: tuple[tuple[str | int, str], ...] = ()
    observed: tuple[int, ...] = ()
    resident: Mapping[int, frozenset[int]] | None = None
    copies: int | str = 1
    with_cpu: bool = False

    def plan(self, policy: str) -> Plan:
        """Return the plan of a policy of EVERY."""
        if policy in POLICIES:
            return vs.plan_graph(
                self.graph,
                self.topology,
                policy=policy,
                overrides=self.overrides,
                copies=self.copies,
                resident=self.resident,
                observed=self.observed,
                with_cpu=self.with_cpu,
            )
        if policy == "single":
            return self.alone(0)
        ways = self.ways()
        tasks, edges = ways.cut.tasks
        where = replace(ways.platform(), memory_bytes={})  # placement keeps it
        found = schedule(TaskGraph(tasks, edges), where, policy)
        return self.follow(ways.cut.hints_for([found.device[task.name] for task in tasks]))

    def alone(self, device: int) -> Plan:
        """Return the plan in which a device and the CPU do all that the user has not placed."""
        return self.follow(self.ways().alone(device).hints)

    def follow(self, hints: PlacementHints) -> Plan:
        """Return the plan of some wishes, whatever it takes."""
        support = self.support
        draft, spills = fitted(support, self.overrides, hints)
        count, why = most_copies(draft, self.copies)
        return finish(draft, "drawn", count, (*draft.notes, *spills, *why))

    def ways(self) -> Candidates:
        """The candidates of "auto"."""
        return Candidates(self.support, self.overrides, self.competing)

    @cached_property
    def support(self) -> OpSupport:
        return OpSupport(self.graph, self.topology, self.resident, self.observed)

    @property
    def competing(self) -> tuple[int, ...]:
        """The devices among which "auto" chooses."""
        cpu, devices = self.topology.cpu, self.topology.devices
        gpus = [d for d in range(cpu) if not devices[d].disabled_reason]
        return (*gpus, cpu) if self.with_cpu or not gpus else tuple(gpus)


def draw_case(seed: int, most: int = 40) -> Case:
    """Return a case of at most so many ops."""
    rng = np.random.default_rng(seed)
    graph = draw_graph(rng, int(rng.integers(1, most + 1)))
    topology = draw_topology(rng, sum(graph.words) * 4)
    case = Case(graph, topology, copies=("auto", 1, 1, 2, 3)[int(rng.integers(5))])
    names = [spec.name for spec in topology.devices]
    pins = rng.choice([0.0, 0.0, 0.1, 0.4])
    pinned = [
        (n.id, names[int(rng.integers(len(names)))])
        for n in graph.nodes
        if n.op not in ("input", "constant", "assign") and rng.random() < pins
    ]
    seen = rng.choice([0.0, 0.0, 0.1])
    watched = [n.id for n in graph.ops if computed(graph, n.id) and rng.random() < seen]
    return replace(
        case,
        overrides=tuple(pinned),
        observed=tuple(watched),
        resident=draw_resident(rng, case) if rng.random() < 0.25 else None,
        with_cpu=bool(rng.random() < 0.5),
    )


def computed(graph: Graph, node: int) -> bool:
    """Return True if a node is, or views, the result of an op."""
    root = graph.nodes[graph.view_base(node)]
    return not root.declaration.leaf and root.op not in ("state", "assign")


def draw_resident(rng: np.random.Generator, case: Case) -> dict[int, frozenset[int]]:
    """Return the state that an earlier plan of the graph has left on the devices."""
    plan = case.plan("priority")
    return {
        device: frozenset(
            n for n in memory.weights if case.graph.nodes[n].op == "weight" and rng.random() < 0.7
        )
        | frozenset(memory.states)
        for device, memory in enumerate(plan.memory)
        if plan.topology.devices[device].kind != "cpu"
    }


# -- graphs ----------------------------------------------------------------------------------------


class _Ops:
    """The values made so far, and the weights and states that they share."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.pool = [vs.input(f"x{i}", (ROWS, COLUMNS)) for i in range(1 + self.below(3))]
        self.used: set[vs.Tensor] = set()
        self.states: list[vs.Tensor] = []
        self.weights: list[vs.Tensor] = []
        self.near = (3, 8, 1000)[self.below(3)]

    def below(self, count: int) -> int:
        return int(self.rng.integers(count))

    def take(self) -> vs.Tensor:
        """One of the last values, so that some graphs are long and others wide."""
        chosen = self.pool[-1 - self.below(min(self.near, len(self.pool)))]
        self.used.add(chosen)
        return chosen

    def weight(self, *shape: int) -> vs.Tensor:
        same = [w for w in self.weights if w.shape == shape]
        if same and self.below(3) == 0:
            return same[self.below(len(same))]
        self.weights.append(vs.weight(np.zeros(shape, np.float32), name=f"w{len(self.weights)}"))
        return self.weights[-1]

    def state(self) -> vs.Tensor:
        if not self.states or self.below(2):
            array: NDArray = np.zeros((ROWS, COLUMNS), np.float32)
            backup = bool(self.below(2))
            self.states.append(vs.state(array, name=f"s{len(self.states)}", backup=backup))
        return self.states[self.below(len(self.states))]


def square(a: vs.Tensor) -> vs.Tensor:
    """The shape that most ops begin with; of half of it twice."""
    whole = a if a.size == ROWS * COLUMNS else vs.concat([a, a])
    return whole if whole.shape == (ROWS, COLUMNS) else vs.reshape(whole, (ROWS, COLUMNS))


def product(o: _Ops, a: vs.Tensor) -> vs.Tensor:
    wide = COLUMNS << o.below(3)
    h = vs.matmul(square(a), o.weight(COLUMNS, wide))
    return h if wide == COLUMNS else vs.matmul(h, o.weight(wide, COLUMNS))


def pair(o: _Ops, a: vs.Tensor) -> vs.Tensor:
    op = (vs.add, vs.mul, vs.maximum)[o.below(3)]
    return op(square(a), square(o.take()))


def halves(o: _Ops, a: vs.Tensor) -> vs.Tensor:
    a, b = square(a), square(o.take())
    return vs.concat([a[: ROWS // 2], b[ROWS // 2 :]])


def numpys(o: _Ops, a: vs.Tensor) -> vs.Tensor:
    """No device runs it."""
    found = vs.nonzero(square(a), size=ROWS * COLUMNS // 2)
    return vs.cast(found, "float32")


def bare(o: _Ops, a: vs.Tensor) -> vs.Tensor:
    """Reads nothing but weights."""
    return vs.relu(o.weight(ROWS, COLUMNS))


KINDS: tuple[tuple[float, Callable[[_Ops, vs.Tensor], vs.Tensor]], ...] = (
    (4, product),
    (4, pair),
    (3, lambda o, a: (vs.relu, vs.exp, vs.abs)[o.below(3)](a)),
    (2, lambda o, a: vs.add(square(a), o.weight(COLUMNS))),
    (1, halves),
    (1, lambda o, a: square(a)[: ROWS // 2]),
    (1, lambda o, a: vs.reshape(a, (a.size,))),
    (1, lambda o, a: vs.softmax(square(a))),
    (1, lambda o, a: vs.gather(square(a), np.arange(ROWS, dtype=np.int32))),
    (1, lambda o, a: vs.sort(square(a))),
    (1, lambda o, a: vs.add(square(a), o.state())),
    (0.5, numpys),
    (0.5, bare),
)


def draw_graph(rng: np.random.Generator, count: int) -> Graph:
    """Return a graph of about so many ops: products, pairs, views, parts, sorts, states."""
    ops = _Ops(rng)
    shares = np.array([share for share, _ in KINDS])
    for kind in rng.choice(len(KINDS), count, p=shares / shares.sum()):
        ops.pool.append(KINDS[kind][1](ops, ops.take()))
    updates: dict[vs.Tensor, vs.Tensor] = {}
    for held in (held for held in ops.states if rng.random() < 0.7):
        others = [1.0, held, *updates.values()]  # of the last two, some can be written in place
        updates[held] = vs.add(square(ops.take()), others[ops.below(len(others))])
    ends = [t for t in ops.pool if t not in ops.used and t.op != "input"] or ops.pool[-1:]
    more = [ops.take() for _ in range(ops.below(3))]
    graph, _ = vs.build_graph([*dict.fromkeys([*ends, *more])], updates)
    return graph


# -- machines --------------------------------------------------------------------------------------


def draw_topology(rng: np.random.Generator, graph_bytes: int) -> Topology:
    """Return 2 to 6 devices and the CPU. graph_bytes: what all values take; memory goes by it."""
    count = int(rng.integers(2, 7))
    kind = "vulkan" if rng.random() < 0.2 else "null"
    specs = [_device(rng, f"{kind}:{i}", kind, graph_bytes) for i in range(count)]
    if rng.random() < 0.2:  # a GPU that is opened twice
        shared = min(specs[0].memory_bytes, specs[1].memory_bytes)
        specs[:2] = [replace(s, memory_node="one", memory_bytes=shared) for s in specs[:2]]
    speed = 10 ** rng.uniform(6, 10)
    cpu = DeviceSpec(
        "cpu",
        "cpu",
        flops_per_s=speed,
        bytes_per_s=speed / 5,
        submit_s=1e-6,
        memory_bytes=HOST_BYTES,
    )
    links = [
        (spec.name, "cpu", Link(_one_of(rng, 1e5, 1e8, 1e10), _one_of(rng, 0.0, 1e-5, 1e-3)))
        for spec in specs
        if rng.random() < 0.7
    ]
    return Topology((*specs, cpu), Links(tuple(links), Link(10 ** rng.uniform(6, 10))))


def _one_of(rng: np.random.Generator, *values: float) -> float:
    return values[int(rng.integers(len(values)))]


def _device(rng: np.random.Generator, name: str, kind: str, graph_bytes: int) -> DeviceSpec:
    speed = 10 ** rng.uniform(6, 11)
    ample = rng.random() < 0.5
    memory = 1 << 30 if ample else int(graph_bytes * rng.uniform(0.02, 0.6)) + 64
    return DeviceSpec(
        name,
        kind,
        limits=NO_GATHER if rng.random() < 0.2 else Limits(),
        memory_bytes=memory,
        max_buffer_bytes=(1 << 27, 1 << 17, 1 << 14)[int(rng.integers(3))],
        flops_per_s=speed,
        bytes_per_s=speed / _one_of(rng, 1.0, 10.0),
        submit_s=_one_of(rng, 0.0, 1e-5, 1e-3),
        slowdown=_one_of(rng, 1.0, 1.0, 1.0, 5.0),
        disable_aliasing=bool(rng.random() < 0.1),
        unified_memory=bool(rng.random() >= 0.3),
        submit_granularity=("split", "split", "split", "level", "op")[int(rng.integers(5))],
        offload_flops_per_byte=_one_of(rng, 16.0, 1.0, float("inf")),
        disabled_reason="lost" if rng.random() < 0.05 else "",
        costs=_costs(rng) if rng.random() < 0.3 else PerfModel(),
    )


def _costs(rng: np.random.Generator) -> PerfModel:
    """Return costs as calibration leaves them: calls take longer than ceilings say."""
    return PerfModel(
        launch_s=_one_of(rng, 0.0, 1e-6),
        start_s=1e-6,
        submit_s=_one_of(rng, 1e-6, 1e-4),
        fence_s=_one_of(rng, 1e-6, 1e-4),
        run_s=1e-5,
        calls=10,
        paces=(("matmul", _one_of(rng, 0.5, 1.0, 4.0)),),
    )
