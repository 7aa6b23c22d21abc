"""The package and its tests in other surroundings: plainly installed, without Vulkan, one driver.

One pytest run with both software drivers visible covers each device alone, both together and one
opened twice (conftest.py). Here child runs of pytest add what needs another process: the tests that
depend on what the loader sees, without Vulkan, and with one driver alone.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from selection import TIER, Tier

ROOT = Path(__file__).resolve().parent.parent.parent
ASKED_BY_TEST_ALL = (
    "test_cli*.py test_examples.py test_fork.py test_memory.py test_scheduler.py".split()
)
ASKED_AGAIN = (
    *("test_devices.py", "test_drivers.py", "test_fallback.py"),
    *(ASKED_BY_TEST_ALL if TIER is Tier.ALL else ()),
)
"""What depends on the drivers that the loader sees. All else opens each device alone anyway, and
numpy too, or none.
"""
DRIVERS = {"llvmpipe": "lvp_icd", "SwiftShader": "vk_swiftshader_icd"}
LEFT_OUT = ("embeddings", *(() if TIER is Tier.ALL else ("pipeline", "async_run", "search")))
"""Examples that take long, and do with one driver what they do with all; tests that begin so."""
TAIL_CHARS = 6000


# --- the installed package --------------------------------------------------------------------


def link_dependencies(folder: Path) -> None:
    """Link what vksched depends on, and nothing else of this environment, into a folder."""
    todo = ["vksched"]
    done: set[str] = set()
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        distribution = importlib.metadata.distribution(name)
        for text in distribution.requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(requirement.name)
        if name == "vksched":
            continue  # the wheel is what is tried
        tops = {file.parts[0] for file in distribution.files or [] if file.parts[0] != ".."}
        for top in tops - {"__pycache__"}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))


@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="needs hatchling")
def test_plain_install_runs_on_numpy_and_says_once_why_there_is_no_vulkan(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [*pip, "-q", "-w", str(wheels), str(ROOT)], check=True, cwd=tmp_path, capture_output=True
    )
    (wheel,) = wheels.glob("vksched-*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    spirv = {f"vksched/spirv/{f.name}" for f in (ROOT / "vksched" / "spirv").glob("*")}
    assert spirv <= names
    assert all(name.startswith(("vksched/", "vksched-")) for name in names)

    # Without the network: the wheel is unpacked, and its dependencies are linked from here.
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    link_dependencies(site)
    program = (
        "import numpy as np, vksched as vs\n"
        "assert vs.__file__.startswith(__import__('sys').prefix), vs.__file__\n"
        "x = vs.input('x', shape=(2, 3))\n"
        "w = vs.weight(np.ones((3, 4), np.float32), name='w')\n"
        "for _ in range(2):\n"
        "    with vs.Scheduler() as sched:\n"
        "        run = sched.compile(vs.relu(x @ w))\n"
        "        y = run(x=np.ones((2, 3), np.float32))\n"
        "assert (np.asarray(y) == 3).all(), y\n"
        "print('right')\n"
    )
    keep = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
    answer = subprocess.run(
        [str(python), "-c", program],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k in keep},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stdout.splitlines()[-1] == "right"
    reasons = re.findall(r"no Vulkan devices?[:,]", answer.stderr)
    assert len(reasons) == 1, answer.stderr


# --- the suite with other drivers -------------------------------------------------------------


def run_suite(changes: dict[str, str]) -> None:
    """Run pytest in a child with changed variables; fail with the end of its output."""
    files = [str(path) for name in ASKED_AGAIN for path in sorted((ROOT / "tests").rglob(name))]
    examples = "tests/project/test_examples.py"
    options = [f"--deselect={examples}::test_{name}" for name in LEFT_OUT]
    changes = {"VKSCHED_TESTS": "quick", **changes}
    environ = {k: v for k, v in os.environ.items() if k != "VK_ADD_DRIVER_FILES"}
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *files],
        cwd=ROOT,
        env={**environ, **changes},
        capture_output=True,
        text=True,
    )
    output = answer.stdout + answer.stderr
    assert answer.returncode == 0, f"with {changes}:\n{output[-TAIL_CHARS:]}"
    assert re.search(r"\b[1-9]\d* passed", output), output[-TAIL_CHARS:]


def drivers_alone(manifest: str) -> dict[str, str]:
    """Variables by which the loader sees one driver; the second is for loaders before 1.3.207."""
    return {"VK_DRIVER_FILES": manifest, "VK_ICD_FILENAMES": manifest}


def labels_seen(changes: dict[str, str]) -> list[str]:
    """The Vulkan devices that a child process sees with changed variables."""
    program = (
        "import json; from vksched.runtime.vulkan import device_probe;"
        "print(json.dumps([d.label for d in device_probe.list_devices() if d.name != 'cpu']))"
    )
    environ = {k: v for k, v in os.environ.items() if k != "VK_ADD_DRIVER_FILES"}
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**environ, **changes},
        capture_output=True,
        text=True,
        check=True,
    )
    labels: list[str] = json.loads(answer.stdout.splitlines()[-1])
    return labels


@pytest.mark.long
@pytest.mark.timeout(900)
def test_suite_without_vulkan() -> None:
    no_driver = drivers_alone("/nonexistent/driver.json")
    assert labels_seen(no_driver) == []
    run_suite({"VKSCHED_NO_VULKAN": "1", **no_driver})


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("driver", DRIVERS)
def test_suite_with_one_driver_alone(driver: str) -> None:
    from vksched.runtime.vulkan import driver_probe

    ours = (Path(sys.prefix) / "share" / "vksched" / "vulkan" / "icd.d").glob("*.json")
    manifests = [*driver_probe.manifests(), *map(str, ours)]
    found = [m for m in manifests if Path(m).name.startswith(DRIVERS[driver])]
    if not found or importlib.util.find_spec("vksched_native") is None:
        pytest.skip(f"{driver} or the native modules are not here")
    alone = drivers_alone(found[0])
    labels = labels_seen(alone)
    assert labels and all(driver.lower() in label.lower() for label in labels), labels
    run_suite(alone)
