"""The examination: system, devices, kernels, measurements, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..common.errors import DeviceError, VkschedError
from ..runtime.vulkan import device_probe
from ..runtime.vulkan.device_probe import DeviceInfo
from . import inspect_system
from .health_report import NOTE, OK, PROBLEM, DeviceHealth, Finding, HealthReport
from .measure_device import measure
from .prove_kernels import prove, selected_cases
from .vulkan_loader import find_loader

SHOWN_FAILURES = 5
"""Number of wrong cases of a device that become findings."""

Begin = Callable[[str, int], Callable[[str], None]]
"""Called with a stage and its number of steps; returns the call after each step."""


def examine(
    names: Sequence[str] | None, *, every_case: bool, kernels: bool, speed: bool, begin: Begin
) -> HealthReport:
    """Examine this computer.

    Parameters
    ----------
    names
        Devices on which kernels run; all usable GPUs if None.
    every_case
        Run all op cases instead of one for each op and element type.
    kernels, speed
        Run op cases, and measurements.
    begin
        Reports progress.

    Raises
    ------
    DeviceError
        A name matches no Vulkan device.
    """
    if "cpu" in (names or ()):
        raise DeviceError(
            "[doctor] expected Vulkan devices, got cpu: they are compared with numpy on the CPU"
        )
    chosen = [device_probe.resolve(name) for name in names or ()]
    found, loader = device_probe.survey(), find_loader()
    devices = found.devices[:-1]
    if names is None:
        chosen = inspect_system.gpus(devices)
    findings = [*inspect_system.system_findings(loader, found)]
    described, tried = [], {info.name for info in chosen}
    for info in devices:
        findings += inspect_system.device_findings(info)
        health = inspect_system.describe_device(info)
        if info.name in tried:
            health, more = _tried(info, health, every_case, kernels, speed, begin)
            findings += more
        described.append(health)
    verdict = _verdict(described, chosen, findings)
    system = inspect_system.describe_system(loader)
    return HealthReport(system, tuple(described), tuple(findings), verdict)


def _tried(
    info: DeviceInfo,
    health: DeviceHealth,
    every_case: bool,
    kernels: bool,
    speed: bool,
    begin: Begin,
) -> tuple[DeviceHealth, list[Finding]]:
    """Return a device after kernels ran on it, and the findings."""
    findings: list[Finding] = []
    if kernels:
        advance = begin(f"{info.name}: kernels", len(selected_cases(every_case)))
        health = replace(health, proof=prove(info.name, every_case, advance))
        findings += _kernel_findings(info, health)
        findings += _check_findings(info)
    if speed:
        done = begin(f"{info.name}: speed, about a minute", 1)
        try:
            health = replace(health, measured=tuple(measure(info.name)))
        except VkschedError as error:
            findings.append(Finding(PROBLEM, info.name, str(error)))
        done("")
    return health, findings


def _kernel_findings(info: DeviceInfo, health: DeviceHealth) -> Iterator[Finding]:
    proof = health.proof
    assert proof is not None
    if not proof.failures:
        text = f"{proof.right:,} of {proof.cases:,} op cases equal numpy"
        text += f"; {proof.on_cpu:,} have no kernel here and run on the CPU" * (proof.on_cpu > 0)
        yield Finding(OK, info.name, text)
    for failure in proof.failures[:SHOWN_FAILURES]:
        case = f"{failure.op} ({failure.case})" if failure.op else "the driver"
        yield Finding(
            PROBLEM,
            info.name,
            f"{case}: {failure.error}",
            "try a newer driver; if it stays, report it with the file of --output",
        )
    if (more := len(proof.failures) - SHOWN_FAILURES) > 0:
        yield Finding(PROBLEM, info.name, f"{more:,} more op cases are wrong")


def _check_findings(info: DeviceInfo) -> Iterator[Finding]:
    from ..runtime.vulkan import device_check  # needs the native modules

    for check in device_check.CHECKS.values():
        failure = device_check.failure_of(check, device_probe.device_spec(info), info)
        if failure:
            remedy = f"try another version of the driver; until then {check.instead}"
            yield Finding(PROBLEM, info.name, f"{check.feature}: {failure}", remedy)
        elif failure is not None:
            text = f"{check.feature}: all results of the check are right; used without tuning"
            yield Finding(OK, info.name, text)


def _verdict(
    devices: Sequence[DeviceHealth], chosen: Sequence[DeviceInfo], findings: Sequence[Finding]
) -> str:
    problems = [finding for finding in findings if finding.level == PROBLEM]
    hardware = [device for device in devices if device.type != "cpu"]
    tried = {device.name for device in devices if device.proof is not None or device.measured}
    names = ", ".join(f"{info.name} ({info.label})" for info in chosen if info.name in tried)
    if problems:
        first = problems[0]
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        return f"{len(problems)} to mend: {first.subject}: {first.text}{more}"
    if not hardware:
        software = f"; checked {names}" if names else ""
        return f"no GPU: everything runs on numpy, and on software drivers by name{software}"
    notes = sum(finding.level == NOTE for finding in findings)
    ready = f"ready: {names}" if names else "nothing is wrong, but no kernel ran"
    return f"{ready}; {notes} notes" if notes else ready
