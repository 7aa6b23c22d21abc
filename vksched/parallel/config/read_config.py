"""Read a config: YAML or a dict in, checked values out, or one error with its location.

    text --yaml--> items with their lines --schema.json--> sections, pipeline --links--> Config

Nothing is read partially: the first error raises. Complexity: O(size of the file). Examples:
tests/parallel/test_config_read.py.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

from ...common.errors import PlanError
from ...ir.precision import PRECISIONS
from .config_types import AUTO, SCHEDULES, WEIGHTS, Config, Pipeline, Section, Shard

MAX_CHARACTERS = 1 << 18
"""Maximum characters of a file."""
MAX_ITEMS = 100_000
"""Maximum values of a file, with aliases expanded."""
MAX_SHOWN = 80
"""Maximum characters of a value in an error message."""
PIPELINE = "pipeline"
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
KEYS = {
    "section": ("devices", "shard", "backward", "precision"),
    "shard": ("axis", "weights", "ratio"),
    PIPELINE: ("stages", "microbatches", "schedule", "axis", "devices"),
}


@dataclass(frozen=True)
class Item:
    """A value of the file with its line, 0 without a file. It is a dict or list of items, a str, a
    number, a bool or None.
    """

    value: Any
    line: int


def read_config(source: str | PathLike[str] | Mapping[str, Any] | Config) -> Config:
    """Return a config.

    Parameters
    ----------
    source
        The name of a YAML file, its content as a dict, or a Config.

    Raises
    ------
    PlanError
        It cannot be read, or a value is invalid; the message tells the location.
    """
    if isinstance(source, Config):
        return source
    if isinstance(source, Mapping):
        try:
            return _Reader("config").config(_plain(source))
        except RecursionError:
            raise PlanError("[config] expected a few levels of a dict, got too many") from None
    if not isinstance(source, (str, PathLike)):
        raise PlanError(f"[config] expected a file name or a dict, got {source!r}")
    name = Path(source).name
    try:
        with Path(source).open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except (OSError, ValueError) as error:  # no file, or no text
        raise PlanError(f"[config] expected a readable YAML file, got {source}: {error}") from error
    if len(text) > MAX_CHARACTERS:
        raise PlanError(f"[config] {name}: expected at most {MAX_CHARACTERS} characters, got more")
    return _Reader(name).config(_parse(text, name))


def _plain(value: object) -> Item:
    if isinstance(value, Mapping):
        names = [str(key) for key in value]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise PlanError(f"[config] expected {twice} once, got it again")
        return Item({str(key): _plain(each) for key, each in value.items()}, 0)
    if isinstance(value, (list, tuple)):
        return Item([_plain(each) for each in value], 0)
    if isinstance(value, bool) or not isinstance(value, Integral):
        return Item(value, 0)
    return Item(int(value), 0)


def _parse(text: str, name: str) -> Item:
    """Return the items of a YAML text, with aliases expanded and without custom types."""
    try:
        import yaml
    except ImportError:
        raise PlanError(
            "[config] expected the package pyyaml, which is not here; try a dict, or "
            'pip install "vksched[yaml]"'
        ) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return Item({}, 1) if root is None else _Tree(name).item(root)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        why = getattr(error, "problem", None) or str(error)
        raise PlanError(f"[config] {name}{line}: expected YAML, got {why}") from error
    except RecursionError:
        raise PlanError(f"[config] {name}: expected a few levels of YAML, got too many") from None


class _Tree:
    """Converts YAML nodes to items, up to MAX_ITEMS."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def item(self, node: Any) -> Item:
        """Return the item of a node."""
        line = node.start_mark.line + 1
        where = f"[config] {self._name}, line {line}"
        self._count += 1
        if self._count > MAX_ITEMS:
            raise PlanError(f"{where}: expected at most {MAX_ITEMS} values, aliases repeated")
        if not node.tag.startswith("tag:yaml.org,2002:"):
            raise PlanError(f"{where}: expected plain values, got the type {node.tag[:MAX_SHOWN]}")
        if node.id == "mapping":
            return Item(dict(self._entry(*pair) for pair in self._pairs(node)), line)
        if node.id == "sequence":
            return Item([self.item(each) for each in node.value], line)
        return Item(_scalar(node), line)

    def _pairs(self, node: Any) -> list[tuple[Any, Any]]:
        """Return the entries of a mapping after checking that its keys are unique names."""
        names: set[str] = set()
        for key, _ in node.value:
            where = f"[config] {self._name}, line {key.start_mark.line + 1}"
            if key.id != "scalar":
                raise PlanError(f"{where}: expected a name, got a {key.id}")
            if key.value in names:
                raise PlanError(f"{where}: expected {key.value} once, got it again")
            names.add(key.value)
        return list(node.value)

    def _entry(self, key: Any, value: Any) -> tuple[str, Item]:
        """Return a key and its item, which has the line of the key."""
        return key.value, Item(self.item(value).value, key.start_mark.line + 1)


