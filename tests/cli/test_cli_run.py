"""`vksched info` and `vksched run`: what models take, where they run, what comes out."""

from __future__ import annotations

import json
import re
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from conftest import vulkan_names
from test_cli import call

import vksched as vs
from vksched.cli.options import inputs
from vksched.cli.views.op_timer import OpTimer
from vksched.common.errors import close_text
from vksched.engine.replay.replay_tape import replay_tape

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402

from vksched.importers.onnx.example_inputs import choose_shapes, example_inputs, find_index_bounds  # noqa: E402

needs_vulkan = pytest.mark.skipif(not vulkan_names(), reason="no Vulkan device here")

TEXT = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "maker">
tower (float[n,3] x, int64[n,s] ids, int64[n,s] attention_mask, float[2,2] q)
  => (float[n,3] y, float[n,s,2] words, float det, int64[n,s] kept)
<float[3,2] table = {1,2,3,4,5,6}> {
  y = Relu(x)
  looked = Identity(ids)
  words = Gather<axis=0>(table, looked)
  det = Det(q)
  kept = Mul(ids, attention_mask)
}"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tower.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    return str(path)


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose second half has shapes that depend on data."""
    path = tmp_path_factory.mktemp("model") / "cut.onnx"
    text = "g (int64[n] x) => (int64[?] z) { a = Neg(x)\n y = Unique(a)\n z = Abs(y) }"
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'), path)
    return str(path)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def data_of(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    code, out, err = call(capsys, *args, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


# -- info ----------------------------------------------------------------------------------------


def test_info_tells_what_a_model_takes_and_where_it_runs(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    code, out, _ = call(capsys, "info", model, "--devices", "cpu", "--free-dim", "n=4")
    assert code == 0
    for part in (
        "tower: 5 nodes, opsets ai.onnx 17, made by maker",
        "parameters: 6 (24 B)",
        "input   ids: int64[n,s]",
        "output  words: float[n,s,2]",
        "planned for x=(4,3) ids=(4,1)",
        "size 1 is assumed for s; try",
        "on the CPU: Det (1 node): ",
    ):
        assert part in out, part


@needs_vulkan
def test_info_as_data_with_memory_and_reasons(
    capsys: pytest.CaptureFixture[str], model: str
) -> None:
    device = vulkan_names()[0]
    data = data_of(capsys, "info", model, "--devices", device, "--shape", "ids=2,9")
    assert data["shapes"]["x"] == [2, 3] and data["shapes"]["attention_mask"] == [2, 9]
    assert data["assumed"] == [] and data["cut"] is None
    assert data["inputs"][0] == {"name": "x", "kind": "tensor", "dtype": "float", "dims": ["n", 3]}
    assert [value["name"] for value in data["outputs"]] == ["y", "words", "det", "kept"]
    where = {row["op"]: row["where"] for row in data["ops"]}
    assert where["Relu"] == {device: 1} and where["Det"] == {"cpu": 1}
    gpu, cpu = data["devices"]
    assert (gpu["name"], cpu["name"]) == (device, "cpu")
    assert gpu["peak_bytes"] > gpu["weight_bytes"] > 0
    assert gpu["nodes"] + cpu["nodes"] == 4  # Identity is none
    reasons = {row["op"]: row["reason"] for row in data["by_numpy"]}
    assert "Det" in reasons["Det"] and f"{device} cannot: int64" in reasons["mul"]


def test_info_says_where_the_first_stage_ends(capsys: pytest.CaptureFixture[str], cut: str) -> None:
    data = data_of(capsys, "info", cut, "--devices", "cpu")
    assert data["cut"]["nodes_left"] == 1 and "Unique" in data["cut"]["node"]
    where = {row["op"]: row["where"] for row in data["ops"]}
    assert where == {"Neg": {"cpu": 1}, "Unique": {"between stages": 1}, "Abs": {"later": 1}}
    _, out, _ = call(capsys, "info", cut, "--devices", "cpu")
    assert data["cut"]["by_host"] and not data["cut"]["doubtful"]
    assert "the first stage ends before Unique node 'y', which the host runs: no vksched" in out
    assert "the rest, 1 node, is" in out


def test_info_marks_what_a_run_may_refuse(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "misfit.onnx")
    text = """g (float[n,c,8,8] x, float[n,m] a, float[9,2] b) => (float[?,?,?,?] y, float[?,?] z) {
      y = Conv(x, w)
      z = MatMul(a, b) }"""
    parsed = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    parsed.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((9, 2, 3, 3), "f"), "w"))
    onnx.save(parsed, path)
    args = ("info", path, "--devices", "cpu", "--free-dim", "c=8", "--free-dim", "m=8")
    (row,) = data_of(capsys, *args)["by_numpy"]
    assert row["op"] == "Conv" and row["doubtful"] and "expected w (9, 2, 3, 3)" in row["reason"]
    cut = data_of(capsys, *args)["cut"]
    assert cut["doubtful"] and "expected the inner sizes to be equal" in cut["reason"]
    _, out, _ = call(capsys, *args)
    assert "Conv (1 node, 'y.onnx.Conv', which a run may refuse): operands that may not" in out
    assert "ends before MatMul node 'z', which the host runs, or refuses: operands" in out


@needs_vulkan
def test_info_tells_fused_folded_and_idle_nodes_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "fused.onnx")
    text = """g (float[64,64] x) => (float[64,64] y, float[32,128] z)
      <float[2] ones = {1, 1}, int64[2] sides = {32, 128}> {
      same = Identity(x)
      product = MatMul(same, w)
      y = Relu(product)
      twos = Add(ones, ones)
      sum = ReduceSum(twos)
      scaled = Mul(x, sum)
      unread = Exp(x)
      z = Reshape(scaled, sides) }"""
    parsed = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    weight = np.ones((64, 64), np.float32)
    parsed.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(parsed, path)
    device = vulkan_names()[0]
    args = ("info", path, "--devices", device)
    where = {row["op"]: row["where"] for row in data_of(capsys, *args)["ops"]}
    assert where == {
        "Identity": {"no work": 1},
        "MatMul": {f"{device} (fused)": 1},
        "Relu": {device: 1},
        "Add": {"folded": 1},
        "ReduceSum": {"folded": 1},
        "Mul": {device: 1},
        "Exp": {"no work": 1},
        "Reshape": {"view": 1},
    }
    _, out, _ = call(capsys, *args)
    assert re.search(rf"MatMul +1 +{device} \(fused\) 1\n", out)
    for line in (
        "(fused): fused with another node",
        "folded: constant, computed once on the host",
        "view: ",
    ):
        assert f"\n{line}" in out
    assert "\nlater: " not in out


@needs_vulkan
def test_info_gives_reasons_for_few_elements(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "few.onnx")
    text = "g (double[n] x) => (double[n] y) { y = Exp(x) }"
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'), path)
    (row,) = data_of(capsys, "info", path, "--devices", vulkan_names()[0])["by_numpy"]
    assert row["op"] == "exp" and "float64" in row["reason"] and not row["doubtful"]


needs_two = pytest.mark.skipif(len(vulkan_names()) < 2, reason="one Vulkan device or none here")


@needs_two
@pytest.mark.parametrize("command", ["info", "run"])
def test_devices_without_work_are_reported_and_names_can_be_placed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    path = str(tmp_path / "two.onnx")
    text = "g (float[8,8] x) => (float[8,8] z) { y = MatMul(x, x)\n z = Softmax(y) }"
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'), path)
    first, second = vulkan_names()[:2]
    random_inputs = ("--random-inputs",) if command == "run" else ()
    args = (command, path, "--devices", f"{first},{second}", *random_inputs)
    why = "no plan over more devices won by enough, by simulation"
    message = f"{second} has no work: {why}; try --place PATTERN=DEVICE"
    assert message in data_of(capsys, *args)["notes"]
    assert f"note: {message}" in call(capsys, *args)[1]
    placed = data_of(capsys, *args, "--place", "y*=cpu", "--place", f"z*={second}")
    assert placed["notes"] == []
    where = {row["op"].lower(): row.get("where", row.get("device")) for row in placed["ops"]}
    on = "cpu", second
    assert where == dict(
        zip(("matmul", "softmax"), ({d: 1} if command == "info" else d for d in on), strict=True)
    )
    code, _, err = call(capsys, *args, "--place", f"nope={second}")
    assert code == 1 and "expected a node that matches 'nope', got none; " in err
    code, _, err = call(capsys, *args, "--place", "y")
    assert code == 2 and "--place expects PATTERN=DEVICE, got 'y'" in err


@pytest.mark.parametrize("command", ["info", "run"])
def test_places_may_name_what_a_later_stage_has(
    capsys: pytest.CaptureFixture[str], cut: str, command: str
) -> None:
    random_inputs = ("--random-inputs",) if command == "run" else ()
    data_of(capsys, command, cut, "--devices", "cpu", *random_inputs, "--place", "z*=cpu")


def test_a_trace_without_a_folder_is_refused_before_the_model_runs(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    gone = tmp_path / "no" / "t.json"
    code, out, err = call(capsys, "run", "no_model.onnx", "--profile", str(gone))
    assert (code, out) == (1, "") and f"expected a folder for {gone}, got none at" in err


# -- run -----------------------------------------------------------------------------------------


def arrays(folder: Path) -> dict[str, Any]:
    """Inputs for the model, saved as x.npy and rest.npz."""
    rng = np.random.default_rng(3)
    built = {
        "x": rng.standard_normal((2, 3)).astype(np.float32),
        "ids": np.array([[0, 2], [1, 1]]),
        "attention_mask": np.array([[1, 1], [1, 0]]),
        "q": np.array([[1, 2], [3, 5]], np.float32),
    }
    np.save(folder / "x.npy", built["x"])
    np.savez(folder / "rest.npz", **{k: v for k, v in built.items() if k != "x"})
    return built


@pytest.mark.parametrize("kind", ["onnxruntime", "numpy"])
def test_run_takes_files_saves_outputs_and_checks_them(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path, kind: str
) -> None:
    pytest.importorskip("onnx" if kind == "numpy" else kind)
    values = arrays(tmp_path)
    code, out, err = call(
        capsys,
        *("run", model, "--devices", "cpu", "--compare-with", kind, "--repeat", "3"),
        *("--input", f"x={tmp_path / 'x.npy'}", "--input", str(tmp_path / "rest.npz")),
        *("--output-dir", str(tmp_path / "out")),
    )
    assert code == 0, err
    assert "input  ids: int64[2,2]\n" in out and "then 2 runs: median" in out
    assert f"largest difference from {kind}" in out and "good" in out
    assert "not measured: busy times divided" in out
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), np.maximum(values["x"], 0))
    assert np.load(tmp_path / "out" / "det.npy") == pytest.approx(-1, rel=1e-5)
    stored = np.load(tmp_path / "out" / "kept.npy")
    np.testing.assert_array_equal(stored, values["ids"] * values["attention_mask"])


@needs_vulkan
def test_run_makes_inputs_up_and_measures_each_op(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    device, trace = vulkan_names()[0], tmp_path / "t.json"
    args = (
        "run",
        model,
        "--random-inputs",
        "--seed",
        "7",
        "--free-dim",
        "n=4",
        "--free-dim",
        "s=8",
        "--devices",
        device,
    )
    data = data_of(capsys, *args, "--profile", str(trace))
    assert data["assumed"] == [] and all(one["made_up"] for one in data["given"])
    assert [row["name"] for row in data["devices"]] == [device, "cpu"]
    assert all(row["seconds"] > 0 for row in data["devices"])
    ops = {row["op"]: row["device"] for row in data["ops"]}
    assert data["ops_measured"] and ops["relu"] == device and ops["onnx.Det"] == "cpu"
    words = next(o for o in data["outputs"] if o["name"] == "words")
    assert words["type"] == "float32[4,8,2]" and 1 <= words["min"] <= words["max"] <= 6
    assert any("numpy runs mul" in note for note in data["notes"])
    names = [event["name"] for event in json.loads(trace.read_text("utf-8"))["traceEvents"]]
    for part in ("split 0: y.relu", "split 2: det.onnx.Det", "run 1"):
        assert part in names
    assert data["tapes"] == [str(trace)]
    assert replay_tape(vs.load_tape(trace)).difference is None
    again = data_of(capsys, *args)
    assert again["outputs"] == data["outputs"] and not again["ops_measured"]


def test_run_writes_a_tape_that_can_be_replayed(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    args = (
        "run",
        model,
        "--random-inputs",
        "--seed",
        "7",
        "--free-dim",
        "n=4",
        "--free-dim",
        "s=8",
        "--devices",
        "cpu",
    )
    tape = tmp_path / "t.json"
    code, out, _ = call(capsys, *args, "--repeat", "3", "--trace", str(tape))
    assert code == 0 and f"wrote {tape}, for vksched trace, vksched replay and Perfetto" in out
    assert [e.name for e in vs.load_tape(tape).events].count("run") == 3
    code, out, _ = call(capsys, "replay", str(tape))
    assert code == 0 and out.endswith("no difference\n")
    code, _, err = call(capsys, *args, "--trace", str(tmp_path / "nowhere" / "t.json"))
    assert code == 1 and "nowhere" in err


def test_run_over_stages(capsys: pytest.CaptureFixture[str], cut: str, tmp_path: Path) -> None:
    from onnx.numpy_helper import from_array

    path = tmp_path / "x.pb"
    path.write_bytes(from_array(np.array([3, 1, 3])).SerializeToString())
    data = data_of(capsys, "run", cut, "--devices", "cpu", "--input", f"x={path}")
    assert data["outputs"] == [
        {"name": "z", "type": "int64[2]", "min": 1.0, "mean": 2.0, "max": 3.0, "not_finite": 0}
    ]
    assert data["graphs_per_run"] == 2
    (step,) = [row for row in data["ops"] if row["op"] == "onnx.Unique"]
    assert step["device"] == "cpu" and 0 < step["seconds"] < data["devices"][0]["seconds"]
    trace = tmp_path / "t.json"
    _, out, _ = call(
        capsys, *("run", cut, "--devices", "cpu", "--random-inputs", "--profile", str(trace))
    )
    assert f"wrote {trace}, for" in out and re.search(r"onnx\.Unique +cpu", out)
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    assert {e["args"]["device"] for e in events if e["name"] == "host_op onnx.Unique"} == {"cpu"}


def test_a_tensor_of_a_stranger_opens_no_other_file(
    capsys: pytest.CaptureFixture[str],
    cut: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from onnx import TensorProto

    (tmp_path / "secret.bin").write_bytes(np.array([3, 1, 3]).tobytes())
    monkeypatch.chdir(tmp_path)
    tensor = TensorProto(dims=[3], data_type=TensorProto.INT64)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret.bin")
    (tmp_path / "x.pb").write_bytes(tensor.SerializeToString())
    code, _, err = call(capsys, "run", cut, "--devices", "cpu", "--input", "x=x.pb")
    assert code == 1 and "expected data within the model, got external data in 'secret.bin'" in err


def test_sequences_texts_and_types_that_numpy_lacks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = """g (float[2] x, string[2] t) => (seq(float[2]) s, string[2] u, bfloat16[2] b) {
      y = Neg(x)
      s = SequenceConstruct(x, y)
      u = Identity(t)
      b = Cast<to=16>(x)
    }"""
    path = str(tmp_path / "kinds.onnx")
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'), path)
    np.savez(tmp_path / "in.npz", x=np.array([1, 2.5], np.float32), t=np.array(["a", "bc"]))
    args = ("run", path, "--devices", "cpu", "--input", str(tmp_path / "in.npz"))
    data = data_of(capsys, *args, "--output-dir", str(tmp_path / "out"), "--compare-with", "numpy")
    types = {row["name"]: row["type"] for row in data["outputs"]}
    assert types == {
        "s[0]": "float32[2]",
        "s[1]": "float32[2]",
        "u": "object[2]",
        "b": "bfloat16[2]",
    }
    assert [row["wrong"] for row in data["check"]] == [""] * 4
    saved = {Path(place).name: np.load(place).tolist() for place in data["saved"]}
    assert saved == {
        "s[0].npy": [1, 2.5],
        "s[1].npy": [-1, -2.5],
        "u.npy": ["a", "bc"],
        "b.npy": [1, 2.5],
    }
    code, _, err = call(capsys, "run", path, "--devices", "cpu", "--random-inputs")
    assert code == 1 and "no example can be made of texts, for input 't'" in err


@needs_vulkan
def test_loading_and_uploading_have_bars(
    capsys: pytest.CaptureFixture[str], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, tuple[int, int]] = {}

    def show(what: str, done: int, total: int) -> None:
        seen[what] = done, total

    monkeypatch.setattr(inputs, "progress_bars", lambda quiet: nullcontext(show))
    data_of(capsys, "run", model, "--devices", vulkan_names()[0], "--random-inputs")
    assert seen.keys() == {"load", "upload"}
    assert all(0 < done == total for done, total in seen.values())


def test_bars_are_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    with inputs.progress_bars(quiet=False) as show:
        show("load", 1, 2)
        show("load", 2, 2)
    assert capsys.readouterr() == ("", "")


def test_threads_share_one_set_of_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where several hosts of a cluster are prepared at once."""
    built: list[MagicMock] = []

    def bars() -> MagicMock:
        built.append(MagicMock())
        built[-1].__enter__.return_value = built[-1]
        if len(built) == 1:  # while they are made, another thread comes
            other.start()
            other.join(0.1)
        return built[-1]

    monkeypatch.setattr(inputs, "_bars", bars)
    with inputs.progress_bars(quiet=False) as show:
        other = threading.Thread(target=show, args=("upload", 1, 2))
        show("load", 1, 2)
        other.join()
    show("load", 2, 2)
    assert [len(each.add_task.mock_calls) for each in built] == [2]
    assert len(built[0].update.mock_calls) == 2


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("batches", "; close: batch"),
        ("BATCH", "; close: batch"),
        ("sequnce", "; close: sequence"),
        ("width", ""),
    ],
)
def test_a_name_that_is_nearly_right_gets_a_hint(name: str, hint: str) -> None:
    assert close_text(name, ["sequence", "batch", "heads"]) == hint


