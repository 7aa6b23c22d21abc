"""Files of models with recurrent layers: wrong keys and tensors, older files, and the size of their
states.
"""

from __future__ import annotations

from dataclasses import replace

import language
import numpy as np
import pytest
from gguf_files import Draft, Type, ValueType
from language.convert import draft

import vksched as vs
from vksched.cli.views.gguf_info import describe_language_model, show_language_model
from vksched.common.errors import ModelFormatError
from vksched.importers.gguf.model import LanguageModel

pytestmark = pytest.mark.one_set


def loaded(data: Draft) -> LanguageModel:
    model = vs.load(data.packed())
    assert isinstance(model, LanguageModel)
    return model


def with_key(data: Draft, name: str, kind: ValueType, value: object) -> Draft:
    """Return a file with another value of a key."""
    data = replace(data, keys=tuple(key for key in data.keys if key.name != name))
    return data.with_key(name, kind, value)


@pytest.mark.parametrize(
    ("name", "key", "kind", "value", "parts"),
    [
        ("lfm2", "shortconv.l_cache", ValueType.UINT32, 0, ("shortconv.l_cache'", "over 0")),
        ("lfm2", "shortconv.l_cache", ValueType.UINT32, 4, ("of shape (32, 4), got (32, 3)",)),
        ("lfm2", "shortconv.l_cache", ValueType.INT32, -1, ("0 to 1024, got -1",)),
        ("lfm2", "shortconv.l_cache", ValueType.STRING, "3", ("got '3'",)),
        ("mamba", "ssm.conv_kernel", ValueType.UINT32, 1 << 30, ("0 to 1024",)),
        ("mamba", "ssm.state_size", ValueType.UINT32, 0, ("ssm.state_size'", "over 0")),
        ("mamba", "ssm.time_step_rank", ValueType.UINT32, 4, ("'blk.0.ssm_x.weight'",)),
        ("mamba", "ssm.inner_size", ValueType.UINT32, (1 << 31) - 1, ("'blk.0.ssm_in.weight'",)),
        ("mamba", "ssm.dt_b_c_rms", ValueType.UINT32, 1, ("true or false, got 1",)),
        ("mamba", "attention.head_count", ValueType.INT32, -1, ("got -1",)),
        ("mamba2", "ssm.group_count", ValueType.UINT32, 0, ("ssm.group_count'", "over 0")),
        ("mamba2", "ssm.group_count", ValueType.UINT32, 3, ("in 3 groups", "got 8")),
        ("mamba2", "ssm.time_step_rank", ValueType.UINT32, 7, ("the 64 channels", "got 7")),
        ("mamba2", "ssm.state_size", ValueType.UINT32, 13, ("'blk.0.ssm_in.weight'",)),
        ("jamba", "attention.head_count", ValueType.UINT32, 0, ("number of 1 to", "got 0")),
        ("kimi-linear", "kda.head_dim", ValueType.UINT32, 0, ("kda.head_dim'", "over 0")),
        ("kimi-linear", "kda.head_dim", ValueType.UINT32, 13, ("conv1d_q.weight'", "(52, 4)")),
        ("kimi-linear", "ssm.conv_kernel", ValueType.UINT32, 0, ("ssm.conv_kernel'", "over 0")),
        (
            "kimi-linear",
            "ssm.conv_kernel",
            ValueType.UINT32,
            3,
            ("ssm_conv1d_q.weight'", "(48, 3)"),
        ),
        ("nemotron_h_moe_latent", "moe_latent_size", ValueType.UINT32, 7, ("(8, 20, 7), got",)),
        ("nemotron_h_moe_latent", "moe_latent_size", ValueType.UINT32, 0, ("ffn_up_exps",)),
        ("nemotron_h_moe_latent", "moe_latent_size", ValueType.INT32, -1, ("got -1",)),
        ("rwkv7", "wkv.head_size", ValueType.UINT32, 0, ("wkv.head_size'", "got none")),
        ("rwkv7", "wkv.head_size", ValueType.UINT32, 7, ("a divisor of the width 32, got 7",)),
        ("rwkv7", "feed_forward_length", ValueType.UINT32, 40, ("channel_mix_key.weight'",)),
        ("rwkv6", "wkv.head_size", ValueType.UINT32, 16, ("'blk.0.time_mix_first.weight'",)),
        (
            *("rwkv6qwen2", "wkv.head_size", ValueType.UINT32, 32),
            ("'blk.0.time_mix_key.weight': expected a divisor of 1 heads of 32", "got 16 values"),
        ),
        ("rwkv6", "rescale_every_n_layers", ValueType.INT32, -2, ("got -2",)),
        ("granitehybrid", "rope.scaling.finetuned", ValueType.UINT32, 1, ("true or false",)),
    ],
)
def test_wrong_keys_are_named(
    name: str, key: str, kind: ValueType, value: object, parts: tuple[str, ...]
) -> None:
    golden = language.load(name)
    data = with_key(draft(golden), f"{golden.architecture}.{key}", kind, value)
    with pytest.raises(ModelFormatError) as caught:
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))
    for part in ("[gguf] ", *parts):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("lfm2", "blk.0.shortconv.conv.weight"),
        ("lfm2", "token_embd_norm.weight"),
        ("lfm2moe", "blk.1.attn_q_norm.weight"),
        ("mamba", "blk.1.ssm_a"),
        ("mamba2", "blk.0.ssm_dt.bias"),
        ("mamba2", "blk.1.ssm_d"),
        ("jamba", "blk.0.ssm_b_norm.weight"),
        ("falcon-h1", "blk.1.attn_q.weight"),
        ("falcon-h1", "blk.1.ssm_conv1d.weight"),
        ("nemotron_h", "blk.1.ffn_up.weight"),
        ("nemotron_h", "blk.2.attn_k.weight"),
        ("nemotron_h_moe_latent", "blk.1.ffn_latent_up.weight"),
        ("kimi-linear", "blk.0.ssm_a"),
        ("kimi-linear", "blk.1.ssm_f_b.weight"),
        ("kimi-linear", "blk.2.attn_kv_a_norm.weight"),
        ("rwkv7", "token_embd_norm.bias"),
        ("rwkv7", "blk.0.time_mix_lerp_fused.weight"),
        ("rwkv7", "blk.1.time_mix_v1.weight"),
        ("rwkv7", "blk.0.time_mix_g2.weight"),
        ("rwkv7", "blk.1.channel_mix_lerp_k.weight"),
        ("rwkv6", "blk.0.time_mix_lerp_x.weight"),
        ("rwkv6", "blk.2.time_mix_decay_w2.weight"),
    ],
)
def test_missing_tensors_are_named(name: str, missing: str) -> None:
    data = draft(language.load(name))
    data = replace(data, infos=tuple(each for each in data.infos if each.name != missing))
    with pytest.raises(ModelFormatError, match=f"'{missing}' of shape"):
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))


