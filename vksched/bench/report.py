"""One run of the bench: devices with their ceilings, results, and all of it as plain data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..common.errors import DeviceError, GraphError, PlanError, VkschedError
from ..common.user_warning import warn_user
from ..runtime.vulkan import device_probe
from .baseline_process import BaselineFailed, BaselineProcess
from .baselines.workloads import COPY, HALF, MIXED, Spec, reported, work_of
from .extra_metrics import Fact
from .llm_start_time import start_facts
from .networks_runner import model_facts
from .overhead import overhead_facts
from .peak_throughput import Ceiling, measure_ceiling
from .planning import planning_facts
from .prediction import prediction_facts
from .rounds import OURS, Result, Runner, geometric_mean, measure_case
from .suites import fitting
from .together import together_facts
from .vksched_runner import Ours, Tune

FORMAT = 2
TUNE_S = 60.0
VULKAN_BASELINES = ("ncnn", "iree", "wgpu", "kp", "torch")
CPU_BASELINES = ("numpy", "torch", "onnxruntime")
LANGUAGE_BASELINES = ("llama.cpp",)
"""Of language models, on all devices."""
OWN_BASELINES = {"llm": LANGUAGE_BASELINES, "clients": ("onnxruntime",)}
"""Of suites whose cases have the same baselines on all devices."""
BASELINES = tuple(dict.fromkeys((*VULKAN_BASELINES, *CPU_BASELINES, *LANGUAGE_BASELINES)))
FLOORS = ("kp",)
"""No runtimes but the device's own measure: shown, and not among those to beat."""
INSTALL = {
    "ncnn": "pip install ncnn",
    "iree": "pip install iree-base-compiler iree-base-runtime",
    "wgpu": "pip install wgpu",
    "kp": "make setup, and glslangValidator",
    "numpy": "pip install numpy",
    "torch": "pip install torch",
    "onnxruntime": "pip install onnxruntime onnx",
    "llama.cpp": "pip install llama-cpp-python, built with -DGGML_VULKAN=on",
}

Tell = Callable[[str], None]


@dataclass
class DeviceReport:
    """One device of a run. baselines: their versions; missing: why a baseline has no figures."""

    name: str
    label: str
    type: str
    driver: str
    ceiling: Ceiling
    baselines: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass
