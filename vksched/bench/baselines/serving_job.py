"""A prepared case of a server: loads of clients, and their latencies."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

import numpy as np

from .load_generator import LoadTimes, run_load
from .server_process import ServerProcess
from .workloads import Array, Spec

LATENCIES = (
    "time_to_first_token_s",
    "time_to_first_token_p95_s",
    "inter_token_latency_s",
    "inter_token_latency_p95_s",
)
"""Names of the latencies of a case: medians and 95th percentiles over all samples."""
NUMBERS = itertools.count()
"""The numbers of the requests of this process."""


class ServingJob:
    """A case on a running server; see `protocol.Job`. Its result is the number of tokens of each
    answer.
    """

    memory_bytes: float | None = None

    def __init__(self, server: ServerProcess, spec: Spec, note: str = "") -> None:
        self.note = note
        self._server, self._spec = server, spec
        self._first_s: list[float] = []
        self._between_s: list[float] = []

    def result(self) -> Array:
        """Return the tokens of each answer of a load, (clients,)."""
        answers = self._load().answers
        return np.array([answer.tokens for answer in answers], np.float32)

    def sample(self) -> float:
        """Return the seconds of a load."""
        load = self._load()
        if any(answer.tokens != self._spec["answer"] for answer in load.answers):
            found = [answer.tokens for answer in load.answers]
            expected = f"expected {self._spec['answer']} tokens in each answer"
            raise RuntimeError(f"{expected}, got {found}")
        self._first_s += load.first_token_s
        self._between_s += load.between_tokens_s
        return load.seconds

    def latencies_s(self) -> dict[str, float]:
        """Return the latencies of all samples by name, in seconds."""
        return latencies_of(self._first_s, self._between_s)

    def _load(self) -> LoadTimes:
        prompts = [prompt_of(self._spec, next(NUMBERS)) for _ in range(self._spec["clients"])]
        with self._server.running():
            return run_load(self._server.port, prompts, self._spec["answer"])

    def close(self) -> None:
        """Do nothing: the next case uses the same server."""


def prompt_of(spec: Spec, number: int) -> list[int]:
    """Return the prompt of a request. Prompts of different numbers have at most one token as a
    common prefix, so that no server reuses its KV cache.
    """
    ids: list[int] = list(spec["ids"])
    first = [ids[number % len(ids)], ids[number // len(ids) % len(ids)]]
    repeated: list[int] = first + ids * (spec["prompt"] // len(ids) + 1)
    return repeated[: int(spec["prompt"])]


def latencies_of(first_s: Sequence[float], between_s: Sequence[float]) -> dict[str, float]:
    """Return medians and 95th percentiles by name; none without samples."""
    found: dict[str, float] = {}
    pairs = zip(LATENCIES[::2], LATENCIES[1::2], (first_s, between_s), strict=True)
    for median, high, samples in pairs:
        if samples:
            found[median] = statistics.median(samples)
            found[high] = float(np.percentile(samples, 95))
    return found