def test_errors_are_one_line_that_says_where(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "bad.npy", np.zeros((2, 4), np.float32))
    (tmp_path / "none.npy").write_bytes(b"nothing")
    bad, none = str(tmp_path / "bad.npy"), str(tmp_path / "none.npy")
    for args, text in (
        (("info", str(tmp_path / "none.onnx")), "none.onnx"),
        (("info", none), "onnx"),
        (
            ("info", model, "--free-dim", "batch=4"),
            "expected dimensions of ['n', 's'], got 'batch'",
        ),
        (
            ("info", model, "--free-dim", "N=4"),
            "expected dimensions of ['n', 's'], got 'N'; close: n",
        ),
        (("info", model, "--free-dim", "n=four"), "n=four"),
        (("info", model, "--shape", "xx=1"), "'xx'"),
        (("info", model, "--shape", "id=1"), "got 'id'; close: ids"),
        (("run", model, "--input", "attention-mask=x.npy"), "mask'; close: attention_mask"),
        (
            ("run", model),
            "arrays for inputs x, ids, attention_mask, q; try --random-inputs, or ",
        ),
        (("run", model, "--random-inputs", "--input", f"x={bad}"), "x: float[n,3]"),
        (("run", model, "--random-inputs", "--input", f"x={none}"), "cannot read"),
        (
            ("run", model, "--random-inputs", "--input", "x=gone.npy"),
            "cannot read gone.npy: No such file or directory",
        ),
        (("run", model, "--random-inputs", "--input", bad), "expected NAME=FILE"),
        (
            ("run", model, "--random-inputs", "--input", "y=gone.npy"),
            "attention_mask', 'q'], got 'y'",
        ),
        (("info", model, "--shape", "x=2,4"), "got shape (2, 4): axis 1 is 4, not 3; size 1 was"),
        (("info", model, "--shape", "x=2,3,1"), "(2, 3, 1): 3 dimensions, not 2"),
        (
            ("run", model, "--random-inputs", "--compare-with", "numpy", "--rtol", "-1"),
            "expected --rtol of 0 or more, got -1",
        ),
        (
            ("run", model, "--random-inputs", "--compare-with", "numpy", "--rtol", "nan"),
            "expected --rtol of 0 or more, got nan",
        ),
        (("run", model, "--random-inputs", "--devices", "gpu"), "gpu"),
        (("run", model, "--random-inputs", "--repeat", "0"), "at least one run"),
        (
            ("run", model, "--random-inputs", "--shape", "x=2,3", "--free-dim", "n=5"),
            "expected n=5, got",
        ),
        (("run", model, "--random-inputs", "--devices", "cpu", "--output-dir", bad), "bad.npy"),
    ):
        code, _, err = call(capsys, *args)
        lines = err.splitlines()
        assert code == 1 and text in lines[-1], (args, err)
        assert len(lines) == 1 or all(line.startswith("[devices]") for line in lines[:-1])
    code, _, err = call(capsys, "run", model, "--random-inputs", "--seed", "-1")
    assert code == 2 and "x>=0" in err


