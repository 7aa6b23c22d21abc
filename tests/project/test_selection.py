"""What `make test` runs, and what is left to `make test-all`: tests, ops, devices, shaders."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import op_runs
import pytest
from conftest import COLLECTED, DEVICE_SETS, NUMPY_ONLY, THOROUGH, vulkan_names
from failures import CasesFailed, Failures
from op_runs import (
    choose_cases,
    choose_function_cases,
    choose_runs,
    features_of,
    features_of_case,
    runs_of,
)
from selection import (
    DEVICES,
    Tier,
    _with_each_value,
    quick_items,
    rest_items,
    scales,
    select_cases,
    selected_tier,
    spread,
)
from set_cover import set_cover

import vksched as vs
from vksched.ir.op import computing_ops
from vksched.testing.op_table import CASES, FUNCTIONS
from vksched.topology.limits import Limits

ROOT = Path(__file__).parent.parent.parent


# -- set cover -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_set_cover_has_every_feature_and_no_idle_item(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = [frozenset(rng.integers(0, 30, rng.integers(1, 9)).tolist()) for _ in range(25)]
    chosen = set_cover(features)
    every = frozenset[Hashable]().union(*features)
    assert frozenset[Hashable]().union(*(features[i] for i in chosen)) == every
    assert chosen == sorted(chosen) and len(chosen) < len(features)


def test_a_set_cover_takes_what_covers_most_for_its_cost() -> None:
    features = [{1, 2, 3}, {1, 2}, {3, 4}, {1, 2, 3, 4}]
    taken: list[int] = []
    assert set_cover(features, [9.0, 1.0, 1.0, 5.0].__getitem__, taken.append) == [1, 2] == taken
    assert set_cover(features) == [3]
    assert set_cover([]) == [] == set_cover([set()])


# -- ops -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def limits() -> tuple[Limits, ...]:
    """Those of each Vulkan device."""
    names = vulkan_names()
    if not names:
        pytest.skip("no Vulkan device here")
    with vs.Scheduler(names) as sched:
        return tuple(device.limits for device in sched.devices[: len(names)])


@pytest.mark.scales
@pytest.mark.timeout(1200)
def test_every_op_runs_on_every_device_and_every_feature_on_one(
    limits: tuple[Limits, ...],
) -> None:
    """The features by which runs are chosen are looked up again, in what was chosen. `make test`
    looks at one op in eight.
    """
    shaders: set[str] = set()
    chosen_shaders: set[str] = set()
    count = chosen_count = 0
    for op in computing_ops()[:: 1 if THOROUGH else 8]:
        features: set[Hashable] = set()
        covered: set[Hashable] = set()
        for device, own in enumerate(limits):
            runs = runs_of(op, own)
            chosen = [runs[number] for number in choose_runs(op, limits, device)]
            assert chosen or not runs, op
            dispatched = [any(run.pipelines for run in some) for some in (runs, chosen)]
            assert op in NUMPY_ONLY or dispatched[0] is dispatched[1], op
            features |= {f for run in runs for f in features_of(run, limits)}
            covered |= {f for run in chosen for f in features_of(run, limits)}
            shaders |= {d.shader for run in runs for d in run.lowering.dispatches}
            chosen_shaders |= {d.shader for run in chosen for d in run.lowering.dispatches}
            count, chosen_count = count + len(runs), chosen_count + len(chosen)
        assert covered == features, op
    assert chosen_shaders == shaders or not THOROUGH  # a shader of several ops is covered by one
    assert chosen_count < count / 3


def test_two_equal_devices_have_runs_each(limits: tuple[Limits, ...]) -> None:
    for op in ("sqrt", "matmul", "reshape"):
        runs, pair = runs_of(op, limits[0]), (limits[0], limits[0])
        for device in range(2):
            chosen = [runs[number] for number in choose_runs(op, pair, device)]
            assert any(run.pipelines for run in chosen) is any(run.pipelines for run in runs)
            assert chosen


def test_the_choice_does_not_depend_on_what_was_chosen_before(limits: tuple[Limits, ...]) -> None:
    names = ("abs", "exp", "sqrt", "log", "sin", "cos")
    first = [choose_runs(op, limits, 0) for op in names]
    for op in names:
        assert select_cases(runs_of(op, limits[0]), lambda: choose_runs(op, limits, 0), "")  # noqa: B023
    assert [choose_runs(op, limits, 0) for op in names] == first


def test_features_tell_what_a_mistake_may_depend_on(limits: tuple[Limits, ...]) -> None:
    kinds = {
        f[0]
        for op in ("matmul", "fused_elementwise")
        for r in runs_of(op, limits[0])
        for f in features_of(r, limits)
    }
    wanted = "shader variant epilogue step attribute types ranks size vec4"
    assert kinds >= set(wanted.split()) | {"not finite", "several dispatches"}


def test_a_pipeline_that_is_there_runs_several_cases(limits: tuple[Limits, ...]) -> None:
    runs = runs_of("softmax", limits[0])
    count = Counter(runs[number].pipelines for number in choose_runs("softmax", limits, 0))
    assert max(count.values()) >= op_runs.RUNS_PER_PIPELINE


def test_references_are_compared_by_cases_with_every_feature() -> None:
    for op in computing_ops():
        every = [features_of_case(case) for case in CASES if case.op == op]
        some = [every[number] for number in choose_cases(op)]
        assert set().union(*some) == set().union(*every)


def test_every_function_has_a_case_on_every_device() -> None:
    for function in {case.function for case in FUNCTIONS}:
        cases = [case for case in FUNCTIONS if case.function == function]
        parts = [choose_function_cases(function, device, 2) for device in range(2)]
        assert all(parts), function
        used = {node.op for case in cases for node in case.graph.nodes}
        assert {node.op for part in parts for i in part for node in cases[i].graph.nodes} == used


# -- cases and their failures ----------------------------------------------------------------------


def test_the_two_commands_share_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [case for case in CASES if case.op == "softmax"]
    some, numbers = cases[::3], range(0, len(cases), 3)
    found = {}
    for tier in Tier:
        monkeypatch.setattr("selection.TIER", tier)
        found[tier] = select_cases(cases, lambda: numbers, "")
        assert select_cases(cases, lambda: numbers, cases[1].id)[0] is cases[1]
    assert found[Tier.QUICK] == some and found[Tier.ALL] == cases
    others = [case.id for at, case in enumerate(cases) if at not in numbers]
    assert [case.id for case in found[Tier.REST]] == others[::3]


def test_all_failures_are_reported_with_the_command_that_repeats_one() -> None:
    failures = Failures("tests/ops/test_ops.py::test_op_equals_numpy[vulkan:0-add]")
    for name in ("a", "b c", "d"):
        with failures.of(name):
            assert name == "d", f"{name} is wrong"
    with failures.of("e"), pytest.raises(ValueError):
        pass
    with pytest.raises(CasesFailed) as caught:
        failures.raise_all()
    text = str(caught.value)
    assert text.startswith("3 of 4 cases failed") and "DID NOT RAISE" in text
    assert "a is wrong" in text and "b c is wrong" in text and "test_selection.py:" in text
    assert "--case a\n" in text and "--case 'b c'" in text and "[vulkan:0-add]'" in text
    assert "a is wrong" in str(caught.value.__cause__)


def test_a_case_that_is_not_there_is_no_success() -> None:
    failures = Failures("test", only="softmin")
    assert not failures.wants("softmax") and failures.wants("a softmin")
    with pytest.raises(CasesFailed, match="expected a case whose name contains 'softmin'"):
        failures.raise_all()
    Failures("test").raise_all()


# -- tests -----------------------------------------------------------------------------------------


def test_every_test_runs_in_make_test(request: pytest.FixtureRequest) -> None:
    """Looked up in what pytest collected, whatever was asked for."""
    items = request.config.stash[COLLECTED]
    quick = quick_items(items)
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, group in functions.items():
        if not all(item.get_closest_marker("thorough") for item in group):
            assert any(item in quick for item in group), name
    assert len(quick) <= len(items)


def test_every_combination_of_other_parameters_runs_in_make_test(
    request: pytest.FixtureRequest,
) -> None:
    items = [
        item
        for item in request.config.stash[COLLECTED]
        if not item.get_closest_marker("thorough") and not item.get_closest_marker("each_value")
    ]
    quick = quick_items(items)
    assert {DEVICES.sub("*", i.nodeid, count=1) for i in quick} == {
        DEVICES.sub("*", i.nodeid, count=1) for i in items
    }


def test_every_value_runs_where_combinations_are_left(request: pytest.FixtureRequest) -> None:
    items = [
        item
        for item in request.config.stash[COLLECTED]
        if item.get_closest_marker("each_value") and not item.get_closest_marker("thorough")
    ]
    found: list[set[tuple[str, str, str]]] = []
    for some in (items, quick_items(items)):
        named = ((item.nodeid.partition("[")[0], vars(item)["callspec"].params) for item in some)
        found.append({(name, k, repr(v)) for name, params in named for k, v in params.items()})
    assert found[0] == found[1]
    assert not items or len(quick_items(items)) < len(items)


def test_parameters_may_be_spread() -> None:
    values = spread("abcdefgh", 3)
    assert [v for v in values if isinstance(v, str)] == ["a", "c", "f"] and len(values) == 8
    assert spread("ab", 5) == ["a", "b"]


def test_tests_of_all_files_meet_every_set_of_devices(request: pytest.FixtureRequest) -> None:
    items = request.config.stash[COLLECTED]
    by_set = dict.fromkeys(DEVICE_SETS, 0)
    for item in quick_items(items):
        found = DEVICES.search(item.nodeid)
        if found and found[1] in by_set:
            by_set[found[1]] += 1
    if len(items) > 10_000:  # a whole run
        assert min(by_set.values()) > 40, by_set


class FakeItem:
    """What `quick_items` asks an item."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self.marks = nodeid, marks

    def get_closest_marker(self, name: str) -> bool | None:
        return name in self.marks or None


