"""Large inputs that a device copies from where the caller has them: right, counted, given back, and
the usual way for all that cannot be imported.
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
from vksched.common.dtypes import NDArray, TensorType
from vksched.plan.types.plan_types import UPLOAD
from vksched.runtime.vulkan import binding
from vksched.runtime.vulkan import context as contexts
from vksched.runtime.vulkan.context import Context, Recording
from vksched.runtime.vulkan.host_memory_import import MIN_BYTES, import_array
from vksched.runtime.vulkan.vulkan_device import VulkanPreparedPlan

ROWS, COLUMNS = 512, 768
"""1.5 MiB of float32."""


@pytest.fixture(params=vulkan_names() or [None])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param is None:
        pytest.skip("no Vulkan device here")
    monkeypatch.setenv("VKSCHED_COPY_QUEUE", "same")
    name: str = request.param
    return name


def aligned(rng: np.random.Generator, shape: tuple[int, ...], shift: int = 0) -> NDArray:
    """Values that begin so many bytes behind the start of a page."""
    count = int(np.prod(shape))
    raw = np.empty(4 * count + 2 * mmap.PAGESIZE, np.uint8)
    begin = -raw.__array_interface__["data"][0] % mmap.PAGESIZE + shift
    array = raw[begin : begin + 4 * count].view(np.float32).reshape(shape)
    array[...] = rng.standard_normal(shape, dtype=np.float32)
    return array


def scaled(gpu: str) -> tuple[vs.Tensor, dict[str, str]]:
    x, y = vs.input("x", (ROWS, COLUMNS)), vs.input("y", (ROWS, COLUMNS))
    return vs.add(vs.mul(x, 2.0), y, name="sum"), {"*": gpu}


class Counted:
    """How many inputs were imported, and whether their pages are held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.imported: list[bool] = []
        self.prepared_plans: list[VulkanPreparedPlan] = []
        imported, init = Context.imported, VulkanPreparedPlan.__init__

        def counting(context: Context, address: int, size_bytes: int) -> Any:
            found = imported(context, address, size_bytes)
            self.imported.append(found is not None)
            return found

        def keeping(prepared: VulkanPreparedPlan, *args: Any) -> None:
            init(prepared, *args)
            self.prepared_plans.append(prepared)

        monkeypatch.setattr(Context, "imported", counting)
        monkeypatch.setattr(VulkanPreparedPlan, "__init__", keeping)

    def held(self) -> int:
        slots = [slot for prepared in self.prepared_plans for slot in prepared._slots]
        return sum(len(slot.imported) for slot in slots)


def needs_import(gpu: str) -> None:
    described = contexts.describe_devices()[int(gpu.split(":")[1])]
    if not described["import_alignment"] or described["import_alignment"] > mmap.PAGESIZE:
        pytest.skip("the driver imports no host memory")


