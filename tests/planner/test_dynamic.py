"""Runs that decide while they go: decisions, recordings, and what a run turns out to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from graphs import CPU, A, B, numpy_outputs, random_outputs
from lazy_device import lazy_devices
from selection import draws
from test_select import SLOW, branches, layers, topology, used
from test_simulate import drawn_graph, null_devices

import vksched as vs
from vksched.common.errors import OutOfMemory, PlanError
from vksched.plan.dynamic.dispatcher import (
    DEPTH,
    RESTS,
    DispatchedPiece,
    Dispatcher,
    DynamicRunRecord,
    SharedQueue,
    Speeds,
    WorkStealing,
)
from vksched.plan.dynamic.options import DynamicPlan, Options, Piece
from vksched.plan.dynamic.plan_of_run import plan_of
from vksched.plan.dynamic.simulate_options import simulate_options
from vksched.plan.dynamic.solo_selector import SoloOrAllSelector
from vksched.plan.simulation.simulate_plan import simulate
from vksched.plan.types.plan_types import HOST
from vksched.plan.verify.happens_before import check_plan
from vksched.plan.verify.verify_plan import verify_plan
from vksched.runtime.executors.dynamic_executor import DynamicExecutor, judge
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link
from vksched.topology.perf_model import PerfModel

POLICIES = ("earliest-finish", "work-stealing")
GRAPHS = draws(40, 1000)
"""With each policy; `make test-all` draws more."""


def planned(
    output: vs.Tensor | Sequence[vs.Tensor],
    where: object,
    policy: str = "earliest-finish",
    **more: object,
) -> DynamicPlan:
    graph, _ = vs.build_graph(output)
    plan = check_plan(vs.plan_graph(graph, where, policy=policy, **more))  # type: ignore[arg-type]
    assert isinstance(plan, DynamicPlan) and plan.options is not None
    return plan


def options_of(built: DynamicPlan) -> Options:
    assert built.options is not None
    return built.options


# -- whole plans -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", GRAPHS)
def test_plans_of_random_graphs_keep_every_promise(seed: int, policy: str) -> None:
    rng = np.random.default_rng(seed)
    outputs = random_outputs(rng, int(rng.integers(3, 40)))
    small = int(10 ** rng.uniform(3, 5)) if seed % 3 == 0 else 1 << 30
    where = topology(
        *10 ** rng.uniform(5, 7, int(rng.integers(1, 4))),
        cpu=1e6,
        link=Link(10 ** rng.uniform(5, 9), 1e-6),
        submit_s=1e-6,
        memory_bytes=small,
        max_buffer_bytes=min(small, 1 << 20),
    )
    built = planned(outputs, where, policy, with_cpu=bool(seed % 2))
    for memory, spec in zip(built.memory[:-1], where.devices, strict=False):
        assert memory.peak_bytes <= spec.memory_bytes
    pieces = options_of(built).pieces
    assert sorted(n for p in pieces for n in p.nodes) == sorted(
        n.id for n in built.graph.ops if n.id not in built.graph.views
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(25))
def test_null_devices_do_what_is_simulated_at_the_same_times(seed: int, policy: str) -> None:
    rng = np.random.default_rng(seed)
    outputs = drawn_graph(rng)
    clock = vs.SimulatedClock()
    options = {"trace": vs.Trace(clock), "optimize": False, "policy": policy}
    with vs.Scheduler(null_devices(clock), **options) as sched:  # type: ignore[arg-type]
        run = sched.compile(outputs)
        before = run.plan
        assert isinstance(before, DynamicPlan)
        x, start = rng.random((16, 32), np.float32), clock.now()
        results = run(x=x)
        expected = simulate_options(options_of(before), policy)
        assert clock.now() - start == pytest.approx(expected.seconds, rel=1e-9)
        did = [(s.device, s.nodes, s.waits) for s in run.plan.splits]
        assert did == [(s.device, s.nodes, s.waits) for s in before.splits]
        for got, wanted in zip(results, numpy_outputs(before.graph, {"x": x}), strict=True):
            assert np.array_equal(got, wanted)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_the_host_takes_for_a_run_counts_once(policy: str) -> None:
    clock, costs = vs.SimulatedClock(), PerfModel(run_s=1e-3, submit_s=1e-6, calls=1)
    devices = [
        vs.SimulatedDevice(DeviceSpec(f"null:{i}", "null", submit_s=1e-5, costs=costs), clock)
        for i in range(3)
    ]
    trace = vs.Trace(clock)
    with vs.Scheduler(devices, trace=trace, optimize=False, policy=policy, tune=False) as sched:
        run = sched.compile(vs.relu(vs.input("x", (16, 32))))
        plan = run.plan
        assert isinstance(plan, DynamicPlan)
        expected = simulate_options(options_of(plan), policy)
        run(x=np.ones((16, 32), np.float32))
        assert run.stats is not None
        assert run.stats.seconds == pytest.approx(expected.seconds, rel=1e-9)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_is_a_plan_that_can_be_asked(policy: str, tmp_path: object) -> None:
    built = planned(branches(3, 3), topology(SLOW, SLOW), policy)
    assert f"policy {policy}" in built.explain() and "each run decides" in built.notes[0]
    assert "was ready" in built.explain("b1.p0") or "queue" in built.explain("b1.p0")
    assert built.as_dict()["policy"] == policy
    built.draw(f"{tmp_path}/plan.svg")
    assert used(built) == {A, B}
    assert replace(built, notes=()).options is built.options


@pytest.mark.parametrize("policy", POLICIES)
def test_a_wait_that_is_left_out_is_found(policy: str) -> None:
    built = planned(branches(3, 3), topology(SLOW, SLOW), policy)
    found = 0
    for split in built.splits:
        if not split.waits:
            continue
        splits = list(built.splits)
        splits[split.id] = replace(split, waits=())
        try:
            check_plan(verify_plan(replace(built, splits=tuple(splits))))
        except PlanError:
            found += 1
    assert found


def test_what_the_host_did_too_early_is_found() -> None:
    clock = vs.SimulatedClock()
    seen: list[object] = []
    with vs.Scheduler(
        null_devices(clock), trace=vs.Trace(clock), policy="earliest-finish", optimize=False
    ) as sched:
        run = sched.compile(branches(3, 3))
        executor = run._compiled._executor
        assert isinstance(executor, DynamicExecutor)
        settle = vars(DynamicExecutor)["_report"]

        def keep(self: DynamicExecutor, plan: DynamicPlan, *rest: object) -> object:
            seen.extend((plan, list(rest[1].events)))  # type: ignore[attr-defined]
            return settle(self, plan, *rest)

        executor._report = keep.__get__(executor)  # type: ignore[method-assign]
        run(x=np.ones((128, 128), np.float32))
    plan, reported = seen
    assert isinstance(plan, DynamicPlan) and isinstance(reported, list)
    assert not judge(plan, reported)
    waits = [i for i, deed in enumerate(reported) if deed[0] == "wait"]
    assert all(judge(plan, reported[:i] + reported[i + 1 :]) for i in waits[-1:])
    fetched = next(i for i, deed in enumerate(reported) if deed[0] == "fetch")
    early = [reported[fetched], *reported[:fetched], *reported[fetched + 1 :]]
    assert judge(plan, early)


# -- memory ----------------------------------------------------------------------------------------


def test_two_devices_with_room_for_a_part_each_have_all_together() -> None:
    size = 4 * 128 * 128
    where = topology(SLOW, SLOW, cpu=1e6, memory_bytes=6 * size, max_buffer_bytes=size)
    built = planned(layers(8, vs.input("x", (4, 128))), where)
    pieces = options_of(built).pieces
    assert all(where.cpu not in p.seconds for p in pieces)
    assert any(len(p.seconds) == 1 for p in pieces) and used(built) == {A, B}
    assert "has room for" in built.explain()


def test_what_no_card_has_room_for_is_the_cpus() -> None:
    size = 4 * 128 * 128
    where = topology(SLOW, memory_bytes=6 * size, max_buffer_bytes=4 * size)
    built = planned(layers(8, vs.input("x", (128, 128))), where)
    assert used(built) == {A, CPU}
    assert not set.intersection(*({*p.seconds} for p in options_of(built).pieces))
    cpu = replace(where.devices[-1], memory_bytes=size)
    with pytest.raises(OutOfMemory, match="smaller batches"):
        planned(
            layers(8, vs.input("x", (128, 128))), replace(where, devices=(where.devices[0], cpu))
        )


def test_a_long_piece_is_cut_so_that_no_submission_is_too_long() -> None:
    where = topology(1e6, 1e4)
    pieces = options_of(planned(layers(4, vs.input("x", (128, 128))), where)).pieces
    assert all(len(p.nodes) == 1 for p in pieces)


def test_what_nothing_can_run_next_to_is_one_piece() -> None:
    pieces = options_of(planned(branches(1, 12), topology(SLOW, SLOW))).pieces
    assert len(pieces) == 1 and set(pieces[0].seconds) == {0, 1}
    x = layers(4, vs.input("x", (128, 128)), "first.")
    ends = [layers(4, x, f"b{i}.") for i in range(2)]
    output = layers(4, vs.add(*ends), "last.")
    pieces = options_of(planned(output, topology(SLOW, SLOW))).pieces
    nodes = vs.build_graph(output)[0].nodes
    names = [{nodes[n].name.split(".")[0] for n in piece.nodes} for piece in pieces]
    assert sum("first" in found for found in names) == sum("last" in found for found in names) == 1
    assert not any({"b0", "b1"} <= found for found in names)


# -- what the user says ----------------------------------------------------------------------------


def test_what_is_placed_stays() -> None:
    pins = [("b1.p0", B), ("b2.w0", A)]
    built = planned(branches(3, 2), topology(SLOW, SLOW), overrides=pins)
    assert built.device_of("b1.p0") == B and built.device_of("b2.p0") == A
    assert "override" in built.explain("b1.p0")


@pytest.mark.parametrize("policy", POLICIES)
def test_states_observers_and_other_syncs_are_refused(policy: str) -> None:
    x, total = vs.input("x", (4,)), vs.state(np.zeros(4, np.float32), "total")
    y = vs.add(total, x, name="y")
    clock = vs.SimulatedClock()
    with vs.Scheduler(null_devices(clock), policy=policy) as sched:
        with pytest.raises(PlanError, match='without states.*try policy="auto"'):
            sched.compile(y, updates={total: y})
        with pytest.raises(PlanError, match='no observers.*try policy="auto"'):
            sched.compile(vs.exp(x, name="e"), observe={"e": print})
    with pytest.raises(PlanError, match='submit_granularity of "split"'):
        vs.Scheduler(null_devices(clock), policy=policy, submit_granularity="op")
    built = planned(branches(2, 2), topology(SLOW, SLOW), policy, copies=3)
    assert built.copies == 1 and "3 asked for, 1 made" in built.explain()


# -- decisions -------------------------------------------------------------------------------------


def by_hand(
    pieces: Sequence[tuple[tuple[str, ...], str, dict[int, float]]],
) -> Options:
    """Pieces given as what they read, what they give, and what they take on each device. Each value
    takes a second on its way to a device or back.
    """
    output = [
        vs.add(vs.input("x", (250, 1)), float(i), name=gives)
        for i, (_, gives, _) in enumerate(pieces)
    ]
    graph, ids = vs.build_graph(output[:1])
    del ids
    value = {"x": 100, **{gives: i for i, (_, gives, _) in enumerate(pieces)}}
    built = tuple(
        Piece((i,), tuple(value[name] for name in reads), (i,), seconds, 0.0)
        for i, (reads, _, seconds) in enumerate(pieces)
    )
    ranked = tuple(replace(p, rank=_rank(built, i)) for i, p in enumerate(built))
    out = Options(graph, topology(1e9, 1e9), ranked, {i: i for i in range(len(built))}, {})
    for name in value.values():
        for device in range(3):
            out._moves["copy in", name, device] = out._moves["copy out", name, device] = 1.0
            out._moves["entry", name, device] = 0.0
    words = [0] * 101
    for name in value.values():
        words[name] = 1
    object.__setattr__(graph, "words", tuple(words))
    return out


def _rank(pieces: Sequence[Piece], number: int) -> float:
    after = [i for i, p in enumerate(pieces) if number in p.reads]
    own = pieces[number].seconds
    return sum(own.values()) / len(own) + max((_rank(pieces, i) for i in after), default=0.0)


def send(dispatch: Dispatcher, now_s: float) -> list[tuple[int, int]]:
    """All that goes to devices now."""
    out = []
    while (chosen := dispatch.next(now_s)) is not None:
        piece, device = chosen
        dispatch.sent(piece, device, list(dispatch.missing(piece, device)), now_s)
        out.append(chosen)
    return out


def test_a_piece_goes_where_it_ends_first_and_waits_for_that() -> None:
    each = {0: 10.0, 1: 45.0}
    options = by_hand([((), name, each) for name in "abcdef"])
    dispatch = SharedQueue(options, Speeds(3))
    # 10, 20, 30, 40 on the first; the fifth would end there after 50, on the second after 45
    assert [device for _, device in send(dispatch, 0.0)] == [0, 0, 1]
    assert len(dispatch.queues[0]) == DEPTH
    dispatch.ended(dispatch.queues[0][0], 10.0, 10.0)
    assert [device for _, device in send(dispatch, 10.0)] == [0]


def test_what_has_to_be_moved_counts() -> None:
    options = by_hand(
        [((), "a", {0: 10.0}), (("a",), "b", {0: 10.0, 1: 8.5}), (("a",), "c", {0: 10.0, 1: 7.0})]
    )
    dispatch = SharedQueue(options, Speeds(3))
    assert send(dispatch, 0.0) == [(0, 0), (1, 0)]  # b: 20 there, 10 + 2 + 8.5 elsewhere
    dispatch.ended(0, 10.0, 10.0)
    assert send(dispatch, 10.0) == [(2, 1)]  # c: 12 + 7 there, behind b 30
    assert dispatch.tape.sent[-1] == DispatchedPiece(2, 1, ((0, 0),), (0,))


def test_a_device_that_proves_slow_gets_less() -> None:
    each = {0: 10.0, 1: 10.0}
    options = by_hand([((), str(i), each) for i in range(40)])
    speeds, slow = Speeds(3), {0: 4.0}
    done = simulate_options(options, "earliest-finish", speeds, slow)
    on = [sent.device for sent in done.tape.sent]
    assert speeds.of(0) == pytest.approx(4.0, rel=0.2) and speeds.of(1) == pytest.approx(1.0)
    assert on.count(0) <= 11 and done.seconds <= 1.15 * 320  # 8 on the slow one, 32 on the other
    knew = simulate_options(options, "earliest-finish", speeds, slow)
    assert knew.seconds <= 330 and [s.device for s in knew.tape.sent].count(0) in (8, 9)


def test_speeds_forget_what_they_see_no_more() -> None:
    speeds = Speeds(2)
    for _ in range(9):
        speeds.see(0, 1.0, 1.0)
        speeds.see(1, 1.0, 1.0)
    for _ in range(9):
        speeds.see(0, 1.0, 8.0)
    assert speeds.of(0) == pytest.approx(8.0, rel=0.05)
    held_up = Speeds(2)
    held_up.see(0, 1.0, 50.0)  # one piece says little
    for known in (speeds, held_up):
        for _ in range(RESTS):
            known.see(1, 1.0, 1.0)
            assert known.begin() == []
        slow = known.of(0)
        assert slow > 7 and known.begin() == [0] and known.of(0) == 1.0
        assert known.depth(0) == 1 and known.depth(1) == DEPTH
        known.see(0, 1.0, 1.1)
        assert known.depth(0) == DEPTH and known.of(0) == pytest.approx(1.1)
    speeds.see(0, 0.0, 1.0)
    speeds.see(0, 1.0, 0.0)
    assert speeds.of(0) == pytest.approx(1.1) and speeds.of(1) == 1.0


def test_a_device_that_stays_slow_is_probed_after_twice_as_many_runs_each_time() -> None:
    speeds, probes = Speeds(2), []
    for _ in range(3):
        speeds.see(0, 1.0, 1.0)
    for _ in range(3):
        speeds.see(0, 1.0, 8.0)
    for run in range(1000):
        speeds.see(1, 1.0, 1.0)
        if speeds.begin():
            probes.append(run)
            speeds.see(0, 1.0, 8.0)
            assert speeds.of(0) == pytest.approx(8.0)
    assert probes == [16, 49, 114, 243, 500]
    while not speeds.begin():
        pass
    speeds.see(0, 1.0, 1.0)  # it is well
    for _ in range(3):
        speeds.see(0, 1.0, 8.0)
    assert [bool(speeds.begin()) for _ in range(RESTS + 1)] == [False] * RESTS + [True]


def test_an_idle_device_takes_what_is_cheapest_to_move() -> None:
    each = {0: 10.0, 1: 10.0}
    options = by_hand([((), "a", {0: 1.0}), (("a", "x"), "b", each), (("a",), "c", each)] + [
        (("a",), name, {0: 20.0}) for name in "def"
    ])  # fmt: skip
    dispatch = WorkStealing(options, Speeds(3))
    first = send(dispatch, 0.0)
    assert first[0] == (0, 0) and all(device == 0 for _, device in first)
    dispatch.ended(0, 1.0, 1.0)
    stolen = [piece for piece, device in send(dispatch, 1.0) if device == 1]
    assert stolen[:1] == [2]  # of b and c, c has one value less to move


def test_nothing_is_stolen_that_its_own_device_would_end_sooner() -> None:
    options = by_hand([((), name, {0: 1.0, 1: 500.0}) for name in "abcdefgh"])
    done = simulate_options(options, "work-stealing")
    assert {sent.device for sent in done.tape.sent} == {0}


def test_a_tape_without_its_end_makes_no_sound_plan() -> None:
    built = planned(branches(2, 2), topology(SLOW, SLOW))
    options = options_of(built)
    tape = simulate_options(options, "earliest-finish").tape
    verify_plan(plan_of(options, tape, "earliest-finish"))
    with pytest.raises(PlanError, match="not complete"):
        verify_plan(plan_of(options, DynamicRunRecord(tape.sent, ()), "earliest-finish"))
    assert all(source == HOST or source >= 0 for s in tape.sent for _, source in s.brought)


# -- one device alone ------------------------------------------------------------------------------


def company_of_two() -> SoloOrAllSelector:
    """Eight pieces, which take a second each on both devices."""
    each = {0: 1.0, 1: 1.0}
    options = by_hand([((), name, each) for name in "abcdefgh"])
    built = planned(branches(2, 2), topology(SLOW, SLOW))
    return SoloOrAllSelector(replace(options, on=options_of(built).on))


def test_a_device_that_is_faster_alone_stays_alone_until_it_slows_down() -> None:
    selector, speeds = company_of_two(), Speeds(3)
    assert selector.choose(speeds) is None
    selector.see(99.0, cold=True)
    assert selector.choose(speeds) is None  # a first run says nothing
    for _ in range(9):
        selector.see(20.0 if selector.alone is None else 8.0)
        assert selector.choose(speeds) == 0
    selector.see(9.0)
    selector.see(12.0)
    assert selector.choose(speeds) == 0  # one run that was held up
    selector.see(32.0)
    assert selector.choose(speeds) is None
    for _ in range(4):
        speeds.see(0, 1.0, 4.0)
    selector.see(20.0)
    assert selector.choose(speeds) == 1


def test_devices_that_help_each_other_stay_together() -> None:
    selector, speeds = company_of_two(), Speeds(3)
    for _ in range(50):
        selector.see(4.0)
        assert selector.choose(speeds) is None


def test_what_a_device_really_takes_alone_decides() -> None:
    selector, speeds, took = company_of_two(), Speeds(3), {None: 10.0, 0: 15.0}
    chosen = []
    for _ in range(500):
        selector.see(took[selector.alone])
        chosen.append(selector.choose(speeds))
    lost = sum(took[who] - 10.0 for who in chosen)
    assert chosen[:3] == [0, 0, None] and chosen.count(0) > 2  # it is tried again,
    assert lost < 0.03 * 500 * 10.0  # but rarely


def test_together_is_tried_again_but_rarely() -> None:
    selector, speeds, took = company_of_two(), Speeds(3), {None: 20.0, 0: 8.0}
    chosen = []
    for _ in range(1000):
        selector.see(took[selector.alone])
        chosen.append(selector.choose(speeds))
    assert 2 <= chosen.count(None) < 0.03 * 1000 * 8.0 / 12.0


def test_a_probe_of_a_device_tries_all_together() -> None:
    selector, speeds = company_of_two(), Speeds(3)
    for _ in range(9):
        selector.see(20.0 if selector.alone is None else 8.0)
        selector.forget(speeds.begin())
        selector.choose(speeds)
    assert selector.alone == 0
    selector.forget([1])
    assert selector.choose(speeds) is None
    selector.see(4.0)
    assert selector.choose(speeds) is None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_device_alone_gets_all_at_once(policy: str) -> None:
    options = by_hand([((), name, {0: 1.0, 1: 9.0}) for name in "abcdefgh"])
    dispatches: dict[str, type[Dispatcher]] = {
        "earliest-finish": SharedQueue,
        "work-stealing": WorkStealing,
    }
    dispatch = dispatches[policy](options, Speeds(3), 1)
    assert [device for _, device in send(dispatch, 0.0)] == [1] * 8


# -- a device that slows down ----------------------------------------------------------------------

SHAPES = {
    "four branches": lambda: branches(4, 4),
    "eight branches": lambda: branches(8, 3),
    "a chain": lambda: branches(1, 12),
    "two long branches": lambda: branches(2, 10),
}


@pytest.mark.parametrize("speeds", [(1e9, 9e8), (4e9, 9e8), (1e9, 1e9, 1e9)])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_stream_ends_within_a_third_more_than_the_plans_that_knew(
    shape: str, speeds: Sequence[float]
) -> None:
    """One device slows down by 4 in the middle of a stream."""
    runs, slow = 12, 4.0
    output, where = SHAPES[shape](), topology(*speeds, submit_s=1e-5)
    options = options_of(planned(output, where))
    shown, took_s = Speeds(len(where.devices)), 0.0
    for number in range(2 * runs):
        now = {0: slow} if number >= runs else {}
        took_s += simulate_options(options, "earliest-finish", shown, now).seconds
    graph, _ = vs.build_graph(output)
    first = where.devices[0]
    hot = replace(
        first,
        flops_per_s=first.flops_per_s / slow,
        bytes_per_s=first.bytes_per_s / slow,
        submit_s=first.submit_s * slow,
    )
    knew_s = 0.0
    for each in (where, replace(where, devices=(hot, *where.devices[1:]))):
        plan = vs.plan_graph(graph, each, policy="auto")
        knew_s += runs * simulate(plan).seconds
    assert took_s <= 4 / 3 * knew_s


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("sizes", [(1 << 30, 0), (0, 1 << 30), (100_000, 1 << 30)])
def test_devices_that_say_different_things_of_one_memory_stay_within_it(
    sizes: tuple[int, int], policy: str
) -> None:
    where = topology(SLOW, SLOW)
    specs = zip(where.devices, sizes, strict=False)
    odd = [replace(spec, memory_bytes=size, memory_node="p") for spec, size in specs]
    built = planned(branches(4, 2), replace(where, devices=(*odd, where.devices[-1])), policy)
    needed = [memory.needed_bytes for memory in built.memory]
    large = sizes.index(1 << 30)
    assert needed[large] and not needed[1 - large], "the larger one has all of it"


# -- any order that the plan allows ----------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(20))
def test_devices_that_work_late_and_in_any_order_give_numpys_results(
    seed: int, policy: str
) -> None:
    rng = np.random.default_rng(seed)
    outputs = drawn_graph(rng)
    with vs.Scheduler(lazy_devices(2, seed), optimize=False, policy=policy) as sched:
        run = sched.compile(outputs)
        for _ in range(3):
            x = rng.random((16, 32), np.float32)
            for got, wanted in zip(run(x=x), numpy_outputs(run.plan.graph, {"x": x}), strict=True):
                assert np.array_equal(got, wanted)
