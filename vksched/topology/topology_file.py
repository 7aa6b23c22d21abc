"""Topology files: descriptions of machines that are not present, in YAML or JSON.

Problem: a plan for absent cards needs their figures, and a typing error in one of them gives a plan
that looks right. Method: one reader for both formats. It rejects unknown keys and suggests similar
ones. A device may take its figures from a preset, and one entry may describe several devices.

    devices:
      - name: fast
        preset: rx7900xtx           # presets.py
        link: pcie4x16              # to the host's memory, link_presets.py
      - name: card
        count: 2                    # card:0 and card:1
        memory_gib: 8
        tflops: 4.5                 # achieved by kernels, not the data sheet's
        gb_per_s: 170
    links:
      - between: [card:0, cpu]
        gb_per_s: 6
        latency_us: 10
    network: ethernet25g            # between hosts, as node1/card and node2/card

All other keys are fields of `DeviceSpec`, `Limits` and `Link`, with the unit in their name. The
default kind is "null": a device that is never opened. Complexity: O(devices). Examples:
tests/topology/test_topology_file.py.
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
"""Aliases of fields: the field, and the size of one unit of the alias."""
MAX_DEVICES = 4096
"""Maximum number of devices of one entry, and of a machine."""
MAX_JSON_CHARS, MAX_YAML_CHARS = 1 << 28, 1 << 22
"""Maximum length of a file. A printed plan of a large graph is long; YAML is written by hand."""
MAX_NODES = 200_000
"""Maximum number of values of a YAML text; each use of an alias counts."""
KEYS = ("about", "devices", "links", "network")
DEVICE_KEYS = ("preset", "count", "link", "memory_gib", "tflops", "gb_per_s")
LINK_KEYS = ("bytes_per_s", "latency_s", "gb_per_s", "latency_us")


def load_topology(source: str | PathLike[str]) -> Topology:
    """Return the topology of a file or of a preset.

    Parameters
    ----------
    source
        A file name that ends in .yaml or .yml is read as YAML, any other one as JSON. The
        output of `vksched plan --json` is accepted. "preset:two-cards" is a machine that the
        package includes.

    Returns
    -------
    Topology
        The devices and links.

    Raises
    ------
    PlanError
        The file cannot be read or is invalid; the message says where and why.
    """
    text = str(source)
    if text.startswith(PREFIX):
        return topology_of(topology_data(text.removeprefix(PREFIX)))
    data = _read(Path(source))
    return topology_of(data.get("topology", data) if isinstance(data, Mapping) else data)


def topology_of(data: object) -> Topology:
    """Return a topology from plain data with presets, counts and named links.

    Raises
    ------
    PlanError
        The data is invalid; the message names the place.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("devices"), list):
        return Topology.from_dict(data)  # raises the error
    about = data.get("about", "")
    if not isinstance(about, str):
        raise PlanError(f"[topology] expected a text as about, got {about!r}")
    devices: list[Any] = []
    listed = data.get("links", [])
    entries = listed if isinstance(listed, list) else [listed]
    links = [_link_entry(entry, f"link {number}") for number, entry in enumerate(entries)]
    named = _linked_pairs(links)
    cpu = _cpu(data["devices"])
    for number, entry in enumerate(data["devices"]):
        for device, link in _devices(entry, f"device {number}"):
            devices.append(device)
            if len(devices) > MAX_DEVICES:
                raise PlanError(f"[topology] expected at most {MAX_DEVICES} devices, got more")
            name = device["name"]
            host = host_of(name) if isinstance(name, str) else DRIVER
            memory = on(host, CPU) if host != DRIVER else cpu
            if link is not None and not named & {(name, memory), (memory, name)}:
                links.append({"between": [name, memory], **asdict(link)})
    for key in data:
        if key not in KEYS:
            near = _similar_names(str(key), KEYS)
            raise PlanError(f"[topology] there is no top-level key {key!r}; try {near}")
    out: dict[str, Any] = {"devices": devices, "links": links}
    if "network" in data:
        out["network"] = _network(data["network"])
    return Topology.from_dict(out)


def _network(value: object) -> object:
    """Return the default network link as `Topology.from_dict` reads it."""
    if isinstance(value, str):
        return asdict(way(value))
    if not isinstance(value, Mapping):
        return value  # from_dict raises the error
    _check_keys(value, LINK_KEYS, "the network")
    return _convert_units(value, "the network")


def _cpu(entries: Iterable[object]) -> str:
    """Return the name of the driver's CPU, "cpu" if none is listed."""
    for entry in entries:
        if isinstance(entry, Mapping) and entry.get("kind") == "cpu":
            name = str(entry.get("name", CPU))
            if host_of(name) == DRIVER:
                return name
    return CPU


def _devices(entry: object, where: str) -> list[tuple[dict[str, Any], Link | None]]:
    """Return the devices of one entry as `Topology.from_dict` reads them, with their links to the
    host.
    """
    if not isinstance(entry, Mapping):
        raise PlanError(f"[topology] expected a mapping for {where}, got {entry!r}")
    known = (*(f.name for f in fields(DeviceSpec)), *DEVICE_KEYS)
    _check_keys(entry, known, where)
    own = _convert_units(
        {k: v for k, v in entry.items() if k not in ("preset", "count", "link")}, where
    )
    link = _link(entry["link"], where) if "link" in entry else None
    if "preset" in entry:
        found = card(_text(entry["preset"], f"preset of {where}"))
        of_card = spec_as_dict(found.spec())
        if isinstance(own.get("limits"), Mapping):
            own["limits"] = {**of_card["limits"], **own["limits"]}
        own = {**of_card, **own}
        link = found.way if link is None else slower(found.way, link)
    if own.get("kind") is None:  # never opened; YAML reads null as no value
        own["kind"] = "null"
    count = entry.get("count", 1)
    if type(count) is not int or not 1 <= count <= MAX_DEVICES:
        raise PlanError(
            f"[topology] expected a count of 1 to {MAX_DEVICES} for {where}, got {count!r}"
        )
    if "count" not in entry:
        return [({**own, "name": own.get("name", "")}, link)]
    name = _text(own.get("name"), f"name of {where}")
    return [({**own, "name": f"{name}:{i}"}, link) for i in range(count)]


