"""Drivers that crash, hang or do not load: a reason for the user, never the end of this process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_devices import plain_environment

from vksched.common.errors import DeviceError, VkschedError
from vksched.runtime.vulkan import binding, device_probe, driver_probe

__all__ = ["plain_environment"]  # a fixture


CRASHING_CHILD = """
import os, signal
if "bad" in os.environ.get("VK_DRIVER_FILES", ""):
    os.kill(os.getpid(), signal.{signal})
print("a line from a layer")
print('vksched-devices:{{"devices": [{{"index": 0}}], "problem": null}}')
"""


@pytest.fixture
def with_native(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native modules count as there; what a list in this process would say is known."""
    monkeypatch.setattr(binding, "available", lambda: None)
    monkeypatch.setattr(binding, "describe_devices", lambda: [{"index": 42}])


@pytest.mark.usefixtures("with_native")
def test_a_driver_that_crashes_is_named_with_its_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_probe, "_CHILD", CRASHING_CHILD.format(signal="SIGSEGV"))
    monkeypatch.setenv(
        "VK_DRIVER_FILES", os.pathsep.join(["/a/good.json", "/a/bad.json", "/b.json"])
    )
    problem = str(driver_probe.ask_drivers().problem)
    assert "the Vulkan driver of /a/bad.json crashed with SIGSEGV" in problem
    assert f"VK_DRIVER_FILES=/a/good.json{os.pathsep}/b.json " in problem
    assert driver_probe.ask_drivers().problem == problem, "the second answer comes from memory"
    assert [d.name for d in device_probe.list_devices()] == ["cpu"]
    with pytest.raises(DeviceError, match="SIGSEGV"):
        device_probe.resolve("vulkan:0")


@pytest.mark.parametrize(
    ("code", "died"),
    [
        (0, None),
        (3, "ended the process with code 3"),
        (0xC0000005, "crashed with code 0xC0000005"),  # Windows: access violation
        (0xC0000409, "crashed with code 0xC0000409"),
        (0xC000013A, "ended the process with code 3221225786"),  # Windows: Ctrl-C
        (-11, "crashed with SIGSEGV"),
        (-15, "was ended with SIGTERM"),
        (-9, "was ended with SIGKILL"),
    ],
)
def test_return_codes_that_blame_a_driver(code: int, died: str | None) -> None:
    assert driver_probe._death(code) == died
    blames = died is not None and died.startswith(driver_probe.DRIVER_ENDINGS)
    assert blames == (code in (0xC0000005, 0xC0000409, -11))


@pytest.mark.usefixtures("with_native")
def test_the_only_driver_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_probe, "_CHILD", CRASHING_CHILD.format(signal="SIGABRT"))
    monkeypatch.setenv("VK_DRIVER_FILES", "/a/bad.json")
    problem = str(driver_probe.ask_drivers().problem)
    assert "SIGABRT" in problem and "VKSCHED_NO_VULKAN=1" in problem
    assert "leave it out" not in problem


@pytest.mark.usefixtures("with_native")
def test_a_crash_that_no_driver_causes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    code = CRASHING_CHILD.format(signal="SIGABRT").replace('"bad" in', "os.pathsep in")
    monkeypatch.setattr(driver_probe, "_CHILD", code)
    monkeypatch.setenv("VK_DRIVER_FILES", os.pathsep.join(["/a.json", "/b.json"]))
    assert "a Vulkan driver crashed with SIGABRT" in str(driver_probe.ask_drivers().problem)


@pytest.mark.usefixtures("with_native")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit(3)", "ended the process with code 3"),
        ("import sys; sys.stderr.write('last words'); raise SystemExit(3)", "(last words)"),
        ("print('nothing')", "ended without an answer"),
    ],
)
def test_other_ends_of_the_child(monkeypatch: pytest.MonkeyPatch, code: str, message: str) -> None:
    monkeypatch.setattr(driver_probe, "_CHILD", code)
    monkeypatch.setenv("VK_DRIVER_FILES", "")
    assert message in str(driver_probe.ask_drivers().problem)


@pytest.mark.usefixtures("with_native")
def test_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_probe, "_CHILD", "import threading; threading.Event().wait()")
    monkeypatch.setattr(driver_probe, "CHILD_LIMIT_S", 0.2)
    monkeypatch.setenv("VK_DRIVER_FILES", "/a/slow.json")
    assert "/a/slow.json gave no answer" in str(driver_probe.ask_drivers().problem)


@pytest.mark.usefixtures("with_native")
def test_child_first_then_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_probe, "_CHILD", CRASHING_CHILD.format(signal="SIGABRT"))
    monkeypatch.setenv("VK_DRIVER_FILES", "/a/good.json")
    assert driver_probe.ask_drivers().devices == ({"index": 0},)
    assert driver_probe.ask_drivers().devices == ({"index": 42},)
    monkeypatch.setenv("VK_DRIVER_FILES", "/a/other.json")
    assert driver_probe.ask_drivers().devices == ({"index": 0},), (
        "other drivers are asked in a child again"
    )
    monkeypatch.setenv("VKSCHED_PROBE", "inprocess")
    monkeypatch.setenv("VK_DRIVER_FILES", "/a/third.json")
    assert driver_probe.ask_drivers().devices == ({"index": 42},)


