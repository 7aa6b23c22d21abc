"""Architectures by name: each that the package `gguf` knows runs or is refused with its reason, and
keys of routing, of scaled weights and of layers after the last one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import architectures_page
import gguf
import language
import numpy as np
import pytest
from gguf_files import Draft, Type, ValueType
from language.convert import draft
from language.published import PUBLISHED, computed
from language.recipes import RECIPES

import vksched as vs
from vksched.cli.views.gguf_info import describe_language_model
from vksched.common.dtypes import NDArray
from vksched.common.errors import ModelFormatError
from vksched.importers.gguf.architectures import KNOWN, UNSUPPORTED, architecture
from vksched.importers.gguf.architectures.model_names import MODEL_NAMES
from vksched.importers.gguf.model import LanguageModel

NAMES = sorted(gguf.MODEL_ARCH_NAMES.values())
WITHOUT_LOGITS = {"jina-bert-v2", "neo-bert", "nomic-bert", "nomic-bert-moe"}
"""Encoders that tests/generation/test_gguf_encoders.py compares with numpy."""


def loaded(data: Draft) -> LanguageModel:
    model = vs.load(data.packed())
    assert isinstance(model, LanguageModel)
    return model


def logits_of(model: LanguageModel, ids: NDArray) -> NDArray:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(model.logits(vs.input("ids", (1, len(ids)), "int32")))
        return np.asarray(run(ids=ids[None])[0])


def with_key(data: Draft, name: str, kind: ValueType | None, value: object = None) -> Draft:
    """Return a file with another value of a key, or without it."""
    data = replace(data, keys=tuple(key for key in data.keys if key.name != name))
    return data if kind is None else data.with_key(name, kind, value)


def test_all_names_are_known() -> None:
    assert set(KNOWN) | set(UNSUPPORTED) == set(NAMES)
    assert not set(KNOWN) & set(UNSUPPORTED)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_runs_or_is_refused_with_its_reason(name: str) -> None:
    data = Draft().with_key("general.architecture", ValueType.STRING, name)
    if name in KNOWN:
        assert architecture(name) is KNOWN[name]
        return
    other = UNSUPPORTED[name]
    with pytest.raises(ModelFormatError) as caught:
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))
    text = str(caught.value)
    assert text.startswith(f"[gguf] expected a supported architecture, got {name!r} (")
    assert other.models in text and other.missing in text
    assert text.endswith(f"; try {other.instead}")
    assert describe_language_model(loaded(data))["notes"] == [text]


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_is_tried_instead_runs(name: str) -> None:
    words = UNSUPPORTED[name].instead.replace(",", " ").replace("(", " ").split()
    assert any(word in KNOWN for word in words) or name == "wavtokenizer-dec"


def test_the_page_has_the_tables_of_the_code() -> None:
    text = architectures_page.PAGE.read_text("utf-8")
    assert architectures_page.written(text) == text
    assert set(MODEL_NAMES) == set(KNOWN)


def test_each_architecture_that_runs_has_logits_to_equal() -> None:
    models = [*RECIPES.values(), *PUBLISHED.values()]
    tried = {model.architecture for model in models} | set(language.TWINS)
    assert tried | WITHOUT_LOGITS == set(KNOWN)
    assert not WITHOUT_LOGITS & tried


@pytest.mark.parametrize("name", PUBLISHED)
def test_files_of_published_networks_have_their_logits(name: str) -> None:
    data, stored = computed(name), language.load(name)
    np.testing.assert_allclose(stored.wanted, data["wanted"], rtol=1e-5, atol=1e-5)
    assert (stored.config, stored.ids.tolist()) == (data["config"], data["ids"])
    assert stored.tensors == {key: tuple(shape) for key, shape in data["tensors"].items()}


# Layers that predict further tokens


def with_predicting_layer(name: str) -> tuple[language.Golden, Draft]:
    """Return a file with one more layer, as converters write it for the prediction of the next but
    one token.
    """
    golden = language.load(name)
    data = with_key(draft(golden), f"{name}.block_count", ValueType.UINT32, 4)
    data = data.with_key(f"{name}.nextn_predict_layers", ValueType.UINT32, 1)
    for part in ("attn_norm.weight", "nextn.eh_proj.weight", "nextn.shared_head_head.weight"):
        data = data.with_tensor(f"blk.3.{part}", (32,), Type.F32, bytes(128))
    return golden, data


def test_layers_that_predict_further_tokens_are_skipped() -> None:
    golden, data = with_predicting_layer("glm4moe")
    model = loaded(data)
    assert (model.hyper.layers, model.hyper.predicting_layers) == (3, 1)
    np.testing.assert_allclose(logits_of(model, golden.ids), golden.wanted, rtol=1e-4, atol=1e-4)
    (note,) = describe_language_model(model)["notes"]
    assert note == "skipped at the end: 1 of 4 layers, which only predict further tokens"


def test_files_may_leave_out_the_layers_that_predict() -> None:
    golden, data = with_predicting_layer("glm4moe")
    data = replace(data, infos=tuple(i for i in data.infos if not str(i.name).startswith("blk.3.")))
    got = logits_of(loaded(data), golden.ids)
    np.testing.assert_allclose(got, golden.wanted, rtol=1e-4, atol=1e-4)


def test_tensors_after_the_last_layer_are_unknown_without_the_key() -> None:
    _, data = with_predicting_layer("glm4moe")
    data = with_key(data, "glm4moe.nextn_predict_layers", None)
    data = with_key(data, "glm4moe.block_count", ValueType.UINT32, 3)
    with pytest.raises(ModelFormatError, match="got also 'blk.3.attn_norm.weight'"):
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))


# Scales of weights


def test_weights_may_have_a_scale() -> None:
    golden = language.load("bitnet")
    data = draft(golden)
    for number, name in enumerate(("attn_q", "attn_output", "ffn_gate", "ffn_down")):
        scale = np.float32(0.5 + number)
        data = _scaled(data, f"blk.1.{name}", scale)
    got = logits_of(loaded(data), golden.ids)
    np.testing.assert_allclose(got, golden.wanted, rtol=1e-4, atol=1e-4)


def _scaled(data: Draft, name: str, scale: np.float32) -> Draft:
    """Return a file whose weight is divided by a scale of its own."""
    (info,) = (each for each in data.infos if each.name == f"{name}.weight")
    end = info.offset + 4 * int(np.prod(info.sizes))
    values = np.frombuffer(data.data[info.offset : end], np.float32) / scale
    data = replace(data, data=data.data[: info.offset] + values.tobytes() + data.data[end:])
    return data.with_tensor(f"{name}.scale", (1,), Type.F32, scale.tobytes())


# Gates and ups of all experts as one tensor


def test_gates_and_ups_of_experts_may_be_one_tensor() -> None:
    golden = language.load("qwen3moe")
    data = draft(golden)
    for layer in range(golden.config["num_hidden_layers"]):
        parts: list[NDArray] = []
        for kind in ("gate", "up"):
            name = f"blk.{layer}.ffn_{kind}_exps.weight"
            (info,) = (each for each in data.infos if each.name == name)
            sizes = tuple(reversed(info.sizes))
            end = info.offset + 4 * int(np.prod(sizes))
            parts.append(np.frombuffer(data.data[info.offset : end], np.float32).reshape(sizes))
            data = replace(data, infos=tuple(each for each in data.infos if each is not info))
        both = np.concatenate(parts, axis=1)
        name = f"blk.{layer}.ffn_gate_up_exps.weight"
        data = data.with_tensor(name, both.shape, Type.F32, both.tobytes())
    got = logits_of(loaded(data), golden.ids)
    np.testing.assert_allclose(got, golden.wanted, rtol=1e-4, atol=1e-4)


# Keys that older files lack, and wrong ones


def test_older_files_of_minicpm_have_the_scales_of_its_first_model() -> None:
    data = draft(language.load("minicpm"))
    for name in ("embedding_scale", "residual_scale", "logit_scale"):
        data = with_key(data, f"minicpm.{name}", None)
    hyper = loaded(data).hyper
    assert (hyper.embedding_scale, hyper.logit_scale) == (12, 32 / 256)
    assert hyper.residual_scale == pytest.approx(1.4 / 2**0.5)


def test_experts_are_weighted_by_sigmoids_by_default() -> None:
    data = draft(language.load("glm4moe"))
    assert loaded(data).hyper.routing.gating == "sigmoid"
    for number, gating in ((1, "softmax"), (2, "sigmoid"), (3, "softmax")):
        changed = with_key(data, "glm4moe.expert_gating_func", ValueType.UINT32, number)
        assert loaded(changed).hyper.routing.gating == gating


@pytest.mark.parametrize(
    ("name", "kind", "value", "parts"),
    [
        ("expert_gating_func", ValueType.UINT32, 0, ("whole number of 1 to 3, got 0",)),
        ("expert_gating_func", ValueType.UINT32, 4, ("whole number of 1 to 3, got 4",)),
        ("expert_gating_func", ValueType.STRING, "sigmoid", ("got 'sigmoid'",)),
        ("expert_weights_norm", ValueType.UINT32, 1, ("true or false, got 1",)),
        ("expert_weights_scale", ValueType.FLOAT32, -1.0, ("a float32 over 0",)),
        ("expert_weights_scale", ValueType.FLOAT32, float("nan"), ("a float32 over 0",)),
        ("expert_group_count", ValueType.UINT32, 3, ("equal groups of the 8 experts", "3 groups")),
        ("expert_group_count", ValueType.UINT32, 9, ("whole number of 0 to 8, got 9",)),
        ("expert_group_used_count", ValueType.UINT32, 5, ("whole number of 0 to 4, got 5",)),
        ("expert_group_used_count", ValueType.UINT32, 1, ("the 3 active ones", "got 1 of 4")),
        ("expert_shared_count", ValueType.UINT32, (1 << 31) - 1, ("number of 0 to 4096",)),
        ("expert_shared_count", ValueType.INT32, -1, ("number of 0 to 4096, got -1",)),
        ("nextn_predict_layers", ValueType.UINT32, 3, ("whole number of 0 to 2, got 3",)),
        ("nextn_predict_layers", ValueType.INT32, -1, ("whole number of 0 to 2, got -1",)),
        (
            "nextn_predict_layers",
            ValueType.UINT32,
            1,
            ("tensors 'blk.2.nextn.", "got 1, and"),
        ),
        ("expert_used_count", ValueType.UINT32, 9, ("whole number of 1 to 8, got 9",)),
        ("use_parallel_residual", ValueType.UINT32, 1, ("true or false, got 1",)),
        ("attention.clamp_kqv", ValueType.FLOAT32, -0.5, ("a float32 over 0",)),
        ("attention.clamp_kqv", ValueType.STRING, "8", ("got '8'",)),
    ],
)
def test_wrong_keys_of_routing_are_named(
    name: str, kind: ValueType, value: object, parts: tuple[str, ...]
) -> None:
    data = with_key(draft(language.load("glm4moe_large")), f"glm4moe.{name}", kind, value)
    with pytest.raises(ModelFormatError) as caught:
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))
    for part in ("[gguf] ", *parts):
        assert part in str(caught.value)


def test_sparse_mixer_chooses_two_experts() -> None:
    data = draft(language.load("phimoe"))
    data = with_key(data, "phimoe.expert_used_count", ValueType.UINT32, 3)
    with pytest.raises(ModelFormatError, match="'phimoe.expert_used_count': expected 2, .* got 3"):
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))


def test_info_reads_files_with_routing(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(draft(language.load("glm4moe_large")).packed())
    model = vs.load(path)
    assert isinstance(model, LanguageModel)
    report = describe_language_model(model)
    assert report["hyper"]["routing"]["groups"] == 4 and not report["notes"]


# Rotary scaling


def scaled_positions(name: str, **keys: float) -> LanguageModel:
    """Return a model of type YaRN with other keys of scaling."""
    data = draft(language.load(name))
    data = with_key(data, "llama.rope.scaling.type", ValueType.STRING, "yarn")
    for key, value in keys.items():
        data = with_key(data, f"llama.rope.scaling.{key}", ValueType.FLOAT32, value)
    return loaded(data)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama_yarn", {"yarn_ext_factor": -1, "yarn_attn_factor": 1}),  # not set, in llama.cpp
        ("llama_yarn", {"yarn_ext_factor": 1}),
        ("llama_yarn", {"yarn_attn_factor": 0.1 * np.log(4) + 1}),  # OLMo 3 has it
        ("llama_yarn", {"yarn_beta_fast": 32, "yarn_beta_slow": 1}),
        ("llama_linear", {"yarn_ext_factor": 0}),
        ("llama_linear", {"yarn_ext_factor": 0, "yarn_attn_factor": 1}),
    ],
)
def test_keys_of_yarn_that_change_nothing(name: str, keys: dict[str, float]) -> None:
    golden = language.load(name)
    got = logits_of(scaled_positions(name, **keys), golden.ids)
    np.testing.assert_allclose(got, golden.wanted, rtol=1e-4, atol=1e-4)


def test_the_attention_factor_of_a_file_replaces_that_of_yarn() -> None:
    rope = scaled_positions("llama_yarn", yarn_attn_factor=1).hyper.rope
    assert rope.attention_factor == 1  # Laguna has it
    rope = scaled_positions("llama_yarn", yarn_attn_factor=1.3, attn_factor=2).hyper.rope
    assert rope.attention_factor == pytest.approx(2.6)
    rope = scaled_positions("llama_yarn", yarn_ext_factor=0, yarn_attn_factor=1.3).hyper.rope
    assert (rope.attention_factor, rope.ext_factor) == (pytest.approx(1.3), 0)
    rope = scaled_positions("llama_yarn", yarn_ext_factor=-1, yarn_attn_factor=1).hyper.rope
    assert (rope.attention_factor, rope.ext_factor) == (pytest.approx(0.1 * np.log(4) + 1), 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e-40])
def test_wrong_ext_factors_are_named(value: float) -> None:
    with pytest.raises(ModelFormatError, match="yarn_ext_factor': expected 0 or a float32 of"):
        _ = scaled_positions("llama_yarn", yarn_ext_factor=value).hyper


# Keys of recurrent layers


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("full_attention_interval", 0, "a whole number of 1 to"),
        ("full_attention_interval", 7, "a tensor 'blk.1.attn_qkv.weight'"),
        ("ssm.conv_kernel", 1 << 20, "a whole number of 0 to 1024"),
        ("ssm.conv_kernel", 3, "'blk.0.ssm_conv1d.weight' of shape (104, 3)"),
        ("ssm.group_count", 4, "a number that divides the 6 heads"),
        ("ssm.inner_size", 70, "a multiple of the 6 heads"),
        ("ssm.time_step_rank", 0, "a whole number over 0"),
        ("ssm.state_size", 9, "a tensor 'blk.0.attn_qkv.weight' of shape (108, 32)"),
    ],
)
def test_wrong_keys_of_recurrent_layers_are_refused(key: str, value: int, expected: str) -> None:
    data = with_key(draft(language.load("qwen35")), f"qwen35.{key}", ValueType.UINT32, value)
    with pytest.raises(ModelFormatError) as caught:
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))
    assert expected in str(caught.value)
