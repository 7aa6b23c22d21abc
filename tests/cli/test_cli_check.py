"""`vksched run --compare-with`: what counts as wrong, and who is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import call
from test_cli_run import data_of

from vksched.cli import differences
from vksched.cli.compare import reference_runtimes
from vksched.cli.differences import Tolerance

onnx = pytest.importorskip("onnx")
from onnx import numpy_helper, parser  # noqa: E402

HEAD = '<ir_version: 8, opset_import: ["" : {}]>\n'
OTHERS = ["onnxruntime", "numpy"]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def saved(folder: Path, text: str, opset: int = 17, **initializers: Any) -> str:
    """Save a model in onnx's text form, with initializers added to its graph."""
    model = parser.parse_model(HEAD.format(opset) + text)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in initializers.items())
    onnx.save(model, folder / "m.onnx")
    return str(folder / "m.onnx")


def changed(
    name: str, change: Callable[[list[Any]], list[Any]]
) -> reference_runtimes.ReferenceRuntime:
    """A reference whose results are changed."""
    real = reference_runtimes.REFERENCE_RUNTIMES[name]
    return replace(real, evaluate=lambda *args: change(list(real.evaluate(*args))))


def run(path: str, reference: str, *more: str) -> tuple[str, ...]:
    return "run", path, "--devices", "cpu", "--random-inputs", "--compare-with", reference, *more


# -- how far apart -------------------------------------------------------------------------------


def test_what_differs_is_reported() -> None:
    nan, inf = np.nan, np.inf
    ones = np.ones(3, np.float32)
    found = {
        "same": np.array([nan, inf, 1]),
        "lost": np.array([nan, 1.0]),
        "far": ones * 1.001,
        "near": ones * np.float32(1.00001),
        "ints": np.array([1, 2]),
        "shape": ones,
        "text": np.array(["a"], object),
        "list": [ones, ones],
    }
    wanted = {
        **found,
        "lost": np.array([0.0, 1.0]),
        "far": ones,
        "near": ones,
        "ints": np.array([1, 5]),
        "shape": ones[:2],
        "text": np.array(["b"]),
        "list": [ones, ones * 2],
    }
    off = {d.output: d for d in differences.compare(found, wanted)}
    wrong = {name for name, d in off.items() if d.wrong}
    assert wrong == {"lost", "far", "ints", "shape", "text", "list[1]"}
    assert not differences.compare({"x": ones * 1.001}, {"x": ones}, Tolerance.of(0.01))[0].wrong
    assert off["ints"].largest == 3 and off["far"].relative == pytest.approx(1e-3, rel=0.01)


def test_what_is_as_good_as_0_has_few_digits_of_its_own() -> None:
    silence = np.array([1.2e-7, 3e-8], np.float32)
    (near,) = differences.compare({"y": silence}, {"y": silence * np.float32(1.5)})
    assert near.largest == pytest.approx(6e-8, rel=0.01) and not near.wrong
    (far,) = differences.compare({"y": silence}, {"y": silence + np.float32(2e-7)})
    assert far.wrong  # 1e-4 of 1e-3
    (exact,) = differences.compare(
        {"y": silence}, {"y": silence * np.float32(1.5)}, Tolerance.of(0.0)
    )
    assert exact.wrong
    near_zero = Tolerance.of(0.0, atol=1e-7)
    assert not differences.compare({"y": silence}, {"y": silence * np.float32(1.5)}, near_zero)[
        0
    ].wrong
    one = np.array([2e-3], np.float32)
    assert differences.compare({"y": one}, {"y": one + np.float32(4e-7)})[0].wrong


