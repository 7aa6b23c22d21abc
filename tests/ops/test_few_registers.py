"""Kernels of devices with few registers, which are Intel's GPUs: no candidate would spill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vksched.common.dtypes import FLOAT16, UINT32, TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import Call, get_op
from vksched.ops.lowering.lower import lower, variants_of
from vksched.ops.quantized.gguf_formats import FORMATS, format_of
from vksched.topology.limits import Limits

FEW = Limits(
    max_invocations=1024,
    max_local_size=(1024, 1024, 1024),
    shared_bytes=65536,
    subgroup_size=32,
    subgroup_sizes=(16, 32),
    subgroup_shuffle=True,
    storage_buffers=16,
    float16=True,
    registers=128,
    matrices=("float16*float16+float32 8x16x16",),
)
MANY = replace(FEW, registers=255)


def product(limits: Limits, dtype: str, precision: str, transpose_b: bool = True) -> Call:
    attrs = Attrs({"transpose_a": False, "transpose_b": transpose_b, "precision": precision})
    square = TensorType((512, 512), dtype)
    return Call((square, square), square, attrs, limits)


def constants_of(op: str, call: Call, variant: str) -> dict[str, int]:
    (dispatch,) = lower(get_op(op), replace(call, variant=variant)).dispatches
    return {name: int(value) for name, value in dispatch.constants}


def test_an_invocation_holds_at_most_two_blocks_of_a_product() -> None:
    names = variants_of(get_op("matmul"), product(FEW, "float32", "float16", False))
    assert names[0] == "fp16acc 32x64"
    assert {name for name in names if "64x64" in name} == {"vec4 64x64", "mixed 64x64"}
    assert not any("128x" in name for name in names)
    many = variants_of(get_op("matmul"), product(MANY, "float32", "float16", False))
    assert "vec4 128x128" in many and "fp16acc 64x64" in many


@pytest.mark.parametrize(
    ("subgroup", "shape", "variant", "matrices"),
    [
        (16, "8x16x16", "coopmat 8x16x16 64x64", (2, 1)),
        (8, "8x8x16", "coopmat 8x8x16 32x64", (1, 1)),
    ],
)
def test_cooperative_matrices_are_those_of_the_device_in_small_tiles(
    subgroup: int, shape: str, variant: str, matrices: tuple[int, int]
) -> None:
    sizes, units = (subgroup, 32), (f"float16*float16+float32 {shape}",)
    call = product(replace(FEW, subgroup_sizes=sizes, matrices=units), FLOAT16, "mixed")
    assert [n for n in variants_of(get_op("matmul"), call) if n.startswith("coopmat")] == [variant]
    found = constants_of("matmul", call, variant)
    assert (found["DOWN"], found["ACROSS"]) == matrices
    assert found["LOCAL_X"] == found["SUBGROUPS_DOWN"] * found["SUBGROUPS_ACROSS"] * subgroup == 256
    assert found["MATRIX_N"] == int(shape.split("x")[1])


def test_operands_that_a_tile_would_transpose_have_no_cooperative_matrices() -> None:
    for limits, there in ((FEW, False), (MANY, True)):
        call = product(limits, "float32", "mixed", transpose_b=False)
        names = variants_of(get_op("matmul"), call)
        assert any(name.startswith("coopmat") for name in names) == there


def attention_of(columns: int, limits: Limits, precision: str = "float32") -> Call:
    heads = TensorType((1, 16, 512, columns))
    attrs = {"is_bshd": (0, 0, 0, 0), "past_len": 0, "left": -1, "right": 0, "scale": 0.125}
    attrs |= {"softcap": 0.0, "fully_masked_is_nan": False, "precision": precision}
    return Call((heads,) * 3, heads, Attrs(attrs), limits)


@pytest.mark.parametrize(("columns", "rows"), [(32, 2), (64, 4)])
def test_narrow_heads_have_few_rows_of_an_invocation_in_mixed(columns: int, rows: int) -> None:
    for tile in (16, 32):
        found = constants_of("attention", attention_of(columns, FEW, "mixed"), f"mixed {tile}")
        assert found["ROWS"] == tile and tile * 32 // found["LOCAL_X"] == rows


@pytest.mark.parametrize(
    ("columns", "variant", "lanes"),
    [(64, "tiled 16", 128), (64, "tiled 32", 256), (256, "tiled 16", 256)],
)
def test_attention_takes_more_lanes(columns: int, variant: str, lanes: int) -> None:
    call = attention_of(columns, FEW)
    names = variants_of(get_op("attention"), call)
    assert not any(name.startswith("coopmat") for name in names)
    found = constants_of("attention", call, variant)
    assert variant in names and found["LOCAL_X"] == lanes
    assert found["ROWS"] // (lanes // 32) * found["COLUMNS"] <= 16
    usual = replace(call, limits=MANY)
    assert constants_of("attention", usual, variant)["LOCAL_X"] == 128


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_formats_with_long_scales_have_two_rows(name: str) -> None:
    words = TensorType((64, format_of(name).row_words(256)), UINT32)
    rows = TensorType((4, 256)), TensorType((4, 64))
    for limits, two in ((FEW, name in ("q2_K", "q3_K", "q6_K", "mxfp4")), (MANY, False)):
        call = Call((rows[0], words), rows[1], Attrs({"format": name}), limits)
        assert variants_of(get_op("quantized_linear"), call)[0] == ("gemv 2" if two else "gemv 4")


@pytest.mark.parametrize("weights", [1, 3])
def test_merged_products_have_one_row_of_a_workgroup(weights: int) -> None:
    words = TensorType((64, format_of("q4_K").row_words(256)), UINT32)
    types = TensorType((4, 256)), *(words,) * weights
    attrs = Attrs({"format": "q4_K", "normed": False, "gate": "", "eps": 0.0})
    for limits, rows in ((FEW, 1), (MANY, 4)):
        call = Call(types, TensorType((4, 64 * weights)), attrs, limits)
        (dispatch,) = lower(get_op("merged_linear"), call).dispatches
        assert dispatch.shader == "quant_gemv_merged_q4_k"
        assert dict(dispatch.constants)["ROWS"] == rows
