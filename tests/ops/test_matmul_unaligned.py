"""Products whose lines are no vec4s: read value by value in tiles of aligned ones, not packed."""

from __future__ import annotations

import pytest

from vksched.common.dtypes import INT32, TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import Call, get_op
from vksched.ops.lowering.lower import choice_of, lower, variants_of
from vksched.testing.op_cases.linalg.matmul import attrs
from vksched.topology.limits import Limits

GPU = Limits(1024, (1024, 1024, 64), shared_bytes=32768, storage_buffers=16, subgroup_size=32)
MATMUL = get_op("matmul")


def call_of(m: int, k: int, n: int, dtype: str = "float32", limits: Limits = GPU) -> Call:
    types = TensorType((m, k), dtype), TensorType((k, n), dtype)
    return Call(types, TensorType((m, n), dtype), Attrs(attrs()), limits)


@pytest.mark.parametrize("sizes", [(1023, 1023, 1023), (256, 510, 384), (100, 64, 33)])
def test_odd_sizes_take_one_dispatch_of_the_best_tile(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    call = call_of(m, k, n)
    aligned = call_of(*(-(-size // 4) * 4 for size in sizes))
    best = choice_of(MATMUL, aligned).variant
    assert choice_of(MATMUL, call).variant == best.replace("vec4", "unaligned")
    (dispatch,) = lower(MATMUL, call).dispatches
    assert dispatch.shader == "matmul_vec4_unaligned_float32"
    assert lower(MATMUL, call).scratch == ()


def test_other_products_keep_their_kernels() -> None:
    for call, first in (
        (call_of(1024, 1024, 1024), "vec4"),
        (call_of(4, 1023, 1023), "gemv"),
        (call_of(1023, 1023, 7), "tiled"),
        (call_of(1023, 1023, 1023, INT32), "tiled"),
    ):
        assert variants_of(MATMUL, call)[0].startswith(first)
        assert not any(name.startswith("unaligned") for name in variants_of(MATMUL, call))
