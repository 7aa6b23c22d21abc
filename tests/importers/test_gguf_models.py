"""Logits of language models from GGUF files, on every set of devices, equal those of numpy."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import language
import numpy as np
import pytest
from conftest import Scheds
from gguf_files import Draft, Key, Type, ValueType, small_model
from gguf_models import Tiny, logits_of, write
from language import convert

import vksched as vs
from vksched.common.errors import IndexOutOfRange, ModelFormatError, ShapeError
from vksched.importers.gguf.model import LanguageModel

pytestmark = pytest.mark.one_set

LLAMA = Tiny()
QWEN2 = Tiny("qwen2", biases=True)
QWEN3 = Tiny("qwen3", head_norms=True, tied=True, head_size=64, rotary_size=64)
MODELS = {
    "llama F32": LLAMA,
    "llama F16 tied": Tiny(kind="F16", tied=True),
    "llama Q8_0": Tiny(kind="Q8_0"),
    "llama Q4_K, Llama 3.1's positions": Tiny(kind="Q4_K", slowed=True, base=500000.0),
    "llama, few turned, linear": Tiny(rotary_size=16, linear=4.0, kv_heads=8),
    "llama, wide heads": Tiny(heads=4, kv_heads=1, head_size=96, rotary_size=96, layers=1),
    "llama with biases": Tiny(biases=True, layers=1),
    "qwen2 F32": QWEN2,
    "qwen2 Q5_0": replace(QWEN2, kind="Q5_0"),
    "qwen2 BF16": replace(QWEN2, kind="BF16"),
    "qwen3 F32": QWEN3,
    "qwen3 Q4_0": replace(QWEN3, kind="Q4_0", tied=False),
}


def loaded(path: Path) -> LanguageModel:
    model = vs.load(path)
    assert isinstance(model, LanguageModel)
    return model


def build_model(tiny: Tiny, folder: Path, seed: int = 0) -> LanguageModel:
    path = folder / "tiny.gguf"
    write(tiny, path, np.random.default_rng(seed))
    return loaded(path)


def compare(tiny: Tiny, sched: vs.Scheduler, folder: Path) -> None:
    """Assert that logits of two texts are those of numpy."""
    rng = np.random.default_rng(tiny.layers)
    weights = write(tiny, folder / "tiny.gguf", rng)
    model = loaded(folder / "tiny.gguf")
    ids = rng.integers(0, tiny.vocabulary, (2, 11), np.int32)
    wanted = np.stack([logits_of(tiny, weights, row) for row in ids])
    got = sched.compile(model.logits(vs.input("ids", (2, 11), "int32")))(ids=ids)
    assert wanted.std() > 0.5
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_numpy(name: str, tmp_path: Path) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        compare(MODELS[name], sched, tmp_path)


@pytest.mark.parametrize(
    "name", ["llama F16 tied", "llama Q4_K, Llama 3.1's positions", "qwen2 Q5_0", "qwen3 F32"]
)
def test_so_they_do_on_devices(name: str, scheds: Scheds, tmp_path: Path) -> None:
    compare(replace(MODELS[name], layers=1), scheds[0], tmp_path)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K"])
def test_weights_take_what_the_file_takes(kind: str, scheds: Scheds, tmp_path: Path) -> None:
    tiny = replace(QWEN3, kind=kind, vocabulary=2003)
    model, length = build_model(tiny, tmp_path), 3
    run = scheds[0].compile(model.logits(vs.input("ids", (1, length), "int32")))
    held = sum(memory.weight_bytes for memory in run.plan.memory)
    angles = 2 * length * tiny.rotary_size // 2 * 4
    assert model.parameter_bytes <= held - angles <= 1.01 * model.parameter_bytes


@pytest.mark.parametrize(
    "tiny",
    [LLAMA, QWEN3, replace(QWEN3, kind="Q4_0"), Tiny(kind="Q4_K")],
    ids=["llama", "qwen3", "qwen3 Q4_0", "llama Q4_K"],
)
def test_a_text_may_be_read_in_steps(tiny: Tiny, scheds: Scheds, tmp_path: Path) -> None:
    tiny = replace(tiny, layers=1)
    weights = write(tiny, tmp_path / "tiny.gguf", np.random.default_rng(1))
    model = loaded(tmp_path / "tiny.gguf")
    ids = np.arange(3, 15, dtype=np.int32)
    wanted = logits_of(tiny, weights, ids)
    cache = model.cache(16)
    steps = {n: model.step(cache, n) for n in (1, 8)}
    runs = {n: scheds[0].compile(s.logits, updates=s.updates) for n, s in steps.items()}

    def read(run: vs.CompiledGraph, tokens: int, start: int, count: int) -> None:
        values = np.full((1, tokens), 60, np.int32)  # what is no token of the text changes nothing
        values[0, :count] = ids[start : start + count]
        got = run(ids=values, start=np.int32(start), count=np.int32(count))
        assert got.shape == (1, tiny.vocabulary)
        np.testing.assert_allclose(got[0], wanted[start + count - 1], rtol=1e-4, atol=1e-4)

    read(runs[8], 8, 0, 5)
    for at in (5, 6):
        read(runs[1], 1, at, 1)
    read(runs[8], 8, 7, 4)
    read(runs[1], 1, 11, 1)
    read(runs[8], 8, 2, 3)  # a text may go back
    with pytest.raises(IndexOutOfRange):
        read(runs[8], 8, 9, 3)


def test_two_graphs_share_weights_and_layers_have_names(tmp_path: Path) -> None:
    model = build_model(replace(LLAMA, kind="Q8_0"), tmp_path)
    with vs.name_scope("llm"):
        graphs = [vs.build_graph(model.logits(vs.input("ids", (1, n), "int32")))[0] for n in (3, 4)]
    weights = [[n for n in g.nodes if n.op == "weight"] for g in graphs]
    assert [n.name for n in weights[0]] == [n.name for n in weights[1]]
    assert {n.name.removesuffix(".words") for n in weights[0]} == set(model.file.tensors)
    assert any(n.name.startswith("llm.blk.1.") and n.op == "attention" for n in graphs[0].nodes)


def test_graphs_of_several_threads_share_weights(tmp_path: Path) -> None:
    model = build_model(replace(LLAMA, kind="Q8_0"), tmp_path)
    together = threading.Barrier(4)

    def write_one(n: int) -> vs.Tensor:
        together.wait()
        return model.logits(vs.input("ids", (1, n + 1), "int32"))

    with ThreadPoolExecutor(4) as pool:
        graphs = [vs.build_graph(each)[0] for each in pool.map(write_one, range(4))]
    weights = [{id(graph.data[n.id]) for n in graph.nodes if n.op == "weight"} for graph in graphs]
    assert len(set.union(*weights)) == len(model.file.tensors)


def test_a_model_tells_its_sizes(tmp_path: Path) -> None:
    model = build_model(replace(QWEN3, kind="Q8_0"), tmp_path)
    hyper = model.hyper
    assert (model.name, model.architecture) == ("tiny", "qwen3")
    assert (hyper.layers, hyper.width, hyper.vocabulary, hyper.context) == (2, 256, 61, 64)
    assert (hyper.heads, hyper.kv_heads, hyper.key_length) == ((8, 8), (2, 2), 64)
    assert (hyper.rope.base, hyper.rope.dims, hyper.rope.scaling) == (10000, 64, "none")
    assert model.parameters == sum(t.size for t in model.file.tensors.values()) > 1_000_000
    assert model.parameter_bytes < 1.2 * model.parameters


# What is refused


def changed(draft: Draft, name: str, kind: ValueType | None, argument: object = None) -> Draft:
    """Return a file with another value of a key, or without it."""
    stored = replace(draft, keys=tuple(key for key in draft.keys if key.name != name))
    inner = ValueType.INT32 if kind == ValueType.ARRAY else None
    return stored if kind is None else stored.with_key(name, kind, argument, inner)


def sized(architecture: str = "llama") -> Draft:
    draft = Draft().with_key("general.architecture", ValueType.STRING, architecture)
    for name, number in (
        ("block_count", 2),
        ("context_length", 64),
        ("embedding_length", 32),
        ("attention.head_count", 4),
        ("vocab_size", 7),
    ):
        draft = draft.with_key(f"{architecture}.{name}", ValueType.UINT32, number)
    eps = f"{architecture}.attention.layer_norm_rms_epsilon"
    return draft.with_key(eps, ValueType.FLOAT32, 1e-5)


def hyper_of(draft: Draft) -> object:
    model = vs.load(draft.packed())
    assert isinstance(model, LanguageModel)
    return model.hyper


def test_a_window_may_be_wider_than_the_context() -> None:
    for values, window in ((0, 0), (63, 63), ((1 << 31) - 1, 64)):
        draft = changed(sized(), "llama.attention.sliding_window", ValueType.UINT32, values)
        assert hyper_of(draft).window == window  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "argument", "windowed"),
    [
        (ValueType.UINT32, 2, (True, False)),
        (ValueType.UINT32, 0, (True, True)),
        (ValueType.UINT32, 1, (False, False)),
        (ValueType.ARRAY, [0, 1], (False, True)),
        (None, None, ()),
    ],
)
def test_files_say_which_layers_have_a_window(
    kind: ValueType | None, argument: object, windowed: tuple[bool, ...]
) -> None:
    draft = changed(sized(), "llama.attention.sliding_window_pattern", kind, argument)
    assert hyper_of(draft).windowed == windowed  # type: ignore[attr-defined]


def test_older_files_leave_out_what_all_models_of_an_architecture_have() -> None:
    draft = changed(sized("llama4"), "llama4.context_length", ValueType.UINT32, 1 << 20)
    hyper = hyper_of(draft)
    assert (hyper.window, hyper.temperature_length) == (8192, 8192)  # type: ignore[attr-defined]
    assert hyper.temperature_scale == 0.1  # type: ignore[attr-defined]
    bare = changed(draft, "llama4.attention.sliding_window", ValueType.UINT32, 0)
    assert hyper_of(bare).window == 0  # type: ignore[attr-defined]


def test_numbers_may_differ_from_layer_to_layer() -> None:
    draft = changed(sized(), "llama.attention.head_count", ValueType.ARRAY, [4, 2])
    hyper = hyper_of(draft)
    assert (hyper.heads, hyper.kv_heads, hyper.key_length) == ((4, 2), (4, 2), 8)  # type: ignore[attr-defined]


def test_numbers_of_layers_are_no_texts() -> None:
    name = "llama.feed_forward_length"
    draft = sized().with_key(name, ValueType.ARRAY, ["a", "b"], ValueType.STRING)
    with pytest.raises(ModelFormatError, match=f"{name}': expected a whole number"):
        hyper_of(draft)


@pytest.mark.parametrize(
    ("name", "kind", "argument", "parts"),
    [
        ("general.architecture", None, None, ("'general.architecture'", "got None")),
        ("llama.block_count", None, None, ("key 'llama.block_count'", "architecture 'llama'")),
        ("llama.block_count", ValueType.UINT32, 1 << 31, ("whole number of 1 to 4096",)),
        ("llama.block_count", ValueType.BOOL, True, ("got True",)),
        ("llama.block_count", ValueType.ARRAY, [2, 2], ("'llama.block_count'", "array")),
        ("llama.embedding_length", ValueType.INT32, -1, ("'llama.embedding_length'", "got -1")),
        ("llama.attention.head_count", ValueType.ARRAY, [4, 4, 4], ("2 whole numbers",)),
        ("llama.attention.head_count", ValueType.ARRAY, [4, -4], ("2 whole numbers", "-4")),
        ("llama.attention.head_count_kv", ValueType.UINT32, 3, ("the 4 heads of layer 0, got 3",)),
        ("llama.attention.head_count_kv", ValueType.ARRAY, [4, 8], ("of layer 1, got 8",)),
        ("llama.attention.head_count", ValueType.UINT32, 0, ("whole number of 1 to",)),
        ("llama.attention.head_count", ValueType.STRING, "4", ("got '4'",)),
        ("llama.vocab_size", None, None, ("'llama.vocab_size'", "got none")),
        ("llama.rope.freq_base", ValueType.FLOAT32, float("nan"), ("a float32 over 0", "nan")),
        ("llama.rope.freq_base", ValueType.FLOAT64, 1e-39, ("a float32 over 0",)),
        ("llama.rope.freq_base", ValueType.ARRAY, [4, 4], ("a float32 over 0", "array")),
        ("llama.attention.scale", ValueType.FLOAT32, 3e38, ("a float32 over 0, at most 1e+38",)),
        ("llama.attention.sliding_window_pattern", ValueType.ARRAY, [1], ("2 times true or",)),
        ("llama.attention.sliding_window_pattern", ValueType.INT32, -1, ("number of 0 to",)),
        ("llama.rope.scaling.type", ValueType.UINT8, 1, ("a string", "got 1")),
        ("llama.rope.dimension_count", ValueType.UINT32, 10, ("number of 1 to 8", "got 10")),
        ("llama.rope.dimension_count", ValueType.UINT32, (1 << 31) - 1, ("number of 1 to 8",)),
        ("llama.context_length", ValueType.UINT32, 1 << 30, ("'llama.context_length'",)),
        ("llama.expert_count", ValueType.UINT32, (1 << 31) - 1, ("0 to 4096", "2147483647")),
        (
            *("llama.attention.layer_norm_rms_epsilon", None, None),
            ("'llama.attention.layer_norm_epsilon'",),
        ),
    ],
)
def test_wrong_keys_are_named(
    name: str, kind: ValueType | None, argument: object, parts: tuple[str, ...]
) -> None:
    with pytest.raises(ModelFormatError) as caught:
        hyper_of(changed(sized(), name, kind, argument))
    for part in ("[gguf] ", *parts):
        assert part in str(caught.value)


IDS = vs.input("ids", (1, 4), "int32")


def refused(model: LanguageModel, *parts: str) -> None:
    with pytest.raises(ModelFormatError) as caught:
        model.logits(IDS)
    for part in ("[gguf] ", *parts):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("tiny", "parts"),
    [
        (Tiny("mamba9"), ("one of the architectures llama, ", "got 'mamba9'")),
        (Tiny("plamo2"), ("a supported architecture, got 'plamo2'", "a recurrent state")),
        (Tiny("qwen2"), ("a tensor 'blk.0.attn_q.bias' of shape (256,), got none",)),
        (Tiny("qwen3"), ("'blk.0.attn_q_norm.weight' of shape (32,)",)),
        (Tiny(head_norms=True), ("uses, got also 'blk.0.attn_q_norm.weight'", "and 1 more")),
    ],
)
def test_tensors_that_are_missing_or_unknown_are_named(
    tiny: Tiny, parts: tuple[str, ...], tmp_path: Path
) -> None:
    refused(build_model(tiny, tmp_path), *parts)


def test_speeds_of_pairs_are_over_0(tmp_path: Path) -> None:
    draft = small_model().with_tensor("rope_freqs.weight", (4,), Type.F32, bytes(16))
    model = vs.load(draft.packed())
    assert isinstance(model, LanguageModel)
    refused(model, "tensor 'rope_freqs.weight': expected numbers over 0")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama_yarn", ("rope.scaling.yarn_attn_factor", "rope.scaling.attn_factor")),
        ("llama4", ("attention.temperature_scale",)),
    ],
)
def test_factors_of_positions_are_in_float32(name: str, changes: tuple[str, ...]) -> None:
    golden = language.load(name)
    draft = convert.draft(golden)
    if name == "llama4":
        draft = changed(draft, "llama4.attention.temperature_length", ValueType.UINT32, 1)
    else:
        draft = changed(draft, "llama.rope.scaling.type", ValueType.STRING, "yarn")
    for key in changes:
        draft = changed(draft, f"{golden.architecture}.{key}", ValueType.FLOAT32, 9e37)
    model = vs.load(draft.packed())
    assert isinstance(model, LanguageModel)
    refused(model, "make factors of at most 1e+38")


@pytest.mark.parametrize(
    ("name", "kind", "argument", "parts"),
    [
        ("llama.expert_count", ValueType.UINT32, 8, ("'llama.expert_used_count'", "got none")),
        ("llama.rope.scaling.type", ValueType.STRING, "dynamic", ("yarn, longrope", "'dynamic'")),
        ("llama.rope.scaling.type", ValueType.STRING, "longrope", ("'rope_factors_short.weight'",)),
        ("llama.rope.dimension_count", ValueType.UINT32, 7, ("even number", "with 7")),
        ("llama.vocab_size", ValueType.UINT32, 9, ("'token_embd.weight' of shape (9, 16)",)),
    ],
)
def test_what_an_architecture_does_not_know_is_refused(
    name: str, kind: ValueType, argument: object, parts: tuple[str, ...]
) -> None:
    model = vs.load(changed(small_model(), name, kind, argument).packed())
    assert isinstance(model, LanguageModel)
    refused(model, *parts)


def test_ids_are_a_batch_of_tokens(tmp_path: Path) -> None:
    model = build_model(LLAMA, tmp_path)
    for shape, dtype in (((4,), "int32"), ((1, 65), "int32"), ((1, 4), "float32")):
        with pytest.raises(ShapeError, match=r"ids \(b, n\) of int32, n at most 64"):
            model.logits(vs.input("ids", shape, dtype))
    for length in (0, 65):
        with pytest.raises(ShapeError, match="a cache of 1 to 64 tokens"):
            model.cache(length)
    with pytest.raises(ShapeError, match="1 to 8 tokens as the cache has, got 9"):
        model.step(model.cache(8), 9)
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(ModelFormatError, match="tokenizer"):
        sched.compile(model)  # a chat needs one


def test_a_name_that_is_no_text_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(Draft((Key("general.name", ValueType.UINT8, b"\1"),)).packed())
    assert loaded(path).name == "m"
