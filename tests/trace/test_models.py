"""Tapes of whole programs: a language model that answers, a model of stages, a trained step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from gguf_models import Tiny, write
from onnx import parser
from tiny_vocabularies import byte_pair
from traced import X, null_devices

import vksched as vs
from vksched.engine.replay.replay_tape import Replay, replay_tape
from vksched.importers.gguf.model import LanguageModel


def replayed(tape: vs.Tape, path: Path) -> tuple[vs.TapeFile, Replay]:
    tape.save(path)
    saved = vs.load_tape(path)
    return saved, replay_tape(saved)


def test_an_answer_is_several_graphs_on_one_tape(devices: list[str], tmp_path: Path) -> None:
    rng, tape = np.random.default_rng(0), vs.Tape()
    write(Tiny(layers=2, vocabulary=261), tmp_path / "tiny.gguf", rng, {**byte_pair()})
    model = vs.load(tmp_path / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    with vs.Scheduler(devices, trace=tape) as sched:
        chat = vs.Chat(sched, model)
        text = "".join(chat.generate("hello, hey", 6, vs.Sampling(temperature=0)))
    saved, found = replayed(tape, tmp_path / "t.json")
    assert found.difference is None and found.plans > 1 and found.runs >= len(text) > 0
    assert any(graph["states"] for graph in saved.graphs)


def test_a_trained_step_and_its_evaluation_share_a_tape(devices: list[str], tmp_path: Path) -> None:
    rng, tape = np.random.default_rng(0), vs.Tape()
    w = vs.state(rng.standard_normal((8, 8)).astype(np.float32), "w")
    x = vs.input("x", X.shape)
    loss = vs.reduce_mean(vs.square(vs.relu(x @ w) - 1.0))
    with vs.Scheduler(devices, trace=tape) as sched:
        params = {"w": w}
        step = sched.compile(loss, updates=vs.optim.adam(params, vs.grad(loss, params), 0.05))
        score = sched.compile(vs.relu(x @ w))
        losses = [float(step(x=X)) for _ in range(3)]
        score(x=X)
    assert losses[2] < losses[0]
    saved, found = replayed(tape, tmp_path / "t.json")
    assert found.difference is None and (found.plans, found.runs) == (2, 4)
    assert saved.plans[1]["asked"]["resident"]  # the state was there by then


def test_stages_of_a_model_and_what_the_host_does_between(tmp_path: Path) -> None:
    text = """g (float[N] x) => (float[M] z) {
      y = Relu(x)
      u = Unique(y)
      z = Exp(u)
    }"""
    path = tmp_path / "stages.onnx"
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'), str(path))
    tape = vs.Tape()
    with vs.Scheduler(null_devices(), trace=tape) as sched, pytest.warns(vs.VkschedWarning):
        run = sched.compile(vs.load(path))
        other = sched.compile(vs.input("q", (4,)) + 1.0)
        run(x=np.float32([1, 2, 2]))
        other(q=np.zeros(4, np.float32))
        mine = run.trace
    assert len(mine.select("run")) == 2 == len(tape.select("run")) - 1
    (step,) = mine.select("host_op")
    assert step.fields["op"] == "onnx.Unique" and step.plan == mine.select("run")[0].plan
    _, found = replayed(tape, tmp_path / "t.json")
    assert found.difference is None and found.runs == 3


def test_a_node_that_only_the_host_runs(tmp_path: Path) -> None:
    text = "g (float[3,3] x) => (float d) {\n y = Relu(x)\n d = Det(y)\n }"
    path = tmp_path / "det.onnx"
    onnx.save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'), str(path))
    tape = vs.Tape()
    with vs.Scheduler(null_devices(), trace=tape) as sched:
        sched.compile(vs.load(path))(x=np.eye(3, dtype=np.float32))
    (fallback,) = tape.select("fallback")
    assert fallback.fields["op"] == "onnx.Det"
    saved, found = replayed(tape, tmp_path / "t.json")
    assert found.difference is None
    assert "onnx.Det" in [node["op"] for node in saved.graphs[0]["nodes"]]
