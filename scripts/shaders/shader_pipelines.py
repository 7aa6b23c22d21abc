"""The pipelines that shader_stats.py compiles: those that calls of the case table use on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shader_cards import NVIDIA, MatrixUnits, StatsError

if TYPE_CHECKING:
    from vksched.ir.op import Call, Dispatch

_FOR_CPU_DRIVERS = (
    *("matmul_subgroup_", "matmul_gemv_cpu_", "matmul_register_", "quant_gemv_cpu_"),
    *("attention_subgroup_", "norm_subgroup", "softmax_subgroup"),
    *("reduce_vec4_", "reduce_workgroup_", "norm_tiled", "transpose_tiled"),
)
"""Written for CPU drivers: for subgroups of 4 or 8 lanes, with more values than registers, which
are on a stack there, or with neighbouring lanes far apart in memory.
"""
COOPMAT_NAME = "_coopmat"
"""In the names of those written for cooperative matrices, which not every card has: in a table of
their own.
"""
MIXED_DOT_NAME = "_dot2_"
"""In the names of those with dot products that Mesa knows from 26 on: a test of their own."""
_READS_64 = "_64"
"""The end of the names of those that read words of 64 bits, which only CPU drivers gain from."""


OF_FP16_ROWS = ("q8_0", "q4_K", "q6_K")
"""Formats whose products of float16 rows are compiled for cooperative matrices, too."""
MAX_NAMED_STEPS = 4
"""Steps of a pipeline that its line names."""


def is_for_cards(variant: str) -> bool:
    """Return True if a GPU may get a shader; others are left out of the tables unless named."""
    others = variant.startswith(_FOR_CPU_DRIVERS) or variant.endswith(_READS_64)
    return not others and COOPMAT_NAME not in variant and MIXED_DOT_NAME not in variant


@dataclass(frozen=True)
class Pipeline:
    """A variant with specialisation constants, of which those not named keep their defaults, and
    with the steps that are written into it, calls and words. subgroup: the size that it requires.
    """

    variant: str
    constants: tuple[tuple[str, int], ...] = ()
    calls: tuple[tuple[str, tuple[int, ...]], ...] = ()
    words: tuple[int, ...] = ()
    subgroup: int = 0

    def __str__(self) -> str:
        named = [f"{name}={value}" for name, value in self.constants]
        steps = [name for name, _ in self.calls]
        if len(steps) > MAX_NAMED_STEPS:
            steps[MAX_NAMED_STEPS - 1 :] = [f"... {len(steps)} steps"]
        if steps:
            named.append(f"then {', '.join(steps)}")
        return f"{self.variant} ({', '.join(named)})" if named else self.variant


def used_pipelines(variants: Collection[str] | None = None, registers: int = 255) -> list[Pipeline]:
    """Return the variants, all when none are named, with all constants that calls use on a GPU.

    registers: number for an invocation. Fewer than the default are those of Intel's GPUs: the
    pipelines are then those of Intel only, without the defaults of shaders that no call uses.
    """
    try:
        from vksched.common.errors import UnsupportedOp
        from vksched.ir.op import Call, get_op, view_offset
        from vksched.ops.lowering.lower import lower, variants_of
        from vksched.runtime.vulkan.shaders import load_manifest
        from vksched.testing.op_table import CASES, FUNCTIONS, PRECISE
        from vksched.topology.limits import Limits
    except ImportError as error:
        raise StatsError(f"{error}; try .venv/bin/python, which `make setup` makes") from None
    all_variants = load_manifest()
    unknown = sorted(set(variants or ()) - set(all_variants))
    if unknown:
        raise StatsError(f"no shader variant is named {', '.join(unknown)}")
    wanted = sorted(variants or filter(is_for_cards, all_variants))
    intel = registers < Limits().registers
    card = Limits(
        max_invocations=1024,
        max_local_size=(1024, 1024, 1024),
        shared_bytes=65536,
        max_buffer_bytes=1 << 32,
        subgroup_size=32 if intel else 64,
        float16=True,
        registers=registers,
        storage_buffers=16,
        memory_model=True,
        integer_dot=True,
    )
    least = Limits(registers=registers)
    calls = {(case.op, case.call(card)) for case in (*CASES, *PRECISE)}
    for graph in (case.graph for case in FUNCTIONS):
        for n in graph.ops:
            calls.add((n.op, Call(graph.input_types(n), n.type, n.attrs, card)))
    used = set() if intel else {Pipeline(name) for name in wanted}
    for name, call in calls:
        op = get_op(name)
        if op.kernel is None or view_offset(op, call.inputs, call.attrs) is not None:
            continue
        here = (replace(call, limits=limits) for limits in (card, least))
        for run in (replace(c, variant=name) for c in here for name in variants_of(op, c)):
            with contextlib.suppress(UnsupportedOp):
                for dispatch in lower(op, run).dispatches:
                    if dispatch.shader in wanted:
                        steps, changed = dispatch.steps, _changed(dispatch)
                        used.add(Pipeline(dispatch.shader, changed, steps.calls, steps.words))
    used |= {p for p in _subgroup_pipelines(calls, registers) if p.variant in wanted}
    return sorted(used, key=lambda p: (p.variant, p.constants, p.calls, p.words))


def _subgroup_pipelines(calls: Collection[tuple[str, Call]], registers: int) -> Iterator[Pipeline]:
    """Yield the pipelines of calls that require a subgroup size and no cooperative matrices, as a
    card with 64 lanes and so many registers has them. They are compiled in the usual size of each
    card, on Intel in all sizes.
    """
    from vksched.common.errors import UnsupportedOp
    from vksched.ir.op import get_op
    from vksched.ops.lowering.lower import lower, variants_of
    from vksched.topology.limits import Limits

    card = Limits(
        max_invocations=1024,
        max_local_size=(1024, 1024, 64),
        shared_bytes=49152,
        storage_buffers=16,
        subgroup_size=64,
        subgroup_sizes=(64,),
        registers=registers,
        subgroup_shuffle=True,
        subgroup_arithmetic=True,
        float16=True,
    )
    for name, call in calls:
        op, here = get_op(name), replace(call, limits=card)
        if name not in ("quantized_linear", "merged_linear"):
            continue
        for run in (replace(here, variant=variant) for variant in variants_of(op, here)):
            with contextlib.suppress(UnsupportedOp):
                for dispatch in lower(op, run).dispatches:
                    if dispatch.subgroup:
                        steps, changed = dispatch.steps, _changed(dispatch)
                        yield Pipeline(dispatch.shader, changed, steps.calls, steps.words)


def _changed(dispatch: Dispatch) -> tuple[tuple[str, int], ...]:
    """Return the constants of a dispatch that are not the shader's defaults."""
    from vksched.runtime.vulkan.shaders import load_shader

    defaults = {name: default for name, _, default in load_shader(dispatch.shader).constants}
    constants = sorted(dict(dispatch.constants).items())
    return tuple((name, value) for name, value in constants if defaults[name] != value)


