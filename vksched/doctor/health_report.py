"""The report of an examination, as values and as a JSON file that users attach to a report.

The file has no user names, paths, host names, UUIDs or serial numbers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ..common.errors import VkschedError
from ..common.schema import Number, SchemaError, Size, Whole, check, parse

FORMAT = 1
MAX_BYTES = 4 << 20
"""The largest report file that is read."""
OK: Final = "ok"
NOTE: Final = "note"
PROBLEM: Final = "problem"
_REST = r"[^'\"`:;,\n]*"
"""The rest of a path in a text; folders of users may have spaces."""
_HOMES = (r"(?:[A-Za-z]:)?[\\/](?:home|Users|Documents and Settings)[\\/]",)
_PATH = r"(?<![\w.])(?:[A-Za-z]:)?[\\/](?:[^\s\\/:'\"`(),;]+[\\/])+[^\s\\/:'\"`(),;]*"  # no spaces
_ADDRESS = r"https?://[^\s'\"]+"


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

    level: Literal["ok", "note", "problem"]
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

    cases: Size
    right: Size
    on_cpu: Size
    failures: tuple[KernelFailure, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured rate. baselines: rates of other runtimes in the same rounds, by name."""

    name: str
    unit: str
    value: Number
    baselines: dict[str, Number]


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
    memory_bytes: Size
    limits: dict[str, Any]
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
        data: dict[str, Any] = _without_paths({"format": FORMAT, **asdict(self)}, _private())
        return data

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file. Raise VkschedError if it cannot be written."""
        try:
            Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            reason = error.strerror or str(error)
            raise VkschedError(f"[doctor] cannot write {path}: {reason}") from error


def _without_paths(data: Any, private: re.Pattern[str]) -> Any:
    """Return plain data whose texts have no folders; addresses of the web stay."""
    if isinstance(data, str):
        return private.sub(lambda found: found["address"] or "<path>", data)
    if isinstance(data, Mapping):
        return {key: _without_paths(value, private) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_without_paths(value, private) for value in data]
    return data


def _private() -> re.Pattern[str]:
    """Return the pattern of addresses, paths below a home folder, and other paths."""
    homes = list(_HOMES)
    with suppress(RuntimeError):  # a user without a home
        home = Path.home()
        homes += [re.escape(str(home))] if len(home.parts) > 1 else []
    below = "|".join(f"(?:{home}){_REST}" for home in homes)
    return re.compile(f"(?P<address>{_ADDRESS})|{below}|{_PATH}")


def read_report(path: str | os.PathLike[str]) -> HealthReport:
    """Return the report of a file.

    Raises
    ------
    VkschedError
        The file cannot be read, is too large, or does not follow the schema.
    """
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise SchemaError(f"expected at most {MAX_BYTES >> 20} MiB")
        data = parse(Path(path).read_bytes(), dict[str, Any], "the report")
        number = check(data.pop("format", None), Whole, "the format of the report")
        if number != FORMAT:
            raise SchemaError(f"expected format {FORMAT}, got {number}")
        report: HealthReport = check(data, HealthReport, "the report")
        return report
    except OSError as error:
        raise VkschedError(f"[doctor] cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise VkschedError(
            f"[doctor] expected a file of `vksched doctor --output`, {Path(path).name} is none: "
            f"{error}"
        ) from error
