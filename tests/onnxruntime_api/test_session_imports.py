"""install: programs that import onnxruntime, in processes of their own, get vksched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib.metadata, importlib.util, sys
assert importlib.util.find_spec("onnxruntime") is not None
assert importlib.util.find_spec("onnxruntime.training") is None
import os
import numpy as np
import onnxruntime as ort
from onnxruntime import InferenceSession
from onnxruntime.capi._pybind_state import InvalidArgument
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, NoSuchFile
import onnxruntime.capi.onnxruntime_inference_collection as collection
assert InferenceSession is ort.InferenceSession is collection.InferenceSession
assert importlib.metadata.version("onnxruntime") == ort.__version__
assert "onnxruntime" in {d.metadata["Name"] for d in importlib.metadata.distributions()}
assert importlib.metadata.distribution("OnnxRuntime").files is None
assert ort.capi.onnxruntime_pybind11_state.InvalidArgument is InvalidArgument
try:
    InferenceSession("none.onnx")
except NoSuchFile:
    pass
try:
    from onnxruntime import SparseTensor
except ImportError:
    pass
else:
    raise AssertionError
session = InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
try:
    session.run(["none"], {"x": np.ones((1, 3), np.float32)})
except InvalidArgument:
    pass
print(__name__, sys.argv[1:], session.run(None, {"x": [[-1.0, 0.5, 2.0]]})[0].tolist())
print(type(session).__module__, sys.path[0], os.getcwd() in sys.path)
"""
"""What programs do with onnxruntime."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program, the same as a module, and a model."""
    built = tmp_path_factory.mktemp("program")
    (built / "program.py").write_text(PROGRAM)
    (built / "package").mkdir()
    (built / "package" / "__init__.py").write_text("")
    (built / "package" / "__main__.py").write_text(PROGRAM)
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n,3] x) => (float[n,3] y) '
    model = parser.parse_model(text + "{ y = Relu(x) }")
    (built / "model.onnx").write_bytes(model.SerializeToString())
    return built


def python(
    *args: str, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths, **(env or {})},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_program_runs_unchanged(folder: Path, tmp_path: Path) -> None:
    model = str(folder / "model.onnx")
    program = str(folder / "program.py")
    done = python("-m", "vksched.onnxruntime", program, model, "--flag", "-m", cwd=tmp_path)
    assert done.stderr == "" and done.returncode == 0
    ran, where = done.stdout.splitlines()
    assert ran == f"__main__ {[model, '--flag', '-m']} [[0.0, 0.5, 2.0]]"
    assert where == f"vksched.onnxruntime.inference {folder} False"


def test_a_module_runs_unchanged(folder: Path) -> None:
    done = python(
        "-m", "vksched.onnxruntime", "-m", "package", "model.onnx", "--vulkan", cwd=folder
    )
    assert done.stderr == "" and done.returncode == 0
    assert "__main__ ['model.onnx', '--vulkan'] [[0.0, 0.5, 2.0]]" in done.stdout


def test_what_cannot_run_is_reported(folder: Path) -> None:
    for args, text in (
        (("none.py",), "expected a program, got no file at 'none.py'"),
        (("--vulkan", "gpu9", "program.py"), "expected providers of onnxruntime"),
    ):
        done = python("-m", "vksched.onnxruntime", *args, cwd=folder)
        assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr


def test_onnxruntime_itself_came_first(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = python(
        "-c",
        "import onnxruntime, vksched.onnxruntime as s\n"
        "try: s.install()\n"
        "except s.install.__globals__['VkschedError'] as error: print(error)\n",
        cwd=tmp_path,
    )
    assert "expected to be installed before onnxruntime is imported, got it from" in done.stdout
    assert "try install() in the program's first lines" in done.stdout


def test_install_offers_providers(tmp_path: Path) -> None:
    done = python(
        "-c",
        "import importlib.metadata as metadata, os, sys, vksched.onnxruntime as s\n"
        "try: s.install(vulkan=['gpu9'])\n"
        "except Exception as error: print('refused', os.environ.get('VKSCHED_PROVIDERS'))\n"
        "s.install(); s.install(vulkan=['cuda', 'cpu'])\n"
        "import onnxruntime\n"
        "s.install()\n"
        "print(os.environ['VKSCHED_PROVIDERS'], metadata.version('onnxruntime_gpu'))\n"
        "print(len(sys.meta_path) - len([f for f in sys.meta_path if 'vksched' not in repr(f)]))\n"
        "print(onnxruntime.get_available_providers())\n",
        cwd=tmp_path,
        env={"VKSCHED_SOFTWARE": "1", "VKSCHED_PROVIDERS": ""},
    )
    assert done.returncode == 0, done.stderr
    refused, switch, finders, providers = done.stdout.splitlines()
    assert refused == "refused " and switch.startswith("cuda,cpu ") and finders == "1"
    vulkan = "['CUDAExecutionProvider', 'VulkanExecutionProvider', 'CPUExecutionProvider']"
    assert providers in (vulkan, "['CPUExecutionProvider']")
