"""The wheel of `make wheel`: what is in it, its tag, and what it says when something is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hatchling")

import wheel_hook

ROOT = Path(__file__).parent.parent.parent
SPIRV = ROOT / "vksched" / "spirv"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def has_all() -> bool:
    folder = Path(sysconfig.get_path("platlib"), "vksched_native")
    if not (folder / f"kp{SUFFIX}").exists() or not (SPIRV / "manifest.json").exists():
        return False
    return not json.loads((SPIRV / "manifest.json").read_text()).get("left_out")


@pytest.mark.skipif(not has_all(), reason="needs all shaders compiled, and native modules")
def test_a_wheel_holds_shaders_and_modules_and_is_for_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKSCHED_WHEEL", "native")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{python}-{python}-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (about,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
        text = archive.read(about).decode()
        same = archive.read(f"vksched_native/kp{SUFFIX}")
        manifest = json.loads(archive.read("vksched/spirv/manifest.json"))
    assert "Root-Is-Purelib: false" in text
    assert f"Tag: {python}-{python}-" in text
    installed = Path(sysconfig.get_path("platlib"), "vksched_native", f"kp{SUFFIX}")
    assert same == installed.read_bytes()
    assert {f"vksched/spirv/{entry['file']}" for entry in manifest["variants"].values()} <= names
    modules = {f"vksched_native/{module}{SUFFIX}" for module in ("kp", "companion", "cpu_kernels")}
    assert {*modules, "vksched_native/__init__.py", "vksched/__init__.py"} <= names


def test_what_is_not_built_is_named(tmp_path: Path) -> None:
    with pytest.raises(wheel_hook.WheelError, match="compiled shaders: .*; try `make wheel`"):
        wheel_hook.require_shaders(tmp_path)
    entries: dict[str, Any] = {name: {"file": f"{name}.spv"} for name in ("a", "b")}
    (tmp_path / "manifest.json").write_text(json.dumps({"variants": entries}))
    (tmp_path / "a.spv").touch()
    with pytest.raises(wheel_hook.WheelError, match="1 are missing, b.spv for one"):
        wheel_hook.require_shaders(tmp_path)
    (tmp_path / "b.spv").touch()
    wheel_hook.require_shaders(tmp_path)
    built = {"variants": entries, "left_out": ["c"]}
    (tmp_path / "manifest.json").write_text(json.dumps(built))
    with pytest.raises(wheel_hook.WheelError, match="1 were left out, c for one"):
        wheel_hook.require_shaders(tmp_path)
    for module in ("kp", "companion"):
        (tmp_path / f"{module}{SUFFIX}").touch()
    with pytest.raises(wheel_hook.WheelError, match=r"expected cpu_kernels\..* in .*, got none"):
        wheel_hook.native_files(tmp_path)
    (tmp_path / f"cpu_kernels{SUFFIX}").touch()
    (tmp_path / "LICENSE.kompute").touch()
    places = wheel_hook.native_files(tmp_path)
    assert places[str(tmp_path / "LICENSE.kompute")] == "vksched_native/LICENSE.kompute"
    assert f"vksched_native/cpu_kernels{SUFFIX}" in places.values()
