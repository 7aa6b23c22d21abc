"""The happens-before checker: silent on every sound plan, however runs interleave, and loud on
every planted fault; what it lets pass gives right results on a device that takes every liberty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from graphs import (
    NAMED,
    A,
    B,
    Named,
    chain,
    lifetimes,
    make_plan,
    make_topology,
    numpy_outputs,
    random_outputs,
    random_plan,
)
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from lazy_device import LazyDevice, lazy_devices
from selection import examples
from test_plan_verify import with_split, without_one

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.plan.plan import Plan
from vksched.plan.types.plan_types import COMPUTE, HOST, Span
from vksched.plan.verify.happens_before import Checker, Finding, check_events, check_plan
from vksched.plan.verify.interleavings import events_of
from vksched.plan.verify.memory_events import (
    Acquire,
    End,
    Event,
    EventGenerator,
    Free,
    Release,
    Submit,
    Touch,
)
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.device import Device
from vksched.runtime.executors import race_checker
from vksched.runtime.executors.executor_context import ExecutorContext
from vksched.runtime.executors.plan_executor import PlanExecutor

RANDOM = settings(deadline=None, max_examples=examples(40))
seeds = st.integers(0, 1 << 32)
any_plans = st.builds(random_plan, seeds, st.integers(1, 40), st.integers(1, 4))
plans = any_plans.filter(lambda plan: plan.splits)
slots = st.integers(1, 4)


def with_copies(plan: Plan, copies: int) -> Plan:
    """The plan with another number of slots; the checker does not ask for bytes."""
    return replace(plan, copies=copies)


def state_plan(rng: np.random.Generator, *devices: int) -> Plan:
    """States that are read, written, shown and exchanged, on drawn devices where none are given;
    of m and w the next values may be written in place.
    """
    x = vs.input("x", (4, 16))
    a, b, c = (vs.state(np.zeros((4, 16), np.float32), name=name) for name in "abc")
    y = vs.add(vs.mul(a, x, name="y"), b, name="z")
    m, w = (vs.state(np.zeros((4, 16), np.float32), name, backup=False) for name in "mw")
    mean = vs.add(vs.mul(m, 0.5, name="half"), x, name="mean")
    outputs = [vs.exp(y, name="e"), vs.reshape(c, (64,), name="flat"), vs.exp(w, name="old")]
    updates = {a: y, b: a, c: vs.tanh(c, name="t"), m: mean, w: vs.sub(w, mean, name="new")}
    graph, _ = vs.build_graph(outputs, updates=updates)
    topology = make_topology(3)
    placed = [n for n in graph.ops if n.op not in ("assign", "reshape")]
    where = devices or tuple(rng.integers(0, 4, len(placed)))
    names = [topology.devices[where[i % len(where)]].name for i in range(len(placed))]
    pairs = [(n.id, name) for n, name in zip(placed, names, strict=True)]
    return vs.plan_graph(graph, topology, overrides=pairs)


def found(plan: Plan, events: list[Event] | None = None, runs: int = 2) -> list[Finding]:
    return check_events(plan, events_of(plan, runs) if events is None else events)


# -- silence ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", NAMED.values(), ids=list(NAMED))
@pytest.mark.parametrize("copies", [1, 3])
def test_named_shapes_are_in_order_and_nothing_in_them_is_spare(shape: Named, copies: int) -> None:
    plan = make_plan(*shape.build(), copies=copies)
    for seed in range(3):
        assert check_plan(plan, runs=2 * copies, seed=seed) is plan
    assert all(map(found, without_one(plan, "waits")))
    assert all(map(found, without_one(plan, "barriers")))


@RANDOM
@given(any_plans, slots, st.integers(1, 9), seeds)
def test_random_plans_are_in_order_however_runs_interleave(
    plan: Plan, copies: int, runs: int, seed: int
) -> None:
    check_plan(with_copies(plan, copies), runs, seed)


def test_who_reads_a_view_reads_no_more_of_its_root() -> None:
    # what the second part of x1 held is written over beside a reader of the first part
    plan = random_plan(2_147_483_647, 40, 2)
    assert all(map(found, without_one(plan, "barriers")))


def test_who_reads_a_view_reads_all_of_its_root_where_the_layer_judges_buffers() -> None:
    x, z = vs.input("x", (8, 64)), vs.input("z", (8, 16))
    row = x[6:7]
    outputs = [vs.concat([row, row], name="a"), vs.neg(vs.concat([z, z], name="b"), name="c")]
    placement = {"*": "null:0"}
    for disable_aliasing in (False, True):
        plan = make_plan(outputs, placement, make_topology(1, disable_aliasing=disable_aliasing))
        split = plan.splits[0]
        x_at, b_at = (plan.locations[0, n] for n in (split.uploads[0].node, split.nodes[1]))
        assert b_at.page == x_at.page  # it takes the place of what nobody reads any more
        assert (3 in split.barriers) is disable_aliasing  # before b, behind two copies and a


@RANDOM
@given(plans)
def test_random_plans_need_every_wait_and_barrier(plan: Plan) -> None:
    for left in without_one(plan, "waits"):
        first, *_ = found(left, runs=1)
        assert "a wait for split" in first.missing
    for left in without_one(plan, "barriers")[:20]:
        first, *_ = found(left, runs=1)
        assert first.kind == "race" and "a barrier before" in first.missing


@RANDOM
@given(seeds)
def test_plans_with_states_are_in_order_and_need_every_wait_and_barrier(seed: int) -> None:
    plan = state_plan(np.random.default_rng(seed))
    check_plan(plan, runs=3)
    assert all(map(found, without_one(plan, "waits")))
    assert all(map(found, without_one(plan, "barriers")))


def rich_plan(seed: int, count: int, submit_granularity: str) -> Plan:
    """Weights that stay in the host's memory, values that the user watches, waits by policy."""
    rng = np.random.default_rng(seed)
    graph, _ = vs.build_graph(random_outputs(rng, count))
    topology = make_topology(3, submit_granularity=submit_granularity)
    overrides = [
        (n.id, topology.devices[int(rng.integers(0, 4))].name)
        for n in (*graph.ops, *graph.weights)
        if rng.random() < 0.5
    ]
    computed = [n.id for n in graph.ops if not graph.nodes[graph.view_base(n.id)].declaration.leaf]
    watched = [n for n in computed if rng.random() < 0.1]
    return vs.plan_graph(graph, topology, overrides=overrides, observed=watched)