class Report:
    """What a run of the bench found."""

    suite: str
    devices: list[DeviceReport] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    version: str = ""
    facts: list[Fact] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as `--json` prints it."""
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
        """The inverse of `as_dict`.

        Raises:
            GraphError: it is not of this format.
        """
        if data.get("format") != FORMAT:
            raise GraphError(
                f"[bench] expected results of format {FORMAT}, got {data.get('format')!r}; try "
                "`vksched bench --json` again"
            )
        devices = [
            DeviceReport(**{**d, "ceiling": Ceiling(**d["ceiling"])}) for d in data["devices"]
        ]
        results = [Result.from_dict(one) for one in data["results"]]
        facts = [Fact(**one) for one in data["facts"]]
        return Report(data["suite"], devices, results, data["vksched"], facts)

    def results_of(self, device: str) -> list[Result]:
        return [result for result in self.results if result.device == device]

    @property
    def wrong(self) -> list[str]:
        """What vksched computed wrong, for people."""
        figures = [(result, result.ours) for result in self.results]
        return [f"{r.device}: {r.spec.name}: {f.reason}" for r, f in figures if f and f.wrong]


def means(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Returns by group of cases, then baseline, the geometric mean of the ratios to it.

    "fastest" stands for the fastest baseline of each case.
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


def rates(spec: Spec, seconds: float, ceiling: Ceiling) -> tuple[float, float, float | None]:
    """Returns GFLOP/s, GB/s and the share of the device's ceiling; None of what no ceiling bounds:
    arithmetic in float16, which may have units of its own, and copies over the bus.
    """
    flops, moved = work_of(spec)
    half = HALF in (spec.get("storage"), spec.get("precision")) or spec.get("precision") == MIXED
    free = spec.kind == COPY or (half and ceiling.bound(flops, moved) == "arithmetic")
    share = None if free else ceiling.share(flops, moved, seconds)
    return flops / seconds / 1e9, moved / seconds / 1e9, share


def find_devices(names: Sequence[str] | None) -> list[device_probe.DeviceInfo]:
    """Returns the devices named, or the default ones with the CPU."""
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
    suite: str,
    specs: Sequence[Spec],
    infos: Sequence[device_probe.DeviceInfo],
    baselines: Sequence[str],
    pythons: Sequence[str],
    budget_s: float,
    tell: Tell = lambda _: None,
    advance: Callable[[Report], None] = lambda _: None,
    *,
    policy: str = "auto",
    objective: str = "latency",
    tune_s: float = TUNE_S,
) -> Report:
    """Measures all cases on all devices, one device after the other.

    tune_s: seconds to measure kernels that no one has measured before, on each device that is
    hardware, as getting ready does not count; 0 leaves it to the scheduler, which takes few.
    advance: called after each case with what there is so far. policy, objective: of the plans of
    the suite "devices", as `Scheduler` takes them; the other suites use one device at a time.
    """
    report = Report(suite)
    if suite == "planning":
        tell("planning")
        report.facts += planning_facts()
        advance(report)
        return report
    if suite == "devices":
        for info in infos:
            specs = fitting(specs, info.type)
        names = [info.name for info in infos]
        for spec in specs:
            tell(spec.name)
            try:
                report.facts += [*together_facts(names, spec, budget_s, policy, objective)]
            except PlanError as error:  # such as one that has states, by "dynamic"
                warn_user(f"[bench] {spec.name} is left out: {error}")
            advance(report)
        return report
    with _readiness(suite, specs) as ready:
        for info in infos:
            found = [name for name in baselines if name in _baselines_of(suite, info)]
            tune = tune_s if tune_s and info.type != "cpu" else "auto"
            with _runners(info, found, pythons, tell, tune) as (device, runners):
                report.devices.append(device)
                there = fitting(specs, info.type)
                for spec in there if suite != "prediction" else ():
                    tell(f"{info.name} {spec.name}: what is expected")
                    try:
                        made = ready(spec)
                    except VkschedError as error:  # no reference to hold anybody to
                        warn_user(f"[bench] {spec.name} is left out: {error}")
                        continue
                    result = measure_case(info.name, made, runners, budget_s, tell=tell)
                    report.results.append(replace(result, spec=reported(made)))
                    advance(report)
            known = pythons if "onnxruntime" in baselines else ()
            for name, facts in _facts_of(suite, info.name, there, known, ready).items():
                tell(f"{info.name} {name}")
                report.facts += facts
                advance(report)
    return report


def _baselines_of(suite: str, info: device_probe.DeviceInfo) -> Sequence[str]:
    if suite in OWN_BASELINES:
        return OWN_BASELINES[suite]
    return CPU_BASELINES if info.name == "cpu" else VULKAN_BASELINES


@contextmanager
def _readiness(suite: str, specs: Sequence[Spec]) -> Iterator[Callable[[Spec], Spec]]:
    """Yields what makes cases ready, by the files that they need."""
    with ExitStack() as stack:
        if suite == "llm":
            from .language.llm_cases import Cases  # needs an extra

            yield stack.enter_context(closing(Cases(specs))).ready
        elif suite == "clients":
            from .clients import Cases as Files

            yield stack.enter_context(closing(Files())).ready
        else:
            yield lambda spec: spec


def _facts_of(
    suite: str,
    device: str,
    specs: Sequence[Spec],
    pythons: Sequence[str],
    ready: Callable[[Spec], Spec],
) -> dict[str, Iterator[Fact]]:
    """Returns what a suite measures beside cases, by name."""
    if suite == "llm":
        loads = [spec for spec in specs if spec["phase"] == "load"]
        return {f"{s.name}: starts": start_facts(device, ready(s)) for s in loads}
    if suite == "models":
        return {f"{spec.name}: its kernels": model_facts(device, spec, pythons) for spec in specs}
    if suite == "prediction":
        return {f"{spec.name}: predicted": prediction_facts(device, spec) for spec in specs}
    return {"a run of nothing": overhead_facts(device)} if suite == "overhead" else {}


@contextmanager
def _runners(
    info: device_probe.DeviceInfo,
    baselines: Sequence[str],
    pythons: Sequence[str],
    tell: Tell,
    tune: Tune,
) -> Iterator[tuple[DeviceReport, list[Runner]]]:
    with ExitStack() as stack:
        ours = Ours(info.name, tune)
        stack.callback(ours.close)
        tell(f"{info.name} ceilings")
        ceiling = measure_ceiling(ours.device)
        device = DeviceReport(info.name, info.label, info.type, info.driver, ceiling)
        runners: list[Runner] = [ours]
        about = {"name": info.label, "uuid": info.uuid, "index": info.index, "type": info.type}
        for name in baselines:
            tell(f"{info.name} starts {name}")
            try:
                baseline = BaselineProcess(name, about, (*pythons, sys.executable))
            except BaselineFailed as error:
                device.missing[name] = str(error)
                continue
            stack.callback(baseline.close)
            device.baselines[name] = baseline.version
            runners.append(baseline)
        yield device, runners
