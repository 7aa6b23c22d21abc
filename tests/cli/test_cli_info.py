"""`vksched info`: parameters and nodes that stand inside nodes, and functions of the model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cli import call
from test_cli_run import data_of

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper, parser  # noqa: E402

HEAD = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>\n'
TEXT = """g (bool c, int64 n, float[2] x) => (float[2] y, float[2] z, float[2] w)
<float[2] kept = {1, 2}> {
  ones = Constant<value = float[2] {1, 1}>()
  y = If (c) <
    then_branch = a () => (float[2] p) <float[2] inner = {5, 6}> {
      more = Constant<value = float[3,2] {1, 2, 3, 4, 5, 6}>()
      sum = ReduceSum<keepdims = 0>(more)
      q = Add(x, sum)
      p = Mul(q, inner) },
    else_branch = b () => (float[2] r) {
      same = Constant<value = float[2] {1, 1}>()
      r = If (c) <then_branch = d () => (float[2] s) { s = Neg(x) },
                  else_branch = e () => (float[2] t) { t = Add(x, same) }> }
  >
  go = Constant<value = bool {1}>()
  u = Loop (n, go, x) <body = f (int64 i, bool k, float[2] v) => (bool l, float[2] m) {
      l = Identity(k)
      m = Add(v, kept) }>
  z = local.twice(u)
  w = local.twice(ones)
}
<domain: "local", opset_import: ["" : 17]>
twice (a) => (b) {
  factor = Constant<value_float = 2.0>()
  b = Mul(a, factor)
}"""


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "nested.onnx"
    onnx.save(parser.parse_model(HEAD + TEXT), path)
    return str(path)


def test_parameters_inside_nodes_count_once(
    capsys: pytest.CaptureFixture[str], nested: str
) -> None:
    data = data_of(capsys, "info", nested, "--devices", "cpu")
    # kept, ones (equal to same), inner, more, the function's factor, and go
    assert data["parameters"] == 2 + 2 + 2 + 6 + 1 + 1
    assert data["parameter_bytes"] == 4 * (2 + 2 + 2 + 6 + 1) + 1


@pytest.mark.parametrize("form", ["raw", "numbers", "list", "sparse"])
def test_every_form_of_a_constant_counts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str
) -> None:
    array = np.arange(6, dtype=np.float32)
    if form == "sparse":
        values = numpy_helper.from_array(array[1:], "v")
        index = numpy_helper.from_array(np.arange(1, 6), "i")
        value: Any = helper.make_sparse_tensor(values, index, [6])
    elif form == "raw":
        value = numpy_helper.from_array(array)
    else:
        value = helper.make_tensor("v", onnx.TensorProto.FLOAT, [6], array)
    name = {"list": "value_floats", "sparse": "sparse_value"}.get(form, "value")
    node = helper.make_node("Constant", [], ["c"], **{name: array if form == "list" else value})
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [6])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [6])
    graph = helper.make_graph([node, helper.make_node("Add", ["x", "c"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    data = data_of(capsys, "info", str(tmp_path / "m.onnx"), "--devices", "cpu")
    stored = 5 if form == "sparse" else 6
    assert (data["parameters"], data["parameter_bytes"]) == (stored, 4 * stored)


def test_branches_loops_and_functions_are_shown(
    capsys: pytest.CaptureFixture[str], nested: str
) -> None:
    data = data_of(capsys, "info", nested, "--devices", "cpu")
    bodies = [(b["node"], b["op"], b["attribute"], b["depth"], b["ops"]) for b in data["bodies"]]
    assert bodies == [
        ("y", "If", "then_branch", 0, {"Constant": 1, "ReduceSum": 1, "Add": 1, "Mul": 1}),
        ("y", "If", "else_branch", 0, {"Constant": 1, "If": 1}),
        ("r", "If", "then_branch", 1, {"Neg": 1}),
        ("r", "If", "else_branch", 1, {"Add": 1}),
        ("u", "Loop", "body", 0, {"Identity": 1, "Add": 1}),
    ]
    assert data["functions"] == [
        {"name": "local.twice", "calls": 2, "ops": {"Constant": 1, "Mul": 1}}
    ]
    _, out, _ = call(capsys, "info", nested, "--devices", "cpu")
    for line in (
        "inside If 'y', then_branch: 4 nodes (Constant, ReduceSum, Add, Mul)",
        "  inside If 'r', else_branch: 1 node (Add)",
        "inside Loop 'u', body: 2 nodes (Identity, Add)",
        "function local.twice, called 2 times: 2 nodes (Constant, Mul)",
    ):
        assert f"\n{line}\n" in out, line


def test_a_branch_that_is_taken_for_sure_is_where_its_nodes_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = """g (float[2] x) => (float[2] y, float[2] z) <bool c = {1}> {
      y = If (c) <then_branch = a () => (float[2] p) { h = Neg(x)
                                                       p = Abs(h) },
                  else_branch = b () => (float[2] q) { q = Exp(x) }>
      z = Relu(y) }"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    onnx.save(model, tmp_path / "m.onnx")
    data = data_of(capsys, "info", str(tmp_path / "m.onnx"), "--devices", "cpu")
    where = {row["op"]: row["where"] for row in data["ops"]}
    assert where["If"] in ({"cpu": 1}, {"cpu (fused)": 1}) and data["cut"] is None


def test_many_bodies_and_ops_are_cut_short(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ops = "Neg Abs Exp Log Sqrt Sin Cos Tanh".split()
    lines = [f"v{i + 1} = {op}(v{i})" for i, op in enumerate(ops)]
    branch = "\n".join(["v0 = Identity(x)", *lines])
    ifs = [
        f"y{i} = If (c) <then_branch = a () => (float[2] v8) {{ {branch} }}, "
        "else_branch = b () => (float[2] q) { q = Exp(x) }>"
        for i in range(21)
    ]
    outs = ", ".join(f"float[2] y{i}" for i in range(21))
    text = f"g (bool c, float[2] x) => ({outs}) {{\n" + "\n".join(ifs) + "\n}"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    onnx.save(model, tmp_path / "m.onnx")
    _, out, _ = call(capsys, "info", str(tmp_path / "m.onnx"), "--devices", "cpu")
    assert out.count("inside If") == 40 and "\nand 2 more, which --json shows\n" in out
    assert "9 nodes (Identity, Neg, Abs, Exp, Log, Sqrt, 3 other ops)\n" in out


def test_hints_about_sizes_are_what_a_shell_takes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = "g (float[n,m,3] x, float[k,2] z) => (float[n,m,3] y) { y = Relu(x) }"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    model.graph.input[0].name = model.graph.node[0].input[0] = "onnx::the input"
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = ""
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "?"
    path = str(tmp_path / "m.onnx")
    onnx.save(model, path)
    args = ("info", path, "--devices", "cpu")
    data = data_of(capsys, *args)
    assert data["assumed"] == ["dimension 0 of onnx::the input", "?", "k"]
    options = shlex.split(data["size_options"])
    assert options == ["--shape", "onnx::the input=2,2,3", "--free-dim", "k=2"]
    assert f"; try {data['size_options']}\n" in call(capsys, *args)[1]
    again = data_of(capsys, *args, *options)
    assert again["assumed"] == [] and again["size_options"] == ""
    _, _, err = call(capsys, "run", path)
    assert err.endswith("; try --random-inputs, or --input 'onnx::the input=FILE.npy'\n")
