"""Model files that both computers have: nodes read weights there, and nobody sends them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cluster_nodes import StartedWorkers, on_cpus
from gguf_models import Tiny, write
from onnx import numpy_helper, parser
from test_chat import GREEDY, PROMPT, tokens_of_file

import vksched as vs
from vksched.distributed.wire.channel import Channel

KINDS = ("F32", "Q4_K")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each weight that was sent."""
    out: list[int] = []
    ask = Channel.ask

    def noting(
        self: Channel,
        kind: str,
        fields: Any,
        payload: Sequence[Any] = (),
        *more: Any,
        **named: Any,
    ) -> Any:
        pieces = list(payload)
        if kind == "weight":
            out.append(sum(len(memoryview(piece).cast("B")) for piece in pieces))
        return ask(self, kind, fields, pieces, *more, **named)

    monkeypatch.setattr(Channel, "ask", noting)
    return out


def write_model(path: Path, kind: str = "Q4_K", seed: int = 0) -> int:
    """Write a model; returns the bytes of its constants: tables of angles, positions in a chunk of
    8 tokens, a mask of two, and two numbers.
    """
    path.parent.mkdir(exist_ok=True)
    tiny = Tiny(kind=kind, layers=4, vocabulary=261)
    write(tiny, path, np.random.default_rng(seed), tokens_of_file())
    return 2 * 4 * tiny.rotary_size // 2 * tiny.context + 4 * 8 + 2 + 2 * 4


def answer(path: Path, folder: Path, models: Sequence[Path]) -> list[int]:
    """Return the tokens of an answer of two nodes. folder: folder of their caches."""
    nodes = StartedWorkers(folder, models)
    try:
        with on_cpus([nodes("node1"), nodes("node2")]) as sched:
            model = vs.load(path)
            chat = vs.Chat(sched, model, placement={"*": "node1/cpu", "blk.[01].*": "node2/cpu"})
            built = chat.generate(PROMPT, 4, GREEDY)
            list(built)
            assert {"node1/cpu", "node2/cpu"} <= chat.layers.keys()
            return list(built.tokens)
    finally:
        nodes.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_over_two_nodes_sends_no_weight_of_a_file_that_both_have(
    tmp_path: Path, sent: list[int], kind: str
) -> None:
    path = tmp_path / "models" / "tiny.gguf"
    besides = write_model(path, kind)
    want = answer(path, tmp_path / "asks", [])
    assert sum(sent) > 10**6
    for cache in ("one", "restarted, and empty"):
        sent.clear()
        assert answer(path, tmp_path / cache, [path.parent]) == want
        assert sum(sent) == besides, "constants, which no file holds"


def test_a_file_that_is_a_copy_elsewhere_is_found_by_the_end_of_its_path(
    tmp_path: Path, sent: list[int]
) -> None:
    path, copy = tmp_path / "here" / "tiny.gguf", tmp_path / "there" / "deep" / "here" / "tiny.gguf"
    besides = write_model(path)
    copy.parent.mkdir(parents=True)
    shutil.copy(path, copy)
    answer(path, tmp_path / "cache", [tmp_path / "there" / "deep"])
    assert sum(sent) == besides


def test_weights_are_sent_where_the_file_of_a_node_has_others(
    tmp_path: Path, sent: list[int]
) -> None:
    path, there = tmp_path / "here" / "tiny.gguf", tmp_path / "there" / "tiny.gguf"
    write_model(path)
    write_model(there, seed=1)
    assert path.stat().st_size == there.stat().st_size
    want = answer(path, tmp_path / "1", [])
    before = sum(sent)
    sent.clear()
    assert answer(path, tmp_path / "2", [there.parent]) == want
    assert sum(sent) == before


def test_external_data_of_an_onnx_model_is_read_there_too(
    tmp_path: Path, sent: list[int], rng: np.random.Generator
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    weights = {
        name: rng.standard_normal((256, 256), np.float32) / 16 for name in ("first", "second")
    }
    text = "g (float[N, 256] x) => (float[N, 256] y) { h = MatMul(x, first) y = MatMul(h, second) }"
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>\n' + text)
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data")
    values = rng.standard_normal((4, 256), np.float32)
    results = []
    for models in ([], [folder]):
        sent.clear()
        nodes = StartedWorkers(tmp_path / str(len(models)), models)
        try:
            with on_cpus([nodes("node1")]) as sched:
                run = sched.compile(vs.load(folder / "m.onnx"), {"*": "node1/cpu"})
                results.append(run(x=values)["y"])
        finally:
            nodes.close()
        assert sum(sent) == (0 if models else 2 * 256 * 256 * 4)
    assert np.array_equal(*results)
