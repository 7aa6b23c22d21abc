"""`vksched bench` and the page: ratios, tables, JSON; what is measured is not tested."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import planning_time
import pytest
from benchmark_folders import BENCHMARKS, SUITES, add_benchmarks, import_baseline
from click.testing import CliRunner
from click.testing import Result as Called
from conftest import vulkan_names

import vksched as vs
from vksched.bench import networks_runner, peak_throughput
from vksched.bench.baseline_process import BaselineProcess
from vksched.bench.baselines.networks import build
from vksched.bench.baselines.workloads import (
    Spec,
    arrays_of,
    error_of,
    in_precision,
    most_error,
    work_of,
)
from vksched.bench.extra_metrics import ExtraMetric
from vksched.bench.find_baselines import BASELINES
from vksched.bench.overhead import overhead_facts
from vksched.bench.peak_throughput import PeakRates
from vksched.bench.report import DeviceReport, Report, find_devices, means, rates, run_suite
from vksched.bench.rounds import (
    Result,
    RunnerTiming,
    geometric_mean,
    measure_case,
    paired_ratio,
    spread,
)
from vksched.bench.suite_loader import SuiteOptions
from vksched.bench.suites import SUITES as OWN
from vksched.bench.suites import fitting, specs_of
from vksched.bench.vksched_runner import VkschedRunner
from vksched.cli import main
from vksched.common.user_warning import warn_user
from vksched.ops.lowering.vec4 import WORDS_64, reads_64
from vksched.runtime.vulkan.vulkan_device import VulkanDevice

pytestmark = pytest.mark.one_set

DEVICES = ["cpu", *vulkan_names()]
SPEC = Spec("product", "matmul", "matmul square", {"m": 100, "k": 100, "n": 100})
LARGER = Spec("larger", "matmul", "matmul square", {"m": 200, "k": 200, "n": 200})
SMALL_MODELS = [
    Spec(name, "model", "models", params)
    for name, params in {
        "encoder": {"model": "minilm", "batch": 2, "tokens": 4, "layers": 1, "width": 24},
        "image": {"model": "resnet18", "size": 32},
        "decoder": {"model": "gpt2_mini", "past": 8, "layers": 1, "width": 24, "words": 50},
        "blocks": {"model": "resnet50", "size": 32},
        "prompt": {"model": "gpt2_prompt", "tokens": 8, "layers": 1, "width": 24, "words": 50},
        "small image": {"model": "mobilenet", "size": 32},
    }.items()
]
MIXED = SuiteOptions(precision="mixed")
CHAINS = [Spec(f"{n} ops", "chain", "overhead", {"count": 8, "ops": n}) for n in (10, 200)]


def figure(runner: str, *rounds_s: float, **more: Any) -> RunnerTiming:
    return RunnerTiming(runner, list(rounds_s), **more)


def sample() -> Report:
    """A run with two baselines, of which one is wrong."""
    top = PeakRates(1e9, 1e9, "a loop", "a copy")
    device = DeviceReport(
        "vulkan:0", "A card", "discrete", "driver 1", top, {"ncnn": "1", "kp": ""}
    )
    wrong = figure("ncnn", reason="wrong result", wrong=True)
    results = [
        Result("vulkan:0", SPEC, [figure("vksched", 0.004), wrong, figure("kp", 0.002)]),
        Result("vulkan:0", LARGER, [figure("vksched", 0.02, 0.04), figure("ncnn", 0.04, 0.02)]),
        *(Result("vulkan:0", spec, [figure("vksched", 1e-5)]) for spec in CHAINS),
    ]
    facts = [ExtraMetric("vulkan:0", "a run of nothing", 2e-4, "s", 1e-4, "note")]
    return Report("ops", [device], results, "0", facts)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings of little work."""
    monkeypatch.setattr(peak_throughput, "COPY_WORDS", 1 << 14)
    monkeypatch.setattr(peak_throughput, "TRIAL_S", 1e-4)


def call(*arguments: str) -> Called:
    return CliRunner().invoke(main, ["bench", *arguments])


# -- arithmetic ------------------------------------------------------------------------------------


def test_ratios_are_of_rounds() -> None:
    assert paired_ratio([2.0, 30.0, 4.0], [1.0, 10.0, 4.0]) == 2.0
    assert paired_ratio([], [1.0]) is None
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0) and geometric_mean([]) is None
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3) and spread([1.0]) == 0.0


