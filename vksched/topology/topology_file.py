"""Files: machines that are not here, as people write them, in YAML or JSON.

Problem: a plan for cards that one does not have needs their figures, and a typing error in one of
them gives a plan that looks right. Method: one reader for both formats. It refuses what it does not
know, and names what is near. A device may take its figures from a preset, and may stand for
several.

    devices:
      - name: fast
        preset: rx7900xtx           # presets.py
        link: pcie4x16              # to the computer's memory, ways.py
      - name: card
        count: 2                    # card:0 and card:1
        memory_gib: 8
        tflops: 4.5                 # what kernels reach, not what a data sheet says
        gb_per_s: 170
    links:
      - between: [card:0, cpu]
        gb_per_s: 6
        latency_us: 10
    network: ethernet25g            # between hosts, as of node1/card and node2/card

All other keys are the fields of `DeviceSpec`, `Limits` and `Link`; they have the unit in their
name. The kind is "null" where none is given: a device that nobody opens. Complexity: O(devices).
Examples: tests/topology/test_topology_file.py.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any

from ..common.errors import PlanError
from .device_spec import GIB, DeviceSpec, as_number, spec_as_dict
from .host_names import CPU, DRIVER, host_of, on
from .link_presets import slower, way
from .links import Link
from .presets import PREFIX, card, topology_data
from .topology import Topology

UNITS = {
    "memory_gib": ("memory_bytes", GIB),
    "tflops": ("flops_per_s", 1e12),
    "gb_per_s": ("bytes_per_s", 1e9),
    "latency_us": ("latency_s", 1e-6),
}
"""Other words for fields: how many of the field's unit one of theirs is."""
MOST = 4096
"""Devices of one entry, and of a machine."""
MAX_JSON_CHARS, MAX_YAML_CHARS = 1 << 28, 1 << 22
"""Characters of a file. A printed plan of a large graph is long, YAML is written by hand."""
MAX_NODES = 200_000
"""Values of a YAML text; one that stands there by an alias counts each time."""
KEYS = ("about", "devices", "links", "network")
DEVICE_KEYS = ("preset", "count", "link", "memory_gib", "tflops", "gb_per_s")
LINK_KEYS = ("bytes_per_s", "latency_s", "gb_per_s", "latency_us")


def load_topology(source: str | PathLike[str]) -> Topology:
    """Return the machine of a file or of a preset.

    source: a name that ends in .yaml or .yml is read as YAML, any other one as JSON. What
    `vksched plan --json` prints is taken, too. "preset:two-cards" is a machine that comes with the
    package.

    Raises:
        PlanError: the file cannot be read, or is no machine; the text says where and why.
    """
    text = str(source)
    if text.startswith(PREFIX):
        return topology_of(topology_data(text.removeprefix(PREFIX)))
    data = _read(Path(source))
    return topology_of(data.get("topology", data) if isinstance(data, Mapping) else data)


def topology_of(data: object) -> Topology:
    """Return a machine from plain data, with presets, counts and named links.

    Raises:
        PlanError: what is wrong, and where.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("devices"), list):
        return Topology.from_dict(data)  # tells what is wrong
    about = data.get("about", "")
    if not isinstance(about, str):
        raise PlanError(f"[topology] expected a text as about, got {about!r}")
    devices: list[Any] = []
    given = data.get("links", [])
    entries = given if isinstance(given, list) else [given]
    links = [_link_entry(entry, f"link {number}") for number, entry in enumerate(entries)]
    named = _ends(links)
    cpu = _cpu(data["devices"])
    for number, entry in enumerate(data["devices"]):
        for made, link in _devices(entry, f"device {number}"):
            devices.append(made)
            if len(devices) > MOST:
                raise PlanError(f"[topology] expected at most {MOST} devices, got more")
            name = made["name"]
            host = host_of(name) if isinstance(name, str) else DRIVER
            memory = on(host, CPU) if host != DRIVER else cpu
            if link is not None and not named & {(name, memory), (memory, name)}:
                links.append({"between": [name, memory], **asdict(link)})
    for key in data:
        if key not in KEYS:
            near = _near(str(key), KEYS)
            raise PlanError(f"[topology] there is no key {key!r} beside the devices; try {near}")
    out: dict[str, Any] = {"devices": devices, "links": links}
    if "network" in data:
        out["network"] = _network(data["network"])
    return Topology.from_dict(out)


def _network(given: object) -> object:
    """Return the link of hosts that no link names, as `Topology.from_dict` takes it."""
    if isinstance(given, str):
        return asdict(way(given))
    if not isinstance(given, Mapping):
        return given  # from_dict tells what is wrong
    _check_keys(given, LINK_KEYS, "the network")
    return _in_units(given, "the network")


def _cpu(entries: Iterable[object]) -> str:
    """Return the name of the caller's CPU, "cpu" where none is given."""
    for entry in entries:
        if isinstance(entry, Mapping) and entry.get("kind") == "cpu":
            name = str(entry.get("name", CPU))
            if host_of(name) == DRIVER:
                return name
    return CPU


