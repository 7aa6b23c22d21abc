"""Oracles: for every op and function another library's answer, none sharing code with ours."""

from __future__ import annotations

import importlib
import pkgutil

from .common import FunctionOracle, Oracle

ORACLES: dict[str, Oracle] = {}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {}
for _info in pkgutil.iter_modules(__path__):
    _family = importlib.import_module(f"{__name__}.{_info.name}")
    ORACLES.update(getattr(_family, "ORACLES", {}))
    FUNCTION_ORACLES.update(getattr(_family, "FUNCTION_ORACLES", {}))