def test_a_function_runs_on_all_devices_or_on_one_set_in_turn() -> None:
    names = ("cpu", "vulkan:0", "vulkan:1", "vulkan:0 twice", "all")
    met = set()
    for number in range(40):
        items = [FakeItem(f"f.py::test_{number}[{name}]") for name in names]
        chosen = [item.nodeid for item in quick_items(items)]  # type: ignore[arg-type]
        assert len(chosen) == 1
        met |= {re.findall(r"\[(.*)\]", name)[0] for name in chosen}
    assert met == set(names)
    values = [FakeItem(f"f.py::test[{name}-{v}]") for v in range(5) for name in names]
    chosen = sorted(item.nodeid for item in quick_items(values))  # type: ignore[arg-type]
    assert len(chosen) == 5 and {name[-2] for name in chosen} == set("01234")
    assert len({re.findall(r"\[(.*)-", name)[0] for name in chosen}) > 1


def test_the_rest_is_all_but_what_make_test_has_and_what_scales(
    request: pytest.FixtureRequest,
) -> None:
    items = request.config.stash[COLLECTED]
    quick = quick_items(items)
    rest = rest_items(items, quick)
    release = {item for item in items if item.get_closest_marker("release")}
    combined = {item for item in items if item.get_closest_marker("each_value")}
    assert quick | rest | release | combined == {*items}
    assert not release & (quick | rest)
    assert all(item.get_closest_marker("thorough") for item in rest & combined)
    assert all(scales(item) for item in quick & rest)
    assert all(item in rest for item in items if scales(item) and item not in release)
    assert not scales(request.node)


