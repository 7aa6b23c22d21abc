"""Replicas and pipelines on the Vulkan devices of this machine: the tokens of the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import DEVICE_SETS
from split_models import build, clients, split_model

import vksched as vs

pytestmark = pytest.mark.one_set


@pytest.mark.parametrize("split", ("replicas", "pipeline"))
def test_tokens_are_those_of_the_cpu(split: str, tmp_path: Path) -> None:
    names = DEVICE_SETS.get("all")
    if names is None:
        pytest.skip("it needs two Vulkan devices")
    model, requests = split_model(tmp_path, 2), clients(2, 4)
    found = {}
    for key, devices, way in (("cpu", ["cpu"], "layers"), ("gpu", names[:2], split)):
        with vs.Scheduler(devices, tune=False) as sched:
            engine = build(sched, model, way, slots=2)
            streams = [engine.submit(request) for request in requests]
            found[key] = [[output.token for output in stream] for stream in streams]
            assert engine.counters().finished == {"length": 2}
            engine.close()
    assert found["gpu"] == found["cpu"]
