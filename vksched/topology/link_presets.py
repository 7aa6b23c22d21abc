"""Link presets: links by name, with typical rates.

Problem: for a machine that is not present, users know the slot of a card, not its bytes per second.
Method: a name for each kind of slot and network. The rate is that of the standard minus protocol
overhead. It is an estimate until `vksched calibrate` measures the real link.

    pcie4x16     16 lanes of 1.97 GB/s, 80 % payload: 25.2 GB/s
    ethernet10g  10 Gbit/s, 90 % payload: 1.1 GB/s

Complexity: O(1). Examples: tests/topology/test_topology_file.py.
"""

from __future__ import annotations

import difflib

from ..common.errors import PlanError
from .links import Link

LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9}
"""Rate of a PCI Express lane by generation, in one direction, after line coding. Source: the
standards of PCI-SIG.
"""
LANES = (1, 2, 4, 8, 16)
PCIE_SHARE = 0.8
"""Estimated payload share: packets have headers."""
PCIE_LATENCY_S = 10e-6
ETHERNET_GBIT_PER_S = (1, 2.5, 10, 25, 40, 100, 200, 400)
ETHERNET_SHARE = 0.9
ETHERNET_LATENCY_S = 50e-6

WAYS: dict[str, Link] = {
    **{
        f"pcie{generation}x{lanes}": Link(PCIE_SHARE * lanes * rate, PCIE_LATENCY_S)
        for generation, rate in LANE_BYTES_PER_S.items()
        for lanes in LANES
    },
    **{
        f"ethernet{gbit:g}g": Link(ETHERNET_SHARE * gbit * 1e9 / 8, ETHERNET_LATENCY_S)
        for gbit in ETHERNET_GBIT_PER_S
    },
    "thunderbolt4": Link(PCIE_SHARE * 4 * LANE_BYTES_PER_S[3], 15e-6),
    "memory": Link(2e10, 1e-6),
}
"""All presets. thunderbolt4 carries four lanes of PCI Express 3. memory: an integrated device in
the host's own memory; transfers are copies by the host.
"""


def way(name: str) -> Link:
    """Return a link preset by name.

    Raises
    ------
    PlanError
        There is no preset with this name; the message suggests a similar one.
    """
    found = WAYS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, WAYS, 1, 0.4)
        hint = near[0] if near else "pcie4x16, ethernet10g, thunderbolt4 or memory"
        raise PlanError(f"[topology] expected the name of a link, got {name!r}; try {hint}")
    return found


def slower(one: Link, other: Link) -> Link:
    """Return the link of two links in series, as a card's and its slot's."""
    return Link(min(one.bytes_per_s, other.bytes_per_s), max(one.latency_s, other.latency_s))
