"""The benchmarks run and say what they measured; what they measure is not tested."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmark_folders import add_benchmarks
from click.testing import CliRunner


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    add_benchmarks(monkeypatch)
    return CliRunner()


def test_planning_writes_a_row_for_each_graph_and_size(runner: CliRunner, tmp_path: Path) -> None:
    import planning

    target = tmp_path / "rows.json"
    options = ["--sizes", "60,30", "--repeat", "1", "--json", str(target)]
    found = runner.invoke(planning.main, options, catch_exceptions=False)
    assert found.exit_code == 0 and "verify" in found.output
    rows = json.loads(target.read_text())
    assert [(row["kind"], row["policy"]) for row in rows[::2]] == [
        (kind, policy) for kind in planning.KINDS for policy in planning.POLICIES
    ]
    for small, large in zip(rows[::2], rows[1::2], strict=True):
        assert 30 <= small["nodes"] < large["nodes"] and small["ratio"] == 1.0
        assert large["ratio"] == pytest.approx(large["us_per_node"] / small["us_per_node"])
        stages = {*planning.STAGES.values(), "rest"}
        if small["policy"] == "auto":  # of a small graph the choice has made what it chose
            assert set(small["stages_s"]) == stages - {"placement", "splits", "memory"}
        else:
            assert set(small["stages_s"]) == stages - {"choice"}
        assert sum(small["stages_s"].values()) == pytest.approx(small["plan_s"])
    for first, by_cost in zip(rows[1::4], rows[3::4], strict=True):
        assert first["to_first"] == 1.0 and first["nodes"] == by_cost["nodes"]
        assert by_cost["to_first"] == pytest.approx(by_cost["plan_s"] / first["plan_s"])
    one, two, drawn, _ = rows[1::4]
    assert one["splits"] == 1 and one["barriers"] == one["levels"]
    assert two["splits"] > 1 and drawn["splits"] > 1


def test_planning_wants_sizes_and_graphs_that_there_are(runner: CliRunner) -> None:
    import planning

    for options, message in (
        (["--sizes", "many"], "expected numbers"),
        (["--kinds", "circle"], "expected some of transformer"),
        (["--policies", "greed"], "expected some of priority, auto"),
    ):
        found = runner.invoke(planning.main, options)
        assert found.exit_code == 2 and message in " ".join(found.output.split())


def test_a_plot_needs_matplotlib(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import planning

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    options = ["--sizes", "30", "--kinds", "transformer", "--repeat", "1"]
    found = runner.invoke(planning.main, [*options, "--plot", str(tmp_path / "planning.png")])
    assert found.exit_code == 1 and "try pip install .[bench]" in found.output


def test_a_plot_is_drawn(runner: CliRunner, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import planning

    path = tmp_path / "planning.png"
    options = ["--sizes", "30,60", "--repeat", "1", "--plot", str(path)]
    found = runner.invoke(planning.main, options, catch_exceptions=False)
    assert found.exit_code == 0 and path.read_bytes().startswith(b"\x89PNG")


def test_overhead_compares_each_device_with_bare_commands(
    runner: CliRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    import overhead

    assert overhead.main(["--ops", "3", "--repeats", "1", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out):
        assert row["ratio"] == pytest.approx(row["run"] / row["bare"]) and row["ops"] == 3


def test_memory_tells_what_each_device_takes(
    runner: CliRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    import memory

    assert memory.main(["--models", "dlrm", "--devices", "cpu", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["model"] == "dlrm" and 0 < row["weights"] <= row["file"] and row["peak"] > 0


def test_scaling_tells_the_speed_up_of_simulated_devices(
    runner: CliRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    import scaling

    assert scaling.main(["--small", "--branches", "4", "--devices", "cpu", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["devices"] for row in rows] == [1, 2, 4, 8]
    assert rows[0]["speed_up"] == 1.0 and rows[2]["speed_up"] > rows[1]["speed_up"] > 1.5
    scaling.main(["--small", "--branches", "2", "--devices", "cpu"])
    assert "speed-up" in capsys.readouterr().out


def test_overlap_tells_what_bounds_branches_on_simulated_devices(
    runner: CliRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    import overlap

    assert overlap.main(["--null", "--small", "--repeats", "2", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)[0]
    assert row["devices"] == ["null:0", "null:1"] and row["to_one"] <= 1.1
    assert row["ratio"] == pytest.approx(0.5, abs=0.05) and row["to_busy"] <= 1.1
    overlap.main(["--null", "--small", "--repeats", "1"])
    assert "within 1.1" in " ".join(capsys.readouterr().out.split())


def test_loading_is_compared_with_reading_and_copying(
    runner: CliRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    import loading

    assert loading.main(["--models", "bert_mini", "--repeats", "1", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out):
        bound = row["read_s"] + row["memory_s"] + row["copy_s"]
        assert row["ratio"] == pytest.approx(row["load_s"] / bound)
        assert row["share"] == pytest.approx(row["copy_s"] / row["upload_s"])
        assert 0 < row["weight_bytes"] and row["model"] == "bert_mini"


def test_models_are_measured_on_all_devices_next_to_each_alone(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import devices
    from multi_device import Together

    found = Together({"a": [2.0], "b": [3.0]}, [1.5], ["a", "b"])
    monkeypatch.setattr(devices, "measure", lambda names, model, budget_s: found)
    options = ["--devices", "a,b", "--case", "pipeline.py,GPT"]
    assert devices.main([*options, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["value"] for row in rows] == [2.0, 3.0, 1.5] * 2
    assert [row["ratio"] for row in rows[2::3]] == [0.75, 0.75]
    assert {row["device"] for row in rows} == {"a + b"} and "pipeline.py" in rows[-1]["name"]
    assert devices.main(options) == 0 and "beside a alone" in capsys.readouterr().out


def test_predictions_become_a_page_and_a_table(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import prediction
    from prediction_facts import Predicted

    found = {
        "ResNet-18": Predicted((0.1, 0.11), (0.09, 0.1), {"conv": (0.08, 0.09), "relu": (0, 1e-4)}),
        "GPT-2-mini step": Predicted((0.1, 0.2), (0.09, 0.19), {}),
    }
    page = tmp_path / "prediction.md"
    monkeypatch.setattr(prediction, "PAGE", page)
    monkeypatch.setattr(prediction, "measure", lambda device, spec: found[spec.name])
    monkeypatch.setattr(
        sys, "argv", ["prediction.py", "--devices", "cpu", "--case", "ResNet,GPT", "--page"]
    )
    prediction.main()
    text = page.read_text("utf-8")
    assert "1 of 2 runs are within 20 %" in text and "- cpu: numpy" in text
    assert "| cpu | ResNet-18 | run | 100 ms | 110 ms | 1.10 |" in text
    assert "|  |  | relu | 0 us | 100 us | - |" in text


def test_a_page_of_predictions_is_built_of_earlier_results(
    runner: CliRunner,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One model in each file, and on the page device by device."""
    import prediction
    from prediction_facts import Predicted

    def measured(device: str, model: Any) -> Predicted:
        number = 1 + len(model.name) + 100 * (device == "b")
        return Predicted((0.1, number / 100), (0.05, number / 200), {"conv": (0.01, 0.02)})

    monkeypatch.setattr(prediction, "measure", measured)
    options, every = ["prediction.py", "--devices", "a,b"], ["ResNet", "pipeline"]
    for case in every:
        monkeypatch.setattr(sys, "argv", [*options, "--case", case, "--json"])
        prediction.main()
        (tmp_path / f"{case}.json").write_text(capsys.readouterr().out, "utf-8")
    monkeypatch.setattr(prediction, "measure", lambda *_: pytest.fail("it was measured before"))
    found = prediction.read(",".join(str(tmp_path / f"{case}.json") for case in every))
    names = [(device, model) for device, model, _ in found]
    assert names == [(d, m) for d in "ab" for m in ("ResNet-18", "pipeline.py")]
    for device, model, one in found:
        assert one == measured(device, prediction.models_of(model)[0])
    text = prediction.as_page(found, {"a": "A", "b": "B"}, None)
    assert "wanted the" not in text and "of 4 runs are within" in text


