"""Values beyond float16's range in language models: rows are scaled, no result is infinite."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import gguf_models
import language
import numpy as np
import pytest
from conftest import Scheds
from gguf_models import Tiny, logits_of, write
from language import convert
from test_chat import GREEDY, PROMPT, TEMPLATE, greedy
from text_reader import TextReader
from tiny_vocabularies import byte_pair

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import SamplingError
from vksched.generation.compiled_steps import CompiledSteps, StepSize
from vksched.generation.deferred_step import step_key
from vksched.generation.overflow import DAMAGED, SCALED, cache_note, exact_note
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.architectures.scaled_rows import MAX_FLOAT16, scaled_rows
from vksched.importers.gguf.architectures.token_layout import AttentionMask
from vksched.importers.gguf.cached_sequence import CachedSequence
from vksched.importers.gguf.kv_cache import KeyValueCache
from vksched.importers.gguf.model import LanguageModel
from vksched.ir.precision import SINGLE, precision_of
from vksched.passes import RewriteConstraints, optimize
from vksched.topology.limits import Limits

TEXT = [3, 7, 1, 50, 9, 21]
QWEN = Tiny(architecture="qwen2", layers=2, biases=True, kind="Q8_0")
EXACT = exact_note({"mixed"}, [], scaled=True)
EXACT_CACHE = exact_note({"mixed"}, ["f16"], scaled=True)
EXACT_Q8_0 = exact_note({"mixed"}, ["q8_0"], scaled=True)


def build_model(
    folder: Path,
    factors: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
    tiny: Tiny = QWEN,
    tokens: dict[str, object] | None = None,
) -> tuple[LanguageModel, dict[str, NDArray]]:
    """Write a model whose weights of these names have other magnitudes."""
    draw = gguf_models._values

    def scaled(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray:
        factor = next((f for part, f in factors.items() if part in name), 1.0)
        return np.asarray(draw(name, shape, rng) * np.float32(factor))

    monkeypatch.setattr(gguf_models, "_values", scaled)
    weights = write(tiny, folder / "large.gguf", np.random.default_rng(0), tokens)
    model = vs.load(folder / "large.gguf")
    assert isinstance(model, LanguageModel)
    return model, weights


class _Down(np.ndarray):
    """A down projection that notes the largest of its inputs."""

    largest = 0.0

    @property
    def T(self) -> _Down:
        return self

    def __rmatmul__(self, x: NDArray) -> NDArray:
        _Down.largest = max(_Down.largest, float(np.abs(x).max()))
        return np.asarray(x @ np.asarray(self).T)

    def astype(self, *_: object, **__: object) -> _Down:  # type: ignore[override]
        return self


def largest_activation(weights: dict[str, NDArray]) -> float:
    """Return the largest input of a down projection."""
    _Down.largest = 0.0
    noted = {k: w.view(_Down) if "ffn_down" in k else w for k, w in weights.items()}
    logits_of(QWEN, noted, np.array(TEXT))
    return _Down.largest


def oracle(weights: dict[str, NDArray], tiny: Tiny = QWEN) -> NDArray:
    """Return the logits after the text, by numpy in float64."""
    with np.errstate(over="ignore"):  # exp of a large gate
        return logits_of(tiny, weights, np.array(TEXT))[-1]


def prefill(
    model: LanguageModel,
    precision: str | None,
    cache_type: str | None = None,
    text: Sequence[int] = TEXT,
) -> tuple[NDArray, list[str], SlotSteps]:
    with warnings.catch_warnings(record=True) as caught, vs.Scheduler(["cpu"]) as sched:
        warnings.simplefilter("always")
        reader = SlotSteps(sched, model, 16, 1, precision=precision, cache_type=cache_type)
        texts_read = TextReader(reader)
        texts_read.read(text[:3])
        got = texts_read.read(text)
        texts = [str(w.message) for w in caught if "[chat]" in str(w.message)]
        modes = {
            precision_of(n.attrs) for r in reader.steps.runs.values() for n in r.plan.graph.nodes
        }
        reader.modes = modes  # type: ignore[attr-defined]
        return got, texts, reader


def test_rows_are_scaled_by_powers_of_two(scheds: Scheds) -> None:
    x = vs.input("x", (7, 4))
    rows = np.array(
        [
            [1, -2, 3e-6, 4],
            [-65504, 1, 1, 1],
            [65505, 1, 2, -3],
            [3e9, -2.5e9, 1e4, 1],
            [1e14, 0, 0, 1],
            [np.nan, 1e6, 1, 1],
            [np.inf, 1, 1, 1],
        ],
        np.float32,
    )
    for sched in scheds:
        scaled, factor = sched.compile(list(scaled_rows(x)))(x=rows)
        np.testing.assert_array_equal(scaled * factor, rows)
        np.testing.assert_array_equal(scaled[:2], rows[:2])
        assert np.abs(scaled[:5]).max() <= MAX_FLOAT16
        mantissas, _ = np.frexp(factor)
        assert set(mantissas.ravel()) == {0.5}


def test_activations_beyond_float16_are_scaled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors = {"ffn_up": 2.0**18, "ffn_down": 2.0**-10}
    model, weights = build_model(tmp_path, factors, monkeypatch)
    assert largest_activation(weights) > MAX_FLOAT16
    wanted = oracle(weights)
    exact, texts, _ = prefill(model, "float32")
    np.testing.assert_allclose(exact, wanted, 1e-3, 1e-3)
    assert texts == []
    got, texts, reader = prefill(model, "mixed", "f16")
    assert texts == [f"[chat] {SCALED}"]
    assert reader.modes == {SINGLE, "mixed"}  # type: ignore[attr-defined]
    error = np.square(got - wanted).sum() / np.square(wanted).sum()
    assert 1e-10 < error < 1e-5


def test_small_activations_are_not_scaled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights = build_model(tmp_path, {}, monkeypatch)
    got, texts, reader = prefill(model, "mixed")
    assert texts == [] and not any(
        "reduce_max" in node.op
        for run in reader.steps.runs.values()
        for node in run.plan.graph.nodes
    )
    np.testing.assert_allclose(got, oracle(weights), 0.02, 0.02)


@pytest.mark.parametrize(
    ("factors", "precision", "cache_type", "notes"),
    [
        ({"ffn_up": 2.0**60, "ffn_down": 2.0**-10}, "mixed", "f32", [SCALED, EXACT]),
        ({"ffn_norm": 2.0**18}, "mixed", None, [SCALED, EXACT]),
        ({"attn_v": 2.0**20}, "float32", "f16", [cache_note(["f16"])]),
        ({"attn_v": 2.0**20}, "mixed", "f16", [SCALED, EXACT_CACHE]),
    ],
    ids=["beyond the steps", "a norm", "the cache", "values"],
)
def test_others_fall_back_to_float32(
    factors: dict[str, float],
    precision: str,
    cache_type: str | None,
    notes: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = Tiny(architecture="qwen2", layers=2, biases=True)
    model, weights = build_model(tmp_path, factors, monkeypatch, tiny)
    got, texts, reader = prefill(model, precision, cache_type)
    assert texts == [f"[chat] {note}" for note in notes]
    assert reader.modes == {SINGLE}  # type: ignore[attr-defined]
    assert {state.dtype for state in reader.steps.cache.states.values()} == {"float32"}
    np.testing.assert_allclose(got, oracle(weights, tiny), 1e-2, 1e-2)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("softcap", [0.0, 30.0])
def test_keys_beyond_float16_are_not_hidden(scheds: Scheds, size: int, softcap: float) -> None:
    """The product of the first key and the query is 13 in float32, -inf if the key is infinite."""
    shape = (1, 1, size, 8)
    large, small, q0 = np.zeros((3, *shape), np.float32)
    large[..., 0, :2], small[..., 0, :2], q0[..., :2] = (70000, 20), (65504, 20), (-1e-4, 1)
    mask = AttentionMask(1.0, softcap, 0, False, False)
    q, k, v = (vs.input(name, shape) for name in "qkv")
    start = vs.input("start", (), "int32", bounds=(0, 8 - size))
    for sched in scheds:
        for keys in (large, small):
            text = CachedSequence(KeyValueCache(8, "f16"), size, start, None)
            run = sched.compile(text.attend(0, q, k, v, mask), updates=text.updates)
            run(q=q0, k=keys, v=q0, start=0)
            got = run(q=q0, k=0 * keys, v=q0, start=size)
            assert np.isnan(got).all() if keys is large else np.isfinite(got).all()


def test_the_cache_of_the_first_text_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of the last token alone, whose logits are NaN if a key is."""
    model, weights = build_model(tmp_path, {}, monkeypatch)
    sizes: list[int] = []
    run = CompiledSteps.run

    def noted(self: CompiledSteps, size: StepSize) -> object:
        sizes.append(size.tokens)
        compiled = run(self, size)
        if size.tokens == 1 and self.cache.kind == "f16":
            return lambda **inputs: compiled(**inputs) * np.float32(np.nan if is_large else 1)
        return compiled

    monkeypatch.setattr(CompiledSteps, "run", noted)
    for is_large in (False, True):
        sizes.clear()
        with vs.Scheduler(["cpu"]) as sched, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            reader = SlotSteps(sched, model, 16, 1, precision="mixed", cache_type="f16")
            got = reader.prefill(0, TEXT, 0)
            texts = [str(w.message) for w in caught if "[chat]" in str(w.message)]
            assert sizes == ([8, 1, 8, 1, 8] if is_large else [8, 1])
            assert texts == [f"[chat] {note}" for note in (SCALED, EXACT_CACHE) if is_large]
            np.testing.assert_allclose(got, oracle(weights), 0.02, 0.02)
            count = len(sizes)
            reader.prefill(0, TEXT[2:3], 2)
            assert sizes[count:] == [1]