def test_values_are_used_evenly_where_combinations_are_left() -> None:
    items = [FakeCall(wide, seed) for wide in range(3) for seed in range(30)]
    chosen = list(_with_each_value(items))  # type: ignore[arg-type]
    assert len(chosen) == 30
    assert min(Counter(item.callspec.params["wide"] for item in chosen).values()) >= 9  # type: ignore[attr-defined]


class FakeCall:
    """An item of a test with two parameters."""

    def __init__(self, wide: int, seed: int) -> None:
        self.callspec = SimpleNamespace(params={"wide": wide, "seed": seed})


def test_thorough_tests_are_left_and_those_with_cases_are_not() -> None:
    items = [
        FakeItem("f.py::test_a[cpu]", "thorough"),
        *(FakeItem(f"f.py::test_b[{name}]", "scales") for name in ("cpu", "vulkan:0", "all")),
        FakeItem("f.py::test_c"),
    ]
    chosen = quick_items(items)  # type: ignore[arg-type]
    assert {item.nodeid for item in chosen} == {item.nodeid for item in items[1:]}


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKSCHED_TESTS", "some")
    with pytest.raises(pytest.UsageError, match="expected VKSCHED_TESTS to be quick, rest, all"):
        selected_tier()
    monkeypatch.setenv("VKSCHED_TESTS", "")
    assert selected_tier() is Tier.QUICK
