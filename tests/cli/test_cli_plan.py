"""`vksched plan`: graphs from modules, files and functions, for machines that are here or not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from test_cli import call
from test_devices import SOFT, Show, plain_environment, raw, show

import vksched as vs
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.topology import Topology

__all__ = ["plain_environment", "show"]  # fixtures

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = str(ROOT / "examples" / "two_cards.py")

MODEL = """
import sys
from functools import partial
import numpy as np
import vksched as vs
from beside import WIDTH

x = vs.input("x", (8, WIDTH))
w = vs.weight(np.ones((WIDTH, 32), np.float32), name="mlp.w")
hidden = vs.matmul(x, w, name="mlp.hidden")
pair = [hidden, vs.relu(hidden, name="positive")]
nothing, number = None, 3


class Holder:
    y = hidden


def build():
    return {"probabilities": vs.softmax(hidden, name="last")}


def sized(batch):
    return vs.input("x", (batch,))


four = partial(sized, 4)


def broken():
    raise KeyError("no such layer\\nat all")


def leaves():
    sys.exit("usage: none")


def wrong_shape():
    return vs.input("a", (2,)) + vs.input("b", (3,))
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with a graph; what is put on the path is taken off again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "beside.py").write_text("WIDTH = 64\n")
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    return str(tmp_path / "model.py")


@pytest.fixture
def cards(tmp_path: Path) -> str:
    """A file with two cards that are not here."""
    topology = Topology((DeviceSpec("big", "vulkan", "Card A"), DeviceSpec("small", "vulkan")))
    path = tmp_path / "cards.json"
    path.write_text(json.dumps(topology.as_dict()))
    return str(path)


def test_default_devices_get_the_graph(
    capsys: pytest.CaptureFixture[str], show: Show, model: str
) -> None:
    show(raw(0, uuid="12345678" + "0" * 24))
    code, out, err = call(capsys, "plan", f"{model}:build", "--policy", "priority")
    assert code == 0 and err == ""
    assert "split 0 on vulkan:0" in out and "mlp.w: vulkan:0, weight" in out
    assert out.startswith("plan: policy priority, 2 nodes in 1 split")


@pytest.mark.parametrize(
    ("devices", "wanted"), [((), "cpu"), (("--devices", "vulkan:0"), "vulkan:0")]
)
def test_the_cpu_competes_unless_only_others_are_named(
    capsys: pytest.CaptureFixture[str],
    show: Show,
    model: str,
    devices: tuple[str, ...],
    wanted: str,
) -> None:
    show(raw(0))
    code, out, _ = call(capsys, "plan", f"{model}:build", *devices)
    assert code == 0 and f"split 0 on {wanted}" in out  # two small ops