@RANDOM
@given(seeds, st.integers(1, 30), slots)
def test_streams_and_observers_are_in_order_and_need_every_wait(
    seed: int, count: int, copies: int
) -> None:
    plan = rich_plan(seed, count, "split")
    check_plan(with_copies(plan, copies), runs=copies + 1, seed=seed)
    assert all(map(found, without_one(plan, "waits")))
    assert all(map(found, without_one(plan, "barriers")[:20]))
    for submit_granularity in ("level", "op"):
        check_plan(rich_plan(seed, count, submit_granularity), seed=seed)


# -- faults in plans -------------------------------------------------------------------------------

Draw = Callable[[st.SearchStrategy[Any]], Any]


def other_wait(plan: Plan, draw: Draw) -> Plan | None:
    """A split waits for another one than it should."""
    waiting = [(s.id, w) for s in plan.splits for w in s.waits]
    waiting += [(len(plan.splits), w) for w in plan.final_waits]
    if not waiting:
        return None
    at, wait = draw(st.sampled_from(waiting))

    def covers(split: int) -> bool:
        return plan.splits[split].device == plan.splits[wait].device and wait <= split < at

    wrong = [s.id for s in plan.splits if not covers(s.id)]
    if not wrong:
        return None
    instead = draw(st.sampled_from(wrong))
    old = plan.final_waits if at == len(plan.splits) else plan.splits[at].waits
    new = tuple(instead if w == wait else w for w in old)
    if at == len(plan.splits):
        return replace(plan, final_waits=new)
    return with_split(plan, at, waits=new)


