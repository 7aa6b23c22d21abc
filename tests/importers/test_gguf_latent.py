"""Latent attention: the cache holds compressed rows, and older files are split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import language
import numpy as np
import pytest
from gguf_files import Draft, Type, ValueType
from language.convert import draft, write

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import ModelFormatError
from vksched.generation.layer_placement.place_layers import cache_bytes_of
from vksched.importers.gguf.architectures.split_kv_b import half_of
from vksched.importers.gguf.model import LanguageModel
from vksched.importers.gguf.read.loader import read_gguf

pytestmark = pytest.mark.one_set

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
RANK, PLAIN, ROTATED, VALUES, HEADS = 16, 12, 8, 10, 4
"""The sizes of the recipes."""


def loaded(data: Draft) -> LanguageModel:
    model = vs.load(data.packed())
    assert isinstance(model, LanguageModel)
    return model


def in_slots(model: LanguageModel, ids: NDArray, kind: str) -> NDArray:
    """Return the logits of a text in slot 2, with another one in slot 0, after its first tokens
    and after each of the next ones.
    """
    cache, tokens = model.cache(len(ids), kind, slots=3), 12
    texts = np.stack([ids, (ids + 3) % model.hyper.vocabulary])
    slot, out = np.array([2, 0], np.int32), []
    with vs.Scheduler(["cpu"]) as sched:
        for size, starts in ((tokens, [0]), (1, range(tokens, len(ids)))):
            step = model.step(cache, size, rows=2)
            run = sched.compile(step.logits, updates=step.updates)
            for start in starts:
                ids_now = texts[:, start : start + size]
                counts = {"start": np.full(2, start, np.int32), "count": np.full(2, size, np.int32)}
                out.append(np.asarray(run(ids=ids_now, slot=slot, **counts))[0])
    assert set(cache.states) == {f"blk.{layer}.keys" for layer in range(model.hyper.layers)}
    return np.stack(out)


@pytest.mark.parametrize(("kind", "far"), [("f32", 1e-4), ("f16", 0.02), ("q8_0", 0.1)])
def test_slots_hold_compressed_rows(kind: str, far: float) -> None:
    golden = language.load("deepseek3")
    model = loaded(draft(golden))
    got = in_slots(model, golden.ids, kind)
    np.testing.assert_allclose(got, golden.wanted[11:], rtol=0, atol=far)


def test_a_token_has_one_compressed_row_in_each_layer() -> None:
    model = loaded(draft(language.load("deepseek2_lite")))
    row = RANK + ROTATED
    assert model.hyper.cached_values == model.hyper.layers * row
    assert cache_bytes_of(model, model.cache(5, slots=2)) == 3 * row * 5 * 2 * 4
    latent = model.hyper.latent
    assert latent is not None and (latent.query_rank, latent.rank) == (0, RANK)
    assert (model.hyper.key_length, model.hyper.value_length) == (PLAIN + ROTATED, VALUES)
    scaled = 1 + 0.1 * 0.707 * np.log(4)
    assert latent.score_factor == pytest.approx(scaled**2)
    assert model.hyper.rope.attention_factor == pytest.approx(1)


# Files of before, which have one tensor for keys and values


@pytest.mark.parametrize("kind", [Type.F32, Type.F16])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_one_tensor_of_keys_and_values_is_split(
    kind: Type, is_mapped: bool, tmp_path: Path
) -> None:
    golden, path = language.load("deepseek3"), tmp_path / "older.gguf"
    write(golden, path, kind=kind, apart=True)
    file = read_gguf(path if is_mapped else path.read_bytes())
    both = file.tensors["blk.1.attn_kv_b.weight"]
    heads = both.to_numpy().reshape(HEADS, PLAIN + VALUES, RANK)
    keys = half_of(file.tensors, "blk.1.attn_k_b.weight", (HEADS, RANK, PLAIN))
    values = half_of(file.tensors, "blk.1.attn_v_b.weight", (HEADS, VALUES, RANK))
    assert keys is not None and values is not None
    np.testing.assert_array_equal(keys.to_numpy(), heads[:, :PLAIN].swapaxes(1, 2))
    np.testing.assert_array_equal(values.to_numpy(), heads[:, PLAIN:])
    assert (keys.type, values.type) == ("F32", kind.name)
    part: NDArray = np.empty(50, np.uint8)  # of two heads
    each = 4 * PLAIN * RANK
    assert not isinstance(keys.blocks, memoryview)
    keys.blocks.read(each - 30, part)
    whole = keys.to_numpy().reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(part, whole[each - 30 :][:50])


def test_older_files_have_the_same_logits() -> None:
    golden = language.load("deepseek3")
    data = draft(golden, apart=True)
    assert "blk.0.attn_kv_b.weight" in {info.name for info in data.infos}
    assert "deepseek2.attention.key_length_mla" not in {key.name for key in data.keys}
    model = loaded(data)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(model.logits(vs.input("ids", (1, len(golden.ids)), "int32")))
        got = np.asarray(run(ids=golden.ids[None])[0])
    np.testing.assert_allclose(got, golden.wanted, **CLOSE)


def test_other_names_and_shapes_have_no_half() -> None:
    tensors = loaded(draft(language.load("deepseek3"), apart=True)).file.tensors
    for name, shape in (
        ("blk.0.attn_k_b.weight", (HEADS, RANK, PLAIN + VALUES)),
        ("blk.0.attn_k_b.weight", (HEADS + 1, RANK, PLAIN)),
        ("blk.0.attn_k_b.weight", (HEADS, RANK + 1, PLAIN)),
        ("blk.0.attn_k_b.weight", (HEADS * RANK, PLAIN)),
        ("blk.9.attn_k_b.weight", (HEADS, RANK, PLAIN)),
        ("blk.0.attn_q_b.weight", (HEADS, RANK, PLAIN)),
    ):
        assert half_of(tensors, name, shape) is None


# Keys


def with_key(data: Draft, name: str, kind: ValueType | None, value: object = None) -> Draft:
    data = replace(data, keys=tuple(key for key in data.keys if key.name != name))
    return data if kind is None else data.with_key(name, kind, value)


@pytest.mark.parametrize(
    ("name", "kind", "value", "parts"),
    [
        ("attention.kv_lora_rank", None, None, ("'deepseek2.attention.kv_lora_rank'", "none")),
        ("attention.kv_lora_rank", ValueType.UINT32, 0, ("whole number of 1 to", "got 0")),
        ("attention.kv_lora_rank", ValueType.UINT32, 15, ("'blk.0.attn_k_b.weight' of shape",)),
        ("attention.q_lora_rank", ValueType.STRING, "20", ("got '20'",)),
        ("attention.q_lora_rank", None, None, ("'blk.0.attn_q.weight' of shape (80, 32), got",)),
        ("attention.key_length_mla", ValueType.UINT32, 8, ("rope.dimension_count'", "the 8 el")),
        ("attention.key_length_mla", ValueType.UINT32, 21, ("'blk.0.attn_q_b.weight' of shape",)),
        ("attention.value_length_mla", ValueType.UINT32, 11, ("'blk.0.attn_v_b.weight' of sh",)),
        ("attention.value_length_mla", ValueType.INT32, -1, ("whole number of 1 to", "got -1")),
        ("rope.dimension_count", ValueType.UINT32, 20, ("fewer than the 20", "got 20")),
        ("rope.scaling.yarn_log_multiplier", ValueType.FLOAT32, -0.1, ("a float32 over 0",)),
        ("rope.scaling.yarn_log_multiplier", ValueType.FLOAT32, 1e37, ("over 0, at most 1000",)),
        ("rope.scaling.yarn_log_multiplier", ValueType.STRING, "1", ("got '1'",)),
    ],
)
def test_wrong_keys_are_named(
    name: str, kind: ValueType | None, value: object, parts: tuple[str, ...]
) -> None:
    data = with_key(draft(language.load("deepseek3")), f"deepseek2.{name}", kind, value)
    with pytest.raises(ModelFormatError) as caught:
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))
    for part in ("[gguf] ", *parts):
        assert part in str(caught.value)


def test_sizes_that_one_tensor_does_not_have_are_named() -> None:
    data = draft(language.load("deepseek3"), apart=True)
    data = with_key(data, "deepseek2.attention.value_length", ValueType.UINT32, 9)
    with pytest.raises(ModelFormatError, match=r"'blk.0.attn_kv_b.weight' of shape \(84, 16\)"):
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))


def test_glm_flash_files_without_gating_have_sigmoids() -> None:
    data = draft(language.load("glm4moelite"))
    data = with_key(data, "deepseek2.expert_gating_func", None)
    assert loaded(data).hyper.routing.gating == "softmax"
    data = with_key(data, "deepseek2.block_count", ValueType.UINT32, 47)
    data = with_key(data, "deepseek2.vocab_size", ValueType.UINT32, 154880)
    data = with_key(data, "deepseek2.nextn_predict_layers", ValueType.UINT32, 44)
    assert loaded(data).hyper.routing.gating == "sigmoid"
    assert gguf.ExpertGatingFuncType.SIGMOID == 2
