"""Stages: stretches of node groups over devices, compared with a search of all cuts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

import pytest

from vksched.planner.search.pipeline_stages import find_stages


def largest(loads: Sequence[Mapping[str, float]], devices: Sequence[str]) -> float:
    """The load of the fullest device; infinity where one cannot run its part."""
    held: dict[str, float] = {}
    for load, device in zip(loads, devices, strict=True):
        held[device] = held.get(device, 0.0) + load.get(device, float("inf"))
    return max(held.values())


def best_by_search(loads: Sequence[Mapping[str, float]], names: Sequence[str]) -> float:
    """The least over all orders of devices and all cuts."""
    least = float("inf")
    for order in itertools.permutations(names):
        for cuts in itertools.combinations_with_replacement(range(len(loads) + 1), len(order) - 1):
            ends = [0, *cuts, len(loads)]
            devices = [
                order[stage]
                for stage, (a, b) in enumerate(itertools.pairwise(ends))
                for _ in range(a, b)
            ]
            least = min(least, largest(loads, devices))
    return least


def test_equal_devices_take_equal_stretches() -> None:
    loads = [{"a": 1.0, "b": 1.0}] * 6
    found = find_stages(loads, ["a", "b"])
    assert found is not None and sorted(found) == list("aaabbb")
    assert found in (list("aaabbb"), list("bbbaaa"))


def test_a_device_that_cannot_run_a_bundle_stands_elsewhere() -> None:
    # only b runs the first one, and takes five times as long for the rest
    loads = [{"b": 1.0}, *[{"a": 1.0, "b": 5.0}] * 3]
    assert find_stages(loads, ["a", "b"]) == ["b", "a", "a", "a"]
    assert find_stages([{"a": 1.0}, {"b": 1.0}, {"a": 1.0}], ["a", "b"]) is None


@pytest.mark.parametrize("seed", range(60))
def test_no_cut_is_better(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"d{i}" for i in range(rng.randint(2, 4))]
    loads = []
    for _ in range(rng.randint(1, 7)):
        candidate_devices = [name for name in names if rng.random() < 0.8] or [rng.choice(names)]
        loads.append(
            {name: rng.choice([0.0, 0.5, 1.0, rng.uniform(0, 4)]) for name in candidate_devices}
        )
    best = best_by_search(loads, names)
    found = find_stages(loads, names)
    if found is None:
        assert best == float("inf")
        return
    assert largest(loads, found) == pytest.approx(best, rel=1e-6, abs=1e-9)
    # each device has one stretch
    assert len([1 for _ in itertools.groupby(found)]) == len(set(found))


def test_many_devices_of_a_kind_take_a_stretch_each() -> None:
    devices = [f"d{i}" for i in range(40)]
    loads = [dict.fromkeys(devices, 1.0) for _ in range(120)]
    found = find_stages(loads, devices)
    assert found is not None
    assert [found.count(device) for device in devices] == [3] * 40
    assert [d for d, _ in itertools.groupby(found)] == devices  # neighbours follow each other


def test_kinds_of_devices_take_what_they_are_worth() -> None:
    fast, slow = [f"f{i}" for i in range(6)], [f"s{i}" for i in range(6)]
    loads = [{**dict.fromkeys(fast, 1.0), **dict.fromkeys(slow, 2.0)} for _ in range(90)]
    found = find_stages(loads, [*slow, *fast])
    assert found is not None
    assert {found.count(d) for d in fast} == {10} and {found.count(d) for d in slow} == {5}