def test_a_ceiling_bounds_by_what_takes_longer() -> None:
    top = PeakRates(100.0, 10.0, "", "")
    assert top.share(50.0, 1.0, 1.0) == 0.5 and top.bound(50.0, 1.0) == "arithmetic"
    assert top.share(1.0, 5.0, 1.0) == 0.5 and top.bound(1.0, 5.0) == "bytes"
    assert rates(SPEC, 0.002, PeakRates(2e9, 1e12, "", "")) == pytest.approx((1.0, 0.06, 0.5))


@pytest.mark.parametrize("device", DEVICES[1:])
def test_words_of_64_bits_are_copied_where_kernels_move_them(device: str, quick: None) -> None:
    with vs.Scheduler([device]) as sched:
        opened = sched.devices[0]
        assert isinstance(opened, VulkanDevice)
        limits = opened.limits
        rates = peak_throughput._rates_of_copy(opened.context, opened.spec.max_buffer_bytes, limits)
        names = {what.split(",")[0] for _, what in rates}
    assert names == {
        n for n in peak_throughput.COPY if reads_64(limits) or not n.endswith(WORDS_64)
    }


def test_the_fastest_baseline_is_no_floor_and_not_wrong() -> None:
    first, second, *_ = sample().results
    assert first.fastest_baseline(["kp"]) is None and first.ratio("ncnn") is None
    assert first.ratio("kp") == 0.5 and second.ratio("ncnn") == pytest.approx(1.25)
    assert means([first, second])["matmul square"] == pytest.approx(
        {"kp": 0.5, "ncnn": 1.25, "fastest": 1.25}
    )


def test_a_report_survives_json() -> None:
    report = sample()
    data = json.loads(json.dumps(report.as_dict()))
    assert Report.from_dict(data) == report
    assert (
        data["results"][0]["flops"] == 2e6 and data["results"][0]["figures"][0]["seconds"] == 4e-3
    )
    with pytest.raises(Exception, match="expected results of format 3, got 0"):
        Report.from_dict({**data, "format": 0})


# -- measuring -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_every_kind_of_case_is_right_on_every_device(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_baselines import SPECS

    monkeypatch.setattr("vksched.bench.vksched_runner.repeats", lambda _: 2)
    ours = VkschedRunner(device)
    try:
        for spec in SPECS:
            result = measure_case(device, spec, [ours], 1e-3, rounds=1)
            # So small a call may take no time that can be seen; its result was looked at first.
            assert result.figures[0].nmse is not None, result.figures[0].reason
    finally:
        ours.close()


@pytest.mark.parametrize("device", DEVICES[:2])
def test_the_command_prints_a_table_and_json(device: str, quick: None, tmp_path: Path) -> None:
    stored = tmp_path / "stored.json"
    options = ["--devices", device, "--case", "matmul 64", "--time-budget", "0.01"]
    options += ["--baselines", "numpy"] if device == "cpu" else []
    shown = call(*options, "--output", str(stored))
    assert shown.exit_code == 0, shown.output
    assert "matmul 64" in shown.output and "of ceiling" in shown.output
    found = Report.from_dict(json.loads(stored.read_text()))
    (result,) = found.results
    assert result.device == device and result.ours is not None
    if device == "cpu":
        assert "times as fast as" in shown.output and found.devices[0].baselines["numpy"]
        printed = json.loads(call(*options, "--json").output)
        assert printed["results"][0]["spec"]["name"] == "matmul 64"
        assert printed["devices"][0]["ceiling"]["flops_per_s"] > 0


def test_why_no_card_is_measured_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def default_devices() -> list[Any]:
        warn_user("[devices] no card; everything runs on numpy")
        return []

    monkeypatch.setattr("vksched.runtime.vulkan.device_probe.default_devices", default_devices)
    shown = call("--case", "matmul 64")
    assert shown.exit_code == 0
    assert shown.stderr == "note: [devices] no card; everything runs on numpy\n"