def copies_of(plan: Plan, field: str) -> list[tuple[int, Any]]:
    devices = plan.topology.devices
    return [
        (s.id, c)
        for s in plan.splits
        for c in getattr(s, field)
        if field == "uploads" or devices[s.device].kind != "cpu"
    ]


def without(plan: Plan, at: int, field: str, copy: object) -> Plan:
    left = tuple(c for c in getattr(plan.splits[at], field) if c != copy)
    return with_split(plan, at, **{field: left})


def copy_in_dropped(plan: Plan, draw: Draw) -> Plan | None:
    choice = copies_of(plan, "uploads")
    return without(plan, *_of(draw, choice, "uploads")) if choice else None


def copy_out_dropped(plan: Plan, draw: Draw) -> Plan | None:
    """Not that of a part beside its whole: an output is found in either."""
    root, feeds = plan.graph.view_base, {c.node for s in plan.splits for c in s.downloads}
    choice = [
        (at, c) for at, c in copies_of(plan, "downloads") if root(c.node) not in feeds - {c.node}
    ]
    return without(plan, *_of(draw, choice, "downloads")) if choice else None


def _of(draw: Draw, choice: list[tuple[int, Any]], field: str) -> tuple[int, str, Any]:
    at, copy = draw(st.sampled_from(choice))
    return at, field, copy


def wrong_source(plan: Plan, draw: Draw) -> Plan | None:
    """A value is fetched from a split that did not make it."""
    choice = [(at, c) for at, c in copies_of(plan, "uploads") if c.source != HOST]
    if not choice:
        return None
    at, copy = draw(st.sampled_from(choice))
    wrong = draw(st.sampled_from([s.id for s in plan.splits if s.id != copy.source] or [HOST]))
    if wrong == HOST:
        return None
    changed = tuple(c._replace(source=wrong) if c == copy else c for c in plan.splits[at].uploads)
    return with_split(plan, at, uploads=changed)


def shared_staging(plan: Plan, draw: Draw, field: str, span: str) -> Plan | None:
    """Two values of a split have one place in a staging buffer."""
    choice = [
        s
        for s in plan.splits
        if len(getattr(s, field)) > 1 and plan.topology.devices[s.device].kind != "cpu"
    ]
    if not choice:
        return None
    split = draw(st.sampled_from(choice))
    one, two, *rest = getattr(split, field)
    return with_split(
        plan, split.id, **{field: (one, two._replace(**{span: getattr(one, span)}), *rest)}
    )


def place_in_use(plan: Plan, draw: Draw) -> Plan | None:
    """A value lies on another that is still needed."""
    pairs = []
    for device in range(plan.topology.cpu):
        lives = sorted(lifetimes(plan, device).items())
        pairs += [
            (device, one, two)
            for one, a in lives
            for two, b in lives
            if one < two and a[0] <= b[1] and b[0] <= a[1]
        ]
    if not pairs:
        return None
    device, one, two = draw(st.sampled_from(pairs))
    at = plan.locations[device, one]
    span = Span(at.page, at.offset, plan.locations[device, two].words)
    moved = replace(plan, locations={**plan.locations, (device, two): span})
    for split in plan.splits:
        if split.device == device:
            copies = tuple(c._replace(target=span) if c.node == two else c for c in split.uploads)
            moved = with_split(moved, split.id, uploads=copies)
    return moved


def node_dropped(plan: Plan, draw: Draw) -> Plan | None:
    """A node does not run, and what an earlier run left is read."""
    split = draw(st.sampled_from(plan.splits))
    gone = draw(st.sampled_from(split.nodes))
    return with_split(plan, split.id, nodes=tuple(n for n in split.nodes if n != gone))


