"""Files of models with state spaces and short convolutions whose keys or tensors are wrong."""

from __future__ import annotations

from dataclasses import replace

import language
import pytest
from gguf_files import Draft, ValueType
from language.convert import draft

import vksched as vs
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
    ],
)
def test_missing_tensors_are_named(name: str, missing: str) -> None:
    data = draft(language.load(name))
    data = replace(data, infos=tuple(each for each in data.infos if each.name != missing))
    with pytest.raises(ModelFormatError, match=f"'{missing}' of shape"):
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))
