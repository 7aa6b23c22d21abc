"""Simulated runs: the times of null devices to the letter, known timelines, streams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from graphs import CPU, A, B, diamond, make_machine, make_plan

import vksched as vs
from vksched.machine.links import Link
from vksched.machine.spec import DeviceSpec
from vksched.plan.plan import Plan
from vksched.plan.simulate import Program, Step, program_of, run_program, simulate
from vksched.types import NDArray

SPECS = (
    DeviceSpec(A, "null", flops_per_s=3e7, bytes_per_s=2e8, submit_s=7e-5),
    DeviceSpec(B, "null", flops_per_s=1e7, bytes_per_s=5e7, submit_s=2e-5),
    DeviceSpec(CPU, "cpu", flops_per_s=2e7, bytes_per_s=1e8, submit_s=1e-6),
)
LINKS = {A: Link(3e7, 1e-5), B: Link(1e7, 3e-5)}


def null_devices(clock: vs.SimulatedClock) -> list[vs.NullDevice]:
    """Two unequal devices and a slow CPU, all on one clock."""
    return [vs.NullDevice(spec, clock, link=LINKS.get(spec.name)) for spec in SPECS]


def run_on_null(
    outputs: Sequence[vs.Tensor], placement: dict[vs.Tensor, str], feeds: dict[str, NDArray]
) -> tuple[Plan, float]:
    """The plan of a graph and the simulated seconds of one run on null devices."""
    clock = vs.SimulatedClock()
    with vs.Scheduler(null_devices(clock), trace=vs.Trace(clock), optimize=False) as sched:
        run = sched.compile(outputs, placement)
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


@pytest.mark.parametrize("seed", range(60))
def test_null_devices_take_the_simulated_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs = drawn_graph(rng)
    graph, ids = vs.build_graph(outputs)
    placement = {
        tensor: SPECS[int(rng.integers(3))].name
        for tensor, node in ids.items()
        if graph.nodes[node].op not in ("input", "weight", "constant") and rng.random() < 0.6
    }
    plan, seconds = run_on_null(outputs, placement, {"x": rng.random((16, 32), np.float32)})
    assert simulate(plan).seconds == pytest.approx(seconds, rel=1e-9)


def test_states_are_written_after_the_results_are_there() -> None:
    x, total = vs.input("x", (16, 32)), vs.state(np.zeros((16, 32), np.float32), name="total")
    summed = vs.add(total, x, name="summed")
    scaled = vs.mul(summed, 2.0, name="scaled")
    clock = vs.SimulatedClock()
    with vs.Scheduler(null_devices(clock), trace=vs.Trace(clock), optimize=False) as sched:
        run = sched.compile(scaled, {"scaled": B, "summed": A}, updates={total: summed})
        start = clock.now()
        run(x=np.ones((16, 32), np.float32))
        assert run.plan.commits
        assert simulate(run.plan).seconds == pytest.approx(clock.now() - start, rel=1e-9)


def step(device: int, seconds: float, waits: tuple[int, ...] = (), crossed_s: float = 0) -> Step:
    return Step(device, 0.0, waits, crossed_s, seconds)


def test_devices_work_beside_each_other_and_the_host_waits() -> None:
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
    plan = make_plan(built, placement, make_machine(2), copies=3)
    done = simulate(plan, runs=9)
    assert len(done.finish_s) == 9 and program_of(plan).steps
    for device in range(2):
        spans = sorted(
            (s.start_s, s.finish_s) for s in done.spans if (s.kind, s.device) == ("split", device)
        )
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
