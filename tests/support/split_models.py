"""Null devices and a tiny model for tests of splits over several GPUs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf_models import Tiny, write
from tiny_vocabularies import byte_pair

import vksched as vs
from vksched.generation.batching.batching_engine import BatchingEngine
from vksched.generation.completion import CompletionRequest
from vksched.generation.device_split.choose_split import SplitRequest, choose_split
from vksched.generation.device_split.engine_group import EngineGroup
from vksched.importers.gguf.model import LanguageModel
from vksched.serve.build_engine import build_engine
from vksched.topology.device_spec import DeviceSpec

TINY = Tiny(kind="Q8_0", vocabulary=261, context=256)
LENGTH = 64
GREEDY = vs.Sampling(temperature=0)
COMPUTE = {"flops_per_s": 1e8, "bytes_per_s": 1e12, "submit_s": 0.0}
"""Speeds at which the time of a step is proportional to its rows."""
MEMORY = {"flops_per_s": 1e15, "bytes_per_s": 1e8, "submit_s": 0.0}
"""Speeds at which a step reads the weights for nearly all of its time, whatever its rows."""


def split_model(folder: Path, layers: int) -> LanguageModel:
    """Return a model of some layers."""
    write(replace(TINY, layers=layers), folder / "tiny.gguf", np.random.default_rng(0), byte_pair())
    model = vs.load(folder / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    return model


def cards(
    *speeds: dict[str, float], **fields: Any
) -> tuple[vs.SimulatedClock, list[vs.SimulatedDevice]]:
    """Return null devices with one clock. fields: further fields of all of them."""
    clock = vs.SimulatedClock()
    specs = [DeviceSpec(f"null:{i}", "null", **{**each, **fields}) for i, each in enumerate(speeds)]
    return clock, [vs.SimulatedDevice(spec, clock) for spec in specs]


def clients(count: int, tokens: int, prompt: int = 9) -> list[CompletionRequest]:
    """Return greedy requests with different prompts."""
    rng = np.random.default_rng(3)
    return [
        CompletionRequest(tuple(rng.integers(0, 256, prompt).tolist()), tokens, GREEDY, frozenset())
        for _ in range(count)
    ]


def build(
    sched: vs.Scheduler, model: LanguageModel, split: str, slots: int | None = 8
) -> BatchingEngine | EngineGroup:
    request = SplitRequest(sched, model, LENGTH, slots)
    about = request, choose_split(request, split), None
    return build_engine(*about, max_queue=64, cache_ram=0, observer=lambda *_: None)


def engines_of(engine: BatchingEngine | EngineGroup) -> list[BatchingEngine]:
    return [m.engine for m in engine.members] if isinstance(engine, EngineGroup) else [engine]


def served(
    clock: vs.SimulatedClock,
    engine: BatchingEngine | EngineGroup,
    requests: Sequence[CompletionRequest],
) -> tuple[float, list[list[int]]]:
    """Return the simulated seconds of requests that arrive together, and their answers.

    Each engine's thread has one simulated time for all of its steps, so the result does not depend
    on the order in which the threads of this machine run.
    """
    engines, begin = engines_of(engine), threading.Event()

    def work(core: Any) -> None:
        begin.wait()
        core._steps._clock = clock.now  # measured steps decide which one is next
        with clock.stream().run(-1, 0):
            while core.step():
                pass

    start_s = clock.now()
    with ThreadPoolExecutor(len(engines)) as pool:
        waiting = [pool.submit(e.call, lambda e=e: work(e._core)) for e in engines]  # type: ignore[misc]
        streams = [engine.submit(request) for request in requests]
        begin.set()
        for each in waiting:
            each.result()
    return clock.now() - start_s, [[output.token for output in stream] for stream in streams]