@pytest.mark.usefixtures("with_native")
def test_an_error_in_this_process_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[dict[str, Any]]:
        raise DeviceError("[devices] no instance:\nbad manifest")

    monkeypatch.setattr(binding, "describe_devices", fail)
    monkeypatch.setenv("VKSCHED_PROBE", "inprocess")
    assert driver_probe.ask_drivers().problem == "[devices] no instance: bad manifest"
    monkeypatch.setenv("VKSCHED_PROBE", "1")
    with pytest.raises(VkschedError, match="expected VKSCHED_PROBE to be inprocess, got '1'"):
        driver_probe.ask_drivers()
    monkeypatch.setattr(binding, "available", lambda: "kp is not built")
    assert driver_probe.ask_drivers().problem == "kp is not built"


@pytest.mark.parametrize(
    "prefix",
    ["ERROR:            ", "ERROR: [Loader Message] Code 0 : ", "[Vulkan Loader] ERROR:   "],
)
def test_what_the_loader_says_of_a_driver_is_retained_once(prefix: str) -> None:
    text = [
        "/x/y.so: file too short",
        "loader_icd_scan: Failed loading library of /x/y.so. Ignoring this JSON",
        "/x/y.so: file too short",
        "/lib32/z.so: wrong ELF class: ELFCLASS32",
        "vkCreateInstance: Found no drivers!",
    ]
    notes = driver_probe._loader_errors(
        "\n".join(["WARNING: old /x/w.so", *(prefix + s for s in text)])
    )
    assert [note[-len(text[0]) :] for note in notes] == [text[0]]


def test_a_driver_that_needs_a_display_is_reported_with_what_needs_none() -> None:
    text = "loader_scanned_icd_add: Could not get 'vkCreateInstance' for ICD libGLX_nvidia.so.0"
    (note,) = driver_probe._loader_errors(f"ERROR: {text}")
    assert text in note and "try libEGL_nvidia" in note


def test_manifests_are_found_as_the_loader_finds_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "share" / "vulkan" / "icd.d"
    folder.mkdir(parents=True)
    for name in ("b.json", "a.json", "note.txt"):
        (folder / name).write_text("{}")
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VK_ADD_DRIVER_FILES", "/x/more.json")
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "share"))
    found = driver_probe.manifests()
    assert found[0] == "/x/more.json"
    assert [m for m in found if m.startswith(str(tmp_path))] == [
        str(folder / "a.json"),
        str(folder / "b.json"),
    ]
    monkeypatch.setenv("VK_ICD_FILENAMES", "/y/old.json")
    assert driver_probe.manifests() == ("/y/old.json",)
    monkeypatch.setenv("VK_DRIVER_FILES", str(folder))
    assert driver_probe.manifests() == (str(folder / "a.json"), str(folder / "b.json"))


real = pytest.mark.skipif(
    binding.available() is not None, reason=f"no Vulkan: {binding.available()}"
)


def vksched_devices(**env: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process, as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "vksched", "devices", "--json"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=100,
    )


def write_driver(folder: Path, name: str, library: str) -> str:
    manifest = folder / f"{name}.json"
    icd = {"library_path": library, "api_version": "1.1.0"}
    manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return str(manifest)


@real
def test_libraries_that_do_not_load_are_left_out_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "garbage.so").write_text("this is no library")
    files = [
        write_driver(tmp_path, "garbage", str(tmp_path / "garbage.so")),
        write_driver(tmp_path, "missing", str(tmp_path / "missing.so")),
    ]
    joined = os.pathsep.join(files)
    done = vksched_devices(VK_DRIVER_FILES=joined, VK_ICD_FILENAMES=joined)
    assert done.returncode == 0
    assert [d["name"] for d in json.loads(done.stdout)] == ["cpu"]
    assert "garbage.so" in done.stderr and "missing.so" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@real
def test_a_manifest_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{ not json")
    path = str(tmp_path / "broken.json")
    done = vksched_devices(VK_DRIVER_FILES=path, VK_ICD_FILENAMES=path)
    assert done.returncode == 0
    assert [d["name"] for d in json.loads(done.stdout)] == ["cpu"]
    assert "broken.json" in done.stderr


@real
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_real_driver_that_aborts(tmp_path: Path) -> None:
    source = tmp_path / "abort.c"
    source.write_text(
        "#include <stdlib.h>\n"
        "int vk_icdNegotiateLoaderICDInterfaceVersion(unsigned *v) { (void)v; abort(); }\n"
        "void *vk_icdGetInstanceProcAddr(void *i, const char *n) { (void)i; (void)n; abort(); }\n"
    )
    library = str(tmp_path / "libabort.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(source)], check=True)
    manifest = write_driver(tmp_path, "abort", library)
    others = [m for m in driver_probe.manifests() if os.path.exists(m)]
    joined = os.pathsep.join([*others, manifest])
    done = vksched_devices(VK_DRIVER_FILES=joined, VK_ICD_FILENAMES=joined)
    assert done.returncode == 0
    assert [d["name"] for d in json.loads(done.stdout)] == ["cpu"]
    assert f"the Vulkan driver of {manifest} crashed with SIGABRT" in done.stderr
    if others:
        assert f"VK_DRIVER_FILES={os.pathsep.join(others)}" in done.stderr