def test_a_prediction_that_is_far_off_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    import prediction_facts as prediction

    from vksched.bench.suites import specs_of

    found = prediction.Predicted((0.1, 0.2), (0.09, 0.09), {"conv": (0.08, 0.09)})
    monkeypatch.setattr(prediction, "measure", lambda device, spec: found)
    spec = specs_of(prediction.SUITE, "ResNet-18")[0]
    run, device, conv = prediction.prediction_facts("cpu", spec)
    assert run.ratio == 2.0 and run.note == "over 20 % off"
    assert device.ratio == 1.0 and conv.name == "ResNet-18: conv"


# -- language models -------------------------------------------------------------------------------


def test_sizes_of_models_are_those_of_files(runner: CliRunner, tmp_path: Path) -> None:
    import model_sizes

    from vksched.bench.language.random_models import Sizes, write_model
    from vksched.importers import load_gguf

    sizes = Sizes(layers=2, width=256, heads=4, kv_heads=2, inner=512, vocabulary=300)
    shape = model_sizes.Shape("small", 2, 256, 4, 2, 64, 512, 300, tied=False)
    for kind in model_sizes.TYPES:
        write_model(tmp_path / kind, kind, sizes)
        model = load_gguf(tmp_path / kind)
        assert shape.parameters == model.parameters
        assert shape.weight_bytes(kind) == model.parameter_bytes
    assert shape.cache_bytes(100, 2) == 100 * 2 * 2 * (2 * 64) * 2
    # as the models' own pages count them
    known = {s.name: s.parameters for s in model_sizes.SHAPES}
    assert known["SmolLM2 135M"] == 134_515_008 and known["Llama 3.1 8B"] == 8_030_261_248
    assert known["Qwen 2.5 0.5B"] == 494_032_768


