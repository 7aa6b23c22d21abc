"""StreamingBuffers: weights that do not fit are streamed by plan, through staging buffers that they
take in turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from conftest import vulkan_names
from cut_plans import spread
from graphs import CPU, A, B, assert_memory, device_of, make_topology
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import vksched as vs
from vksched.common.dtypes import NDArray, Progress
from vksched.common.errors import OutOfMemory
from vksched.common.schema import check
from vksched.ir.graph import Graph
from vksched.plan.multi_host.happens_before_hosts import check_parts
from vksched.plan.multi_host.verify_host_plans import verify_host_plan
from vksched.plan.plan import Plan
from vksched.plan.serialize.plan_codec import decode_plan, encode_plan
from vksched.plan.simulation.simulate_plan import simulate
from vksched.plan.types.plan_types import HOST, PlanValue, Split
from vksched.plan.verify.happens_before import check_events, check_plan
from vksched.plan.verify.interleavings import events_of
from vksched.planner.partition.host_partition import cut
from vksched.planner.partition.streaming_windows import StreamingBuffers
from vksched.runtime.device import WrappedPreparedPlan
from vksched.runtime.simulated.device_wrapper import WrappedDevice
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.links import Link, Links
from vksched.topology.topology import Topology
from vksched.trace.format import DevicePlan

MIB = 1 << 20
LAYERS, WIDTH = 24, 512
"""Of a model whose weights take 24 MiB, and a run of it 26 MiB."""


@cache
def model(rows: int = WIDTH) -> Graph:
    h = vs.input("x", (rows, WIDTH))
    for i in range(LAYERS):
        h = vs.tanh(h @ vs.weight(np.zeros((WIDTH, WIDTH), np.float32), name=f"w{i:02}"))
    return vs.build_graph(h)[0]


LINK = Link(12e9, 1e-5)


def topology(
    memory_bytes: int, apart: bool, link: Link = LINK, host_bytes: int = 1 << 34
) -> Topology:
    """A card and a CPU that is a twentieth as fast. apart: the card has memory of its own."""
    card = DeviceSpec(
        A,
        "null",
        flops_per_s=1e12,
        bytes_per_s=2e11,
        memory_bytes=memory_bytes,
        submit_s=2e-5,
        unified_memory=not apart,
    )
    numpy = DeviceSpec(
        CPU, "cpu", flops_per_s=5e10, bytes_per_s=2e10, submit_s=2e-6, memory_bytes=host_bytes
    )
    return Topology((card, numpy), Links(default=link))


def planned(
    graph: Graph, on: Topology, resident: int | None = None, policy: str = "auto", copies: int = 1
) -> Plan:
    """resident: how many weights the user leaves to the card; by default the plan decides."""
    stored = range(LAYERS if resident is None else resident, LAYERS)
    overrides = [(f"w{i:02}", CPU) for i in stored]
    plan = vs.plan_graph(graph, on, policy=policy, overrides=overrides, copies=copies)
    return check_plan(plan.verify())


def refilled(plan: PlanValue) -> list[Split]:
    return [split for split in plan.splits if split.refills]


def on_card(plan: Plan) -> int:
    ops = (node for node in plan.graph.nodes if node.op == "matmul")
    return sum(device_of(plan, node.name) == A for node in ops)


# -- what it takes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mib", [6, 9, 16, 24])
def test_a_card_that_shares_the_computers_memory_streams_what_does_not_fit(mib: int) -> None:
    """About as fast as one with memory of its own: 3.8 to 12 times its time when all else was left
    to the CPU.
    """
    graph = model()
    shared, apart = (planned(graph, topology(mib * MIB, own)) for own in (False, True))
    assert on_card(shared) == on_card(apart) == LAYERS
    assert shared.metrics.latency_s <= 1.1 * apart.metrics.latency_s
    ample = planned(graph, topology(40 * MIB, False)).metrics.latency_s
    assert ample < shared.metrics.latency_s <= (1.5 if mib == 6 else 1.15) * ample
    assert shared.memory[0].peak_bytes <= mib * MIB
    assert refilled(shared) and not refilled(apart)


@pytest.mark.parametrize("mib", [9, 16, 24])
def test_a_placement_by_hand_helps_too(mib: int) -> None:
    """Weights that the user leaves in host memory are streamed in two staging buffers, however
    many.
    """
    graph, on = model(), topology(mib * MIB, False)
    chosen = planned(graph, on).metrics.latency_s
    for resident in (0, mib // 3, mib // 2):
        plan = planned(graph, on, resident)
        assert on_card(plan) == LAYERS and len(refilled(plan)) >= LAYERS - resident
        assert chosen <= plan.metrics.latency_s <= 1.1 * chosen
        streaming_buffers = 4 * sum(plan.memory[0].upload_pages)
        assert streaming_buffers == (2 + 1) * MIB  # and one for the input
        assert plan.memory[0].peak_bytes <= mib * MIB


def test_what_the_host_writes_is_there_before_the_device_needs_it() -> None:
    """While copies take less than the work they cost nothing; beyond that nothing else counts."""
    graph = model()
    fast, slow = (
        planned(graph, topology(9 * MIB, False, Link(rate, 0.0))) for rate in (12e9, 1.5e9)
    )
    work_s = planned(graph, topology(40 * MIB, False, Link(12e9, 0.0))).metrics.latency_s
    copies_s = len(refilled(slow)) * MIB / 1.5e9
    assert copies_s > work_s
    assert slow.metrics.latency_s <= copies_s + 0.3 * work_s
    assert fast.metrics.latency_s <= 1.1 * work_s


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("rows", [1, 8, 64, 512])
@pytest.mark.parametrize("rate", [1e8, 2e9, 1e11])
def test_what_is_streamed_never_makes_a_plan_slower_than_the_cpu(
    rows: int, rate: float, apart: bool
) -> None:
    graph, on = model(rows), topology(6 * MIB, apart, Link(rate, 1e-5))
    plan = vs.plan_graph(graph, on, policy="auto", with_cpu=True)
    cpu = [(f"{node.name}", CPU) for node in graph.ops]
    alone = vs.plan_graph(graph, on, overrides=cpu)
    assert plan.metrics.latency_s <= alone.metrics.latency_s
    none = replace(on.devices[0], offload_flops_per_byte=float("inf"))
    without = vs.plan_graph(graph, replace(on, devices=(none, on.devices[1])), policy="auto")
    assert plan.metrics.latency_s <= without.metrics.latency_s


def test_simulation_decides_where_the_rule_of_thumb_is_wrong() -> None:
    """At 4 flops for each byte nothing is streamed by the rule; a fast link makes it worth it. At
    256 all is, and a slow link makes the CPU better.
    """
    few, fast = model(8), Link(1e11, 1e-6)
    plan = planned(few, topology(9 * MIB, False, fast))
    assert on_card(plan) == LAYERS and refilled(plan)
    assert "streamed, as a run takes less time then, by simulation" in plan.explain()
    assert on_card(planned(few, topology(9 * MIB, False, fast), policy="priority")) < LAYERS
    many, slow = model(512), Link(1e8, 1e-5)
    plan = planned(many, topology(9 * MIB, False, slow))
    assert not refilled(plan)
    assert refilled(planned(many, topology(9 * MIB, False, slow), policy="priority"))


def test_the_plan_says_what_is_streamed_and_why() -> None:
    text = planned(model(), topology(9 * MIB, False)).explain()
    assert "(1.0 MiB) from host memory, written in each run" in text
    assert "9.0 MiB; weights of nodes from number" in text and "stay in host memory" in text
    text = planned(model(), topology(40 * MIB, False), LAYERS - 1).explain()
    assert "in   w23 (1.0 MiB) from host memory\n" in text


def test_where_the_link_is_slower_than_the_work_streamed_weights_are_spread() -> None:
    """The link works all the time, not only when the last layers do."""
    graph = model()
    for mib, most in ((16, 0.87), (24, 0.92)):
        on = topology(mib * MIB, False, Link(2e9, 1e-5))
        plan, last = planned(graph, on), planned(graph, on, policy="priority")
        assert plan.metrics.latency_s <= most * last.metrics.latency_s
        copies = (copy for split in plan.splits for copy in split.uploads)
        names = [graph.nodes[copy.node].name for copy in copies if copy.node in graph.data]
        numbers = [int(name[1:]) for name in names]
        gaps = [b - a for a, b in zip(numbers, numbers[1:], strict=False)]
        assert max(gaps) - min(gaps) <= 1 and numbers[0] <= 1
        notes = " ".join(plan.notes)
        assert f"{len(names)} weights, spread evenly, stay in host memory" in notes
    fast = planned(graph, topology(16 * MIB, False))
    assert "spread" not in " ".join(fast.notes)


def test_where_a_second_set_of_windows_does_not_fit_nothing_is_written_ahead() -> None:
    """Values 2 MiB, their staging buffers 2 MiB, the weight 1 MiB, one or two staging buffers for
    it.
    """
    graph = model()
    for mib, streaming_buffers in ((7, 2), (6, 1)):
        plan = planned(graph, topology(mib * MIB, False), policy="priority")
        assert on_card(plan) == LAYERS
        assert 4 * sum(plan.memory[0].upload_pages) == (streaming_buffers + 1) * MIB, plan.memory[0]
    assert planned(graph, topology(3 * MIB, False)).memory[0].peak_bytes <= 3 * MIB


def test_where_one_set_of_windows_just_fits_values_lie_as_close_as_can_be() -> None:
    """Values 3 MiB and 256 KiB for columns, twice as much for these where they lie apart; staging
    buffers for input, weight and result 3 MiB.
    """
    h = vs.input("x", (512, WIDTH))
    for i in range(4):
        h = h @ vs.weight(np.zeros((WIDTH, WIDTH), np.float32), name=f"w{i:02}")
        wide = vs.tanh(h)
        best = [vs.reduce_max(vs.tanh(vs.exp(h[:, at : at + 64])), 1, True) for at in (0, 64)]
        h = wide @ h + (best[0] + best[1])
    graph = vs.build_graph(h)[0]
    for kib, peak in ((6 * 1024 + 256, 6.25), (8 * 1024, 7.5)):
        plan = planned(graph, topology(kib * 1024, False), policy="priority")
        assert on_card(plan) == 8 and plan.memory[0].peak_bytes == peak * MIB


def test_few_weights_keep_their_windows() -> None:
    plan = planned(model(), topology(40 * MIB, False), LAYERS - 2)
    assert on_card(plan) == LAYERS and not refilled(plan)
    assert 4 * sum(plan.memory[0].upload_pages) == (2 + 1) * MIB
    assert refilled(planned(model(), topology(40 * MIB, False), LAYERS - 3))


def test_windows_in_the_computers_memory_are_reused_where_that_is_full() -> None:
    graph = model()
    ample = planned(graph, topology(9 * MIB, True))
    assert not refilled(ample) and ample.memory[1].peak_bytes > 18 * MIB
    tight = planned(graph, topology(9 * MIB, True, host_bytes=8 * MIB))
    assert on_card(tight) == LAYERS and refilled(tight)
    assert tight.memory[1].peak_bytes <= 8 * MIB and tight.memory[0].peak_bytes <= 9 * MIB
    with pytest.raises(OutOfMemory, match="for the ops that only the CPU can run"):
        planned(graph, topology(9 * MIB, True, host_bytes=MIB))


def test_each_copy_has_windows_of_its_own() -> None:
    one, two = (planned(model(), topology(16 * MIB, False), 0, copies=copies) for copies in (1, 2))
    assert two.copies == 2 and two.memory[0].peak_bytes <= 16 * MIB
    assert len(refilled(one)) == len(refilled(two)) > 2


def test_streams_of_throughput_keep_the_memory() -> None:
    plan = vs.plan_graph(
        model(), topology(16 * MIB, False), policy="auto", objective="throughput", with_cpu=True
    )
    check_plan(plan.verify())
    assert refilled(plan) and plan.memory[0].peak_bytes <= 16 * MIB


# -- order -----------------------------------------------------------------------------------------


def test_splits_take_turns() -> None:
    streaming_buffers = StreamingBuffers(frozenset({0}))
    devices, refills = [0, 1, 0, 0, 0, 0], [True, False, True, False, True, True]
    assert streaming_buffers.had_before(devices, refills) == [HOST, HOST, HOST, HOST, 0, 2]
    assert replace(streaming_buffers, sets=1).had_before(devices, refills) == [
        HOST,
        HOST,
        0,
        HOST,
        2,
        4,
    ]


def test_a_split_waits_for_the_one_that_had_its_windows() -> None:
    plan = planned(model(), topology(9 * MIB, False))
    own = refilled(plan)
    for number, split in enumerate(own):
        assert (own[number - 2].id in split.waits) == (number >= 2)
    assert own[3].waits
    waitless = [replace(s, waits=()) if s == own[3] else s for s in plan.splits]
    broken = replace(plan, splits=tuple(waitless))
    with pytest.raises(
        vs.PlanError, match=f"over a staging buffer that split {own[1].id} may still read"
    ):
        broken.verify()
    found = check_events(broken, events_of(broken))
    assert any(f.kind == "race" and "by the host" in f.message for f in found), found


def test_a_window_that_lasts_is_shared_with_none() -> None:
    plan = planned(model(), topology(9 * MIB, False))
    lasting = [replace(s, refills=False) if s == refilled(plan)[1] else s for s in plan.splits]
    with pytest.raises(vs.PlanError, match="two values share words of the upload buffer"):
        replace(plan, splits=tuple(lasting)).verify()


def test_documents_keep_it() -> None:
    plan = planned(model(), topology(9 * MIB, False))
    document = json.loads(json.dumps(encode_plan(plan)))
    check(document, DevicePlan, "plan")
    assert decode_plan(plan.graph, plan.topology, document).splits == plan.splits


def test_parts_of_several_hosts_wait_for_windows_too() -> None:
    """Two cards with half of the layers each, given to two hosts."""
    one = topology(9 * MIB, False).devices
    two = Topology((one[0], replace(one[0], name=B), one[1]), Links(default=LINK))
    overrides = [(f"w{i:02}", CPU) for i in range(LAYERS)]
    graph = model()
    products = [node.name for node in graph.nodes if node.op == "matmul"]
    overrides += [(name, A if i < 12 else B) for i, name in enumerate(products)]
    plan = vs.plan_graph(graph, two, overrides=overrides)
    assert {split.device for split in refilled(plan)} == {0, 1}
    for hosts in (("node1", "node2"), ("node1", "node1"), ("", "node1")):
        parts = cut(spread(plan, hosts))
        check_parts(spread(plan, hosts), parts, 3, 0)
        for part in parts:
            if part.plan.splits:
                verify_host_plan(part)
                assert refilled(part.plan)
                without = [replace(split, waits=()) for split in part.plan.splits]
                with pytest.raises(vs.PlanError, match="may still read"):
                    replace(part.plan, splits=tuple(without)).verify()


# -- runs ------------------------------------------------------------------------------------------


SMALL = 64
BYTES = 4 * SMALL * SMALL
DEPTH, LITTLE = 9, 8 * BYTES


def matrix(seed: int, columns: int = SMALL) -> NDArray:
    return np.asarray(np.random.default_rng(seed).standard_normal((SMALL, columns)), np.float32) / 8


def layers(count: int, rows: int) -> vs.Tensor:
    h = vs.input("x", (rows, SMALL))
    for i in range(count):
        b = vs.weight(np.full(SMALL, 0.1, np.float32), f"b{i}")
        h = vs.tanh(vs.add(vs.matmul(h, vs.weight(matrix(i), f"w{i}")), b))
    return h


def expected(count: int, x: NDArray) -> NDArray:
    for i in range(count):
        x = np.tanh(x @ matrix(i) + np.float32(0.1))
    return x


class Small(WrappedDevice):
    """A device with as much memory as a test says."""

    def __init__(self, device: str, memory_bytes: int) -> None:
        super().__init__(device)
        self._memory_bytes = memory_bytes

    @property
    def spec(self) -> DeviceSpec:
        return replace(self.device.spec, memory_bytes=self._memory_bytes, unified_memory=True)

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> WrappedPreparedPlan:
        return WrappedPreparedPlan(self.device.prepare(plan, index, progress))


@pytest.fixture(params=vulkan_names() or [None])
def small(request: pytest.FixtureRequest) -> Iterator[Small]:
    if request.param is None:
        pytest.skip("no Vulkan device here")
    yield Small(request.param, LITTLE)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_device_with_little_memory_computes_what_numpy_does(small: Small, copies: int) -> None:
    x = np.asarray(np.random.default_rng(1).standard_normal((48, SMALL)), np.float32)
    with vs.Scheduler([small], copies=copies, policy="priority") as sched:
        run = sched.compile(layers(DEPTH, 48))
        assert len(refilled(run.plan)) > 2
        assert run.plan.memory[0].peak_bytes <= LITTLE
        futures = [run.submit(x=x * k) for k in (1, 2, 3, 4, 5)]
        for k, future in zip((1, 2, 3, 4, 5), futures, strict=True):
            np.testing.assert_allclose(future.result(), expected(DEPTH, x * k), atol=1e-5)


def test_streamed_results_are_those_of_weights_that_fit_to_the_bit(small: Small) -> None:
    x = np.asarray(np.random.default_rng(2).standard_normal((48, SMALL)), np.float32)
    results = []
    for memory_bytes in (LITTLE, 1 << 26):
        device = Small(small.name, memory_bytes)
        with vs.Scheduler([device], policy="priority") as sched:
            run = sched.compile(layers(DEPTH, 48))
            assert bool(refilled(run.plan)) == (memory_bytes == LITTLE)
            results += [run(x=x), run(x=x)]
    assert all(np.array_equal(results[0], each) for each in results[1:])


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_runs_take_what_the_simulation_says(apart: bool, queue: bool) -> None:
    clock = vs.SimulatedClock()
    card, numpy = topology(7 * MIB, apart, host_bytes=5 * MIB if apart else 1 << 34).devices
    card = replace(card, limits=replace(Limits(), copy_queue=queue))
    devices = [
        vs.SimulatedDevice(card, clock, link=Link(4e9, 1e-5)),
        vs.SimulatedDevice(numpy, clock),
    ]
    h = vs.input("x", (WIDTH, WIDTH))
    rng = np.random.default_rng(0)
    wanted = x = np.asarray(rng.standard_normal((WIDTH, WIDTH)), np.float32)
    for i in range(9):
        w = np.asarray(rng.standard_normal((WIDTH, WIDTH)), np.float32) / 32
        h, wanted = vs.tanh(h @ vs.weight(w, name=f"w{i:02}")), np.tanh(wanted @ w)
    with vs.Scheduler(devices, trace=vs.Trace(clock)) as sched:
        run = sched.compile(h)
        assert len(refilled(run.plan)) > 2 and on_card(run.plan) == 9
        for _ in range(2):
            start = clock.now()
            np.testing.assert_allclose(run(x=x), wanted, atol=1e-4)
            assert clock.now() - start == pytest.approx(simulate(run.plan).seconds)


# -- any graph -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=examples(60))
@given(
    st.integers(0, 1 << 20),
    st.integers(3, 24),
    st.lists(st.sampled_from([16, 48, 64, 96]), min_size=2, max_size=4),
    st.floats(0.05, 0.9),
    st.sampled_from(["auto", "priority"]),
    st.booleans(),
    st.integers(1, 3),
)
def test_any_graph_keeps_the_memory_and_its_order(
    seed: int,
    count: int,
    widths: list[int],
    share: float,
    policy: str,
    apart: bool,
    copies: int,
) -> None:
    """Products with weights of several sizes, some of them read twice, over two cards."""
    rng = np.random.default_rng(seed)
    pool = [vs.input("x", (32, widths[0]))]
    weights: dict[tuple[int, int], list[vs.Tensor]] = {}
    for i in range(count):
        value = pool[int(rng.integers(max(0, len(pool) - 3), len(pool)))]
        shape = value.shape[1], int(rng.choice(widths))
        own = weights.setdefault(shape, [])
        if not own or rng.random() < 0.8:
            own.append(vs.weight(np.ones(shape, np.float32), f"w{i}"))
        pool.append(vs.tanh(vs.matmul(value, own[int(rng.integers(len(own)))])))
    used = {operand for tensor in pool for operand in tensor.inputs}
    graph, _ = vs.build_graph([t for t in pool[1:] if t not in used])
    memory = int(share * 4 * sum(graph.words))
    cards = make_topology(
        2,
        [memory, int(memory * rng.uniform(0.2, 1.0))],
        unified_memory=not apart,
        offload_flops_per_byte=1.0,
        submit_s=1e-6,
        flops_per_s=1e12,
    )
    host_bytes = int(4 * sum(graph.words)) if rng.random() < 0.3 else 1 << 34
    numpy = replace(cards.devices[-1], memory_bytes=host_bytes, flops_per_s=1e9)
    cards = replace(cards, devices=(*cards.devices[:-1], numpy))
    plan = vs.plan_graph(graph, cards, policy=policy, copies=copies, with_cpu=True)
    check_plan(plan.verify())
    assert_memory(plan)
    for memory_of, spec in zip(plan.memory, cards.devices, strict=True):
        assert memory_of.peak_bytes <= spec.memory_bytes