def coopmat_pipelines(units: MatrixUnits) -> list[Pipeline]:
    """Return the pipelines with cooperative matrices, in all tiles: products of all layouts and
    of quantized weights, convolutions, attention.
    """
    try:
        from vksched.ir.op import get_op
        from vksched.ops.lowering.lower import lower, variants_of
        from vksched.topology.limits import Limits
    except ImportError as error:
        raise StatsError(f"{error}; try .venv/bin/python, which `make setup` makes") from None
    card = Limits(
        max_invocations=1024,
        max_local_size=(1024, 1024, 64),
        shared_bytes=49152,
        subgroup_size=32,
        subgroup_sizes=units.sizes,
        subgroup_shuffle=True,
        storage_buffers=16,
        float16=True,
        int8=True,
        registers=units.maker.registers,
        cores=128,
        memory_model=True,
        matrices=(
            *(f"float16*float16+{sums} {units.fp16}" for sums in ("float32", "float16")),
            f"int8*int8+int32 {units.int8}",
        ),
        fp16_sums_faster=units.maker is NVIDIA,
    )
    found = set[Pipeline]()
    for name, call in _coopmat_calls():
        op, call = get_op(name), replace(call, limits=card)
        for variant in variants_of(op, call):
            for dispatch in lower(op, replace(call, variant=variant)).dispatches:
                if dispatch.subgroup == units.lanes:
                    changed = _changed(dispatch)
                    found.add(Pipeline(dispatch.shader, changed, subgroup=dispatch.subgroup))
    return sorted(found, key=lambda p: (p.variant, p.constants))


