"""`vksched generate` and `vksched chat`."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import vulkan_names
from test_chat import GREEDY, PROMPT, build_model
from test_cli import call
from test_cli_run import data_of

import vksched as vs
from vksched.cli import main
from vksched.common.formatting import printable
from vksched.generation.chat import Chat, TextStream
from vksched.generation.conversation.prompt_encoder import EncodedPrompt, PromptEncoder
from vksched.importers import load_gguf

ON_CPU = ("--devices", "cpu", "--temp", "0")


def answer_of(folder: Path, prompt: object, n: int) -> tuple[str, TextStream]:
    model, _ = build_model(folder)
    with vs.Scheduler(["cpu"]) as sched:
        answer = vs.Chat(sched, model).generate(prompt, n, GREEDY)  # type: ignore[arg-type]
        return "".join(answer), answer


def test_a_text_is_gone_on_with(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, answer = answer_of(tmp_path, PROMPT, 5)
    file = str(tmp_path / "tiny.gguf")
    data = data_of(capsys, "generate", file, "--prompt", PROMPT, "-n", "5", "--seed", "7", *ON_CPU)
    assert data.pop("seconds") > 0
    assert data == {
        "model": "tiny",
        "prompt_tokens": len(answer.prompt),
        "tokens": list(answer.tokens),
        "text": text,
        "finish_reason": "length",
        "seed": 7,
    }
    code, out, err = call(capsys, "generate", file, "--prompt", PROMPT, "-n", "5", *ON_CPU)
    assert code == 0 and out == printable(text) + "\n"
    assert err.splitlines() == [
        "[tiny: 1 layer on cpu]",
        "[stopped after 5 tokens; -n sets how many]",
    ]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hey"}]
    _, answer = answer_of(tmp_path, messages, 2)
    args = ("--prompt", "hey", "--chat", "--system", "s", "-n", "2")
    data = data_of(capsys, "generate", file, *args, *ON_CPU)
    assert data["tokens"] == list(answer.tokens) and data["prompt_tokens"] == len(answer.prompt)
    *_, err = call(capsys, "generate", file, "--prompt", "h", "-n", "9", "--ctx-size", "4", *ON_CPU)
    assert "the context of 4 tokens is full; --ctx-size" in err


@pytest.mark.parametrize(
    "options", [("--ngram",), ("--draft",), ("--draft", "--ngram", "--draft-device", "cpu")]
)
def test_guesses_do_not_change_the_text(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, answer = answer_of(tmp_path, PROMPT * 2, 8)
    file = str(tmp_path / "tiny.gguf")
    args = [part for each in options for part in ([each, file] if each == "--draft" else [each])]
    prompt = ("--prompt", PROMPT * 2, "-n", "8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vs.VkschedWarning)  # float32 matrices: nothing is guessed
        data = data_of(capsys, "generate", file, *prompt, *args, *ON_CPU)
    assert data["tokens"] == list(answer.tokens)


@pytest.mark.skipif(len(vulkan_names()) < 2, reason="fewer than two Vulkan devices here")
def test_guessed_speeds_of_two_cards_are_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_model(tmp_path)
    file, names = str(tmp_path / "tiny.gguf"), vulkan_names()[:2]
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path / "cache"))
    args = ("generate", file, "--prompt", PROMPT, "-n", "1", "--devices")
    for devices, reported in ((",".join(names), True), (names[0], False)):
        *_, err = call(capsys, *args, devices)
        assert ("speeds are guesses, try vksched calibrate]" in err.splitlines()[0]) == reported


def test_experts_on_the_cpu_are_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_model(tmp_path)
    monkeypatch.setattr(Chat, "n_cpu_moe", 3)
    *_, err = call(
        capsys, "generate", str(tmp_path / "tiny.gguf"), "--prompt", "h", "-n", "1", *ON_CPU
    )
    assert err.splitlines()[0] == "[tiny: 1 layer on cpu, the experts of 3 on the CPU]"


def test_scores_that_are_no_numbers_are_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    build_model(tmp_path)
    path = tmp_path / "tiny.gguf"
    norm = load_gguf(path).file.tensors["output_norm.weight"].data
    nan = np.full(len(norm) // 4, np.nan, np.float32).tobytes()
    path.write_bytes(path.read_bytes().replace(bytes(norm), nan))
    code, _, err = call(capsys, "generate", str(path), "--prompt", "h", "-n", "2", *ON_CPU)
    assert code == 1
    assert err.splitlines()[1].startswith("Error: [sampling] expected 1-D logits without NaN")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("--prompt", "h", "--top-p", "2"), ("[sampling] expected top_p from 0 to 1, got 2",)),
        (("--prompt", "h", "--system", "s"), ("--system needs --chat.",)),
        (("--prompt", "h", "--draft-device", "cpu"), ("--draft-device needs --draft.",)),
        (("--prompt", "h", "--ctx-size", "65"), ("a cache of 1 to 64 tokens", "got 65; try fewer")),
        (("--prompt", "h" * 70), ("a prompt of 1 to 64 tokens, got 70",)),
        ((), ("Missing option '--prompt' or '--prompt-file'",)),
        (("--prompt", "h", "--prompt-file", "f"), ("--prompt and --prompt-file exclude",)),
        (
            ("--prompt-file", "missing.txt"),
            (
                "[prompt] expected a file",
                "missing.txt: No such",
            ),
        ),
        (("--prompt", ""), ("a prompt of 1 to 64 tokens, got 0; try a text that is not empty",)),
        (("--prompt", "h", "--stop", ""), ("expected stop as texts of at least one character",)),
        (("--prompt", "h", "--presence-penalty", "3"), ("presence_penalty from -2 to 2, got 3",)),
    ],
)
def test_errors_are_a_line(
    args: tuple[str, ...],
    parts: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    build_model(tmp_path)
    code, out, err = call(capsys, "generate", str(tmp_path / "tiny.gguf"), *ON_CPU, *args)
    assert code in (1, 2) and out == "" and "Traceback" not in err
    for part in parts:
        assert part in err


def test_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_model(tmp_path)
    script = iter([*b"yes\x1b", 260, *b"no", KeyboardInterrupt(), *b"ok", 260, 260])
    prompts: list[str] = []
    encode = PromptEncoder.encode_prompt

    def choose(*_: object, **__: object) -> int:
        token = next(script)
        if isinstance(token, KeyboardInterrupt):
            raise token
        return token

    def noted(self: PromptEncoder, prompt: object) -> EncodedPrompt:
        prompts.append(self.renderer.render(prompt))  # type: ignore[arg-type]
        return encode(self, prompt)  # type: ignore[arg-type]

    monkeypatch.setattr(vs.Sampling, "choose", choose)
    monkeypatch.setattr(PromptEncoder, "encode_prompt", noted)
    args = ["chat", str(tmp_path / "tiny.gguf"), "--devices", "cpu"]
    lines = ["a", "", "b", "c" * 70, "d", "/new", "e", "/exit", "never"]
    done = CliRunner().invoke(main, args, input="\n".join(lines))
    assert done.exit_code == 0, done.output
    assert done.stdout == "yes\\u001b\nno\nok\n\n"
    assert "[stopped]" in done.stderr and "a prompt of 1 to 64 tokens" in done.stderr

    def turn(role: str, text: str) -> str:
        return f"<|im_start|>{role}\n{text}<|im_end|>"

    begun = turn("user", "a")
    assert prompts[0] == begun + "<|im_start|>"
    begun += turn("assistant", "yes\x1b") + turn("user", "b")
    assert prompts[1] == begun + "<|im_start|>"
    assert prompts[3] == begun + turn("assistant", "no") + turn("user", "d") + "<|im_start|>"
    assert prompts[4] == turn("user", "e") + "<|im_start|>"


def test_a_conversation_ends_with_its_input(tmp_path: Path) -> None:
    build_model(tmp_path)
    done = CliRunner().invoke(main, ["chat", str(tmp_path / "tiny.gguf"), *ON_CPU], input="")
    assert (done.exit_code, done.stdout) == (0, "\n")


def json_of(file: Path, *args: str, stdin: bytes = b"") -> dict[str, object]:
    command = ["generate", str(file), *args, "-n", "4", "--json", *ON_CPU]
    done = CliRunner().invoke(main, command, input=stdin)
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_prompts_come_from_files_and_from_standard_input(tmp_path: Path) -> None:
    build_model(tmp_path)
    file, prompt = tmp_path / "tiny.gguf", "hey\nhé "
    direct = json_of(file, "--prompt", prompt)
    (tmp_path / "prompt.txt").write_bytes(prompt.encode() + b"\n")
    for found in (
        json_of(file, "--prompt", "-", stdin=prompt.encode()),
        json_of(file, "--prompt", "-", stdin=prompt.encode() + b"\n"),
        json_of(file, "--prompt-file", "-", stdin=prompt.replace("\n", "\r\n").encode()),
        json_of(file, "--prompt-file", str(tmp_path / "prompt.txt")),
    ):
        assert (found["prompt_tokens"], found["text"]) == (direct["prompt_tokens"], direct["text"])
    chats = json_of(file, "--chat", "--prompt", "-", stdin=b"hey")
    assert chats["text"] == json_of(file, "--chat", "--prompt", "hey")["text"]


def test_prompts_that_are_not_utf_8_are_a_line(tmp_path: Path) -> None:
    build_model(tmp_path)
    command = ["generate", str(tmp_path / "tiny.gguf"), "--prompt", "-", *ON_CPU]
    done = CliRunner().invoke(main, command, input=b"a\xff")
    assert done.exit_code == 1 and "expected UTF-8 in standard input, got the byte 0xff at 1" in (
        done.output
    )


def test_stop_strings_end_the_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, _ = answer_of(tmp_path, PROMPT, 12)
    args = ("generate", str(tmp_path / "tiny.gguf"), "--prompt", PROMPT, "-n", "12", *ON_CPU)
    stops = ("--stop", "not there", "--stop", text[3:5])
    data = data_of(capsys, *args, *stops)
    assert data["text"] == text[: text.find(text[3:5])] and data["finish_reason"] == "stop"


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_ends_the_text(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_model(tmp_path)
    script = iter([*b"yes", KeyboardInterrupt()])

    def choose(*_: object, **__: object) -> int:
        token = next(script)
        if isinstance(token, KeyboardInterrupt):
            raise token
        return token

    monkeypatch.setattr(vs.Sampling, "choose", choose)
    args = ["generate", str(tmp_path / "tiny.gguf"), "--prompt", "h", *ON_CPU]
    done = CliRunner().invoke(main, [*args, *["--json"] * as_json])
    assert done.exit_code == 130
    if as_json:
        data = json.loads(done.stdout)
        assert (data["text"], data["finish_reason"]) == ("yes", "closed")
        assert data["tokens"] == list(b"yes")
    else:
        assert done.stdout == "yes\n" and "[stopped]" in done.stderr
