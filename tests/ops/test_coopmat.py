"""Products and convolutions by cooperative matrices: which calls meet them, that none is used
unmeasured with a driver that was not checked, results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
from vksched.common.dtypes import FLOAT16, FLOAT32, NDArray, Shape, TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import OUTPUT, Call, Op, get_op
from vksched.ops.attention.attention_coopmat import most_columns
from vksched.ops.attention.attention_launch import TILED
from vksched.ops.conv.conv_implicit import implicit_variants
from vksched.ops.linalg.coopmat import CONV as CONV_TILES
from vksched.ops.linalg.coopmat import MATMUL as MATMUL_TILES
from vksched.ops.linalg.coopmat import guessed_shape, guessed_tiles
from vksched.ops.linalg.int8_weights import pack_int8
from vksched.ops.linalg.matmul_kernels import PART_K, takes_fp16
from vksched.ops.linalg.matmul_kernels import TILED as MATMUL_TILED
from vksched.ops.linalg.operands import operands_of
from vksched.ops.lowering.lower import cache_key, choice_of, lower, variants_of
from vksched.ops.lowering.variants import COOPMAT
from vksched.ops.quantized.quant_gemm_tiled import PREFIX
from vksched.runtime.vulkan import device_probe
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.coopmat_tolerance import CUT, coopmat_tolerance
from vksched.testing.kernel_runner import Runner, check
from vksched.testing.op_cases.conv.conv import CASES as CONVOLUTIONS
from vksched.testing.op_cases.conv.conv import call as convolution
from vksched.testing.op_cases.conv.conv import operands
from vksched.testing.op_cases.conv.precision import with_precision
from vksched.testing.op_cases.linalg.attention import CASES as ATTENTION
from vksched.testing.op_cases.linalg.attention_with_kvcache import CASES as CACHED
from vksched.testing.op_cases.linalg.attention_with_kvcache import cached, halved, narrow
from vksched.testing.op_cases.linalg.int8 import CASES as INTEGERS
from vksched.testing.op_cases.linalg.int8 import convolution as integer_convolution
from vksched.testing.op_cases.linalg.int8 import int8_values
from vksched.testing.op_cases.linalg.int8 import product as integer_product
from vksched.testing.op_cases.linalg.matmul import CASES, FP16
from vksched.testing.op_cases.linalg.quantized_linear import OF_MANY_ROWS, linear
from vksched.testing.op_cases.op_sample import Mismatch, OpSample, floats
from vksched.topology.limits import Limits
from vksched.topology.tuned_variants import TunedVariants
from vksched.tuning.autotuner import identity_of
from vksched.tuning.tunable_calls import calls_of, shader_hash
from vksched.tuning.variant_cache import TuningResult, VariantCache

MATMUL, CONV = get_op("matmul"), get_op("conv")
CARD = Limits(
    max_invocations=1024,
    max_local_size=(1024, 1024, 64),
    shared_bytes=65536,
    subgroup_size=32,
    subgroup_sizes=(32,),
    subgroup_shuffle=True,
    storage_buffers=16,
    float16=True,
    int8=True,
    matrices=(
        *("float16*float16+float16 16x16x16", "float16*float16+float32 16x16x16"),
        *("uint8*uint8+uint32 16x16x32", "int8*int8+int32 16x16x32"),
    ),
)
LARGE, SMALL = "coopmat 16x16x16 128x128", "coopmat 16x16x16 64x64"
UNTRANSPOSED = [f"{LARGE} untransposed", f"{SMALL} untransposed"]
TALL = "coopmat 16x16x16 128x64"
OF_INT8 = ["coopmat 16x16x32 128x128", "coopmat 16x16x32 64x64"]


def call_of(
    m: int, k: int, n: int, limits: Limits = CARD, dtype: str = FLOAT16, word: str = ""
) -> Call:
    attrs = {"transpose_a": False, "transpose_b": False} | ({"precision": word} if word else {})
    types = TensorType((m, k), dtype), TensorType((k, n), dtype)
    return Call(types, TensorType((m, n), dtype), Attrs(attrs), limits)


def coopmats_of(call: Call, op: Op = MATMUL) -> list[str]:
    return [name for name in variants_of(op, call) if COOPMAT in name]


def test_coopmats_come_last_so_that_none_is_used_unmeasured() -> None:
    for m in (1, 4, 16, 100, 1000):
        for limits in (CARD, replace(CARD, software=True, subgroup_sizes=(8,), subgroup_size=8)):
            call = call_of(m, 64, 1000, limits)
            names = variants_of(MATMUL, call)
            coopmats = coopmats_of(call)
            assert names[len(names) - len(coopmats) :] == tuple(coopmats)
            assert not choice_of(MATMUL, call).variant.startswith("coopmat")
            assert bool(coopmats) == (m >= 16)


def test_a_measured_coopmat_is_used_there_and_for_like_sizes() -> None:
    call = call_of(512, 512, 512)
    tuned = TunedVariants({cache_key(MATMUL, call): LARGE})
    for m in (512, 500):
        here = call_of(m, 512, 512, replace(CARD, tuned=tuned))
        (dispatch,) = lower(MATMUL, here).dispatches
        assert dispatch.shader == "matmul_coopmat_float16"
        assert dispatch.groups == (4, 4, 1)
        assert dispatch.subgroup == 32 and dict(dispatch.constants)["LOCAL_X"] == 128


def test_only_what_may_be_rounded_meets_coopmats() -> None:
    own = [LARGE, SMALL]
    assert coopmats_of(call_of(64, 64, 64)) == [*UNTRANSPOSED, *own]
    for word, coopmats in (("", []), ("mixed", own), ("float16", own)):
        assert coopmats_of(call_of(64, 64, 64, dtype=FLOAT32, word=word)) == coopmats


@pytest.mark.parametrize(
    ("change", "coopmats"),
    [
        ({}, [LARGE, SMALL]),
        ({"shared_bytes": 16384}, [SMALL]),
        ({"subgroup_sizes": ()}, []),
        ({"max_invocations": 64}, []),
        ({"subgroup_sizes": (16, 32)}, [SMALL]),
        ({"float16": False}, []),
        ({"matrices": ("uint8*uint8+uint32 16x16x32",)}, []),
        ({"matrices": ("float16*float16+float32 24x24x24",)}, []),
        (
            {"matrices": ("float16*float16+float32 16x8x16",)},
            [
                "coopmat 16x8x16 128x128",
                "coopmat 16x8x16 64x64",
            ],
        ),
    ],
)
def test_coopmats_fit_the_device(change: dict[str, object], coopmats: list[str]) -> None:
    found = coopmats_of(call_of(64, 64, 64, replace(CARD, **change)))
    assert found == [*(f"{name} untransposed" for name in coopmats), *coopmats]


def test_few_registers_without_a_subgroup_size_have_no_tiles() -> None:
    limits = replace(CARD, registers=128, subgroup_sizes=())
    for op, call in (
        (MATMUL, call_of(64, 64, 64, limits)),
        (CONV, mixed_conv(64, 20, limits)),
        (get_op("attention"), attention_call((1, 12, 128, 64), 128, limits)),
    ):
        assert variants_of(op, call) and coopmats_of(call, op) == []


def test_a_factor_that_lies_across_k_may_stay_so() -> None:
    """Both along k: there is nothing to turn. Whole eights of halves are read at once."""
    plain = call_of(256, 64, 256)
    attrs = {**plain.attrs, "transpose_b": True}
    along = replace(plain, inputs=(plain.inputs[0],) * 2, attrs=Attrs(attrs))
    assert coopmats_of(along) == [LARGE, SMALL]
    for call, variant, shader in (
        (plain, UNTRANSPOSED[0], "matmul_coopmat_aligned_float16"),
        (plain, LARGE, "matmul_coopmat_float16"),
        (along, LARGE, "matmul_coopmat_aligned_float16"),
        (call_of(256, 60, 256), UNTRANSPOSED[0], "matmul_coopmat_float16"),
        (call_of(256, 64, 252), UNTRANSPOSED[0], "matmul_coopmat_float16"),
    ):
        (dispatch,) = lower(MATMUL, replace(call, variant=variant)).dispatches
        assert dispatch.shader == shader
        assert dict(dispatch.constants).get("UNTRANSPOSED", 0) == (variant in UNTRANSPOSED)


@pytest.mark.parametrize("word", ["", "mixed"])
def test_weights_of_few_bits_are_unpacked_for_the_product_that_was_measured(word: str) -> None:
    """The last part of the weight may be too small for it."""
    case = linear("q4_K", (64, 2048), 8200, True)
    case = with_precision(case, word) if word else case
    call = case.call(replace(CARD, max_buffer_bytes=1 << 26))
    op = get_op("quantized_linear")
    every = variants_of(op, call)
    names = [name for name in every if name.startswith("dequantize ")]
    # the others dequantize in the product's own kernel: test_quant_gemm.py, _tiled.py
    assert all(name.startswith((COOPMAT, PREFIX)) for name in every if name not in names)
    assert len(names) > 2 and (word == "mixed") == (len(every) > len(names))
    coopmats = [name for name in names if LARGE in name]
    assert bool(coopmats) == (word == "mixed")
    for name in names:
        steps = lower(op, replace(call, variant=name)).dispatches
        unpack, product, unpack_rest, rest = steps
        assert unpack.shader == unpack_rest.shader == "dequantize_weights_q4_k"
        kind = name.split(" ")[1]
        assert f"_{kind}_" in product.shader or f"_vec4_{kind}_" in product.shader
        assert "coopmat" not in rest.shader
    software = replace(call, limits=replace(CARD, software=True))
    guess, *others = variants_of(op, software)
    assert guess == "dequantize" and all(name.startswith("dequantize coopmat ") for name in others)


def test_what_is_read_as_float32_is_transposed() -> None:
    """To keep it brings nothing there, and takes more registers than some cards have."""
    sizes = (256, 64, 256), (256, 62, 256), (256, 64, 254), (256, 2 * PART_K, 256)
    for (m, k, n), dtype in ((sizes[0], FLOAT32), *((each, FLOAT16) for each in sizes[1:])):
        call = call_of(m, k, n, replace(CARD, max_buffer_bytes=1 << 30), dtype, "mixed")
        assert coopmats_of(call) == [LARGE, SMALL]
        dispatches = lower(MATMUL, replace(call, variant=LARGE)).dispatches
        assert "matmul_coopmat_float32" in {dispatch.shader for dispatch in dispatches}


def test_amd_has_coopmats_for_subgroups_of_both_sizes() -> None:
    amd = replace(CARD, subgroup_size=64, subgroup_sizes=(32, 64))
    calls = {
        MATMUL: call_of(256, 256, 256, amd),
        CONV: mixed_conv(64, 20, amd),
        get_op("attention"): attention_call((1, 12, 128, 64), 128, amd),
    }
    for op, call in calls.items():
        plain = (
            name.partition(" untransposed") for name in coopmats_of(replace(call, limits=CARD), op)
        )
        names = [
            f"{name}{of}{untransposed}" for name, untransposed, _ in plain for of in ("", " of 64")
        ]
        assert coopmats_of(call, op) == names
        for name in names:
            run = lower(op, replace(call, variant=name)).dispatches
            (coopmat,) = (d for d in run if "_coopmat" in d.shader)
            assert coopmat.subgroup == (64 if " of 64" in name else 32)
            assert dict(coopmat.constants)["LOCAL_X"] == 4 * coopmat.subgroup
    intel = replace(CARD, subgroup_sizes=(8, 16, 32), subgroup_size=32)
    assert coopmats_of(call_of(256, 256, 256, intel)) == [UNTRANSPOSED[1], SMALL]


def test_sizes_that_are_no_multiple_of_vec4_are_packed_first() -> None:
    call = replace(call_of(64, 62, 61, dtype=FLOAT32, word="mixed"), variant=SMALL)
    shaders = [dispatch.shader for dispatch in lower(MATMUL, call).dispatches]
    assert shaders == ["matmul_pack", "matmul_pack", "matmul_coopmat_float32"]


def mixed_conv(rows: int, side: int, limits: Limits = CARD, **more: Any) -> Call:
    case = convolution("conv", operands((2, 3, side, side), (rows, 3, 3, 3), rows), "", **more)
    return replace(case, attrs={**case.attrs, "precision": "mixed"}).call(limits)


def test_convolutions_meet_coopmats_where_a_product_pays() -> None:
    for rows, side, found in ((64, 9, True), (16, 5, True), (15, 9, False), (64, 4, False)):
        call = mixed_conv(rows, side)
        names = variants_of(CONV, call)
        coopmats = coopmats_of(call, CONV)
        assert coopmats == ([TALL, SMALL] if found else [])
        assert names[len(names) - len(coopmats) :] == tuple(coopmats)
        # 27 steps: the implicit product would pack the weights
        assert choice_of(CONV, call).variant == "im2col"
    assert coopmats_of(mixed_conv(64, 9, replace(CARD, float16=False)), CONV) == []


@pytest.mark.parametrize(
    ("more", "guarded"),
    [
        ({}, 1),  # lines of 27 steps are packed
        ({"padding": 1}, 2),
        ({"padding": (0, 1, 0, 0)}, 1),
        ({"padding": (0, 0, 1, 0)}, 2),
    ],
)
def test_convolutions_test_the_axes_that_reach_over_an_edge(
    more: dict[str, Any], guarded: int
) -> None:
    call = replace(mixed_conv(64, 20, **more), variant=SMALL)
    pack_int8, product = lower(CONV, call).dispatches
    assert (pack_int8.shader, product.shader) == ("matmul_pack", "conv_coopmat")
    assert dict(product.constants)["GUARDED"] == guarded
    assert product.subgroup == 32 and product.barrier


def test_long_convolutions_are_cut_into_dispatches() -> None:
    x, w, result = ((8, 512, 256, 256), (512, 512, 3, 3), (8, 512, 254, 254))
    small = mixed_conv(64, 9)
    types = (TensorType(x, FLOAT32), TensorType(w, FLOAT32))
    call = Call(types, TensorType(result, FLOAT32), small.attrs, CARD, TALL)
    dispatches = lower(CONV, call).dispatches
    cuts = [(dict(d.push)["first_item"], dict(d.push)["last_item"]) for d in dispatches]
    assert [first for first, _ in cuts] == [0, *(last for _, last in cuts[:-1])]
    assert cuts[-1][1] == 4 * -(-8 * 254 * 254 // 64)
    assert all((last - first) * 2 * 128 * 64 * 512 * 9 <= 1e11 for first, last in cuts)


def attention_call(q: Shape, keys: int, limits: Limits = CARD, word: str = "mixed") -> Call:
    k = (1, q[1], keys, q[3])
    types = TensorType(q), TensorType(k), TensorType(k)
    inputs = [vs.input(name, t.shape) for name, t in zip("qkv", types, strict=True)]
    attrs = {**vs.attention(*inputs).attrs, "precision": word}
    return Call(types, TensorType(q), Attrs(attrs), limits)


def test_attention_of_many_queries_meets_coopmats() -> None:
    coopmat = "coopmat 16x16x16 64x32"
    for queries, keys, depth, found in (
        *((128, 128, 64, True), (16, 16, 8, True), (64, 64, 128, True)),
        *((15, 128, 64, False), (128, 15, 64, False), (64, 64, 129, False)),
    ):
        call = attention_call((1, 12, queries, depth), keys)
        names = variants_of(get_op("attention"), call)
        assert (names[-1] == coopmat) == found
        assert names.count(coopmat) == found
        assert choice_of(get_op("attention"), call).variant in TILED
    for change in (
        {"matrices": ("float16*float16+float32 8x32x16", "float16*float16+float32 24x24x8")},
        {"subgroup_shuffle": False},
        {"subgroup_sizes": (8, 16)},  # fewer lanes than a matrix has rows
        {"subgroup_sizes": (128,)},
        {"shared_bytes": 16384},
        {"max_invocations": 64},
    ):
        call = attention_call((1, 12, 128, 64), 128, replace(CARD, **change))
        found = "8x32x16" in str(change.get("matrices"))
        assert len(coopmats_of(call, get_op("attention"))) == found, change
    call = attention_call((1, 12, 128, 64), 128, word="float32")
    assert coopmats_of(call, get_op("attention")) == []


def test_attention_by_coopmats_repeats_rows_itself() -> None:
    """What is not finite may come of values that weigh nothing; no dispatch repeats it."""
    call = attention_call((1, 2, 40, 200), 900)
    call = replace(call, inputs=tuple(TensorType((1, 2, n, 64)) for n in (40, 900, 900)))
    types = (*call.inputs[:2], TensorType((1, 2, 900, 200)))
    call = replace(call, inputs=types, variant="coopmat 16x16x16 64x32")
    *products, combine = lower(get_op("attention"), call).dispatches
    assert {d.shader for d in products} == {"attention_coopmat"}
    assert [dict(d.push)["columns"] for d in products] == [128, 72]
    assert combine.shader == "attention_combine"
    assert len({(dict(d.push)["part_keys"], d.groups[1]) for d in products}) == 1
    assert products[0].subgroup == 32


def test_a_prompt_attends_to_the_cache_and_to_its_own_keys_in_one_dispatch() -> None:
    q, cache, new = (TensorType((1, h, n, 64)) for h, n in ((32, 512), (4, 4096), (4, 512)))
    x = [vs.input(f"x{i}", t.shape) for i, t in enumerate((q, cache, cache, new, new))]
    y = vs.attention(*x[:3], kv_len=7, k_new=x[3], v_new=x[4], causal=True)
    attrs = Attrs({**y.attrs, "precision": "mixed"})
    types = (q, cache, cache, TensorType((), "int32"), new, new)
    op = get_op("attention_with_kvcache")
    call = Call(types, q, attrs, CARD)
    for variant in variants_of(op, call):
        (one,) = lower(op, replace(call, variant=variant)).dispatches
        assert one.operands == (0, 1, 2, 3, 4, 5, OUTPUT), variant
    few = replace(call, limits=replace(CARD, storage_buffers=6))
    assert len(lower(op, replace(few, variant="tiled 32")).dispatches) == 5


CHECKED = replace(CARD, coopmat_checked=True)


def guess_of(op: Op, call: Call, limits: Limits = CHECKED) -> str:
    choice = choice_of(op, replace(call, limits=limits))
    assert choice.variant == choice.of[0] and sorted(choice.of) == sorted(set(choice.of))
    return choice.variant if COOPMAT in choice.variant else ""


@pytest.mark.parametrize(
    ("m", "k", "n", "guess"),
    [
        (512, 1024, 1024, LARGE),  # 32 workgroups
        (384, 1024, 1024, SMALL),  # 24
        (128, 768, 768, SMALL),
        (33, 64, 64, SMALL),  # 33 of 64 rows are of the product
        (31, 64, 64, ""),
        (64, 64, 31, ""),
        (64, 15, 64, ""),  # of 32 steps
        (64, 16, 64, SMALL),
        (1, 4096, 4096, ""),
        (2048, 4096, 16, ""),
    ],
)
def test_the_guess_of_a_checked_driver_follows_counts(m: int, k: int, n: int, guess: str) -> None:
    for word, dtype in (("mixed", FLOAT32), ("float16", FLOAT32), ("", FLOAT16)):
        assert guess_of(MATMUL, call_of(m, k, n, dtype=dtype, word=word)) == guess
    assert guess_of(MATMUL, call_of(m, k, n, dtype=FLOAT32)) == ""
    software = replace(CHECKED, software=True, subgroup_sizes=(8,), subgroup_size=8)
    assert guess_of(MATMUL, call_of(m, k, n), software) == ""
    assert guess_of(MATMUL, call_of(m, k, n), CARD) == ""


def test_batches_count_as_workgroups() -> None:
    attrs = Attrs({"transpose_a": False, "transpose_b": True})
    for batches, guess in ((32, LARGE), (31, SMALL)):
        types = (TensorType((batches, 128, 64), FLOAT16),) * 2
        call = Call(types, TensorType((batches, 128, 128), FLOAT16), attrs, CHECKED)
        assert guess_of(MATMUL, call) == guess


def test_small_gpus_are_full_with_few_workgroups() -> None:
    call = call_of(256, 1024, 512)  # 8 workgroups
    for cores, guess in ((12, LARGE), (24, LARGE), (25, SMALL), (132, SMALL), (0, SMALL)):
        assert guess_of(MATMUL, call, replace(CHECKED, cores=cores)) == guess
    call = call_of(1024, 1024, 1024)  # 64, the size that was measured on an H100
    assert guess_of(MATMUL, call, replace(CHECKED, cores=132)) == LARGE


def test_few_coopmats_are_faster_by_the_model_than_float32_on_all_cores() -> None:
    """8 workgroups on 132 cores: an H100 multiplies 157 / 47 as fast in tiles of 64 x 64
    (docs/performance/negative-results.md), so split sums of float32 take longer.
    """
    types = TensorType((1, 512, 7, 7)), TensorType((512, 512, 3, 3))
    attrs = {**mixed_conv(64, 20).attrs, "begin": (1, 1), "end": (1, 1)}
    limits = replace(CHECKED, cores=132)
    call = Call(types, TensorType((1, 512, 7, 7)), Attrs(attrs), limits)
    assert guess_of(CONV, call, limits) == SMALL
    split, time = next(iter(implicit_variants(call).items()))
    assert " split " in split and variants_of(CONV, call)[1] == split
    assert 132 * 64 * 64 * 512 * 9 * 47 / 157 < time


def test_a_measurement_wins_over_the_guess() -> None:
    call = call_of(1024, 1024, 1024)
    other = next(name for name in variants_of(MATMUL, call) if COOPMAT not in name)
    tuned = TunedVariants({cache_key(MATMUL, call): other})
    choice = choice_of(MATMUL, replace(call, limits=replace(CHECKED, tuned=tuned)))
    assert choice.variant == other and choice.of[0] == LARGE


def test_the_guess_has_the_shape_that_was_checked() -> None:
    """The largest one, and the larger subgroups of AMD's GPUs."""
    call, shapes = call_of(1024, 1024, 1024), ("16x8x16", "16x16x16", "16x8x8")
    many = replace(CHECKED, matrices=tuple(f"float16*float16+float32 {s}" for s in shapes))
    assert guess_of(MATMUL, call, many) == LARGE
    assert guess_of(MATMUL, call, replace(many, subgroup_sizes=(32, 64))) == f"{LARGE} of 64"
    intel = replace(many, matrices=("float16*float16+float32 8x16x16",), subgroup_sizes=(16, 32))
    assert guess_of(MATMUL, call, intel) == "coopmat 8x16x16 64x64"
    for limits in (many, intel):
        shape, lanes = guessed_shape(limits) or ((), 0)
        for of in (MATMUL_TILES, CONV_TILES):
            tiles = guessed_tiles(limits, of)
            assert tiles and all((t.shape, t.subgroup) == (shape, lanes) for t in tiles)


