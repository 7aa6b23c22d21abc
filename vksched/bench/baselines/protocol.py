"""Worker protocol: one JSON line per request, one per response.

{"do": "prepare", "spec": {...}} -> {"nmse": 1e-12, "note": "...", "bytes": null} | {"skip": "why"}
{"do": "measure", "seconds": 0.2} -> {"seconds": [per op, per op, ...]}, of a server's job also
{"latencies": {name: seconds of all its samples}}     {"do": "drop"} -> {}
{"do": "quit"} ends
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

from .workloads import LANGUAGE, SERVING, SINGLE, Array, Arrays, Spec, arrays_of, error_of

OWNED = "VKSCHED_BENCH_OWNED"
"""Set for a worker that must end with the thread that starts it."""
_PR_SET_PDEATHSIG = 1


class Skip(Exception):
    """The baseline does not support a case, with the reason."""


class Job(Protocol):
    """A prepared case."""

    note: str
    """Note on the configuration, for the report."""
    memory_bytes: float | None
    """Peak memory, or None if unknown."""

    def result(self) -> Array:
        """Return the result, computed as in the measurement."""

    def sample(self) -> float:
        """Run a batch and return the seconds per call."""


class Baseline(Protocol):
    """A runtime on one device."""

    version: str

    def prepare(self, spec: Spec, arrays: Arrays) -> Job:
        """Return the prepared case; raise Skip if it is unsupported."""


class TimedCalls:
    """A job of functions: `call` executes `count` calls and waits for them."""

    def __init__(
        self,
        call: Callable[[], object],
        result: Callable[[], Array],
        count: int = 1,
        note: str = "",
        memory_bytes: float | None = None,
    ) -> None:
        self._call, self.result, self._count, self.note = call, result, count, note
        self.memory_bytes = memory_bytes

    def sample(self) -> float:
        start = time.perf_counter()
        self._call()
        return (time.perf_counter() - start) / self._count


def fastest(jobs: list[TimedCalls]) -> TimedCalls:
    """Return the fastest job of one trial each."""
    if len(jobs) == 1:
        return jobs[0]
    times = []
    for job in jobs:
        first = job.sample()
        times.append(first if first > 0.1 else min(job.sample() for _ in range(2)))
    return jobs[times.index(min(times))]


def _check_precision(baseline: Baseline, spec: Spec) -> None:
    """Raise Skip if a baseline does not support the precision of a case."""
    word = spec.get("precision", SINGLE)
    has = (SINGLE, *getattr(baseline, "precisions", ()))
    if spec.kind not in (LANGUAGE, SERVING) and word not in has:
        raise Skip(f"it is measured in {' or '.join(has)} here, not in {word}")


def repeats(seconds: float, batch_s: float = 0.01, most: int = 64) -> int:
    """Return the number of calls per submission that amortizes its overhead."""
    return max(1, min(most, round(batch_s / max(seconds, 1e-9))))


def end_with_parent() -> None:
    """Let Linux kill this process, even if stopped, when the thread that started it ends."""
    if sys.platform == "linux" and OWNED in os.environ:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(open_baseline: Callable[[], Baseline]) -> None:
    """Serve requests until the pipe is closed. Output of libraries goes to stderr."""
    end_with_parent()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    try:
        baseline = open_baseline()
    except Exception as error:
        say({"missing": f"{type(error).__name__}: {error}"})
        return
    say({"version": baseline.version})
    job: Job | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "quit":
            break
        try:
            if request["do"] == "prepare":
                spec = Spec.from_dict(request["spec"])
                _check_precision(baseline, spec)
                arrays = arrays_of(spec)
                job = None
                job = baseline.prepare(spec, arrays)
                far = error_of(spec, arrays, job.result())
                say({"nmse": far, "note": job.note, "bytes": job.memory_bytes})
                if spec.kind not in (LANGUAGE, SERVING):  # a result of these takes minutes
                    job.sample()
            elif request["do"] == "measure" and job is not None:
                seconds = sample_for(job.sample, request["seconds"])
                latencies = getattr(job, "latencies_s", dict[str, float])
                say({"seconds": seconds, "latencies": latencies()})
            else:
                job = None
                say({})
        except Skip as reason:
            say({"skip": str(reason)})
        except Exception as error:
            traceback.print_exc()
            say({"error": f"{type(error).__name__}: {error}"})
    sys.stderr.flush()
    os._exit(0)  # some drivers crash at shutdown


def sample_for(sample: Callable[[], float], seconds: float) -> list[float]:
    """Return samples until the time is over, at least one."""
    out: list[float] = []
    end = time.perf_counter() + seconds
    while not out or time.perf_counter() < end:
        out.append(sample())
    return out
