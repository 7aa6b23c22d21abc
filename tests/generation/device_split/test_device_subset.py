"""A replica sees its own devices, and its graphs stay on them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from split_models import COMPUTE, LENGTH, cards, split_model

import vksched as vs
from vksched.common.errors import StateLost
from vksched.generation.device_split.device_subset import DeviceSubset
from vksched.generation.slot_steps import SlotSteps

X = np.arange(6, dtype=np.float32)


def test_topology_and_devices() -> None:
    with vs.Scheduler(cards(COMPUTE, COMPUTE, COMPUTE)[1], tune=False) as sched:
        subset = DeviceSubset(sched, ["null:1"])
        assert [spec.name for spec in subset.topology.devices] == ["null:1", "cpu"]
        assert [device.name for device in subset.devices] == ["null:1", "cpu"]
        x = vs.input("x", X.shape)
        assert {split.device for split in subset.reserve(x + 1.0).splits} == {1}
        run = subset.compile(x + 1.0)
        assert np.array_equal(run(x=X), X + 1)
        assert run.stats is not None
        assert {split.device for split in run.stats.splits} == {"null:1"}


def test_failed_devices() -> None:
    lossy = vs.FaultInjectionDevice(cards(COMPUTE)[1][0], at=0)
    with warnings.catch_warnings(), vs.Scheduler([lossy], tune=False) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        subset = DeviceSubset(sched, ["null:0"])
        assert subset.is_working
        x = vs.input("x", X.shape)
        sched.compile(x + 1.0)(x=X)
        assert not subset.is_working
        with pytest.raises(StateLost, match="expected a working device of null:0, got failures"):
            subset.topology  # noqa: B018
        subset.use_all()
        assert [spec.name for spec in subset.topology.devices] == ["null:0", "cpu"]
        assert np.array_equal(subset.compile(x + 2.0)(x=X), X + 2)


def test_steps_of_a_replica(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """All layers, their cache and the graphs that move its rows are on the replica's device."""
    model = split_model(tmp_path, 2)
    with vs.Scheduler(cards(COMPUTE, COMPUTE)[1], tune=False) as sched:
        steps = SlotSteps(DeviceSubset(sched, ["null:1"]), model, LENGTH, 2)
        alone = SlotSteps(sched, model, LENGTH, 2, {"*": "null:0"})
        logits = steps.prefill(0, [1, 2, 3], 0)
        np.testing.assert_array_equal(logits, alone.prefill(0, [1, 2, 3], 0))
        assert steps.steps.layers == {"null:1": 2}
        steps.copy_rows(0, 1, 3)
        found = steps.decode([1], [4], [3])
        np.testing.assert_array_equal(found, alone.decode([0], [4], [3]))
        for run in steps.steps.runs.values():
            assert run.stats is None or {s.device for s in run.stats.splits} == {"null:1"}
        steps.close()
        alone.close()
