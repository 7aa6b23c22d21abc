"""Names in files, and what nodes say, give no orders to the terminal of `vksched`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from conftest import needs_posix

pytest.importorskip("jinja2")
gguf = pytest.importorskip("gguf")
onnx = pytest.importorskip("onnx")

from gguf_files import Draft, ValueType  # noqa: E402
from monitored import device_now, process_now  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from test_chat import build_model  # noqa: E402
from timelines import simulated_tape  # noqa: E402

import vksched as vs  # noqa: E402
from vksched.cli import main  # noqa: E402
from vksched.cli.options import inputs  # noqa: E402
from vksched.cluster.cluster import Cluster  # noqa: E402
from vksched.common.console import DescriptionColumn, PrintableConsole, ProgressBars  # noqa: E402
from vksched.common.formatting import printable  # noqa: E402
from vksched.common.terminal import guard_streams, printable_streams  # noqa: E402
from vksched.distributed.wire.error_codec import error_of, fields_of  # noqa: E402
from vksched.monitor.client import Client  # noqa: E402
from vksched.topology.device_spec import DeviceSpec  # noqa: E402
from vksched.topology.links import Link  # noqa: E402

ROOT = Path(__file__).parent.parent.parent
ORDERS = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31mred\r\x08\x9b1m\x7f\u202eright\u2066[red]x[/red][/][link=u]"
)
"""A window's title, a cleared screen, a colour, a line written over, letters turned around, and
what is markup for rich.
"""
SEEN = "\\u001b]0;owned\\u0007\\u001b[2J"


def bad(name: str) -> str:
    return name + ORDERS


def call(*args: str, stdin: str | None = None, status: int = 0) -> Result:
    """Run a command whose output must be printable, as on a terminal: click strips none of it."""
    done = CliRunner().invoke(main, list(args), input=stdin, color=True)
    assert done.exit_code == status, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert_printable(done.stdout)
    assert_printable(done.stderr)
    return done


def assert_printable(text: str) -> None:
    wrong = [c for c in text if ord(c) < 32 and c not in "\n\t" or 127 <= ord(c) < 160]
    wrong += [c for c in text if c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"]
    assert not wrong, repr(text)


def model(folder: Path, **changes: Any) -> str:
    """Write an ONNX model in which all that can have a name has a bad one."""
    x, y, w = bad("x"), bad("y"), bad("w")
    body = helper.make_graph(
        [helper.make_node("Neg", [x], [bad("r")], name=bad("inner"))],
        bad("branch"),
        [],
        [helper.make_tensor_value_info(bad("r"), TensorProto.FLOAT, None)],
    )
    sides = {"then_branch": body, "else_branch": body}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [x, w], [bad("m")], name=bad("product")),
            helper.make_node(bad("Own"), [bad("m")], [bad("n")], domain="own", name=bad("call")),
            helper.make_node("If", [bad("c")], [bad("i")], name=bad("if"), **sides),
            helper.make_node("Add", [bad("n"), bad("i")], [y], name=bad("sum")),
            *changes.get("nodes", ()),
        ],
        bad("graph"),
        [
            helper.make_tensor_value_info(x, TensorProto.FLOAT, [bad("batch"), 4]),
            helper.make_tensor_value_info(bad("c"), TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), w)],
        doc_string=ORDERS,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    relu = helper.make_node("Relu", ["a"], ["b"])
    function = helper.make_function("own", bad("Own"), ["a"], ["b"], [relu], opsets[:1])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[function])
    model.producer_name, model.producer_version = bad("maker"), bad("1")
    path = folder / "bad.onnx"
    onnx.save(model, path)
    return str(path)


@pytest.fixture
def network(tmp_path: Path) -> str:
    return model(tmp_path)


CPU = ("--devices", "cpu")


def test_the_model_is_as_bad_as_meant(network: str) -> None:
    out = call("info", network, *CPU).stdout
    for name in ("graph", "maker", "x", "y", "batch"):
        assert f"{name}{SEEN}" in out.replace("\n", ""), name
    assert "[red]x[/red]" in out  # no markup
    data = json.loads(call("info", network, "--json", *CPU).stdout)
    assert data["inputs"][0]["name"] == bad("x")  # DEL, too, which JSON leaves as it is


@pytest.mark.parametrize(
    "args",
    [
        ("--report",),
        ("--json",),
        ("--compare-with", "numpy"),
        ("--compare-with", "onnxruntime"),
        ("--profile", "tape.json", "--output-dir", "out"),
    ],
    ids=lambda args: args[0],
)
def test_runs_of_a_model(
    args: tuple[str, ...], network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("run", network, "--random-inputs", *CPU, *args)
    assert "own" in done.stdout
    if args[0] == "--profile":
        assert call("trace", "tape.json").stdout
        call("replay", "tape.json")


@pytest.mark.parametrize(
    "args",
    [
        ("plan", "FILE"),
        ("plan", "FILE", "--node", "*"),
        ("plan", "FILE", "--what-if", bad("-x")),
        ("plan", "FILE", "--place", f"{bad('p')}=cpu"),
        ("run", "FILE"),
        ("run", "FILE", "--random-inputs", "--input", f"{bad('no')}=a.npy"),
        ("run", "FILE", "--random-inputs", "--free-dim", f"{bad('no')}=2"),
        ("run", "FILE", "--random-inputs", "--place", f"{bad('no')}=cpu"),
        ("info", "FILE", "--place", f"{bad('no')}=cpu"),
        ("info", "FILE", bad("--option")),
        ("info", bad("FILE")),
        ("plan", f"{bad('module')}.py:thing"),
        ("trace", bad("FILE")),
        ("devices", bad("more")),
        (bad("command"),),
    ],
    ids=lambda args: " ".join(printable(each)[:12] for each in args),
)
def test_plans_and_errors(args: tuple[str, ...], network: str) -> None:
    done = CliRunner().invoke(main, [each.replace("FILE", network) for each in args], color=True)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert_printable(done.stdout)
    assert_printable(done.stderr)
    assert "owned" in done.output


def test_errors_of_a_file(tmp_path: Path) -> None:
    path = model(tmp_path, nodes=[helper.make_node(bad("Nothing"), [bad("y")], [bad("z")])])
    for command in ("info", "run", "plan"):
        done = CliRunner().invoke(main, [command, path], color=True)
        assert done.exit_code == 1 and "Nothing" in done.stderr
        assert_printable(done.stderr)


def test_language_models(tmp_path: Path) -> None:
    draft = Draft().with_key("general.architecture", ValueType.STRING, bad("llama"))
    for key in ("general.name", "tokenizer.ggml.model", "tokenizer.ggml.pre"):
        draft = draft.with_key(key, ValueType.STRING, bad("n"))
    draft = draft.with_tensor(bad("t"), (4,), gguf.GGMLQuantizationType.F32, bytes(16))
    path = tmp_path / "bad.gguf"
    path.write_bytes(draft.packed())
    out = call("info", str(path)).stdout
    assert out.count(SEEN) >= 4
    assert json.loads(call("info", str(path), "--json").stdout)["model"] == bad("n")
    for command in (
        ["info", "--ctx-size", "4"],
        ["embed", "--text", "a"],
        ["generate", "--prompt", "a"],
    ):
        assert "owned" in call(command[0], str(path), *command[1:], status=1).stderr
    truncated = tmp_path / "cut.gguf"
    truncated.write_bytes(draft.packed()[:-20])
    assert "owned" in call("info", str(truncated), status=1).stderr


def test_what_a_model_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_model(tmp_path)
    text = "\x1b]0;owned\x07\x1b[2Jred\r\n\u202e\tend"
    script = iter(text.encode())
    monkeypatch.setattr(vs.Sampling, "choose", lambda *_, **__: next(script))
    count = str(len(text.encode()))
    args = (
        "generate",
        str(tmp_path / "tiny.gguf"),
        "--prompt",
        "h",
        "--ctx-size",
        "64",
        *CPU,
        "-n",
    )
    out = call(*args, count).stdout
    assert out == f"{SEEN}red\n\\u202e\tend\n"
    script = iter(text.encode())
    assert json.loads(call(*args, count, "--json").stdout)["text"] == text


def test_templates_of_models(tmp_path: Path) -> None:
    build_model(tmp_path)
    path = tmp_path / "tiny.gguf"
    wrong = "{{ raise_exception('\\x1b]0;owned') }}"
    data = path.read_bytes()
    at = data.index(b"tokenizer.chat_template")
    size = int.from_bytes(data[at + 27 : at + 35], "little")
    text = wrong.encode().ljust(size)
    path.write_bytes(data[: at + 35] + text + data[at + 35 + size :])
    done = call("generate", str(path), "--prompt", "h", "--chat", *CPU, status=1)
    assert "\\u001b]0;owned" in done.stderr
    done = call("chat", str(path), *CPU, stdin="hello\n")
    assert "\\u001b]0;owned" in done.stderr


def test_tapes(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    simulated_tape().save(path)
    text = path.read_text("utf-8").replace("gpu:0", json.dumps(bad("gpu"))[1:-1])
    path.write_text(text.replace('"add"', json.dumps(bad("add"))), "utf-8")
    for command in (["trace"], ["trace", "--json"], ["replay"]):
        done = CliRunner().invoke(main, [command[0], str(path), *command[1:]], color=True)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        assert "owned" in done.output
        assert_printable(done.stdout)
        assert_printable(done.stderr)


def test_errors_of_nodes() -> None:
    reported = error_of(fields_of(vs.DeviceError(bad("[node] it failed"))), "node1")
    assert isinstance(reported, vs.DeviceError) and str(reported).startswith(
        f"[node] it failed{SEEN}"
    )


class Joined:
    """A cluster of one node, which gives its device and its links bad names."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.devices = [SimpleNamespace(spec=replace(spec, label=bad("card")))]

    def links(self) -> list[tuple[str, str, Link]]:
        return [(bad("a"), bad("b"), Link(1e9, 1e-6))]

    def close(self) -> None: ...


