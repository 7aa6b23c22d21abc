"""The set-up: what it finds missing, how it gets that, what it says, and the make commands."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("set-up is for Debian and its kin", allow_module_level=True)

import setup as set_up
import setup_python
import setup_run
import setup_system
import setup_vulkan
from made_setup import WHOLE, MakeCommand, fake_setup, got, run_steps, stub_commands
from setup_base import Outcome, Setup, SetupError
from setup_python import Python
from setup_run import Failure, Step
from setup_system import Requirement

ROOT = Path(__file__).resolve().parent.parent.parent

stub = pytest.fixture(stub_commands)
fake = pytest.fixture(fake_setup)

# --- system packages --------------------------------------------------------------------------


def test_missing_packages_are_those_neither_seen_nor_known(
    stub: MakeCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stub("c++", "")
    monkeypatch.setattr(setup_system, "INCLUDE_FOLDERS", (str(tmp_path),))
    (tmp_path / "fmt").mkdir()
    (tmp_path / "fmt" / "core.h").write_text("")
    requirements = (
        Requirement("g++", tools=("g++", "c++")),
        Requirement("cmake", tools=("cmake",)),
        Requirement("glslang-tools", tools=("glslangValidator",)),
        Requirement("libfmt-dev", header="fmt/core.h"),
        Requirement("libvulkan-dev", header="vulkan/vulkan.h"),
    )
    asked: list[str] = []

    def installed(names: list[str]) -> set[str]:
        asked.extend(names)
        return {"glslang-tools"}

    missing = setup_system.missing_packages(requirements, installed)
    assert missing == ["cmake", "libvulkan-dev"]
    assert asked == ["cmake", "glslang-tools", "libvulkan-dev"]


def test_dpkg_answer_is_read_for_every_state(stub: MakeCommand) -> None:
    stub("dpkg-query", "echo 'libfmt-dev:amd64 installed'; echo 'cmake config-files'; exit 1")
    assert setup_system.installed_packages(["libfmt-dev", "cmake", "g++"]) == {"libfmt-dev"}


def test_python_packages_are_asked_for_by_minor_version() -> None:
    bare = Python("/usr/bin/python3", (3, 12), "/usr/bin/python3.12", False, False)
    assert setup_python.python_requirements(bare, True) == ["python3.12-venv", "python3.12-dev"]
    assert setup_python.python_requirements(bare, False) == ["python3.12-venv"]
    whole = Python("/usr/bin/python3", (3, 12), "/usr/bin/python3.12", True, True)
    assert setup_python.python_requirements(whole, True) == []


def test_foreign_python_without_headers_is_refused() -> None:
    python = Python("/opt/py/bin/python3", (3, 11), "/opt/py/bin/python3.11", True, False)
    with pytest.raises(SetupError, match=r"no Python\.h"):
        setup_python.python_requirements(python, True)


@pytest.mark.parametrize("sudo", [None, "exit 1"], ids=["no sudo", "sudo asks for a password"])
def test_without_root_the_exact_command_is_printed_and_nothing_installed(
    stub: MakeCommand,
    fake: Setup,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    sudo: str | None,
) -> None:
    stub("apt-get", f"echo called > {tmp_path}/apt-was-called")
    stub("dpkg-query", "exit 1")
    if sudo is not None:
        stub("sudo", sudo)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(setup_system, "INCLUDE_FOLDERS", ())
    monkeypatch.setattr(setup_system, "describe_python", lambda command: None)
    with pytest.raises(SetupError) as caught:
        setup_system.get_system_packages(fake)
    command = (
        "sudo apt-get update && sudo apt-get install -y --no-install-recommends "
        "g++ make cmake libvulkan-dev libfmt-dev glslang-tools spirv-tools"
    )
    failure = Failure(set_up.STEPS[0], caught.value, fake.root / "some.log")
    message = setup_run.failure_message(failure, fake.root)
    assert f"\n  {command}\n" in message
    assert not (tmp_path / "apt-was-called").exists()


@pytest.mark.parametrize("known", [True, False], ids=["has it", "has it not"])
@pytest.mark.parametrize("root", [True, False], ids=["root", "no root"])
def test_helpful_package_is_installed_where_it_can_be_and_stops_nothing(
    stub: MakeCommand,
    fake: Setup,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    root: bool,
    known: bool,
) -> None:
    stub("apt-get", f'echo "$*" >> "{tmp_path}/got"')
    stub("apt-cache", f"exit {0 if known else 100}")
    stub("dpkg-query", "exit 1")
    stub("env", 'shift; exec "$@"')
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(setup_system, "describe_python", lambda command: None)
    helpful = Requirement("glslc", tools=("glslc",), helpful=True)
    monkeypatch.setattr(setup_system, "BUILD_REQUIREMENTS", (helpful,))
    setup = Setup(fake.root, {"PATH": os.environ["PATH"]})
    remark = setup_system.get_system_packages(setup).remark
    assert remark == ("installed glslc" if root and known else "all there")
    assert (tmp_path / "got").exists() == root
    if root:
        assert (got(tmp_path)[-1] == "glslc") == known
    needed = Requirement("make", tools=("make",))
    monkeypatch.setattr(setup_system, "BUILD_REQUIREMENTS", (helpful, needed))
    if root:
        assert setup_system.get_system_packages(setup).remark.startswith("installed make")
    else:
        with pytest.raises(SetupError) as caught:
            setup_system.get_system_packages(setup)
        assert caught.value.to_do.count(" make glslc\n" if known else " make\n") == 1


@pytest.mark.parametrize("root", [True, False], ids=["root", "sudo without a password"])
def test_packages_are_installed_after_one_update(
    stub: MakeCommand, fake: Setup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: bool
) -> None:
    calls = tmp_path / "calls"
    stub("apt-get", f'echo "$DEBIAN_FRONTEND $*" >> {calls}')
    stub("env", 'while [ "${1#*=}" != "$1" ]; do export "$1"; shift; done; exec "$@"')
    stub("sudo", '[ "$1" = -n ] || exit 1; shift; [ "$1" = true ] || exec "$@"')
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    path = os.environ["PATH"]
    setup = Setup(fake.root, {"PATH": path})
    setup_system.install_packages(setup, ["cmake"])
    setup_system.install_packages(setup, ["g++"])
    lock = "noninteractive -o DPkg::Lock::Timeout=300"
    assert calls.read_text().splitlines() == [
        f"{lock} -o APT::Update::Error-Mode=any update",
        f"{lock} install -y --no-install-recommends cmake",
        f"{lock} install -y --no-install-recommends g++",
    ]


@pytest.fixture
def broken_apt(stub: MakeCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt with one broken source; returns a file that lists the packages it cannot install.

    Like apt-get it installs nothing of what it is asked for at once when a part cannot be had.
    """
    broken = tmp_path / "broken"
    stub(
        "apt-get",
        f'read -r broken < "{broken}"\n'
        'for word; do case " $broken " in *" $word "*) echo "E: no $word"; exit 100;; esac; done\n'
        f'echo "$*" >> "{tmp_path}/got"\n'
        'case "$*" in *download*) : > "$word.deb";; esac',
    )
    stub("dpkg-query", "exit 1")
    stub("env", 'while [ "${1#*=}" != "$1" ]; do export "$1"; shift; done; exec "$@"')
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return broken


