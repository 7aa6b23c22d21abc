"""What `make test` leaves to `make test-all`."""

from __future__ import annotations

import conftest
import pytest
from conftest import DEVICE_SETS, FEWER_SETS, THOROUGH


@pytest.mark.fewer_sets
def test_runs_on_fewer_sets_of_devices(devices: list[str]) -> None:
    names = [name for name, those in DEVICE_SETS.items() if those is devices]
    assert THOROUGH or names[0] in FEWER_SETS


@pytest.mark.thorough
def test_runs_in_make_test_all_only() -> None:
    assert THOROUGH


def test_what_is_left_out_is_marked(request: pytest.FixtureRequest) -> None:
    collected = [item for item in request.session.items if item.path == request.path]
    names = [item.name for item in collected]
    assert ("test_runs_in_make_test_all_only" in names) == THOROUGH
    sets = [name for name in names if name.startswith("test_runs_on_fewer_sets")]
    assert len(sets) == len(DEVICE_SETS if THOROUGH else FEWER_SETS)
    assert not any(map(conftest.left_to_test_all, collected)) or THOROUGH


def test_fewer_sets_are_numpy_one_device_and_all() -> None:
    sets = [DEVICE_SETS[name] for name in FEWER_SETS]
    assert sets[0] == ["cpu"] and len(sets) == min(3, len(DEVICE_SETS))
    assert len(sets[-1]) == max(map(len, DEVICE_SETS.values()))
    assert len(DEVICE_SETS) < 3 or len(sets[1]) == 1
