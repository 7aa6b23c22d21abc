"""The table of cards, from the files that users send: reports of `vksched doctor --output`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tables import Table

from vksched.doctor.health_report import DeviceHealth, Measurement, read_report

COLUMNS = (
    "device",
    "driver",
    "vksched",
    "op cases equal to numpy",
    "float32, GFLOP/s",
    "copy, GB/s",
    "prompt, tokens/s",
    "decode, tokens/s",
)


def hardware_table(folder: Path) -> Table:
    """Return the table of all devices of all files, GPUs first.

    Raises
    ------
    VkschedError
        A file does not follow the schema of reports.
    """
    reports = [(path, read_report(path)) for path in sorted(folder.glob("*.json"))]
    rows = [
        (device.type == "cpu", device.label.lower(), tuple(_row(device, report.system.vksched)))
        for _, report in reports
        for device in report.devices
        if device.proof is not None or device.measured
    ]
    return Table(COLUMNS, tuple(row for *_, row in sorted(rows)))


def _row(device: DeviceHealth, version: str) -> Iterator[str]:
    yield device.label
    yield device.driver
    yield version
    proof = device.proof
    yield "not run" if proof is None else f"{proof.right:,} of {proof.cases - proof.on_cpu:,}"
    for name in ("float32 arithmetic", "copy in memory", "prompt", "token at"):
        found = next((one for one in device.measured if name in one.name), None)
        yield "" if found is None else _cell(found)


def _cell(one: Measurement) -> str:
    others = ", ".join(f"{name} {value:,.0f}" for name, value in one.baselines.items())
    return f"{one.value:,.0f}" + (f" ({others})" if others else "")
