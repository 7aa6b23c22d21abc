"""Declaration of elementwise ops: type rules, kernels and tables."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from ...common.dtypes import (
    BOOL,
    FLOAT32,
    INT32,
    INT64,
    UINT32,
    NDArray,
    TensorType,
    as_float,
    broadcast_shapes,
    numpy_dtype,
)
from ...common.errors import DTypeError
from ...ir.attr_domains import Domains
from ...ir.attrs import Attrs, AttrValue
from ...ir.cpu_kernel import CpuKernel, cut_elements
from ...ir.native_program import NativeProgram
from ...ir.op import OUTPUT, Call, Dispatch, InPlace, Kernel, Op, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ..lowering.fused_loop import elementwise_program, instr_of
from ..lowering.strides import broadcast_strides, collapse, pad
from ..lowering.vec4 import (
    both_readings,
    can_use_vec4,
    launch_lines,
    launch_run,
    reading,
)

INTS = (INT32, UINT32)
NUMBERS = (FLOAT32, *INTS)
ALL = (*NUMBERS, BOOL)
WHOLE = (*INTS, INT64)
"""Integer types."""
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")

MIN_NORMAL = float(np.finfo(np.float32).tiny)
"""Drivers may flush smaller parameters to 0."""

unary_types: list[tuple[str, str]] = []
binary_types: list[tuple[str, str]] = []
"""Operand types of each op, in order of declaration."""

_SHARED = {
    **{
        f"{op}_uint32": f"{op}_int32"
        for op in ("add", "sub", "mul", "neg", "square", "isfinite", "isnan", "equal", "not_equal")
    },
    **{
        f"bitwise_{op}_uint32": f"bitwise_{op}_int32"
        for op in ("and", "or", "xor", "invert", "left_shift")
    },
    **{f"{op}_bool": f"{op}_int32" for op in COMPARISONS},
    **{f"bitwise_{op}_bool": f"bitwise_{op}_int32" for op in ("and", "or", "xor")},
    **{f"logical_{op}_bool": f"bitwise_{op}_int32" for op in ("and", "or", "xor")},
    "maximum_bool": "bitwise_or_int32",
    "minimum_bool": "bitwise_and_int32",
    "bitwise_invert_bool": "logical_not_bool",
    "floor_divide_uint32": "div_uint32",
    "fmod_uint32": "remainder_uint32",
    "isinf_int32": "isnan_int32",
    "isinf_uint32": "isnan_int32",
}
"""Variants that use another variant's shader: both functions are equal on 32-bit words."""


PARAMETERS: dict[str, Callable[[Call], tuple[int, ...]]] = {}
"""Parameter words of unary ops that have parameters, by op."""


def function_name(op: str, dtype: str) -> str:
    """Return the shader function of an op for operands of one type."""
    name = f"{op}_{dtype}"
    return _SHARED.get(name, name)


def parameters_of(op: str, attrs: Attrs) -> tuple[float, float]:
    """Return the parameters of a float32 function of one operand, 0 for absent ones."""
    if op not in PARAMETERS:
        return 0.0, 0.0
    one = TensorType((1,), FLOAT32)
    words = (*PARAMETERS[op](Call((one,), one, attrs)), 0, 0)
    first, second = struct.unpack("<2f", struct.pack("<2I", *words[:2]))
    return first, second