def test_checked_keys_cost_no_op(tmp_path: Path) -> None:
    """The conversion to float16 checks them, in steps of a token and of several."""
    write(QWEN, tmp_path / "tiny.gguf", np.random.default_rng(0))
    model = vs.load(tmp_path / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    for limits, casts in ((Limits(float16=True, storage_buffers=8), 0), (None, 2 * QWEN.layers)):
        for size in (1, 8):
            counts = []
            for kind in ("f32", "f16"):
                step = model.step(model.cache(16, kind), size)
                graph, _ = vs.build_graph(step.logits, step.updates)
                counts.append(len(optimize(graph, RewriteConstraints(limits=limits)).nodes))
            assert counts[1] - counts[0] == (casts if size == 1 else 2 * QWEN.layers)


@pytest.mark.parametrize("name", ["olmo2", "exaone4"])
def test_inputs_without_a_norm_are_scaled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large embeddings of models whose blocks have only norms after them."""
    draw = language.values

    def large(name: str, shape: tuple[int, ...]) -> NDArray:
        factors = {"embed_tokens": 2.0**20, "v_proj": 2.0**-10}
        return draw(name, shape) * np.float32(next((f for n, f in factors.items() if n in name), 1))

    monkeypatch.setattr(language, "values", large)
    golden = language.load(name)
    convert.write(golden, tmp_path / "large.gguf")
    model = vs.load(tmp_path / "large.gguf")
    assert isinstance(model, LanguageModel)
    text = [int(token) for token in golden.ids[:12]]
    wanted, texts, _ = prefill(model, "float32", text=text)
    assert texts == []
    got, texts, _ = prefill(model, "mixed", text=text)
    assert texts == [f"[chat] {SCALED}"]
    error = np.square(got - wanted).sum() / np.square(wanted).sum()
    assert 1e-10 < error < 1e-5


def test_a_q8_0_cache_stays_until_it_is_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = Tiny(architecture="qwen2", layers=2, biases=True)
    (tmp_path / "norm").mkdir()
    for folder, factors, kind, notes in (
        ("norm", {"ffn_norm": 2.0**18}, "uint32", [SCALED, EXACT_Q8_0]),
        (".", {"attn_v": 2.0**30}, "float32", [SCALED, EXACT_Q8_0, cache_note(["q8_0"])]),
    ):
        with monkeypatch.context() as patch:
            model, weights = build_model(tmp_path / folder, factors, patch, tiny)
        got, texts, reader = prefill(model, "mixed", "q8_0")
        assert texts == [f"[chat] {note}" for note in notes]
        assert {state.dtype for state in reader.steps.cache.states.values()} == {kind}
        np.testing.assert_allclose(got, oracle(weights, tiny), 5e-2, 5e-2)


def test_warnings_name_the_cause() -> None:
    assert "scaled" not in exact_note({"bfloat16"}, [], scaled=False) + cache_note(["f16"])
    assert "in bfloat16;" in exact_note({"bfloat16", "float32"}, [], scaled=False)
    assert "with scaled rows" in EXACT and "KV cache" not in EXACT
    assert "f32 instead of f16" in EXACT_CACHE and "q8_0 as before" in EXACT_Q8_0


def test_a_chat_answers_with_the_tokens_of_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = replace(QWEN, vocabulary=261)
    tokens = {**byte_pair(), "tokenizer.chat_template": TEMPLATE}
    model, weights = build_model(tmp_path, {"ffn_up": 2.0**18}, monkeypatch, tiny, tokens)
    with vs.Scheduler(["cpu"], precision="mixed") as sched:
        chat = vs.Chat(sched, model)
        with pytest.warns(vs.VkschedWarning, match="scaled by powers of two from now on"):
            first = chat.generate(PROMPT, 4, GREEDY)
            list(first)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the change is kept
            again = chat.generate(PROMPT + " hey", 4, GREEDY)
            list(again)
    for answer in (first, again):
        assert list(answer.tokens) == greedy(weights, answer.prompt, 4, tiny)


def test_damaged_weights_are_no_overflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = build_model(tmp_path, {"output_norm": np.nan}, monkeypatch)
    got, texts, _ = prefill(model, "mixed")
    assert np.isnan(got).all() and texts == [f"[chat] {note}" for note in (SCALED, EXACT, DAMAGED)]
    with pytest.raises(SamplingError, match="damaged"):
        GREEDY.choose(got)
    got, texts, _ = prefill(model, "float32")
    assert np.isnan(got).all() and texts == []


def test_scaled_steps_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = build_model(tmp_path, {}, monkeypatch)
    monkeypatch.setattr("vksched.generation.deferred_step.is_settled", lambda _: True)
    caches = [model.cache(16), model.cache(16, "f16"), model.cache(16, "f16", {1: "f32"})]
    keys = {step_key(model, cache, 8, scaled) for cache in caches for scaled in (False, True)}
    assert len(keys) == 6 and None not in keys
