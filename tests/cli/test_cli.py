"""The command line: tables, JSON, errors in one line, and no more imports than a command needs."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import click
import pytest
from conftest import vulkan_names
from test_devices import INTEL, NVIDIA, SOFT, Show, plain_environment, raw, show

import vksched
from vksched.cli import _Group, main
from vksched.cli.commands.ops import _show_timings
from vksched.common.errors import DeviceError, ShapeError
from vksched.common.user_warning import warn_user
from vksched.testing.op_cases.op_sample import OpSample
from vksched.testing.support_matrix import find_support
from vksched.testing.time_ops import Timing

__all__ = ["plain_environment", "show"]  # fixtures

needs_vulkan = pytest.mark.skipif(not vulkan_names(), reason="no Vulkan device here")


def call(
    capsys: pytest.CaptureFixture[str], *args: str, command: click.Group = main
) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a command."""
    with pytest.raises(SystemExit) as end:
        command.main(list(args), prog_name="vksched")
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.fixture(params=[80, 200])
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A narrow and a wide terminal."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def test_ctrl_c_gives_the_code_of_the_signal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def survey() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vksched.runtime.vulkan.device_probe.survey", survey)
    assert call(capsys, "devices") == (130, "", "\nAborted!\n")


def test_table(capsys: pytest.CaptureFixture[str], show: Show, columns: int) -> None:
    show(
        raw(0, uuid="12345678" + "0" * 24),
        raw(1, pci="0000:01:00.0", driver_name="AMD open-source driver"),
        raw(2, **INTEL),
        raw(3, **NVIDIA, usable=False, why="no compute queue"),
        raw(4, **SOFT),
    )
    code, out, err = call(capsys, "devices")
    assert code == 0 and err == ""
    assert max(map(len, out.splitlines())) <= columns
    for text in (
        "vulkan:0",
        "vulkan:4",
        "cpu",
        "Radeon RX 6800",
        "radv",
        "12345678",
        "13.0 of 16.0",
    ):
        assert text in out
    for text in ("group 1024", "shared 64 KiB", "buffers 200", "subgroup 64"):
        assert text in out
    words = out.split()
    assert words.count("yes") == 3  # vulkan:0, vulkan:2 and cpu
    assert words.count("no:") == words.count("duplicate:") + 2 == 3
    assert "VKSCHED_SOFTWARE=1" in words and "queue" in words


def test_verbose_table_tells_features(
    capsys: pytest.CaptureFixture[str], show: Show, columns: int
) -> None:
    show(raw(0), raw(1, **INTEL, features={"float16": True, "subgroup_sizes": [8, 16, 32]}))
    code, out, _ = call(capsys, "devices", "-v")
    assert code == 0 and max(map(len, out.splitlines())) <= columns
    rows = [line.split() for line in out.partition("beyond Vulkan 1.1")[2].splitlines()]
    assert ["float16", "yes", "yes"] in rows
    assert ["integer", "dot", "yes", "no"] in rows
    assert ["subgroup", "sizes", "32", "8"] in rows and ["32"] in rows
    assert any("16x16x16" in row for row in rows)
    show()
    assert "beyond" not in call(capsys, "devices", "-v")[1]


def test_table_without_vulkan(capsys: pytest.CaptureFixture[str], show: Show, columns: int) -> None:
    show(problem="kp is not installed; try `make setup`")
    code, out, err = call(capsys, "devices")
    assert code == 0
    assert "cpu" in out and "vulkan" not in out
    assert err == "cpu only: no Vulkan devices: kp is not installed; try `make setup`\n"


def test_notes_on_drivers_follow_the_table(capsys: pytest.CaptureFixture[str], show: Show) -> None:
    show(raw(0), notes=("/x/y.so: file too short",))
    code, out, err = call(capsys, "devices")
    assert code == 0 and "y.so" not in out
    assert err == "driver left out: /x/y.so: file too short\n"


def test_markup_in_a_label_is_text(capsys: pytest.CaptureFixture[str], show: Show) -> None:
    show(raw(0, name="[red]X[/red] [/]"))
    code, out, _ = call(capsys, "devices")
    assert code == 0 and "[red]X[/red]" in out


def test_names_of_timed_cases_stay_whole(capsys: pytest.CaptureFixture[str], columns: int) -> None:
    case = "attention-parts-1x1x11x64_1x1x9000x64_1x1x9000x64_9000"
    _show_timings([Timing("attention", case, "vulkan:0", 1e-3, 2e-3, 10.0, 10.0)])
    assert f"{case}  vulkan:0" in capsys.readouterr().out


def test_json(capsys: pytest.CaptureFixture[str], show: Show) -> None:
    show(raw(0), raw(1, **SOFT))
    code, out, err = call(capsys, "devices", "--json")
    card, soft, cpu = json.loads(out)
    assert (code, err) == (0, "")
    assert [d["name"] for d in (card, soft, cpu)] == ["vulkan:0", "vulkan:1", "cpu"]
    assert card["limits"]["shared_bytes"] == 65536
    assert card["default"] and not soft["default"] and "VKSCHED_SOFTWARE" in soft["why_not"]


def test_our_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    group = _Group("group")

    @group.command()
    def lost() -> None:
        raise DeviceError("[device] expected one,\n  got none")

    @group.command()
    def broken() -> None:
        raise RuntimeError("a defect keeps its traceback")

    @group.group(cls=_Group)
    def inner() -> None:
        pass

    @inner.command()
    def shapes() -> None:
        raise ShapeError("[x] expected 1, got 2")

    code, out, err = call(capsys, "lost", command=group)
    assert (code, out, err) == (1, "", "Error: [device] expected one, got none\n")
    code, _, err = call(capsys, "inner", "shapes", command=group)
    assert (code, err) == (1, "Error: [x] expected 1, got 2\n")
    with pytest.raises(RuntimeError, match="defect"):
        group.main(["broken"])


