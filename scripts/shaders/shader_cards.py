"""The cards that shader_stats.py compiles for, none of which is there, and Mesa's words for them.

Mesa compiles for a card that it only believes in: RADV by a variable (RADV_FORCE_FAMILY, up to
Mesa 25), every driver by a library of the package mesa-drm-shim that answers in the kernel's place.
A card lists its ways; the first that shows a device is taken. Standard library only.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "setup"))
from setup_vulkan import ICD_FOLDERS

SHIM_FOLDERS = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib")
HIDDEN = ("VK_INSTANCE_LAYERS", "VK_LOADER_LAYERS_ENABLE", "VK_ADD_DRIVER_FILES")
"""Layers would add their own messages and time to every pipeline."""


class StatsError(Exception):
    """The driver is not there, or it failed."""


@dataclass(frozen=True)
class Maker:
    """driver: how the name of its driver's manifest begins. shim: the library that stands for the
    kernel. variable: how the shim is told the card. registers: as in Limits. statistics: what Mesa
    calls each field of `Statistics`, in any case of letters; those in `newer` are told by newer
    drivers only, and are 0 else.
    """

    driver: str
    shim: str
    variable: str
    statistics: Mapping[str, str]
    newer: Mapping[str, str]
    install: str
    registers: int = 255

    def manifests(self) -> list[Path]:
        """Return the manifests of the driver for this machine's architecture."""
        found = (path for f in ICD_FOLDERS for path in sorted(Path(f).glob(f"{self.driver}*.json")))
        fitting = {f"{self.driver}.json", f"{self.driver}.{platform.machine()}.json"}
        return [path for path in found if path.name in fitting]

    def shims(self) -> list[Path]:
        return [p for folder in SHIM_FOLDERS if (p := Path(folder) / self.shim).exists()][:1]


AMD = Maker(
    "radeon_icd",
    "libamdgpu_noop_drm_shim.so",
    "AMDGPU_GPU_ID",
    {
        "vgprs": "VGPRs",
        "sgprs": "SGPRs",
        "shared_bytes": "LDS size",
        "waves": "Subgroups per SIMD",
        "cycles": "Inverse Throughput",
        "latency_cycles": "Latency",
        "code_bytes": "Code size",
        "spilled_vgprs": "Spilled VGPRs",
        "spilled_sgprs": "Spilled SGPRs",
        "scratch_bytes": "Scratch size",
    },
    {},
    "mesa-vulkan-drivers (from Mesa 26 on mesa-drm-shim, too)",
)
NVIDIA = Maker(
    "nouveau_icd",
    "libnouveau_noop_drm_shim.so",
    "NOUVEAU_CHIPSET",
    {
        "vgprs": "Number of GPRs",
        "code_bytes": "Code size",
        "scratch_bytes": "SLM size",
        "instructions": "Instruction count",
    },
    {
        "waves": "Max warps/SM",
        "cycles": "Static cycle count",
        "spilled_vgprs": "Spills to memory",
    },
    "mesa-vulkan-drivers and mesa-drm-shim, Mesa 25 or newer",
)
INTEL = Maker(
    "intel_icd",
    "libintel_noop_drm_shim.so",
    "INTEL_STUB_GPU_PLATFORM",
    {
        "vgprs": "Max live registers",
        "cycles": "Cycle Count",
        "scratch_bytes": "Scratch Memory Size",
        "instructions": "Instruction Count",
        "spilled_vgprs": "Spill Count",
        "fills": "Fill Count",
    },
    {"shared_bytes": "Workgroup Memory Size"},
    "mesa-vulkan-drivers, and build the shim from Mesa's source (docs/development/shaders.md)",
    registers=128,
)


@dataclass(frozen=True)
class Card:
    """names: Mesa's for it, which have changed."""

    maker: Maker
    names: tuple[str, ...]

    def environments(self) -> Iterator[dict[str, str]]:
        """The ways to make Mesa believe in the card, one after the other to be tried."""
        manifests = os.pathsep.join(map(str, self.maker.manifests()))
        base = {k: v for k, v in os.environ.items() if k not in HIDDEN}
        base |= {"MESA_SHADER_CACHE_DISABLE": "true"}
        base |= {"VK_DRIVER_FILES": manifests, "VK_ICD_FILENAMES": manifests}
        if self.maker is AMD:
            yield from (base | {"RADV_FORCE_FAMILY": name} for name in self.names)
        for shim in self.maker.shims():
            preload = {"LD_PRELOAD": str(shim)}
            yield from (base | preload | {self.maker.variable: name} for name in self.names)

    def exists(self) -> bool:
        """Return True if its driver and dependencies exist; an old driver may not know the card."""
        return bool(self.maker.manifests() and (self.maker is AMD or self.maker.shims()))


CARDS = {
    "vega10": Card(AMD, ("vega10",)),
    "navi10": Card(AMD, ("navi10",)),
    "navi21": Card(AMD, ("navi21",)),
    "navi31": Card(AMD, ("navi31", "gfx1100")),
    "ga102": Card(NVIDIA, ("172",)),
    **{name: Card(INTEL, (name,)) for name in ("tgl", "adl", "dg2", "mtl", "lnl", "bmg")},
}
"""By generation: GCN 5, RDNA 1, 2, 3; Ampere; Xe-LP (tgl, adl), Xe-HPG (dg2, mtl), Xe2 (lnl, bmg).
"""
WITH_COOPMAT = {
    "navi31": CARDS["navi31"],
    "gfx1201": Card(AMD, ("gfx1201",)),
    "ga102": CARDS["ga102"],
    **{name: CARDS[name] for name in ("dg2", "lnl", "bmg")},
}
"""Those with cooperative matrices, as Mesa 25 and newer know them: RDNA 3 and 4; Ampere; Xe-HPG and
Xe2.
"""


@dataclass(frozen=True)
class MatrixUnits:
    """Cooperative matrices of some cards. lanes: size of the subgroup. sizes: subgroup sizes of a
    card. fp16, int8: rows, columns and depth of matrices.
    """

    lanes: int
    sizes: tuple[int, ...]
    fp16: str
    int8: str
    cards: tuple[str, ...]

    @property
    def maker(self) -> Maker:
        return WITH_COOPMAT[self.cards[0]].maker


COOPMAT = (
    MatrixUnits(32, (32, 64), "16x16x16", "16x16x16", ("navi31", "gfx1201")),
    MatrixUnits(64, (32, 64), "16x16x16", "16x16x16", ("navi31", "gfx1201")),
    MatrixUnits(32, (32,), "16x16x16", "16x16x32", ("ga102",)),
    MatrixUnits(8, (8, 16, 32), "8x8x16", "8x8x32", ("dg2",)),
    MatrixUnits(16, (16, 32), "8x16x16", "8x16x32", ("lnl", "bmg")),
)
