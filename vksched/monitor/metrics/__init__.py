"""Metrics of runs for Prometheus and OpenTelemetry."""

from .opentelemetry_exporter import opentelemetry
from .prometheus_exporter import prometheus

__all__ = ["opentelemetry", "prometheus"]