def test_guesses_of_convolutions_and_attention() -> None:
    assert guess_of(CONV, mixed_conv(64, 20)) == SMALL
    assert guess_of(CONV, mixed_conv(128, 66)) == TALL
    assert guess_of(CONV, mixed_conv(16, 20)) == "", "16 of 64 rows"
    attention, coopmat = get_op("attention"), "coopmat 16x16x16 64x32"
    for queries, keys, guess in (
        (128, 128, coopmat),
        (32, 32, coopmat),
        (31, 128, ""),
        (128, 15, ""),
        (1, 128, ""),
    ):
        assert guess_of(attention, attention_call((1, 12, queries, 64), keys)) == guess
    call = attention_call((1, 12, 128, 64), 128, word="float32")
    assert guess_of(attention, call) == ""
    turing = replace(CHECKED, coopmat_attention_slow=True)
    call = attention_call((1, 12, 128, 64), 128)
    assert guess_of(attention, call, turing) == "" and coopmats_of(call, attention) == [coopmat]
    wide = attention_call((1, 12, 128, 129), 128)
    assert guess_of(attention, wide) == "", "the heads are too wide"


def test_guesses_of_quantized_weights() -> None:
    op = get_op("quantized_linear")
    for rows, word, guess in (
        (512, "mixed", "coopmat 16x16x16 256x128"),
        (64, "mixed", SMALL),
        (16, "mixed", ""),
        (1, "mixed", ""),
        (512, "", ""),
    ):
        case = linear("q4_K", (rows, 2048), 2048, False)
        case = with_precision(case, word) if word else case
        assert guess_of(op, case.call(CHECKED)) == guess


