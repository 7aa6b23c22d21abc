"""Match sections: find the section of a config that applies to each value, by its name.

    encoder.0.h             encoder.0
    encoder.0.mlp.h         encoder.0, or encoder.0.mlp if it exists
    encoder.0.backward.h    encoder.0.backward, or the `backward` section of encoder.0, or encoder.0

Complexity: names * sections. Examples: tests/parallel/test_config_match.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from ...ir.name_scope import BACKWARD
from .config_types import Config, Section

WILD = "*?["


def sections_of(names: Sequence[str], config: Config) -> list[Section | None]:
    """Return the section of each name; None if no section applies."""
    known: dict[str, Section | None] = {}
    out: list[Section | None] = []
    for name in names:
        scope = name.rpartition(".")[0]
        wild = any(sign in key for key in config.sections for sign in WILD)
        key = name if wild else scope
        if key not in known:
            known[key] = _section(name, config)
        out.append(known[key])
    return out


def covers(key: str, name: str) -> bool:
    """Return True if a section with this name applies to a value."""
    if any(sign in key for sign in WILD):
        return fnmatchcase(name, key) or fnmatchcase(name, f"{key}.*")
    return name.startswith(f"{key}.")


def is_backward(name: str) -> bool:
    """Return True if a value belongs to a backward pass."""
    return BACKWARD in name.split(".")[:-1]


def unmatched(names: Sequence[str], config: Config) -> dict[str, str]:
    """Return a warning with the closest name for each section that matches nothing."""
    wanted = [(name, section.line) for name, section in config.sections.items()]
    if config.pipeline is not None:
        line = config.pipeline.line
        wanted += [
            (stage, line) for stage in config.pipeline.stages if stage not in config.sections
        ]
    scopes = list(_scopes(names))
    linked = {section.backward for section in config.sections.values()}
    out: dict[str, str] = {}
    for key, line in wanted:
        if key in linked or any(covers(key, name) for name in names):
            continue
        where = f"{config.source}, line {line}" if line else config.source
        near = difflib.get_close_matches(key, scopes, 1, 0.0)
        hint = f"; the nearest name is {near[0]}" if near else "; no value here has a signal"
        out[key] = f"{where}: {key} matches nothing in this graph{hint}"
    return out


def _section(name: str, config: Config) -> Section | None:
    found = [s for key, s in config.sections.items() if covers(key, name)]
    if not found:
        return None
    section = max(found, key=lambda s: len(s.name))
    if not is_backward(name) or BACKWARD in section.name.split("."):
        return section
    while section.backward and section.backward != section.name:
        section = config.sections[section.backward]
    return section


def _scopes(names: Iterable[str]) -> dict[str, None]:
    out: dict[str, None] = {}
    for name in names:
        parts = name.split(".")[:-1]
        out.update((".".join(parts[: n + 1]), None) for n in range(len(parts)))
    return out
