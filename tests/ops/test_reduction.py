"""How reductions are cut into parts: enough of them, none too long, all columns covered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vksched.common.dtypes import TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import OUTPUT, SCRATCH, Call, Dispatch, get_op
from vksched.ops.layout import transpose_tiled
from vksched.ops.lowering.lower import lower
from vksched.ops.lowering.strides import LOCAL_SIZE, LOOP_STEPS
from vksched.ops.reduction.reduce_launch import (
    MAX_PARTS,
    ROUNDED_CHUNK,
    SCALAR,
    SOFTWARE_CHUNK,
    VEC4,
    WORKGROUP_CHUNK,
    Launch,
    choose_last_launch,
    choose_launch,
    choose_vec4_launch,
)
from vksched.testing.op_cases.op_sample import OpSample, floats
from vksched.testing.op_cases.reduction.arg import CASES as ARG_CASES
from vksched.testing.op_cases.reduction.reduce import CASES as REDUCTION_CASES
from vksched.topology.limits import Limits

GPU, SOFTWARE = Limits(), Limits(software=True)
SIZES = (1, 2, 31, 32, 63, 100, 1000, 4099, 65_537, 1 << 20, (1 << 24) + 1, 1 << 30)


@pytest.mark.parametrize("limits", [GPU, SOFTWARE], ids=["gpu", "software"])
@pytest.mark.parametrize("side_by_side", [1, 16])
def test_parts_cover_all_columns_and_none_is_empty(side_by_side: int, limits: Limits) -> None:
    for rows in SIZES:
        for columns in (0, *SIZES):
            launch = choose_launch(rows, columns, side_by_side, limits)
            assert (launch.parts - 1) * launch.chunk < max(columns, 1)
            assert launch.parts * launch.chunk >= columns


@pytest.mark.parametrize("most", [SOFTWARE_CHUNK, WORKGROUP_CHUNK])
@pytest.mark.parametrize("across", [False, True])
def test_parts_in_vec4_cover_all_columns_and_none_is_empty(across: bool, most: int) -> None:
    for rows in SIZES:
        for columns in (0, *SIZES):
            launch = choose_vec4_launch(rows, columns, across, most)
            assert (launch.parts - 1) * launch.chunk < max(columns, 1)
            assert launch.parts * launch.chunk >= columns
            assert launch.chunk <= SOFTWARE_CHUNK
            assert across or launch.parts == 1 or launch.chunk % 4 == 0
            last = choose_last_launch(1, launch.parts, SOFTWARE)
            assert launch.parts // (LOCAL_SIZE if last.whole_group else 1) <= LOOP_STEPS


def test_a_cpu_driver_goes_round_no_loop_too_often() -> None:
    for columns in SIZES:
        launch = choose_launch(1, columns, 1, SOFTWARE)
        last = choose_last_launch(1, launch.parts, SOFTWARE)
        assert launch.chunk <= SOFTWARE_CHUNK
        assert launch.parts // (LOCAL_SIZE if last.whole_group else 1) <= LOOP_STEPS


@pytest.mark.parametrize("across", [False, True])
def test_vec4_loads_are_cut_only_where_rows_are_few_or_long(across: bool) -> None:
    assert choose_vec4_launch(4096, 4096, across).parts == 1
    assert choose_vec4_launch(4, 4096, across).parts > 1
    assert choose_vec4_launch(4096, 4 * SOFTWARE_CHUNK, across).parts == 4


@pytest.mark.parametrize("whole_group", [False, True])
def test_no_invocation_takes_more_than_it_may(whole_group: bool) -> None:
    lanes = LOCAL_SIZE if whole_group else 1
    for columns in SIZES:
        launch = Launch(1, columns, whole_group).at_most(ROUNDED_CHUNK, columns)
        assert launch.chunk <= ROUNDED_CHUNK * lanes
        assert launch.parts * launch.chunk >= columns > (launch.parts - 1) * launch.chunk


def test_one_long_row_keeps_a_large_gpu_busy() -> None:
    launch = choose_launch(1, 1 << 28, 1, GPU)
    assert launch.whole_group
    assert launch.parts == MAX_PARTS
    assert choose_last_launch(1, launch.parts, GPU).whole_group


def test_many_rows_are_not_cut() -> None:
    assert choose_launch(1 << 17, 1 << 10, 1, GPU).parts == 1


def test_rows_side_by_side_are_read_by_neighbouring_invocations() -> None:
    assert not choose_launch(4096, 4096, 4096, GPU).whole_group
    assert choose_launch(4096, 4096, 1, GPU).whole_group


def test_the_second_stage_waits_for_the_first() -> None:
    case = OpSample("reduce_sum", (floats(1 << 16),), {"axes": (0,), "keepdims": False})
    lowering = lower(case.declaration, case.call(GPU))
    first, last = lowering.dispatches
    assert (first.operands, first.barrier) == ((0, SCRATCH), False)
    assert (last.operands, last.barrier) == ((SCRATCH, OUTPUT), True)
    assert lowering.scratch == (2 * dict(first.push)["parts"],)


def test_sums_of_columns_on_a_gpu_read_vec4s_and_add_many_parts_by_workgroups() -> None:
    """An invocation that adds 32 parts one after the other waits for memory 32 times."""
    case = OpSample("reduce_sum", (floats(512, 4096),), {"axes": (0,), "keepdims": False})
    assert case.variants(GPU) == (VEC4, SCALAR)
    first, last = lower(case.declaration, case.call(GPU)).dispatches
    assert (first.shader, last.shader) == ("reduce_across_sum_float32", "reduce_sum_float32")
    parts = dict(first.push)["parts"]
    assert first.groups == (4096 // 4 * parts // 64, 1, 1) and parts == 32
    assert dict(last.constants)["WHOLE_GROUP"] == 1 and last.groups == (4096, 1, 1)
    narrow = OpSample("reduce_sum", (floats(512, 512),), {"axes": (0,), "keepdims": False})
    assert narrow.variants(GPU) == ("",)


def test_each_kernel_across_rows_has_a_case_that_meets_it_on_a_gpu() -> None:
    cases = [case for case in (*REDUCTION_CASES, *ARG_CASES) if case.declaration.kernel]
    runs = [lower(case.declaration, case.call(GPU)).dispatches for case in cases]
    met = {dispatch.shader for run in runs for dispatch in run}
    shaders = {name for case in cases for name in case.declaration.kernel.shaders}
    across = {name for name in shaders if name.startswith("reduce_across_")}
    assert across and across <= met


def test_transposes_on_a_gpu_go_by_way_of_shared_memory() -> None:
    def dispatch_of(shape: tuple[int, ...], *axes: int) -> Dispatch:
        case = OpSample("transpose", (floats(*shape),), {"axes": axes})
        (dispatch,) = lower(case.declaration, case.call(GPU)).dispatches
        return dispatch

    transposed = dispatch_of((100, 3, 70), 2, 1, 0)
    assert (transposed.shader, transposed.groups) == ("transpose_shared", (3, 4, 3))
    assert dict(transposed.push)["columns"] == 100 and dict(transposed.push)["width"] == 70
    for shape, axes in (((100, 3), (1, 0)), ((8, 12, 64), (1, 0, 2))):
        assert dispatch_of(shape, *axes).shader == "strided_copy"


def test_tiles_of_transposes_are_no_choice_where_groups_or_loops_do_not_fit() -> None:
    def choices(shape: tuple[int, int], **more: int | tuple[int, int, int]) -> tuple[str, ...]:
        x, transposed = TensorType(shape, "float32"), TensorType(shape[::-1], "float32")
        limits = replace(SOFTWARE, max_buffer_bytes=1 << 32, **more)  # type: ignore[arg-type]
        return transpose_tiled.variants(Call((x,), transposed, Attrs({"axes": (1, 0)}), limits))

    assert (
        choices((64, 64)) == choices((4, 1 << 24)) == (transpose_tiled.TILED, transpose_tiled.LINES)
    )
    assert choices(((1 << 24) + 256, 4)) == (transpose_tiled.LINES,)
    assert choices((4, 1 << 24), max_groups=(1, 65535, 65535)) == (transpose_tiled.LINES,)


def test_reductions_in_vec4_take_groups_enough_for_their_loops() -> None:
    x = TensorType((1 << 27, 5), "float32")
    attrs = Attrs({"axes": (1,), "keepdims": False})
    call = Call((x,), TensorType((1 << 27,), "float32"), attrs, SOFTWARE, variant="vec4")
    (dispatch,) = lower(get_op("reduce_sum"), call).dispatches
    assert (1 << 27) * 5 <= dispatch.groups[0] * 8 * LOOP_STEPS


def test_wide_reductions_are_for_vectors_of_eight_and_many_rows_side_by_side() -> None:
    def choices(shape: tuple[int, ...], axis: int, lanes: int = 8) -> tuple[str, ...]:
        x = TensorType(shape, "float32")
        result = TensorType(tuple(s for a, s in enumerate(shape) if a != axis), "float32")
        op = get_op("reduce_sum")
        limits = replace(SOFTWARE, subgroup_size=lanes, int64=True)
        return op.kernel.variants(
            Call((x,), result, Attrs({"axes": (axis,), "keepdims": False}), limits)
        )

    assert choices((5, 128), 0) == choices((2, 5, 196), 1) == ("workgroup", "vec4", "scalar")
    assert choices((5, 124), 0) == choices((5, 128), 0, lanes=4) == ("vec4", "scalar")
    assert choices((128, 512), 1) == ("vec4", "scalar")
    assert choices((5, 129), 0) == ("scalar",)