@RANDOM
@given(plans)
@example(random_plan(790, 25, 1))
def test_no_part_of_a_value_crosses_next_to_the_whole(plan: Plan) -> None:
    entered = {(s.device, c.node) for s in plan.splits for c in s.uploads}
    root = plan.graph.view_base
    assert not [
        plan.graph.nodes[part].name
        for device, part in entered
        if (device, root(part)) in entered - {(device, part)}
    ]


FAULTS: dict[str, Callable[[Plan, Draw], Plan | None]] = {
    "wait for another split": other_wait,
    "copy in dropped": copy_in_dropped,
    "copy out dropped": copy_out_dropped,
    "source that did not make it": wrong_source,
    "two values in one upload buffer": lambda p, d: shared_staging(p, d, "uploads", "staging"),
    "two values in one download buffer": lambda p, d: shared_staging(p, d, "downloads", "staging"),
    "place still in use": place_in_use,
    "node that does not run": node_dropped,
}


@pytest.mark.parametrize("fault", list(FAULTS))
@RANDOM
@given(st.data())
def test_faults_planted_in_plans_are_found(fault: str, data: st.DataObject) -> None:
    plan = data.draw(plans)
    broken = FAULTS[fault](plan, data.draw)
    assume(broken is not None)
    assert broken is not None and found(broken, runs=1), plan.explain()


def test_a_finding_names_all_that_is_needed_to_mend_it() -> None:
    plan = make_plan(*chain([A, A, B]))
    (first, *_) = found(with_split(plan, 1, waits=()), runs=1)
    assert first.kind == "race" and first.slot == 0
    assert str(first) == (
        "fetch of n1 in run 0 and copy out of n1 in split 0 of run 0 on null:0 meet in null:0, "
        "slot 0, download page 0, words 0 to 511: nothing orders them; missing: a wait for split 0 "
        "on null:0"
    )
    (first, *_) = found(with_split(plan, 0, barriers=plan.splits[0].barriers[1:]), runs=1)
    assert first.missing == "a barrier before n0 in split 0"
    with pytest.raises(vs.PlanError, match=r"\[check\] .* out of order:\n  fetch of n1 in run 0"):
        check_plan(with_split(plan, 1, waits=()))


def test_numpy_reads_the_outbox_of_a_device_without_a_copy() -> None:
    plan = make_plan(*chain([A, "cpu", A]))
    (copy,) = plan.splits[1].uploads
    reads = [a.memory[0] for item in EventGenerator(plan).items[1][COMPUTE] for a in item.reads]
    assert copy.source == 0 and "download" in reads


# -- faults in what hosts do -----------------------------------------------------------------------


def place_of(events: list[Event], kind: type[Event], run: int = 0) -> int:
    return next(i for i, e in enumerate(events) if isinstance(e, kind) and e.run == run)


def moved(events: list[Event], old: int, new: int) -> list[Event]:
    out = [*events]
    out.insert(new, out.pop(old))
    return out


@RANDOM
@given(plans, seeds, st.data())
def test_a_slot_that_is_taken_before_its_run_ends_is_found(
    plan: Plan, seed: int, data: st.DataObject
) -> None:
    plan = with_copies(plan, 1)
    events = events_of(plan, 2)
    taken, ended = place_of(events, Acquire, 1), place_of(events, End)
    at = data.draw(st.integers(1, ended))
    kinds = {f.kind for f in found(plan, moved(events, taken, at))}
    assert "slot" in kinds
    early = moved(events, place_of(events, Release), data.draw(st.integers(1, ended)))
    assert {f.kind for f in found(plan, early)} >= {"slot"}