def test_the_score_of_silence_is_right(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    text = "g (float[1,4] x) => (float[1,4] y) { a = Add(x, low)\n y = Sigmoid(a) }"
    low = np.array([-15.8, -15.3, -16.7, -15.1], np.float32)
    path = saved(tmp_path, text, low=low)
    np.save(tmp_path / "x.npy", np.zeros((1, 4), np.float32))
    values = f"x={tmp_path / 'x.npy'}"
    args = ("run", path, "--devices", "cpu", "--input", values, "--compare-with", "onnxruntime")
    (row,) = data_of(capsys, *args)["check"]
    assert row["wrong"] == "" and row["largest"] < 1e-7


@pytest.mark.parametrize("reference", OTHERS)
def test_a_wrong_result_is_exit_code_1(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: str,
) -> None:
    pytest.importorskip("onnxruntime")
    path = saved(tmp_path, "g (float[2] x) => (float[2] y, float[2] z) {y = Neg(x)\nz = Abs(x)}")
    for name in OTHERS:
        other = changed(name, lambda found: [found[0] + 1, *found[1:]])
        monkeypatch.setitem(reference_runtimes.REFERENCE_RUNTIMES, name, other)
    code, out, err = call(capsys, *run(path, reference))
    assert code == 1 and "over 0.0001 of the largest magnitude" in out
    assert err.count("\n") == 1 and f"1 of 2 outputs differ from {reference}: y: over" in err
    message = "onnxruntime differs from vksched, too" in out
    assert message == (reference == "numpy")


# -- networks that quantise ----------------------------------------------------------------------


def deep(layers: int, size: int) -> tuple[str, dict[str, Any]]:
    """A network that quantises in each layer, and saturates: its zero points are ties.

    Weights have 7 bits: onnxruntime adds pairs of products in 16 bits on processors without VNNI.
    """
    rng = np.random.default_rng(0)
    lines, feeds, last = [], {}, "x"
    for i in range(layers):
        feeds[f"w{i}"] = rng.integers(-64, 65, (size, size)).astype(np.int8)
        feeds[f"s{i}"] = np.float32(3 / (37 * np.sqrt(size)))
        lines += [
            f"q{i}, c{i}, z{i} = DynamicQuantizeLinear({last})",
            f"m{i} = MatMulInteger(q{i}, w{i}, z{i})",
            f"f{i} = Cast<to = 1>(m{i})",
            f"g{i} = Mul(f{i}, c{i})",
            f"h{i} = Mul(g{i}, s{i})",
            f"a{i} = Tanh(h{i})",
        ]
        last = f"a{i}"
    body = "\n".join([*lines, f"y = Neg({last})"])
    return f"g (float[256,{size}] x) => (float[256,{size}] y) {{\n{body}\n}}", feeds


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> str:
    text, values = deep(12, 64)
    return saved(tmp_path_factory.mktemp("model"), text, **values)


def test_a_flipped_step_is_reported_and_is_no_fault(
    capsys: pytest.CaptureFixture[str], quantised: str
) -> None:
    pytest.importorskip("onnxruntime")
    data = data_of(capsys, *run(quantised, "onnxruntime"))
    (row,), steps = data["check"], data["steps"]
    assert row["relative"] > 0.01, "nothing flipped: the test shows nothing"
    assert row["wrong"] == "" and row["note"] == "right except for one quantization step"
    assert steps["values"] == 36 and steps["wrong"] == []
    parted = steps["parted"]
    assert parted["node"].startswith("DynamicQuantizeLinear node 'q") and parted["steps"] == 1
    assert 1 <= parted["elements"] <= 0.1 * parted["of"]
    code, out, _ = call(capsys, *run(quantised, "onnxruntime"))
    assert code == 0 and "outputs and 36 quantized values agree on equal inputs" in out
    assert f"the runs part at {parted['node']}: {parted['elements']} of {parted['of']} " in out


@pytest.mark.parametrize(
    ("opset", "line"),
    [
        (13, "q = QuantizeLinear(a, s, z)\nd = DequantizeLinear(q, s, z)"),
        (17, "q, t, u = DynamicQuantizeLinear(a)\nd = DequantizeLinear(q, t, u)"),
    ],
)
def test_a_wrong_part_of_a_network_that_quantises_stays_wrong(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opset: int,
    line: str,
) -> None:
    text = f"g (float[64] x) => (float[64] y) {{ a = Abs(x)\n{line}\n y = Exp(d) }}"
    path = saved(tmp_path, text, opset, s=np.float32(0.02), z=np.uint8(3))
    assert data_of(capsys, *run(path, "numpy"))["steps"] is None  # right: nothing to ask
    monkeypatch.setattr(reference_runtimes.ReferenceRuntime, "is_installed", False)

    def more(found: list[Any]) -> list[Any]:
        return [a * np.float32(1.01) if a.dtype == np.float32 and a.ndim else a for a in found]

    monkeypatch.setitem(reference_runtimes.REFERENCE_RUNTIMES, "numpy", changed("numpy", more))
    code, out, err = call(capsys, *run(path, "numpy"))
    assert code == 1 and "on equal inputs wrong: output 'y': over 0.0001 of" in out, err

    def other(found: list[Any]) -> list[Any]:  # half of the elements on the next step
        return [a + (np.arange(a.size) % 2).astype(a.dtype) if a.ndim else a for a in found]

    monkeypatch.setitem(reference_runtimes.REFERENCE_RUNTIMES, "numpy", changed("numpy", other))
    code, out, _ = call(capsys, *run(path, "numpy"))
    assert code == 1 and "node 'q': 32 of 64 elements off by one step" in out


def test_a_judge_that_does_not_run_the_parts_is_reported(
    capsys: pytest.CaptureFixture[str], quantised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = reference_runtimes.REFERENCE_RUNTIMES["numpy"]

    def once(source: Any, inputs: Any, names: Any) -> Any:
        if len(inputs) > 1:
            raise RuntimeError("too many")
        return [a + 1 for a in real.evaluate(source, inputs, names)]

    monkeypatch.setitem(
        reference_runtimes.REFERENCE_RUNTIMES, "numpy", replace(real, evaluate=once)
    )
    monkeypatch.setattr(reference_runtimes.ReferenceRuntime, "is_installed", False)
    code, out, _ = call(capsys, *run(quantised, "numpy"))
    assert code == 1 and "not compared step by step: " in out and "too many" in out


# -- the onnx evaluator --------------------------------------------------------------------------

GRU = """g (float[4,2,3] x) => (float[4,1,2,5] y) {
  y = GRU<hidden_size = 5, clip = 0.3, direction = "reverse">(x, w, r)
}"""


def gru(folder: Path) -> str:
    rng = np.random.default_rng(1)
    w, r = (rng.standard_normal((1, 15, n)).astype(np.float32) for n in (3, 5))
    return saved(folder, GRU, w=w, r=r)


@pytest.mark.parametrize("opset", [9, 13])
def test_batch_normalization_of_old_opsets_is_judged_rightly(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, opset: int
) -> None:
    text = """g (float[2,3,4,4] x) => (float[2,3,4,4] y)
    <float[3] s = {1, 2, 3}, float[3] b = {2, 0, 1}, float[3] m = {1, 0, 2}, float[3] v = {1, 4, 9}>
    { y = BatchNormalization(x, s, b, m, v) }"""
    path = saved(tmp_path, text, opset)
    for reference in OTHERS:
        if reference_runtimes.REFERENCE_RUNTIMES[reference].is_installed:
            assert [row["wrong"] for row in data_of(capsys, *run(path, reference))["check"]] == [""]


def test_where_the_evaluator_is_wrong_onnxruntime_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    path = gru(tmp_path)
    data = data_of(capsys, *run(path, "numpy"))
    (row,) = data["check"]
    assert row["relative"] > 1e-3 and row["wrong"] == ""
    assert row["note"] == "good: onnxruntime gives it, too"
    (reported,) = data["check_notes"]
    assert reported.startswith(
        "the onnx evaluator is wrong at GRU node 'y', not vksched: onnxruntime"
    )


def test_without_onnxruntime_doubts_are_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_runtimes.ReferenceRuntime, "is_installed", False)
    code, out, _ = call(capsys, *run(gru(tmp_path), "numpy"))
    assert code == 1 and "the onnx evaluator is wrong in some forms of GRU; try pip install" in out


def test_what_the_evaluator_lacks_is_reported_with_another_judge(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = saved(tmp_path, "g (float[1,2,3] x) => (float[1,2,1] y) { y = GlobalLpPool(x) }")
    code, _, err = call(capsys, *run(path, "numpy"))
    assert code == 1 and "numpy does not run the model" in err
    assert err.endswith("; try --compare-with onnxruntime\n")
