"""Edits of a topology: remove or add devices.

    without(machine, "vulkan:1")                       without this card
    alone(machine, "vulkan:0")                         with this card only
    with_device(machine, card("rx6600").spec())        with one more card
    changed(machine, "-vulkan:1,+preset:rx6600@pcie4x4")

The CPU always stays, because it runs the ops that no other device supports. Complexity: O(devices +
links). Examples: tests/topology/test_edit.py.
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
    """Return a topology without one device and its links, or without a host and its devices.

    Raises
    ------
    PlanError
        There is no device or host with this name, or it is the CPU.
    """
    names = [spec.name for spec in topology.devices]
    if name in topology.hosts and name != DRIVER and name not in names:
        return _subset(topology, [each for each in names if host_of(each) != name])
    _find(topology, name)
    return _subset(topology, [each for each in names if each != name])


def alone(topology: Topology, name: str) -> Topology:
    """Return a topology with one device, the CPU of its host and the driver's CPU; with the
    driver's CPU alone if that is named.

    Raises
    ------
    PlanError
        There is no device with this name.
    """
    if name != topology.devices[topology.cpu].name:
        _find(topology, name)
    return some(topology, [name])


def some(topology: Topology, names: Sequence[str]) -> Topology:
    """Return a topology with some devices, the CPUs of their hosts and the driver's CPU.

    Raises
    ------
    PlanError
        There is no device with one of these names.
    """
    host = topology.devices[topology.cpu].name
    for name in names:
        if name != host:
            _find(topology, name)
    cpus = (topology.cpu_of(topology.index(name)) for name in names)
    return _subset(
        topology, [*names, *(topology.devices[d].name for d in cpus if d is not None), host]
    )


def with_device(topology: Topology, spec: DeviceSpec, link: Link | None = None) -> Topology:
    """Return a topology with one more device, the last one before the CPU of its host.

    Parameters
    ----------
    link
        The link to that CPU; by default that of pairs without a link. A name that exists gets a
        number, as "rx6600#2".
    """
    devices, host = list(topology.devices), host_of(spec.name)
    taken = {device.name for device in devices}
    count, name = 1, spec.name
    while name in taken:
        count += 1
        name = f"{spec.name}#{count}"
    pairs = topology.links.pairs
    if link is not None:
        pairs = (*pairs, (name, topology.memory_of(host), link))
    cpus = [d for d in topology.order if topology.is_cpu(d) and topology.host_of(d) == host]
    devices.insert(cpus[0] if cpus else topology.cpu, replace(spec, name=name))
    return Topology(tuple(devices), replace(topology.links, pairs=pairs)).verify()


def changed(topology: Topology, text: str) -> Topology:
    """Return a topology after edits, separated by commas: "-NAME" removes a device or a host,
    "+preset:CARD" adds a card with its own link, "+preset:CARD@LINK" with a link that may be
    slower, as "+preset:rx6600@pcie4x4".

    Raises
    ------
    PlanError
        The text is wrong, or there is no device, card or link with that name.
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
                + _suggestion(topology, part)
            )
    return topology


def _subset(topology: Topology, names: list[str]) -> Topology:
    selected = set(names)
    devices = tuple(spec for spec in topology.devices if spec.name in selected)
    hosts = {host_of(spec.name) for spec in devices}
    ends = selected | set(map(topology.memory_of, hosts))
    pairs = tuple(pair for pair in topology.links.pairs if ends.issuperset(pair[:2]))
    return Topology(devices, replace(topology.links, pairs=pairs)).verify()


def _suggestion(topology: Topology, part: str) -> str:
    """Return the edit that a text without sign or prefix may mean, for the error message."""
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
            f"[what-if] {name} cannot be removed: it runs ops that no other device supports; "
            "try a plan without naming it"
        )
    if name not in names:
        near = difflib.get_close_matches(name, names, 1, 0.4)
        hint = f"; try {near[0]}" if near else ""
        if not names:
            raise PlanError(
                f"[what-if] expected a device to remove, got {name!r}: there is only {host}; "
                "try without it"
            )
        raise PlanError(f"[what-if] expected one of {', '.join(names)}, got {name!r}{hint}")
