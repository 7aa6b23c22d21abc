"""Copies beside work: which copies go to a device's copy queue, what waits for what, and the time
that this saves, predicted and on null devices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import numpy_outputs, random_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy_device import LazyDevice
from selection import examples

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import PlanError
from vksched.plan.plan import Plan
from vksched.plan.serialize.plan_codec import PlanRecord, decode_plan_record
from vksched.plan.serialize.plan_request import PlanRequest
from vksched.plan.simulation.sim_types import Simulation
from vksched.plan.simulation.simulate_plan import simulate
from vksched.plan.types.plan_types import COMPUTE, DOWNLOAD, UPLOAD, StageDependency
from vksched.plan.verify.happens_before import check_events, check_plan
from vksched.plan.verify.interleavings import events_of
from vksched.planner.partition import transfers
from vksched.planner.partition.transfers import MIN_BYTES
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.device import Device
from vksched.runtime.executors.executor_context import ExecutorContext
from vksched.runtime.executors.plan_executor import PlanExecutor
from vksched.runtime.simulated.simulated_device import SimulatedPreparedPlan
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.links import Link
from vksched.trace.perfetto import perfetto_events

SIDE = 512
"""A float32 square of it is MIN_BYTES."""
COPY_S = 1.0
"""What such a square takes on a link."""
LINK = Link(4 * SIDE * SIDE / COPY_S)
WORK_S = 1.0
"""What a product of two such squares takes on a card."""
BATCHES = 6


def card(name: str, copy_queue: bool, work_s: float) -> DeviceSpec:
    return DeviceSpec(
        name,
        "null",
        limits=Limits(copy_queue=copy_queue),
        flops_per_s=2 * SIDE**3 / work_s,
        bytes_per_s=1e12,
        submit_s=0.0,
        memory_bytes=1 << 30,
        unified_memory=False,
    )


def layers(count: int) -> tuple[list[vs.Tensor], dict[vs.Tensor, str]]:
    """A chain of products on one card, whose weights stay in host memory."""
    x = vs.input("x", (SIDE, SIDE))
    placement: dict[vs.Tensor, str] = {}
    for layer in range(count):
        weight = vs.weight(np.full((SIDE, SIDE), 1e-3, np.float32), name=f"w{layer}")
        x = vs.matmul(x, weight, name=f"product{layer}")
        placement |= {weight: "cpu", x: "null:0"}
    return [x], placement


def pipeline() -> tuple[list[vs.Tensor], dict[vs.Tensor, str]]:
    """Batches that go from the host to one card, on to the next, and back, one split each."""
    weights = [vs.weight(np.full((SIDE, SIDE), 1e-3, np.float32), name=f"w{i}") for i in (0, 1)]
    outputs: list[vs.Tensor] = []
    placement: dict[vs.Tensor, str] = {}
    for batch in range(BATCHES):
        first = vs.matmul(vs.input(f"x{batch}", (SIDE, SIDE)), weights[0], name=f"first{batch}")
        second = vs.matmul(first, weights[1], name=f"second{batch}")
        placement |= {first: "null:0", second: "null:1"}
        outputs.append(second)
    return outputs, placement


def one_split() -> tuple[list[vs.Tensor], dict[vs.Tensor, str]]:
    """One product on a card that has its weight."""
    weight = vs.weight(np.full((SIDE, SIDE), 1e-3, np.float32), name="w")
    product = vs.matmul(vs.input("x", (SIDE, SIDE)), weight, name="product")
    return [product], {product: "null:0"}


def run_on_null(
    value: tuple[list[vs.Tensor], dict[vs.Tensor, str]], copy_queue: bool, work_s: float = WORK_S
) -> tuple[Plan, float, list[NDArray]]:
    """The plan, the seconds of one run on two null cards, and its results."""
    clock = vs.SimulatedClock()
    specs = [card(f"null:{i}", copy_queue, work_s) for i in range(2)]
    devices = [vs.SimulatedDevice(spec, clock, link=LINK) for spec in specs]
    host = vs.SimulatedDevice(DeviceSpec("cpu", "cpu", submit_s=0.0), clock)
    with vs.Scheduler([*devices, host], trace=vs.Trace(clock), optimize=False) as sched:
        run = sched.compile(*value)
        rng = np.random.default_rng(1)
        feeds = {
            each.name: rng.random(each.type.shape, np.float32)
            for each in run.plan.graph.nodes
            if each.op == "input"
        }
        start = clock.now()
        results = run(**feeds)
        many = results if isinstance(results, tuple) else (results,)
        return run.plan, clock.now() - start, [np.asarray(each) for each in many]


def overlap_s(done: Simulation, device: int) -> float:
    """For how long a device copies and works at once."""
    kinds = {
        kind: [(s.start_s, s.finish_s) for s in done.spans if (s.kind, s.device) == (kind, device)]
        for kind in ("split", "transfer_queue")
    }
    return sum(
        max(0.0, min(end, other_end) - max(start, other_start))
        for start, end in kinds["split"]
        for other_start, other_end in kinds["transfer_queue"]
    )


def test_streamed_weights_come_while_the_layer_before_works() -> None:
    count = 8
    plan, seconds, results = run_on_null(layers(count), True)
    apart, apart_s, expected = run_on_null(layers(count), False)
    assert np.array_equal(results[0], expected[0])
    longer_s = max(COPY_S, WORK_S)
    # x and the first weight come, and the result goes, with nothing beside them
    assert seconds == pytest.approx((count - 1) * longer_s + 3 * COPY_S + WORK_S, rel=0.01)
    assert apart_s == pytest.approx((count + 2) * COPY_S + count * WORK_S, rel=0.01)
    assert simulate(plan).seconds == pytest.approx(seconds, rel=1e-9)
    assert overlap_s(simulate(plan), 0) == pytest.approx((count - 1) * COPY_S, rel=0.01)
    assert not any(split.async_transfers or split.stage_deps for split in apart.splits)


@pytest.mark.parametrize("work_s", [1.0, 2.0, 5.0])
def test_a_stage_of_a_pipeline_takes_the_longer_of_its_copies_and_its_work(work_s: float) -> None:
    plan, seconds, results = run_on_null(pipeline(), True, work_s)
    _, apart_s, expected = run_on_null(pipeline(), False, work_s)
    for one, other in zip(results, expected, strict=True):
        assert np.array_equal(one, other)
    assert simulate(plan).seconds == pytest.approx(seconds, rel=1e-9)
    stage_s = max(2 * COPY_S, work_s)  # a batch comes in and goes out by one queue
    filling_s = 4 * COPY_S + work_s
    assert seconds <= BATCHES * stage_s + filling_s + 0.01
    # one thread of the host makes all copies: in, across and out
    assert apart_s >= 4 * BATCHES * COPY_S
    assert seconds <= apart_s - COPY_S * (BATCHES - 1) + 0.01


def test_a_device_that_is_lost_when_it_tells_of_its_copies_has_returned_its_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(self: SimulatedPreparedPlan, slot: int, split: int) -> dict[str, tuple[None, None]]:
        raise vs.DeviceLost("planted")

    _, _, expected = run_on_null(layers(2), False)
    monkeypatch.setattr(SimulatedPreparedPlan, "async_transfer_s", lost)
    plan, _, results = run_on_null(layers(2), True)
    assert np.array_equal(results[0], expected[0]) and plan.splits[0].async_transfers


def test_a_stream_of_runs_overlaps_copies_and_work_too() -> None:
    plan, _, _ = run_on_null(one_split(), True)
    alone, stream = (simulate(replace(plan, copies=n), 100) for n in (1, 3))
    assert alone.seconds_per_run == pytest.approx(2 * COPY_S + WORK_S)
    assert stream.seconds_per_run == pytest.approx(2 * COPY_S, rel=0.05)
    assert overlap_s(stream, 0) > 0.9 * 100 * WORK_S and not overlap_s(alone, 0)


def test_the_plan_says_what_goes_next_to_and_what_waits_for_what() -> None:
    plan, _, _ = run_on_null(layers(4), True)
    first, second, third, last = plan.splits
    assert [split.async_transfers for split in plan.splits] == [(UPLOAD,)] * 3 + [
        (UPLOAD, DOWNLOAD)
    ]
    assert first.stage_deps == (StageDependency(COMPUTE, UPLOAD, 0),)
    assert second.stage_deps == (StageDependency(COMPUTE, UPLOAD, 1),)
    # its memory is that of the first layer's weight, or of what this read
    assert third.stage_deps == (
        StageDependency(UPLOAD, COMPUTE, 0),
        StageDependency(COMPUTE, UPLOAD, 2),
    )
    assert last.after(DOWNLOAD) == ((COMPUTE, 3),)
    text = plan.explain()
    assert "beside the work, once the work of split 0 is complete" in text
    assert last.deferred_downloads == ()


def test_copies_out_are_handed_over_behind_the_copies_in_that_need_not_wait() -> None:
    plan, _, _ = run_on_null(pipeline(), True)
    on_first = [split for split in plan.splits if split.device == 0]
    assert [split.deferred_downloads for split in on_first] == [(), (0,), (1,), (2,), (3,), (4,)]


def test_small_copies_stay_in_the_work() -> None:
    x = vs.input("x", (SIDE, SIDE // 2))
    plan, _, _ = run_on_null(([vs.exp(x, name="e")], {}), True)
    assert plan.splits[0].uploads and not plan.splits[0].async_transfers
    assert 4 * SIDE * SIDE == MIN_BYTES


def test_a_plan_with_copies_next_to_work_is_read_back_from_its_document() -> None:
    plan, _, _ = run_on_null(pipeline(), True)
    question = PlanRequest("auto", "latency", (), 1)
    graph, document = PlanRecord(plan, question, "test").as_document()
    again = decode_plan_record(graph, document).plan
    assert again.splits == plan.splits


# -- what the checkers find ------------------------------------------------------------------------


def without_each_order(plan: Plan) -> list[Plan]:
    """The plan less one order, for each."""
    out = []
    for split in plan.splits:
        for order in split.stage_deps:
            left = tuple(each for each in split.stage_deps if each != order)
            splits = list(plan.splits)
            splits[split.id] = replace(split, stage_deps=left)
            out.append(replace(plan, splits=tuple(splits)))
    return out


@pytest.mark.parametrize("value", [layers(5), pipeline()], ids=["streamed weights", "pipeline"])
def test_both_checkers_pass_the_plan_and_miss_each_order_that_is_taken_away(
    value: tuple[list[vs.Tensor], dict[vs.Tensor, str]],
) -> None:
    plan, _, _ = run_on_null(value, True)
    plan = replace(plan, copies=2)
    for seed in range(4):
        check_plan(plan, runs=4, seed=seed)
    mutants = without_each_order(plan)
    assert len(mutants) > len(plan.splits)
    for mutant in mutants:
        assert {finding.kind for finding in check_events(mutant, events_of(mutant, 2))} & {
            "race", "stale", "unwritten",
        }  # fmt: skip
        with pytest.raises(PlanError, match="wait for"):
            mutant.verify()


def test_both_checkers_find_memory_that_is_used_again_before_it_was_copied_out() -> None:
    plan, _, _ = run_on_null(pipeline(), True)
    first, second = plan.splits[0], plan.splits[1]
    assert DOWNLOAD in first.async_transfers and second.deferred_downloads == (0,)
    sent, taken = first.downloads[0].node, second.nodes[0]
    moved = {**plan.locations, (0, taken): plan.locations[0, sent]}
    mutant = replace(plan, locations=moved)
    found = check_events(mutant, events_of(mutant, 1))
    assert any(each.kind == "race" and "copy out of" in each.message for each in found)
    with pytest.raises(PlanError, match="copies out, before the host has waited"):
        mutant.verify()


def test_both_checkers_find_copies_in_that_write_over_what_is_copied_out() -> None:
    plan, _, _ = run_on_null(pipeline(), True)
    first, second = plan.splits[0], plan.splits[1]
    assert (
        DOWNLOAD in first.async_transfers
        and UPLOAD in second.async_transfers
        and second.deferred_downloads == (0,)
    )
    theirs = plan.locations[0, first.downloads[0].node]
    copies = (second.uploads[0]._replace(target=theirs), *second.uploads[1:])
    moved = {**plan.locations, (0, copies[0].node): theirs}
    # they wait for the work of the split before, which the queue copies out behind them
    stage_deps = (*second.stage_deps, StageDependency(UPLOAD, COMPUTE, 0))
    splits = (first, replace(second, uploads=copies, stage_deps=stage_deps), *plan.splits[2:])
    mutant = replace(plan, splits=splits, locations=moved)
    (found,) = check_events(mutant, events_of(mutant, 1))
    assert found.kind == "stale" and found.message.startswith("copy out of first0")
    with pytest.raises(PlanError, match="copies out, before the host has waited"):
        mutant.verify()


def test_both_checkers_find_copies_in_that_write_over_what_is_read() -> None:
    plan, _, _ = run_on_null(layers(4), True)
    second, third = plan.splits[1], plan.splits[2]
    theirs = second.uploads[0].target  # the weight of the layer before, which works meanwhile
    copies = (third.uploads[0]._replace(target=theirs), *third.uploads[1:])
    splits = list(plan.splits)
    splits[2] = replace(third, uploads=copies)
    moved = {**plan.locations, (0, copies[0].node): theirs}
    mutant = replace(plan, splits=tuple(splits), locations=moved)
    found = check_events(mutant, events_of(mutant, 1))
    assert any(each.kind == "race" and "copy in of" in each.message for each in found)
    with pytest.raises(PlanError, match="write over memory of split 1"):
        mutant.verify()


@pytest.mark.parametrize(
    ("number", "stage_deps"),
    [
        (
            2,
            (StageDependency(UPLOAD, UPLOAD, 0), StageDependency(COMPUTE, UPLOAD, 2)),
        ),  # done long before its work is
        (2, (StageDependency(UPLOAD, DOWNLOAD, 0), StageDependency(COMPUTE, UPLOAD, 2))),
        (
            2,
            (StageDependency(UPLOAD, COMPUTE, 2), StageDependency(COMPUTE, UPLOAD, 2)),
        ),  # in a circle
        (
            2,
            (
                StageDependency(UPLOAD, COMPUTE, 0),
                StageDependency(COMPUTE, UPLOAD, 2),
                StageDependency(DOWNLOAD, COMPUTE, 2),
            ),
        ),
        (2, (StageDependency(UPLOAD, COMPUTE, 3), StageDependency(COMPUTE, UPLOAD, 2))),
        (2, (StageDependency(UPLOAD, COMPUTE, -1), StageDependency(COMPUTE, UPLOAD, 2))),
    ],
)
def test_verify_refuses_orders_that_say_nothing_or_cannot_be_retained(
    number: int, stage_deps: tuple[StageDependency, ...]
) -> None:
    plan, _, _ = run_on_null(layers(4), True)
    splits = list(plan.splits)
    splits[number] = replace(splits[number], stage_deps=stage_deps)
    with pytest.raises(PlanError, match="wait"):
        replace(plan, splits=tuple(splits)).verify()


@pytest.mark.parametrize("stages", [(UPLOAD, "work"), (UPLOAD, UPLOAD), (UPLOAD, "copies")])
def test_verify_refuses_stages_that_no_copy_queue_has(stages: tuple[str, ...]) -> None:
    plan, _, _ = run_on_null(layers(4), True)
    splits = (replace(plan.splits[0], async_transfers=stages), *plan.splits[1:])
    with pytest.raises(PlanError, match="invalid asynchronous stages"):
        replace(plan, splits=splits).verify()


@pytest.mark.parametrize(
    "change", [{"stage_deps": (StageDependency(UPLOAD, COMPUTE, 0),)}, {"deferred_downloads": (0,)}]
)
def test_verify_refuses_orders_where_no_split_has_copies_next_to_its_work(
    change: dict[str, tuple[object, ...]],
) -> None:
    plan, _, _ = run_on_null(layers(4), False)
    splits = list(plan.splits)
    splits[2] = replace(splits[2], **change)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="null:0 has no copy queue"):
        replace(plan, splits=tuple(splits)).verify()


def test_a_cpu_has_no_copy_queue_whatever_a_machine_says() -> None:
    x = vs.input("x", (SIDE, SIDE))
    host = DeviceSpec("cpu", "cpu", limits=Limits(copy_queue=True))
    topology = vs.Topology((card("null:0", True, WORK_S), host))
    graph, _ = vs.build_graph([vs.exp(vs.exp(x, name="a"), name="b")])
    names = {node.name: node.id for node in graph.nodes}
    overrides = [(names["a"], "null:0"), (names["b"], "cpu")]
    plan = vs.plan_graph(graph, topology, overrides=overrides)
    assert [split.async_transfers for split in plan.splits] == [(UPLOAD, DOWNLOAD), ()]
    splits = (plan.splits[0], replace(plan.splits[1], async_transfers=(UPLOAD,)))
    with pytest.raises(PlanError, match="no copy queue"):
        replace(plan, splits=splits).verify()


# -- any graph -------------------------------------------------------------------------------------


def drawn_plan(seed: int, count: int, devices: int) -> Plan:
    """The checked plan of a random graph whose copies, however small, all run beside work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfers, "MIN_BYTES", 1)
        return random_plan(seed, count, devices, limits=Limits(copy_queue=True))


