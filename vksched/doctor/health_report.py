"""The report of an examination, as values and as a JSON file that users attach to a report.

The file has no user names, paths, host names, UUIDs or serial numbers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..common.errors import VkschedError
from ..common.schema import LARGEST, Either, Table, Wrong, check

FORMAT = 1
MAX_BYTES = 4 << 20
"""The largest report file that is read."""
OK, NOTE, PROBLEM = LEVELS = ("ok", "note", "problem")
_HOME = str(Path.home())
_PATH = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\\/](?:[^\s\\/:'\"()]+[\\/])+[^\s\\/:'\"(),;]*")


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of the examination.

    Parameters
    ----------
    level
        "ok", "note" or "problem".
    subject
        The device or the part of the system.
    text
        The observation.
    remedy
        How to get it right; "" if nothing is to be done.
    """

    level: str
    subject: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class System:
    """The computer's software. drivers, layers: file names of manifests, and names of layers."""

    os: str
    machine: str
    python: str
    vksched: str
    loader: str
    drivers: tuple[str, ...]
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelFailure:
    """A case whose result was wrong, or at which the driver's process ended."""

    op: str
    case: str
    error: str


@dataclass(frozen=True, slots=True)
class KernelProof:
    """Counts of op cases. right: equal to numpy. on_cpu: without a kernel on this device."""

    cases: int
    right: int
    on_cpu: int
    failures: tuple[KernelFailure, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured rate. baselines: rates of other runtimes in the same rounds, by name."""

    name: str
    unit: str
    value: float
    baselines: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One device.

    Parameters
    ----------
    limits
        Its limits and features, without measured variants.
    missing
        The features that it lacks.
    faults
        The names of its driver's known faults.
    proof
        None if no kernel ran.
    """

    name: str
    label: str
    type: str
    vendor: str
    driver: str
    api_version: str
    memory_bytes: int
    limits: Mapping[str, Any]
    missing: tuple[str, ...]
    faults: tuple[str, ...]
    proof: KernelProof | None
    measured: tuple[Measurement, ...]


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The result of an examination."""

    system: System
    devices: tuple[DeviceHealth, ...]
    findings: tuple[Finding, ...]
    verdict: str

    @property
    def has_problem(self) -> bool:
        return any(finding.level == PROBLEM for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data without paths, as it is written to the file."""
        data: dict[str, Any] = _without_paths({"format": FORMAT, **asdict(self)})
        return data

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file. Raise VkschedError if it cannot be written."""
        try:
            Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            reason = error.strerror or str(error)
            raise VkschedError(f"[doctor] cannot write {path}: {reason}") from error


def _without_paths(data: Any) -> Any:
    """Return plain data whose texts have no folders."""
    if isinstance(data, str):
        return data if "://" in data else _PATH.sub("<path>", data.replace(_HOME, "/home/user"))
    if isinstance(data, Mapping):
        return {key: _without_paths(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_without_paths(value) for value in data]
    return data


_NUMBER = Either((int, float))
_SCHEMA: dict[str, object] = {
    "format": int,
    "system": {
        **dict.fromkeys(("os", "machine", "python", "vksched", "loader"), str),
        "drivers": [str],
        "layers": [str],
    },
    "devices": [
        {
            **dict.fromkeys(("name", "label", "type", "vendor", "driver", "api_version"), str),
            "memory_bytes": int,
            "limits": Table(Either((bool, int, str, [Either((int, str))]))),
            "missing": [str],
            "faults": [str],
            "proof": Either(
                (
                    None,
                    {
                        **dict.fromkeys(("cases", "right", "on_cpu"), int),
                        "failures": [dict.fromkeys(("op", "case", "error"), str)],
                    },
                )
            ),
            "measured": [{"name": str, "unit": str, "value": _NUMBER, "baselines": Table(_NUMBER)}],
        }
    ],
    "findings": [dict.fromkeys(("level", "subject", "text", "remedy"), str)],
    "verdict": str,
}


def read_report(path: str | os.PathLike[str]) -> HealthReport:
    """Return the report of a file.

    Raises
    ------
    VkschedError
        The file cannot be read, is too large, or does not follow the schema.
    """
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise Wrong(f"expected at most {MAX_BYTES >> 20} MiB")
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        check(data, _SCHEMA, "report")
        if data["format"] != FORMAT:
            raise Wrong(f"expected format {FORMAT}, got {data['format']}")
        return _decode(data)
    except OSError as error:
        raise VkschedError(f"[doctor] cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise VkschedError(
            f"[doctor] expected a file of `vksched doctor --output`, {Path(path).name} is none: "
            f"{error}"
        ) from error


def _decode(data: dict[str, Any]) -> HealthReport:
    for device in data["devices"]:
        for count in (device["memory_bytes"], *(device["proof"] or {"": 0}).values()):
            if isinstance(count, int) and not 0 <= count < LARGEST:
                raise Wrong(f"expected counts of at least 0 in {device['name']}, got {count}")
    for finding in data["findings"]:
        if finding["level"] not in LEVELS:
            raise Wrong(f"expected a level of {', '.join(LEVELS)}, got {finding['level']!r}")
    system = data["system"]
    return HealthReport(
        System(
            **{
                **system,
                "drivers": tuple(system["drivers"]),
                "layers": tuple(system["layers"]),
            }
        ),
        tuple(_device(device) for device in data["devices"]),
        tuple(Finding(**finding) for finding in data["findings"]),
        data["verdict"],
    )


def _device(data: dict[str, Any]) -> DeviceHealth:
    proof = data["proof"]
    if proof is not None:
        failures = tuple(KernelFailure(**failure) for failure in proof["failures"])
        proof = KernelProof(proof["cases"], proof["right"], proof["on_cpu"], failures)
    return DeviceHealth(
        **{
            **data,
            "missing": tuple(data["missing"]),
            "faults": tuple(data["faults"]),
            "proof": proof,
            "measured": tuple(Measurement(**one) for one in data["measured"]),
        }
    )