# -- parts ---------------------------------------------------------------------------------------


def test_generated_inputs_index_tables_and_pass_masks(model: str) -> None:
    loaded = vs.load(model)
    assert find_index_bounds(loaded) == {"ids": 3}
    sizes = choose_shapes(loaded, {}, {"n": 40, "s": 9}, {})
    one, other = (example_inputs(loaded, sizes.shapes, 5) for _ in range(2))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert set(np.unique(one["ids"])) == {0, 1, 2} and one["ids"].dtype == np.int64
    assert one["attention_mask"].all() and one["x"].std() == pytest.approx(1, rel=0.3)
    assert not np.array_equal(one["x"], example_inputs(loaded, sizes.shapes, 6)["x"])


def test_a_dimension_may_be_a_sum_of_others() -> None:
    text = "g (float[past,2] a, float[now,2] b, float[past + now,2] c) => (float[past,2] y)"
    parsed = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]>\n{text.replace("past + now", "sum")} '
        "{ y = Relu(a) }"
    )
    parsed.graph.input[2].type.tensor_type.shape.dim[0].dim_param = "past + now"
    loaded = vs.load(parsed)
    found = choose_shapes(loaded, {"a": np.zeros((5, 2), np.float32)}, {}, {})
    assert found.shapes["c"] == (6, 2) and found.assumed == ["now"]
    assert choose_shapes(loaded, {}, {"past + now": 9}, {}).shapes["c"] == (9, 2)


