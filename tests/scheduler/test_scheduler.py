"""The whole way, on every set of devices present: compile, run, submit, memory, faults, overlap."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import wait

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.runtime.vulkan.device_handle import Counters
from vksched.runtime.vulkan.vulkan_device import VulkanDevice


def block(x: vs.Tensor, width: int, rng: np.random.Generator, name: str) -> vs.Tensor:
    """A feed-forward block with a residual and a norm, in a scope of its own."""
    with vs.name_scope(name):
        up = vs.weight(rng.standard_normal((width, 4 * width), dtype=np.float32) / 8, name="up")
        down = vs.weight(rng.standard_normal((4 * width, width), dtype=np.float32) / 8, name="down")
        gamma = vs.weight(np.ones(width, np.float32), name="gamma")
        beta = vs.weight(np.zeros(width, np.float32), name="beta")
        hidden = vs.gelu(vs.matmul(x, up, name="grow"), name="act")
        return vs.layer_norm(vs.matmul(hidden, down, name="shrink") + x, gamma, beta)


def network(rng: np.random.Generator, layers: int = 4) -> vs.Tensor:
    y: vs.Tensor = vs.input("x", (5, 24))
    for i in range(layers):
        y = block(y, 24, rng, f"layer.{i}")
    return vs.softmax(y, axis=-1)


def numpy_result(y: vs.Tensor, x: NDArray) -> NDArray:
    with vs.Scheduler(["cpu"]) as sched:
        return np.asarray(sched.compile(y)(x=x))


def error(got: NDArray, expected: NDArray) -> float:
    """Normalised squared error."""
    return float(((got - expected) ** 2).sum() / max(float((expected**2).sum()), 1e-30))


def test_network_equals_numpy_on_every_set(devices: list[str], rng: np.random.Generator) -> None:
    y, x = network(rng), rng.standard_normal((5, 24), dtype=np.float32)
    with vs.Scheduler(devices) as sched:
        names = [d.name for d in sched.devices]
        placement = {f"layer.{i}.*": names[i % len(names)] for i in range(4)}
        run = sched.compile(y, placement=placement)
        got = run(x=x)
        assert error(got, numpy_result(y, x)) < 1e-10
        again = run(x=x * 2)
        assert error(again, numpy_result(y, x * 2)) < 1e-10
        assert np.array_equal(run(x=x), got)
        used = set(run.stats.device_seconds)  # type: ignore[union-attr]
        assert used == set(names)


def created_by(counters: Counters) -> tuple[int, ...]:
    """What a context has allocated and created."""
    return counters.buffers, counters.buffer_bytes, counters.pipelines, counters.recordings


def test_replay_allocates_nothing_and_creates_no_pipeline(
    devices: list[str], rng: np.random.Generator
) -> None:
    with vs.Scheduler(devices) as sched:
        run = sched.compile(network(rng))
        x = rng.standard_normal((5, 24), dtype=np.float32)
        run(x=x)
        contexts = [d.context for d in sched.devices if isinstance(d, VulkanDevice)]
        before = [created_by(c.counters) for c in contexts]
        submissions = sum(c.counters.submissions for c in contexts)
        fences = sum(c.counters.fence_waits for c in contexts)
        for _ in range(5):
            run(x=x)
        assert [created_by(c.counters) for c in contexts] == before
        on_gpu = sum(run.plan.topology.devices[s.device].kind == "vulkan" for s in run.plan.splits)
        assert sum(c.counters.submissions for c in contexts) - submissions == 5 * on_gpu
        assert run.stats is not None
        assert sum(c.counters.fence_waits for c in contexts) - fences == 5 * run.stats.fence_waits


def test_two_devices_run_at_the_same_time(two_devices: list[str]) -> None:
    recorder = vs.Recorder()
    with vs.Scheduler(two_devices, trace=vs.Trace(sinks=[recorder])) as sched:
        first, second = (d.name for d in sched.devices[:2])
        x = vs.input("x", (384, 384))
        left, right = x, x
        for i in range(4):
            left = vs.matmul(left, x, name=f"left.{i}") * 0.01
            right = vs.matmul(x, right, name=f"right.{i}") * 0.01
        run = sched.compile([left, right], placement={"left.*": first, "right.*": second})
        array = np.eye(384, dtype=np.float32)
        run(x=array)
        recorder.events.clear()
        run(x=array)
        one, two = recorder.select("split")[:2]
        assert {one.device, two.device} == {first, second}
        assert max(one.start_s, two.start_s) < min(one.end_s, two.end_s)
        # by the devices' own clocks: more device time than wall time from first submit to last end
        assert run.stats is not None
        total = sum(s.device_s for s in run.stats.splits)
        assert total > max(one.end_s, two.end_s) - min(one.start_s, two.start_s)


def test_python_thread_makes_progress_while_a_run_waits(two_devices: list[str]) -> None:
    with vs.Scheduler(two_devices[:1]) as sched:
        x = vs.input("x", (512, 512))
        y = x
        for _ in range(6):
            y = vs.matmul(y, x) * 0.001
        run = sched.compile(y)
        array = np.eye(512, dtype=np.float32)
        run(x=array)
        future, count = run.submit(x=array), 0
        while not future.done():
            count += 1
        assert count > 1000, "the interpreter was held during the wait"
        future.result()


def test_submissions_from_many_threads(devices: list[str], rng: np.random.Generator) -> None:
    y = network(rng, layers=2)
    x = rng.standard_normal((5, 24), dtype=np.float32)
    expected = numpy_result(y, x)
    with vs.Scheduler(devices, copies=2) as sched:
        names = [d.name for d in sched.devices]
        run = sched.compile(y, placement={"layer.1.*": names[-2] if len(names) > 1 else "cpu"})
        futures = [run.submit(x=x) for _ in range(6)]
        results: list[NDArray] = []
        threads = [threading.Thread(target=lambda: results.append(run(x=x))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wait(futures, timeout=120).not_done
        for got in [*results, *(f.result() for f in futures)]:
            assert error(np.asarray(got), expected) < 1e-10


def test_weights_are_uploaded_once_for_two_graphs(
    devices: list[str], rng: np.random.Generator
) -> None:
    w = vs.weight(rng.standard_normal((300, 200), dtype=np.float32), name="w")
    x = vs.input("x", (4, 300))
    with vs.Scheduler(devices) as sched:
        first = sched.compile(x @ w)
        stores = [d.weights for d in sched.devices if isinstance(d, VulkanDevice)]
        resident = [s.resident_bytes for s in stores]
        second = sched.compile(vs.relu(x @ w))
        assert [s.resident_bytes for s in stores] == resident
        array = rng.standard_normal((4, 300), dtype=np.float32)
        first.close()
        assert [s.resident_bytes for s in stores] == resident
        assert error(second(x=array), np.maximum(array @ w.data, 0)) < 1e-10  # type: ignore[operator]
        second.close()
        assert all(s.resident_bytes == 0 for s in stores)


def test_large_weights_cross_the_staging_buffer(devices: list[str]) -> None:
    rows = 1_100_003  # 5 columns: over one staging buffer, and no multiple of anything
    table = np.arange(rows * 5, dtype=np.int32).reshape(rows, 5)
    ids = np.array([0, 1, 838860, 838861, rows - 1, -1], np.int32)
    with vs.Scheduler(devices) as sched:
        run = sched.compile(vs.gather(vs.weight(table), vs.input("ids", ids.shape, "int32")))
        assert np.array_equal(run(ids=ids), table[ids])


def test_index_out_of_range_is_an_error_and_the_graph_lives_on(devices: list[str]) -> None:
    table = np.arange(20, dtype=np.float32).reshape(10, 2)
    with vs.Scheduler(devices) as sched:
        lookup = vs.gather(vs.weight(table), vs.input("ids", (3,), "int32"), name="lookup")
        run = sched.compile(lookup + 1.0)
        with pytest.raises(vs.IndexOutOfRange, match="lookup"):
            run(ids=np.array([0, 10, 1], np.int32))
        good = run(ids=np.array([0, 9, -10], np.int32))
        assert np.array_equal(good, table[[0, 9, 0]] + 1)


def test_scalars_empty_tensors_nan_and_inf(devices: list[str]) -> None:
    with vs.Scheduler(devices) as sched:
        x, e = vs.input("x", ()), vs.input("e", (0, 3))
        run = sched.compile(
            {"s": vs.exp(x) * 2.0, "e": vs.concat([e, e], 0), "r": vs.reduce_sum(e)}
        )
        out = run(x=np.float32(1.5), e=np.zeros((0, 3), np.float32))
        np.testing.assert_allclose(out["s"], 2 * np.exp(np.float32(1.5)), rtol=1e-6)
        assert out["e"].shape == (0, 3) and out["r"] == 0.0
        odd = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
        y = vs.input("y", (4,))
        got = sched.compile([vs.maximum(y, 0.0), vs.neg(y), vs.equal(y, y)])(y=odd)
        np.testing.assert_array_equal(got[0], np.maximum(odd, 0))
        np.testing.assert_array_equal(got[1], -odd)
        np.testing.assert_array_equal(got[2], odd == odd)


def test_tensor_over_the_largest_buffer_goes_elsewhere_and_says_why(devices: list[str]) -> None:
    with vs.Scheduler(devices) as sched:
        spec = sched.devices[0].spec
        if spec.kind == "cpu":
            pytest.skip("numpy has no largest buffer")
        words = spec.max_buffer_bytes // 4 + 1
        with pytest.warns(vs.VkschedWarning, match="numpy runs neg .big., .* the largest buffer"):
            run = sched.compile(vs.neg(vs.input("x", (words,), "int32"), name="big"))
        assert "over the largest buffer" in run.plan.explain()


def test_graph_that_fits_no_device_memory_runs_on_the_cpu(devices: list[str]) -> None:
    with vs.Scheduler(devices) as sched:
        assert sched.topology.devices[-1].kind == "cpu"
        w = vs.weight(np.ones((64, 64), np.float32), name="w")
        run = sched.compile(vs.input("x", (2, 64)) @ w, placement={"w": "cpu"})
        run(x=np.ones((2, 64), np.float32))
        assert list(run.stats.device_seconds) == ["cpu"]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["offload", "optimize", "monitor"])
def test_a_switch_is_true_or_false(name: str) -> None:
    for wrong in ("no", 2, [True]):
        with pytest.raises(vs.PlanError, match=f"expected {name} of True or False, got"):
            vs.Scheduler(["cpu"], **{name: wrong})  # type: ignore[arg-type]
    for right in (False, 0, np.False_):
        vs.Scheduler(["cpu"], **{name: right}).close()  # type: ignore[arg-type]


def test_default_devices_and_unknown_names() -> None:
    with pytest.raises(vs.DeviceError, match="vulkan:99"):
        vs.Scheduler(["vulkan:99"])
    with pytest.raises(vs.DeviceError, match="tpu"):
        vs.Scheduler(["tpu"])
    with pytest.raises(vs.DeviceError, match="sequence"):
        vs.Scheduler("cpu")
    with pytest.raises(vs.PlanError, match="copies"):
        vs.Scheduler(["cpu"], copies=0)
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(vs.DeviceError, match="null:9"):
        sched.compile(vs.add(vs.input("x", (1,)), 1.0), placement={"*": "null:9"})


def test_scheduler_may_be_recreated_often(devices: list[str]) -> None:
    x = np.ones((3,), np.float32)
    for _ in range(3):
        with vs.Scheduler(devices) as sched:
            assert np.array_equal(sched.compile(vs.input("x", (3,)) + 1.0)(x=x), x + 1)


def test_a_deep_copy_of_what_refers_to_a_scheduler_shares_it() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        copied = copy.deepcopy({"scheduler": sched, "limit": [3]})
        assert copied["scheduler"] is sched
        run = copied["scheduler"].compile(vs.input("x", (2,)) + 1)
        assert run(x=np.ones(2, np.float32))[0] == 2


def test_outputs_without_a_list_are_reported() -> None:
    a, b = vs.input("a", (2,)), vs.input("b", (2,))
    with vs.Scheduler(["cpu"]) as sched:
        for more in ([b], [b, a]):
            with pytest.raises(vs.GraphError, match=r"try compile\(\[a, b\]\)"):
                sched.compile(a, *more)
