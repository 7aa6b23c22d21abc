"""Change: a machine with a device less or more.

    without(machine, "vulkan:1")                       what if this card were not here
    alone(machine, "vulkan:0")                         or were the only one
    with_device(machine, card("rx6600").spec())        or one more were
    changed(machine, "-vulkan:1,+preset:rx6600@pcie4x4")

The CPU always stays, as it runs what no other device can. Complexity: O(devices + links). Examples:
tests/topology/test_edit.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace

from ..common.errors import PlanError
from .device_spec import DeviceSpec
from .host_names import DRIVER, host_of
from .link_presets import slower, way
from .links import Link
from .presets import PREFIX, card, card_names
from .topology import Topology


def without(topology: Topology, name: str) -> Topology:
    """Return a machine less one device and its links, or less a host with all its devices.

    Raises:
        PlanError: there is no such device or host, or it is the CPU.
    """
    names = [spec.name for spec in topology.devices]
    if name in topology.hosts and name != DRIVER and name not in names:
        return _only(topology, [each for each in names if host_of(each) != name])
    _find(topology, name)
    return _only(topology, [each for each in names if each != name])


def alone(topology: Topology, name: str) -> Topology:
    """Return a machine with one device, the CPU of its host and the caller's, or with the latter
    only.

    Raises:
        PlanError: there is no such device.
    """
    if name != topology.devices[topology.cpu].name:
        _find(topology, name)
    return some(topology, [name])


def some(topology: Topology, names: Sequence[str]) -> Topology:
    """Return a machine with some of its devices, the CPUs of their hosts and the caller's.

    Raises:
        PlanError: there is no such device.
    """
    host = topology.devices[topology.cpu].name
    for name in names:
        if name != host:
            _find(topology, name)
    cpus = (topology.cpu_of(topology.index(name)) for name in names)
    return _only(
        topology, [*names, *(topology.devices[d].name for d in cpus if d is not None), host]
    )


def with_device(topology: Topology, spec: DeviceSpec, link: Link | None = None) -> Topology:
    """Return a machine with one more device, the last one before the CPU.

    link: to the CPU; that of the machine's unnamed pairs by default. A name that is taken gets a
    number, as "rx6600#2".
    """
    *devices, host = topology.devices
    taken = {device.name for device in topology.devices}
    count, name = 1, spec.name
    while name in taken:
        count += 1
        name = f"{spec.name}#{count}"
    pairs = topology.links.pairs
    if link is not None:
        pairs = (*pairs, (name, host.name, link))
    made = (*devices, replace(spec, name=name), host)
    return Topology(made, replace(topology.links, pairs=pairs)).verify()


def changed(topology: Topology, text: str) -> Topology:
    """Return a machine after some changes, separated by commas: "-NAME" takes a device or a host
    away, "+preset:CARD" adds a card in its own kind of slot, "+preset:CARD@LINK" in one that may be
    slower, as "+preset:rx6600@pcie4x4".

    Raises:
        PlanError: what is wrong with the text; there is no such device, card or link.
    """
    for part in (word.strip() for word in text.split(",")):
        if part.startswith("-") and len(part) > 1:
            topology = without(topology, part[1:])
        elif part.startswith(f"+{PREFIX}"):
            name, at, slot = part.removeprefix(f"+{PREFIX}").partition("@")
            found = card(name)
            link = slower(found.way, way(slot)) if at else found.way
            topology = with_device(topology, found.spec(), link)
        else:
            raise PlanError(
                f"[what-if] expected -DEVICE, +{PREFIX}CARD or +{PREFIX}CARD@LINK, got {part!r}"
                + _meant(topology, part)
            )
    return topology


def _only(topology: Topology, names: list[str]) -> Topology:
    kept = set(names)
    devices = tuple(spec for spec in topology.devices if spec.name in kept)
    hosts = {host_of(spec.name) for spec in devices}
    ends = kept | set(map(topology.memory_of, hosts))
    pairs = tuple(pair for pair in topology.links.pairs if ends.issuperset(pair[:2]))
    return Topology(devices, replace(topology.links, pairs=pairs)).verify()


def _meant(topology: Topology, part: str) -> str:
    """Return the change that a text without its sign or its prefix may stand for, as advice."""
    name = part.lstrip("+").partition("@")[0].removeprefix(PREFIX)
    if name in card_names():
        return f"; try +{PREFIX}{part.lstrip('+').removeprefix(PREFIX)}"
    devices = [spec.name for at, spec in enumerate(topology.devices) if at != topology.cpu]
    return f"; try -{part}" if part in devices else ""


def _find(topology: Topology, name: str) -> None:
    host = topology.devices[topology.cpu].name
    names = [spec.name for spec in topology.devices if spec.name != host]
    if name == host:
        raise PlanError(
            f"[what-if] {name} cannot be taken away: it runs what no other device can; try a plan "
            "without naming it"
        )
    if name not in names:
        near = difflib.get_close_matches(name, names, 1, 0.4)
        hint = f"; try {near[0]}" if near else ""
        if not names:
            raise PlanError(
                f"[what-if] expected a device to take away, got {name!r}: there is only {host}; "
                "try without it"
            )
        raise PlanError(f"[what-if] expected one of {', '.join(names)}, got {name!r}{hint}")
