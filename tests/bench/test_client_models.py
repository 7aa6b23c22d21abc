"""The suite of packages' models: what it finds, what it says is missing, and its figures."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import client_models as clients
import numpy as np
import pytest
from benchmark_folders import SUITES
from click.testing import CliRunner
from client_models import CLIENT_PACKAGES, ClientPackage, Network, client_specs, find_folder

import vksched as vs
from vksched.bench.baselines.workloads import FILE, Spec, arrays_of, expected_of, joined, nmse_of
from vksched.bench.rounds import paired_ratio
from vksched.cli import main

onnx = pytest.importorskip("onnx")
HALF = np.full((3,), 0.5, np.float32)
HERE = ["--suite-dir", str(SUITES), "--suite-option"]
FEEDS = {"x": ("float32", (2, 3), -1.0, 1.0), "n": ("int64", (), 4, 4)}


def write_model(path: Path, op: str = "Mul") -> None:
    """Write one of two outputs: x times a half, and n as it is."""
    helper, types = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "half"], ["y"]), helper.make_node("Identity", ["n"], ["m"])],
        "g",
        [
            helper.make_tensor_value_info("x", types.FLOAT, ["rows", 3]),
            helper.make_tensor_value_info("n", types.INT64, []),
        ],
        [
            helper.make_tensor_value_info("y", types.FLOAT, ["rows", 3]),
            helper.make_tensor_value_info("m", types.INT64, []),
        ],
        [onnx.numpy_helper.from_array(HALF, "half")],
    )
    opsets = [helper.make_opsetid("", 17)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    )


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one of two packages, which has one of its two models."""
    there = Network("halves", "data/half.onnx", FEEDS)
    gone = Network("gone", "data/gone.onnx", FEEDS)
    built = (
        ClientPackage("first-package", "first_package", (there, gone)),
        ClientPackage("second-package", "second_package_that_is_nowhere", (there,)),
    )
    monkeypatch.setattr(clients, "CLIENT_PACKAGES", built)
    monkeypatch.setattr(clients, "FOLDER", tmp_path / "no such folder")
    write_model(tmp_path / "packages" / "first_package" / "data" / "half.onnx")
    return tmp_path / "packages"


def test_cases_are_the_models_that_are_there_and_the_rest_is_reported(packages: Path) -> None:
    (spec,), missing = client_specs([packages])
    assert (spec.name, spec.kind) == ("first-package: halves", FILE)
    assert Path(spec["file"]).is_file() and missing == ["first-package", "second-package"]
    with pytest.raises(vs.GraphError, match=r"no package .* --target FOLDER first-package second"):
        client_specs()


def test_a_package_is_found_where_python_would_and_not_imported(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packages / "first_package" / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(packages))
    assert find_folder(clients.CLIENT_PACKAGES[0]) == packages / "first_package"
    assert find_folder(clients.CLIENT_PACKAGES[1]) is None
    assert "first_package" not in sys.modules


def test_operands_are_drawn_from_their_ranges_and_the_result_is_numpys(packages: Path) -> None:
    (spec,), _ = client_specs([packages])
    sent = json.loads(json.dumps(spec.as_dict()))  # as a baseline gets it
    feeds = arrays_of(Spec.from_dict(sent))
    assert feeds["n"].dtype == np.int64 and feeds["n"].shape == () and feeds["n"] == 4
    assert feeds["x"].dtype == np.float32 and feeds["x"].shape == (2, 3)
    assert np.abs(feeds["x"]).max() <= 1 and feeds["x"].std() > 0
    cases = clients.Cases()
    try:
        built = cases.ready(spec)
        assert cases.ready(spec) is built
        wanted = joined([feeds["x"] * HALF, feeds["n"]])
        assert np.allclose(expected_of(built, feeds), wanted, 1e-6)
    finally:
        cases.close()


def test_every_output_counts_as_much_as_the_others() -> None:
    large, small = np.full(4, 1e6, np.float32), np.array([1e-6, 2e-6], np.float32)
    right = joined([large, small])
    assert np.isclose(np.square(right).sum(), 6)
    assert nmse_of(joined([large, small[::-1]]), right) > 0.1
    assert not joined([np.zeros(3)]).any()


def test_the_command_prints_times_and_how_to_get_the_rest(packages: Path, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    baselines = ["--baselines", "onnxruntime"] if find_spec("onnxruntime") else []
    args = [*HERE, f"packages={packages}", "--devices", "cpu", "--time-budget", "0.05", *baselines]
    found = CliRunner().invoke(
        main, ["bench", "--suite", "clients", *args, "--output", str(file)], catch_exceptions=False
    )
    assert found.exit_code == 0
    assert "note: [bench] no models of first-package, second-package; try `python" in found.stderr
    (row,) = (
        line for line in found.stdout.splitlines() if line.startswith("first-package: halves")
    )
    (result,) = json.loads(file.read_text())["results"]
    runners = ["vksched", *(["onnxruntime"] if baselines else [])]
    assert [figure["runner"] for figure in result["figures"]] == runners
    assert all(figure["seconds"] > 0 for figure in result["figures"])
    assert "file" not in result["spec"]["params"]
    if baselines:
        ours, theirs = (figure["rounds_s"] for figure in result["figures"])
        times_as_fast = paired_ratio(theirs, ours)
        assert times_as_fast is not None and f"{1 / times_as_fast:.2f}" in row


@pytest.mark.filterwarnings("default")
def test_a_model_that_numpy_cannot_run_is_left_out_with_the_reason(packages: Path) -> None:
    write_model(packages / "first_package" / "data" / "half.onnx", "NoSuchOp")
    args = [*HERE, f"packages={packages}", "--devices", "cpu", "--time-budget", "0.05"]
    found = CliRunner().invoke(main, ["bench", "--suite", "clients", *args])
    assert found.exit_code == 0
    assert "first-package: halves is left out: " in found.stderr and "NoSuchOp" in found.stderr


def test_packages_are_for_this_suite_alone(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["bench", "--suite-option", f"packages={tmp_path}"])
    assert refused.exit_code == 2 and "of suite ops: expected none, got pack" in refused.output
    for values, code, reason in (
        ("songs=1", 2, "expected packages=VALUE, got songs=1"),
        (f"packages={tmp_path / 'none'}", 1, "expected a folder with packages, got"),
    ):
        refused = CliRunner().invoke(main, ["bench", "--suite", "clients", *HERE, values])
        assert refused.exit_code == code and reason in refused.output


def test_the_table_of_packages_names_each_model_once() -> None:
    names = [f"{c.package}: {n.name}" for c in CLIENT_PACKAGES for n in c.networks]
    assert len(set(names)) == len(names)
    assert all(n.feeds and n.file.endswith(".onnx") for c in CLIENT_PACKAGES for n in c.networks)