@RANDOM
@given(plans, seeds)
def test_two_slots_on_the_same_memory_are_found(plan: Plan, seed: int) -> None:
    plan = with_copies(plan, 2)
    events = events_of(plan, 2, np.random.default_rng(seed))
    one = [e for e in events if e.run == 0]
    two = [replace(e, slot=0, agent=1) for e in events if e.run == 1]
    mixed = [e for couple in zip(one, two, strict=True) for e in couple]
    assert {f.kind for f in found(plan, mixed)} >= {"slot", "race"}


@RANDOM
@given(plans, st.data())
def test_touching_too_early_is_found(plan: Plan, data: st.DataObject) -> None:
    """A fetch or a check that is done before the wait for its split."""
    events = events_of(plan, 1)
    touches = [i for i, e in enumerate(events) if isinstance(e, Touch) and e.item.reads]
    at = data.draw(st.sampled_from(touches))
    (access, *_) = (*events[at].item.reads,)  # type: ignore[attr-defined]
    writers = [
        i
        for i, e in enumerate(events[:at])
        if isinstance(e, Submit)
        and any(
            w.memory == access.memory and w.start == access.start
            for item in e.items
            for w in item.writes
        )
    ]
    assert writers
    kinds = {f.kind for f in found(plan, moved(events, at, writers[-1] + 1))}
    assert kinds & {"race"}
    kinds = {f.kind for f in found(plan, moved(events, at, writers[-1]))}
    assert kinds & {"unwritten", "race"}


@RANDOM
@given(plans, st.data())
def test_recordings_submitted_while_they_are_under_way_are_found(
    plan: Plan, data: st.DataObject
) -> None:
    events = events_of(plan, 1)
    at = data.draw(st.sampled_from([i for i, e in enumerate(events) if isinstance(e, Submit)]))
    kinds = {f.kind for f in found(plan, [*events[: at + 1], *events[at:]])}
    assert "pending" in kinds


@RANDOM
@given(plans, slots, seeds, st.data())
def test_memory_freed_too_early_is_found(
    plan: Plan, copies: int, seed: int, data: st.DataObject
) -> None:
    plan = with_copies(plan, copies)
    tell = EventGenerator(plan)
    events = events_of(plan, copies + 1, np.random.default_rng(seed))
    ends = [tell.free(d) for d in sorted({s.device for s in plan.splits})]
    assert not found(plan, [*events, *ends])
    at = data.draw(st.integers(1, len(events) - 1))
    assert {f.kind for f in found(plan, [*events[:at], *ends, *events[at:]])} & {"freed"}


@RANDOM
@given(seeds)
def test_states_written_too_early_are_found(seed: int) -> None:
    plan = state_plan(np.random.default_rng(seed))
    commits = {s.id for s in plan.commits}
    readers = [s for s in plan.splits if s.id not in commits]
    events = events_of(plan, 1)
    writes = [i for i, e in enumerate(events) if isinstance(e, Submit) and e.split in commits]
    reads = place_of(events, Submit)
    kinds = {f.kind for f in found(plan, moved(events, writes[-1], reads))}
    assert readers and "pending" in kinds
    for split in sorted(commits):
        if plan.splits[split].waits:
            assert found(with_split(plan, split, waits=()), runs=1)


def test_a_state_read_after_its_write_is_found() -> None:
    plan = state_plan(np.random.default_rng(0), 0)
    events = events_of(plan, 1)
    first, last = (i for i, e in enumerate(events) if isinstance(e, Submit))
    messages = [f.message for f in found(plan, moved(events, last, first)) if f.kind == "stale"]
    assert any("reads a after a.next" in m for m in messages), messages


# -- at run time -----------------------------------------------------------------------------------


def executor_of(plan: Plan, eager: bool = False, seed: int = 0) -> PlanExecutor:
    """The plan on lazy or eager devices; it is carried out whatever is missing in it."""
    specs = plan.topology.devices
    devices: list[Device] = [LazyDevice(s, seed + i, eager) for i, s in enumerate(specs[:-1])]
    devices.append(CpuDevice(specs[-1]))
    for memory, device in zip(plan.memory, devices, strict=True):
        device.states.add((plan.graph.keys[s], plan.graph.initial[s]) for s in memory.states)
    return PlanExecutor(plan, ExecutorContext(devices, vs.Trace(), 30.0))


