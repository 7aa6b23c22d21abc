"""The set-up: what it finds missing, what it says, what it runs again, and the make commands."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import setup as set_up
import setup_base
import setup_python
import setup_run
import setup_system
import setup_vulkan
from setup_base import Outcome, Setup, SetupError, hash_of_files
from setup_python import Python
from setup_run import Failure, Reporter, Step
from setup_system import Requirement

ROOT = Path(__file__).resolve().parent.parent.parent

MakeCommand = Callable[[str, str], Path]
WHOLE = Outcome()


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeCommand:
    """Makes PATH an empty folder, and returns a function that adds a shell command to it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(name: str, body: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return add


@pytest.fixture
def fake(tmp_path: Path) -> Setup:
    """A set-up in an empty folder that has something in place of a venv's Python."""
    made = Setup(tmp_path / "repo", {"PATH": "/bin:/usr/bin"})
    made.venv_python.parent.mkdir(parents=True)
    made.venv_python.write_text("")
    return made


def run_steps(setup: Setup, steps: list[Step]) -> list[Failure]:
    """Run steps with their logs beside the made-up .venv."""
    logs = setup.root / "logs"
    logs.mkdir(exist_ok=True)
    return setup_run.run_steps(setup, steps, logs, Reporter(len(steps), sys.stdout))


def counting_step(name: str, source: Path, ran: list[str]) -> Step:
    """A step that depends on one file and notes that it ran."""

    def run(_: Setup) -> Outcome:
        ran.append(name)
        return Outcome()

    return Step(name, lambda s: source.read_text(), lambda s: True, run)


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


def got(folder: Path) -> list[str]:
    """The last word of each command that the stub noted: what was installed."""
    return [line.split()[-1] for line in (folder / "got").read_text().splitlines()]


def test_what_can_be_installed_is_installed_beside_a_broken_source(
    broken_apt: Path, fake: Setup, tmp_path: Path
) -> None:
    broken_apt.write_text("update libfmt-dev spirv-tools\n")
    setup = Setup(fake.root, {"PATH": os.environ["PATH"]})
    with pytest.raises(SetupError, match="could not install libfmt-dev, spirv-tools; it") as caught:
        setup_system.install_packages(setup, ["cmake", "libfmt-dev", "make", "spirv-tools"])
    assert got(tmp_path) == ["cmake", "make"]
    assert "--no-install-recommends libfmt-dev spirv-tools" in caught.value.to_do
    broken_apt.write_text("update\n")  # lists that were there already do
    setup_system.install_packages(setup, ["libfmt-dev"])
    assert got(tmp_path) == ["cmake", "make", "libfmt-dev"]


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
        'case "$1" in -c) echo "pytest>=8 onnxruntime>=1.18"; exit;; esac\n'
        f'case "$*" in *dev*|*onnxruntime*) exit 1;; esac\necho "$*" >> {tmp_path}/got\n'
    )
    fake.venv_python.chmod(0o755)
    fake.root.mkdir(exist_ok=True)
    outcome = setup_python.get_python_packages(fake)
    assert not outcome.whole and "without onnxruntime>=1.18: pip" in outcome.remark
    assert got(tmp_path) == [".", "pytest>=8", setup_python.MODEL_PACKAGE]


def test_extras_are_listed_for_the_python_at_hand() -> None:
    setup = Setup(ROOT, os.environ)
    setup.__class__ = type("Here", (Setup,), {"venv_python": Path(sys.executable)})
    listed = setup_python.extra_requirements(setup)
    names = {re.split("[<>=]", text)[0] for text in listed}
    assert {"pytest", "tokenizers"} <= names and not {"numpy", "matplotlib", "torch"} & names
    assert ("tomli" in names) == (sys.version_info < (3, 11))