def test_what_is_done_when_it_is_stopped_is_printed(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured: list[str] = []

    def measure_once(device: str, spec: Spec, *_: Any, **__: Any) -> Result:
        measured.append(spec.name)
        if len(measured) > 1:
            raise KeyboardInterrupt
        return Result(device, spec, [figure("vksched", 1e-3)])

    monkeypatch.setattr("vksched.bench.report.measure_case", measure_once)
    shown = call("--devices", "cpu", "--case", "matmul 64,matmul 512")
    assert shown.exit_code == 130 and len(measured) == 2 and "Aborted" in shown.output
    assert re.search(rf"{measured[0]} +vksched +1 ms", shown.output)
    gone = tmp_path / "no" / "stored.json"
    assert f"expected a folder for {gone}" in call("--output", str(gone)).output


def test_missing_baselines_and_missing_figures_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from vksched.cli.commands.bench import show

    report = sample()
    report.devices[0].missing["torch"] = "no module"
    show(report, OWN["ops"], BASELINES)
    text = capsys.readouterr().out
    assert "torch is missing: no module; try pip install torch" in text
    assert "ncnn: product: wrong result" in text and "geometric mean: matmul square" in text


def test_a_wrong_result_of_ours_is_exit_code_1(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import vksched.bench.vksched_runner as ours

    build = ours.build
    monkeypatch.setattr(ours, "build", lambda spec, v: build(spec, v) * 2.0)
    shown = call("--devices", "cpu", "--case", "matmul 64", "--time-budget", "0.01")
    assert shown.exit_code == 1 and "wrong result" in shown.output


def test_cases_are_listed_and_chosen_by_name() -> None:
    assert call("--list", "--suite", "overhead").output.startswith("10 tiny ops")
    refused = call("--list", "--devices", "vulkan:99")
    assert refused.exit_code == 1 and "got 'vulkan:99'" in refused.output
    assert [s.name for s in specs_of("ops", "matmul 64")] == ["matmul 64"]
    assert [s.name for s in specs_of("models", "resnet-18, minilm*")] == [
        *("MiniLM 8 x 32 tokens", "ResNet-18"),
    ]
    assert len(specs_of("ops", "softmax")) == 2 and len(specs_of("ops", "matmul 2*")) == 4
    names = [spec.name for suite in ("ops", "overhead") for spec in specs_of(suite)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--suite", "songs"),
            "expected a suite of ops, models, overhead, llm, serve, got 'songs'; --suite-dir names",
        ),
        (("--case", "riddle"), "no case of suite ops matches 'riddle'"),
        (("--baselines", "nobody"), "expected baselines of torch, numpy, onnxruntime, llama.cpp"),
        (("--time-budget", "0"), "expected a budget of more than 0 seconds"),
        (
            ("--devices", "cpu", "--case", "matmul 64", "--output", "/no/such/x.json"),
            "expected a folder for /no/such/x.json",
        ),
    ],
)
def test_what_cannot_be_measured_is_reported(
    arguments: tuple[str, ...], message: str, quick: None
) -> None:
    shown = call(*arguments, *(() if "--time-budget" in arguments else ("--time-budget", "0.001")))
    assert shown.exit_code == 1 and message in shown.output


# -- the page --------------------------------------------------------------------------------------


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    add_benchmarks(monkeypatch)
    import report

    return report


def test_the_page_is_written_from_results(page: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    stored = tmp_path / "run.json"
    stored.write_text(json.dumps(sample().as_dict()))
    docs = tmp_path / "docs"
    found = CliRunner().invoke(
        page.main, [str(stored), "--docs", str(docs)], catch_exceptions=False
    )
    assert found.exit_code == 0
    text = page.performance_tables(docs)
    assert "| matmul square | 1.25 | 0.50 | 1.25 | 1.25 |" in text
    assert "| product | 4 ms |" in text and "- ncnn: wrong result: product" in text
    assert "| a run of nothing | 200 us | 100 us | 2.00 | note |" in text
    assert "overhead-vulkan-0.svg" in text
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith(("|", "!")))
    svg = (docs / "performance" / "pictures" / "overhead-vulkan-0.svg").read_bytes()
    first = text, svg
    CliRunner().invoke(page.main, ["--docs", str(docs)], catch_exceptions=False)
    again = (docs / "performance" / "pictures" / "overhead-vulkan-0.svg").read_bytes()
    assert (page.performance_tables(docs), again) == first


def test_later_results_win_and_ceilings_only_rise(page: Any) -> None:
    early, late = sample(), sample()
    late.results = [Result("vulkan:0", SPEC, [figure("vksched", 0.001)])]
    late.devices[0].ceiling = PeakRates(2e9, 1e8, "better", "worse")
    from results import merge

    merged = merge([early, late])
    assert merged.devices[0].ceiling == PeakRates(2e9, 1e9, "better", "a copy")
    by_name = {r.spec.name: r for r in merged.results}
    assert len(by_name) == 4 and by_name["product"].ours.seconds == 0.001


