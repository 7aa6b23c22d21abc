"""`vksched plan --config`: what a config would do is told and drawn before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from test_cli import call

TRAIN = """
import vksched as vs


def build():
    x, target = vs.input("x", (256, 128)), vs.input("target", (256, 128))
    params, h = {}, x
    for i in range(2):
        with vs.signal(f"layer.{i}"):
            params[f"up{i}"] = vs.state(vs.init.kaiming_normal((128, 512), name=f"u{i}"), "up")
            params[f"down{i}"] = vs.state(vs.init.kaiming_normal((512, 128), name=f"d{i}"), "down")
            h = h + vs.relu(h @ params[f"up{i}"]) @ params[f"down{i}"]
    loss = vs.losses.mse(h, target)
    return loss, vs.optim.adamw(params, vs.grad(loss, params), lr=1e-3)
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "train.py"
    file.write_text(TRAIN, "utf-8")
    return f"{file}:build"


def config(folder: Path, text: str) -> str:
    file = folder / "train.yaml"
    file.write_text(text, "utf-8")
    return str(file)


def test_parts_are_where_the_config_wants_them(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "layer.0: {devices: [fast, small], shard: {axis: 0}}\nlayer.1: {devices: [small]}\n"
    drawn = tmp_path / "plan.svg"
    code, out, _ = call(
        capsys,
        *("plan", model, "--topology", "preset:two-cards", "--json", "--svg", str(drawn)),
        *("--config", config(tmp_path, text)),
    )
    assert code == 0
    plan = json.loads(out)
    where = {name: split["device"] for split in plan["splits"] for name in split["nodes"]}
    relus = {name: device for name, device in where.items() if ".relu" in name}
    assert relus == {
        "layer.0.relu@0": "fast",
        "layer.0.relu@1": "small",
        "layer.1.relu": "small",
    }
    assert ET.parse(drawn).getroot().tag.endswith("svg")


def test_auto_tells_what_it_found(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config(tmp_path, "layer.0: {devices: [fast, small], shard: auto}\n")
    code, out, _ = call(capsys, "plan", model, "--topology", "preset:two-cards", "--config", file)
    assert code == 0
    assert "shard: auto of layer.0: " in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layer.0: {devices: [small, faster], shard: auto}\n", "got faster"),
        ("layer.0: {device: [small]}\n", "line 1: expected devices, shard, backward"),
        (
            "layer.0: {devices: [fast, small], shard: {axis: 0, ratio: 4:1}}\n",
            "got 256 elements along axis 0 of x, which cannot be cut so",
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    file = config(tmp_path, text)
    code, out, err = call(capsys, "plan", model, "--topology", "preset:two-cards", "--config", file)
    assert (code, out) == (1, "")
    assert message in err
    assert "Traceback" not in err
