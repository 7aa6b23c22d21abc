"""Decoders with ALiBi: positions as elements of keys, and keys of files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import language
import numpy as np
import pytest
from conftest import vulkan_names
from gguf_files import Draft, ValueType
from language.convert import draft
from test_gguf_golden import build_golden

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import ModelFormatError
from vksched.importers.gguf.architectures.alibi import PositionDigits, slopes
from vksched.importers.gguf.architectures.token_layout import AttentionMask
from vksched.importers.gguf.hparams.hparams import read_hyper
from vksched.importers.gguf.model import LanguageModel
from vksched.ir.build_graph import build_graph
from vksched.ir.precision import precision_of
from vksched.ops.attention.attention_decode import decode_rows
from vksched.passes.set_precision import set_precision
from vksched.topology.limits import Limits

pytestmark = pytest.mark.one_set

F = ValueType.FLOAT32


def loaded(data: Draft) -> LanguageModel:
    model = vs.load(data.packed())
    assert isinstance(model, LanguageModel)
    return model


def with_key(data: Draft, name: str, kind: ValueType | None, value: object = None) -> Draft:
    data = replace(data, keys=tuple(key for key in data.keys if key.name != name))
    return data if kind is None else data.with_key(name, kind, value)


@pytest.mark.parametrize("length", [16256, 16257, 65536])
def test_digits_give_positions_of_long_texts(length: int) -> None:
    at = np.int32([0, 127, 128, 16255, length - 1])
    q, k = (np.random.default_rng(n).standard_normal((1, 2, 5, 12)) for n in range(2))
    digits = PositionDigits(8.0, length, vs.constant(at))
    wide = digits.widened(vs.input("q", q.shape), vs.input("k", k.shape), 0.25)
    with vs.Scheduler(["cpu"]) as sched:
        wide_q, wide_k = sched.compile(wide)(q=np.float32(q), k=np.float32(k))
    assert wide_k.shape[3] % 4 == 0 and not wide_k[..., 12:32].any()
    tail = wide_k[..., 32:]
    assert (tail[..., 0] == 127).all() and (tail == tail.round()).all() and tail.max() == 127
    scores = 0.25 * wide_q.astype(float) @ wide_k.astype(float).swapaxes(2, 3)
    wanted = 0.25 * q @ k.swapaxes(2, 3) + np.multiply.outer(slopes(2, 8.0), at)[None, :, None]
    np.testing.assert_allclose(scores, wanted, rtol=1e-6, atol=1e-6)


def steps(model: LanguageModel, ids: NDArray, cache_type: str) -> NDArray:
    """Return the logits of steps of one token, with a KV cache."""
    cache = model.cache(len(ids), cache_type)
    step = model.step(cache, 1)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(step.logits, updates=step.updates)
        return np.stack([run(ids=[[each]], start=at, count=1)[0] for at, each in enumerate(ids)])


@pytest.mark.parametrize(("cache_type", "atol"), [("f16", 0.02), ("q8_0", 0.2)])
def test_quantized_caches_have_exact_positions(
    cache_type: str, atol: float, tmp_path: Path
) -> None:
    golden = language.load("bloom")
    model = build_golden(golden, tmp_path)
    got = steps(model, golden.ids, cache_type)
    assert golden.wanted.std() > 5
    np.testing.assert_allclose(got, golden.wanted, atol=atol)


def test_rows_of_a_step_have_positions_of_their_own(tmp_path: Path) -> None:
    golden = language.load("mpt")
    model, n = build_golden(golden, tmp_path), len(golden.ids)
    cache = model.cache(n, slots=2)
    step = model.step(cache, 3, rows=2)
    ids = np.concatenate([golden.ids, golden.ids[:1]])
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(step.logits, updates=step.updates)
        slots = np.int32([1, 0])
        for start in range(0, 12, 3):
            starts = np.int32([start, max(0, start - 6)])
            tokens = np.stack([ids[first : first + 3] for first in starts])
            got = run(ids=tokens, start=starts, count=np.int32([3, 3]), slot=slots)
            np.testing.assert_allclose(got, golden.wanted[starts + 2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [64, 80, 96, 128])
def test_widened_heads_have_the_kernel_of_single_queries(size: int) -> None:
    digits = PositionDigits(8.0, 2048, vs.constant(np.arange(1, dtype=np.int32)))
    q, k = digits.widened(vs.input("q", (1, 8, 1, size)), vs.input("k", (1, 8, 1, size)), 0.1)
    gpu = Limits(max_invocations=1024, shared_bytes=49152, storage_buffers=16, memory_model=True)
    assert q.shape == k.shape and decode_rows(gpu, 1, k.shape[3], size)


def test_float16_sums_do_not_apply_to_digits() -> None:
    """Scores grow with positions: float16 represents neither their differences nor the largest."""
    positions = np.arange(2000, dtype=np.int32)
    rng = np.random.default_rng(0)
    q, k, v = (np.float32(rng.standard_normal((1, 4, 2000, 16))) for _ in range(3))
    digits, scale = PositionDigits(8.0, 2000, vs.constant(positions)), 1 / 128
    wide_q, wide_k = digits.widened(vs.constant(q), vs.constant(k), scale)
    mask = AttentionMask(scale, has_digits=True)
    out = mask.attend(wide_q[:, :, -20:], wide_k, vs.constant(v), past=1980)
    graph, _ = build_graph(out)
    graph = set_precision(graph, {node.id: "float16" for node in graph.nodes})
    assert [precision_of(n.attrs) for n in graph.nodes if n.op == "attention"] == ["mixed"]
    scores = scale * q[:, :, -20:].astype(float) @ k.astype(float).swapaxes(2, 3)
    distances = positions[-20:, None] - positions
    scores -= np.multiply.outer(slopes(4, 8.0), distances)[None]
    weights = np.exp(scores) * (distances >= 0)
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    for name in ("cpu", *vulkan_names()):
        with vs.Scheduler([name], precision="float16") as sched:
            np.testing.assert_allclose(sched.compile(out)(), wanted, atol=5e-3)


def test_the_larger_baichuan_has_alibi() -> None:
    small = draft(language.load("baichuan"))
    large = with_key(small, "baichuan.block_count", ValueType.UINT32, 40)
    assert [read_hyper(loaded(each).file).alibi for each in (small, large)] == [0.0, 8.0]
    assert read_hyper(loaded(draft(language.load("bloom"))).file).alibi == 8.0


@pytest.mark.parametrize(
    ("name", "key", "kind", "value", "parts"),
    [
        ("mpt", "max_alibi_bias", None, None, ("the key 'mpt.attention.max_alibi_bias'", "none")),
        ("mpt", "max_alibi_bias", F, 0.0, ("'mpt.attention.max_alibi_bias'", "over 0", "got 0.0")),
        ("jais", "max_alibi_bias", F, -8.0, ("over 0", "got -8.0")),
        ("jais", "max_alibi_bias", None, None, ("the key 'jais.attention.max_alibi_bias'",)),
        ("bloom", "max_alibi_bias", F, float("nan"), ("'bloom.attention.max_alibi_bias'", "nan")),
        ("baichuan_13b", "max_alibi_bias", ValueType.BOOL, True, ("over 0", "got True")),
        ("bloom", "scale", F, 1e-4, ("'attention.scale'", "at least 0.0", "got 0.0001")),
        ("bloom", "head_count", ValueType.UINT32, 5, ("'blk.0.attn_qkv.weight' of shape",)),
    ],
)
def test_wrong_keys_are_named(
    name: str, key: str, kind: ValueType | None, value: object, parts: tuple[str, ...]
) -> None:
    golden = language.load(name)
    data = with_key(draft(golden), f"{golden.architecture}.attention.{key}", kind, value)
    with pytest.raises(ModelFormatError) as caught:
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))
    for part in ("[gguf] ", *parts):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensor"), [("bloom", "token_embd_norm.bias"), ("jais", "blk.1.ffn_gate.bias")]
)
def test_tensors_that_are_missing_are_named(name: str, tensor: str) -> None:
    data = draft(language.load(name))
    data = replace(data, infos=tuple(info for info in data.infos if info.name != tensor))
    with pytest.raises(ModelFormatError, match=f"'{tensor}' of shape .*, got none"):
        loaded(data).logits(vs.input("ids", (1, 4), "int32"))