def test_devices_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = Joined(DeviceSpec("node1/null:0", "null"))
    monkeypatch.setattr(Cluster, "__init__", lambda *_: None)
    monkeypatch.setattr(Cluster, "join", lambda _: joined)
    args = ("cluster", "devices", "--worker", "h:1", "--credentials", "key")
    out = call(*args).stdout
    assert out.count(SEEN[:20]) == 3 and "[/red]" in out
    assert json.loads(call(*args, "--json").stdout)["devices"][0]["label"] == bad("card")


def test_processes_of_top(monkeypatch: pytest.MonkeyPatch) -> None:
    process = process_now(1, device_now(label=bad("card"), now=bad("op")))
    monkeypatch.setattr(Client, "wait_for_all", lambda *_: [process])
    monkeypatch.setattr(Client, "problems", [bad("problem")], raising=False)
    assert "owned" in call("top", "--once").stdout


def test_bars_show_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich's own orders may pass on a terminal, those in names and in what is printed not."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    stream = StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    with printable_streams(), inputs.progress_bars(quiet=False) as show:
        show(bad("file"), 1, 2)
        print(bad("printed"), file=sys.stderr)
        show(bad("file"), 2, 2)
    text = stream.getvalue()
    assert f"file{SEEN}" in text and f"printed{SEEN}" in text
    assert "\x1b[?25l" in text  # the bar hides the cursor
    for order in ("\x1b]", "\x07", "\x1b[2J", "\u202e", "\x9b", "\x08"):
        assert order not in text
    assert sys.stderr is stream