def test_heads_of_keys_of_qrwkv_6_divide_those_of_queries() -> None:
    data, name = draft(language.load("rwkv6qwen2")), "blk.0.time_mix_key.weight"
    data = replace(data, infos=tuple(each for each in data.infos if each.name != name))
    data = data.with_tensor(name, (24, 32), Type.F32, bytes(4 * 24 * 32))
    with pytest.raises(ModelFormatError, match="a divisor of 4 heads of 8 values as keys, got 24"):
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))


def test_older_files_of_rwkv_6_have_shares_apart() -> None:
    golden = language.load("rwkv6")
    data = draft(golden)
    for layer in range(3):
        name = f"blk.{layer}.time_mix_lerp_"
        (info,) = (each for each in data.infos if each.name == f"{name}fused.weight")
        size = 4 * golden.config["hidden_size"]
        data = replace(data, infos=tuple(each for each in data.infos if each is not info))
        for at, kind in enumerate("wkvrg"):
            own = data.data[info.offset + at * size : info.offset + (at + 1) * size]
            data = data.with_tensor(f"{name}{kind}.weight", (size // 4,), Type.F32, own)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(loaded(data).logits(vs.input("ids", (1, 20), "int32")))
        got = run(ids=golden.ids[None])[0]
    np.testing.assert_allclose(got, golden.wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "layers", "values"),
    [
        ("kimi-linear", 3, 3 * 3 * 48 + 12 * 4 * 12),
        ("rwkv7", 2, 2 * 32 + 8 * 4 * 8),
        ("arwkv7", 2, 32 + 8 * 4 * 8),
        ("nemotron_h", 2, 3 * (64 + 2 * 2 * 12) + 12 * 8 * 8),  # its feed-forwards have no state
    ],
)
def test_info_tells_of_recurrent_states(name: str, layers: int, values: int) -> None:
    model = loaded(draft(language.load(name)))
    wanted = {"layers": layers, "bytes_per_slot": 4 * layers * values}
    assert describe_language_model(model)["recurrent"] == wanted
    cache = model.cache(16)
    model.step(cache, 1)
    held = sum(each.size for each in cache.recurrent_states.values())
    assert held == layers * values


def test_info_of_a_model_without_attention(capsys: pytest.CaptureFixture[str]) -> None:
    show_language_model(loaded(draft(language.load("rwkv7"))), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "context: 1,048,576 tokens" in lines
    assert "recurrent states: in 2 of 2 layers, 2.5 KiB for each slot" in lines
    assert not [line for line in lines if line.startswith("heads") or "rotary" in line]