def test_an_error_names_the_sizes_that_were_assumed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "sum.onnx")
    text = "g (float[m,2] a, float[n,2] b) => (float[m,4] y) { y = Concat<axis=1>(a, b) }"
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'), path)
    args = ("run", path, "--devices", "cpu", "--random-inputs", "--free-dim", "m=2")
    code, _, err = call(capsys, *args)
    assert code == 1 and err.endswith("; size 1 was assumed for n: try --free-dim n=2\n")
    code, _, err = call(capsys, "run", path, "--devices", "gpu", "--random-inputs")
    assert code == 1 and "gpu" in err and "assumed" not in err
    code, _, err = call(capsys, "run", path, "--random-inputs", "--devices", "gpu")
    assert code == 1 and "assumed" not in err  # what has nothing to do with sizes


def test_a_meter_divides_splits_by_estimates() -> None:
    meter = OpTimer()
    x = vs.input("x", (4,))
    with vs.Scheduler(["cpu"], trace=vs.Trace(sinks=[meter]), optimize=False) as sched:
        run = sched.compile(vs.exp(vs.neg(x)))
        for _ in range(2):
            run(x=np.zeros(4, np.float32))
    assert meter.graphs == 2 and set(meter.by_op) == {("cpu", "neg"), ("cpu", "exp")}
    assert sum(meter.by_op.values()) == pytest.approx(meter.by_device["cpu"])
    meter.clear()
    assert meter == OpTimer()
