"""Native loops over codes of 8 bits: each way of a processor gives numpy's sums, and numpy takes
over where they are not built.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import INT32, UINT32, TensorType
from vksched.common.errors import UnsupportedOp
from vksched.ir.attrs import Attrs
from vksched.ir.op import Call, Dispatch, get_op
from vksched.ops.linalg.int8_weights import pack_int8
from vksched.ops.lowering import native_kernels
from vksched.ops.lowering.lower import lower
from vksched.ops.lowering.strides import LOCAL_SIZE, LOOP_STEPS
from vksched.testing.op_cases.linalg.int8 import CASES, int8_values, weights
from vksched.testing.op_cases.op_sample import OpSample
from vksched.topology.limits import Limits

built = pytest.mark.skipif(not native_kernels.has_int8(), reason="the native loops are not built")
WAYS = getattr(native_kernels.native, "int8_targets", ())
RNG = np.random.default_rng(5)


def host(case: OpSample, pieces: bool) -> np.ndarray:
    kernel, attrs = get_op(case.op).cpu, Attrs(case.attrs)
    assert kernel is not None
    out = np.full(case.result_type().shape, 77, np.int32)
    parts = kernel.cut(case.inputs, attrs, out) if pieces else [(case.inputs, out)]
    with np.errstate(all="ignore"):
        for inputs, part in parts:
            kernel.compute(inputs, attrs, part)
    return out


WITH_CPU_KERNEL = [case for case in CASES if get_op(case.op).cpu is not None]


@pytest.mark.parametrize("case", WITH_CPU_KERNEL, ids=lambda case: case.id)
@pytest.mark.parametrize("pieces", [False, True])
def test_the_cpu_gives_what_the_reference_gives(
    case: OpSample, pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.result_type().size:
        np.testing.assert_array_equal(host(case, pieces), case.expected())
        monkeypatch.setattr(native_kernels, "native", None)
        np.testing.assert_array_equal(host(case, pieces), case.expected())


@pytest.mark.parametrize("op", ["matmul_integer", "conv_integer"])
def test_pieces_of_tiles_make_the_whole(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from vksched.ops.conv import conv_int8
    from vksched.ops.linalg import int8_matmul

    monkeypatch.setattr(int8_matmul, "PIECE_PRODUCTS", 64)
    monkeypatch.setattr(conv_int8, "PIECE_PRODUCTS", 64)
    for case in WITH_CPU_KERNEL:
        if case.op == op and case.result_type().size:
            np.testing.assert_array_equal(host(case, True), case.expected(), case.id)


def ends(low: int, high: int, *shape: int) -> np.ndarray:
    """Only the ends of a range, where sums of two products leave 16 bits."""
    return RNG.choice(np.array([low, high]), shape).astype(np.int32)


@built
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("m", [1, 2, 3, 7, 8, 9])
def test_each_way_multiplies_exactly(way: str, signed: bool, m: int) -> None:
    low = -128 if signed else 0
    for k, n in ((1, 1), (2, 16), (5, 33), (64, 17), (129, 48)):
        a, b = ends(low, low + 255, m, k), ends(-128, 127, k, n).astype(np.int8)
        zeros = RNG.integers(-128, 128, n).astype(np.int32)
        room = np.full((m, n + 3), 9, np.int32)
        for b_zero in (np.zeros((), np.int32), zeros):
            out = room[:, 1 : n + 1]
            native_kernels.native.int8_matmul(a, pack_int8(b), low + 3, b_zero, out, signed, way)
            np.testing.assert_array_equal(out, (a - low - 3) @ (b.astype(np.int32) - b_zero))
        assert (room[:, 0] == 9).all() and (room[:, n + 1 :] == 9).all()


@built
@pytest.mark.parametrize("way", WAYS)
def test_each_way_rounds_half_to_even(way: str) -> None:
    x = (np.arange(-600, 600) / 2).astype(np.float32)
    out = np.empty(x.shape, np.int32)
    inputs: list[Any] = [np.float32(1), np.int32(3), out, -128, 127, 1, way]
    native_kernels.native.quantize(x, *map(np.asarray, inputs[:2]), *inputs[2:])
    np.testing.assert_array_equal(out, np.clip(np.rint(x) + 3, -128, 127).astype(np.int32))
    whole = np.arange(-600, 600, dtype=np.int32)
    scale, bias = np.float32([0.5, 0.25]), np.int32([7, -1])
    native_kernels.native.requantize(whole, bias, scale, out, 3, -128, 127, 600, way)
    by_channel = (whole.reshape(2, 600) + bias[:, None]) * scale[:, None]
    np.testing.assert_array_equal(out, np.clip(np.rint(by_channel) + 3, -128, 127).reshape(-1))


def test_padding_around_an_image_without_places_is_its_zero_point() -> None:
    words = pack_int8(weights(9 * 4, 2))
    x = vs.input("x", (1, 3, 0, 4), "int32")
    y = vs.conv_integer(x, vs.weight(words), 2, (3, 3), 5, padding=2)
    with vs.Scheduler(["cpu"]) as sched:
        got = sched.compile(y)(x=np.empty(x.shape, np.int32))
    np.testing.assert_array_equal(got, np.zeros((1, 2, 2, 6), np.int32))


@built
def test_what_does_not_fit_is_refused() -> None:
    a, words, zero = int8_values(3, 5), pack_int8(weights(5, 4)), np.zeros((), np.int32)
    out = np.empty((3, 4), np.int32)
    with pytest.raises(KeyError):
        native_kernels.native.int8_matmul(a, words, 0, zero, out, False, "no such way")
    for values in (
        (a, words, 0, zero, out[:2]),
        (a[:, :4], words, 0, zero, out),
        (a, words[:, 1:].copy(), 0, zero, out),
        (a, words, 0, np.zeros(3, np.int32), out),
        (a.astype(np.int64), words, 0, zero, out),
        (a, words, 0, zero, np.empty((3, 17), np.int32)),
    ):
        with pytest.raises(ValueError, match="expected"):
            native_kernels.native.int8_matmul(*values, False)
    x, scale = np.ones(6, np.float32), np.ones(1, np.float32)
    with pytest.raises(ValueError, match="as many results"):
        native_kernels.native.quantize(x, scale, zero, np.empty(5, np.int32), 0, 255, 1)
    with pytest.raises(ValueError, match="whole channels"):
        native_kernels.native.quantize(
            x, np.ones(4, np.float32), zero, np.empty(6, np.int32), 0, 255, 1
        )


@pytest.mark.parametrize(("k", "n"), [(1024, 1024), (4096, 4096), (20000, 33)])
def test_packing_goes_round_its_loops_less_often_than_cpu_drivers_allow(k: int, n: int) -> None:
    """A word and its four codes for each four rows of a column."""
    types = TensorType((k, n), INT32), TensorType((n // 16 + (n % 16 > 0), 1 + k // 4, 16), UINT32)
    call = Call(types[:1], types[1], Attrs({"signed": False}), Limits(software=True))
    (dispatch,) = lower(get_op("prepack_int8"), call).dispatches
    columns_of_lane = -(-types[1].shape[0] * 16 // (dispatch.groups[0] * LOCAL_SIZE))
    assert columns_of_lane * (1 + 4) * k // 4 <= LOOP_STEPS


def test_columns_too_long_for_a_cpu_driver_are_refused() -> None:
    types = TensorType((1 << 16, 16), INT32), TensorType((1, 1 + (1 << 14), 16), UINT32)
    call = Call(types[:1], types[1], Attrs({"signed": False}), Limits(software=True))
    with pytest.raises(UnsupportedOp, match="steps in a row"):
        lower(get_op("prepack_int8"), call)


def test_columns_that_one_dispatch_of_a_cpu_driver_cannot_pack_are_refused() -> None:
    """There are two groups, and each lane has time for a few columns of so many rows."""
    limits, rows = Limits(software=True, max_groups=(2, 1, 1)), 1 << 13
    most = 2 * LOCAL_SIZE * (LOOP_STEPS // ((1 + 4) * rows // 4 + 1))

    def pack_int8(columns: int) -> tuple[Dispatch, ...]:
        words = TensorType((columns // 16, 1 + rows // 4, 16), UINT32)
        x = TensorType((rows, columns), INT32)
        call = Call((x,), words, Attrs({"signed": False}), limits)
        return lower(get_op("prepack_int8"), call).dispatches

    assert len(pack_int8(most)) == 1
    with pytest.raises(UnsupportedOp, match=f"{most + 16} columns of {rows} rows are too many"):
        pack_int8(most + 16)