def is_right(plan: Plan, seed: int) -> bool:
    """Return True if devices that take every liberty give the results of numpy."""
    *specs, host = plan.topology.devices
    devices: list[Device] = [LazyDevice(spec, seed + i) for i, spec in enumerate(specs)]
    context = ExecutorContext([*devices, CpuDevice(host)], vs.Trace(), 30.0)
    executor = PlanExecutor(plan, context)
    rng = np.random.default_rng(seed)
    try:
        for _ in range(3):
            inputs = plan.graph.inputs
            feeds = {n.id: rng.standard_normal(n.type.shape, dtype=np.float32) for n in inputs}
            expected = numpy_outputs(plan.graph, {n.name: feeds[n.id] for n in inputs})
            got = executor.run(feeds).outputs
            same = [
                np.array_equal(a, b, equal_nan=True) for a, b in zip(got, expected, strict=True)
            ]
            if not all(same):
                return False
        return True
    finally:
        executor.close()


drawn_plans = st.builds(drawn_plan, st.integers(0, 1 << 32), st.integers(2, 30), st.integers(1, 3))


@settings(deadline=None, max_examples=examples(25))
@given(drawn_plans.filter(lambda plan: plan.splits), st.integers(0, 1 << 16))
def test_any_plan_is_in_order_and_right_however_queues_interleave(plan: Plan, seed: int) -> None:
    check_plan(replace(plan, copies=3), 6, seed)
    assert is_right(replace(plan, copies=2), seed)


