"""Report of a benchmark: devices with their peak rates, results, and their plain data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..common.errors import DeviceError, GraphError, PlanError, VkschedError
from ..common.schema import check
from ..common.user_warning import warn_user
from ..runtime.vulkan import device_probe
from .baseline_process import BaselineFailed, BaselineProcess
from .baselines.workloads import COPY, HALF, MIXED, Spec, reported, work_of
from .extra_metrics import ExtraMetric
from .find_baselines import BaselineInfo
from .peak_throughput import PeakRates, measure_ceiling
from .rounds import OURS, Result, Runner, geometric_mean, measure_case
from .suite_loader import Suite, SuiteOptions
from .suites import DEFAULT, fitting
from .vksched_runner import Tune, VkschedRunner

FORMAT = 3
TUNE_S = 60.0
FLOORS = ("kp",)
"""Runners that measure the device's own limits: shown, but not compared as baselines."""

Tell = Callable[[str], None]


@dataclass
class DeviceReport:
    """One device of a report. baselines: their versions. missing: reasons of missing baselines."""

    name: str
    label: str
    type: str
    driver: str
    ceiling: PeakRates
    baselines: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass
class Report:
    """Results of a benchmark."""

    suite: str
    devices: list[DeviceReport] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    version: str = ""
    facts: list[ExtraMetric] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, as printed by `--json`."""
        return {
            "format": FORMAT,
            "vksched": self.version,
            "suite": self.suite,
            "devices": [asdict(device) for device in self.devices],
            "results": [result.as_dict() for result in self.results],
            "facts": [asdict(fact) for fact in self.facts],
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Report:
        """The inverse of `as_dict`. Raise GraphError for another format, and SchemaError for fields
        of other types.
        """
        if data.get("format") != FORMAT:
            raise GraphError(
                f"[bench] expected results of format {FORMAT}, got {data.get('format')!r}; try "
                "`vksched bench --json` again"
            )
        report: Report = check({**data, "version": data.get("vksched")}, Report, "the results")
        return report

    def results_of(self, device: str) -> list[Result]:
        return [result for result in self.results if result.device == device]

    @property
    def wrong(self) -> list[str]:
        """Return descriptions of vksched's wrong results."""
        figures = [(result, result.ours) for result in self.results]
        return [f"{r.device}: {r.spec.name}: {f.reason}" for r, f in figures if f and f.wrong]


