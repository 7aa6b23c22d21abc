"""The number of slots is limited by the device with the least memory for them."""

from __future__ import annotations

import pytest

import vksched as vs
from vksched.generation.batching.slots_for_memory import slots_for_memory


def test_the_fullest_device_decides() -> None:
    assert slots_for_memory({"vulkan:0": 100, "cpu": 50}, {"vulkan:0": 599, "cpu": 1000}) == 5


def test_at_most_the_rows_of_a_step() -> None:
    assert slots_for_memory({"cpu": 1}, {"cpu": 1000}) == 8
    assert slots_for_memory({"cpu": 1, "vulkan:0": 0}, {"cpu": 1000}, max_slots=32) == 32


def test_no_memory_for_one_slot() -> None:
    with pytest.raises(vs.OutOfMemory, match="expected 1,000 bytes .* on cpu, got 999; try"):
        slots_for_memory({"cpu": 1000}, {"cpu": 999})
