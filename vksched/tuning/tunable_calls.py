"""Tunable calls: those of a graph, or a typical set of models."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from itertools import count

from ..common.dtypes import FLOAT16, FLOAT32, INT32, UINT32
from ..ir.attrs import AttrValue
from ..ir.build_graph import build_graph
from ..ir.graph import Graph
from ..ir.op import Call, Op, get_op
from ..ir.precision import BRAIN, BYTES, HALF, MIXED, PRECISION
from ..ir.tensor import Tensor, apply, input
from ..ops.attention.attention import attention
from ..ops.attention.backward import attention_backward
from ..ops.attention.kv_q8_0 import row_words
from ..ops.conv.conv import conv
from ..ops.conv.conv_int8 import conv_integer
from ..ops.layout.reshape import transpose
from ..ops.linalg.int8_matmul import matmul_integer
from ..ops.linalg.int8_weights import words_shape
from ..ops.linalg.matmul import matmul
from ..ops.lowering.lower import cache_key, choice_of
from ..ops.quantized.gguf_formats import format_of
from ..ops.quantized.moe_linear import moe_linear
from ..ops.reduction.layer_norm import layer_norm, rms_norm
from ..ops.reduction.reduce import reduce_sum
from ..ops.reduction.softmax import softmax
from ..ops.rnn.rnn import lstm
from ..plan.costs.node_cost import call_of, unsupported_reason
from ..plan.plan import Plan
from ..runtime.vulkan.shaders import load_manifest
from ..topology.device_spec import DeviceSpec
from ..topology.tuned_variants import TunedVariants


@dataclass(frozen=True, slots=True)
class Tunable:
    """A call with several variants.

    Parameters
    ----------
    names
        The names of all variants, the static choice first.
    """

    key: str
    op: Op
    call: Call
    names: tuple[str, ...]


def calls_of(
    graph: Graph, spec: DeviceSpec, only: Collection[int] | None = None
) -> dict[str, Tunable]:
    """Return the distinct calls of a graph that a device can run with several variants, by key.

    Parameters
    ----------
    only
        The ids of nodes to consider; all by default.
    """
    out: dict[str, Tunable] = {}
    seen: set[int] = set()
    untuned = replace(spec, limits=replace(spec.limits, tuned=TunedVariants()))
    for node in graph.ops:
        op, signature = node.declaration, graph.signatures[node.id]
        if op.kernel is None or node.id in graph.views or signature in seen:
            continue
        if only is not None and node.id not in only:
            continue
        seen.add(signature)
        call = call_of(untuned, graph, node)
        names = choice_of(op, call).of
        if len(names) > 1 and unsupported_reason(untuned, graph, node) is None:
            key = cache_key(op, call)
            out[key] = Tunable(key, op, call, names)
    return out


def planned_calls(graph: Graph, plan: Plan, spec: DeviceSpec) -> dict[str, Tunable]:
    """Return the calls of `calls_of` that a plan of the graph places on a device."""
    device = plan.topology.index(spec.name)
    here = {node for split in plan.splits if split.device == device for node in split.nodes}
    return calls_of(graph, spec, here)


@cache
def shader_hash(op: str) -> str:
    """Return a hash of an op's shaders, which changes when they change."""
    kernel, manifest = get_op(op).kernel, load_manifest()
    names = kernel.shaders if kernel is not None else ()
    text = " ".join(str(manifest[n]["sha256"]) for n in sorted(names) if n in manifest)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def typical_graph() -> Graph:
    """Return a graph with calls that are typical of models, the short ones first."""
    outputs: list[Tensor] = []
    numbers = count()

    def some(*shape: int, dtype: str = FLOAT32) -> Tensor:
        return input(f"x{next(numbers)}", shape, dtype)

    for size in (64, 256, 512, 1024):
        outputs.append(matmul(some(size, size), some(size, size)))
        outputs.append(matmul(some(size, size), some(size, size), transpose_b=True))
    for m, k, n in ((1, 768, 3072), (1, 4096, 4096), (128, 768, 768), (128, 768, 3072)):
        outputs.append(matmul(some(m, k), some(k, n), some(n)))
        outputs.append(matmul(some(m, k), some(n, k), transpose_b=True))
    for word in (MIXED, HALF):
        for m, k, n in ((512, 512, 512), (128, 768, 3072)):
            plain = matmul(some(m, k), some(n, k), transpose_b=True)
            outputs.append(apply("matmul", plain.inputs, {**plain.attrs, PRECISION: word}))
    outputs.append(matmul(some(1, 4096, dtype=FLOAT16), some(4096, 4096, dtype=FLOAT16)))
    for size in (256, 1024):
        factors = some(size, size, dtype=FLOAT16), some(size, size, dtype=FLOAT16)
        outputs.append(matmul(*factors, transpose_b=True))
    for m, name in ((1, "q4_K"), (4, "q4_K"), (16, "q4_K"), (1, "q8_0")):
        words = some(2048, format_of(name).row_words(2048), dtype=UINT32)
        outputs.append(apply("quantized_linear", (some(m, 2048), words), {"format": name}))
    for m, name in ((1, "q4_K"), (1, "q8_0"), (4, "q4_K")):
        words = some(2048, format_of(name).row_words(2048), dtype=UINT32)
        rounded = {"format": name, PRECISION: BYTES}
        outputs.append(apply("quantized_linear", (some(m, 2048), words), rounded))
    for m, name in ((128, "q4_K"), (512, "q4_K"), (512, "q6_K"), (512, "q8_0")):
        words = some(2048, format_of(name).row_words(2048), dtype=UINT32)
        mixed = {"format": name, PRECISION: MIXED}
        outputs.append(apply("quantized_linear", (some(m, 2048), words), mixed))
        if m == 512:  # the rows of a norm
            fp16 = some(m, 2048, dtype=FLOAT16)
            outputs.append(apply("quantized_linear", (fp16, words), mixed))
    for name in ("q4_K", "q8_0"):
        pair = [some(2048, format_of(name).row_words(2048), dtype=UINT32) for _ in range(2)]
        gated: dict[str, AttrValue] = {"format": name, "normed": True, "gate": "silu"}
        gated |= {"eps": 1e-5, PRECISION: MIXED}
        outputs.append(apply("merged_linear", (some(1, 2048), some(2048), *pair), gated))
        qkv = [some(n, format_of(name).row_words(2048), dtype=UINT32) for n in (2048, 256, 256)]
        heads: dict[str, AttrValue] = {"heads": 36, "head_size": 64, "rotary_dim": 64}
        heads |= {"interleaved": True, PRECISION: MIXED, "format": name, "eps": 1e-5}
        tables = some(1, 32), some(1, 32)
        one = some(1, 2048), some(2048), *qkv, *tables
        outputs.append(apply("merged_linear_rope", one, {**heads, "normed": True}))
        tables = some(512, 32), some(512, 32)
        many = some(512, 2048), *qkv, *tables
        by_heads = {"normed": False, "stacked": True, "by_heads": True}
        outputs.append(apply("merged_linear_rope", many, {**heads, **by_heads}))
    for m, k, n in ((128, 768, 3072), (512, 512, 512)):
        for name, word in (("f16", MIXED), ("bf16", BRAIN)):
            words = some(n, format_of(name).row_words(k), dtype=UINT32)
            halved = {"format": name, PRECISION: word}
            outputs.append(apply("quantized_linear", (some(m, k), words), halved))
    for m, k, n in ((1, 1024, 1024), (128, 768, 768), (512, 512, 512)):
        int8_values = some(m, k, dtype=INT32), some(*words_shape((k, n)), dtype=UINT32)
        outputs.append(matmul_integer(*int8_values, n))
    for tokens, picks, name in (
        (1, 2, "q4_K"),
        (64, 2, "q4_K"),
        (512, 2, "q4_K"),
        (128, 8, "q8_0"),
    ):
        words = some(16, 768, format_of(name).row_words(512), dtype=UINT32)
        chosen = some(tokens, picks, dtype=INT32)
        operands = some(tokens, 512), words, chosen
        outputs.append(apply("quantized_moe_linear", operands, {"format": name}))
    for tokens in (1, 128):
        chosen = some(tokens, 2, dtype=INT32)
        outputs.append(moe_linear(some(tokens, 512), some(8, 512, 512), chosen))
    outputs.append(matmul(some(37, 512), some(512, 2048)))
    outputs.append(matmul(some(255, 255), some(255, 255)))
    outputs.append(matmul(some(1000, 1000), some(1000, 1000)))
    outputs.append(matmul(some(12, 128, 64), some(12, 64, 128)))
    outputs.append(matmul(some(12, 128, 64), some(12, 128, 64), transpose_b=True))
    for rows, columns in ((128, 768), (1536, 128), (4096, 1024)):
        outputs += [softmax(some(rows, columns)), reduce_sum(some(rows, columns), -1)]
        outputs += [softmax(some(rows, columns), 0), transpose(some(rows, columns), (1, 0))]
        outputs.append(layer_norm(some(rows, columns), some(columns), some(columns)))
        outputs.append(rms_norm(some(rows, columns), some(columns)))
    for length in (128, 512):
        q, key, value = (some(1, 12, length, 64) for _ in range(3))
        result, g = attention(q, key, value), some(1, 12, length, 64)
        outputs += [result, *attention_backward(q, key, value, g, None, result.attrs)]
        for word in (MIXED, HALF):
            attrs = {**result.attrs, PRECISION: word}
            outputs.append(apply("attention", (q, key, value), attrs))
    for length in (1, 128):
        q, caches = some(1, 32, length, 64), [some(1, 8, 2048, 64) for _ in range(2)]
        new = some(1, 8, length, 64), some(1, 8, length, 64)
        used = some(dtype=INT32)
        outputs.append(attention(q, *caches, causal=True, kv_len=used, k_new=new[0], v_new=new[1]))
        in_q8_0 = [some(1, 8, 2048, row_words(64), dtype=UINT32) for _ in range(2)]
        attrs = {**outputs[-1].attrs, "columns": 64}
        outputs.append(apply("attention_with_kvcache", (q, *in_q8_0, used, *new), attrs))
    for time, batch, hidden in ((50, 16, 128), (100, 4, 64)):
        weights = some(1, 4 * hidden, hidden), some(1, 4 * hidden, hidden)
        outputs.append(lstm(some(time, batch, hidden), *weights)[0])
    for channels, side in ((64, 56), (128, 28), (256, 14), (512, 7)):
        x = some(1, channels, side, side)
        outputs.append(conv(x, some(channels, channels, 3, 3), padding=1))
        outputs.append(conv(x, some(channels, channels, 1, 1)))
        outputs.append(conv(x, some(channels, 1, 3, 3), padding=1, groups=channels))
        words = some(*words_shape((9 * channels, channels)), dtype=UINT32)
        int8_activations = some(1, channels, side, side, dtype=INT32)
        outputs.append(conv_integer(int8_activations, words, channels, (3, 3), padding=1))
    outputs.append(conv(some(1, 3, 224, 224), some(64, 3, 7, 7), stride=2, padding=3))
    for channels, side in ((64, 56), (256, 14)):
        for kernel in (1, 3):
            w = some(channels, channels, kernel, kernel)
            plain = conv(some(1, channels, side, side), w, padding=kernel // 2)
            outputs.append(apply("conv", plain.inputs, {**plain.attrs, PRECISION: MIXED}))
    return build_graph(outputs)[0]