@settings(deadline=None, max_examples=examples(15))
@given(drawn_plans.filter(lambda plan: plan.splits), st.integers(0, 1 << 16))
def test_what_the_checker_passes_without_an_order_is_right_all_the_same(
    plan: Plan, seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VKSCHED_CHECK", raising=False)
        for mutant in without_each_order(plan)[:4]:
            found = any(
                check_events(mutant, events_of(mutant, 3, np.random.default_rng(i)))
                for i in range(8)
            )
            assert found or is_right(mutant, seed)


def test_devices_that_take_every_liberty_show_an_order_that_is_missing() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VKSCHED_CHECK", raising=False)
        mutants = [m for seed in range(3) for m in without_each_order(drawn_plan(seed, 12, 2))]
        shown = [not all(is_right(mutant, seed) for seed in range(8)) for mutant in mutants]
    assert len(mutants) > 4 and sum(shown) > len(mutants) // 2


# -- what traces show ------------------------------------------------------------------------------


def test_copies_have_a_row_of_their_own_in_timelines_and_perfetto() -> None:
    clock, tape = vs.SimulatedClock(), vs.Tape()
    device = vs.SimulatedDevice(card("null:0", True, WORK_S), clock, link=LINK)
    host = vs.SimulatedDevice(DeviceSpec("cpu", "cpu", submit_s=0.0), clock)
    with vs.Scheduler([device, host], trace=vs.Trace(clock, [tape]), optimize=False) as sched:
        run = sched.compile(*layers(4))
        run(x=np.ones((SIDE, SIDE), np.float32))
        found = vs.timeline(tape)
    file = tape.contents()
    copies = [event for event in file.events if event.name == "transfer_queue"]
    works = [event for event in file.events if event.name == "split"]
    assert [event.fields["way"] for event in copies] == ["in"] * 4 + ["out"]
    # the second weight comes while the first layer works
    assert copies[1].start_s < works[0].end_s and copies[1].end_s > works[0].start_s
    predicted = {
        (s.start_s, s.finish_s) for s in simulate(run.plan).spans if s.kind == "transfer_queue"
    }
    assert len(predicted) == 5
    rows = {(span.row, span.kind) for span in found.spans}
    assert {
        ("transfer_queue", "transfer_queue"),
        ("transfer_queue predicted", "transfer_queue"),
        ("work", "split"),
    } <= rows
    threads = {
        each["args"]["name"]
        for each in perfetto_events(file.events, file.graphs, file.plans)
        if each["name"] == "thread_name"
    }
    assert {"copies", "copies, predicted", "measured", "predicted"} <= threads
