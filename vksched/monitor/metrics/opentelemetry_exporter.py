"""OpenTelemetry exporter: metrics as instruments of its API; the service provides the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...common.errors import VkschedError
from ...common.version import __version__
from .instruments import MEASURES, SECONDS, Labels, MetricsSink

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider, UpDownCounter

NAMES = {
    "runs": "vksched.runs",
    "run_seconds": "vksched.run.duration",
    "failed_runs": "vksched.run.failures",
    "busy_seconds": "vksched.device.busy",
    "waited_seconds": "vksched.device.wait",
    "copies": "vksched.device.copies",
    "copied_bytes": "vksched.device.io",
    "transfer_bytes": "vksched.transfers",
    "faults": "vksched.device.faults",
    "slow_submissions": "vksched.device.slow_submissions",
    "plans": "vksched.plans",
    "fallbacks": "vksched.fallbacks",
    "memory_bytes": "vksched.device.memory.usage",
}
"""Names by OpenTelemetry's conventions: dots, and no units."""
ATTRIBUTES = {
    "device": "vksched.device.name",
    "direction": "vksched.io.direction",
    "error": "error.type",
}


class _Instruments:
    """The metrics of a meter."""

    def __init__(self, meter: Meter) -> None:
        self.counters: dict[str, Counter] = {}
        self.histograms: dict[str, Histogram] = {}
        self.levels: dict[str, UpDownCounter] = {}
        self._at: dict[tuple[str, Labels], float] = {}
        for name, measure in MEASURES.items():
            about = NAMES[name], measure.unit, measure.help
            if measure.kind == "counter":
                self.counters[name] = meter.create_counter(*about)
            elif measure.kind == "gauge":
                self.levels[name] = meter.create_up_down_counter(*about)
            else:
                self.histograms[name] = meter.create_histogram(
                    *about, explicit_bucket_boundaries_advisory=SECONDS
                )

    def add(self, name: str, amount: float, labels: Labels = ()) -> None:
        self.counters[name].add(amount, _attributes(name, labels))

    def record(self, name: str, value: float) -> None:
        self.histograms[name].record(value)

    def set(self, name: str, value: float, labels: Labels = ()) -> None:
        """Add the difference from the previous value; the caller holds a lock."""
        before = self._at.get((name, labels), 0.0)
        self._at[name, labels] = value
        self.levels[name].add(value - before, _attributes(name, labels))


def _attributes(name: str, labels: Labels) -> dict[str, str]:
    names = (ATTRIBUTES[label] for label in MEASURES[name].labels)
    return dict(zip(names, labels, strict=True))


def opentelemetry(provider: MeterProvider | None = None) -> MetricsSink:
    """Return a trace sink that exports runs, seconds, bytes and faults to OpenTelemetry.

    Parameters
    ----------
    provider
        A MeterProvider; by default the global one.

    Raises
    ------
    VkschedError
        opentelemetry-api is not installed.
    """
    try:
        from opentelemetry.metrics import get_meter_provider
    except ImportError as error:
        raise VkschedError(
            "[metrics] expected the opentelemetry-api package, got none; try pip install "
            '"vksched[metrics]"'
        ) from error
    meter = (provider or get_meter_provider()).get_meter("vksched", __version__)
    return MetricsSink(_Instruments(meter))