def _link_entry(entry: object, where: str) -> object:
    """Return a link as `Topology.from_dict` reads it."""
    if not isinstance(entry, Mapping):
        return entry  # from_dict raises the error
    _check_keys(entry, ("between", "link", *LINK_KEYS), where)
    rest = {k: v for k, v in entry.items() if k not in ("between", "link")}
    of_name = asdict(_link(entry["link"], where)) if "link" in entry else {}
    return {"between": entry.get("between"), **of_name, **_convert_units(rest, where)}


def _linked_pairs(links: Iterable[object]) -> set[tuple[str, str]]:
    """Return the pairs of devices with explicit links, which override a device's own link in both
    directions.

    Raises
    ------
    PlanError
        A pair is listed twice.
    """
    out: set[tuple[str, str]] = set()
    for link in links:
        ends = link.get("between") if isinstance(link, Mapping) else None
        if isinstance(ends, (list, tuple)) and len(ends) == 2:  # else from_dict raises the error
            pair = str(ends[0]), str(ends[1])
            if pair in out:
                raise PlanError(
                    f"[topology] expected one link from {pair[0]} to {pair[1]}, got two; try one of"
                    " them, or change its ends for the way back"
                )
            out.add(pair)
    return out


def _link(value: object, where: str) -> Link:
    """Return the link of a preset name or of explicit figures."""
    if isinstance(value, str):
        return way(value)
    if not isinstance(value, Mapping):
        raise PlanError(
            f"[topology] expected the name of a link, as pcie4x16, or its bytes_per_s and latency_s"
            f" for {where}, got {value!r}"
        )
    _check_keys(value, LINK_KEYS, f"the link of {where}")
    figures = _convert_units(value, f"the link of {where}")
    for key, value in figures.items():
        if as_number(value) is None:
            raise PlanError(
                f"[topology] expected a number of 0 or more as {key} of the link of {where}, got "
                f"{value!r}"
            )
    if not figures.get("bytes_per_s", 1):
        raise PlanError(f"[topology] expected a speed above 0 for the link of {where}, got 0")
    return Link(**figures)


def _convert_units(entry: Mapping[Any, Any], where: str) -> dict[str, Any]:
    """Return fields converted from the units in their names."""
    out: dict[str, Any] = {}
    for key, value in entry.items():
        field, factor = UNITS.get(key, (key, None))
        if field in out or (factor is not None and field in entry):
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
            near = _similar_names(str(key), names)
            raise PlanError(f"[topology] {where} has no field {key!r}; try {near}")


def _similar_names(key: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(key, list(names), 1, 0.4)
    return found[0] if found else ", ".join(names)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise PlanError(f"[topology] expected a text as {what}, got {value!r}")
    return value


# -- formats ---------------------------------------------------------------------------------------


def _read(path: Path) -> object:
    """Return the plain data of a file."""
    try:
        is_yaml = path.suffix.lower() in (".yaml", ".yml")
        max_chars = MAX_YAML_CHARS if is_yaml else MAX_JSON_CHARS
        with path.open(encoding="utf-8") as file:
            text = file.read(max_chars + 1)
        if len(text) > max_chars:
            raise ValueError(f"expected at most {max_chars:,} characters of a machine, got more")
        if is_yaml:
            return read_yaml(text)
        return json.loads(text, object_pairs_hook=_unique_keys)
    except OSError as error:
        raise PlanError(f"[topology] cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise PlanError(f"[topology] cannot read {path}: {reason}") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON mapping after checking that its keys are unique."""
    out = dict(pairs)
    if len(out) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is not unique")
    return out


_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_INT = re.compile(r"[-+]?\d[\d_]*\Z", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?\Z", re.ASCII)


def read_yaml(text: str) -> object:
    """Return the plain data of a YAML text by the rules of YAML 1.2: 9e12 is a number, and "no" is
    a text.

    Raises
    ------
    PlanError
        PyYAML is missing.
    ValueError
        The text is not YAML, has a duplicate key, or has over MAX_NODES values.
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
    """Return the plain data of a PyYAML node. above: the nodes that contain it. count: a counter
    over all nodes, because nested aliases can expand to any number of values.
    """
    line = node.start_mark.line + 1
    if next(count) > MAX_NODES:
        raise ValueError(f"line {line}: expected at most {MAX_NODES:,} values, got more")
    if any(node is each for each in above):
        raise ValueError(f"line {line}: a value contains itself")
    if not node.tag.startswith("tag:yaml.org") or "python" in node.tag:
        raise ValueError(f"line {line}: expected no tag, got {node.tag}")
    if node.id == "sequence":
        return [_plain(item, (*above, node), count) for item in node.value]
    if node.id == "mapping":
        out: dict[str, object] = {}
        for key, value in node.value:
            name = str(key.value) if key.id == "scalar" else None
            if name is None or name in out:
                twice = f"the key {name!r} is not unique" if name else "a key is no text"
                raise ValueError(f"line {key.start_mark.line + 1}: {twice}")
            out[name] = _plain(value, (*above, node), count)
        return out
    word = str(node.value)
    if node.style is not None:  # quoted, or a block
        return word
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if _INT.match(word):
        return int(word)
    if _FLOAT.match(word):
        return float(word)
    return word