def feeds_of(plan: Plan, seed: int) -> tuple[dict[int, NDArray], list[NDArray]]:
    """Inputs of a run, and what it must give."""
    rng = np.random.default_rng(seed)
    nodes = plan.graph.inputs
    feeds = {n.id: rng.standard_normal(n.type.shape, dtype=np.float32) for n in nodes}
    return feeds, numpy_outputs(plan.graph, {n.name: feeds[n.id] for n in nodes})


def right(plan: Plan, seed: int) -> bool:
    """Return True if lazy devices give the results of numpy, run after run."""
    executor = executor_of(plan, seed=seed)
    try:
        for run in range(3):
            feeds, expected = feeds_of(plan, seed + run)
            got = executor.run(feeds).outputs
            if not all(map(partial(np.array_equal, equal_nan=True), got, expected)):
                return False
        return True
    except Exception:  # what reads garbage may end in any way
        return False
    finally:
        executor.close()


@RANDOM
@given(plans, slots, seeds)
def test_sound_plans_are_right_on_lazy_devices(plan: Plan, copies: int, seed: int) -> None:
    assert right(with_copies(plan, copies), seed)


@pytest.mark.parametrize("field", ["waits", "barriers"])
def test_lazy_devices_show_what_is_missing(field: str) -> None:
    plan = make_plan(*chain([A, A, B]))
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VKSCHED_CHECK", raising=False)
        for left in without_one(plan, field):
            assert not all(right(left, seed) for seed in range(10))


def tampered(plan: Plan, draw: Draw) -> Plan:
    """The plan with some of its waits, barriers and spans changed; some still work."""
    roomy = [
        replace(
            m,
            activation_pages=tuple(w + (1 << 16) for w in m.activation_pages),
            download_pages=tuple(w + (1 << 16) for w in m.download_pages),
        )
        for m in plan.memory
    ]
    plan = replace(plan, memory=tuple(roomy))
    for _ in range(draw(st.integers(1, 3))):
        split = plan.splits[draw(st.integers(0, len(plan.splits) - 1))]
        kind = draw(st.sampled_from(["waits", "barriers", "place", "staging buffer"]))
        if kind in ("waits", "barriers"):
            left = tuple(x for x in getattr(split, kind) if draw(st.booleans()))
            plan = with_split(plan, split.id, **{kind: left})
        elif kind == "staging buffer":
            outs = tuple(
                c._replace(staging=c.staging._replace(offset=16 * draw(st.integers(0, 3))))
                if c.staging.words and draw(st.booleans())
                else c
                for c in split.downloads
            )
            plan = with_split(plan, split.id, downloads=outs)
        elif plan.locations:
            key = draw(st.sampled_from(sorted(plan.locations)))
            other = plan.locations[draw(st.sampled_from(sorted(plan.locations)))]
            span = Span(plan.locations[key].page, other.offset, plan.locations[key].words)
            plan = replace(plan, locations={**plan.locations, key: span})
            for s in plan.splits:
                if s.device == key[0]:
                    ins = (c._replace(target=span) if c.node == key[1] else c for c in s.uploads)
                    plan = with_split(plan, s.id, uploads=tuple(ins))
    return plan


@settings(deadline=None, max_examples=examples(150))
@given(plans, slots, seeds, st.data())
def test_what_the_checker_passes_is_right_on_lazy_devices(
    plan: Plan, copies: int, seed: int, data: st.DataObject
) -> None:
    """No luck is needed: without a finding a plan is right even where all is late and mixed up."""
    plan = tampered(with_copies(plan, copies), data.draw)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VKSCHED_CHECK", raising=False)
        assert found(plan, runs=3) or all(right(plan, seed + i) for i in range(3))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKSCHED_CHECK", "1")


