"""Number of cores of a GPU: each executes whole workgroups, so fewer workgroups leave cores idle.

    NVIDIA  streaming multiprocessors, VK_NV_shader_sm_builtins
    AMD     compute units, VK_AMD_shader_core_properties2, else VK_AMD_shader_core_properties
    Intel   Xe cores of a table of discrete cards, because no extension reports them; an integrated
            GPU has one PCI id for several sizes

Examples: tests/runtime/test_devices.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_INTEL = 0x8086
_INTEL_CORES: Mapping[int, int] = {
    # Xe-HPG
    0x56A0: 32,  # Arc A770
    0x5690: 32,  # Arc A770M
    0x56A1: 28,  # Arc A750
    0x5691: 24,  # Arc A730M
    0x56A2: 24,  # Arc A580
    0x5692: 16,  # Arc A550M
    0x56B3: 16,  # Arc Pro A60
    0x5697: 12,  # Arc A530M
    0x56A5: 8,  # Arc A380
    0x5693: 8,  # Arc A370M
    0x56B1: 8,  # Arc Pro A40, A50
    0x56A6: 6,  # Arc A310
    # Xe2-HPG
    0xE20B: 20,  # Arc B580
    0xE211: 20,  # Arc Pro B60
    0xE20C: 18,  # Arc B570
    0xE212: 16,  # Arc Pro B50
}
"""Xe cores by PCI device id, from Intel's public specifications."""


def core_count(raw: Mapping[str, Any]) -> int:
    """Return the number of cores of a device that the probe described; 0 if it is unknown."""
    reported = int(raw.get("cores") or 0)
    if reported == 0 and raw.get("vendor_id") == _INTEL:
        return _INTEL_CORES.get(int(raw.get("device_id") or 0), 0)
    return reported