def _devices(entry: object, where: str) -> list[tuple[dict[str, Any], Link | None]]:
    """Return the devices of one entry as `Topology.from_dict` takes them, with their links to the
    host.
    """
    if not isinstance(entry, Mapping):
        raise PlanError(f"[topology] expected a mapping for {where}, got {entry!r}")
    known = (*(f.name for f in fields(DeviceSpec)), *DEVICE_KEYS)
    _check_keys(entry, known, where)
    own = _in_units({k: v for k, v in entry.items() if k not in ("preset", "count", "link")}, where)
    link = _link(entry["link"], where) if "link" in entry else None
    if "preset" in entry:
        found = card(_text(entry["preset"], f"preset of {where}"))
        of_card = spec_as_dict(found.spec())
        if isinstance(own.get("limits"), Mapping):
            own["limits"] = {**of_card["limits"], **own["limits"]}
        own = {**of_card, **own}
        link = found.way if link is None else slower(found.way, link)
    if own.get("kind") is None:  # nobody opens it; YAML reads null as no value at all
        own["kind"] = "null"
    count = entry.get("count", 1)
    if type(count) is not int or not 1 <= count <= MOST:
        raise PlanError(f"[topology] expected a count of 1 to {MOST} for {where}, got {count!r}")
    if "count" not in entry:
        return [({**own, "name": own.get("name", "")}, link)]
    name = _text(own.get("name"), f"name of {where}")
    return [({**own, "name": f"{name}:{i}"}, link) for i in range(count)]


def _link_entry(entry: object, where: str) -> object:
    """Return a link as `Topology.from_dict` takes it."""
    if not isinstance(entry, Mapping):
        return entry  # from_dict tells what is wrong
    _check_keys(entry, ("between", "link", *LINK_KEYS), where)
    rest = {k: v for k, v in entry.items() if k not in ("between", "link")}
    of_name = asdict(_link(entry["link"], where)) if "link" in entry else {}
    return {"between": entry.get("between"), **of_name, **_in_units(rest, where)}


def _ends(links: Iterable[object]) -> set[tuple[str, str]]:
    """Return the pairs of devices that links name: there a device's own link does not count, in
    neither direction.

    Raises:
        PlanError: one pair stands there twice.
    """
    out: set[tuple[str, str]] = set()
    for link in links:
        ends = link.get("between") if isinstance(link, Mapping) else None
        if isinstance(ends, (list, tuple)) and len(ends) == 2:  # else from_dict tells what is wrong
            pair = str(ends[0]), str(ends[1])
            if pair in out:
                raise PlanError(
                    f"[topology] expected one link from {pair[0]} to {pair[1]}, got two; try one of"
                    " them, or change its ends for the way back"
                )
            out.add(pair)
    return out


def _link(given: object, where: str) -> Link:
    """Return the link that a name or some figures tell of."""
    if isinstance(given, str):
        return way(given)
    if not isinstance(given, Mapping):
        raise PlanError(
            f"[topology] expected the name of a link, as pcie4x16, or its bytes_per_s and latency_s"
            f" for {where}, got {given!r}"
        )
    _check_keys(given, LINK_KEYS, f"the link of {where}")
    figures = _in_units(given, f"the link of {where}")
    for key, value in figures.items():
        if as_number(value) is None:
            raise PlanError(
                f"[topology] expected a number of 0 or more as {key} of the link of {where}, got "
                f"{value!r}"
            )
    if not figures.get("bytes_per_s", 1):
        raise PlanError(f"[topology] expected a speed above 0 for the link of {where}, got 0")
    return Link(**figures)


