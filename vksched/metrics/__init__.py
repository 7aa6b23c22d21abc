"""Figures of runs for services, by the libraries of Prometheus and OpenTelemetry."""

from .to_opentelemetry import opentelemetry
from .to_prometheus import prometheus

__all__ = ["opentelemetry", "prometheus"]
