"""Plain data with something changed, as who knows the format would: a number, a text, a list."""

from __future__ import annotations

import copy
import random
from typing import Any

NUMBERS = (-1, 0, 1, 2, 3, 7, 63, 64, 255, 1 << 16, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 63) - 1)
VALUES: tuple[Any, ...] = (None, True, False, "", "x", 0.5, -1.0, 1e308, [], {}, [0], [[]], "\0")
WORDS = ("cpu", "float32", "int64", "bool", "add", "input", "weight", "state", "copy", "priority")

Path = tuple[Any, ...]


def mutate(rng: random.Random, data: Any, spared: frozenset[str] = frozenset()) -> tuple[str, Any]:
    """Return what was changed, and plain data with one to three changes.

    Parameters
    ----------
    spared
        Keys of objects that stay as they are, with all below them.
    """
    mutated, changes = copy.deepcopy(data), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(mutated, (), spared))
        path = rng.choice(rng.choice(_by_depth(places)))
        changes.append(f"{'.'.join(map(str, path))} {_change(rng, mutated, path)}")
    return "; ".join(changes), mutated


def _by_depth(places: list[Path]) -> list[list[Path]]:
    """Return places by how deep they lie, so that those near the top are met as often."""
    depths: dict[int, list[Path]] = {}
    for path in places:
        depths.setdefault(len(path), []).append(path)
    return list(depths.values())


def _places(data: Any, path: Path, spared: frozenset[str]) -> Any:
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        if key in spared:
            continue
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from _places(value, (*path, key), spared)


def _change(rng: random.Random, data: Any, path: Path) -> str:
    """Change one place; return how."""
    around = data
    for key in path[:-1]:
        around = around[key]
    key = path[-1]
    value = around[key]
    how = rng.choice(("nearby", "nearby", "number", "value", "word", "drop", "again", "swap"))
    if how == "nearby" and isinstance(value, (int, float)) and not isinstance(value, bool):
        around[key] = value + rng.choice((-64, -16, -1, 1, 16, 64))
    elif how in ("nearby", "number"):
        around[key] = rng.choice(NUMBERS) * rng.choice((1, 1, -1))
    elif how == "value":
        around[key] = copy.deepcopy(rng.choice(VALUES))
    elif how == "word":
        around[key] = rng.choice(WORDS)
    elif how == "drop":
        del around[key]
    elif how == "again" and isinstance(around, list):
        around.insert(rng.randrange(len(around) + 1), copy.deepcopy(value))
    elif isinstance(around, list):
        other = rng.randrange(len(around))
        around[key], around[other] = around[other], around[key]
    else:
        other_key = rng.choice(list(around))
        around[key], around[other_key] = around[other_key], around[key]
    return f"{how}: {str(value)[:40]}"