def _scalar(node: Any) -> object:
    """Return a plain whole number as int, all else as str: 3:1 is no time of day here."""
    if node.style is None and WHOLE.fullmatch(node.value):
        return int(node.value)
    return node.value if node.value or node.style else None


class _Reader:
    """Converts items to config types; `source` is the file, for messages."""

    def __init__(self, source: str) -> None:
        self.source = source

    def config(self, item: Item) -> Config:
        """Return the config that items describe."""
        entries = self.mapping(item, "names of signals")
        sections = {
            name: self.section(name, entry) for name, entry in entries.items() if name != PIPELINE
        }
        self.check_backward(sections)
        found = entries.get(PIPELINE)
        return Config(sections, None if found is None else self.pipeline(found), self.source)

    def section(self, name: str, item: Item) -> Section:
        """Return the section of a signal."""
        if not name or name.startswith(".") or name.endswith("."):
            raise self.error(item, "the name of a signal", repr(name), "encoder.0")
        keys = self.keys(item, name, "section")
        devices = self.names(keys["devices"], f"{name}.devices") if "devices" in keys else ()
        shard = self.shard(name, keys["shard"], len(devices)) if "shard" in keys else None
        if len(devices) > 1 and shard is None:
            raise self.error(
                keys["devices"],
                f"a shard for the {len(devices)} devices of {name}",
                "none",
                "shard: auto, or one device",
            )
        backward = self.text(keys["backward"], f"{name}.backward") if "backward" in keys else ""
        precision = ""
        if "precision" in keys:
            precision = self.one_of(keys["precision"], f"{name}.precision", PRECISIONS)
        return Section(name, devices, shard, backward, item.line, precision)

    def shard(self, name: str, item: Item, devices: int) -> Shard:
        """Return how the values of a signal are sharded."""
        if item.value == AUTO:
            return Shard(auto=True, ratio=AUTO)
        keys = self.keys(item, f"{name}.shard", "shard")
        if ("axis" in keys) == ("weights" in keys):
            raise self.error(
                item,
                f"either axis or weights in {name}.shard",
                ", ".join(keys) or "neither",
                "shard: {axis: 0}",
            )
        axis = self.whole(keys["axis"], f"{name}.shard.axis") if "axis" in keys else None
        weights = ""
        if "weights" in keys:
            weights = self.one_of(keys["weights"], f"{name}.shard.weights", WEIGHTS)
        ratio = self.ratio(name, keys["ratio"], devices) if "ratio" in keys else ()
        return Shard(axis, weights, ratio=ratio)

    def ratio(self, name: str, item: Item, devices: int) -> tuple[int, ...] | str:
        """Return the shares of the devices: auto, 3:1 or [3, 1]."""
        if item.value == AUTO:
            return AUTO
        parts = item.value
        if isinstance(parts, str):
            parts = [Item(int(t) if WHOLE.fullmatch(t) else t, item.line) for t in parts.split(":")]
        whole = isinstance(parts, list) and len(parts) > 0
        if not whole or not all(_is_whole(p.value) and p.value > 0 for p in parts):
            raise self.error(
                item, f"auto or whole numbers as {name}.shard.ratio", _shown(item), "3:1"
            )
        if not devices:
            raise self.error(item, f"devices of {name} with its ratio", "none", AUTO)
        if len(parts) != devices:
            raise self.error(
                item, f"a ratio for each of the {devices} devices of {name}", _shown(item), AUTO
            )
        return tuple(p.value for p in parts)

    def pipeline(self, item: Item) -> Pipeline:
        """Return the stages and their order."""
        keys = self.keys(item, PIPELINE, PIPELINE)
        for needed in ("stages", "microbatches"):
            if needed not in keys:
                raise self.error(item, f"{needed} in {PIPELINE}", "none", "stages: [encoder, head]")
        stages = self.names(keys["stages"], f"{PIPELINE}.stages")
        count = self.whole(keys["microbatches"], f"{PIPELINE}.microbatches")
        if count < 1:
            raise self.error(keys["microbatches"], "1 microbatch or more", str(count), "4")
        schedule = AUTO
        if "schedule" in keys:
            schedule = self.one_of(keys["schedule"], f"{PIPELINE}.schedule", SCHEDULES)
        axis = self.whole(keys["axis"], f"{PIPELINE}.axis") if "axis" in keys else 0
        if axis < 0:
            raise self.error(keys["axis"], f"{PIPELINE}.axis of 0 or more", str(axis), "0")
        devices = (
            self.names(keys["devices"], f"{PIPELINE}.devices", True) if "devices" in keys else ()
        )
        return Pipeline(stages, count, schedule, axis, devices, item.line)

    def check_backward(self, sections: Mapping[str, Section]) -> None:
        """Raise PlanError if a `backward` names no section, or if there is a cycle."""
        for name, section in sections.items():
            path = [name]
            while section.backward and section.backward != section.name:
                if section.backward not in sections:
                    raise self.error(
                        Item(None, section.line),
                        f"a section as backward of {section.name}",
                        section.backward,
                        _nearest(section.backward, sections),
                    )
                if section.backward in path:
                    circle = " -> ".join([*path, section.backward])
                    where = Item(None, section.line)
                    raise self.error(where, "backward without a circle", circle, "one of them less")
                path.append(section.backward)
                section = sections[section.backward]

    # -- pieces ------------------------------------------------------------------------------------

    def keys(self, item: Item, what: str, kind: str) -> dict[str, Item]:
        """Return a mapping after checking its keys."""
        found, known = self.mapping(item, f"{what} with {', '.join(KEYS[kind])}"), KEYS[kind]
        for key, value in found.items():
            if key not in known:
                raise self.error(value, f"{', '.join(known)} in {what}", key, _nearest(key, known))
        return found

    def mapping(self, item: Item, what: str) -> dict[str, Item]:
        """Return an item after checking that it is a mapping."""
        if not isinstance(item.value, dict):
            raise self.error(item, what, _shown(item), "name: value")
        return item.value

    def names(self, item: Item, what: str, again: bool = False) -> tuple[str, ...]:
        """Return a list of names after checking that they are unique, unless `again`."""
        value = item.value
        good = isinstance(value, list) and value and all(isinstance(v.value, str) for v in value)
        if not good:
            raise self.error(item, f"a list of names as {what}", _shown(item), "[a, b]")
        found = tuple(v.value for v in value)
        if len(set(found)) < len(found) and not again:
            raise self.error(item, f"each name once in {what}", ", ".join(found), "others")
        return found

    def text(self, item: Item, what: str) -> str:
        """Return an item after checking that it is a name."""
        if not isinstance(item.value, str) or not item.value:
            raise self.error(item, f"a name as {what}", _shown(item), "encoder.0.backward")
        return item.value

    def whole(self, item: Item, what: str) -> int:
        """Return an item after checking that it is a whole number."""
        if not _is_whole(item.value):
            raise self.error(item, f"a whole number as {what}", _shown(item), "0")
        return int(item.value)

    def one_of(self, item: Item, what: str, known: Iterable[str]) -> str:
        """Return an item after checking that it is one of some names."""
        if item.value not in tuple(known):
            near = _nearest(str(item.value), known)
            raise self.error(item, f"one of {', '.join(known)} as {what}", _shown(item), near)
        return str(item.value)

    def error(self, item: Item, expected: str, got: str, hint: str) -> PlanError:
        """Return the error for an item."""
        line = f", line {item.line}" if item.line else ""
        return PlanError(
            f"[config] {self.source}{line}: expected {expected}, got {got}; try {hint}"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(item: Item) -> str:
    if isinstance(item.value, dict):
        return "a mapping"
    if isinstance(item.value, list):
        parts = (_shown(each) for each in item.value[:MAX_SHOWN])
        return _short(f"[{', '.join(parts)}]")
    if isinstance(item.value, str) and WHOLE.fullmatch(item.value):
        return repr(item.value)  # in quotes, because it is a str
    return "nothing" if item.value is None else _short(str(item.value))


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    found = difflib.get_close_matches(name, names, 1, 0.0)
    return found[0] if found else "another one"
