"""Barriers and memory of whole models: one barrier per dependent level, little over what must live
at once; and the places of values, drawn by hypothesis.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from graphs import (
    NAMED,
    A,
    B,
    Built,
    Named,
    assert_memory,
    live_words,
    make_plan,
    make_topology,
    mlp,
    node_id,
    random_outputs,
    random_plan,
    source,
    transformer,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import vksched as vs
from vksched.plan.plan import Plan
from vksched.plan.types import offsets
from vksched.plan.types.offsets import ALIGN_WORDS, Lifetime, assign_spans, largest_live_set
from vksched.plan.types.plan_types import Span, Split, scratch_of

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
RANDOM = settings(deadline=None, max_examples=examples(60))


def minilm(half: int | None = None) -> Built:
    """The encoder of the semantic search example; from layer `half` on its weights are on B."""
    spec = importlib.util.spec_from_file_location("minilm", EXAMPLES / "minilm.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules.setdefault("minilm", importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    try:
        model = module.load_minilm()
    except vs.ModelFormatError as error:
        pytest.skip(f"no model: {error}")
    count = model.layers if half is not None else 0
    spread = {f"layer.{i}.*": B for i in range(half or 0, count)}
    return [model.build_encoder(1, 16)], spread


MODELS = {
    "mlp": lambda: mlp(12, half=12),
    "mlp on two": lambda: mlp(12, half=6),
    "transformer": transformer,
    "transformer on two": lambda: transformer(half=6),
    "transformer, attention as one op": lambda: transformer(fused=True),
    "transformer, attention as one op, on two": lambda: transformer(fused=True, half=6),
    "minilm": minilm,
    "minilm on two": lambda: minilm(half=3),
}


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest) -> Iterator[Plan]:
    """The plan of each example model."""
    plan = make_plan(*MODELS[request.param]())
    on_two = "two" in request.param
    assert {s.device for s in plan.splits} == ({0, 1} if on_two else {0})
    yield plan


def levels(plan: Plan, split: Split) -> int:
    """The longest chain of items in a split of which each reads what the one before made."""
    graph = plan.graph
    depth = {copy.node: 0 for copy in split.uploads}

    def above(value: int) -> int:
        return 1 + depth.get(value, depth.get(graph.view_base(value), -1))

    for node in split.nodes:
        depth[node] = max((above(i) for i in graph.nodes[node].inputs), default=0)
    return max([*depth.values(), *(above(copy.node) for copy in split.downloads)])


def test_models_have_one_barrier_per_dependent_level(model: Plan) -> None:
    for split in model.splits:
        assert len(split.barriers) == split.depth == levels(model, split)
    assert model.barriers == model.depth == sum(len(s.barriers) for s in model.splits)


def test_models_take_little_more_than_their_largest_live_set(model: Plan) -> None:
    for device, held in enumerate(model.memory[:-1]):
        assert sum(held.activation_pages) <= 1.15 * live_words(model, device)


@RANDOM
@given(st.integers(0, 1 << 32), st.integers(1, 60), st.integers(1, 3))
def test_no_plan_has_fewer_barriers_than_levels(seed: int, count: int, devices: int) -> None:
    plan = random_plan(seed, count, devices)
    for split in plan.splits:
        on_host = plan.topology.devices[split.device].kind == "cpu"
        assert split.depth == levels(plan, split)
        assert on_host or len(split.barriers) >= split.depth
    for device, held in enumerate(plan.memory[:-1]):
        live = live_words(plan, device)  # of a few values one more may be a fifth
        assert sum(held.activation_pages) <= max(1.15 * live, live + 512)


@pytest.mark.parametrize("shape", NAMED.values(), ids=list(NAMED))
def test_named_shapes_have_one_barrier_per_dependent_level(shape: Named) -> None:
    plan = make_plan(*shape.build())
    for split in plan.splits:
        on_host = plan.topology.devices[split.device].kind == "cpu"
        assert len(split.barriers) == (0 if on_host else split.depth)


def wide(count: int = 16) -> list[vs.Tensor]:
    """Branches beside each other, each of two nodes with a large value between."""
    x = vs.input("x", 64)
    ends = [vs.reduce_sum(vs.mul(vs.expand(x, (64, 64)), float(i))) for i in range(count)]
    return [vs.stack(ends)]


def test_memory_is_not_released_for_fewer_barriers() -> None:
    """All branches at once would take as many large values as there are branches."""
    plan = make_plan(wide())
    held = sum(plan.memory[0].activation_pages)
    assert held <= 1.15 * live_words(plan, 0)
    assert plan.barriers > plan.depth


def test_a_small_device_takes_barriers_rather_than_spill() -> None:
    outputs, _ = transformer(2)
    roomy = make_plan(outputs, topology=make_topology(1))
    least = roomy.memory[0].peak_bytes - 4 * sum(roomy.memory[0].activation_pages)
    least += 4 * live_words(roomy, 0)
    plan = make_plan(outputs, topology=make_topology(1, [least]))
    assert {s.device for s in plan.splits} == {0}
    assert plan.memory[0].peak_bytes <= least


def test_what_reads_weights_alone_is_built_when_it_is_needed() -> None:
    """Else what all layers make of their weights would live from the start."""
    h = vs.input("x", (8, 32))
    for i in range(12):
        weight = vs.weight(np.ones((32, 32), np.float32), name=f"w{i}")
        h = vs.matmul(h, vs.exp(weight, name=f"exp{i}"))
    plan = make_plan(h)
    assert sum(plan.memory[0].activation_pages) <= 3 * 32 * 32
    assert plan.depth <= plan.barriers <= 2 * plan.depth


# -- places, drawn -----------------------------------------------------------------------------

drawn = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 30), st.integers(0, 12)), max_size=40
).map(lambda found: [Lifetime(i, w, f, f + n) for i, (w, f, n) in enumerate(found)])


@settings(deadline=None, max_examples=examples(300))
@given(drawn, st.sampled_from([208, 320, 1024, 1 << 20]), st.booleans(), st.booleans())
def test_values_that_live_together_never_overlap(
    lives: list[Lifetime], page_words: int, disable_aliasing: bool, many: bool
) -> None:
    """many: as if there were too many values to search for better places."""
    with pytest.MonkeyPatch.context() as patch:
        if many:
            patch.setattr(offsets, "MAX_PAIRS", -1)
            patch.setattr(offsets, "MAX_PAIRS_EACH", 0)
        spans, pages = assign_spans(lives, page_words, disable_aliasing)
    assert spans.keys() == {life.value for life in lives}
    assert all(0 < size <= page_words for size in pages)
    assert sum(pages) >= largest_live_set(lives)
    for i, one in enumerate(lives):
        a = spans[one.value]
        assert a.words == one.words and a.offset >= 0 and a.offset % ALIGN_WORDS == 0
        assert a.offset + max(a.words, 1) <= pages[a.page]
        for two in lives[:i]:
            b = spans[two.value]
            ends = a.offset + max(a.words, 1), b.offset + max(b.words, 1)
            apart = a.page != b.page or a.offset >= ends[1] or b.offset >= ends[0]
            together = one.first <= two.last and two.first <= one.last
            assert apart or not together
            assert not (disable_aliasing and together and a.page == b.page)


def test_a_value_larger_than_a_page_has_no_place() -> None:
    with pytest.raises(vs.PlanError, match="a value of 512 bytes exceeds the page size"):
        assign_spans([Lifetime(0, 128, 0, 1)], 64)


@RANDOM
@given(st.integers(0, 1 << 32), st.integers(1, 40), st.integers(1, 3), st.booleans())
def test_scratch_memory_and_own_buffers_never_overlap(
    seed: int, count: int, devices: int, disable_aliasing: bool
) -> None:
    """float16 is computed in scratch memory."""
    rng = np.random.default_rng(seed)
    graph, _ = vs.build_graph(random_outputs(rng, count, dtype="float16"))
    topology = make_topology(devices, disable_aliasing=disable_aliasing)
    pins = [
        (n.id, f"null:{int(rng.integers(0, devices))}") for n in graph.ops if rng.random() < 0.3
    ]
    plan = vs.plan_graph(graph, topology, overrides=pins)
    assert_memory(plan)
    for device, held in enumerate(plan.memory[:-1]):
        here = [s for s in plan.splits if s.device == device]
        assert_staging([c.staging for s in here for c in s.uploads], held.upload_pages)
        assert_staging([c.staging for s in here for c in s.downloads], held.download_pages)


def assert_staging(spans: list[Span], pages: tuple[int, ...]) -> None:
    """No two values share a word of a staging buffer."""
    ordered = sorted((s.page, s.offset, s.offset + s.words) for s in spans)
    assert all(end <= pages[page] for page, _, end in ordered)
    for one, two in zip(ordered, ordered[1:], strict=False):
        assert one[0] < two[0] or one[2] <= two[1]


def test_nodes_of_one_level_have_scratch_memory_apart() -> None:
    x, large = vs.input("x", (8, 32), "float16"), vs.input("large", (128, 128))
    plan = make_plan([vs.exp(x, name="a"), vs.tanh(x, name="b"), vs.exp(large, name="c")])
    one, two = (plan.locations[0, scratch_of(node_id(plan, name))] for name in "ab")
    assert one.words == two.words == 2 * 8 * 32 and one != two
    assert len(plan.splits[0].barriers) == plan.splits[0].depth == 2
    assert plan.splits[0].inner_barriers > 0
    assert make_plan({"y": vs.exp(source())}, {"*": A}).inner_barriers == 0


def test_rows_that_are_written_in_place_wait_for_no_copy() -> None:
    stored = vs.state(np.zeros((64, 32), np.float32), "kept", backup=False)
    rows = [vs.input(f"rows{i}", (1, 32)) for i in range(2)]
    graph, _ = vs.build_graph(
        source(), {stored: vs.dynamic_update_slice(stored, rows[0], 3, axis=0)}
    )
    plan = vs.plan_graph(graph, make_topology(1), overrides=[("*", A)])
    assert len(plan.in_place) == 1 and plan.inner_barriers == 0
    changed = vs.dynamic_update_slice(
        stored, rows[1], 5, axis=0
    )  # elsewhere, as the state stays as it is
    graph, _ = vs.build_graph(
        changed, {stored: vs.dynamic_update_slice(stored, rows[0], 3, axis=0)}
    )
    assert vs.plan_graph(graph, make_topology(1), overrides=[("*", A)]).inner_barriers == 1


def test_the_collector_rests_for_large_plans_only_and_comes_back() -> None:
    import gc

    from vksched.common.gc_pause import LARGE, resting_collector

    assert gc.isenabled()
    with resting_collector(LARGE - 1):
        assert gc.isenabled()
    with resting_collector(LARGE), resting_collector(LARGE):
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), resting_collector(LARGE):
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.disable()
    try:
        with resting_collector(LARGE):
            pass
        assert not gc.isenabled(), "it was off before"
    finally:
        gc.enable()