def _in_units(given: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Return fields in the units of their names."""
    out: dict[str, Any] = {}
    for key, value in given.items():
        field, factor = UNITS.get(key, (key, None))
        if field in out or (factor is not None and field in given):
            raise PlanError(f"[topology] expected one of {key} and {field} for {where}, got both")
        if factor is not None:
            number = as_number(value, factor)
            if number is None:
                raise PlanError(
                    f"[topology] expected a number of 0 or more as {key} of {where}, got {value!r}"
                )
            value = int(number) if field == "memory_bytes" else number
        out[field] = value
    return out


def _check_keys(entry: Mapping[Any, Any], known: Iterable[str], where: str) -> None:
    names = tuple(known)
    for key in entry:
        if key not in names:
            near = _near(str(key), names)
            raise PlanError(f"[topology] {where} has no field {key!r}; try {near}")


def _near(key: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(key, list(names), 1, 0.4)
    return found[0] if found else ", ".join(names)


def _text(given: object, what: str) -> str:
    if not isinstance(given, str) or not given:
        raise PlanError(f"[topology] expected a text as {what}, got {given!r}")
    return given


# -- formats ---------------------------------------------------------------------------------------


def _read(path: Path) -> object:
    """Return the plain data of a file."""
    try:
        is_yaml = path.suffix.lower() in (".yaml", ".yml")
        most = MAX_YAML_CHARS if is_yaml else MAX_JSON_CHARS
        with path.open(encoding="utf-8") as file:
            text = file.read(most + 1)
        if len(text) > most:
            raise ValueError(f"expected at most {most:,} characters of a machine, got more")
        if is_yaml:
            return read_yaml(text)
        return json.loads(text, object_pairs_hook=_once)
    except OSError as error:
        raise PlanError(f"[topology] cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise PlanError(f"[topology] cannot read {path}: {said}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a mapping of JSON, whose keys stand there once."""
    out = dict(pairs)
    if len(out) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands there twice")
    return out


_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_INT = re.compile(r"[-+]?\d[\d_]*\Z", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?\Z", re.ASCII)


def read_yaml(text: str) -> object:
    """Return the plain data of a YAML text. Words and numbers are those of YAML 1.2: 9e12 is a
    number, and "no" a text, as people expect who do not know the older rules.

    Raises:
        PlanError: PyYAML is missing. ValueError: it is not YAML, a key stands there twice, or it
            has over MAX_NODES values.
    """
    try:
        import yaml
    except ImportError as error:
        raise PlanError(
            "[topology] YAML needs the package PyYAML, which is not installed; try "
            'pip install "vksched[yaml]", or write the same as JSON'
        ) from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    return None if root is None else _plain(root, (), itertools.count(1))


def _plain(node: Any, above: tuple[object, ...], count: Iterator[int]) -> object:
    """Return the plain data of a node of PyYAML. above: those that hold it. count: of all nodes,
    as few lines of aliases to aliases can stand for any number of them.
    """
    line = node.start_mark.line + 1
    if next(count) > MAX_NODES:
        raise ValueError(f"line {line}: expected at most {MAX_NODES:,} values, got more")
    if any(node is each for each in above):
        raise ValueError(f"line {line}: a value holds itself")
    if not node.tag.startswith("tag:yaml.org") or "python" in node.tag:
        raise ValueError(f"line {line}: expected no tag, got {node.tag}")
    if node.id == "sequence":
        return [_plain(item, (*above, node), count) for item in node.value]
    if node.id == "mapping":
        out: dict[str, object] = {}
        for key, value in node.value:
            name = str(key.value) if key.id == "scalar" else None
            if name is None or name in out:
                twice = f"the key {name!r} stands there twice" if name else "a key is no text"
                raise ValueError(f"line {key.start_mark.line + 1}: {twice}")
            out[name] = _plain(value, (*above, node), count)
        return out
    word = str(node.value)
    if node.style is not None:  # in quotes, or a block
        return word
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if _INT.match(word):
        return int(word)
    if _FLOAT.match(word):
        return float(word)
    return word
