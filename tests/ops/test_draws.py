"""Calls drawn by hypothesis, for every op: every Vulkan device equals the numpy reference.

VKSCHED_DRAWS sets how many calls per op. `make test-all` draws more than `make test`, where each
call runs on one device.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest
from conftest import NUMPY_ONLY, THOROUGH, vulkan_names
from fuzz import DRAWS
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from selection import by_tier

import vksched as vs
from vksched.common.errors import UnsupportedOp
from vksched.ir.op import computing_ops
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.kernel_runner import Runner, check_device
from vksched.testing.op_cases.op_sample import OpSample

COUNT = int(os.environ.get("VKSCHED_DRAWS", by_tier(5, 20, 60)))
SETTINGS = settings(
    max_examples=COUNT,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def runners() -> Iterator[list[Runner]]:
    """One for each Vulkan device."""
    names = vulkan_names()
    if not names:
        pytest.skip("no Vulkan device here")
    with vs.Scheduler(names) as sched:
        yield [Runner(d) for d in sched.devices if isinstance(d, VulkanDevice)]


@pytest.mark.scales
@pytest.mark.timeout(600)
@pytest.mark.parametrize("op", sorted(DRAWS)[:: 1 if THOROUGH else 3])
def test_drawn_calls_equal_numpy(op: str, runners: list[Runner]) -> None:
    ran: Counter[str] = Counter()
    turns = count()

    @SETTINGS
    @given(st.data())
    def run(data: st.DataObject) -> None:
        case = DRAWS[op](data.draw)
        expected = case.expected()
        turn = next(turns) % len(runners)
        for runner in runners if THOROUGH else runners[turn : turn + 1]:
            try:
                got = runner.run(case, runner.device.limits)
            except UnsupportedOp:
                continue
            check_device(case, got, expected, runner.device.name)
            ran[runner.device.name] += 1

    run()
    if op not in NUMPY_ONLY:
        assert all(ran[runner.device.name] for runner in runners), "no call ran on a device"


@pytest.mark.parametrize("kind", ["has_positions", "chunk", "float32_sums", "pending rows"])
def test_draws_of_cached_attention_have_all_operands(kind: str) -> None:
    def has(case: OpSample) -> bool:
        return len(case.inputs) > 6 if kind == "pending rows" else bool(case.attrs.get(kind))

    op = "attention_with_kvcache"
    find(
        st.composite(lambda draw: DRAWS[op](draw))(),
        has,
        settings=settings(SETTINGS, max_examples=200),
    )


def test_every_op_has_draws() -> None:
    assert set(DRAWS) == set(computing_ops())
