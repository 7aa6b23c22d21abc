"""Presets: cards and machines by name, from published specifications.

Problem: "does adding this card help?" is asked before the card is bought. Method: a file for each
card in `data/cards`, with its published figures. Kernels are assumed to reach a fixed share of
them, equal for all cards, so that comparisons are fair. A machine in `data/machines` has the format
of user files (topology_file.py) and names cards.

    data/cards/rx6600.json   8.93 TFLOPS, 224 GB/s, 8 GiB, pcie4x8
        --> DeviceSpec(flops_per_s=4.5e12, bytes_per_s=1.7e11, memory_bytes=7 GiB), Link

Complexity: O(1), one small file each. Examples: tests/topology/test_presets.py.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from ..common.errors import PlanError
from .device_spec import GIB, DeviceSpec
from .limits import Limits
from .link_presets import way
from .links import Link

PREFIX = "preset:"
"""The prefix of a preset's name if a file name would be accepted, too."""
FLOPS_SHARE = 0.5
"""Estimated share of the specified arithmetic that kernels reach."""
BYTES_SHARE = 0.75
"""Estimated share of the specified memory bandwidth that kernels reach."""
MEMORY_SHARE = 7 / 8
"""Share of the memory for plans: the screen, the driver and pipelines need the rest."""
SUBMIT_S = 30e-6


@dataclass(frozen=True, slots=True)
class Card:
    """A card by its published specifications.

    Parameters
    ----------
    flops_per_s
        Peak float32 rate.
    bytes_per_s
        Peak memory bandwidth.
    link
        The link preset of its connector, as "pcie4x8".
    year
        The year of its release.
    busy_watts
        Board power.
    idle_watts
        Estimated idle power; specifications have none.
    source
        The source of the other figures.
    note
        Remarks for readers.
    """

    name: str
    label: str
    year: int
    source: str
    note: str
    integrated: bool
    memory_bytes: int
    flops_per_s: float
    bytes_per_s: float
    link: str
    busy_watts: float
    idle_watts: float
    limits: Limits

    @property
    def way(self) -> Link:
        """The link to the host, in a slot that is not slower than the card."""
        return way(self.link)

    def spec(self, name: str = "") -> DeviceSpec:
        """Return the card as the planner's device spec.

        The kind is "null": a device that is never opened.

        Parameters
        ----------
        name
            The device name; by default the card's.
        """
        memory_bytes = int(self.memory_bytes * MEMORY_SHARE)
        return DeviceSpec(
            name=name or self.name,
            kind="null",
            label=f"{self.label}, by its specification",
            limits=self.limits,
            memory_bytes=memory_bytes,
            max_buffer_bytes=min(GIB, self.limits.max_buffer_bytes),
            flops_per_s=self.flops_per_s * FLOPS_SHARE,
            bytes_per_s=self.bytes_per_s * BYTES_SHARE,
            submit_s=SUBMIT_S,
            unified_memory=self.integrated,
            busy_watts=self.busy_watts,
            idle_watts=self.idle_watts,
        )


def card_names() -> tuple[str, ...]:
    """Return the names of all cards."""
    return _names("cards")


def topology_names() -> tuple[str, ...]:
    """Return the names of all machines."""
    return _names("machines")


@cache
def card(name: str) -> Card:
    """Return a card by name.

    Raises
    ------
    PlanError
        There is none with this name; the message lists all and suggests a similar one.
    """
    data = _read("cards", name)
    limits: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in data["limits"].items()
    }
    return Card(
        name=name,
        label=data["label"],
        year=data["year"],
        source=data["source"],
        note=data.get("note", ""),
        integrated=data.get("integrated", False),
        memory_bytes=int(data["memory_gib"] * GIB),
        flops_per_s=data["peak_tflops"] * 1e12,
        bytes_per_s=data["peak_gb_per_s"] * 1e9,
        link=data["link"],
        busy_watts=float(data["busy_watts"]),
        idle_watts=float(data["idle_watts"]),
        limits=Limits(**limits),
    )


def topology_data(name: str) -> Mapping[str, Any]:
    """Return a machine as plain data for topology_file.py.

    Raises
    ------
    PlanError
        There is none with this name; the message lists all and suggests a similar one.
    """
    return _read("machines", name)


def _names(kind: str) -> tuple[str, ...]:
    found = (entry.name for entry in _folder(kind).iterdir())
    return tuple(sorted(name[:-5] for name in found if name.endswith(".json")))


def _folder(kind: str) -> Any:
    return resources.files(__package__) / "data" / kind


def _read(kind: str, name: str) -> dict[str, Any]:
    names = _names(kind)
    if name not in names:
        near = difflib.get_close_matches(name, names, 1, 0.4)
        other = "machines" if kind == "cards" else "cards"
        hint = f"; try {near[0]}" if near else ""
        if name in _names(other):
            hint = f"; {name} is one of the {other}"
        raise PlanError(
            f"[topology] expected a preset among the {kind} {', '.join(names)}, got {name!r}{hint}"
        )
    text = (_folder(kind) / f"{name}.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data
