"""The number of slots that fit into the memory of devices: `--slots auto`."""

from __future__ import annotations

from collections.abc import Mapping

from ...common.errors import OutOfMemory

MAX_SLOTS = 8
"""The maximum number of slots unless the user asks for more: the rows of the widest decode step."""


def slots_for_memory(
    bytes_per_slot: Mapping[str, int], free_bytes: Mapping[str, int], max_slots: int = MAX_SLOTS
) -> int:
    """Return the number of slots whose keys and values fit into the memory of each device.

    Parameters
    ----------
    bytes_per_slot
        The size of the keys and values of one slot in bytes, by device.
    free_bytes
        The memory that is left for them in bytes, by device.

    Raises
    ------
    OutOfMemory
        A device has no memory for one slot.
    """
    slots = max_slots
    for device, size in bytes_per_slot.items():
        if size:
            slots = min(slots, free_bytes[device] // size)
        if slots < 1:
            raise OutOfMemory(
                f"[slots] expected {size:,} bytes for the KV cache of one slot on {device}, got "
                f"{free_bytes[device]:,}; try a smaller --ctx-size, or a smaller cache type"
            )
    return slots
