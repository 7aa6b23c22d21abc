"""Known faults of drivers exclude features, by driver, version and card."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from test_devices import raw

from vksched.runtime.vulkan import driver_probe
from vksched.runtime.vulkan.device_probe import survey
from vksched.topology import driver_faults
from vksched.topology.driver_faults import FAULTS, DriverFault, faults_of, version_of
from vksched.topology.limits import Limits

UNITS = ["float16*float16+float32 16x16x16"]
ARC = {"name": "Intel(R) Arc(TM) B580 Graphics", "vendor_id": 0x8086}
FAKE_FAULT = DriverFault(
    "made up", "^venus", ("float16", "subgroup_sizes"), "wrong sums", "https://x", before=(25, 1)
)


@pytest.mark.parametrize(
    ("driver", "version"),
    [
        ("radv Mesa 23.1.0", (23, 1, 0)),
        ("llvmpipe Mesa 22.3.6 (LLVM 15.0.6)", (22, 3, 6)),
        ("radv Mesa 25.0.7-0ubuntu0.24.04.2", (25, 0, 7)),
        ("radv Mesa 25.2.1-arch1.2", (25, 2, 1)),
        ("radv Mesa 24.2.8-1ubuntu1~24.04.1", (24, 2, 8)),
        ("Intel open-source Mesa driver Mesa 23.2.1-1ubuntu3.1~22.04.4", (23, 2, 1)),
        ("NVK Mesa 25.3.0-devel (git-0123456789)", (25, 3, 0)),
        ("Intel Corporation 101.8826", (101, 8826)),
        ("MoltenVK 1.2.9", (1, 2, 9)),
        ("NVIDIA 580.159.04", (580, 159, 4)),
        ("driver", ()),
    ],
)
def test_the_version_is_the_drivers_own(driver: str, version: tuple[int, ...]) -> None:
    assert version_of(driver) == version


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_entries_name_fields_of_limits_and_a_source(fault: DriverFault) -> None:
    assert fault.leave_out
    assert set(fault.leave_out) <= {field.name for field in fields(Limits)} - {"tuned"}
    assert fault.source.startswith("https://")
    assert sum(other.name == fault.name for other in FAULTS) == 1


@pytest.mark.parametrize(
    ("label", "vendor", "driver", "names"),
    [
        (
            "Intel(R) Arc(TM) B580",
            "Intel",
            "Intel Corporation 101.6870",
            ["intel-windows-matrices"],
        ),
        ("Intel(R) Arc(TM) B580", "Intel", "Intel open-source Mesa driver Mesa 25.1.0", []),
        (
            "AMD Radeon RX 6800",
            "AMD",
            "AMD proprietary driver 26.3.1",
            ["amd-proprietary-matrices"],
        ),
        ("AMD Radeon RX 7900 XTX", "AMD", "AMD proprietary driver 26.3.1", []),
        ("AMD Radeon RX 7650 GRE", "AMD", "AMD proprietary driver 26.3.1", []),
        ("AMD Radeon 780M Graphics", "AMD", "AMD proprietary driver 26.3.1", []),
        ("AMD Radeon(TM) 8060S Graphics", "AMD", "AMD proprietary driver 26.3.1", []),
        ("AMD Instinct MI300X", "AMD", "AMD open-source driver 2025.1", []),
        (
            "Radeon RX 580 Series",
            "AMD",
            "AMD proprietary driver 24.9",
            ["amd-proprietary-matrices"],
        ),
        ("AMD Radeon RX 9070 XT", "AMD", "AMD open-source driver 2025.1", []),
        ("AMD Radeon RX 6800 (RADV NAVI21)", "AMD", "radv Mesa 25.0.1", []),
        ("AMD Radeon Pro 580X", "AMD", "MoltenVK 1.2.9", ["moltenvk-amd-shuffle"]),
        ("Apple M1", "Apple", "MoltenVK 1.2.9", []),
    ],
)
def test_cards_with_and_without_a_fault(
    label: str, vendor: str, driver: str, names: list[str]
) -> None:
    assert [fault.name for fault in faults_of(label, vendor, driver)] == names


@pytest.mark.parametrize(
    ("driver", "has_fault"),
    [
        ("venus 24.9", True),
        ("Venus 25.0.9", True),
        ("Venus Mesa 25.0.7-0ubuntu0.26.04.2", True),
        ("Venus Mesa 25.2.1-arch1.2", False),
        ("venus 25.1", False),
        ("venus", True),
    ],
)
def test_a_fault_ends_with_the_version_that_mends_it(driver: str, has_fault: bool) -> None:
    assert FAKE_FAULT.applies("any card", "Red Hat", driver) == has_fault


def test_a_device_lacks_the_features_that_its_driver_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drivers: list[dict[str, Any]] = [
        raw(0, **ARC, driver_name="Intel Corporation", driver_info="101.8826"),
        raw(1, driver_name="venus", driver_info="Mesa 24.0.1"),
        raw(2),
    ]
    monkeypatch.setattr(driver_faults, "FAULTS", (*FAULTS, FAKE_FAULT))
    monkeypatch.setattr(driver_probe, "ask_drivers", lambda: driver_probe.Answer(tuple(drivers)))
    arc, venus, whole = survey().devices[:3]
    assert (arc.faults, venus.faults, whole.faults) == (
        ("intel-windows-matrices",),
        ("made up",),
        (),
    )
    assert whole.limits.matrices == tuple(UNITS)
    on_intel = replace(whole.limits, registers=128)
    assert replace(arc.limits, matrices=tuple(UNITS)) == on_intel
    assert replace(venus.limits, float16=True, subgroup_sizes=(32, 64)) == whole.limits
    monkeypatch.setenv("VKSCHED_IGNORE_DRIVER_FAULTS", "1")
    arc, venus, _ = survey().devices[:3]
    assert (arc.limits, venus.limits) == (on_intel, whole.limits)
    assert arc.faults == ()
