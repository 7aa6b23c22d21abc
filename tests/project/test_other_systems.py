"""Windows and macOS, as far as Linux can play them: other_system.py hides what they lack."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from selection import spread

ROOT = Path(__file__).parent.parent.parent
SYSTEM = str(ROOT / "tests" / "support" / "other_system.py")


@pytest.fixture(params=["win32", "darwin"])
def system(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def command(system: str, *args: object) -> list[str]:
    strict = ["-X", "warn_default_encoding", "-W", "error"]
    if "pytest" in args:
        strict = []  # tests are no part of the package, and pytest has warnings of its own
    return [sys.executable, *strict, SYSTEM, system, *map(str, args)]


def environ(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "VKSCHED_NO_VULKAN": "1", **changes}


def run(system: str, *args: object, **changes: str) -> str:
    """Return the output of a command there; it must succeed."""
    done = subprocess.run(
        command(system, *args), env=environ(**changes), capture_output=True, cwd=ROOT
    )
    out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    assert done.returncode == 0, f"{out}\n{err}"
    return out


def script(tmp_path: Path, text: str) -> Path:
    """A program of this repository, as far as what is hidden goes."""
    path = tmp_path / "program.py"
    path.write_text(f"__file__ = {str(ROOT / 'tests' / 'program.py')!r}\n{text}", encoding="utf-8")
    return path


def model(folder: Path, name: str = "x") -> Path:
    """A product with a weight beside the model, large enough to be mapped."""
    weight = numpy_helper.from_array(np.arange(1 << 15, dtype=np.float32).reshape(32, 1024), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", [name, "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 1024])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_what_the_system_lacks_is_hidden_from_our_code_only(tmp_path: Path) -> None:
    text = """
import os, pathlib, shutil, signal, subprocess, sys
def missing(call):
    try:
        call()
    except (AttributeError, ImportError, OSError) as error:
        return type(error).__name__
print(sys.platform, os.name, hasattr(os, "fork"), hasattr(signal, "SIGKILL"))
print(missing(lambda: os.getuid()), missing(lambda: __import__("fcntl", globals())))
print(missing(lambda: pathlib.Path("/proc/self/maps").read_text("utf-8")))
held = open(sys.argv[1], "w", encoding="utf-8")
print(missing(lambda: os.replace(__import__("sys").argv[1], sys.argv[1] + "2")))
print(missing(lambda: open(sys.argv[1] + ":", "w", encoding="utf-8")))
held.close()
os.replace(sys.argv[1], sys.argv[1] + "2")
print(subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout)
"""
    assert run("win32", script(tmp_path, text), tmp_path / "f").splitlines() == [
        "win32 nt False False",
        "AttributeError ModuleNotFoundError",
        "FileNotFoundError",
        "PermissionError",
        "OSError",
        "b'1\\n'",
    ]
    text = text.partition("held = ")[0]
    assert run("darwin", script(tmp_path, text)).splitlines() == [
        "darwin posix True True",
        "None None",
        "FileNotFoundError",
    ]


def test_every_module_is_imported(system: str, tmp_path: Path) -> None:
    text = """
import importlib, pkgutil, vksched
peers = {"iree", "kp", "ncnn", "onnxruntime", "torch", "wgpu"}
for found in pkgutil.walk_packages(vksched.__path__, "vksched."):
    if not found.name.endswith("__main__"):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if error.name not in peers:
                raise
        print(found.name)
"""
    names = run(system, script(tmp_path, text)).split()
    assert len(names) > 200 and {"vksched.scheduler.scheduler", "vksched.tuning.variant_cache"} <= {
        *names
    }


def test_graphs_run(tmp_path: Path) -> None:
    text = """
import numpy as np, vksched as vs
x = vs.input("x", (64, 100))
w = vs.weight(np.full((100, 30), 0.5, np.float32), name="w")
values = np.random.default_rng(1).random((64, 100), np.float32)
with vs.Scheduler(["cpu"]) as sched:
    run = sched.compile(vs.softmax(vs.relu(x @ w), axis=-1))
    futures = [run.submit(x=values) for _ in range(3)]
    for future in futures:
        np.testing.assert_allclose(future.result(), 1 / 30, rtol=1e-5)
