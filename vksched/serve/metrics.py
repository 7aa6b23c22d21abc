"""ServerMetrics: counters and durations for Prometheus, by the names of vLLM and llama-server.

Dashboards for either server show the same quantities of this one.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..generation.batching.engine_counters import EngineCounters
from .engine_interface import ServingEngine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
DURATIONS = {
    "queue": ("request_queue_time_seconds", "Time that requests wait for a slot."),
    "time_to_first_token": ("time_to_first_token_seconds", "Time until the first token."),
    "time_between_tokens": ("inter_token_latency_seconds", "Time between two tokens of an answer."),
    "request": ("e2e_request_latency_seconds", "Time from the request to the last token."),
}
"""The name and help of each duration that an engine reports."""


class ServerMetrics:
    """The metrics of one server. `observe` is the observer of its engine; it is thread-safe."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model_name = model_name
        self._durations = {
            key: Histogram(
                f"vllm:{name}", about, ["model_name"], registry=self.registry, buckets=SECONDS
            ).labels(model_name)
            for key, (name, about) in DURATIONS.items()
        }

    def observe(self, name: str, seconds: float) -> None:
        """Record a duration of the engine."""
        if name in self._durations:
            self._durations[name].observe(seconds)

    def follow(self, engine: ServingEngine) -> None:
        """Report the counters of an engine."""
        self.registry.register(_EngineCollector(engine, self._model_name))

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    def __init__(self, engine: ServingEngine, model_name: str) -> None:
        self._engine = engine
        self._model_name = model_name

    def describe(self) -> list[Metric]:
        """Return no names: the engine is asked only when its counters are needed."""
        return []

    def collect(self) -> Iterator[Metric]:
        counters, slots = self._engine.counters(), len(self._engine.slots())
        yield from self._vllm(counters)
        yield from _llama_server(counters, slots)

    def _vllm(self, counters: EngineCounters) -> Iterator[Metric]:
        labels = ["model_name"]
        for name, about, value in (
            ("num_requests_running", "Requests that have a slot.", counters.running),
            ("num_requests_waiting", "Requests that wait for a slot.", counters.waiting),
            ("kv_cache_usage_perc", "Used fraction of the KV cache.", counters.kv_cache_usage),
        ):
            gauge = GaugeMetricFamily(f"vllm:{name}", about, labels=labels)
            gauge.add_metric([self._model_name], value)
            yield gauge
        seen = counters.prompt_tokens + counters.cached_tokens
        for name, about, value in (
            ("prompt_tokens", "Prompt tokens, computed and cached.", seen),
            ("generation_tokens", "Generated tokens.", counters.generated_tokens),
            ("prefix_cache_queries", "Prompt tokens that were looked up.", seen),
            ("prefix_cache_hits", "Prompt tokens from the KV cache.", counters.cached_tokens),
            ("spec_decode_num_drafts", "Drafts that were verified.", counters.drafts),
            ("spec_decode_num_draft_tokens", "Guessed tokens.", counters.draft_tokens),
            ("spec_decode_num_accepted_tokens", "Right guesses.", counters.accepted_tokens),
        ):
            counter = CounterMetricFamily(f"vllm:{name}", about, labels=labels)
            counter.add_metric([self._model_name], value)
            yield counter
        ended = CounterMetricFamily(
            "vllm:request_success", "Ended requests.", labels=[*labels, "finished_reason"]
        )
        for reason, count in counters.finished.items():
            ended.add_metric([self._model_name, reason], count)
        yield ended


def _llama_server(counters: EngineCounters, slots: int) -> Iterator[Metric]:
    for name, about, value in (
        ("prompt_tokens", "Prompt tokens that were computed.", counters.prompt_tokens),
        ("prompt_seconds", "Time of prompts.", counters.prefill_s),
        ("tokens_predicted", "Generated tokens.", counters.generated_tokens),
        ("tokens_predicted_seconds", "Time of decode steps.", counters.decode_s),
        ("n_decode", "Decode steps.", counters.decode_steps),
    ):
        yield CounterMetricFamily(f"llamacpp:{name}", about, value)
    rows = counters.decode_rows / counters.decode_steps if counters.decode_steps else 0.0
    for name, about, value in (
        ("prompt_tokens_seconds", "Prompt tokens per second.", _rate(counters, "prefill")),
        ("predicted_tokens_seconds", "Generated tokens per second.", _rate(counters, "decode")),
        ("requests_processing", "Requests that have a slot.", counters.running),
        ("requests_deferred", "Requests that wait for a slot.", counters.waiting),
        ("n_busy_slots_per_decode", "Mean rows of a decode step.", rows),
        ("slots", "Slots of the KV cache.", slots),
    ):
        yield GaugeMetricFamily(f"llamacpp:{name}", about, value)


def _rate(counters: EngineCounters, phase: str) -> float:
    is_prefill = phase == "prefill"
    tokens = counters.prompt_tokens if is_prefill else counters.generated_tokens
    seconds = counters.prefill_s if is_prefill else counters.decode_s
    return tokens / seconds if seconds else 0.0
