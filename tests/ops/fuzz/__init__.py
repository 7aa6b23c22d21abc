"""Draws: for every op a rule by which hypothesis draws calls of it."""

from __future__ import annotations

import importlib
import pkgutil

from .common import Draw

DRAWS: dict[str, Draw] = {}
for _info in pkgutil.iter_modules(__path__):
    _family = importlib.import_module(f"{__name__}.{_info.name}")
    DRAWS.update(getattr(_family, "DRAWS", {}))