print("done")
"""
    assert run("win32", script(tmp_path, text)) == "done\n"


def test_models_run_and_let_their_files_go(system: str, tmp_path: Path) -> None:
    path = model(tmp_path)
    text = """
import gc, os, sys
import numpy as np, vksched as vs
model = vs.load(sys.argv[1])
x = np.ones((2, 32), np.float32)
with vs.Scheduler(["cpu"]) as sched:
    run = sched.compile(model)
    want = np.arange(1 << 15, dtype=np.float32).reshape(32, 1024).sum(0)
    np.testing.assert_allclose(run(x=x)["y"], [want, want])
del model, run, sched
gc.collect()
for name in ("m.onnx", "w.bin"):
    os.replace(os.path.join(os.path.dirname(sys.argv[1]), name), sys.argv[1] + name)
print("done")
"""
    assert run(system, script(tmp_path, text), path) == "done\n"


def test_two_processes_that_tune_keep_each_others_results(system: str, tmp_path: Path) -> None:
    text = """
import sys
from pathlib import Path
from vksched.storage.crash_marker import CrashMarker
from vksched.tuning.device_cache import Identity
from vksched.tuning.variant_cache import VariantCache, TuningResult
store, device = VariantCache(Path(sys.argv[1])), Identity("00ff", "driver 1.2", "card")
attempt = CrashMarker(store.path(device))
for number in range(5):
    key = f"op f[{sys.argv[2]},{number}]"
    attempt.begin(key, "a", "")
    assert store.add(device, [TuningResult(key, "a", "a", {"a": 1e-3})])
    assert not store.crashed_variants(device), "both are at it"
attempt.close(failed=False)
print(len(store.load(device)))
"""
    program = script(tmp_path, text)
    processes = [
        subprocess.Popen(
            command(system, program, tmp_path, first), env=environ(), stdout=subprocess.PIPE
        )
        for first in "12"
    ]
    counts = [int(process.communicate(timeout=110)[0]) for process in processes]
    assert max(counts) == 10 and min(counts) >= 5
    assert sorted(path.suffix for path in tmp_path.glob("tuned/*")) == ["", ".json"]


def test_a_process_that_dies_leaves_word(tmp_path: Path) -> None:
    text = """
import os, sys
from pathlib import Path
from vksched.storage.crash_marker import CrashMarker
from vksched.tuning.device_cache import Identity
from vksched.tuning.variant_cache import VariantCache
store, device = VariantCache(Path(sys.argv[1])), Identity("00ff", "driver 1.2", "card")
print(store.crashed_variants(device), flush=True)
CrashMarker(store.path(device)).begin("op f[1]", "a", "1234")
os._exit(0)
"""
    program = script(tmp_path, text)
    assert run("win32", program, tmp_path) == "{}\n"
    assert run("win32", program, tmp_path) == "{'op f[1]': {'a': '1234'}}\n"


@pytest.mark.parametrize(
    "args",
    [
        ("devices",),
        (
            "bench",
            "--devices",
            "cpu",
            "--baselines",
            "numpy",
            "--time-budget",
            "0.02",
            "--case",
            "matmul 64",
        ),
    ],
    ids=["devices", "bench"],
)
def test_commands(args: tuple[str, ...]) -> None:
    """Into a pipe that takes the old Western characters only, as Windows makes them."""
    assert "cpu" in run("win32", "-m", "vksched", *args, PYTHONIOENCODING="cp1252")


def test_commands_on_a_model_with_names_that_the_pipe_does_not_take(tmp_path: Path) -> None:
    path = model(tmp_path, "输入")
    for args in (["info", path], ["run", path, "--random-inputs"]):
        text = run("win32", "-m", "vksched", *args, PYTHONIOENCODING="cp1252")
        assert "\\u8f93\\u5165" in text


@pytest.mark.parametrize("name", spread(["list_gpus", "cpu_fallback", "pipeline", "run_onnx"], 1))
def test_examples(name: str) -> None:
    run("win32", ROOT / "examples" / f"{name}.py")


@pytest.mark.thorough
@pytest.mark.timeout(500)
def test_tests_are_collected() -> None:
    """All of them import; what needs more than the system has is skipped with a reason."""
    text = run("win32", "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests")
    assert "error" not in text.splitlines()[-1]
