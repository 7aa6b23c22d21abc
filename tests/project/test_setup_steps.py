"""The steps of the set-up: which run again, at the same time, what they say, and how they end."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("set-up is for Debian and its kin", allow_module_level=True)

import setup as set_up
import setup_base
import setup_run
import setup_vulkan
from made_setup import WHOLE, counting_step, fake_setup, run_steps
from setup_base import Outcome, Setup, SetupError, hash_of_files
from setup_run import Reporter, Step

fake = pytest.fixture(fake_setup)


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
    for step in (*set_up.STEPS, set_up.TEST_STEP, set_up.VALIDATION_STEP):
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


@pytest.fixture(params=["minded", "ignored"])
def sigint(request: pytest.FixtureRequest) -> Iterator[None]:
    """SIGINT as commands inherit it, in a terminal and in the background of a script."""
    handlers = {"minded": signal.default_int_handler, "ignored": signal.SIG_IGN}
    before = signal.signal(signal.SIGINT, handlers[request.param])
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint")
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


@pytest.mark.parametrize("served", [True, False])
def test_a_compiler_for_matrix_units_is_fetched_where_none_knows_them(
    served: bool, fake: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    manifest = fake.root / "vksched" / "spirv" / "manifest.json"
    manifest.parent.mkdir(parents=True)

    def call(command: list[str], to_do: str, cwd: Path | None = None) -> None:
        ran.append(command[-1])
        if "pip" in command and not served:
            raise SetupError("no index", to_do)
        if command[-1] == "build_shaders.py":
            known = {*set_up.NEWER_COMPILER} <= {*ran}
            manifest.write_text(json.dumps({"left_out": [] if known else ["one", "two"]}))

    monkeypatch.setattr(fake, "call", call)
    done = set_up.compile_shaders(fake)
    fetched = [*set_up.NEWER_COMPILER]
    again = ["build_shaders.py"] if served else []
    assert ran == ["build_shaders.py", *fetched, *again]
    assert done.whole is served
    assert served or re.search(r"without \d+ for cooperative matrices", done.remark)
    ran.clear()
    assert set_up.compile_shaders(fake).whole is served
    assert served or ran[:1] == ["build_shaders.py"]


def test_without_native_modules_no_compiler_is_fetched(
    fake: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(fake.root, {**fake.environ, "VKSCHED_NO_NATIVE": "1"})
    manifest = setup.root / "vksched" / "spirv" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"left_out": ["one"]}))
    ran: list[str] = []
    monkeypatch.setattr(setup, "call", lambda command, *_: ran.append(command[-1]))
    monkeypatch.setattr("shutil.which", lambda name: name)
    assert set_up.compile_shaders(setup).whole
    assert ran == ["build_shaders.py"]


def test_command_that_is_not_there_fails_with_what_to_do(fake: Setup) -> None:
    with pytest.raises(SetupError, match="exit code 127") as caught:
        fake.call(["/nonexistent/command"], "install it")
    assert caught.value.to_do == "install it"


@pytest.mark.parametrize("use", ["all", "demo", "validation"])
def test_the_demo_does_not_wait_for_what_tests_need(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def todo(setup: Setup, steps: tuple[Step, ...]) -> list[Step]:
        asked.extend(step.name for step in steps)
        return []

    monkeypatch.setattr(set_up, "steps_to_run", todo)
    assert set_up.main(["--validation"] if use == "validation" else ["--for", use]) == 0
    assert ("test packages" in asked) == (use != "demo")
    assert ("validation layer" in asked) == (use == "validation")
    assert {step.name for step in set_up.STEPS} <= set(asked)


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


def test_files_are_hashed_by_name_and_content(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").write_text("1")
    first = hash_of_files(tmp_path, "d", "absent")
    (tmp_path / "d" / "x").rename(tmp_path / "d" / "y")
    second = hash_of_files(tmp_path, "d", "absent")
    (tmp_path / "d" / "y").write_text("2")
    assert len({first, second, hash_of_files(tmp_path, "d", "absent")}) == 3