def test_our_warnings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    group = _Group("group")

    @group.command()
    def slower() -> None:
        warn_user("[devices] only one,\n  a slow one")
        warnings.warn("one of another package", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        code, out, err = call(capsys, "slower", command=group)
    assert (code, out, err) == (0, "", "note: [devices] only one, a slow one\n")
    assert [str(other.message) for other in others] == ["one of another package"]


def test_version_help_and_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version")[:2] == (0, f"vksched {vksched.__version__}\n")
    code, out, _ = call(capsys, "--help")
    assert code == 0 and "devices" in out
    code, _, err = call(capsys, "nonsense")
    assert code == 2 and "nonsense" in err


def test_module_is_the_command_and_real_devices_are_listed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vksched", "devices"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout and "Traceback" not in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_commands_import_what_they_need_when_they_run() -> None:
    code = "import sys, vksched.cli; print([m for m in ('rich', 'kp') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "[]", done.stderr


# -- ops ---------------------------------------------------------------------------------------


def test_support_is_a_page_and_plain_data(capsys: pytest.CaptureFixture[str]) -> None:
    code, page, _ = call(capsys, "ops", "support")
    assert code == 0 and "| matmul |" in page and "float16 is stored in 16 bits" in page
    code, text, _ = call(capsys, "ops", "support", "--json")
    found = {entry["op"]: entry for entry in json.loads(text)["ops"]}
    assert found["softmax"]["GPU"] == ["float32", "float16"]
    assert "float64" in found["softmax"]["numpy"]


def test_every_gap_has_a_reason() -> None:
    for support in find_support():
        assert support.dtypes, f"{support.op} has no cases"
        for kind, dtypes in support.on.items():
            for dtype in set(support.dtypes) - {"float64"} - set(dtypes):
                assert [g for g in support.gaps if g[:2] == (kind, dtype) and g[2].strip()]


TWO_OPS = ("-o", "squeeze", "-o", "scatter_elements")
"""Of few cases; numpy takes one of the second's."""


@needs_vulkan
def test_ops_are_proved_on_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    device = vulkan_names()[0]
    code, out, _ = call(capsys, "ops", "test", *TWO_OPS, "-d", device, "-v")
    assert code == 0 and "0 wrong" in out and "by numpy: scatter_elements" in out
    code, text, _ = call(capsys, "ops", "test", "-o", "relu", "-d", device, "--json")
    outcomes = json.loads(text)
    assert code == 0 and {o["op"] for o in outcomes} == {"relu"}
    assert all(o["device"] == device and not o["error"] for o in outcomes)


@pytest.mark.parametrize("command", ["test", "perf"])
def test_devices_are_named_as_for_other_commands(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, out, _ = call(capsys, "ops", command, "--help")
    assert code == 0 and "--devices A,B" in out and "--device " not in out


@needs_vulkan
def test_only_what_needs_a_look_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    device = vulkan_names()[0]
    code, out, _ = call(capsys, "ops", "test", "-o", "positive", "-o", "divide", "-d", device, "-v")
    assert code == 0 and {line.split()[0] for line in out.splitlines()} >= {"positive", "div"}
    code, out, _ = call(capsys, "ops", "test", *TWO_OPS, "-d", device)
    assert code == 0 and "\nscatter_elements" in out and "squeeze" not in out
    assert out.endswith(" 0 wrong; -v names them, with the reasons\n")
    code, out, _ = call(capsys, "ops", "test", "-o", "squeeze", "-d", device)
    assert code == 0 and out.count("\n") == 1 and "0 taken by numpy" in out


@needs_vulkan
def test_a_wrong_result_is_reported_and_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpSample, "expected", lambda case: case.inputs[0] * 2)
    code, out, _ = call(capsys, "ops", "test", "-o", "neg", "-d", vulkan_names()[0])
    assert code == 1 and "wrong: neg-" in out and "was expected" in out and " 0 wrong" not in out


@needs_vulkan
def test_ops_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    device = vulkan_names()[0]
    arguments = ("ops", "perf", "-o", "relu", "-d", device, "--repeat", "2")
    code, out, _ = call(capsys, *arguments)
    assert code == 0 and "relu-" in out and device in out
    code, text, _ = call(capsys, *arguments, "--json")
    (timing,) = json.loads(text)
    assert timing["seconds"] > 0 and timing["bytes_per_s"] > 0 and timing["numpy_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("test", "-o", "reluu"), "expected an op with cases, got 'reluu'; close: relu"),
        (("test", "-d", "cpu"), "expected Vulkan devices, got cpu"),
        (("test", "--devices", "vulkan:0, cpu"), "expected Vulkan devices, got cpu"),
        (("perf", "--device", "vulkan:0", "--device", "cpu"), "expected Vulkan devices, got cpu"),
        (("perf", "--repeat", "0"), "at least one repeat"),
        (("perf", "-o", "reshape"), "got reshape: all their cases are views"),
        (
            ("perf", "-o", "outer"),
            "functions are not timed; try the ops they come to: mul, reshape",
        ),
    ],
)
def test_bad_arguments_of_ops_are_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], match: str
) -> None:
    code, _, err = call(capsys, "ops", *arguments)
    assert code == 1 and match in err and err.count("\n") == 1