def means(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Return the geometric mean of ratios by group of cases and baseline. "fastest" is the fastest
    baseline of each case.
    """
    ratios: dict[str, dict[str, list[float]]] = {}
    for result in results:
        mine = ratios.setdefault(result.spec.group, {})
        for figure in result.figures:
            ratio = result.ratio(figure.runner) if figure.runner != OURS else None
            if ratio is not None:
                mine.setdefault(figure.runner, []).append(ratio)
        fastest = result.fastest_baseline(FLOORS)
        ratio = result.ratio(fastest.runner) if fastest else None
        if ratio is not None:
            mine.setdefault("fastest", []).append(ratio)
    return {
        group: {baseline: geometric_mean(values) or 0.0 for baseline, values in baselines.items()}
        for group, baselines in ratios.items()
    }


def rates(spec: Spec, seconds: float, ceiling: PeakRates) -> tuple[float, float, float | None]:
    """Return GFLOP/s, GB/s and the share of the device's peak. The share is None without a peak:
    for float16 arithmetic, which may have separate units, and bus copies.
    """
    flops, moved = work_of(spec)
    half = HALF in (spec.get("storage"), spec.get("precision")) or spec.get("precision") == MIXED
    free = spec.kind == COPY or (half and ceiling.bound(flops, moved) == "arithmetic")
    share = None if free else ceiling.share(flops, moved, seconds)
    return flops / seconds / 1e9, moved / seconds / 1e9, share


def find_devices(names: Sequence[str] | None) -> list[device_probe.DeviceInfo]:
    """Return the named devices, or the default ones and the CPU."""
    infos = (
        device_probe.default_devices()
        if names is None
        else [device_probe.resolve(n) for n in names]
    )
    for info in infos:
        if not info.usable:
            raise DeviceError(f"[bench] {info.name}: {info.problem}")
    return list(infos)


def run_suite(
    suite: Suite,
    specs: Sequence[Spec],
    infos: Sequence[device_probe.DeviceInfo],
    baselines: Sequence[BaselineInfo] = (),
    pythons: Sequence[str] = (),
    options: SuiteOptions = DEFAULT,
    tell: Tell = lambda _: None,
    advance: Callable[[Report], None] = lambda _: None,
    *,
    tune_s: float = TUNE_S,
) -> Report:
    """Measure all cases on all devices, one device after the other.

    tune_s: seconds to tune unknown kernels on each hardware device, not timed; 0 leaves tuning to
    the scheduler. advance: called after each case with the results so far.
    """
    report = Report(suite.name)
    if suite.run_facts is not None:
        for info in infos:
            specs = fitting(specs, info.type)
        names = [info.name for info in infos]
        for name, facts in suite.run_facts(names, specs, options).items():
            tell(name)
            try:
                report.facts += [*facts]
            except PlanError as error:  # for example, "earliest-finish" refuses cases with states
                warn_user(f"[bench] {name} is left out: {error}")
            advance(report)
        return report
    with suite.ready(specs) if suite.ready else nullcontext(lambda spec: spec) as ready:
        for info in infos:
            tune = tune_s if tune_s and info.type != "cpu" else "auto"
            found = [one for one in baselines if _takes_part(one, suite, info)]
            with _runners(info, found, pythons, tell, tune) as (device, runners):
                report.devices.append(device)
                there = fitting(specs, info.type)
                for spec in there if suite.measures_cases else ():
                    tell(f"{info.name} {spec.name}: what is expected")
                    try:
                        prepared = ready(spec)
                    except VkschedError as error:  # without a reference result
                        warn_user(f"[bench] {spec.name} is left out: {error}")
                        continue
                    result = measure_case(info.name, prepared, runners, options.budget_s, tell=tell)
                    report.results.append(replace(result, spec=reported(prepared)))
                    advance(report)
            if suite.device_facts is None:
                continue
            known = pythons if any(one.name == "onnxruntime" for one in baselines) else ()
            for name, facts in suite.device_facts(info.name, there, known, ready).items():
                tell(f"{info.name} {name}")
                report.facts += facts
                advance(report)
    return report


def _takes_part(baseline: BaselineInfo, suite: Suite, info: device_probe.DeviceInfo) -> bool:
    if suite.baselines is not None:
        return baseline.name in suite.baselines
    return baseline.takes(info.name)


@contextmanager
def _runners(
    info: device_probe.DeviceInfo,
    baselines: Sequence[BaselineInfo],
    pythons: Sequence[str],
    tell: Tell,
    tune: Tune,
) -> Iterator[tuple[DeviceReport, list[Runner]]]:
    with ExitStack() as stack:
        ours = VkschedRunner(info.name, tune)
        stack.callback(ours.close)
        tell(f"{info.name} ceilings")
        ceiling = measure_ceiling(ours.device)
        device = DeviceReport(info.name, info.label, info.type, info.driver, ceiling)
        runners: list[Runner] = [ours]
        about = {"name": info.label, "uuid": info.uuid, "index": info.index, "type": info.type}
        for one in baselines:
            tell(f"{info.name} starts {one.name}")
            try:
                baseline = BaselineProcess(
                    one.name, about, (*pythons, sys.executable), folder=one.folder
                )
            except BaselineFailed as error:
                device.missing[one.name] = str(error)
                continue
            stack.callback(baseline.close)
            device.baselines[one.name] = baseline.version
            runners.append(baseline)
        yield device, runners
