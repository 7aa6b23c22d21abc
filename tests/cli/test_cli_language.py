"""`vksched info` of language models in GGUF files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import language
import numpy as np
import pytest
from gguf_files import Draft, ValueType
from gguf_models import Tiny, write
from language import convert
from test_cli import call
from test_cli_run import data_of
from test_gguf_reader import three, write_parts

TEXT = """\
tiny: qwen3, GGUF version 3
parameters: 1,458,944 (1.5 MiB, 8.52 bits each)
layers: 2 of width 256, 512 inside
heads: 8 of size 64, 2 for keys and values
context: 64 tokens; rotary base 10000, 32 dimensions
vocabulary: 61 tokens

type   tensors   parameters     bytes
─────────────────────────────────────
Q8_0        15    1,457,408   1.5 MiB
F32          9        1,536   6.0 KiB
"""


def test_a_model_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tiny = Tiny("qwen3", kind="Q8_0", head_norms=True, head_size=64, tied=True)
    write(tiny, tmp_path / "tiny.gguf", np.random.default_rng(0))
    status, out, err = call(capsys, "info", str(tmp_path / "tiny.gguf"))
    assert (status, err) == (0, "")
    assert [line.rstrip() for line in out.splitlines()] == [*TEXT.splitlines(), ""]
    data = data_of(capsys, "info", str(tmp_path / "tiny.gguf"))
    assert (data["model"], data["architecture"], data["version"]) == ("tiny", "qwen3", 3)
    assert data["parts"] == ["tiny.gguf"] and data["notes"] == []
    assert data["file_bytes"] == (tmp_path / "tiny.gguf").stat().st_size
    assert [row["type"] for row in data["types"]] == ["Q8_0", "F32"]
    assert sum(row["parameters"] for row in data["types"]) == data["parameters"]
    assert sum(row["bytes"] for row in data["types"]) == data["parameter_bytes"]
    assert data["hyper"]["heads"] == [8, 8] and data["hyper"]["rope"]["dims"] == 32
    assert data["tokenizer"] == {"model": "", "pre": "", "chat_template": False}


def test_parts_and_what_is_missing_are_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    drafts = three()
    drafts[0] = drafts[0].with_key("general.name", ValueType.STRING, "\x1b[2Jbad")
    drafts[0] = drafts[0].with_key("tokenizer.ggml.model", ValueType.STRING, "gpt2")
    paths = write_parts(tmp_path, drafts)
    _, out, _ = call(capsys, "info", str(paths[1]))
    assert "\\u001b[2Jbad: llama, GGUF version 3, in 3 parts" in out
    assert "tokenizer: gpt2, without a chat template" in out
    assert "parts: m-00001-of-00003.gguf m-00002-of-00003.gguf m-00003-of-00003.gguf" in out
    assert "note: [gguf] expected the key 'llama.block_count'" in out


def test_an_encoder_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    convert.write(language.load("bert"), tmp_path / "bert.gguf")
    status, out, err = call(capsys, "info", str(tmp_path / "bert.gguf"))
    assert (status, err) == (0, "") and "note: " not in out
    assert "context: 64 tokens; learned positions\npooling: mean\n" in out


@pytest.mark.parametrize("name", ["bloom", "mpt", "jais", "baichuan_13b"])
def test_alibi_is_reported(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    convert.write(language.load(name), tmp_path / "model.gguf")
    status, out, _ = call(capsys, "info", str(tmp_path / "model.gguf"))
    assert status == 0 and " tokens; ALiBi, bias up to " in out and "rotary" not in out


def test_a_list_of_architectures_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    key = "general.architecture"
    head = Draft().with_key(key, ValueType.ARRAY, [1, 2], ValueType.UINT32).packed()
    (tmp_path / "model.gguf").write_bytes(head)
    status, out, err = call(capsys, "info", str(tmp_path / "model.gguf"))
    assert (status, err) == (0, "") and "note: [gguf]" in out and key in out


def test_an_unknown_architecture_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    draft = Draft().with_key("general.architecture", ValueType.STRING, "new")
    for name, number in (
        *(("block_count", 2), ("embedding_length", 32), ("attention.head_count", 4)),
        *(("context_length", 4096), ("vocab_size", 7), ("attention.sliding_window", 16)),
        *(("expert_count", 8), ("expert_used_count", 2)),
    ):
        draft = draft.with_key(f"new.{name}", ValueType.UINT32, number)
    draft = draft.with_key("new.attention.layer_norm_epsilon", ValueType.FLOAT32, 1e-5)
    draft = draft.with_key("new.feed_forward_length", ValueType.ARRAY, [256, 512], ValueType.UINT32)
    draft = draft.with_key("new.rope.scaling.factor", ValueType.FLOAT32, 4)
    path = tmp_path / "new.gguf"
    path.write_bytes(draft.packed())
    _, out, _ = call(capsys, "info", str(path))
    for line in (
        "layers: 2 of width 32, 256 to 512 inside",
        "experts: 8, of which 2 are used",
        "context: 4,096 tokens, 16 seen; rotary base 10000, 8 dimensions, linear by 4",
        "note: [gguf] expected one of the architectures llama, ",
        ", got 'new'; ",
    ):
        assert line in out


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "plamo2",
            "a supported architecture, got 'plamo2' (PLaMo 2), which needs layers with a recurrent",
        ),
        ("new", "one of the architectures llama, "),
    ],
)
def test_an_unknown_architecture_is_what_is_reported_whatever_keys_it_lacks(
    name: str, why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(Draft().with_key("general.architecture", ValueType.STRING, name).packed())
    _, out, _ = call(capsys, "info", str(path))
    assert f"note: [gguf] expected {why}" in out and out.count("note: ") == 1
    for command in (("generate", "--prompt", "a"), ("embed", "--text", "a"), ("chat",)):
        status, _, err = call(capsys, command[0], str(path), *command[1:], "--devices", "cpu")
        assert status == 1 and f"[gguf] expected {why}" in err


def test_options_of_onnx_models_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(Draft().packed())
    status, _, err = call(capsys, "info", str(path), "--free-dim", "a=1")
    assert status == 2 and "--free-dim is for ONNX models" in err
    path.write_bytes(replace(Draft(), magic=b"GGML").packed())
    status, _, err = call(capsys, "info", str(path))
    assert status == 1 and "[gguf] expected a file that begins with b'GGUF'" in err
