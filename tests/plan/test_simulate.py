"""Simulated runs: the times of null devices to the letter, known timelines, streams; mistakes that
are planted in the simulator and have to show.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from graphs import CPU, A, B, diamond, make_plan, make_topology

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.plan.plan import Plan
from vksched.plan.simulation import event_sim
from vksched.plan.simulation import simulate_plan as simulator
from vksched.plan.simulation.sim_types import Program, SplitTiming
from vksched.plan.simulation.simulate_plan import program_of, run_program, simulate
from vksched.planner.partition import transfers
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.links import Link
from vksched.topology.perf_model import Curve, PerfModel
from vksched.topology.topology import Topology

SPECS = (
    DeviceSpec(A, "null", flops_per_s=3e7, bytes_per_s=2e8, submit_s=7e-5),
    DeviceSpec(B, "null", flops_per_s=1e7, bytes_per_s=5e7, submit_s=2e-5),
    DeviceSpec(CPU, "cpu", flops_per_s=2e7, bytes_per_s=1e8, submit_s=1e-6),
)
LINKS = {A: Link(3e7, 1e-5), B: Link(1e7, 3e-5)}


COSTS = {
    A: PerfModel(
        (Curve("copy in/bytes", ((-20.0, 0.4),)), Curve("copy out/bytes", ((-20.0, 0.6),))),
        launch_s=3e-6, start_s=4e-5, submit_s=5e-5, fence_s=6e-5, run_s=9e-5, calls=2,
    ),
    B: PerfModel(launch_s=1e-6, start_s=2e-5, submit_s=8e-5, fence_s=2e-5, run_s=3e-5, calls=1),
    CPU: PerfModel(launch_s=2e-6, submit_s=1e-6, run_s=1e-5, calls=1),
}  # fmt: skip
"""As measured: what the host does about a submission is no time of the device."""


def null_devices(
    clock: vs.SimulatedClock, measured: bool = False, copy_queues: bool = False, apart: bool = True
) -> list[vs.SimulatedDevice]:
    """Two unequal devices and a slow CPU, all on one clock."""
    specs = [replace(s, unified_memory=not apart) for s in SPECS]
    specs = [replace(s, costs=COSTS[s.name]) if measured else s for s in specs]
    if copy_queues:
        specs = [replace(s, limits=replace(s.limits, copy_queue=s.kind != "cpu")) for s in specs]
    return [vs.SimulatedDevice(spec, clock, link=LINKS.get(spec.name)) for spec in specs]


def run_on_null(
    outputs: Sequence[vs.Tensor],
    placement: dict[vs.Tensor, str],
    feeds: dict[str, NDArray],
    measured: bool = False,
    updates: dict[vs.Tensor, vs.Tensor] | None = None,
    copy_queues: bool = False,
    apart: bool = True,
) -> tuple[Plan, float]:
    """The plan of a graph and the simulated seconds of one run on null devices."""
    clock = vs.SimulatedClock()
    devices = null_devices(clock, measured, copy_queues, apart)
    with vs.Scheduler(devices, trace=vs.Trace(clock), optimize=False) as sched:
        run = sched.compile(outputs, placement, updates=updates)
        start = clock.now()
        run(**feeds)
        return run.plan, clock.now() - start


def drawn_graph(rng: np.random.Generator) -> list[vs.Tensor]:
    """Sums and products of values made a while ago, parts of them too; states now and then."""
    x = vs.input("x", (16, 32))
    pool = [x, vs.relu(x, name="first")]
    for _ in range(int(rng.integers(3, 20))):
        a, b = (pool[int(rng.integers(max(0, len(pool) - 4), len(pool)))] for _ in range(2))
        kind = int(rng.integers(4))
        if kind == 0:
            weight = vs.weight(rng.random((32, 32), np.float32))
            pool.append(vs.matmul(a, weight))
        elif kind == 1:
            pool.append(vs.concat([a[:8], b[8:]]))
        else:
            pool.append(vs.add(a, b))
    return [pool[-1], pool[-2], pool[len(pool) // 2]]


def drawn_run(seed: int, measured: bool, copy_queues: bool = False) -> tuple[Plan, float]:
    """A drawn graph on drawn devices, and what a run of it takes there."""
    rng = np.random.default_rng(seed)
    outputs = drawn_graph(rng)
    graph, ids = vs.build_graph(outputs)
    placement = {
        tensor: SPECS[int(rng.integers(3))].name
        for tensor, node in ids.items()
        if graph.nodes[node].op not in ("input", "weight", "constant") and rng.random() < 0.6
    }
    feeds = {"x": rng.random((16, 32), np.float32)}
    return run_on_null(outputs, placement, feeds, measured, copy_queues=copy_queues)


def run_with_states(measured: bool) -> tuple[Plan, float]:
    """A run that writes a state on another device than its result comes from."""
    x, total = vs.input("x", (16, 32)), vs.state(np.zeros((16, 32), np.float32), name="total")
    summed = vs.add(total, x, name="summed")
    scaled = vs.mul(summed, 2.0, name="scaled")
    feeds: dict[str, NDArray] = {"x": np.ones((16, 32), np.float32)}
    placement = {scaled: B, summed: A}
    return run_on_null([scaled], placement, feeds, measured, {total: summed})


def run_with_streamed_weights(
    measured: bool, copy_queues: bool = False, apart: bool = True
) -> tuple[Plan, float]:
    """A run on a device whose weights stay in host memory, a split for each."""
    product = vs.input("x", (1, 32))
    placement = {}
    shapes = ((32, 640), (640, 32), (32, 800), (800, 32))
    for layer, shape in enumerate(shapes):
        weight = vs.weight(np.full(shape, 0.1, np.float32), name=f"w{layer}")
        product = vs.matmul(product, weight, name=f"product{layer}")
        placement |= {weight: CPU, product: A}
        for _ in range(120 if layer == 0 else 0):  # in memory that the third weight gets
            product = vs.tanh(product)
            placement[product] = A
    feeds: dict[str, NDArray] = {"x": np.ones((1, 32), np.float32)}
    return run_on_null([product], placement, feeds, measured, copy_queues=copy_queues, apart=apart)


def run_with_windows_in_turn(measured: bool) -> tuple[Plan, float]:
    """The same where the host writes the weights in each run."""
    plan, seconds = run_with_streamed_weights(measured, apart=False)
    assert sum(split.refills for split in plan.splits) == 4
    return plan, seconds


def run_with_late_input(measured: bool) -> tuple[Plan, float]:
    """A run whose second device gets a value of the caller while the first one works."""
    x, y = vs.input("x", (16, 32)), vs.input("y", (16, 32))
    early = vs.exp(x, name="early")
    late = vs.add(early, y, name="late")
    feeds: dict[str, NDArray] = {n: np.ones((16, 32), np.float32) for n in ("x", "y")}
    return run_on_null([late], {early: A, late: B}, feeds, measured)


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_null_devices_take_the_simulated_time(seed: int, measured: bool) -> None:
    plan, seconds = drawn_run(seed, measured)
    assert simulate(plan).seconds == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_null_devices_with_copy_queues_take_the_simulated_time(
    seed: int, measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "MIN_BYTES", 1)
    plan, seconds = drawn_run(seed, measured, copy_queues=True)
    assert simulate(plan).seconds == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("measured", [False, True])
def test_states_are_written_after_the_results_are_there(measured: bool) -> None:
    plan, seconds = run_with_states(measured)
    assert plan.commits
    assert simulate(plan).seconds == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("measured", [False, True])
def test_weights_in_host_memory_cross_in_each_run(measured: bool) -> None:
    plan, seconds = run_with_streamed_weights(measured)
    assert any(c.node in plan.graph.data for s in plan.splits for c in s.uploads)
    assert simulate(plan).seconds == pytest.approx(seconds, rel=1e-9)


# -- planted mistakes ------------------------------------------------------------------------------

MISTAKES = {
    "a fence costs nothing": ("self.now_s += self._program.steps[split].fence_s", "pass"),
    "waits in another order": ("for split in splits:", "for split in reversed(tuple(splits)):"),
    "nobody waits before a split": ("yield from self._wait(step.waits)", "pass"),
    "nobody waits at the end": ("yield from self._wait(self._program.final_waits)", "pass"),
    "given values are copied after the waits": (
        "self._copy(step.input_s, step.device, number)\n        yield from self._wait(step.waits)",
        "yield from self._wait(step.waits)\n        self._copy(step.input_s, step.device, number)",
    ),
    "a value that crosses is copied once": (" + enters_s(value, part)", ""),
    "it leaves the device that it goes to": ("parts[source].device) if", "part.device) if"),
    "a device does two splits at a time": (
        "max(ready_s, self._work_s[queue])", "ready_s",
    ),
    "the host hands splits over in no time": (
        "self.now_s += step.submit_s\n        start_s", "start_s",
    ),
    "a run begins in no time": ("start_s + program.run_s", "start_s"),
    "the host does the device's part of a copy, too": (
        "max(0.0, taken_s - node_cost.copy_seconds(spec, way, size_bytes))", "taken_s",
    ),
    "the device does no part of a copy": (
        "taken_s = node_cost.copy_seconds(spec, way, size_bytes)", "taken_s = 0.0",
    ),
    "a submission takes the device no time": (
        "spec.costs.start_s if spec.costs.calls else spec.submit_s", "0.0",
    ),
    "measured submissions take as long as rough ones": (
        "spec.costs.start_s if spec.costs.calls else spec.submit_s", "spec.submit_s",
    ),
    "weights stream in for nothing": (
        "if not taken_s and value in graph.data and not refills:", "if False:",
    ),
    "the host copies weights that stream in": ("elif value not in graph.data:", "elif True:"),
    "weights take turns in staging buffers for nothing": ("elif part.refills:", "elif False:"),
    "weights that take turns are all there from the start": (
        "part.refills:\n                crossed_s +=", "part.refills:\n                input_s +=",
    ),
    "a device copies weights that take turns alone": (
        "value in graph.data and not refills:", "value in graph.data:",
    ),
    "results cost nothing to fetch": ("fetched_s += leaves_s(", "leaves_s("),
    "results are fetched before the last wait": (
        "yield from self._wait(self._program.final_waits)\n        if run == every or is_early:\n"
        "            self._fetch(run)\n",
        "if run == every or is_early:\n            self._fetch(run)\n"
        "        yield from self._wait(self._program.final_waits)\n",
    ),
    "a node costs on each device what it costs on the first": (
        "plan.graph.signatures[node], plan.topology.devices[device]",
        "plan.graph.signatures[node], plan.topology.devices[0]",
    ),
    "a split runs its first node only": (
        "for node in part.nodes])", "for node in part.nodes[:1]])",
    ),
    "copies beside the work are submitted in no time": (
        "self.now_s += step.submit_s\n            free_s", "free_s",
    ),
    "copies in write where others still work": (
        "self._done_s[step.after] if step.after != HOST else 0.0", "0.0",
    ),
    "the work does not wait for its copies in": (
        "max(self.now_s, there_s)", "self.now_s",
    ),
    "a copy queue does two things at a time": (
        "max(ready_s, self._copies_s[device])", "ready_s",
    ),
    "the work makes the copies in, too": ("live_in if coming_s is None else ()", "live_in"),
    "the work makes the copies out, too": (
        "part.live_out if leaving_s is None else ()", "part.live_out",
    ),
    "nobody waits for copies out": (
        "self._wait_until(max(self._async_downloads.pop(number) or 0.0 for number in now), "
        "split)", "pass",
    ),
    "the host makes the copies of a copy queue": (
        "\n    if async_transfer:\n", "\n    if False:\n",
    ),
    "a submission of copies takes the device no time": (
        "seconds = submission_s(topology.devices[device])\n", "seconds = 0.0\n",
    ),
}  # fmt: skip
"""By what is wrong: a text that stands once in simulate_plan.py or event_sim.py, and what stands
there instead.
"""


@pytest.fixture(scope="module")
def runs() -> list[tuple[Plan, float]]:
    """Plans, and what runs of them take on null devices, measured and not."""
    drawn = [drawn_run(seed, measured) for seed in range(12) for measured in (False, True)]
    named = (
        run_with_states,
        run_with_streamed_weights,
        run_with_windows_in_turn,
        run_with_late_input,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfers, "MIN_BYTES", 1)
        others = [drawn_run(s, measured, True) for s in range(12) for measured in (False, True)]
        others += [run_with_streamed_weights(measured, True) for measured in (False, True)]
    return [*drawn, *others, *(make(measured) for make in named for measured in (False, True))]


def simulate_with(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> Callable[[Plan], Any]:
    """`simulate` of a simulator whose source has another text in one place."""
    sources = [inspect.getsource(module) for module in (event_sim, simulator)]
    counts = [source.count(old) for source in sources]
    assert sum(counts) == 1, f"event_sim.py and simulate_plan.py have {old!r} {counts} times"
    for name, source in zip(("mistaken_clocks", "mistaken"), sources, strict=True):
        built = ModuleType(f"vksched.plan.simulation.{name}")
        built.__package__ = "vksched.plan.simulation"
        monkeypatch.setitem(sys.modules, built.__name__, built)  # dataclasses look there
        text = source.replace(old, new).replace("from .event_sim ", "from .mistaken_clocks ")
        exec(compile(text, f"{name}.py", "exec"), built.__dict__)
    return built.simulate  # type: ignore[no-any-return]


def differing(runs: list[tuple[Plan, float]], simulate_: Callable[[Plan], Any]) -> int:
    """How many runs take another time than the simulator says."""
    return sum(simulate_(plan).seconds != pytest.approx(s, rel=1e-9) for plan, s in runs)


def test_a_simulator_without_a_mistake_agrees_on_all_runs(
    runs: list[tuple[Plan, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    same = "import heapq\n"
    assert differing(runs, simulate_with(monkeypatch, same, same)) == 0


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_a_planted_mistake_is_caught_by_null_devices(
    runs: list[tuple[Plan, float]], monkeypatch: pytest.MonkeyPatch, mistake: str
) -> None:
    assert differing(runs, simulate_with(monkeypatch, *MISTAKES[mistake])) > 0


# -- known timelines -------------------------------------------------------------------------------


def test_a_run_of_one_split_on_the_cpu_takes_no_handing_over() -> None:
    clock = vs.SimulatedClock()
    costs = PerfModel(start_s=1e-4, submit_s=2e-3, fence_s=3e-3, run_s=4e-3, alone_s=5e-3, calls=1)
    specs = [replace(SPECS[0], costs=COSTS[A]), replace(SPECS[2], costs=costs)]
    devices = [
        vs.SimulatedDevice(specs[0], clock, link=LINKS[A]),
        vs.SimulatedDevice(specs[1], clock),
    ]
    x = vs.input("x", (16, 32))
    with vs.Scheduler(devices, trace=vs.Trace(clock), optimize=False) as sched:
        for placement, splits, least_s in (({"*": CPU}, 1, 5.1e-3), ({"a": A}, 2, 9.1e-3)):
            run = sched.compile(vs.exp(vs.relu(x, name="a")), {"*": CPU, **placement})
            assert len(run.plan.splits) == splits
            start = clock.now()
            run(x=np.ones((16, 32), np.float32))
            took_s = clock.now() - start
            assert took_s == pytest.approx(simulate(run.plan).seconds, rel=1e-9)
            assert least_s < took_s < least_s + 1e-3


def step(
    device: int, seconds: float, waits: tuple[int, ...] = (), crossed_s: float = 0
) -> SplitTiming:
    return SplitTiming(device, 0.0, waits, crossed_s, seconds)


def test_devices_work_side_by_side_and_the_host_waits() -> None:
    # 0 and 1 side by side; 2 needs both, half a second of copying in between
    steps = (step(0, 2.0), step(1, 3.0), step(0, 1.0, (1,), 0.5))
    done = run_program(Program((A, B), steps, 0, 0.25, (2,)))
    assert done.seconds == 3.0 + 0.5 + 1.0 + 0.25
    assert done.busy_s == {A: 3.0, B: 3.0}
    assert done.total_s("copy") == 0.75 and done.total_s("wait") == 4.0


def test_a_stream_is_as_fast_as_its_slowest_device() -> None:
    steps = (step(0, 2.0), step(1, 3.0, (0,)))
    program = Program((A, B), steps, 0, 0.0, (1,))
    assert run_program(program, 1).seconds == 5.0
    assert run_program(program, 20).seconds_per_run == pytest.approx(5.0)
    stream = run_program(program, 20, copies=2)
    assert stream.seconds_per_run == pytest.approx(3.0)
    assert stream.seconds == pytest.approx(2.0 + 20 * 3.0)


def test_spans_of_a_device_never_overlap() -> None:
    built, placement = diamond(A, A, B, A)
    plan = make_plan(built, placement, make_topology(2), copies=3)
    done = simulate(plan, runs=9)
    assert len(done.finish_s) == 9 and program_of(plan).steps
    for device in range(2):
        spans = sorted(
            (s.start_s, s.finish_s) for s in done.spans if (s.kind, s.device) == ("split", device)
        )
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))


@pytest.mark.parametrize(
    ("kinds", "together"),
    [
        ((("vulkan", True), ("vulkan", True)), False),
        ((("vulkan", False), ("vulkan", True)), True),
        ((("vulkan", True), ("cpu", True)), False),
        ((("vulkan", False), ("cpu", True)), True),
    ],
)
def test_software_devices_and_the_cpu_share_the_cores_of_their_computer(
    kinds: Sequence[tuple[str, bool]], together: bool
) -> None:
    """Two branches on two devices take as long as one of them, or as both, one after the other."""
    names = {"vulkan": iter((A, B)), "cpu": iter((CPU,))}
    specs = [
        DeviceSpec(next(names[kind]), kind, limits=Limits(software=software))
        for kind, software in kinds
    ]
    host = [] if specs[-1].name == CPU else [SPECS[-1]]
    x = vs.input("x", (256, 256))
    ends = []
    for branch in range(2):
        h = x
        for layer in range(6):
            weight = vs.weight(np.zeros((256, 256), np.float32))
            h = vs.matmul(h, weight, name=f"b{branch}.{layer}")
        ends.append(h)
    graph, topology = vs.build_graph(ends)[0], Topology((*specs, *host))

    def seconds(*on: str) -> float:
        placed = [(f"b{branch}.*", name) for branch, name in enumerate(on)]
        return simulate(vs.plan_graph(graph, topology, overrides=placed)).seconds

    first, second = (spec.name for spec in specs)
    one, both = seconds(first, first), seconds(first, second)
    assert both < 0.65 * one if together else both > 0.95 * one