def test_the_page_says_what_bounds_a_call(page: Any) -> None:
    report = sample()
    device, (product, _, chain, _) = report.devices[0], report.results
    from page import bound_of

    assert bound_of(device, product) == "arithmetic"
    assert bound_of(device, chain) == "dispatch"


def test_a_report_needs_results_that_can_be_read(page: Any, tmp_path: Path) -> None:
    found = CliRunner().invoke(page.main, ["--docs", str(tmp_path)])
    assert found.exit_code == 1 and "expected results" in found.output
    found = CliRunner().invoke(page.main, [str(tmp_path / "none.json"), "--docs", str(tmp_path)])
    assert found.exit_code == 1 and "cannot read" in found.output


def test_the_retained_results_make_the_page(page: Any, tmp_path: Path) -> None:
    stored = BENCHMARKS.parent / "docs" / "performance" / "data" / "results.json"
    if stored.exists():
        report, extras = page.read([stored])
        assert report.results
        assert page.page(report, extras, {}).startswith("## Devices")


MODEL = Spec("net", "model", "models", SMALL_MODELS[2].params)
EXTRAS = {
    "overlap": [
        {
            "devices": ["a", "b"],
            "alone": {"a": 0.1, "b": 0.2},
            "both": 0.25,
            "overlap": 0.05,
            "busy": {"a": 0.1, "b": 0.2},
            "ratio": 0.83,
            "to_one": 1.25,
            "to_busy": 0.83,
        }
    ],
    "scaling": [
        {"kind": "simulated", "devices": 1, "run_s": 1.0, "speed_up": 1.0},
        {"kind": "simulated", "devices": 2, "run_s": 0.5, "speed_up": 2.0},
    ],
    "loading": [{"model": "net", "file_bytes": 90_000_000, "read_s": 0.5, "load_to_read": 1.25}],
}