def test_tables_stay_straight() -> None:
    table = inputs.table("name", "number")
    table.add_row(bad("n"), "1")
    table.add_row("m", "22")
    with pytest.MonkeyPatch.context() as patch:
        stream = StringIO()
        patch.setattr(sys, "stdout", stream)
        PrintableConsole(width=200).print(table)
    rows = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert_printable(stream.getvalue())
    assert len({len(row) for row in rows}) == 1


def test_printable_streams_end_and_nest() -> None:
    out, err = sys.stdout, sys.stderr
    with printable_streams():
        inner = sys.stdout
        with printable_streams():
            guard_streams()
            assert sys.stdout is inner is not out
        assert not hasattr(sys.stdout, "buffer")
    assert (sys.stdout, sys.stderr) == (out, err)
    assert ProgressBars(DescriptionColumn(), quiet=True).disable


@needs_posix
def test_tracebacks_are_printable() -> None:
    """An error that nobody foresaw is printed by Python, when the command is over."""
    program = (
        "import sys; from vksched import __main__, cli; sys.argv[1:] = ['devices']\n"
        f"def fail(**_): raise RuntimeError({ORDERS!r})\n"
        "cli.main.get_command(None, 'devices').callback = fail\n"
        "__main__.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 1 and f"RuntimeError: {SEEN}" in done.stderr
    assert_printable(done.stderr)


def test_consoles_and_bars_are_built_in_one_place() -> None:
    """Those of rich take markup and orders."""
    makers = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "vksched").rglob("*.py")
        if re.search(r"from rich.* import .*\b(Console|Progress|print)\b", path.read_text("utf-8"))
    }
    assert makers == {"vksched/common/console.py"}
