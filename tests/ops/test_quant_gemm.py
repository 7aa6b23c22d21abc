"""Products of many rows by quantized weights with cooperative matrices: tiles of devices,
workgroups, bytes read, and results in all formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import vulkan_names

from vksched.common.dtypes import FLOAT16, FLOAT32, UINT32, TensorType
from vksched.common.errors import ShapeError
from vksched.ir.attrs import Attrs
from vksched.ir.op import COUNTERS, OUTPUT, SCRATCH, Call, Dispatch, get_op
from vksched.ops.elementwise.epilogue import epilogue_attrs
from vksched.ops.linalg.split_k import split_name, without_split
from vksched.ops.lowering.lower import Lowering, choice_of, lower, variants_of
from vksched.ops.lowering.variants import COOPMAT
from vksched.ops.quantized.gguf_formats import FORMATS, format_of, unpacked
from vksched.ops.quantized.merged_linear import GATES
from vksched.ops.quantized.quant_gemm import QuantGemmTile, quant_gemm_tiles
from vksched.runtime.vulkan import device_probe
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.testing.coopmat_tolerance import CUT
from vksched.testing.kernel_runner import Runner, check
from vksched.testing.op_cases.conv.precision import with_precision
from vksched.testing.op_cases.linalg.merged_linear import merged
from vksched.testing.op_cases.linalg.merged_linear_rope import by_heads, heads_of_fp16
from vksched.testing.op_cases.linalg.quantized_linear import linear
from vksched.testing.op_cases.op_sample import OpSample, floats
from vksched.topology.limits import Limits

CARD = Limits(
    max_invocations=1024,
    max_local_size=(1024, 1024, 64),
    shared_bytes=65536,
    subgroup_size=32,
    subgroup_sizes=(32,),
    storage_buffers=16,
    float16=True,
    cores=64,
    matrices=("float16*float16+float32 16x16x16",),
    memory_model=True,
)
OF_CPU = {"software": True, "matrices": ("float16*float16+float32 8x8x8",)}
CHECKED = replace(CARD, coopmat_checked=True, memory_model_checked=True)
TALL, LARGE, SMALL = (f"coopmat 16x16x16 {tile}" for tile in ("256x128", "128x128", "64x64"))
LINEAR, MERGED = get_op("quantized_linear"), get_op("merged_linear")


def stacked(case: OpSample) -> OpSample:
    return replace(case, attrs={**case.attrs, "stacked": True}, name=f"{case.name} stacked")


def linear_call(m: int, n: int, k: int = 2048, limits: Limits = CARD, kind: str = "q4_K") -> Call:
    """Return a call with a bias, without data."""
    types = TensorType((m, k)), TensorType((n, format_of(kind).row_words(k)), UINT32)
    attrs = Attrs({"format": kind, "precision": "mixed"})
    return Call((*types, TensorType((n,))), TensorType((m, n)), attrs, limits)


def by(call: Call, variant: str, op: str = "quantized_linear") -> tuple[Dispatch, ...]:
    return lower(get_op(op), replace(call, variant=variant)).dispatches


@pytest.mark.parametrize(
    ("change", "tiles"),
    [
        ({}, [TALL, LARGE, SMALL]),
        ({"shared_bytes": 32768}, [LARGE, SMALL]),
        ({"shared_bytes": 16384}, [SMALL]),
        ({"max_invocations": 128}, [LARGE, SMALL]),
        ({"storage_buffers": 6}, []),
        ({"float16": False}, []),
        ({"matrices": ()}, []),
        ({"subgroup_sizes": ()}, []),
        ({"matrices": ("float16*float16+float32 16x16x24",)}, []),
        ({**OF_CPU, "subgroup_sizes": (8,)}, ["coopmat 8x8x8 32x32"]),
    ],
)
def test_tiles_fit_the_device(change: dict[str, object], tiles: list[str]) -> None:
    limits = replace(CARD, **change)  # type: ignore[arg-type]
    assert list(quant_gemm_tiles(limits)) == tiles
    call = linear_call(64, 64, limits=limits)
    found = {without_split(n) for n in variants_of(LINEAR, call) if n.startswith(COOPMAT)}
    assert found == set(tiles)


@pytest.mark.parametrize(
    ("lanes", "shape", "registers"),
    [
        *((lanes, shape, 255) for lanes in (32, 64) for shape in ((16, 16, 16), (16, 8, 8))),
        *((8, (8, 8, 16), 128), (16, (8, 16, 16), 128)),
    ],
)
def test_an_invocation_has_at_most_128_sums(
    lanes: int, shape: tuple[int, int, int], registers: int
) -> None:
    name = "x".join(map(str, shape))
    matrices = (f"float16*float16+float32 {name}",)
    limits = replace(CARD, subgroup_sizes=(lanes,), matrices=matrices, registers=registers)
    tiles = quant_gemm_tiles(limits)
    assert len(tiles) == (3 if registers == 255 else 1)
    for tile in tiles.values():
        assert tile.rows * tile.columns <= 128 * tile.local
        constants = dict(tile.constants)
        rows = constants["DOWN"] * constants["MATRIX_M"] * constants["SUBGROUPS_DOWN"]
        columns = constants["ACROSS"] * constants["MATRIX_N"] * constants["SUBGROUPS_ACROSS"]
        assert (rows, columns) == (tile.rows, tile.columns)
        assert constants["LOCAL_X"] == lanes * rows * columns // tile.own[0] // tile.own[1]
        # all invocations load the same number of parts of a tile, or the first ones load one
        for parts in (tile.rows * 4, tile.columns * 2):
            assert parts % tile.local == 0 or parts < tile.local


def test_only_calls_that_may_be_rounded_have_tiles() -> None:
    for word, count in (("mixed", 3), ("float16", 3), ("bfloat16", 0), ("int8", 0)):
        call = with_precision(linear("q4_K", (64, 512), 64), word).call(CARD)
        names = variants_of(LINEAR, call)
        assert sum(name in (TALL, LARGE, SMALL) for name in names) == count
        assert count or not any(name.startswith(COOPMAT) for name in names)
    for m, n in ((15, 64), (64, 15)):
        names = variants_of(LINEAR, linear_call(m, n, 512))
        assert not any(name.startswith(COOPMAT) for name in names)


def test_tiles_are_guessed_on_checked_devices_alone() -> None:
    for m, n, cores, guess in (
        (512, 2048, 64, LARGE),  # one wave of 64 tiles; 32 larger ones occupy half of the cores
        (512, 2048, 32, TALL),
        (512, 11264, 64, TALL),
        (64, 2048, 64, SMALL),
        (512, 256, 128, f"{SMALL} split 4"),  # 32 tiles
        (16, 2048, 64, ""),  # most of each tile would be padding
        (512, 20, 64, ""),
    ):
        call = linear_call(m, n, limits=replace(CHECKED, cores=cores))
        chosen = choice_of(LINEAR, call).variant
        assert chosen == guess if guess else not chosen.startswith(COOPMAT)
        call = replace(call, limits=replace(call.limits, coopmat_checked=False))
        assert not choice_of(LINEAR, call).variant.startswith(COOPMAT)


def test_float16_sums_are_candidates_where_they_are_faster() -> None:
    matrices = (*CARD.matrices, "float16*float16+float16 16x16x16")
    limits = replace(CHECKED, matrices=matrices, fp16_sums_faster=True)
    names = variants_of(LINEAR, linear_call(512, 2048, limits=limits))
    assert names[0] == LARGE, "none is a guess: large sums would overflow"
    names = tuple(name for name in names if name.startswith(COOPMAT))
    assert {name for name in names if "fp16acc" in name} == {f"{LARGE} fp16acc", f"{SMALL} fp16acc"}
    (dispatch,) = by(linear_call(512, 2048, limits=limits), f"{LARGE} fp16acc")
    assert dispatch.shader == "quant_gemm_coopmat_q4_k_fp16acc"
    assert dict(dispatch.constants)["LOCAL_X"] == 256
    for other in (replace(limits, fp16_sums_faster=False), replace(limits, matrices=CARD.matrices)):
        names = variants_of(LINEAR, linear_call(512, 2048, limits=other))
        assert not any("fp16acc" in name for name in names if name.startswith(COOPMAT))


def test_one_dispatch_reads_the_weight_once_per_tile_of_rows() -> None:
    call = linear_call(512, 2048)
    weights = 2048 * 2048
    weight_bytes = 4 * call.inputs[1].size
    for variant, rows in ((TALL, 256), (LARGE, 128)):
        (dispatch,) = by(call, variant)
        assert dispatch.shader == "quant_gemm_coopmat_q4_k" and dispatch.subgroup == 32
        assert dispatch.groups == (512 // rows, 2048 // 128, 1)
        assert dispatch.operands == (0, 1, 1, 1, 2, OUTPUT, 0)
    assert not lower(LINEAR, replace(call, variant=TALL)).scratch
    loaded = weight_bytes * by(call, TALL)[0].groups[0]
    assert loaded / weights <= 1.2


def test_edges_and_long_calls_are_cut_into_dispatches() -> None:
    call = linear_call(300, 200, 96 * 32, kind="q8_0")
    (dispatch,) = by(call, LARGE)
    push = dict(dispatch.push)
    assert dispatch.groups == (3, 2, 1)
    assert (push["m"], push["k"], push["has_bias"]) == (300, 96 * 32, 1)
    assert (push["sizes"], push["begins"], push["strides"]) == ((200, 0, 0), (0, 0, 0), (200, 0, 0))
    long = linear_call(40000, 2048, 2048)
    parts = by(long, LARGE)
    assert len(parts) > 1
    row = 0
    for part in parts:
        count = dict(part.push)["m"]
        assert isinstance(count, int)
        assert part.shifts == (row * 2048, 0, 0, 0, 0, row * 2048, 0)
        assert part.groups[0] == -(-count // 128) and not part.barrier
        row += count
    assert row == 40000


def test_idle_cores_compute_other_parts_of_k() -> None:
    call = linear_call(100, 300, 2048, replace(CARD, cores=24))
    assert [n for n in variants_of(LINEAR, call) if "split" in n] == [
        *(f"{SMALL} split 2", f"{LARGE} split 8", f"{TALL} split 8"),
    ]
    lowering = lower(LINEAR, replace(call, variant=f"{LARGE} split 8"))
    (product,) = lowering.dispatches
    assert lowering.scratch == (3 * 8 * 128 * 128,) and lowering.counters == 3
    assert product.shader == "quant_gemm_coopmat_splitk_q4_k" and product.groups == (1, 3, 8)
    assert product.operands == (0, 1, 1, 1, 2, SCRATCH, COUNTERS, OUTPUT)
    assert (dict(product.push)["has_bias"], dict(product.push)["split_runs"]) == (1, 8)
    # 35 runs in parts of 5 are 7
    uneven = linear_call(100, 300, 35 * 32, replace(CARD, cores=24), "q8_0")
    (product,) = by(uneven, f"{LARGE} split 8")
    assert product.groups[2] == 7 and dict(product.push)["split_runs"] == 5
    for change in (
        {"cores": 0},
        {"cores": 5},
        {"max_buffer_bytes": 4 * 100 * 300},
        {"memory_model": False},
        {"storage_buffers": 8},
    ):
        limits = replace(CARD, **{"cores": 24, **change})
        names = variants_of(LINEAR, linear_call(100, 300, 2048, limits))
        assert not any(n.startswith(COOPMAT) and "split" in n for n in names), change
    short = linear_call(100, 300, 512, replace(CARD, cores=24))
    assert not any("split" in n for n in variants_of(LINEAR, short) if n.startswith(COOPMAT))


def test_parts_of_k_are_guessed_where_the_memory_model_was_checked() -> None:
    for checked in (True, False):
        limits = replace(CHECKED, cores=128, memory_model_checked=checked)
        choice = choice_of(LINEAR, linear_call(512, 256, limits=limits))
        assert choice.variant == (f"{SMALL} split 4" if checked else SMALL)
        assert f"{SMALL} split 4" in choice.of


def test_merged_weights_have_tiles_of_their_own() -> None:
    case = with_precision(merged("q4_K", (100,), 512, (208, 32, 16), False), "mixed")
    (dispatch,) = by(case.call(CARD), LARGE, "merged_linear")
    assert dispatch.groups == (1, 2 + 1 + 1, 1)
    assert dispatch.operands == (0, 1, 2, 3, 0, OUTPUT, 0)
    assert dict(dispatch.push)["begins"] == (0, 208, 240)
    assert dict(dispatch.push)["strides"] == (256, 256, 256)
    call = stacked(case).call(CARD)
    assert call.output.shape == (100 * 256,)
    (dispatch,) = by(call, LARGE, "merged_linear")
    assert dict(dispatch.push)["begins"] == (0, 100 * 208, 100 * 240)
    assert dict(dispatch.push)["strides"] == (208, 32, 16)
    gated = with_precision(merged("q4_K", (100,), 512, (208, 208), False, "silu"), "mixed")
    (dispatch,) = by(gated.call(CARD), LARGE, "merged_linear")
    assert dispatch.groups == (1, 4, 1), "tiles of 64 columns of each weight"
    assert dict(dispatch.constants)["GATE"] == GATES["silu"]
    normed = with_precision(merged("q4_K", (100,), 512, (208, 32)), "mixed")
    assert not any(n.startswith(COOPMAT) for n in variants_of(MERGED, normed.call(CHECKED)))


def test_heads_are_matrices_one_after_another() -> None:
    """A dispatch of later rows begins at these rows of each head, and of the tables."""
    case = with_precision(by_heads("q4_K", (128, 64, 64), 3, 64, 32, False, 100), "mixed")
    (dispatch,) = by(case.call(CARD), LARGE, "merged_linear_rope")
    push = dict(dispatch.push)
    assert dispatch.operands == (0, 1, 2, 3, 4, OUTPUT, 5)
    assert push["begins"] == (0, 100 * 128, 100 * 192) and push["strides"] == (128, 64, 64)
    assert push["rotations"] == (128, 64, 0)
    assert (push["head_size"], push["head_step"], push["rotary_pairs"]) == (64, 6400, 16)
    assert dict(dispatch.constants)["ROTARY"] == 1
    rows, k = 1 << 14, 1 << 13
    weights = (TensorType((n, format_of("q4_K").row_words(k)), UINT32) for n in (1 << 14, 64))
    types = (TensorType((1, rows, k)), *weights, *[TensorType((rows, 32))] * 2)
    attrs = Attrs({**case.attrs, "heads": 256, "rotary_dim": 64, "interleaved": True})
    op = get_op("merged_linear_rope")
    call = Call(types, op.infer(types, attrs), attrs, CARD)
    first, second, *_ = by(call, LARGE, "merged_linear_rope")
    m = dict(first.push)["m"]
    assert dict(second.push)["begins"][0] == m * 64 and dict(second.constants)["ROTARY"] == 2
    assert second.shifts == (m * k, 0, 0, 0, m * 32, 0, m * 32)
    few = case.call(replace(CARD, cores=4096))
    assert not any("split" in name for name in variants_of(op, few))


def test_stacked_products_are_those_of_each_weight() -> None:
    case = merged("q4_K", (5,), 256, (32, 16), False)
    x, *weights = case.inputs
    each = [x @ unpacked("q4_K", words, 256).T for words in weights]
    expected = np.concatenate([product.ravel() for product in each])
    np.testing.assert_allclose(stacked(case).expected(), expected, rtol=1e-5, atol=1e-5)
    assert variants_of(MERGED, stacked(case).call(CARD)) == ("gemv",)
    several = merged("q4_K", (12,), 256, (32, 16), False)
    assert not any(variants_of(MERGED, stacked(several).call(CARD)))
    with pytest.raises(ShapeError, match="no gate"):
        stacked(merged("q4_K", (5,), 256, (32, 32), False, "silu")).call(CARD)


NAMES = [name for name in vulkan_names() if device_probe.resolve(name).limits.matrices]


@pytest.fixture(params=NAMES or [None], scope="module")
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    if request.param is None:
        pytest.skip("no device here has cooperative matrices")
    info = device_probe.resolve(request.param)
    device = VulkanDevice(device_probe.device_spec(info), info.index)
    if not quant_gemm_tiles(device.limits):
        pytest.skip("the device has no cooperative matrices for this kernel")
    yield Runner(device)
    device.close()


def tiles_of(runner: Runner) -> list[QuantGemmTile]:
    return list(quant_gemm_tiles(runner.device.limits).values())


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_rounded_once(name: str, runner: Runner) -> None:
    """Sums of products of x and of the weight, each rounded to float16, in three tiles of 256."""
    k = 2 * 256 + (32 if FORMATS[name].step < 256 else 256)
    case = with_precision(linear(name, (37, k), 45, True), "mixed")
    x, words, bias = case.inputs
    weight = unpacked(name, words, k)
    rounded = [a.astype(np.float16).astype(np.float64) for a in (x, weight)]
    expected = rounded[0] @ rounded[1].T + bias
    magnitudes = np.abs(rounded[0]) @ np.abs(rounded[1]).T
    # the float32 value of a weight may differ in its last bit, and round to a neighbour
    neighbour = 2.0**-10 * float(np.abs(rounded[0]).max() * np.abs(rounded[1]).max())
    for tile in tiles_of(runner):
        got = runner.run(case, runner.device.limits, tile.name)
        bound = k / tile.shape[2] * CUT * magnitudes + 1e-6 + neighbour * (name[0] not in "fb")
        error = np.abs(got - expected)
        assert (error <= bound).all(), f"{tile.name}: {(error / bound).max()}"


def of_fp16(case: OpSample) -> OpSample:
    """The case with rows of float16."""
    return case.as_dtypes({FLOAT32: FLOAT16})


def to_fp16(case: OpSample) -> OpSample:
    """The case with a result of float16, of rows that keep it within the range."""
    x, *others = case.inputs
    attrs = {**case.attrs, "dtype": FLOAT16}
    return replace(case, inputs=(x / 16, *others), attrs=attrs, name=f"{case.name} to float16")


def test_rows_of_float16_are_read_and_written_without_conversion() -> None:
    case = with_precision(merged("q4_K", (300,), 2048, (208, 208), False, "silu"), "mixed")
    call = of_fp16(to_fp16(case)).call(CARD)
    assert call.output.dtype == FLOAT16
    (dispatch,) = by(call, LARGE, "merged_linear")
    constants = dict(dispatch.constants)
    assert (constants["FP16_X"], constants["FP16_RESULT"]) == (1, 1)
    (dispatch,) = by(case.call(CARD), LARGE, "merged_linear")
    constants = dict(dispatch.constants)
    assert (constants["FP16_X"], constants["FP16_RESULT"]) == (0, 0)
    long = linear_call(40000, 2048)
    rows = replace(long, inputs=(long.inputs[0].as_dtype(FLOAT16), *long.inputs[1:]))
    halved = [part.shifts[0] for part in by(rows, LARGE)]
    assert [part.shifts[0] for part in by(long, LARGE)] == [2 * shift for shift in halved]
    assert halved[1] and by(long, LARGE)[1].shifts[5] == by(rows, LARGE)[1].shifts[5]
    few = linear_call(300, 256)
    rows = replace(few, inputs=(few.inputs[0].as_dtype(FLOAT16), *few.inputs[1:]))
    names = [d.shader for d in by(rows, "dequantize vec4 64x64")]
    assert names[0] == "fp16_unpack", "other kernels get float32"


def test_heads_of_float16_are_written_without_conversion() -> None:
    case = with_precision(by_heads("q4_K", (256, 64, 64), 5, 64, 64, True, 100), "mixed")
    whole, halves = case.call(CARD), heads_of_fp16(case).call(CARD)
    assert halves.output.dtype == FLOAT16
    (one,), (other,) = (by(call, SMALL, "merged_linear_rope") for call in (whole, halves))
    assert (dict(one.constants)["FP16_RESULT"], dict(other.constants)["FP16_RESULT"]) == (0, 1)
    assert other.push == one.push and other.operands == one.operands
    names = variants_of(get_op("merged_linear_rope"), halves)
    assert names and all(name.startswith(COOPMAT) for name in names), "others write float32"


def test_heads_beyond_the_range_are_not_a_number(runner: Runner) -> None:
    """Infinite keys in a cache would weigh nothing, and no result would tell."""
    case = by_heads("q8_0", (32, 32), 1, 32, 32, True, 20)
    x, *others = case.inputs
    large = np.where(np.arange(x.shape[-1]) == 0, np.float32(6e4), x)
    case = with_precision(heads_of_fp16(replace(case, inputs=(large, *others))), "mixed")
    wanted = case.expected()
    assert 0 < np.isnan(wanted).sum() < wanted.size and not np.isinf(wanted).any()
    for tile in tiles_of(runner):
        got = runner.run(case, runner.device.limits, tile.name)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))


ROWS = floats(33, 68, seed=5)
CASES = [
    *(linear("q4_K", (m, 256), n, bias) for m, n, bias in ((16, 16, False), (33, 68, True))),
    linear("q6_K", (3, 11, 512), 130),
    linear("q8_0", (65, 32 * 37), 17),
    *(linear("mxfp4", (20, 32 * runs), 20) for runs in (9, 18, 24)),
    *(merged("q4_K", (40,), 512, sizes, False) for sizes in ((48, 16, 32), (80, 16), (16,))),
    stacked(merged("q6_K", (2, 20), 512, (48, 16, 32), False)),
    stacked(merged("q5_0", (33,), 96, (16, 16), False)),
    *(merged("q4_K", (40,), 512, (48, 48), False, gate) for gate in GATES if gate),
    *(by_heads("q4_K", (64, 32, 32), 3, 32, 32, way, k=512) for way in (True, False)),
    by_heads("q6_K", (96, 48), 4, 24, 10, True, 33),
    by_heads("q8_0", (160, 80, 80), 3, 80, 48, False, 70, 64),
    by_heads("q5_0", (64, 64), 2, 32, 32, False, 17, 96),
    *(
        heads_of_fp16(by_heads("q4_K", (64, 32, 32), 3, 32, 32, way, k=512))
        for way in (True, False)
    ),
    *(of_fp16(linear(name, (33, k), 68, True)) for name, k in (("q4_K", 512), ("q8_0", 96))),
    of_fp16(stacked(merged("q6_K", (40,), 256, (48, 16, 32), False))),
    to_fp16(merged("q4_K", (40,), 512, (48, 48), False, "silu")),
    of_fp16(to_fp16(merged("q5_1", (2, 19), 96, (32, 32), False, "gelu"))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id} {case.inputs[0].shape}")
def test_tiles_compute_the_same_as_numpy(case: OpSample, runner: Runner) -> None:
    case = with_precision(case, "mixed")
    for tile in tiles_of(runner):
        got = runner.run(case, runner.device.limits, tile.name)
        check(case, got, case.expected(), f"{runner.device.name} {tile.name}")


def test_an_epilogue_is_applied_to_whole_sums(runner: Runner) -> None:
    case = linear("q4_K", (33, 256), 68, True)
    steps = ("add", (0, 1), ()), ("relu", (2,), ())
    attrs = dict(case.attrs) | epilogue_attrs(2, steps, ())
    case = OpSample("quantized_linear", (*case.inputs, ROWS), attrs, "then add relu")
    case = with_precision(case, "mixed")
    for tile in tiles_of(runner):
        got = runner.run(case, runner.device.limits, tile.name)
        check(case, got, case.expected(), tile.name)


@pytest.mark.parametrize("name", ["q4_K", "q8_0"])
def test_float16_sums_are_added_in_float32(name: str, runner: Runner) -> None:
    """A sum of 2,304 steps along k in float16 alone would err by more than is allowed."""
    case = with_precision(linear(name, (17, 2048 + 256), 20), "mixed")
    limits = replace(runner.device.limits, fp16_sums_faster=True)
    tiles = [tile for tile in quant_gemm_tiles(limits).values() if tile.fp16_sums]
    assert tiles
    for tile in tiles:
        check(case, runner.run(case, limits, tile.name), case.expected(), tile.name)


@pytest.mark.parametrize(
    "case",
    [
        linear("q4_K", (33, 768), 47, True),
        linear("q8_0", (20, 17 * 32), 20),
        stacked(merged("q4_K", (40,), 512, (48, 16, 32), False)),
    ],
    ids=lambda case: case.id,
)
def test_parts_of_k_are_added(case: OpSample, runner: Runner) -> None:
    case, limits = with_precision(case, "mixed"), replace(runner.device.limits, cores=64)
    case = of_fp16(case) if case.op == "merged_linear" else case
    for tile in tiles_of(runner):
        for parts in (3, 8):
            call = replace(case.call(limits), variant=split_name(tile.name, parts))
            kernel = case.declaration.kernel
            assert kernel is not None
            lowering = Lowering(kernel.lower(call), kernel.scratch(call), kernel.counters(call))
            got = runner.run_lowered(case, lowering)
            check(case, got, case.expected(), call.variant)
            assert np.array_equal(got, runner.run_lowered(case, lowering)), "in the order of k"


def test_a_group_goes_from_tile_to_tile_of_rows(runner: Runner) -> None:
    own = runner.device.limits
    limits = replace(own, max_groups=(1, *own.max_groups[1:]))
    case = with_precision(linear("q4_K", (70, 256), 40), "mixed")
    for tile in tiles_of(runner):
        check(case, runner.run(case, limits, tile.name), case.expected(), tile.name)