def _native_program(
    op: str, inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    if output.dtype not in (FLOAT32, INT32):
        return None
    name = instr_of(op, inputs, output.dtype)
    step = (name, tuple(range(len(inputs))), parameters_of(op, attrs))
    return elementwise_program(inputs, output.shape, (), (step,))


def _cpu(compute: Callable[..., NDArray], parameters: tuple[str, ...] = ()) -> CpuKernel:
    """Return a CPU kernel.

    numpy functions write results directly; other results are copied in small pieces.
    """

    def into(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
        if isinstance(compute, np.ufunc):
            compute(*inputs, out=out)
        else:
            out[...] = compute(*inputs, *(attrs[p] for p in parameters))

    return CpuKernel(into, cut_elements)


# -- one operand ------------------------------------------------------------------------------


def word(value: AttrValue, dtype: str) -> int:
    """Return a parameter as the 32-bit word that a kernel with this operand type reads."""
    assert isinstance(value, (int, float))
    if dtype == FLOAT32:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    return int(value) & 0xFFFFFFFF


def lower_words(variant: str, call: Call, parameters: tuple[int, ...] = ()) -> tuple[Dispatch, ...]:
    """Return the dispatch of a unary function with up to two parameters."""
    count = call.output.size
    if count == 0:
        return ()
    alpha, beta = pad(parameters, 2)
    push = (("count", count), ("alpha", alpha), ("beta", beta))
    groups, constants = launch_run(-(-count // 4), call.limits)
    shader = reading(f"unary_{variant}", call.limits)
    return (Dispatch(shader, (0, OUTPUT), groups, push, constants),)


def declare_unary(
    op: str,
    dtypes: Iterable[str],
    compute: Callable[..., NDArray],
    *,
    result: str | None = None,
    parameters: Domains | None = None,
    same: tuple[str, ...] = (),
    words: Callable[[Call], tuple[int, ...]] | None = None,
    into: Callable[[NDArray, NDArray], object] | None = None,
) -> None:
    """Declare an op with one operand.

    Parameters
    ----------
    compute
        (array, value of each parameter) -> array, in numpy.
    result
        Element type of the result; None: the operand's.
    parameters
        Attributes, all of which the kernel reads.
    same
        Operand types for which the op is the identity.
    words
        Encodes the parameters as words, if `word` is not suitable.
    into
        (float32 array, result) -> None, if numpy can be faster than with `compute`.
    """
    allowed, parameters = tuple(dtypes), parameters or {}
    unary_types.extend((op, dtype) for dtype in allowed)

    def infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
        if inputs[0].dtype not in allowed:
            raise DTypeError(
                f"[{op}] expected {' or '.join(allowed)}, got {inputs[0].dtype}; try vs.cast"
            )
        return inputs[0].as_dtype(result or inputs[0].dtype)

    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        x = inputs[0]
        dtype = x.dtype if result is None else numpy_dtype(result)
        if str(x.dtype) in same:
            return x
        return np.asarray(compute(x, *(attrs[p] for p in parameters)), dtype)

    def values_of(call: Call) -> tuple[int, ...]:
        dtype = call.inputs[0].dtype
        return words(call) if words else tuple(word(call.attrs[p], dtype) for p in parameters)

    def lower(call: Call) -> tuple[Dispatch, ...]:
        return lower_words(function_name(op, call.inputs[0].dtype), call, values_of(call))

    def view(inputs: tuple[TensorType, ...], attrs: Attrs) -> int | None:
        return 0 if inputs[0].dtype in same else None

    plain = _cpu(compute, tuple(parameters))

    def run(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
        if str(inputs[0].dtype) in same:
            np.copyto(out, inputs[0])
        elif into is not None and inputs[0].dtype == np.float32:
            # these functions do not support 0-d arrays
            into(np.atleast_1d(inputs[0]), np.atleast_1d(out))
        else:
            plain.compute(inputs, attrs, out)

    shaders = both_readings(
        f"unary_{function_name(op, dtype)}" for dtype in allowed if dtype not in same
    )
    kernel = Kernel(shaders, lower) if shaders else None
    if parameters:
        PARAMETERS[op] = values_of
    cpu = CpuKernel(run, cut_elements)
    view_rule = view if same else None
    native_program = partial(_native_program, op) if FLOAT32 in allowed and result is None else None
    register(
        Op(
            op,
            infer,
            reference,
            kernel,
            attrs=parameters,
            operands=(1, 1),
            view=view_rule,
            cpu=cpu,
            native_program=native_program,
            in_place=InPlace(),
        )
    )


def unary(op: str, x: TensorLike, name: str | None, **parameters: AttrValue) -> Tensor:
    """Create a node with one operand."""
    return apply(op, (as_tensor(x),), parameters, name)


def number(op: str, what: str, value: object) -> float:
    """Convert a parameter to float.

    Raises
    ------
    DTypeError
        The value is not a number, or exceeds float32.
    """
    real = as_float(op, what, value)
    if abs(real) > float(np.finfo(np.float32).max):
        raise DTypeError(f"[{op}] expected a finite number as {what}, got {value!r}")
    return real


# -- two operands -----------------------------------------------------------------------------


def _lower_binary(op: str, call: Call) -> tuple[Dispatch, ...]:
    if call.output.size == 0:
        return ()
    shape = call.output.shape
    operand_strides = [broadcast_strides(t.shape, shape) for t in call.inputs]
    sizes, strides = collapse(shape, operand_strides)
    lines = call.output.size // sizes[0]
    vec4 = can_use_vec4(sizes[0], strides)
    groups, constants = launch_lines(sizes[0], lines, vec4, call.limits)
    push = (
        ("columns", sizes[0]),
        ("lines", lines),
        ("sizes", pad(sizes[1:], 6)),
        ("a_strides", pad(strides[0], 8)),
        ("b_strides", pad(strides[1], 8)),
    )
    constants += (
        ("RANK", len(sizes)),
        ("A_ALONG", min(strides[0][0], 1)),
        ("B_ALONG", min(strides[1][0], 1)),
    )
    shader = reading(f"binary_{function_name(op, call.inputs[0].dtype)}", call.limits)
    return (Dispatch(shader, (0, 1, OUTPUT), groups, push, constants),)


def declare_binary(
    op: str,
    dtypes: Iterable[str],
    compute: Callable[[NDArray, NDArray], NDArray],
    *,
    result: str | None = None,
    any_dtype: bool = False,
) -> None:
    """Declare an op with two operands of one type, with numpy broadcasting.

    Parameters
    ----------
    compute
        numpy function.
    result
        Element type of the result; None: the operands'.
    """
    allowed = tuple(dtypes)
    binary_types.extend((op, dtype) for dtype in allowed if dtype in ALL)

    def infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
        a, b = inputs
        if a.dtype != b.dtype or a.dtype not in allowed:
            raise DTypeError(
                f"[{op}] expected two operands of {' or of '.join(allowed)}, "
                f"got {a.dtype} and {b.dtype}; try vs.cast"
            )
        return TensorType(broadcast_shapes(op, a.shape, b.shape), result or a.dtype)

    def reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
        a, b = inputs
        return np.asarray(compute(a, b), a.dtype if result is None else numpy_dtype(result))

    shaders = dict.fromkeys(
        f"binary_{function_name(op, dtype)}" for dtype in allowed if dtype in ALL
    )
    kernel = Kernel(both_readings(shaders), partial(_lower_binary, op))
    register(
        Op(
            op,
            infer,
            reference,
            kernel,
            attrs={},
            operands=(2, 2),
            any_dtype=any_dtype,
            cpu=_cpu(compute),
            native_program=partial(_native_program, op)
            if FLOAT32 in allowed and result is None
            else None,
            in_place=InPlace(),
        )
    )
