"""Logits of tiny models of each architecture equal those of the package `transformers`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import language
import numpy as np
import pytest
from conftest import DEVICE_SETS
from gguf_files import Draft, Type
from language.convert import draft, write
from selection import RELEASE, THOROUGH, spread

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import ModelFormatError
from vksched.importers.gguf import architectures
from vksched.importers.gguf.architectures.gemma import GEMMA2, GEMMA3
from vksched.importers.gguf.architectures.gpt_oss import GPT_OSS
from vksched.importers.gguf.model import LanguageModel
from vksched.storage.lazy_array import LazyArray

pytestmark = pytest.mark.one_set

Placement = dict[str, str] | None
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def build_golden(golden: language.Golden, folder: Path) -> LanguageModel:
    path = folder / "tiny.gguf"
    write(golden, path)
    model = vs.load(path)
    assert isinstance(model, LanguageModel)
    return model


def whole(
    sched: vs.Scheduler, model: LanguageModel, ids: NDArray, placement: Placement = None
) -> NDArray:
    """Return the logits of a text that is given at once, among others."""
    texts = np.stack([(ids + 5) % model.hyper.vocabulary, ids])
    logits = model.logits(vs.input("ids", texts.shape, "int32"))
    run = sched.compile(logits, placement=placement)
    return np.asarray(run(ids=texts)[1])


def in_steps(
    sched: vs.Scheduler, model: LanguageModel, ids: NDArray, placement: Placement = None
) -> NDArray:
    """Return the logits that steps of several sizes end with, by position."""
    cache, runs = model.cache(len(ids) + 3), {}
    for size in (1, 8):
        step = model.step(cache, size)
        runs[size] = sched.compile(step.logits, updates=step.updates, placement=placement)
    out = np.full((len(ids), model.hyper.vocabulary), np.nan, np.float32)
    start = 0
    for size, count in ((8, 5), (1, 1), (8, 7), *((1, 1),) * (len(ids) - 13)):
        values = np.zeros((1, size), np.int32)
        values[0, :count] = ids[start : start + count]
        start += count
        out[start - 1] = runs[size](ids=values, start=start - count, count=count)[0]
    return out


def compare(name: str, sched: vs.Scheduler, folder: Path, placement: Placement = None) -> None:
    golden = language.load(name)
    model = build_golden(golden, folder)
    assert golden.wanted.std() > 0.5
    np.testing.assert_allclose(whole(sched, model, golden.ids, placement), golden.wanted, **CLOSE)
    ends = in_steps(sched, model, golden.ids, placement)
    known = ~np.isnan(ends[:, 0])
    assert known.sum() == len(golden.ids) - 10
    np.testing.assert_allclose(ends[known], golden.wanted[known], **CLOSE)


KINDS = (
    *("gemma2", "phi3_long", "gpt2", "llama4", "gpt-oss", "qwen2moe", "qwen3moe", "llama_experts"),
    *("glm4moe_large", "ernie4_5-moe", "hunyuan-moe", "minimax-m2", "dots1", "bailingmoe"),
    *("phimoe", "olmo", "bitnet", "exaone-moe", "gptneox_serial", "starcoder", "jais2", "orion"),
    *("qwen3next", "qwen35", "qwen35moe"),
    *("lfm2moe", "mamba", "mamba2", "granitehybrid", "falcon-h1", "jamba", "nemotron_h"),
    *("afmoe", "deepseek2", "deepseek3", "mistral4", "gemma3n", "gemma4", "gemma4_experts"),
    *("apertus", "minicpm3", "dbrx", "nemotron_h_moe_latent", "kimi-linear", "rwkv7", "rwkv6"),
    *("arwkv7", "rwkv6qwen2", "openelm", "plamo3", "mimo2", "mpt", "jais"),
)
"""One of each kind of attention, routing, norm and block."""
BESIDES = (*language.ENCODERS, "gemma2_large")
"""Encoders, and what the largest model of a family does."""
DECODERS = [name for name in language.NAMES if name not in BESIDES]
SETS = [name for name in DEVICE_SETS if name != "cpu"]
"""Each device alone, and two together, over which the layers are split."""


@pytest.mark.parametrize("name", DECODERS)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        compare(name, sched, tmp_path)


def test_the_largest_gemma_scales_scores_by_the_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = language.load("gemma2_large").config["num_hidden_layers"]
    assert (GEMMA2.scale_by_width, GEMMA3.scale_by_width) == (46, 62)
    known = {**architectures.KNOWN, "gemma2": replace(GEMMA2, scale_by_width=layers)}
    monkeypatch.setattr(architectures, "KNOWN", known)
    with vs.Scheduler(["cpu"]) as sched:
        compare("gemma2_large", sched, tmp_path)


def split_over(devices: Sequence[str], first_layers: str = "blk.0.*") -> Placement:
    """Return a placement of the first layers on one device and of all others on the next, if there
    are two.
    """
    return {first_layers: devices[0], "*": devices[1]} if len(devices) > 1 else None


@pytest.mark.parametrize("devices", SETS, indirect=True)
@pytest.mark.parametrize(
    "name",
    [
        *spread(KINDS, 4),
        *(pytest.param(name, marks=(THOROUGH, RELEASE)) for name in DECODERS if name not in KINDS),
    ],
)
def test_so_they_do_on_devices_and_split_over_two(
    name: str, devices: list[str], tmp_path: Path
) -> None:
    # Llama 4 has experts in its second layer
    placement = split_over(devices, "blk.[01].*" if name == "llama4" else "blk.0.*")
    with vs.Scheduler(devices) as sched:
        compare(name, sched, tmp_path, placement)


def test_gates_and_factors_of_gpt_oss_are_cut_off() -> None:
    gates, factors = np.float32([-20, 1, 20, 9]), np.float32([2, 9, -9, 0.5])
    assert GPT_OSS.gating is not None
    built = GPT_OSS.gating(vs.input("gate", (4,)), vs.input("up", (4,)))
    with vs.Scheduler(["cpu"]) as sched:
        got = sched.compile(built)(gate=gates, up=factors)
    stored = np.float32([-20, 1, 7, 7])
    gate = stored / (1 + np.exp(-1.702 * stored))
    np.testing.assert_allclose(got, gate * np.float32([3, 8, -6, 1.5]), rtol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        *("llama4", "gpt-oss", "gemma2", "qwen3next", "lfm2", "falcon-h1"),
        *("deepseek3", "gemma4", "kimi-linear", "rwkv7", "rwkv6", "bloom"),
    ],
)
def test_so_they_do_in_parts_of_steps(name: str, tmp_path: Path) -> None:
    golden = language.load(name)
    model = build_golden(golden, tmp_path)
    cache, at = model.cache(23), 0
    with vs.Scheduler(["cpu"]) as sched:
        for tokens, parts, count in ((4, 2, 3), (12, 3, 11), (4, 4, 4)):
            step = model.step(cache, tokens, parts)
            run = sched.compile(step.logits, updates=step.updates)
            ids = np.zeros((1, tokens), np.int32)
            ids[0, :count] = golden.ids[at : at + count]
            got = run(ids=ids, start=at, count=count)[0]
            at += count
            np.testing.assert_allclose(got, golden.wanted[at - 1], **CLOSE)


@pytest.mark.parametrize("name", ["qwen2moe", "gemma2", "phi3"])
def test_weights_of_few_bits_are_those_values(name: str, tmp_path: Path) -> None:
    golden, logits = language.load(name), []
    with vs.Scheduler(["cpu"]) as sched:
        for rounded in (False, True):
            path = tmp_path / f"{rounded}.gguf"
            write(golden, path, kind=Type.Q8_0, rounded=rounded)
            model = vs.load(path)
            assert isinstance(model, LanguageModel)
            logits.append((whole(sched, model, golden.ids), in_steps(sched, model, golden.ids)))
    for got, wanted in zip(*logits, strict=True):
        np.testing.assert_allclose(got, wanted, **CLOSE)
    assert abs(logits[0][0] - golden.wanted).max() > 1e-3


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0])
def test_experts_may_have_tensors_of_their_own(kind: Type, tmp_path: Path) -> None:
    golden, logits = language.load("llama_experts"), []
    with vs.Scheduler(["cpu"]) as sched:
        for apart in (False, True):
            path = tmp_path / f"{apart}.gguf"
            write(golden, path, kind=kind, apart=apart)
            model = vs.load(path)
            assert isinstance(model, LanguageModel)
            assert ("blk.0.ffn_gate.3.weight" in model.weights) is apart
            logits.append((whole(sched, model, golden.ids), in_steps(sched, model, golden.ids)))
            parts = [f"blk.0.ffn_gate.{expert}.weight" for expert in range(4)]
            held = model.weights.take("blk.0.ffn_gate_exps.weight", (4, 48, 32), parts)
            assert (held.op == "dequantize") is (kind == Type.Q8_0)
            words = held.inputs[0] if kind == Type.Q8_0 else held
            assert isinstance(
                words.held, LazyArray
            )  # the host has them only while somebody uses them
            meta = model.meta()
            meta.logits(vs.input("ids", (1, 4), "int32"))
    for got, wanted in zip(*logits, strict=True):
        np.testing.assert_array_equal(got, wanted)


# What is refused


def without(draft: Draft, *names: str) -> Draft:
    """Return a file without some keys or tensors."""
    keys = tuple(key for key in draft.keys if key.name not in names)
    return replace(draft, keys=keys, infos=tuple(i for i in draft.infos if i.name not in names))


@pytest.mark.parametrize(
    ("name", "missing", "parts"),
    [
        ("gemma2", "gemma2.attn_logit_softcapping", ("'gemma2.attn_logit_softcapping'", "none")),
        ("gemma2", "blk.1.post_ffw_norm.weight", ("'blk.1.post_ffw_norm.weight' of shape (32,)",)),
        ("gemma3", "blk.0.attn_k_norm.weight", ("'blk.0.attn_k_norm.weight' of shape (16,)",)),
        ("phi3", "blk.0.attn_qkv.weight", ("'blk.0.attn_qkv.weight' of shape (64, 32), got none",)),
        ("phi3_long", "rope_factors_short.weight", ("'rope_factors_short.weight' of shape (4,)",)),
        ("gpt2", "blk.0.ffn_up.bias", ("'blk.0.ffn_up.bias' of shape (48,), got none",)),
        ("qwen3moe", "blk.1.ffn_down_exps.weight", ("'blk.1.ffn_down_exps.weight' of shape (8, ",)),
        ("llama_experts", "blk.1.ffn_up.2.weight", ("'blk.1.ffn_up.2.weight' of shape (48, 32)",)),
        ("llama_experts", "blk.1.ffn_up.0.weight", ("'blk.1.ffn_up_exps.weight' of shape (4, ",)),
        ("qwen3moe", "qwen3moe.expert_used_count", ("'qwen3moe.expert_used_count'",)),
        ("qwen2moe", "blk.0.ffn_gate_inp_shexp.weight", ("'blk.0.ffn_gate_inp_shexp.weight'",)),
        ("gpt-oss", "blk.0.attn_sinks.weight", ("'blk.0.attn_sinks.weight' of shape (4,)",)),
        ("gpt-oss", "blk.1.ffn_up_exps.bias", ("'blk.1.ffn_up_exps.bias' of shape (4, 48)",)),
        ("gpt-oss", "gpt-oss.attention.sliding_window", ("'gpt-oss.attention.sliding_window'",)),
        ("granite", "granite.logit_scale", ("'granite.logit_scale'",)),
        ("llama4", "blk.1.ffn_up_shexp.weight", ("'blk.1.ffn_up_shexp.weight' of shape (24, 32)",)),
        ("phi2", "output.bias", ("'output.bias' of shape (37,)",)),
        ("gpt2", "position_embd.weight", ("'position_embd.weight' of shape (64, 32)",)),
        ("glm4moe", "blk.0.ffn_up.weight", ("'blk.0.ffn_up.weight' of shape (48, 32)",)),
        (
            "glm4moe",
            "blk.2.ffn_up_shexp.weight",
            ("'blk.2.ffn_up_shexp.weight' of shape (48, 32)",),
        ),
        (
            "glm4moe",
            "glm4moe.expert_shared_count",
            ("uses, got also 'blk.1.ffn_gate_shexp.weight'",),
        ),
        (
            "hunyuan-dense",
            "blk.0.attn_q_norm.weight",
            ("'blk.0.attn_q_norm.weight' of shape (8,)",),
        ),
        ("bitnet", "blk.1.ffn_sub_norm.weight", ("'blk.1.ffn_sub_norm.weight' of shape (48,)",)),
        ("phimoe", "blk.0.attn_norm.bias", ("'blk.0.attn_norm.bias' of shape (32,)",)),
        ("qwen3next", "blk.0.ssm_a", ("'blk.0.ssm_a' of shape (6,)",)),
        ("qwen3next", "blk.2.ssm_ba.weight", ("'blk.2.ssm_beta.weight' of shape (6, 32)",)),
        ("qwen35", "blk.0.ssm_conv1d.weight", ("'blk.0.ssm_conv1d.weight' of shape (104, 4)",)),
        ("qwen35", "qwen35.ssm.group_count", ("'qwen35.ssm.group_count'", "over 0")),
        ("qwen35moe", "qwen35moe.ssm.conv_kernel", ("'qwen35moe.ssm.conv_kernel'", "over 0")),
    ],
)
def test_what_a_file_lacks_is_named(name: str, missing: str, parts: tuple[str, ...]) -> None:
    apart = name == "llama_experts"
    model = vs.load(without(draft(language.load(name), apart), missing).packed())
    assert isinstance(model, LanguageModel)
    with pytest.raises(ModelFormatError) as caught:
        model.logits(vs.input("ids", (1, 4), "int32"))
    for part in ("[gguf] ", *parts):
        assert part in str(caught.value)