@pytest.mark.parametrize("shift", [0, 16, 2052])
def test_large_inputs_are_copied_from_where_they_are(
    gpu: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    needs_import(gpu)
    counted = Counted(monkeypatch)
    with vs.Scheduler([gpu], copies=2, optimize=False) as sched:
        run = sched.compile(*scaled(gpu))
        assert all(UPLOAD in split.async_transfers for split in run.plan.splits if split.uploads)
        for _ in range(3):
            feeds = [
                {name: aligned(rng, (ROWS, COLUMNS), shift) for name in "xy"} for _ in range(3)
            ]
            for values, future in [(feed, run.submit(**feed)) for feed in feeds]:
                np.testing.assert_allclose(
                    future.result(), values["x"] * 2 + values["y"], rtol=1e-6, atol=1e-6
                )
        assert len(counted.imported) == 18 and all(counted.imported)
        assert counted.held() == 0, "pages are given back when the run is done"


def test_what_a_driver_refuses_goes_the_usual_way(
    gpu: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse(self: Context, address: int, size_bytes: int) -> None:
        asked.append(size_bytes)

    monkeypatch.setattr(Context, "imported", refuse)
    x = aligned(rng, (ROWS, COLUMNS))
    with vs.Scheduler([gpu], optimize=False) as sched:
        run = sched.compile(*scaled(gpu))
        for y in (x, np.asfortranarray(x), x[::-1], np.broadcast_to(x[0], x.shape)):
            np.testing.assert_allclose(run(x=x, y=y), x * 2 + y, rtol=1e-6, atol=1e-6)
    has_import = contexts.describe_devices()[int(gpu.split(":")[1])]["import_alignment"]
    assert bool(asked) == bool(has_import)


def test_pages_around_an_array_are_taken_where_they_are_the_systems(
    gpu: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_import(gpu)
    type_ = TensorType((ROWS, COLUMNS), "float32")
    context = Context(int(gpu.split(":")[1]), gpu)
    try:
        array = aligned(rng, type_.shape, 64)
        alignment = context.import_alignment
        found = import_array(context, alignment, type_, array)
        assert found is not None and found.offset == 64 and context.counters.imports == 1
        del found
        transposed = np.asfortranarray(array)
        assert import_array(context, alignment, type_, transposed) is None
        assert import_array(context, alignment, type_, array.view(np.int32)) is None
        assert import_array(context, 0, type_, array) is None
        assert import_array(context, 16 * mmap.PAGESIZE, type_, array) is None
        context.max_buffer_bytes = array.nbytes  # the pages around it are beyond
        assert import_array(context, alignment, type_, array) is None
        small = TensorType((MIN_BYTES // 4 - 1,), "float32")
        assert import_array(context, alignment, small, aligned(rng, small.shape)) is None
    finally:
        context.close()


def test_a_wait_for_an_earlier_split_leaves_the_pages_of_a_later_one(
    gpu: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_import(gpu)
    counted = Counted(monkeypatch)
    x, y = vs.input("x", (ROWS, COLUMNS)), vs.input("y", (ROWS, COLUMNS))
    doubled = vs.mul(x, 2.0, name="doubled")
    shown: list[NDArray] = []
    with vs.Scheduler([gpu], optimize=False) as sched:
        total = vs.add(doubled, y, name="sum")
        run = sched.compile(
            total, {"*": gpu}, observe={doubled: lambda _, value: shown.append(value)}
        )
        first, second = run.plan.splits
        assert UPLOAD in second.async_transfers and first.id in second.waits
        for _ in range(3):  # from the second run on a split has an earlier submission, too
            feeds = {name: aligned(rng, (ROWS, COLUMNS)) for name in "xy"}
            expected = feeds["x"] * 2 + feeds["y"]
            np.testing.assert_allclose(run(**feeds), expected, rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(shown.pop(), feeds["x"] * 2)
        assert len(counted.imported) == 6 and counted.held() == 0


def test_a_run_that_fails_before_it_is_submitted_gives_its_pages_back(
    gpu: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_import(gpu)
    counted = Counted(monkeypatch)
    submit, fails = VulkanPreparedPlan.submit, [True]

    def failing(prepared: VulkanPreparedPlan, slot: int, split: int, sequence_number: int) -> None:
        if fails:
            fails.clear()
            raise ValueError("planted")
        submit(prepared, slot, split, sequence_number)

    monkeypatch.setattr(VulkanPreparedPlan, "submit", failing)
    feeds = {name: aligned(rng, (ROWS, COLUMNS)) for name in "xy"}
    with vs.Scheduler([gpu], optimize=False) as sched:
        run = sched.compile(*scaled(gpu))
        with pytest.raises(ValueError, match="planted"):
            run(**feeds)
        expected = feeds["x"] * 2 + feeds["y"]
        np.testing.assert_allclose(run(**feeds), expected, rtol=1e-6, atol=1e-6)
        assert len(counted.imported) == 4 and counted.held() == 0


@pytest.mark.parametrize("hangs", [False, True])
def test_what_a_submission_may_still_read_lives_until_the_device_has_ended(
    gpu: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    needs_import(gpu)
    context = Context(int(gpu.split(":")[1]), gpu)
    type_ = TensorType((ROWS, COLUMNS), "float32")
    pages = import_array(context, context.import_alignment, type_, aligned(rng, type_.shape))
    assert pages is not None
    memory = weakref.ref(pages.native)
    recording, manager = context.recording(), context._device.manager
    context.keep([pages])
    del pages
    leaked: list[object] = []
    with monkeypatch.context() as patch:
        patch.setattr(binding.companion, "leak", leaked.append)
        if hangs:
            patch.setattr(Recording, "_end", lambda self, limit_s: False)
            with pytest.warns(vs.VkschedWarning, match="their memory is not freed"):
                context.close()
            assert memory() is not None and context._device.retained in leaked
        else:
            context.close()
            assert memory() is None, "it goes before the device"
            assert not leaked
    if hangs:  # it was made up: all ends as ever
        recording._end(1.0)
        context._device.retained.clear()
        leaked.clear()
        manager.destroy()