def _coopmat_calls() -> Iterator[tuple[str, Call]]:
    """Yield ops and calls of theirs, of each way in which kernels for cooperative matrices
    differ.
    """
    from vksched.common.dtypes import FLOAT16, FLOAT32, INT32, UINT32, TensorType
    from vksched.ir.attrs import Attrs
    from vksched.ir.op import Call
    from vksched.ir.tensor import Tensor, input
    from vksched.ops.attention.attention import attention
    from vksched.ops.attention.kv_q8_0 import row_words
    from vksched.ops.conv.conv import conv
    from vksched.ops.linalg.int8_weights import words_shape
    from vksched.ops.quantized.gguf_formats import FORMATS

    square, no_eights = (256, 256), (260, 260)
    for shape, dtype in ((square, FLOAT16), (no_eights, FLOAT16), (square, FLOAT32)):
        for transpose_a, transpose_b in (
            (False, False),
            (False, True),
            (True, False),
            (True, True),
        ):
            attrs = {"transpose_a": transpose_a, "transpose_b": transpose_b, "precision": "mixed"}
            types = (TensorType(shape, dtype),) * 2
            yield "matmul", Call(types, TensorType(shape, dtype), Attrs(attrs))

    n, k = square
    for name, kind in FORMATS.items():
        attrs = {"format": name, "precision": "mixed"}
        for steps in (k, 32 * k):  # of long sums also parts
            words = TensorType((n, kind.row_words(steps)), UINT32)
            for dtype in (FLOAT32, FLOAT16) if name in OF_FP16_ROWS else (FLOAT32,):
                types = TensorType((n, steps), dtype), words
                yield "quantized_linear", Call(types, TensorType(square), Attrs(attrs))
    words = TensorType((n, kind.row_words(k)), UINT32)
    gated = {"normed": False, "gate": "silu", "eps": 0.0}
    for dtype, stored in ((FLOAT32, {}), (FLOAT16, {"dtype": FLOAT16})):
        types = TensorType(square, dtype), words, words
        result = TensorType(square, stored.get("dtype", FLOAT32))
        yield "merged_linear", Call(types, result, Attrs({**attrs, **gated, **stored}))

    tables = (TensorType((n, 32)),) * 2
    heads = {"heads": 8, "head_size": 64, "rotary_dim": 64, "interleaved": False}
    stored = {"stacked": True, "by_heads": True, "dtype": FLOAT16, "overflow_nan": True}
    types = TensorType(square, FLOAT16), words, words, words, *tables
    rotated = Attrs({**attrs, "normed": False, "eps": 0.0, **heads, **stored})
    yield "merged_linear_rope", Call(types, TensorType((3 * n * n,), FLOAT16), rotated)

    words = TensorType(words_shape(square), UINT32)
    types = (TensorType(square, INT32), words, TensorType((), INT32), TensorType((), INT32))
    attrs = {"columns": 256, "signed": False}
    yield "matmul_integer", Call(types, TensorType(square, INT32), Attrs(attrs))

    def rounded(result: Tensor) -> tuple[str, Call]:
        attrs = Attrs({**result.attrs, "precision": "mixed"})
        return result.op, Call(tuple(t.type for t in result.inputs), result.type, attrs)

    image = input("x", (1, 256, 32, 32))
    volume = input("volume", (1, 256, 8, 16, 16))
    yield rounded(conv(image, input("pointwise", (256, 256, 1, 1))))
    yield rounded(conv(image, input("w", (256, 256, 3, 3)), padding=1))
    yield rounded(conv(volume, input("deep", (256, 256, 3, 3, 3)), padding=1))

    for depth in (64, 128):
        heads = (1, 32, 256, depth)
        q, k, v = (input(name, heads) for name in ("q", "k", "v"))
        mask, used = input("mask", (256, 256)), input("used", (), INT32)
        yield rounded(attention(q, k, v, causal=True))
        yield rounded(attention(q, k, v, mask))
        for dtype in (FLOAT32, FLOAT16):
            cache = [input(name, heads, dtype) for name in ("kept_k", "kept_v")]
            yield rounded(attention(q, *cache, causal=True, kv_len=used))
        for queries in (256, 512):  # with parts of the keys, and without
            own = (input(name, (1, 32, queries, depth), FLOAT16) for name in ("q", "k", "v"))
            row, new_k, new_v = own
            held = {"kv_len": used, "k_new": new_k, "v_new": new_v}
            yield rounded(attention(row, *cache, causal=True, **held))
        rows = TensorType((1, 32, 256, row_words(depth)), UINT32)
        types = (q.type, rows, rows, used.type)
        attrs = {**attention(q, k, v, causal=True, kv_len=used).attrs, "columns": depth}
        yield "attention_with_kvcache", Call(types, q.type, Attrs({**attrs, "precision": "mixed"}))
