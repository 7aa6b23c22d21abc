"""Options that would have no effect are refused, or a note names them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from benchmark_folders import SUITES
from test_cli import call

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402

PLANNING = ["bench", "--suite-dir", str(SUITES), "--suite", "planning"]
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n,3] x) => (float[n,3] y) { y = Relu(x) }"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "small.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    return str(path)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["run", "MODEL", "--random-inputs", "--rtol", "0"], "--rtol needs --compare-with"),
        (["run", "MODEL", "--random-inputs", "--atol", "0"], "--atol needs --compare-with"),
        (["run", "MODEL", "--seed", "1"], "--seed needs --random-inputs"),
        (["tune", "--free-dim", "n=2"], "--free-dim needs a model"),
        (["calibrate", "--shape", "x=2,3"], "--shape needs a model"),
        (["tune", "--ctx-size", "8"], "--ctx-size needs a GGUF model"),
        (["tune", "MODEL", "--cache-type", "f16"], "--cache-type needs a GGUF model"),
        (["tune", "m.gguf", "--free-dim", "n=2"], "--free-dim needs an ONNX model"),
        (["tune", "--clear", "--ctx-size", "8"], "--clear and --ctx-size exclude"),
        (["tune", "--clear", "MODEL"], "--clear and MODEL.onnx exclude each other"),
        (["tune", "--clear", "--precision", "mixed"], "--clear and --precision exclude"),
        (
            ["calibrate", "--clear", "--free-dim", "n=2"],
            "--clear and --free-dim exclude each other",
        ),
        ([*PLANNING, "--devices", "cpu"], "planning and --devices exclude"),
        ([*PLANNING, "--baselines"], "planning and --baselines exclude"),
        (["bench", "--list", "--json"], "--list and --json exclude each other"),
        (["bench", "--list", "--output", "a.json"], "--list and --output exclude each other"),
        (["bench", "--list", "--baseline-python", __file__], "--baseline-python needs --baselines"),
        (["devices", "--presets", "-v"], "--presets and --verbose exclude each other"),
        (
            ["cluster", "devices", "--worker", "a:1", "--credentials", "k", "--address", "b:2"],
            "--worker and --address exclude each other",
        ),
        (["cluster", "devices", "--security", "plain"], "--security plain needs --worker"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_without_effect_is_refused(
    args: list[str], message: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *(model if a == "MODEL" else a for a in args))
    assert code == 2 and message in err and not out


def test_inputs_that_contradict_sizes_are_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    np.savez(tmp_path / "all.npz", x=np.ones((2, 3), np.float32), z=np.ones(3))
    arguments = ["run", model, "--devices", "cpu", "--input"]
    code, _, err = call(capsys, *arguments, f"x={tmp_path / 'x.npy'}", "--shape", "x=4,3")
    assert code == 1 and "expected an array of shape (4, 3) for 'x', got (2, 3)" in err
    for command in ("run", "info"):
        args = [command, model, "--devices", "cpu", "--input", str(tmp_path / "all.npz")]
        code, _, err = call(capsys, *args)
        assert code == 1 and "for inputs ['x'], got 'z'" in err
    code, out, _ = call(capsys, *arguments, f"x={tmp_path / 'x.npy'}", "--random-inputs", "--json")
    assert code == 0
    assert "--random-inputs has no effect, as all inputs are given" in json.loads(out)["notes"]
