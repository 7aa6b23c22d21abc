"""Mixture-of-experts products (ggml MUL_MAT_ID): multiply each row by the matrices of its experts.

    x (rows, k), weight (experts, n, k), expert_ids (rows, used)  ->  (rows, used, n)

Each expert is computed for its own rows only. If the weight is quantized, the pass
vksched/passes/fuse_dequantize.py replaces the op by `quantized_moe_linear`. Kernels, and how they
group rows by expert: moe_linear_kernels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...common.dtypes import FLOAT32, NDArray, TensorType
from ...common.errors import DTypeError, ShapeError
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece
from ...ir.op import OUTPUT, Call, Dispatch, Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...ir.vjp import VjpContext, VjpResult, gradient
from ..elementwise.select import cast
from ..layout.index import GATHER_SHADERS, check_index_type, one_hot, positions
from ..layout.reshape import expand, reshape, transpose
from ..layout.strided_copy import COPIES, FILLS, fill_words
from ..linalg.matmul import matmul
from ..linalg.matmul_shaders import SHADERS
from ..lowering import native_kernels
from ..reduction.reduce import reduce_sum
from .dequantize import DEQUANTIZE_SHADERS, dequantize
from .gguf_formats import FORMAT, format_of, unpacked
from .moe_linear_kernels import MOE_SHADERS, lower, packed_variants, scratch, variants
from .q8_activations import fake_quantize_q8, quantizes_x
from .quant_layout import check_words
from .quantized_linear import LINEAR_SHADERS, NATIVE_GEMV

MAX_PIECES, MIN_COLUMNS = 16, 32
"""Maximum number of pieces of the columns of a result in numpy, and minimum columns of a piece."""


# -- types and work ------------------------------------------------------------------------------


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, weight, expert_ids = inputs
    if x.dtype != FLOAT32 or weight.dtype != FLOAT32:
        raise DTypeError(
            f"[moe_linear] expected x and weight of float32, got {x.dtype} and {weight.dtype}"
        )
    result = _result("moe_linear", x, weight, expert_ids)
    if weight.shape[2] != x.shape[-1]:
        raise ShapeError(
            f"[moe_linear] expected matrices (n, {x.shape[-1]}) for x {x.shape}, got "
            f"{weight.shape[1:]}"
        )
    return result


def _packed_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, words, expert_ids = inputs
    if x.dtype != FLOAT32:
        raise DTypeError(f"[quantized_moe_linear] expected x of float32, got {x.dtype}")
    result = _result("quantized_moe_linear", x, words, expert_ids)
    check_words("quantized_moe_linear", words, format_of(attrs["format"]), x.shape[-1])
    return result


def _result(op: str, x: TensorType, weight: TensorType, expert_ids: TensorType) -> TensorType:
    check_index_type(op, expert_ids)
    if weight.rank != 3:
        raise ShapeError(f"[{op}] expected a weight of (matrices, n, k), got {weight.shape}")
    if not weight.shape[0]:
        raise ShapeError(f"[{op}] expected at least one matrix, got {weight.shape}")
    if (
        expert_ids.rank != 2
        or x.rank not in (2, 3)
        or x.shape[:-1] != expert_ids.shape[: x.rank - 1]
    ):
        raise ShapeError(
            f"[{op}] expected expert_ids (rows, used) and x (rows, k) or (rows, used, k), got "
            f"{expert_ids.shape} and {x.shape}"
        )
    return TensorType((*expert_ids.shape, weight.shape[1]), FLOAT32)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    """Estimate the work; at most the selected matrices of the weight are read."""
    x, weight, expert_ids = inputs
    share = min(1.0, expert_ids.size / max(1, weight.shape[0]))
    moved = x.device_bytes + expert_ids.device_bytes + output.device_bytes
    return Work(2.0 * x.shape[-1] * output.size, moved + share * weight.device_bytes)


# -- numpy ---------------------------------------------------------------------------------------

Product = Callable[[NDArray, NDArray], NDArray]
"""(rows, matrix) -> rows @ matrix^T."""


def _write(op: str, inputs: tuple[NDArray, ...], out: NDArray, product: Product) -> None:
    """Write the products of the rows of each expert."""
    x, weight, expert_ids = inputs
    numbers = positions(op, expert_ids, len(weight)).reshape(-1)
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    used = expert_ids.shape[1]
    for number, places in zip(found, np.split(order, starts)[1:], strict=True):
        at = places // used, places % used
        out[at] = product(x[at if x.ndim == 3 else at[0]], weight[number])


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, weight, expert_ids = inputs
    out: NDArray = np.empty((*expert_ids.shape, weight.shape[1]), np.result_type(x, weight))
    _write("moe_linear", inputs, out, _floats)
    return out


def _packed_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, words, expert_ids = inputs
    if quantizes_x(attrs):
        x = fake_quantize_q8(x)
    values = unpacked(str(attrs["format"]), words, x.shape[-1]).astype(x.dtype)
    out: NDArray = np.empty((*expert_ids.shape, words.shape[1]), x.dtype)
    _write("quantized_moe_linear", (x, values, expert_ids), out, _floats)
    return out


def _floats(rows: NDArray, matrix: NDArray) -> NDArray:
    """Return the products; few rows one by one, so that a row does not depend on the others."""
    if len(rows) <= NATIVE_GEMV:
        return np.stack([matrix @ row for row in rows])
    return np.asarray(np.matmul(rows, matrix.T))


def _cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    _write("moe_linear", inputs, out, _floats)


def _packed_cpu(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    name, quantizes = str(attrs["format"]), quantizes_x(attrs)

    def product(rows: NDArray, words: NDArray) -> NDArray:
        sums: NDArray = np.empty((len(rows), len(words)), np.float32)
        if quantizes:
            if native_kernels.quantized_linear_q8(name, rows, words, None, sums):
                return sums
            rows = fake_quantize_q8(rows)
        if len(rows) <= NATIVE_GEMV and native_kernels.quantized_linear(
            name, rows, words, None, sums
        ):
            return sums
        values: NDArray = np.empty((len(words), rows.shape[1]), np.float32)
        if not native_kernels.dequantize(name, words, values):
            values = unpacked(name, words, rows.shape[1])
        return _floats(rows, values)

    _write("quantized_moe_linear", inputs, out, product)


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split by columns of all matrices."""
    x, weight, expert_ids = inputs
    n = weight.shape[1]
    step = max(-(-n // MAX_PIECES), MIN_COLUMNS)
    for start in range(0, n, step):
        part = slice(start, start + step)
        yield (x, weight[:, part], expert_ids), out[..., part]


# -- kernels -------------------------------------------------------------------------------------


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if call.output.size and not call.inputs[0].shape[-1]:  # sums over an empty axis
        return (fill_words(OUTPUT, call.output.words, 0, call.limits),)
    return lower(call)


_SHADERS = (*MOE_SHADERS, *GATHER_SHADERS, *COPIES, *FILLS, *SHADERS)

register(
    Op(
        "moe_linear",
        _infer,
        _reference,
        Kernel(_SHADERS, _lower, scratch, variants=variants),
        attrs={},
        operands=(3, 3),
        work=_work,
        roundable_operands=(0, 1),
        indices=(2,),
        cpu=CpuKernel(_cpu, _cut),
    )
)
register(
    Op(
        "quantized_moe_linear",
        _packed_infer,
        _packed_reference,
        Kernel(
            (*_SHADERS, *LINEAR_SHADERS, *DEQUANTIZE_SHADERS),
            _lower,
            scratch,
            variants=packed_variants,
        ),
        attrs={"format": FORMAT},
        operands=(3, 3),
        work=_work,
        roundable_operands=(0,),
        indices=(2,),
        cpu=CpuKernel(_packed_cpu, _cut),
    )
)


# -- gradients -----------------------------------------------------------------------------------


@gradient("moe_linear")
def _gradient(call: VjpContext) -> VjpResult:
    """Return the gradients of x and of the weight.

    x: grad by the same matrices, transposed. weight: grad^T @ x for each matrix, with zeros for
    rows of other experts; this multiplies all matrices by all rows.
    """
    x, weight, expert_ids = call.inputs
    of_x = of_weight = None
    if call.wanted[0]:
        of_x = _of_x(call.grad, weight, expert_ids, x)
    if call.wanted[1]:
        count, n = expert_ids.size, weight.shape[1]
        each = x if x.rank == 3 else expand(x[:, None, :], (*expert_ids.shape, x.shape[-1]))
        mask = transpose(one_hot(reshape(expert_ids, (count,)), weight.shape[0]), (1, 0))
        grads = reshape(call.grad, (1, count, n)) * cast(mask, call.grad.dtype)[:, :, None]
        of_weight = matmul(grads, reshape(each, (1, count, x.shape[-1])), transpose_a=True)
    return of_x, of_weight, None


def _of_x(grad: Tensor, weight: Tensor, expert_ids: Tensor, x: Tensor) -> Tensor:
    x_grad = moe_linear(grad, transpose(weight, (0, 2, 1)), expert_ids)
    return x_grad if x.rank == 3 else reduce_sum(x_grad, 1)


@gradient("quantized_moe_linear")
def _packed_gradient(call: VjpContext) -> VjpResult:
    """Return the gradient of x only: quantized words have none."""
    x, words, expert_ids = call.inputs
    values = cast(dequantize(words, str(call.attrs["format"]), x.shape[-1]), x.dtype)
    return _of_x(call.grad, values, expert_ids, x), None, None


def moe_linear(
    x: TensorLike, weight: TensorLike, expert_ids: TensorLike, *, name: str | None = None
) -> Tensor:
    """Multiply each row by the matrices of its experts: x @ weight[expert_ids].T.

    Parameters
    ----------
    x : Tensor
        (rows, k), or (rows, used, k) if each expert has its own row.
    weight : Tensor
        (experts, n, k).
    expert_ids : Tensor
        int32 or int64 (rows, used); negative values count from the end.

    Returns
    -------
    Tensor
        (rows, used, n).

    Raises
    ------
    IndexOutOfRange
        If an id is outside -experts..experts-1 when the graph runs.
    """
    left = as_tensor(x)
    operands = left, as_tensor(weight, like=left), as_tensor(expert_ids)
    return apply("moe_linear", operands, name=name)
