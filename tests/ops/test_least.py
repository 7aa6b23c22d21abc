"""A device with the least that Vulkan 1.1 guarantees, through the whole flow.

Emulated by the limits that the runtime sees of a real one: 128 invocations, 16 KiB shared, 4
storage buffers, 128 MiB a buffer. What does not fit such a device runs on numpy, and the plan says
why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
from vksched.plan.costs.node_cost import unsupported_reason
from vksched.runtime.vulkan import device_probe
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.kernel_runner import check_function
from vksched.testing.op_cases.op_sample import FunctionSample
from vksched.testing.op_table import FUNCTIONS
from vksched.topology.limits import Limits

ONE_OF_EACH = list({case.function: case for case in FUNCTIONS}.values())


@pytest.fixture(params=vulkan_names() or [None], scope="module")
def least(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    """Each Vulkan device in turn, with its limits lowered."""
    if request.param is None:
        pytest.skip("no Vulkan device here")
    info, least = device_probe.resolve(request.param), Limits()
    spec = dataclasses.replace(
        device_probe.device_spec(info), limits=least, max_buffer_bytes=least.max_buffer_bytes
    )
    with vs.Scheduler([VulkanDevice(spec, info.index)]) as sched:
        yield sched


@pytest.mark.filterwarnings(r"ignore:.*binds \d+ buffers, the device allows 4")
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda c: c.id)
def test_functions_run_on_the_least_device(case: FunctionSample, least: vs.Scheduler) -> None:
    dtypes = [str(x.dtype) for x in case.inputs]
    inputs = [
        vs.input(f"x{i}", x.shape, d)
        for i, (x, d) in enumerate(zip(case.inputs, dtypes, strict=True))
    ]
    built = case.build(*inputs)
    outputs = [built] if isinstance(built, vs.Tensor) else list(built)
    run = least.compile(outputs)
    used = {n.name for n in run.plan.graph.inputs}
    feeds = {f"x{i}": x for i, x in enumerate(case.inputs) if f"x{i}" in used}
    got = run(**feeds)
    graph, spec = run.plan.graph, run.plan.topology.devices[0]
    for node in graph.ops:
        if run.plan.placements[node.id].device and node.id not in graph.views:
            alone = (
                unsupported_reason(spec, graph, node) is None
            )  # it may stay beside one that cannot leave
            neighbours = {graph.view_base(i) for i in node.inputs}
            neighbours |= {n.id for n in graph.ops if node.id in map(graph.view_base, n.inputs)}
            by_numpy = any(run.plan.placements[i].device for i in neighbours)
            assert not alone or by_numpy, run.plan.explain()
    run.close()
    check_function(case, tuple(map(np.asarray, got)), case.expected(), "the least device")


def test_limits_are_those_of_the_specification(least: vs.Scheduler) -> None:
    run = least.compile(vs.input("x", 3) + 1.0)
    limits = run.plan.topology.devices[0].limits
    assert limits == Limits()
    assert (limits.max_invocations, limits.shared_bytes, limits.push_bytes) == (128, 16384, 128)
    assert (limits.storage_buffers, limits.max_buffer_bytes) == (4, 1 << 27)
    assert limits.max_groups == (65535, 65535, 65535)
    run.close()
