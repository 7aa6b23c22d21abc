"""Figures of runs for services, by the libraries of Prometheus and OpenTelemetry."""

from .opentelemetry_exporter import opentelemetry
from .prometheus_exporter import prometheus

__all__ = ["opentelemetry", "prometheus"]
