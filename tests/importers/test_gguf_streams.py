"""Gemma 3n and 4, and Apertus: layers that share keys and values, keys, and what a file may have or
lacks.
"""

from __future__ import annotations

from dataclasses import replace

import language
import numpy as np
import pytest
from gguf_files import Draft, Type, ValueType
from language.convert import draft

import vksched as vs
from vksched.common.errors import ModelFormatError
from vksched.importers.gguf.model import LanguageModel

pytestmark = pytest.mark.one_set

U, F, A = ValueType.UINT32, ValueType.FLOAT32, ValueType.ARRAY


def loaded(data: Draft) -> LanguageModel:
    model = vs.load(data.packed())
    assert isinstance(model, LanguageModel)
    return model


def without(data: Draft, name: str) -> Draft:
    keys = tuple(key for key in data.keys if key.name != name)
    return replace(data, keys=keys, infos=tuple(i for i in data.infos if i.name != name))


@pytest.mark.parametrize(("name", "row"), [("gemma4", 2 * 2 * 2 * (8 + 16)), ("gemma3n", 4 * 32)])
def test_layers_that_share_keys_and_values_have_no_states(name: str, row: int) -> None:
    model = loaded(draft(language.load(name)))
    cache = model.cache(5)
    model.step(cache, 1)
    kinds = ("keys", "values")
    assert set(cache.states) == {f"blk.{layer}.{kind}" for layer in range(4) for kind in kinds}
    assert sum(heads * size for heads, size in cache.shapes.values()) == row
    assert model.hyper.cached_values == row


def test_tensors_of_keys_and_values_that_a_layer_shares_are_not_read() -> None:
    golden = language.load("gemma4")
    data = draft(golden)
    for name in ("attn_k", "attn_v", "attn_k_norm"):
        data = data.with_tensor(f"blk.5.{name}.weight", (1,), Type.F32, bytes(4))
    model = loaded(data)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(model.logits(vs.input("ids", (1, len(golden.ids)), "int32")))
        got = np.asarray(run(ids=golden.ids[None])[0])
    np.testing.assert_allclose(got, golden.wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "key", "kind", "value", "parts"),
    [
        ("gemma4", "attention.shared_kv_layers", U, 6, ("whole number of 0 to 5, got 6",)),
        ("gemma4", "attention.shared_kv_layers", ValueType.INT32, -1, ("0 to 5, got -1",)),
        ("gemma4", "attention.shared_kv_layers", U, 5, ("got none before layer 1",)),
        ("gemma4", "attention.sliding_window_pattern", None, None, ("key_length_swa'", "none")),
        ("gemma4", "attention.key_length_swa", U, 0, ("whole number of 1 to", "got 0")),
        ("gemma4", "attention.value_length_swa", U, 9, ("'blk.0.attn_v.weight' of shape (18",)),
        ("gemma4", "rope.dimension_count_swa", U, 9, ("whole number of 1 to 8, got 9",)),
        (
            "gemma4",
            "embedding_length_per_layer_input",
            U,
            11,
            ("'per_layer_token_embd.weight' of",),
        ),
        ("gemma4", "embedding_length_per_layer_input", U, 0, ("got also '", "and ")),
        ("gemma4_experts", "blk.1.ffn_gate_inp.scale", None, None, ("scale' of shape (32,)",)),
        ("gemma4_experts", "blk.0.pre_ffw_norm_2.weight", None, None, ("'blk.0.pre_ffw_norm_2.",)),
        ("gemma3n", "altup.num_inputs", None, None, ("'gemma3n.altup.num_inputs'", "none")),
        ("gemma3n", "altup.num_inputs", U, 1, ("whole number of 2 to 256, got 1",)),
        ("gemma3n", "altup.num_inputs", U, 3, ("'altup_proj.weight' of shape (2, 32, 32)",)),
        ("gemma3n", "altup.active_idx", U, 4, ("whole number of 0 to 3, got 4",)),
        ("gemma3n", "activation_sparsity_scale", A, [0.5] * 5, ("6 numbers below",)),
        ("gemma3n", "activation_sparsity_scale", A, [float("nan")] * 6, ("6 numbers below",)),
        ("gemma3n", "activation_sparsity_scale", F, 0.5, ("6 numbers below", "got 0.5")),
        ("gemma3n", "blk.0.laurel_l.weight", None, None, ("'blk.0.laurel_l.weight' of shape",)),
        ("apertus", "xielu.beta", None, None, ("the key 'xielu.beta' of an activation",)),
        ("apertus", "xielu.eps", A, [0.0] * 3, ("'xielu.eps': expected 2 numbers below",)),
        ("apertus", "xielu.alpha_p", A, [float("inf")] * 2, ("'xielu.alpha_p': expected 2",)),
        ("apertus", "xielu.alpha_p", A, [-float("inf")] * 2, ("'xielu.alpha_p': expected 2",)),
        ("apertus", "xielu.beta", A, [-float("inf")] * 2, ("'xielu.beta': expected 2",)),
        ("gemma3", "attention.shared_kv_layers", U, 1, ("0 but for", "gemma3n and gemma4, got 1")),
        ("llama", "attention.shared_kv_layers", U, 1, ("0 but for", "gemma3n and gemma4, got 1")),
    ],
)
def test_wrong_files_are_refused(
    name: str, key: str, kind: ValueType | None, value: object, parts: tuple[str, ...]
) -> None:
    golden = language.load(name)
    full = key if key.startswith(("blk.", "xielu.")) else f"{golden.architecture}.{key}"
    data = without(draft(golden), full)
    if kind == A:
        data = data.with_key(full, A, value, F)
    elif kind is not None:
        data = data.with_key(full, kind, value)
    with pytest.raises(ModelFormatError) as caught:
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))
    for part in ("[gguf] ", *parts):
        assert part in str(caught.value)