def test_codes_meet_coopmats_of_int8_unmeasured_ones_last() -> None:
    case = integer_product(64, 65, 48)
    for limits in (CARD, replace(CARD, integer_dot=True, integer_dot_fast=True)):
        names = variants_of(case.declaration, case.call(limits))
        assert list(names[-2:]) == OF_INT8 and len(names) > 3
        assert choice_of(case.declaration, case.call(limits)).variant == names[0]
    for other in (integer_product(15, 65, 48), integer_product(64, 65, 15)):
        assert coopmats_of(other.call(CARD), other.declaration) == []
    for change in (
        {"int8": False},
        {"subgroup_sizes": ()},
        {"shared_bytes": 8192},
        {"matrices": ("float16*float16+float32 16x16x16", "uint8*int8+int32 16x16x16")},
        {"matrices": ("int8*int8+int32 16x16x24",)},
    ):
        assert coopmats_of(case.call(replace(CARD, **change)), case.declaration) == [], change
    assert coopmats_of(case.call(replace(CARD, float16=False)), case.declaration) == OF_INT8


def test_a_product_of_codes_is_cut_into_tiles_of_its_unit() -> None:
    for case, rows in (
        (integer_product(300, 65, 200), 300),
        (integer_convolution((1, 5, 20, 20), (200, 5, 3, 3), begin=(1, 1)), 400),
    ):
        call = replace(case.call(CARD), variant=OF_INT8[0])
        words, product = lower(case.declaration, call).dispatches
        assert (words.shader, product.shader) == ("int8_pack_activations", "int8_gemm_coopmat")
        assert product.groups == (2, -(-rows // 128), 1) and product.subgroup == 32
        constants = dict(product.constants)
        assert (constants["LOCAL_X"], constants["MATRIX_K"], constants["DOWN"]) == (128, 32, 4)


NAMES = [name for name in vulkan_names() if device_probe.resolve(name).limits.matrices]
MIXED = [
    replace(case, attrs={**case.attrs, "precision": "mixed"})
    for case in (*CASES, *CONVOLUTIONS)
    if case.declaration.roundable_operands
]
FEW_BITS = [linear("q4_K", (70, 512), 68, True), linear("q8_0", (3, 11, 96), 24)]
ROUNDED = [
    with_precision(case, "mixed")
    for case in (*ATTENTION, *CACHED, *OF_MANY_ROWS, *FEW_BITS)
    if case.declaration.roundable_operands
]
WITH_COOPMAT = [
    case
    for case in (*FP16, *MIXED, *ROUNDED, *INTEGERS)
    if any(coopmats_of(case.call(CARD), case.declaration)) and not case.large
]


@pytest.fixture(params=NAMES or [None], scope="module")
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    if request.param is None:
        pytest.skip("no device here has cooperative matrices")
    info = device_probe.resolve(request.param)
    device = VulkanDevice(device_probe.device_spec(info), info.index)
    if not device.limits.matrices:
        pytest.skip("the shaders for cooperative matrices were left out")
    yield Runner(device)
    device.close()


def of_floats() -> tuple[vs.Tensor, NDArray, NDArray]:
    a, b = (floats(48, 48, seed=seed) for seed in range(2))
    fp16 = (x.astype(np.float16).astype(np.float64) for x in (a, b))
    return vs.matmul(vs.input("a", a.shape), vs.weight(b), name="product"), a, np.matmul(*fp16)


def of_codes() -> tuple[vs.Tensor, NDArray, NDArray]:
    a, b = int8_values(48, 70), int8_values(70, 48, signed=True)
    words = vs.constant(pack_int8(b.astype(np.int8)))
    placeholder = vs.input("a", a.shape, "int32")
    product = vs.matmul_integer(placeholder, words, 48, 7, -3, name="product")
    return product, a, (a - 7) @ (b + 3)


@pytest.mark.parametrize("build", [of_floats, of_codes])
def test_a_graph_runs_by_the_coopmat_that_was_measured(
    build: Callable[[], tuple[vs.Tensor, NDArray, NDArray]],
    runner: Runner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path))
    monkeypatch.setenv("VKSCHED_TUNE", "1")
    product, a, expected = build()
    y = vs.relu(product)
    name = runner.device.name
    with vs.Scheduler([name], precision="mixed", tune=False) as sched:
        spec = sched.devices[0].spec
        plan = sched.compile(y).plan
        assert not str(plan.node_as_dict("product")["variant"]).startswith("coopmat")
        (call,) = (c for c in calls_of(plan.graph, spec).values() if c.op.name == product.op)
    static, *_, coopmat = call.names
    assert coopmat.startswith("coopmat")
    identity = identity_of(spec)
    assert identity is not None
    seconds = dict.fromkeys(call.names, 2e-3) | {coopmat: 1e-3}
    found = TuningResult(call.key, coopmat, static, seconds, {}, shader_hash(product.op))
    VariantCache().add(identity, [found])
    with vs.Scheduler([name], precision="mixed") as sched:
        run = sched.compile(y)
        assert run.plan.node_as_dict("product")["variant"] == coopmat
        cut = 48 / 8 * CUT * float(np.abs(expected).max())
        np.testing.assert_allclose(run(a=a), np.maximum(expected, 0), rtol=1e-5, atol=cut)


def is_transposed(call: Call, op: str) -> bool:
    """Return True if each tile of a call would transpose an operand: those of float16 that are read
    in place can stay as they are.
    """
    across = op == "matmul" and not all(each.along_k for each in operands_of(call)[:2])
    return across and not takes_fp16(replace(call, variant=MATMUL_TILED))


def test_few_registers_leave_out_attention_and_what_a_tile_would_transpose() -> None:
    """Of all other calls none is left out: a GPU of Intel has 128 registers."""
    limits = replace(CARD, registers=128)
    left_out = set()
    for case in WITH_COOPMAT:
        call = case.call(limits)
        if not coopmats_of(call, case.declaration):
            attends = case.op in ("attention", "attention_with_kvcache")
            assert attends or is_transposed(call, case.op), case.id
            left_out.add(case.op)
        else:
            assert not is_transposed(call, case.op), case.id
    assert left_out == {"matmul", "attention", "attention_with_kvcache"}


@pytest.mark.parametrize("registers", [255, 128])
@pytest.mark.parametrize("case", WITH_COOPMAT, ids=lambda case: case.id)
def test_coopmats_compute_what_numpy_does(case: OpSample, registers: int, runner: Runner) -> None:
    limits = replace(runner.device.limits, registers=registers)
    call = case.call(limits)
    coopmats = coopmats_of(call, case.declaration)
    attends = case.op in ("attention", "attention_with_kvcache")
    deep = attends and case.inputs[0].shape[-1] > most_columns(limits)
    few = registers < 255 and (attends or is_transposed(call, case.op))
    assert bool(coopmats) != (deep or few)
    for variant in coopmats:
        got = runner.run(case, limits, variant)
        what = f"{runner.device.name} {variant}"
        check(case, got, case.expected(), what, coopmat_tolerance(case, variant))


def by_coopmat_that_cuts(a: NDArray, b: NDArray, step: int) -> NDArray:
    """a @ b by units that cut the sum of each step to float32, towards 0."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for at in range(0, a.shape[1], step):
        total += a[:, at : at + step].astype(np.float64) @ b[at : at + step]
        near = total.astype(np.float32)
        total = np.where(np.abs(near) > np.abs(total), np.nextafter(near, np.float32(0)), near)
        total = total.astype(np.float64)
    return np.asarray(total, np.float32)


def test_what_coopmats_cut_off_is_allowed_and_no_more() -> None:
    a, b = (floats(*shape, seed=shape[1]).astype(np.float16) for shape in ((64, 2048), (2048, 48)))
    attrs = call_of(64, 2048, 48).attrs
    case = OpSample("matmul", (a.astype(np.float32), b.astype(np.float32)), dict(attrs))
    expected, got = case.expected(), by_coopmat_that_cuts(a, b, 8)
    lost = coopmat_tolerance(case, "coopmat 16x8x8 128x128")
    check(case, got, expected, "units that cut", lost)
    with pytest.raises(Mismatch, match="was expected"):
        check(case, got, expected, "a kernel that rounds")
    at = np.unravel_index(np.argmin(np.abs(expected)), expected.shape)
    got[at] += 2 * np.asarray(lost)[at] + 1e-3
    with pytest.raises(Mismatch, match="was expected"):
        check(case, got, expected, "more than is cut off", lost)


def test_a_group_goes_from_tile_to_tile_of_codes(runner: Runner) -> None:
    """Where a device has few groups; the sums of rows are those of each tile."""
    case = integer_product(40, 70, 100, b_zero=np.asarray(5, np.int32))
    own = runner.device.limits
    limits = replace(own, max_groups=(1, *own.max_groups[1:]))
    coopmats = coopmats_of(case.call(limits), case.declaration)
    assert coopmats
    for variant in coopmats:
        np.testing.assert_array_equal(runner.run(case, limits, variant), case.expected())


def test_attention_of_float16_reads_and_writes_its_rows_without_conversion() -> None:
    case = narrow(halved(cached((1, 4, 64, 64), (2, 300), 64, 211, 64, right=0)))
    call = with_precision(case, "mixed").call(CARD)
    (coopmat,) = coopmats_of(call, case.declaration)
    product, combine = lower(case.declaration, replace(call, variant=coopmat)).dispatches
    assert product.shader == "attention_coopmat_kvcache_fp16_rows"
    assert combine.shader == "attention_combine_fp16"
    alone = narrow(halved(cached((1, 8, 2048, 64), (8, 300), 64, 211, 2048, right=0)))
    call = replace(with_precision(alone, "mixed").call(CARD), variant=coopmat)
    assert [d.shader for d in lower(case.declaration, call).dispatches] == [product.shader]
    others = {
        d.shader for d in lower(case.declaration, replace(call, variant="tiled 32")).dispatches
    }
    assert {"fp16_unpack", "fp16_pack"} < others


@pytest.mark.parametrize("queries", [40, 700])
def test_rows_of_float16_do_not_see_what_is_not_finite_behind_them(
    queries: int, runner: Runner
) -> None:
    """With parts of the keys, and without."""
    limits = runner.device.limits
    case = narrow(halved(cached((1, 8, queries, 16), (8, 70), 16, 41, queries, right=0)))
    *others, v = case.inputs
    v = v.copy()
    v[:, :, -3] = np.nan
    case = with_precision(replace(case, inputs=(*others, v)), "mixed")
    wanted = case.expected()
    assert np.isnan(wanted[:, :, -3:]).all() and np.isfinite(wanted[:, :, :-3]).all()
    coopmats = coopmats_of(case.call(limits), case.declaration)
    assert coopmats
    for variant in coopmats:
        got = runner.run(case, limits, variant)
        np.testing.assert_allclose(got, wanted, rtol=4e-3, atol=2e-3)


def test_values_in_rows_of_an_odd_length_are_read_where_they_lie(runner: Runner) -> None:
    """Of float16, two in a word, with more columns than one dispatch has."""
    limits = runner.device.limits
    depth = most_columns(limits)
    case = halved(cached((1, 2, 20, depth), (2, 70), depth + 1, 41, 20, right=0))
    case = with_precision(case, "mixed")
    coopmats = coopmats_of(case.call(limits), case.declaration)
    assert coopmats
    for variant in coopmats:
        check(case, runner.run(case, limits, variant), case.expected(), variant)
