"""`vksched tune model.gguf`: the calls of a language model's steps, for a later chat."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import vulkan_names
from test_chat import build_model
from test_cli import call
from test_cli_run import data_of
from test_tuner import Opened, folder, opened

import vksched as vs
from vksched.engine.graph_cache import DeferredGraph
from vksched.tuning.tunable_calls import calls_of

__all__ = ["folder", "opened"]  # fixtures

CONTEXT = 40


def planned(
    sched: vs.Scheduler, step: DeferredGraph, placement: Any, *_: object, precision: Any
) -> Any:
    """Plan a step of a chat without compiling it."""
    outputs, updates = step.build()
    plan = sched.reserve(outputs, placement, updates=updates, precision=precision)
    return SimpleNamespace(plan=plan, disable_overflow_check=lambda: None)


@pytest.mark.parametrize(
    ("name", "cache_type"), list(zip(vulkan_names(), cycle((None, "f16")), strict=False))
)
def test_a_later_chat_finds_the_variants_of_its_calls(
    name: str,
    cache_type: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    opened: Opened,
) -> None:
    model, _ = build_model(tmp_path)
    options = ["--ctx-size", str(CONTEXT), *(["--cache-type", cache_type] if cache_type else [])]
    tune = "tune", str(tmp_path / "tiny.gguf"), "--devices", name, *options
    (device,) = data_of(capsys, *tune, "--json")["devices"]
    best = {found["key"]: found["best"] for found in device["calls"]}
    assert device["measured"] == len(best) == len(opened.keys) and device["left"] == []
    with vs.Scheduler([name]) as sched:
        # SwiftShader compiles the slowest variants for many seconds
        monkeypatch.setattr(sched, "compile", partial(planned, sched))
        chat = vs.Chat(sched, model, CONTEXT, cache_type=cache_type, precision="auto")
        chat.prepare()
        plans = {size.tokens: run.plan for size, run in chat._steps.steps.runs.items()}
        assert sorted(plans) == [1, 8, 32]
        wanted: dict[str, str] = {}
        for plan in plans.values():
            for key, tunable in calls_of(plan.graph, sched.devices[0].spec).items():
                wanted[key] = tunable.names[-1]
                assert plan.topology.devices[0].limits.tuned[key] == tunable.names[-1]
        assert wanted and wanted == best
        of_a_token = calls_of(plans[1].graph, sched.devices[0].spec)
        assert {*opened.keys[: len(of_a_token)]} == {*of_a_token}, "the short calls come first"
    assert ", 0 left" not in (out := call(capsys, *tune)[1])
    assert f"0 calls measured, {len(best)} known before" in out


def test_a_part_is_measured_in_the_next_call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, opened: Opened
) -> None:
    build_model(tmp_path)
    tune = "tune", str(tmp_path / "tiny.gguf"), "--devices", vulkan_names()[0], "--ctx-size", "8"
    (device,) = data_of(capsys, *tune, "--time-budget", "1e-9", "--json")["devices"]
    assert device["measured"] == 0 and device["left"] and not opened.keys
    (again,) = data_of(capsys, *tune, "--json")["devices"]
    assert again["measured"] == len(device["left"]) and not again["left"]


@pytest.mark.parametrize(
    ("mode", "code"), [("mixed", 0), ("auto", 0), ("x=mixed", 2), ("float64", 2)]
)
def test_the_precision_is_one_of_a_chat(
    mode: str, code: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, opened: Opened
) -> None:
    build_model(tmp_path)
    name = next(iter(vulkan_names()))
    file, options = str(tmp_path / "tiny.gguf"), ("--devices", name, "--ctx-size", "8")
    found, _, err = call(capsys, "tune", file, *options, "--precision", mode)
    assert found == code
    assert ("of a GGUF model expects" in err) == bool(code)
    products = [key for key in opened.keys if key.startswith(("matmul", "merged"))]
    assert all(("precision='mixed'" in key) == (mode == "mixed") for key in products)


@pytest.mark.parametrize("modes", [("mixed", "int8"), ("head.*=mixed", "float32"), ("auto",) * 2])
def test_several_precisions_are_refused(
    modes: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The last one would count, and the others would have no effect."""
    build_model(tmp_path)
    options = [word for mode in modes for word in ("--precision", mode)]
    found, _, err = call(capsys, "tune", str(tmp_path / "tiny.gguf"), *options)
    assert found == 2 and f"expects one mode, got {' and '.join(modes)}" in " ".join(err.split())


def test_the_help_names_the_precisions_of_a_chat(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "tune", "--help")
    text = " ".join(out.split())
    assert "[default: float32; auto for a GGUF model]" in text and "fast: also int8" in text
