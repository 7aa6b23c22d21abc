"""Oracles of the index ops."""

from __future__ import annotations

from .common import Oracle, by_onnx

ORACLES: dict[str, Oracle] = {
    "gather": by_onnx("Gather", ("axis",)),
}
