"""`vksched generate` and `vksched chat` with pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from test_chat import GREEDY
from test_cli import call
from test_cli_generate import ON_CPU
from test_cli_run import data_of
from vision.chats import chat_model, encoder, picture
from vision.projectors import projector

import vksched as vs
from vksched.cli import main

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