def test_without_a_gpu_it_says_so_and_plans_for_numpy(
    capsys: pytest.CaptureFixture[str], show: Show, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vksched.runtime.vulkan.device_probe._warned", False)
    show(raw(0, **SOFT))
    code, out, err = call(capsys, "plan", f"{model}:hidden")
    assert code == 0 and "split 0 on cpu" in out
    assert err.count("\n") == 1 and "only software Vulkan devices" in err


def test_devices_by_name_uuid_and_twice(
    capsys: pytest.CaptureFixture[str], show: Show, model: str
) -> None:
    show(raw(0, uuid="12345678" + "0" * 24), raw(1, pci="0000:01:00.0"))
    args = ["plan", f"{model}:build", "--devices", "vulkan:1, vulkan:1234,vulkan:1,cpu", "--json"]
    args += ["--policy", "priority"]
    code, out, _ = call(capsys, *args, "--place", "last=vulkan:1234", "--copies", "2")
    data = json.loads(out)
    assert code == 0 and data["copies"] == 2
    assert [d["name"] for d in data["devices"]] == ["vulkan:1", "vulkan:0", "vulkan:1#2", "cpu"]
    where = {p["name"]: p["device"] for p in data["placements"]}
    assert where["mlp.hidden"] == "vulkan:1" and where["last"] == "vulkan:0"


def test_machine_of_a_file_need_not_be_here(
    capsys: pytest.CaptureFixture[str], show: Show, model: str, cards: str
) -> None:
    show(problem="nobody may ask the drivers")
    args = ["plan", f"{model}:build", "--topology", cards, "--place", "las?=small"]
    code, out, err = call(capsys, *args)
    assert code == 0 and err == ""
    assert "last: small, override: las? on small" in out and "Card A" in out


def test_machine_of_printed_json_is_the_same_again(
    capsys: pytest.CaptureFixture[str], model: str, cards: str, tmp_path: Path
) -> None:
    _, out, _ = call(capsys, "plan", f"{model}:pair", "--topology", cards, "--json")
    (tmp_path / "printed.json").write_text(out)
    again = str(tmp_path / "printed.json")
    assert call(capsys, "plan", f"{model}:pair", "--topology", again, "--json")[1] == out


def test_one_node_as_text_and_as_json(
    capsys: pytest.CaptureFixture[str], model: str, cards: str
) -> None:
    args = ["plan", f"{model}:build", "--topology", cards, "--node"]
    code, out, _ = call(capsys, *args, "mlp.w")
    assert code == 0 and out.splitlines()[2] == "  lives on: big (8.0 KiB)"
    code, out, _ = call(capsys, *args, "mlp.*", "--json")
    assert [about["name"] for about in json.loads(out)] == ["mlp.w", "mlp.hidden"]


CARDS = str(ROOT / "examples" / "data" / "two_cards.json")


def test_an_objective_is_asked_for_by_word_or_weights(capsys: pytest.CaptureFixture[str]) -> None:
    def asked(objective: str) -> dict[str, object]:
        args = (f"{EXAMPLE}:build", "--topology", CARDS, "--objective", objective, "--json")
        code, out, err = call(capsys, "plan", *args)
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert found["by_cost"]["objective"] == objective
        return dict(found)

    stream, mixed = asked("throughput"), asked("latency=1,memory=0.5")
    assert stream["copies"] == 2 and mixed["copies"] == 1
    periods = [found["by_cost"]["metrics"]["period_s"] for found in (stream, mixed)]  # type: ignore[index]
    assert periods[0] < periods[1]


def test_objectives_are_compared_in_a_table_and_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = ("plan", f"{EXAMPLE}:build", "--topology", CARDS, "--pareto")
    code, text, err = call(capsys, *args)
    assert (code, err) == (0, "") and text.startswith("candidate ")
    code, out, _ = call(capsys, *args, "--json")
    found = json.loads(out)
    picked = {word: c for c in found["candidates"] for word in c["picked_by"]}
    assert code == 0 and set(picked) == {"latency", "throughput", "memory", "energy"}
    assert not any(c["dominated"] for c in picked.values()) and found["watts_assumed"]
    assert picked["throughput"]["copies"] > 1 and picked["memory"]["copies"] == 1
    for c in found["candidates"]:
        assert c["name"] in text and c["latency_s"] > 0


def test_picture_is_written_and_reported(
    capsys: pytest.CaptureFixture[str], model: str, cards: str, tmp_path: Path
) -> None:
    target = tmp_path / "plan.svg"
    args = ["plan", f"{model}:Holder.y", "--topology", cards, "--svg", str(target)]
    code, out, err = call(capsys, *args)
    assert code == 0 and out.startswith("plan:") and err == f"wrote {target}\n"
    assert ET.parse(target).getroot().tag.endswith("svg")


def test_modules_are_found_from_the_current_folder(
    capsys: pytest.CaptureFixture[str], model: str, cards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(model).parent)
    monkeypatch.delitem(sys.modules, "model", raising=False)
    code, out, _ = call(capsys, "plan", "model:pair", "--topology", cards)
    assert code == 0 and "output_0" not in out and "positive" in out
    del sys.modules["model"]


@pytest.mark.parametrize(
    ("args", "code", "match"),
    [
        (["{}"], 2, "expected MODULE:ATTRIBUTE, FILE.py:ATTRIBUTE or MODEL.onnx, got"),
        (["{}:x", "--free-dim", "n=3"], 2, "--free-dim and --shape are for ONNX models"),
        (["no.onnx", "--devices", "cpu"], 1, "no.onnx"),
        (["{}:"], 2, "expected MODULE:ATTRIBUTE"),
        (
            ["{}:nope"],
            1,
            "model.py has no 'nope'; there is: x, w, hidden, Holder, build, sized, four",
        ),
        (["{}:hidden.nope"], 1, "has no 'hidden.nope'"),
        (["{}:number"], 1, "expected a Tensor, a sequence or a dict, got 3"),
        (["{}:nothing"], 1, "expected a Tensor, a sequence or a dict, got None"),
        (["{}:sized"], 1, "a function that needs no arguments, got sized: missing.*'batch'"),
        (["{}:broken"], 1, "cannot call broken: KeyError: .*no such layer"),
        (["{}:leaves"], 1, "cannot call leaves: SystemExit: usage"),
        (["{}:wrong_shape"], 1, "expected shapes that broadcast"),
        (["{}.py:x"], 1, "expected a Python file, there is none at .*model.py.py"),
        (["no.such.module:x"], 1, "cannot import no.such.module: ModuleNotFoundError"),
        (["{}:x", "--devices", "tpu"], 1, "expected vulkan:N"),
        (["{}:x", "--devices", "cpu", "--place", "y"], 2, "--place expects PATTERN=DEVICE"),
        (["{}:x", "--devices", "cpu", "--place", "y=cpu"], 1, "matches 'y', got none"),
        (["{}:x", "--devices", "cpu", "--place", "x=gpu"], 1, "one of cpu, got 'gpu'; try"),
        (["{}:x", "--devices", "cpu", "--copies", "0"], 1, "at least 1 copy"),
        (
            ["{}:x", "--devices", "cpu", "--pareto", "--copies", "0"],
            1,
            "at least 1 copy, got 0",
        ),
        (["{}:x", "--devices", "cpu", "--pareto", "--copies", "-1"], 1, "at least 1 copy"),
        (["{}:x", "--devices", "cpu", "--copies", "two"], 2, "not a valid integer"),
        (["{}:x", "--devices", "cpu", "--objective", "speed"], 1, "objective, got 'speed'; try"),
        (
            ["{}:x", "--devices", "cpu", "--policy", "priority", "--objective", "energy"],
            1,
            "the policy priority, which ignores objectives, got energy",
        ),
        (["{}:hidden", "--devices", "cpu", "--node", "mlp.v"], 1, "got none; close: mlp.w"),
        (["{}:x", "--devices", "cpu", "--svg", "x.png"], 1, "ends in .svg, got 'x.png'"),
        (["{}:x", "--topology", "{}"], 1, "cannot read .*model.py: JSONDecodeError"),
        (["{}:x", "--topology", "/no/such"], 1, "cannot read /no/such: No such file or directory"),
        (["{}:x", "--topology", "m.json", "--devices", "cpu"], 2, "exclude each other"),
        (["{}:x", "--pareto", "--what-if", "-a"], 2, "--pareto and --what-if exclude"),
        (["{}:x", "--pareto", "--node", "y"], 2, "--pareto and --node exclude"),
        (["{}:x", "--pareto", "--svg", "x.svg"], 2, "--pareto and --svg exclude"),
        (["{}:x", "--pareto", "--policy", "work-stealing"], 2, "--pareto and --policy exclude"),
        (["{}:x", "--pareto", "--objective", "energy"], 2, "and --objective exclude"),
        (["{}:x", "--node", "y", "--what-if", "-a"], 2, "--node and --what-if exclude each other"),
    ],
)
def test_bad_input_is_one_line(
    capsys: pytest.CaptureFixture[str], model: str, args: list[str], code: int, match: str
) -> None:
    got, out, err = call(capsys, "plan", *(a.replace("{}", model) for a in args))
    assert (got, out) == (code, "")
    last = err.splitlines()[-1]
    assert last.startswith("Error: ") and re.search(match, last), err
    if code == 1:
        assert err.count("\n") == 1


def test_file_that_is_no_machine_is_one_line(
    capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path
) -> None:
    (tmp_path / "m.json").write_text("[1]")
    code, _, err = call(capsys, "plan", f"{model}:x", "--topology", str(tmp_path / "m.json"))
    assert code == 1 and err.startswith("Error: [topology] expected {")


def test_nothing_is_opened(
    capsys: pytest.CaptureFixture[str], show: Show, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(vs.Scheduler, "__init__", refuse)
    monkeypatch.setattr("vksched.runtime.cpu.cpu_device.CpuDevice.__init__", refuse)
    show(raw(0))
    assert call(capsys, "plan", f"{model}:build", "--devices", "vulkan:0")[0] == 0


def test_example_as_a_user_runs_it(tmp_path: Path) -> None:
    topology = str(ROOT / "examples" / "data" / "two_cards.json")
    command = [sys.executable, "-m", "vksched", "plan", f"{EXAMPLE}:build", "--topology", topology]
    command += ["--policy", "priority"]
    got = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert got.stderr == "" and "in 2 splits, 1 transfer (" in got.stdout.splitlines()[0]
    assert "small is full: it would take" in got.stdout
