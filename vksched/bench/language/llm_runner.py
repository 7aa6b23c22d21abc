"""vksched as a runner of language-model cases, on one device.

The text of a case is defined in `language/llm_cases.py`. All cases of a model share one KV cache: a
text with a common prefix is read from its first difference, so the 2,048 tokens before a token are
processed once, and do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...common.dtypes import NDArray
from ...common.errors import StateLost
from ...generation.batching.cached_prefix import common_prefix
from ...generation.slot_steps import SlotSteps
from ...importers import load_gguf
from ...ir.precision import SINGLE
from ...scheduler.scheduler import Scheduler
from ..baselines.workloads import GENERATED, Spec, arrays_of


class RecordingScheduler:
    """A scheduler that records the graphs that it compiles."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.runs: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def compile(self, *args: Any, **more: Any) -> Any:
        run = self._scheduler.compile(*args, **more)
        self.runs.append(run)
        return run


class Model:
    """A language model on one device, with the KV cache of a text.

    cache_type: element type of the KV cache. tune: tuning mode of its scheduler.
    """

    def __init__(
        self,
        device: str,
        file: str,
        context: int,
        cache_type: str = "f32",
        precision: str = SINGLE,
        tune: str | float = "auto",
    ) -> None:
        self.what = file, precision
        self._device = device
        self._text: list[int] = []
        """The cached tokens."""
        self._cache_version = 0
        """The version of the cache that holds them."""
        self._scheduler = Scheduler(
            [device], on_device_failure="raise", precision=precision, tune=tune
        )
        try:
            self._noting: Any = RecordingScheduler(self._scheduler)
            self._steps = SlotSteps(
                self._noting, load_gguf(file), context, 1, cache_type=cache_type
            )
        except BaseException:
            self._scheduler.close()
            raise

    def read(self, text: Sequence[int]) -> NDArray:
        """Return the logits after a text; it is read from the first token that is not cached."""
        try:
            return self._read(text)
        except StateLost:  # an overflow of float16, or a device without memory for the cache
            return self._read(text)

    def _read(self, text: Sequence[int]) -> NDArray:
        if self._cache_version != self._steps.cache_version:
            self._text.clear()
        start = min(common_prefix(self._text, text), len(text) - 1)
        if self._steps.is_recurrent and start < len(self._text):
            start = 0  # its states cannot be cut back
        del self._text[start:]
        logits = self._steps.prefill(0, text[start:], start)
        self._text = list(text)
        self._cache_version = self._steps.cache_version
        return logits

    @property
    def memory_bytes(self) -> float:
        """Return the memory of all its graphs on the device: shared weights and states, and the
        scratch memory of each.
        """
        shared, own = 0, 0
        for run in self._noting.runs:
            found = run.plan.buffers()[self._device]
            weights = found.weight_bytes  # the CPU's plan excludes them, because the user owns them
            resident_bytes = found.state_bytes + (0 if self._device == "cpu" else weights)
            shared = max(shared, weights + found.state_bytes)
            own += max(0, found.peak_bytes - resident_bytes)
        return float(shared + own)

    @property
    def elsewhere(self) -> frozenset[str]:
        """Return the other devices that run parts of it."""
        plans = [run.plan for run in self._noting.runs]
        used = {p.topology.devices[split.device].name for p in plans for split in p.splits}
        return frozenset(used) - {self._device}

    def close(self) -> None:
        self._scheduler.close()


@dataclass
class LanguageRun:
    """A prepared case. open: loads the model anew, for "load" cases. memory_bytes, elsewhere: of
    the model since the last call.
    """

    spec: Spec
    model: Model
    open: Callable[[], Model]
    memory_bytes: float = 0.0
    elsewhere: frozenset[str] = frozenset()
    _turn: int = 0

    def __post_init__(self) -> None:
        self._text = [int(token) for token in arrays_of(self.spec)["ids"]]
        self._tokens = int(self.spec["tokens"])

    def result(self) -> NDArray:
        """Return the logits, computed as in the measurement."""
        self._turn = 0
        return self._read()[0]

    def seconds(self) -> float:
        """Return the seconds per call."""
        return self._read()[1]

    def _read(self) -> tuple[NDArray, float]:
        phase, text = self.spec["phase"], self._text[: self._tokens]
        if phase == "load":
            start = time.perf_counter()
            model = self.open()
            logits = model.read(text)
            seconds = time.perf_counter() - start
            self._look_at(model)
            model.close()
            return np.array(logits), seconds
        if phase == "prompt":
            self.model.read([text[0] + 1])  # discard the text
        else:
            if self._turn == 0:
                self.model.read(text)
            text = self._text[: self._tokens + self._turn + 1]
            self._turn = (self._turn + 1) % GENERATED
        start = time.perf_counter()
        logits = self.model.read(text)
        seconds = time.perf_counter() - start
        self._look_at(self.model)
        return np.array(logits), seconds

    def _look_at(self, model: Model) -> None:
        self.memory_bytes, self.elsewhere = model.memory_bytes, model.elsewhere

    def close(self) -> None:
        """Do nothing: the next case reuses the model."""