@pytest.mark.parametrize("shape", NAMED.values(), ids=list(NAMED))
def test_a_missing_wait_or_barrier_is_an_error_at_run_time(
    shape: Named, checked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The devices are eager, so the results are right by luck."""
    plan = make_plan(*shape.build())
    for left in (*without_one(plan, "waits"), *without_one(plan, "barriers")):
        if all(s.device != plan.topology.cpu for s in plan.splits):
            executor = executor_of(left, eager=True)
            for seed in range(2):
                with pytest.raises(
                    vs.PlanError, match=r"(?s)\[check\] .*(wait for|barrier before)"
                ):
                    executor.run(feeds_of(plan, seed)[0])
            executor.close()
    monkeypatch.delenv("VKSCHED_CHECK")
    executor = executor_of(plan, eager=True)
    assert not any(isinstance(s, race_checker._Watched) for s in executor._prepared_plans.values())
    executor.close()


class Heard(Checker):
    """Keeps the events of every plan."""

    events: list[Event] = []

    def feed(self, event: Event) -> list[Finding]:
        self.events.append(event)
        return super().feed(event)


@pytest.mark.parametrize("shape", NAMED.values(), ids=list(NAMED))
def test_executors_do_what_events_of_a_plan_say(
    shape: Named, checked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(*shape.build())
    heard: list[Event] = []
    monkeypatch.setattr(Heard, "events", heard)
    monkeypatch.setattr(race_checker, "Checker", Heard)
    executor = executor_of(plan)
    for seed in range(3):
        executor.run(feeds_of(plan, seed)[0])
    assert heard == events_of(plan, 3)
    heard.clear()
    executor.close()
    assert {type(e) for e in heard} == {Free}


def test_states_run_in_order(checked: None) -> None:
    for seed in range(10):
        plan = state_plan(np.random.default_rng(seed))
        executor = executor_of(plan, seed=seed)
        x = np.full((4, 16), 0.5, np.float32)
        a = b = m = w = np.zeros((4, 16), np.float32)
        for _ in range(3):
            got, _, old = executor.run({plan.graph.inputs[0].id: x}).outputs
            a, b = a * x + b, a
            assert np.array_equal(got, np.exp(a)) and np.array_equal(old, np.exp(w))
            m = m * np.float32(0.5) + x
            w = w - m
        executor.close()


@pytest.mark.parametrize("where_it_fails", ["cpu", A])
def test_a_run_that_fails_leaves_its_slot_in_order(checked: None, where_it_fails: str) -> None:
    """An index is out of range in the middle, which numpy says at the wait and a null device when
    it gets the split; the next runs are right and in order.
    """
    x, where = vs.input("x", (6, 4)), vs.input("where", (3,), "int32")
    y = vs.add(vs.gather(vs.exp(x, name="e"), where, name="pick"), 1.0, name="y")
    clock = vs.SimulatedClock()
    null: list[Device] = [vs.SimulatedDevice(d.spec, clock) for d in lazy_devices(2)]
    devices = lazy_devices(2) if where_it_fails == "cpu" else null
    with vs.Scheduler(devices, copies=2) as sched:
        run = sched.compile(y, placement={"e": A, "pick": where_it_fails, "y": B})
        array = np.ones((6, 4), np.float32)
        for row in (1, 9, 2, 9, 9, 3):
            rows = np.full(3, row, np.int32)
            futures = [run.submit(x=array * i, where=rows) for i in range(4)]
            for i, future in enumerate(futures):
                if row == 9:
                    with pytest.raises(vs.IndexOutOfRange):
                        future.result()
                else:
                    assert np.allclose(future.result(), np.exp(i) + 1)


def test_every_run_of_the_suite_is_checked() -> None:
    assert race_checker.wanted()