def test_other_distributions_are_told_in_their_own_names(
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


# --- steps and stamps -------------------------------------------------------------------------


def test_second_run_does_nothing_and_a_change_runs_only_its_step(
    fake: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("1")
    steps = [
        counting_step("a", tmp_path / "a", ran),
        dataclasses.replace(counting_step("b", tmp_path / "b", ran), needs=("a",)),
    ]
    run_steps(fake, steps)
    assert ran == ["a", "b"]

    again = Setup(fake.root, fake.environ)
    again.read_stamps()
    assert setup_run.steps_to_run(again, steps) == []
    (tmp_path / "b").write_text("2")
    run_steps(again, steps)
    assert ran == ["a", "b", "b"]
    out = capsys.readouterr().out
    assert re.search(r"^\[set-up 1/2\] a: \d+\.\d s$", out, re.M)
    assert re.search(r"^\[set-up 1/2\] b: \d+\.\d s$", out, re.M)


def test_step_that_got_a_part_or_fails_later_is_not_remembered(fake: Setup, tmp_path: Path) -> None:
    outcomes: list[Outcome | SetupError] = [WHOLE, Outcome("a part", False), SetupError("no", "")]

    def run(setup: Setup) -> Outcome:
        outcome = outcomes.pop(0)
        if isinstance(outcome, SetupError):
            raise outcome
        return outcome

    gone = tmp_path / "result"
    step = Step("some", lambda s: "1", lambda s: not gone.exists(), run)
    run_steps(fake, [step])
    assert setup_run.steps_to_run(fake, [step]) == []
    gone.write_text("")  # its result is lost, so it runs, and gets but a part
    run_steps(fake, [step])
    assert [failure.step for failure in run_steps(fake, [step])] == [step]
    gone.unlink()
    again = Setup(fake.root, fake.environ)
    again.read_stamps()
    assert setup_run.steps_to_run(again, [step]) == [step]


def test_steps_that_do_not_wait_for_each_other_run_at_the_same_time(fake: Setup) -> None:
    meet = threading.Barrier(2, timeout=60)

    def run(_: Setup) -> Outcome:
        meet.wait()  # ends only when the other step runs too
        return WHOLE

    def note(name: str, *needs: str) -> Step:
        return Step(name, lambda s: "1", lambda s: True, lambda s: ran(name), needs, ("b",))

    order: list[str] = []

    def ran(name: str) -> Outcome:
        order.append(name)
        return WHOLE

    steps = [Step(name, lambda s: "1", lambda s: True, run) for name in "ab"]
    assert run_steps(fake, [*steps, note("c", "a"), note("d", "c")]) == []
    assert order == ["c", "d"]


def test_failed_step_stops_only_what_needs_it(
    fake: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(setup: Setup) -> Outcome:
        raise SetupError("no such thing", "get it")

    ran: list[str] = []
    (tmp_path / "a").write_text("1")
    steps = [
        Step("broken", lambda s: "1", lambda s: True, fail),
        dataclasses.replace(counting_step("behind", tmp_path / "a", ran), after=("broken",)),
        dataclasses.replace(counting_step("needs it", tmp_path / "a", ran), needs=("broken",)),
        dataclasses.replace(counting_step("and that", tmp_path / "a", ran), needs=("needs it",)),
    ]
    assert [failure.error.to_do for failure in run_steps(fake, steps)] == ["get it"]
    assert ran == ["behind"]
    assert [s.name for s in setup_run.steps_to_run(fake, steps)] == [
        "broken",
        "needs it",
        "and that",
    ]
    out = capsys.readouterr().out
    assert "broken: failed: no such thing" in out
    assert "[set-up 4/4]" in out and "and that: left out" in out


def test_steps_of_the_set_up_wait_for_none_that_comes_later() -> None:
    names: list[str] = []
    for step in (*set_up.STEPS, set_up.VALIDATION_STEP):
        assert {*step.needs, *step.after} <= set(names), step.name
        names.append(step.name)


@pytest.mark.parametrize(
    "log, shown",
    [
        ("[ 12%] Building CXX a.o\n[ 35%] Building CXX b.o\nwarning: x\n", "35%"),
        ("[3/40] Building\n", "3 of 40"),
        ("shaders: 120 of 944 compiled\n", "120 of 944"),
        ("Collecting numpy\n  Downloading https://user:secret@host/n.whl\n\n", "secret"),
        ("x" * 100, "(" + "x" * setup_run.SHOWN_CHARS + "...)"),
        ("", ""),
    ],
)
def test_progress_is_the_last_count_or_line_of_a_log(log: str, shown: str) -> None:
    if shown == "secret":
        assert setup_run.progress(log) == "(Downloading https://.../n.whl)"
    else:
        assert setup_run.progress(log) == shown


@pytest.mark.parametrize("terminal", [False, True], ids=["file", "terminal"])
def test_long_steps_show_which_they_are_and_how_far(
    fake: Setup, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: terminal)

    def run(setup: Setup) -> Outcome:
        setup.note("[ 35%] Building")
        while "long 35%" not in out.getvalue():
            threading.Event().wait(0.001)
        return Outcome("well")

    logs = fake.root / "logs"
    logs.mkdir()
    step = Step("long", lambda s: "1", lambda s: True, run)
    setup_run.run_steps(fake, [step], logs, Reporter(1, out, every_s=0.001))
    text = out.getvalue()
    assert ("\r\x1b[K[set-up 0:00] long 35%\r" in text) == terminal
    assert ("[set-up 0:00] long 35%\n" in text) == (not terminal)
    assert re.search(r"\[set-up 1/1\] long: \d+\.\d s, well\n$", text)


def test_failed_step_is_run_again_and_shows_its_log(
    fake: Setup, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(setup: Setup) -> Outcome:
        script = "seq 100; echo 'fetched https://user:secret@host.example/x'; exit 3"
        setup.call(["sh", "-c", script], "do this")
        return WHOLE

    step = Step("fails now", lambda s: "1", lambda s: True, fail)
    (failure,) = run_steps(fake, [step])
    assert setup_run.steps_to_run(fake, [step]) == [step]
    assert "fails now: failed: `sh -c" in capsys.readouterr().out
    message = setup_run.failure_message(failure, fake.root)
    lines = message.splitlines()
    assert "100" in lines and "62" in lines and "61" not in lines  # the last 40 lines of the log
    assert "secret" not in message and "https://.../x" in message
    assert "exit code 3" in message and "do this" in message and "logs/fails-now.log" in message


def test_interruption_ends_the_commands_that_run_and_says_so(
    fake: Setup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup_base, "STOP_WAIT_S", 0.01)

    def endless(setup: Setup) -> Outcome:
        setup.call([sys.executable, "-c", "import time\ntime.sleep(3600)"], "")
        return WHOLE

    def stop(setup: Setup) -> Outcome:
        while not setup.commands.count():
            threading.Event().wait(0.001)
        raise KeyboardInterrupt

    steps = [
        Step("endless", lambda s: "1", lambda s: True, endless),
        Step("stopped", lambda s: "1", lambda s: True, stop),
    ]
    with pytest.raises(KeyboardInterrupt):
        run_steps(fake, steps)
    out = capsys.readouterr().out
    assert "endless: interrupted" in out and "failed" not in out
    assert setup_run.steps_to_run(fake, steps) == steps
    with pytest.raises(SetupError, match="interrupted"):
        fake.call([sys.executable, "-c", ""], "")


def test_command_that_is_not_there_fails_with_what_to_do(fake: Setup) -> None:
    with pytest.raises(SetupError, match="exit code 127") as caught:
        fake.call(["/nonexistent/command"], "install it")
    assert caught.value.to_do == "install it"


def test_lost_venv_runs_every_step_again(fake: Setup) -> None:
    fake.stamps = {step.name: step.key(fake) for step in set_up.STEPS}
    spirv = fake.root / "vksched" / "spirv"
    spirv.mkdir(parents=True)
    (spirv / "manifest.json").write_text("{}")
    setup_vulkan.answer_file(fake).parent.mkdir(parents=True)
    setup_vulkan.answer_file(fake).write_text("software\n")
    native = fake.venv / "lib" / "python3.11" / "site-packages" / "vksched_native"
    native.mkdir(parents=True)
    (native / "stamp.json").write_text("{}")
    assert setup_run.steps_to_run(fake, set_up.STEPS) == []
    (spirv / "manifest.json").unlink()
    (native / "stamp.json").unlink()
    assert [s.name for s in setup_run.steps_to_run(fake, set_up.STEPS)] == [
        "native modules",
        "shaders",
    ]
    fake.venv_python.unlink()
    assert setup_run.steps_to_run(fake, set_up.STEPS) == list(set_up.STEPS)


def test_named_python_makes_a_new_venv_and_no_name_keeps_it(
    fake: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"python3.11": (3, 11), "python3.12": (3, 12)}
    monkeypatch.setattr(setup_python, "describe_python", versions(table))
    fake.stamps = {"PYTHON": "python3.11"}
    kept = set_up.key_of_venv(fake)
    for name in ("python3.11", "python3.12", "python3.10"):
        named = Setup(fake.root, {"PYTHON": name}, stamps=fake.stamps)
        assert (set_up.key_of_venv(named) == kept) == (name == "python3.11")


def test_files_are_hashed_by_name_and_content(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("1")
    first = hash_of_files(tmp_path, "d", "absent")
    (tmp_path / "d" / "x").rename(tmp_path / "d" / "y")
    second = hash_of_files(tmp_path, "d", "absent")
    (tmp_path / "d" / "y").write_text("2")
    assert len({first, second, hash_of_files(tmp_path, "d", "absent")}) == 3


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
    assert lines[0].endswith("scripts/setup.py")
    assert lines[-1] == ".venv/bin/python -m pytest -n 2 --dist worksteal -k matmul"
    assert dry_run("test", "PARALLEL=").splitlines()[-1].split() == [
        ".venv/bin/python",
        "-m",
        "pytest",
    ]
    demo = dry_run("demo", "DEMO_ARGS=--batch 8")
    assert "scripts/setup.py" in demo
    assert demo.rstrip().endswith("examples/semantic_search.py --batch 8")


def test_ci_runs_the_commands_of_the_readme() -> None:
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    commands = [line for line in run.read_text().splitlines() if line and line[0] != "#"]
    assert commands[0] == "set -eu" and commands[-1] == "exec make test"
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