def test_the_page_has_models_loading_and_several_devices(page: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report = sample()
    ours = figure("vksched", 0.2, memory_bytes=float(3 << 20))
    baselines = [figure("ncnn", 0.3), figure("iree", reason="its compiler: failed")]
    report.results.append(Result("vulkan:0", MODEL, [ours, *baselines]))
    report.facts += [
        ExtraMetric("vulkan:0", "net: a run, beside its kernels", 0.2, "s", 0.16),
        ExtraMetric("vulkan:0", "net: peak, beside onnxruntime", 3 << 20, "bytes", 6 << 20),
        ExtraMetric("vulkan:0", "net: compile and first run", 1.5, "s"),
        *(
            ExtraMetric("planner", f"planning: random, {n:,} nodes", 50.0, "us/node")
            for n in (10, 1000)
        ),
    ]
    gpu = Spec(
        "matmul 2048 float16",
        "matmul",
        "matmul on GPUs",
        {"m": 2048, "k": 2048, "n": 2048, "storage": "float16", "hardware": True},
    )
    report.results.append(Result("vulkan:0", gpu, [figure("vksched", 1.0), figure("torch", 2.0)]))
    stored, more, docs = tmp_path / "run.json", tmp_path / "more.json", tmp_path / "docs"
    stored.write_text(json.dumps(report.as_dict()))
    more.write_text(json.dumps(EXTRAS))
    for files in ([str(stored), str(more)], []):  # and once more from what was kept
        CliRunner().invoke(page.main, [*files, "--docs", str(docs)], catch_exceptions=False)
        text = page.performance_tables(docs)
        model = "| net | 200 ms | 0 % | 200 ms / 160 ms | 1.25 | 300 ms 1.50 |"
        assert f"{model} 3.0 MiB | 6.0 MiB | 0.50 | 1.5 s |" in text
        assert "- iree on vulkan:0: its compiler: failed: net" in text
        assert "| A card | matmul 2048 float16 | 17.18 | 8.59 | 2.00 | 1 |" in text
        assert "| a + b | 100 ms + 200 ms | 250 ms | 50 ms | 1.25 | 0.83 | yes |" in text
        assert "| 2 | simulated | 500 ms | 2.00 |" in text and "pictures/devices.svg" in text
        assert "| model | file | read | load to read |" in text
        assert "| net | 90 MB | 500 ms | 1.25 |" in text
        assert "| planning: random, 1,000 nodes |" in text and "pictures/planning.svg" in text


def test_a_run_that_was_stopped_goes_on(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = page.Run(tmp_path / "work", ["--baselines"], [], False)
    asked: list[list[str]] = []

    def call(self: Any, command: list[str]) -> str:
        """Does the first case of those named."""
        if "--case" not in command:
            return json.dumps(EXTRAS["scaling"])
        names = command[command.index("--case") + 1].split(",")
        asked.append(names)
        done = Spec(names[0], "matmul", "matmul square", SPEC.params)
        report = Report("ops", sample().devices, [Result("cpu", done, [figure("vksched", 1.0)])])
        Path(command[-1]).write_text(json.dumps(report.as_dict()))
        return ""

    monkeypatch.setattr(page.Run, "_call", call)
    for left in (2, 1, 0):
        run.unfinished = 0
        run.suite("ops", "cpu", ["a", "b", "c"])
        run.extra("scaling", "--devices", "cpu")
        assert run.unfinished == left
    assert asked == [["a", "b", "c"], ["b", "c"], ["c"]] and len(run.results()) == 4
    again = page.Run(tmp_path / "work", [], [], True)
    again.suite("ops", "cpu", ["a"])
    assert asked[-1] == ["a"]


def test_cases_have_a_precision_where_it_changes_something() -> None:
    names = [spec.name for spec in specs_of("ops", options=MIXED)]
    assert "matmul 64 in mixed" in names and "attention 12 x 512 x 64 in mixed" in names
    assert not any(word in name for name in names for word in ("softmax", "16 in mixed", "add"))
    for asked in ("matmul 64", "matmul 64 in mixed"):
        (one,) = specs_of("ops", asked, MIXED)
        assert one.name == "matmul 64 in mixed"
    found = {
        spec["precision"] for spec in specs_of("models", options=SuiteOptions(precision="float16"))
    }
    assert found == {"float16"}
    assert "got 'int8'" in call("--list", "--precision", "int8").output
    refused = call("--list", "--suite", "overhead", "--precision", "mixed")
    assert refused.exit_code == 2 and "needs --suite ops, models, llm or serve" in refused.output


@pytest.mark.parametrize("word", ["mixed", "float16"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_precision_is_that_of_the_case(device: str, word: str) -> None:
    ours = VkschedRunner(device)
    try:
        for spec in (SPEC, SMALL_MODELS[2]):
            built = in_precision(spec, word)
            assert built is not None
            (found,) = measure_case(device, built, [ours], 1e-3, rounds=1).figures
            assert found.nmse is not None, found.reason
            if device == "cpu":  # numpy rounds what it may
                assert found.nmse > 1e-9
    finally:
        ours.close()
    baseline = BaselineProcess("numpy", {"name": "numpy", "uuid": "", "index": 0, "type": "cpu"})
    try:
        assert f"not in {word}" in baseline.prepare(built)["skip"]
    finally:
        baseline.close()


@pytest.mark.parametrize("word", ["mixed", "float16"])
def test_torch_rounds_to_float16(word: str) -> None:
    pytest.importorskip("torch")
    from vksched.bench.baselines.torch_baseline import open_baseline

    baseline = open_baseline({"name": "numpy", "uuid": "", "index": 0, "type": "cpu"})
    for spec in (SPEC, *SMALL_MODELS):
        built = in_precision(spec, word)
        assert built is not None
        arrays = arrays_of(built)
        far = error_of(built, arrays, baseline.prepare(built, arrays).result())
        assert 1e-9 < far < most_error(built)


def test_hardware_alone_is_tuned_first(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs: list[Any] = []

    def opened(device: str, tune: Any) -> VkschedRunner:
        inputs.append(tune)
        return VkschedRunner(device)

    monkeypatch.setattr("vksched.bench.report.VkschedRunner", opened)
    (info,) = find_devices(["cpu"])
    for type_, tune_s in (("cpu", 60.0), ("discrete", 60.0), ("discrete", 0.0)):
        run_suite(OWN["ops"], [], [replace(info, type=type_)], tune_s=tune_s)
    assert inputs == ["auto", 60.0, "auto"]


def test_a_case_for_hardware_is_left_out_on_software() -> None:
    specs = specs_of("ops", "matmul 4096*")
    large = [spec for spec in specs if spec.get("hardware")]
    assert fitting(specs, "discrete") == specs and large != specs
    assert fitting(specs, "cpu") == [spec for spec in specs if spec not in large]
    assert fitting(large, "cpu") == large  # nothing else was asked for


# -- facts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_models_are_right_and_tell_time_and_memory(device: str) -> None:
    ours = VkschedRunner(device)
    try:
        for spec in SMALL_MODELS if device == "cpu" else SMALL_MODELS[2::2]:
            result = measure_case(device, spec, [ours], 1e-3, rounds=1)
            (figure,) = result.figures
            assert figure.seconds and figure.nmse is not None, figure.reason
            run, first, peak = networks_runner.model_facts(device, spec)
            assert run.value > 0 and run.reference and run.ratio and first.value > 0
            assert peak.unit == "bytes" and peak.value == figure.memory_bytes
            assert (peak.reference or 0) > 0 and first.note
    finally:
        ours.close()


@pytest.mark.thorough
def test_the_same_networks_are_right_as_onnx_files() -> None:
    """The files that onnxruntime and IREE read."""
    pytest.importorskip("onnxruntime")
    worker = BaselineProcess(
        "onnxruntime", {"name": "numpy", "uuid": "", "index": 0, "type": "cpu"}
    )
    try:
        for spec in SMALL_MODELS:
            answer = worker.prepare(spec)
            assert answer["nmse"] < 1e-10 and answer["bytes"] > 0
    finally:
        worker.close()
    fact = list(networks_runner.model_facts("cpu", SMALL_MODELS[2], [sys.executable]))[-1]
    assert fact.name == "decoder: peak, beside onnxruntime" and fact.ratio


@pytest.mark.parametrize("spec", SMALL_MODELS, ids=lambda spec: spec.name)
def test_the_same_networks_are_right_in_torch(spec: Spec) -> None:
    pytest.importorskip("torch")
    from vksched.bench.baselines.torch_baseline import open_baseline

    cpu = {"name": "numpy", "uuid": "", "index": 0, "type": "cpu"}
    job = open_baseline(cpu).prepare(spec, arrays_of(spec))
    first, second = (error_of(spec, {}, job.result()) for _ in range(2))  # a cache stays the same
    assert first == second < 1e-10 and job.sample() > 0


def test_the_same_networks_as_layers_of_ncnn_read_each_blob_once() -> None:
    for spec in SMALL_MODELS:
        for gemm in (False, True):
            file = import_baseline("ncnnfile").NcnnFile(spec.params, gemm)
            build(spec.params, file)
            text, weights = file.finish()
            magic, counts, *lines = text.splitlines()
            assert magic == "7767517" and int(counts.split()[0]) == len(lines)
            built, read = [], []
            for line in lines:
                _, _, bottoms, tops, *names = line.split()
                read += names[: int(bottoms)]
                built += names[int(bottoms) : int(bottoms) + int(tops)]
            assert len(set(built)) == len(built) == int(counts.split()[1])
            assert len(set(read)) == len(read) and set(read) < set(built)
            assert set(built) - set(read) == {built[-1]}
            assert len(weights) >= work_of(spec)[1] and ("Gemm" in text) == gemm or not gemm


def test_the_work_of_a_model_is_that_of_its_products() -> None:
    flops, weights = work_of(SMALL_MODELS[2])
    width, past, words = 24, 8, 50
    products = 12 * width * width
    assert flops == 2 * (products + words * width) + 4 * past * width
    assert weights == 4 * (products + words * width + 2 * (past - 1) * width)


@pytest.mark.parametrize("device", DEVICES)
def test_overhead_is_reported_next_to_plain_copies(device: str) -> None:
    trivial, upload = overhead_facts(device, 1 << 18)
    assert trivial.value > 0 and trivial.reference is None
    assert upload.unit == "bytes/s" and upload.ratio and upload.ratio > 0


def test_planning_is_reported_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = list(planning_time.planning_facts((30, 60)))
    assert [fact.ratio for fact in facts[::4]] == [1.0] * len(planning_time.KINDS)
    assert ["by auto" in fact.name for fact in facts[:4]] == [False, False, True, True]
    assert all(
        a.reference == pytest.approx(b.value) for a, b in zip(facts[2::4], facts[::4], strict=True)
    )
    shown = [fact.cells() for fact in facts]
    assert all(value.endswith("us/node") for value, *_ in shown)
    monkeypatch.setattr(planning_time, "planning_facts", lambda: facts)
    assert facts[0].name in call("--suite", "planning", "--suite-dir", str(SUITES)).output