def test_cards_have_room_for_weights_and_cache(runner: CliRunner) -> None:
    import model_sizes

    for shape in model_sizes.SHAPES:
        fits = [shape.card_gib(kind) for kind in model_sizes.TYPES]
        assert fits == sorted(fits, key=lambda gib: gib or 1000)
        if fits[0]:
            need = shape.weight_bytes("Q4_K") + shape.cache_bytes(4096, 2)
            assert need < fits[0] * model_sizes.GIB * 7 / 8
            smaller = [gib for gib in model_sizes.CARDS_GIB if gib < fits[0]]
            room = need + model_sizes.ROOM
            assert all(room > gib * model_sizes.GIB * 7 / 8 for gib in smaller)
    assert model_sizes.SHAPES[-1].card_gib("F16") is None


def test_the_page_has_the_table_that_is_computed(runner: CliRunner) -> None:
    import model_sizes

    page = model_sizes.PAGE.read_text("utf-8")
    assert model_sizes.written(page) == page and model_sizes.table() in page
    assert model_sizes.PICTURE.read_text("utf-8") == model_sizes.draw()


def test_the_picture_of_parts_shows_each_part_on_each_card(
    tmp_path: Path,
) -> None:
    import prompt_chart

    prompt_chart.main(tmp_path / "parts.svg")
    text = (tmp_path / "parts.svg").read_text("utf-8")
    assert text.count(">the prompt:") == 2
    assert [text.count(f">part {part}:") for part in range(1, 6)] == [2, 2, 2, 2, 0]
    assert float(text.partition("in parts ")[2].split()[0]) > 1.5


