"""`vksched generate` and `vksched chat` with pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from gguf_files import ValueType
from test_chat import GREEDY
from test_cli import call
from test_cli_generate import ON_CPU
from test_cli_run import data_of
from vision import load, qwen
from vision.chats import chat_model, encoder, picture
from vision.projectors import projector

import vksched as vs
from vksched.cli import main
from vksched.importers.gguf.read.tensors import GgufTensor

pytestmark = pytest.mark.one_set


def test_pictures_of_files_are_seen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pictures need the extra 'vision'")
    golden, vision = encoder()
    model = chat_model(golden, tmp_path)
    (tmp_path / "mmproj.gguf").write_bytes(projector(golden).packed())
    files = [str(tmp_path / f"{seed}.png") for seed in (1, 2)]
    for seed, file in enumerate(files, 1):
        image.fromarray(picture(seed)).save(file)
    parts: list[object] = [{"type": "image", "image": picture(seed)} for seed in (1, 2)]
    question = {"role": "user", "content": [*parts, {"type": "text", "text": "hel"}]}
    with vs.Scheduler(["cpu"]) as sched:
        talk = vs.Chat(sched, model, projector=vision)
        answer = talk.generate([question], 3, GREEDY)
        text = "".join(answer)
        reply = {"role": "assistant", "content": text}
        second = "".join(
            talk.generate([question, reply, {"role": "user", "content": "he"}], 3, GREEDY)
        )
    own = (str(tmp_path / "gemma3.gguf"), "--mmproj", str(tmp_path / "mmproj.gguf"), "-n", "3")
    shown = [part for file in files for part in ("--image", file)]
    data = data_of(capsys, "generate", *own, "--chat", *shown, "--prompt", "hel", *ON_CPU)
    assert data["tokens"] == list(answer.tokens)
    assert data["prompt_tokens"] == len(answer.prompt)
    lines = f"/image {tmp_path / 'none.png'}\n/image {files[1]}\nhel\nhe\n"
    done = CliRunner().invoke(main, ["chat", *own, *shown[:2], *ON_CPU], input=lines)
    assert done.exit_code == 0, done.output
    assert [line for line in done.stdout.splitlines() if line] == [
        part for part in f"{text}\n{second}".splitlines() if part
    ]
    assert "expected a file that can be read" in done.stderr


def test_options_that_need_others_say_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    golden, _ = encoder()
    (tmp_path / "mmproj.gguf").write_bytes(projector(golden).packed())
    (tmp_path / "p.png").write_bytes(b"no picture")
    own = ("--mmproj", str(tmp_path / "mmproj.gguf"))
    shown = ("--image", str(tmp_path / "p.png"))
    for args, text in (
        (("generate", "m.gguf", "--prompt", "he", "--chat", *shown), "--image needs --mmproj"),
        (("generate", "m.gguf", "--prompt", "he", *own, *shown), "--image needs --chat"),
        (("generate", "m.gguf", "--prompt", "he", *own), "--mmproj needs --image"),
        (("chat", "m.gguf", *shown), "--image needs --mmproj"),
        (("chat", "m.gguf", *own, *shown), "p.png: [vision] expected a picture as PNG"),
        (
            ("chat", "m.gguf", *own, "--image", str(tmp_path / "q.png")),
            "file that can be read, got",
        ),
    ):
        code, _, err = call(capsys, *args)
        assert code and text in " ".join(err.split()), err


INFO = """\
mmproj: clip, GGUF version 3
parameters: 13,736 (53.7 KiB, 32 bits each)
encoder of pictures: 2 layers of width 24, 3 heads
pictures: 28 x 28 pixels, 4 tokens of width 32 each
language model: gemma3 of width 32, in another file

type   tensors   parameters      bytes
──────────────────────────────────────
F32         39       13,736   53.7 KiB

with a picture of 28 x 28 pixels:
"""


def test_a_projector_file_is_described_with_its_memory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GgufTensor, "to_numpy", lambda _: pytest.fail("a weight is read"))
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(projector(load()).packed())
    status, out, err = call(capsys, "info", str(path), "--devices", "cpu")
    assert (status, err) == (0, "")
    assert [line.rstrip() for line in out.splitlines()][:11] == INFO.splitlines()
    assert f"to use it: vksched chat MODEL.gguf --mmproj {path} --image PICTURE" in out
    card = {"name": "card", "memory_bytes": 1 << 20, "limits": {"storage_buffers": 8}}
    slow = {"name": "cpu", "kind": "cpu", "flops_per_s": 1e9, "bytes_per_s": 1e9}
    card |= {"flops_per_s": 1e12, "bytes_per_s": 2e10}
    topology = tmp_path / "machine.json"
    for memory_bytes, fits in ((1 << 20, True), (1000, False)):
        slow["memory_bytes"] = card["memory_bytes"] = memory_bytes
        topology.write_text(json.dumps({"devices": [card, slow]}))
        data = data_of(capsys, "info", str(path), "--topology", str(topology))
        assert data["projector"]["language_models"] == ["gemma3"]
        assert (data["projector"]["tokens"], data["projector"]["token_width"]) == (4, 32)
        assert (data["memory"]["why_not"] is None) is fits
        if fits:
            (held,) = data["memory"]["devices"]
            assert held["device"] == "card" and held["capacity_bytes"] == 1 << 20
            assert held["weight_bytes"] == pytest.approx(data["parameter_bytes"], rel=0.03)
            assert held["total_bytes"] == held["weight_bytes"] + held["work_bytes"]
            assert held["work_bytes"] > 4 * 3 * 28 * 28
        else:
            assert data["memory"]["devices"] == []
            out = call(capsys, "info", str(path), "--topology", str(topology))[1]
            assert "it does not fit: [plan] expected at most 1000 bytes" in out
    status, _, err = call(capsys, "info", str(path), "--ctx-size", "9")
    assert status == 2 and "--ctx-size is for language models" in err


def test_projector_files_of_other_sizes_and_kinds_are_described(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(qwen.projector(qwen.load("qwen3vl")).packed())
    status, out, _ = call(capsys, "info", str(path), "--devices", "cpu")
    assert status == 0 and "language model: qwen3vl or qwen3vlmoe of width 32" in out
    assert "pixels, up to " in out and "tokens of width 96 each" in out
    other = projector(load())
    keys = tuple(key for key in other.keys if key.name != "clip.projector_type")
    other = replace(other, keys=keys).with_key("clip.projector_type", ValueType.STRING, "ldp")
    path.write_bytes(other.packed())
    status, out, _ = call(capsys, "info", str(path))
    assert status == 0 and "to use it" not in out
    assert "note: [gguf] key 'clip.projector_type': expected one of gemma3" in out