def test_what_can_be_installed_is_installed_next_to_a_broken_source(
    broken_apt: Path, fake: Setup, tmp_path: Path
) -> None:
    broken_apt.write_text("update libfmt-dev spirv-tools\n")
    setup = Setup(fake.root, {"PATH": os.environ["PATH"]})
    with pytest.raises(SetupError, match="could not install libfmt-dev, spirv-tools; it") as caught:
        setup_system.install_packages(setup, ["cmake", "libfmt-dev", "make", "spirv-tools"])
    assert got(tmp_path) == ["cmake", "make"]
    assert "--no-install-recommends libfmt-dev spirv-tools" in caught.value.to_do
    broken_apt.write_text("update\n")  # lists that were there already do
    assert setup_system.install_packages(setup, ["libfmt-dev"], ["glslc"]) == [
        "libfmt-dev",
        "glslc",
    ]
    assert got(tmp_path) == ["cmake", "make", "glslc"]
    broken_apt.write_text("update glslc\n")
    assert setup_system.install_packages(setup, ["make"], ["glslc"]) == ["make"]


def test_broken_source_hides_no_driver_and_its_failure_is_not_remembered(
    broken_apt: Path,
    stub: MakeCommand,
    fake: Setup,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def unpack(package: Path, folder: Path) -> None:
        folder.mkdir(parents=True)
        for name in setup_vulkan.SWIFTSHADER_FILES:
            (folder / name).write_text("")

    monkeypatch.setattr(setup_vulkan, "ICD_FOLDERS", ())
    monkeypatch.setattr(setup_vulkan, "find_devices", lambda s: [])
    monkeypatch.setattr(setup_vulkan, "unpack_swiftshader", unpack)
    stub("dpkg-deb", "")
    stub("apt-cache", "exit 100")  # the lists have no chromium-common, as its source is broken
    step = next(s for s in set_up.STEPS if s.run is setup_vulkan.get_devices)

    def run_again() -> list[Step]:
        setup = Setup(fake.root, {"PATH": os.environ["PATH"]})
        setup.read_stamps()
        run_steps(setup, [step])
        after = Setup(fake.root, setup.environ)
        after.read_stamps()
        return setup_run.steps_to_run(after, [step])

    broken_apt.write_text("update mesa-vulkan-drivers\n")
    assert run_again() == [step]  # SwiftShader came, llvmpipe did not: tried again
    assert all((fake.driver_folder / n).exists() for n in setup_vulkan.SWIFTSHADER_FILES)
    shutil.rmtree(fake.driver_folder)
    broken_apt.write_text("update chromium-common\n")
    assert run_again() == [step]  # the other way round
    assert got(tmp_path) == ["chromium-common", "mesa-vulkan-drivers"]
    broken_apt.write_text("nothing\n")
    stub("apt-cache", "exit 0")
    assert run_again() == []


def test_python_packages_that_can_be_had_come_without_the_others(
    stub: MakeCommand, fake: Setup, tmp_path: Path
) -> None:
    fake.venv_python.write_text(
        "#!/bin/sh\n"
        'case "$1 $3" in "-c dev") echo "pytest>=8 onnxruntime>=1.18"; exit;; '
        '-c*) echo "scikit-learn>=1.5 tokenizers>=0.19"; exit;; esac\n'
        'case "$*" in *examples*|*onnxruntime*|*scikit*) exit 1;; esac\n'
        f'echo "$*" >> {tmp_path}/got\n'
    )
    fake.venv_python.chmod(0o755)
    fake.root.mkdir(exist_ok=True)
    outcome = setup_python.get_python_packages(fake)
    assert not outcome.whole and "without scikit-learn>=1.5: pip" in outcome.remark
    assert got(tmp_path) == [".", "tokenizers>=0.19", setup_python.MODEL_PACKAGE]
    outcome = setup_python.get_test_packages(fake)
    assert not outcome.whole and "without onnxruntime>=1.18: pip" in outcome.remark
    assert got(tmp_path)[3:] == ["pytest>=8"]


def test_one_pip_at_a_time_writes_into_the_venv(fake: Setup) -> None:
    fake.venv_python.write_text("#!/bin/sh\nmkdir busy && sleep 0.05 && rmdir busy\n")
    fake.venv_python.chmod(0o755)
    steps = [dataclasses.replace(fake, log=None) for _ in range(4)]
    with ThreadPoolExecutor(len(steps)) as pool:
        assert list(pool.map(lambda s: setup_python.install_each(s, ["x"]), steps)) == [[]] * 4


def test_extras_are_listed_for_the_python_at_hand() -> None:
    setup = Setup(ROOT, os.environ)
    setup.__class__ = type("Here", (Setup,), {"venv_python": Path(sys.executable)})
    listed = setup_python.extra_requirements(setup, "dev", "examples")
    names = {re.split("[<>=]", text)[0] for text in listed}
    assert {"pytest", "tokenizers"} <= names and not {"numpy", "zensical", "torch"} & names
    assert ("tomli" in names) == (sys.version_info < (3, 11))
    assert "pytest" not in " ".join(setup_python.extra_requirements(setup, "examples"))


def test_other_distributions_are_reported_in_their_own_names(
    stub: MakeCommand, fake: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_system, "INCLUDE_FOLDERS", ())
    monkeypatch.setattr(setup_system, "describe_python", lambda command: None)
    with pytest.raises(SetupError) as caught:
        setup_system.get_system_packages(fake)
    assert "Fedora: gcc-c++" in caught.value.to_do and "Arch:" in caught.value.to_do
    assert f"this machine ({setup_system.system_name()}) has none" in caught.value.what


def test_system_says_its_name(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text('NAME=X\nPRETTY_NAME="X Linux 41 (Forty One)"\n')
    assert setup_system.system_name(str(release)) == "X Linux 41 (Forty One)"
    assert setup_system.system_name(str(tmp_path / "none")) == sys.platform


def test_without_native_nothing_but_python_is_needed(stub: MakeCommand, fake: Setup) -> None:
    setup = Setup(fake.root, {"VKSCHED_NO_NATIVE": "1"})
    assert setup_system.get_system_packages(setup) == Outcome("all there")
    assert "left out" in set_up.build_native(setup).remark
    assert "left out" in setup_vulkan.get_devices(setup).remark


# --- choice of Python -------------------------------------------------------------------------


OLDEST, NEWEST = setup_python.SUPPORTED[0], setup_python.SUPPORTED[-1]


def command_of(version: tuple[int, int]) -> str:
    return "python{}.{}".format(*version)


def versions(table: dict[str, tuple[int, int]]) -> Callable[[str], Python | None]:
    """describe_python for made-up interpreters."""
    return lambda c: Python(c, table[c], c, True, True) if c in table else None


def test_running_python_is_taken_when_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_python, "describe_python", versions({"me": OLDEST}))
    assert setup_python.choose_python("", "me", lambda name: None).path == "me"


def test_newest_supported_python_on_path_is_taken_and_broken_ones_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    too_new = (NEWEST[0], NEWEST[1] + 1)
    older = [v for v in setup_python.SUPPORTED if v != NEWEST]
    table = {"me": too_new, "/p/python3": too_new, **{f"/p/{command_of(v)}": v for v in older}}
    monkeypatch.setattr(setup_python, "describe_python", versions(table))
    # The newest one is on PATH and does not run, like a pyenv shim without its version.
    chosen = setup_python.choose_python("", "me", lambda n: f"/p/{n}")
    assert chosen.path == f"/p/{command_of(older[-1])}"


def test_named_python_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    too_old = (OLDEST[0], OLDEST[1] - 1)
    monkeypatch.setattr(setup_python, "describe_python", versions({"mine": too_old}))
    got, wanted = ".".join(map(str, too_old)), "{}.{} to {}.{}".format(*OLDEST, *NEWEST)
    with pytest.raises(SetupError, match=re.escape(f"mine is Python {got}, expected {wanted}")):
        setup_python.choose_python("mine", "me", lambda name: None)


def test_without_a_supported_python_the_message_says_which_were_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    too_new = (NEWEST[0], NEWEST[1] + 1)
    table = {"me": (OLDEST[0], OLDEST[1] - 1), "/p/python3": too_new}
    monkeypatch.setattr(setup_python, "describe_python", versions(table))
    broken = command_of(NEWEST)
    there = {"python3": "/p/python3", broken: f"/p/{broken}"}
    with pytest.raises(SetupError) as caught:
        setup_python.choose_python("", "me", there.get)
    assert "expected Python {}.{} to {}.{}".format(*OLDEST, *NEWEST) in caught.value.what
    assert "me is {}.{}, ".format(*table["me"]) in caught.value.what
    assert "/p/python3 is {}.{}, ".format(*too_new) in caught.value.what
    assert f"/p/{broken} fails" in caught.value.what


def test_a_real_interpreter_describes_itself() -> None:
    python = setup_python.describe_python(sys.executable)
    assert python is not None and python.version == sys.version_info[:2]
    assert setup_python.describe_python("/nonexistent/python") is None


def test_named_python_makes_a_new_venv_and_no_name_keeps_it(
    fake: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"python3.11": (3, 11), "python3.12": (3, 12)}
    monkeypatch.setattr(setup_python, "describe_python", versions(table))
    fake.stamps = {"PYTHON": "python3.11"}
    stored = setup_python.key_of_venv(fake)
    for name in ("python3.11", "python3.12", "python3.10"):
        named = Setup(fake.root, {"PYTHON": name}, stamps=fake.stamps)
        assert (setup_python.key_of_venv(named) == stored) == (name == "python3.11")


# --- Vulkan devices ---------------------------------------------------------------------------


def test_only_the_driver_is_unpacked(stub: MakeCommand, tmp_path: Path) -> None:
    archive = tmp_path / "files.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("bin/browser", *(f"lib/{n}" for n in setup_vulkan.SWIFTSHADER_FILES)):
            member = tarfile.TarInfo(f"./usr/{name}")
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    stub("dpkg-deb", f'while read -r l; do :; done < /dev/null; exec /bin/cat "{archive}"')
    setup_vulkan.unpack_swiftshader(tmp_path / "p.deb", tmp_path / "out")
    found = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert found == sorted(setup_vulkan.SWIFTSHADER_FILES)
    stub("dpkg-deb", f'exec /bin/head -c 1536 "{archive}"')
    with pytest.raises((ValueError, tarfile.TarError)):
        setup_vulkan.unpack_swiftshader(tmp_path / "p.deb", tmp_path / "other")


@pytest.mark.parametrize("forced", ["", "1"])
@pytest.mark.parametrize("hardware", [[], [("Big GPU", "discrete")]], ids=["no GPU", "GPU"])
def test_software_devices_come_only_where_no_hardware_is(
    fake: Setup,
    monkeypatch: pytest.MonkeyPatch,
    hardware: list[tuple[str, str]],
    forced: str,
) -> None:
    got: list[str] = []
    setup = Setup(fake.root, {"VKSCHED_SETUP_SOFTWARE": forced})
    monkeypatch.setattr(
        setup_vulkan, "find_devices", lambda s: [*hardware, *((g, "cpu") for g in got)]
    )
    monkeypatch.setattr(setup_vulkan, "key_of_drivers", lambda s: str(got))
    monkeypatch.setattr(setup_vulkan, "get_llvmpipe", lambda s: got.append("llvmpipe") or WHOLE)
    monkeypatch.setattr(setup_vulkan, "get_swiftshader", lambda s: Outcome("no SwiftShader"))
    remark = setup_vulkan.get_devices(setup).remark
    if hardware and not forced:
        assert (remark, got) == ("Big GPU", [])
    else:
        assert remark.endswith("llvmpipe; no SwiftShader")
    kind = "hardware" if hardware else "software"
    assert setup_vulkan.answer_file(setup).read_text() == f"{kind}\n"


@pytest.mark.parametrize("forced", ["", "1"])
@pytest.mark.parametrize("node", ["dri", "dxg", "loop0"])
def test_software_drivers_come_early_only_where_no_hardware_can_be(
    fake: Setup, monkeypatch: pytest.MonkeyPatch, node: str, forced: str
) -> None:
    monkeypatch.setattr(setup_vulkan, "list_folder", lambda folder: ["null", node])
    monkeypatch.setattr(setup_vulkan, "get_software_drivers", lambda s: Outcome("got", False))
    setup = Setup(fake.root, {"VKSCHED_SETUP_SOFTWARE": forced})
    early = setup_vulkan.get_drivers_early(setup)
    assert (early == Outcome("got", False)) == (forced == "1" or node == "loop0")
    assert early.whole == (not forced and node != "loop0")
    numpy_only = Setup(fake.root, {"VKSCHED_NO_NATIVE": "1"})
    assert "left out" in setup_vulkan.get_drivers_early(numpy_only).remark


def test_drivers_that_cannot_be_asked_are_not_taken_for_none(
    fake: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup_vulkan, "get_llvmpipe", lambda s: WHOLE)
    monkeypatch.setattr(setup_vulkan, "get_swiftshader", lambda s: WHOLE)
    assert setup_vulkan.find_devices(fake) is None  # the fake Python does not run
    outcome = setup_vulkan.get_devices(fake)
    assert "could not ask the drivers" in outcome.remark and not outcome.whole
    assert not setup_vulkan.answer_file(fake).exists()  # so the next run asks again


@pytest.mark.parametrize("known", [True, False], ids=["not downloaded", "in no package"])
def test_without_the_debian_package_set_up_goes_on_with_a_remark(
    stub: MakeCommand, fake: Setup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, known: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    stub("dpkg-deb", "exit 1")
    stub("apt-cache", f"exit {0 if known else 100}")
    stub("apt-get", "echo 'E: Failed to fetch chromium-common'; exit 100")
    setup = Setup(fake.root, {"PATH": os.environ["PATH"]})
    with open(tmp_path / "log", "wb") as setup.log:
        outcome = setup_vulkan.get_swiftshader(setup)
    assert "no SwiftShader" in outcome.remark
    assert outcome.whole == (not known)  # what no lists have is not looked for at each set-up
    assert ("Failed to fetch" in (tmp_path / "log").read_text()) == known


# --- the commands -----------------------------------------------------------------------------


def dry_run(*arguments: str) -> str:
    """What make would run, asked as if from a shell though make may have started these tests."""
    outer = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON", "PYTEST_ARGS", "DEMO_ARGS")
    answer = subprocess.run(
        ["make", "-n", *arguments],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k not in outer},
        capture_output=True,
        text=True,
        check=True,
    )
    return answer.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_make_test_sets_up_and_ends_with_pytest() -> None:
    lines = dry_run("test", "PYTEST_ARGS=-k matmul").splitlines()
    assert lines[0].endswith("scripts/setup/setup.py")
    clean = "env -u PYTHONDONTWRITEBYTECODE"
    assert lines[-1] == f"{clean} .venv/bin/python -m pytest -n 3 --dist worksteal -k matmul"
    assert dry_run("test", "PARALLEL=").splitlines()[-1].removeprefix(clean).split() == [
        ".venv/bin/python",
        "-m",
        "pytest",
    ]
    for target in ("rest", "all"):
        wider = dry_run(f"test-{target}", "PYTEST_ARGS=-k matmul").splitlines()[-1]
        assert wider == f"VKSCHED_TESTS={target} {lines[-1]}"
    demo = dry_run("demo", "DEMO_ARGS=--batch 8")
    assert "scripts/setup/setup.py --for demo\n" in demo
    assert demo.rstrip().endswith("examples/semantic_search.py --batch 8")


def test_ci_runs_the_test_command_of_the_readme_and_then_all_other_tests() -> None:
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    commands = [line for line in run.read_text().splitlines() if line and line[0] != "#"]
    assert commands[0] == "set -eu" and commands[-2:] == ["make test", "exec make test-rest"]
    assert "make test " in (ROOT / "README.md").read_text()
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert ".ci/run" in workflow and "make demo" in workflow


def test_supported_pythons_are_the_same_everywhere() -> None:
    versions = [setup_python.dotted(version) for version in setup_python.SUPPORTED]
    project = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r"Python :: (3\.\d+)", project) == versions
    assert f'requires-python = ">={versions[0]}"' in project
    makefile = (ROOT / "Makefile").read_text()
    starter = makefile[makefile.index("STARTER = ") : makefile.index(".DEFAULT_GOAL")]
    assert re.findall(r"\bpython(3\.\d+)", starter) == versions[::-1]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert f"python: {versions}".replace("'", '"') in workflow