def test_the_page_of_language_models_is_written_from_results(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import language_models

    from vksched.bench.baselines.workloads import Spec
    from vksched.bench.extra_metrics import ExtraMetric
    from vksched.bench.peak_throughput import PeakRates
    from vksched.bench.report import DeviceReport, Report
    from vksched.bench.rounds import Result, RunnerTiming

    monkeypatch.setattr(language_models, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(language_models, "STORED", tmp_path / "page.json")
    refused = runner.invoke(language_models.main)
    assert refused.exit_code == 1 and "try --run" in refused.output
    card = DeviceReport("vulkan:0", "A card (1)", "discrete", "d", PeakRates(1e9, 4e9, "", ""))
    card.baselines["llama.cpp"] = "0.5"
    params = {"phase": "prompt", "tokens": 100, "type": "Q4_K", "flops": 1e9, "bytes": 1e9}
    spec = Spec("m Q4_K prompt 100", "language", "prompt", params)
    wrong = RunnerTiming("llama.cpp", reason="wrong result", wrong=True)
    ours = RunnerTiming("vksched", [0.5, 0.5], memory_bytes=3 << 20)
    load = Spec("m Q4_K load", "language", "load", {**params, "phase": "load"})
    results = [
        Result("vulkan:0", spec, [ours, RunnerTiming("llama.cpp", [1.0, 2.0])]),
        Result("vulkan:0", load, [RunnerTiming("vksched", [0.25]), wrong]),
    ]
    facts = [ExtraMetric("vulkan:0", "m Q4_K: second start, beside a read", 0.4, "s", 0.2, "note")]
    stored = tmp_path / "run.json"
    stored.write_text(json.dumps(Report("llm", [card], results, "0", facts).as_dict()))
    assert runner.invoke(language_models.main, [str(stored)]).exit_code == 0
    text = (tmp_path / "page.md").read_text()
    row = "| m Q4_K prompt 100 | 200 | 66.7 | 3.00 | 500 ms | 0 % | 2 | 50.0 % | 3.0 MiB |  |"
    assert row in text and "| vulkan:0 | Q4_K |  | 3.00 |  |" in text
    assert (
        "| m Q4_K load | 250 ms | - |" in text and "llama.cpp: wrong result: m Q4_K load." in text
    )
    assert "| vulkan:0 | m Q4_K: second start | 400 ms | 200 ms | 2.00 | note |" in text
    assert all(len(line) <= 100 for line in text.splitlines() if not line.startswith("|"))
    stored.unlink()
    assert runner.invoke(language_models.main).exit_code == 0
    assert (tmp_path / "page.md").read_text() == text


def results_of(device: str, cases: Sequence[str]) -> dict[str, Any]:
    """What `vksched bench` writes of these cases."""
    from vksched.bench.baselines.workloads import Spec
    from vksched.bench.peak_throughput import PeakRates
    from vksched.bench.report import DeviceReport, Report
    from vksched.bench.rounds import Result, RunnerTiming

    params = {"phase": "token", "tokens": 1, "type": "Q4_K", "flops": 1e9, "bytes": 1e9}
    specs = [Spec(name, "language", "token", params) for name in cases]
    results = [Result(device, spec, [RunnerTiming("vksched", [0.5])]) for spec in specs]
    about = DeviceReport(device, device, "cpu", "d", PeakRates(1e9, 4e9, "", ""))
    return Report("llm", [about], results, "0").as_dict()


def test_a_run_measures_all_types_and_replaces_what_was_known(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import language_models
    import portions

    from vksched.bench.language.random_models import TYPES, Sizes, write_model

    monkeypatch.setattr(language_models, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(language_models, "STORED", tmp_path / "page.json")
    sizes = Sizes(layers=1, width=256, heads=4, kv_heads=2, inner=512, vocabulary=300, context=256)
    write_model(file := tmp_path / "own-q4_k.gguf", "Q4_K", sizes)
    asked: list[tuple[str, int]] = []
    fails = True

    def call(self: portions.Run, command: list[str]) -> str:
        """Write what `vksched bench` would, but for one portion."""
        cases = command[command.index("--case") + 1].split(",")
        asked.append((cases[0], len(cases)))
        if not (fails and "Q6_K" in cases[0]):
            Path(command[-1]).write_text(json.dumps(results_of("cpu", cases)), "utf-8")
        return ""

    monkeypatch.setattr(portions.Run, "_call", call)
    (tmp_path / "page.json").write_text(json.dumps(results_of("cpu", ["old"])), "utf-8")
    args = ["--run", "--devices", "cpu", "--model", str(file), "--work", str(tmp_path / "work")]
    stopped = runner.invoke(language_models.main, args)
    assert stopped.exit_code == 1 and "6 cases are missing" in stopped.output
    assert {f"random 27M {kind} prompt 128" for kind in TYPES} < {name for name, _ in asked}
    assert ("own-q4_k load", 3) in asked and ("random 27M Q4_K int8 prompt 128", 3) in asked
    asked.clear()
    with monkeypatch.context() as other:
        other.setattr(portions, "code_and_drivers", lambda: "of another commit")
        refused = runner.invoke(language_models.main, args)
    assert refused.exit_code == 1 and "expected figures of this code" in refused.output
    refused = runner.invoke(language_models.main, [*args, "--time-budget", "2"])
    assert refused.exit_code == 1 and "and options" in refused.output and not asked
    (tmp_path / "work" / "mine.json").write_text("not of a run")
    fails = False
    done = runner.invoke(language_models.main, args)
    assert done.exit_code == 0, done.output
    assert [name for name, _ in asked] == [
        "random 27M Q6_K prompt 128",
        "random 27M Q6_K int8 prompt 128",
    ]
    text = (tmp_path / "page.md").read_text()
    assert all(f"| random 27M {kind} token at 2048 |" in text for kind in TYPES)
    assert "| old |" not in text
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["mine.json"]
    asked.clear()
    assert runner.invoke(language_models.main, [*args, "--few", "cpu"]).exit_code == 0
    assert asked == [("random 27M F16 token at 128", 4)]
    (tmp_path / "work" / "mine.json").unlink()
    assert runner.invoke(language_models.main, args).exit_code == 0
    assert not (tmp_path / "work").exists()


def test_plans_are_held_against_moves_and_all_placements(runner: CliRunner, tmp_path: Path) -> None:
    import plan_moves

    target = tmp_path / "rows.json"
    options = ["--graphs", "1", "--json", str(target)]
    found = runner.invoke(plan_moves.main, options, catch_exceptions=False)
    assert found.exit_code == 0 and "of the best single device" in found.output
    usual, small = json.loads(target.read_text())
    assert not usual["whole"] and small["whole"]
    for row in (usual, small):
        assert row["single"] <= 1.000001 and 1 <= row["better"] < 1.1


def test_first_runs_has_two_starts_next_to_references(
    runner: CliRunner, capsys: pytest.CaptureFixture[str]
) -> None:
    import first_runs

    options = ["--devices", "cpu", "--case", "tiny", "--turns", "1", "--time-budget", "0.02"]
    first_runs.main([*options, "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert row["case"] == "150 tiny ops" and row["devices"] == "cpu"
    assert len(row["starts"]) == first_runs.STARTS and list(row["rough"]) == ["cpu"]
    for start in row["starts"]:
        assert start["used"] == "cpu" and len(start["first_s"]) == first_runs.FIRST
        assert min(start["ratio"], start["predicted"], start["best_s"], start["compile_s"]) > 0
    assert first_runs.orders_of(["a", "b", "cpu"]) == [
        ["a", "b"], ["b", "a"], ["a", "b", "cpu"], ["b", "a", "cpu"]
    ]  # fmt: skip
    table = first_runs.table_of([first_runs.Row("g", "cpu", (), {})])
    assert [column.header for column in table.columns][:2] == ["graph", "devices"]
