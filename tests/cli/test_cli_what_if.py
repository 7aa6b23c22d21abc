"""`vksched plan` for machines that are not here, and for changes of the one that is."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from test_cli import call
from test_cli_plan import EXAMPLE, ROOT, model
from test_devices import Show, plain_environment, raw, show

import vksched as vs
from vksched.runtime.vulkan import device_probe
from vksched.topology.presets import card_names, topology_names
from vksched.tuning.calibration_types import Calibration, Overheads, Sample, speeds_of
from vksched.tuning.calibrator import cost_cache_key
from vksched.tuning.cost_cache import CostCache

__all__ = ["model", "plain_environment", "show"]  # fixtures

TWO_CARDS = str(ROOT / "examples" / "data" / "two_cards.json")
BUILD = f"{EXAMPLE}:build"


def plan_data(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    code, out, err = call(capsys, "plan", *args, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_preset_tells_layers_time_and_each_device(
    capsys: pytest.CaptureFixture[str], show: Show
) -> None:
    show(problem="nobody may ask the drivers")
    code, out, err = call(capsys, "plan", BUILD, "--topology", "preset:two-cards")
    assert code == 0 and err == ""
    assert re.search(r"layer\.0 \.\. probabilities +133  fast +\S+ us +144\.0 MiB", out)
    assert "one run, by simulation of estimates\n  fast works" in out
    for text in (
        "fast: AMD Radeon RX 7900 XTX, by its specification",
        "  without fast, small alone  ",
        "  without small, fast alone  ",
        "  cpu alone  ",
        "small can be spared: a run takes as long without it",
        "fast, small, cpu are estimated, not measured",
    ):
        assert text in out, text


def test_changes_have_rows_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    changes = ("-small", "+preset:rtx4090@pcie3x4", "-fast,+preset:rtx4090")
    args = [word for change in changes for word in ("--what-if", change)]
    data = plan_data(capsys, BUILD, "--topology", "preset:two-cards", *args)
    rows = {row["text"]: row for row in data["what_if"]}
    assert list(rows) == [
        "as it is",
        "without fast, small alone",
        "without small, fast alone, -small",
        "cpu alone",
        *changes[1:],
    ]
    assert rows["-fast,+preset:rtx4090"]["factor"] < 1
    first = data["what_if"][0]
    assert first == {
        **data["prediction"],
        "objective": "latency",
        "value": data["prediction"]["seconds"],
        "factor": 1.0,
    }
    assert data["prediction"]["busy"].keys() == {"fast"}
    assert [layer["nodes"] for layer in data["layers"]] == [{"fast": 133}]


def test_the_larger_model_needs_both_cards(capsys: pytest.CaptureFixture[str]) -> None:
    data = plan_data(capsys, BUILD, "--topology", TWO_CARDS, "--policy", "priority")
    layers = [(layer["first"], layer["last"], set(layer["nodes"])) for layer in data["layers"]]
    assert layers[0] == ("layer.0", "layer.6", {"small"})
    assert layers[1][2] == {"small", "large"} and layers[-1][1] == "probabilities"
    assert set(data["prediction"]["busy"]) == {"small", "large"}
    assert "what_if" in data and data["topology"]["devices"][0]["name"] == "small"


def test_a_node_is_reported_without_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["plan", BUILD, "--topology", TWO_CARDS, "--node", "layer.7.wide"]
    code, out, _ = call(capsys, *args)
    assert code == 0 and out.startswith("layer.7.wide: matmul") and "without" not in out


def test_64_machines_are_planned_as_one_kind(capsys: pytest.CaptureFixture[str]) -> None:
    data = plan_data(capsys, BUILD, "--topology", "preset:network-64", "--what-if", "-node:63")
    texts = [row["text"] for row in data["what_if"]]
    assert texts == [
        "as it is",
        "without one of node:0 .. node:63, -node:63",
        "one of node:0 .. node:63 alone",
        *(f"{count} of node:0 .. node:63" for count in (2, 4, 8, 16, 32)),
        "cpu alone",
    ]
    assert len(data["devices"]) == 65


def test_pins_on_a_device_that_is_taken_away(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--topology", "preset:two-cards", "--place", "layer.11.*=small"]
    data = plan_data(capsys, BUILD, *args, "--what-if", "-small")
    assert set(data["prediction"]["busy"]) == {"fast", "small"}
    without = next(row for row in data["what_if"] if "-small" in row["text"])
    assert without["busy"].keys() == {"fast"} and without["factor"] < 1


def printed() -> list[tuple[list[str], list[str]]]:
    """The commands of docs/guides/what-if-analysis.md whose output stands behind them, with its
    lines.
    """
    page = (
        (ROOT / "docs" / "guides" / "what-if-analysis.md").read_text("utf-8").replace(" \\\n", " ")
    )
    found = re.findall(r"```\nvksched (plan .*)\n```\n[^`]*```text\n([^`]*)```", page)
    return [(shlex.split(command), text.splitlines()) for command, text in found]


def test_the_page_prints_what_the_commands_print(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("yaml")
    monkeypatch.chdir(ROOT)
    commands = printed()
    assert len(commands) == 3
    for command, lines in commands:
        code, out, _ = call(capsys, *command)
        assert code == 0
        assert out.splitlines()[-len(lines) :] == lines


# -- the machine that is here ----------------------------------------------------------------------


def test_what_if_works_on_the_machine_that_is_here(
    capsys: pytest.CaptureFixture[str], show: Show, model: str
) -> None:
    show(raw(0), raw(1, pci="0000:02:00.0"))
    args = ["plan", f"{model}:build", "--devices", "vulkan:0,vulkan:1"]
    assert "with and without" not in call(capsys, *args)[1]
    code, out, _ = call(capsys, *args, "--what-if", "-vulkan:1", "--what-if", "+preset:rx6600")
    assert code == 0 and "with and without:" in out and "+preset:rx6600 " in out
    assert re.search(r"without vulkan:1.*-vulkan:1", out) or "one of vulkan:0, vulkan:1" in out


def test_what_was_measured_counts(
    capsys: pytest.CaptureFixture[str],
    show: Show,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path))
    monkeypatch.setenv("VKSCHED_TUNE", "1")
    show(raw(0))
    spec = device_probe.device_spec(device_probe.resolve("vulkan:0"))
    identity = cost_cache_key(spec)
    assert identity is not None
    known = Calibration(
        speeds_of(spec),
        Overheads(1e-6, 2e-6, 3e-6, 4e-6, 5e-6),
        vs.Link(3e9, 1e-5),
        samples=tuple(Sample(op, "bytes", -20.0, 7.0) for op in ("matmul", "softmax", "relu")),
    )
    assert CostCache().add(identity, known)
    args = [f"{model}:build", "--devices", "vulkan:0", "--what-if", "+preset:rx6600"]
    data = plan_data(capsys, *args)
    links = {tuple(link["between"]): link for link in data["topology"]["links"]}
    assert links["cpu", "vulkan:0"]["bytes_per_s"] == 3e9
    assert data["topology"]["devices"][0]["costs"]["calls"] == 3
    assert data["prediction"]["estimated"] == []
    code, out, _ = call(capsys, "plan", f"{model}:build", "--devices", "vulkan:0", "--node", "last")
    assert code == 0 and "as measured" in out


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("-vulkan:7", "expected one of fast, small, got 'vulkan:7'"),
        ("+preset:rx660", "try rx6600"),
        ("+preset:rx6600@pcie4x15", "expected the name of a link"),
        ("small", "expected -DEVICE"),
    ],
)
def test_a_change_that_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], change: str, match: str
) -> None:
    args = ["plan", BUILD, "--topology", "preset:two-cards", "--what-if", change]
    code, out, err = call(capsys, *args)
    assert (code, out) == (1, "") and err.count("\n") == 1 and re.search(match, err)


def test_an_unknown_preset_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "plan", BUILD, "--topology", "preset:to-cards")
    assert code == 1 and err.count("\n") == 1 and "try two-cards" in err
    assert all(name in err for name in topology_names())


def test_presets_are_listed(capsys: pytest.CaptureFixture[str], show: Show) -> None:
    show(problem="nobody may ask the drivers")
    code, out, err = call(capsys, "devices", "--presets")
    assert code == 0 and err == ""
    for name in (*card_names(), *topology_names(), "pcie4x16", "ethernet10g"):
        assert name in out, name
    assert "public specifications" in out
    data = json.loads(call(capsys, "devices", "--presets", "--json")[1])
    assert [card["name"] for card in data["cards"]] == list(card_names())
    assert {topology["name"] for topology in data["machines"]} == set(topology_names())
    assert data["links"]["pcie4x4"]["bytes_per_s"] == pytest.approx(6.3e9, rel=0.01)


# -- ONNX ------------------------------------------------------------------------------------------


@pytest.fixture
def network(tmp_path: Path) -> str:
    onnx = pytest.importorskip("onnx")
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n,64] x) => (float[n,64] y) {
      a = MatMul(x, w)
      b = Relu(a)
      y = MatMul(b, w) }"""
    parsed = onnx.parser.parse_model(text)
    tensor = onnx.helper.make_tensor("w", 1, [64, 64], [0.5] * 4096)
    parsed.graph.initializer.append(tensor)
    onnx.save(parsed, tmp_path / "net.onnx")
    return str(tmp_path / "net.onnx")


def test_an_onnx_model_is_planned_for_a_machine(
    capsys: pytest.CaptureFixture[str], network: str
) -> None:
    args = [network, "--topology", "preset:laptop"]
    code, out, err = call(capsys, "plan", *args)
    assert code == 0 and "size 1 is assumed for n; try --free-dim n=2" in err
    assert "without discrete" in out and "integrated" in out
    data = plan_data(capsys, *args, "--free-dim", "n=7")
    assert data["placements"][-1]["type"] == "float32[7,64]"
    assert sum(n for layer in data["layers"] for n in layer["nodes"].values()) == data["nodes"]


def test_info_takes_a_machine_too(capsys: pytest.CaptureFixture[str], network: str) -> None:
    code, out, err = call(
        capsys, "info", network, "--free-dim", "n=7", "--topology", "preset:laptop"
    )
    assert code == 0 and err == "" and "discrete" in out and "integrated" in out
    args = ["info", network, "--topology", "preset:laptop", "--devices", "cpu"]
    assert call(capsys, *args)[0] == 2
