"""Prometheus exporter: metrics as collectors of its client library, which a service exposes."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from ...common.errors import VkschedError
from .instruments import MEASURES, SECONDS, Labels, MetricsSink

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PREFIX = "vksched_"

_sinks: weakref.WeakKeyDictionary[CollectorRegistry, MetricsSink] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class _Collectors:
    """The metrics of a registry: vksched_runs_total, vksched_run_seconds and the others."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        self.counters: dict[str, Counter] = {}
        self.gauges: dict[str, Gauge] = {}
        self.histograms: dict[str, Histogram] = {}
        for name, measure in MEASURES.items():
            about = PREFIX + name, measure.help, measure.labels
            if measure.kind == "counter":
                self.counters[name] = Counter(*about, registry=registry)
            elif measure.kind == "gauge":
                self.gauges[name] = Gauge(*about, registry=registry)
            else:
                self.histograms[name] = Histogram(*about, registry=registry, buckets=SECONDS)

    def add(self, name: str, amount: float, labels: Labels = ()) -> None:
        counter = self.counters[name]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def record(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)

    def set(self, name: str, value: float, labels: Labels = ()) -> None:
        gauge = self.gauges[name]
        (gauge.labels(*labels) if labels else gauge).set(value)


def prometheus(registry: CollectorRegistry | None = None) -> MetricsSink:
    """Return a trace sink that exports runs, seconds, bytes and faults to Prometheus.

    Parameters
    ----------
    registry
        A registry of prometheus_client; by default its global one. One registry has one sink,
        so that schedulers may share it.

    Raises
    ------
    VkschedError
        prometheus_client is not installed.
    ValueError
        The registry has metrics with these names.
    """
    try:
        from prometheus_client import REGISTRY
    except ImportError as error:
        raise VkschedError(
            "[metrics] expected the prometheus-client package, got none; try pip install "
            '"vksched[metrics]"'
        ) from error
    into = REGISTRY if registry is None else registry
    with _lock:
        sink = _sinks.get(into)
        if sink is None:
            sink = _sinks[into] = MetricsSink(_Collectors(into))
        return sink
