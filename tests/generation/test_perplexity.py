"""The accuracy of a precision mode: perplexity and KL divergence, next to those of numpy."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Scheds
from gguf_models import Tiny, logits_of, write
from test_chat import TEMPLATE
from tiny_vocabularies import byte_pair

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import DTypeError, ModelFormatError, PlanError, ShapeError, VkschedError
from vksched.generation import perplexity as module
from vksched.generation.overflow import SCALED
from vksched.generation.perplexity import perplexity
from vksched.importers.gguf.model import LanguageModel

TINY = Tiny(layers=1, vocabulary=261)
WORDS = "hello, hey: the text of a test that says little, and says it at some length. "
CTX = 20
MODES = ("mixed", "float16", "bfloat16")


def build_model(
    folder: Path, tiny: Tiny = TINY, bos: bool = False
) -> tuple[LanguageModel, dict[str, NDArray]]:
    tokens: dict[str, object] = {**byte_pair(), "tokenizer.chat_template": TEMPLATE}
    weights = write(tiny, folder / "tiny.gguf", np.random.default_rng(0), tokens)
    model = vs.load(folder / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    if bos:
        model.tokenizer.vocabulary.roles["bos"] = 5
        model.tokenizer._before = [5]
    return model, weights


def chances(logits: NDArray) -> NDArray:
    """Return the probabilities of rows, in extended precision."""
    powers = np.exp(logits.astype(np.longdouble))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def chunks_of(tokens: list[int], begin: list[int], ctx: int = CTX) -> list[list[int]]:
    size = ctx - len(begin)
    return [begin + tokens[at : at + size] for at in range(0, len(tokens), size)]


def test_the_perplexity_is_that_of_numpy(scheds: Scheds, tmp_path: Path) -> None:
    model, weights = build_model(tmp_path)
    tokens = model.tokenizer.encode(WORDS)
    assert len(tokens) % CTX > 1 and len(tokens) > 2 * CTX
    likely: list[float] = []
    for chunk in chunks_of(tokens, []):
        p = chances(logits_of(TINY, weights, np.array(chunk)))
        likely += [float(p[at, token]) for at, token in enumerate(chunk[1:])]
    wanted = np.exp(-np.mean(np.log(likely)))
    found = perplexity(scheds[0], model, WORDS, precision="float32", ctx=CTX)
    assert found.tokens == len(likely)
    assert found.perplexity == pytest.approx(wanted, rel=1e-4)
    assert found.reference_perplexity == pytest.approx(wanted, rel=1e-4)
    assert found.same_top == 1 and found.max_kl < 1e-9 and found.notes == ()


@pytest.mark.parametrize("precision", MODES)
def test_the_divergence_is_that_of_numpy(precision: str, tmp_path: Path) -> None:
    """Logits of whole chunks, without a cache, and the definition of the divergence."""
    model, _ = build_model(tmp_path, bos=precision == "mixed")
    begin = [5] if precision == "mixed" else []
    kl: list[float] = []
    same: list[bool] = []
    loss: list[float] = []
    with vs.Scheduler(["cpu"]) as sched:
        for chunk in chunks_of(model.tokenizer.encode(WORDS), begin):
            ids = vs.input("ids", (1, len(chunk)), "int32")
            p, q = (
                chances(sched.compile(model.logits(ids), precision=m)(ids=np.int32([chunk]))[0])
                for m in ("float32", precision)
            )
            for at, token in enumerate(chunk[1:]):
                kl.append(float((p[at] * np.log(p[at] / q[at])).sum()))
                same.append(p[at].argmax() == q[at].argmax())
                loss.append(-float(np.log(q[at, token])))
        found = perplexity(sched, model, WORDS, precision=precision, ctx=CTX)
    assert found.tokens == len(kl) and found.precision == precision
    assert found.mean_kl == pytest.approx(np.mean(kl), rel=0.02)
    assert found.max_kl == pytest.approx(max(kl), rel=0.05)
    assert found.same_top == np.mean(same)
    assert found.perplexity == pytest.approx(np.exp(np.mean(loss)), rel=1e-4)
    assert found.perplexity_change == pytest.approx(
        found.perplexity / found.reference_perplexity - 1
    )


def test_modes_and_caches_differ_as_they_should(tmp_path: Path) -> None:
    model, _ = build_model(tmp_path)
    with vs.Scheduler(["cpu"]) as sched:
        kl = {
            (mode, kind): perplexity(
                sched, model, WORDS, precision=mode, cache_type=kind, ctx=CTX
            ).mean_kl
            for mode in ("float32", "mixed", "bfloat16")
            for kind in ("f32", "f16", "q8_0")
        }
        default = {mode: perplexity(sched, model, WORDS, precision=mode, ctx=CTX) for mode, _ in kl}
    assert kl["float32", "f32"] == 0  # one graph
    assert 1e-12 < kl["mixed", "f32"] < 0.1 * kl["bfloat16", "f32"]
    assert 1e-12 < kl["float32", "f16"] < 0.1 * kl["float32", "q8_0"]
    assert kl["mixed", "f32"] == kl["mixed", "f16"] < 0.1 * kl["mixed", "q8_0"]
    for mode, kind in (("float32", "f32"), ("mixed", "f16"), ("bfloat16", "f32")):
        assert default[mode].cache_type == kind and default[mode].mean_kl == kl[mode, kind]


def test_the_cache_rounds_keys_and_values_of_the_step(tmp_path: Path) -> None:
    """As numpy of keys and values that numpy rounds, with the whole chunk in one step."""
    model, weights = build_model(tmp_path)
    kl: list[float] = []
    for chunk in chunks_of(model.tokenizer.encode(WORDS), []):
        ids = np.array(chunk)
        p = chances(logits_of(TINY, weights, ids))
        q = chances(logits_of(TINY, weights, ids, lambda x: x.astype(np.float16).astype(x.dtype)))
        kl += [float(each) for each in (p * np.log(p / q)).sum(-1)[:-1]]
    with vs.Scheduler(["cpu"]) as sched:
        found = perplexity(sched, model, WORDS, precision="float32", cache_type="f16", ctx=CTX)
    assert found.mean_kl == pytest.approx(np.mean(kl), rel=0.05)
    assert found.max_kl == pytest.approx(max(kl), rel=0.1)


@pytest.mark.parametrize("tokens", [19, 20])
def test_steps_are_long_for_any_length(
    tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _ = build_model(tmp_path)
    model.hyper = replace(model.hyper, context=tokens + 1)
    monkeypatch.setattr(module, "STEP", 7)
    options: Any = {"precision": "float32", "ctx": tokens + 1, "max_tokens": tokens}
    starts: list[int] = []
    run = module._Steps.logits

    def noted(self: module._Steps, part: Any, start: int) -> NDArray:
        starts.append(start)
        assert self.size == 7
        return run(self, part, start)

    monkeypatch.setattr(module._Steps, "logits", noted)
    with vs.Scheduler(["cpu"]) as sched:
        found = perplexity(sched, model, WORDS, **options)
        monkeypatch.setattr(module._Steps, "logits", run)
        monkeypatch.setattr(module, "STEP", 128)
        whole = perplexity(sched, model, WORDS, **options)
    assert starts[::2] == [0, 7, 14] and found.tokens == whole.tokens == tokens
    assert found.perplexity == pytest.approx(whole.perplexity, rel=1e-6)


def test_devices_that_do_not_round_are_noted(scheds: Scheds, tmp_path: Path) -> None:
    model, _ = build_model(tmp_path)
    for sched in scheds:
        spec = sched.topology.devices[0]
        notes = perplexity(sched, model, WORDS, ctx=CTX, max_tokens=3).notes
        if spec.kind == "cpu":
            assert notes == ()
        elif spec.limits.software or not spec.limits.float16:
            assert len(notes) == 1 and " in float32" in notes[0]
            name = notes[0].partition(" computes ")[0]  # of equal devices any one may compute
            assert name in {each.name for each in sched.topology.devices if each.kind == spec.kind}


def test_steps_and_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = build_model(tmp_path)
    calls: list[tuple[int, int]] = []
    with vs.Scheduler(["cpu"]) as sched:

        def measured(**more: Any) -> module.PrecisionLoss:
            return perplexity(sched, model, WORDS, precision="bfloat16", ctx=CTX, **more)

        whole = measured()
        monkeypatch.setattr(module, "STEP", 5)
        monkeypatch.setattr(module, "BLOCK_BYTES", 1)
        stepped = measured(progress=lambda done, total: calls.append((done, total)))
        few = measured(max_tokens=30)
        monkeypatch.setattr(module, "LOGITS_BYTES", 1)
        single = measured(max_tokens=30)
    assert stepped.tokens == whole.tokens and few.tokens == single.tokens == 30
    assert single.mean_kl == pytest.approx(few.mean_kl, rel=0.02)
    assert stepped.mean_kl == pytest.approx(whole.mean_kl, rel=0.02)
    assert stepped.perplexity == pytest.approx(whole.perplexity, rel=1e-5)
    assert calls[-1] == (whole.tokens, whole.tokens)
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_another_model_is_the_reference(tmp_path: Path) -> None:
    """The cost of a type of weights: the divergence from the model in float32."""
    model, weights = build_model(tmp_path)
    (tmp_path / "q4").mkdir()
    tiny = replace(TINY, kind="Q4_0")
    rounded, of_rounded = build_model(tmp_path / "q4", tiny)
    kl: list[float] = []
    for chunk in chunks_of(model.tokenizer.encode(WORDS), []):
        p = chances(logits_of(TINY, weights, np.array(chunk)))
        q = chances(logits_of(tiny, of_rounded, np.array(chunk)))
        kl += [float(each) for each in (p * np.log(p / q)).sum(-1)[:-1]]
    with vs.Scheduler(["cpu"]) as sched:
        found = perplexity(sched, rounded, WORDS, precision="float32", ctx=CTX, reference=model)
        own = perplexity(sched, model, WORDS, precision="float32", ctx=CTX)
        assert found.reference_perplexity == own.reference_perplexity
        assert found.mean_kl == pytest.approx(np.mean(kl), rel=1e-3)
        other, _ = build_model(tmp_path / "q4")
        other.tokenizer.vocabulary.tokens[0] = "another"
        with pytest.raises(ModelFormatError, match="a reference with the same vocabulary"):
            perplexity(sched, model, WORDS, reference=other)


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    model, _ = build_model(tmp_path)

    def peak(text: str) -> int:
        with vs.Scheduler(["cpu"]) as sched:
            perplexity(sched, model, WORDS, ctx=CTX)  # caches of all kinds
            tracemalloc.start()
            perplexity(sched, model, text, ctx=CTX)
            _, found = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        return found

    few, many = peak(WORDS), peak(WORDS * 8)
    logits_bytes = 7 * len(model.tokenizer.encode(WORDS)) * TINY.vocabulary * 4
    assert many - few < logits_bytes / 2


def test_large_activations_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from test_scaled_rows import QWEN
    from test_scaled_rows import build_model as build_large

    model, _ = build_large(tmp_path, {"ffn_up": 2.0**18}, monkeypatch, QWEN)
    monkeypatch.setattr(
        module, "_chunks_of", lambda *_: [[3, 7, 1, 50, 9, 21], [4, 9, 60, 2, 2, 1]]
    )
    with vs.Scheduler(["cpu"]) as sched:
        found = perplexity(sched, model, WORDS, precision="mixed", ctx=CTX)
    assert found.notes == (SCALED,) and found.precision == "mixed" and found.tokens == 10
    assert 0 < found.mean_kl < 1e-4 and np.isfinite(found.max_kl)


def test_damaged_weights_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from test_scaled_rows import QWEN
    from test_scaled_rows import build_model as build_large

    model, _ = build_large(tmp_path, {"output_norm": np.nan}, monkeypatch, QWEN)
    monkeypatch.setattr(module, "_chunks_of", lambda *_: [[3, 7, 1, 50]])
    with (
        vs.Scheduler(["cpu"]) as sched,
        pytest.raises(VkschedError, match="in float32, too; the weights may be damaged"),
    ):
        perplexity(sched, model, WORDS, ctx=CTX)


def test_results_are_finite_or_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from test_scaled_rows import QWEN
    from test_scaled_rows import build_model as build_other

    tiny = replace(QWEN, vocabulary=261)
    tokens: dict[str, object] = {**byte_pair(), "tokenizer.chat_template": TEMPLATE}
    model, _ = build_other(tmp_path, {}, monkeypatch, tiny, tokens)
    for part, factor, message in (
        ("output_norm", np.nan, "in float32; the weights of the reference may be damaged"),
        ("output_norm", 1e7, "a perplexity in the range of float64"),
    ):
        with monkeypatch.context() as patch:
            (tmp_path / f"{factor}").mkdir()
            other, _ = build_other(tmp_path / f"{factor}", {part: factor}, patch, tiny, tokens)
        with vs.Scheduler(["cpu"]) as sched, pytest.raises(VkschedError, match=message):
            perplexity(sched, model, WORDS, precision="float32", ctx=CTX, reference=other)


@pytest.mark.parametrize(
    ("text", "options", "error", "part"),
    [
        ("", {}, ShapeError, "a text of at least 2 tokens, got 0"),
        ("h", {}, ShapeError, "a text of at least 2 tokens, got 1"),
        (b"hey", {}, DTypeError, "expected a text, got bytes"),
        (WORDS, {"ctx": 1}, ShapeError, "a ctx of 2 to 64 tokens, got 1"),
        (WORDS, {"ctx": 65}, ShapeError, "a ctx of 2 to 64 tokens, got 65"),
        (WORDS, {"max_tokens": 0}, ShapeError, "max_tokens of at least 1, got 0"),
        (WORDS, {"precision": "half"}, PlanError, "got 'half'"),
        (WORDS, {"cache_type": "f8"}, DTypeError, "got 'f8'"),
    ],
)
def test_errors_say_what_was_expected(
    text: Any, options: dict[str, Any], error: type[Exception], part: str, tmp_path: Path
) -> None:
    model, _ = build_model(tmp_path)
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(error, match=r"\[(perplexity|model)\]") as e:
        perplexity(sched, model, text, **options)
    assert part in str(e.value)
