"""Fused elementwise: several elementwise ops as one node that reads its operands and writes its
result once.

    registers   0..n-1 operands | constants | results of the steps; the last one is the node's
    steps       (op, registers, attributes), in order: ("add", (0, 1), ()), ("relu", (2,), ()), ...

Passes create these nodes; users do not. On a device one shader runs all steps: the runtime inserts
the calls of the steps and the constants into its module (vksched/runtime/vulkan/spirv_patch.py).
Each step is the function of its op, and each operation in it rounds separately. The last digit may
differ from the unfused op, for which drivers contract multiply-adds. numpy runs the steps on pieces
that fit its cache. float16 is computed in float32 and rounded once. Examples:
tests/passes/test_fuse_elementwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, cast

import numpy as np

from ...common.dtypes import (
    BOOL,
    FLOAT32,
    FLOATS,
    INT32,
    NDArray,
    Shape,
    TensorType,
    numpy_dtype,
)
from ...common.errors import ShapeError, UnsupportedOp
from ...ir.attr_domains import MANY
from ...ir.attrs import Attrs, AttrValue
from ...ir.cpu_kernel import CpuKernel, cut_elements
from ...ir.evaluate import infer
from ...ir.native_program import NativeProgram
from ...ir.op import (
    OUTPUT,
    REGISTERS,
    Call,
    Dispatch,
    InPlace,
    Kernel,
    Op,
    ShaderProgram,
    Work,
    get_op,
    register,
)
from ...ir.sharding_rule import no_sharding
from ...ir.vjp import no_gradient
from ..lowering.fused_loop import LoopInstr, elementwise_program, has_steps, instr_of
from ..lowering.strides import MAX_DISPATCHES, broadcast_strides, collapse, pad, peel
from ..lowering.vec4 import both_readings, launch_run, reading
from .pointwise import PARAMETERS, function_name, parameters_of
from .program_domains import PROGRAM

MAX_INPUTS, MAX_AXES = REGISTERS, 4
"""Limits of the shaders."""
MAX_COST = 200
"""Maximum cost of all steps: SwiftShader needs one to two seconds, and compile time is quadratic.
"""
SHADER_INPUTS = (1, 2, 3, 6)
"""Operand counts of the shaders; surplus operands are bound to the first operand."""

# fmt: off
UNARY = (
    "neg_float32", "abs_float32", "relu_float32", "clip_float32", "square_float32", "sqrt_float32",
    "rsqrt_float32", "reciprocal_float32", "exp_float32", "log_float32", "tanh_float32",
    "sigmoid_float32", "silu_float32", "erf_float32", "gelu_float32", "gelu_tanh_float32",
    "gelu_backward_float32", "gelu_tanh_backward_float32",
    "softplus_float32", "mish_float32", "elu_float32", "leaky_relu_float32",
    "hard_sigmoid_float32", "hard_swish_float32", "expm1_float32", "log1p_float32", "sin_float32",
    "cos_float32", "floor_float32", "ceil_float32", "round_float32", "trunc_float32",
    "sign_float32", "int32_to_float32", "bool_to_float32", "float32_to_bool", "logical_not_bool",
)
BINARY = (
    "add_float32", "sub_float32", "mul_float32", "div_float32", "pow_float32", "maximum_float32",
    "minimum_float32", "prelu_float32", "equal_float32", "not_equal_float32", "less_float32",
    "less_equal_float32", "greater_float32", "greater_equal_float32", "bitwise_and_int32",
    "bitwise_or_int32", "bitwise_xor_int32",
)
# fmt: on
FUNCTIONS = frozenset((*UNARY, *BINARY, "where"))
"""Functions in shaders/elementwise/fused_ops.glsl."""
COST = 32
COSTS = {
    **dict.fromkeys(("sin", "cos"), 128),
    **dict.fromkeys("clip hard_sigmoid hard_swish maximum minimum".split(), 8),
    **dict.fromkeys("reciprocal floor ceil round trunc sign".split(), 8),
    **dict.fromkeys("leaky_relu prelu where".split(), 3),
    **dict.fromkeys("neg abs relu square add sub mul div cast".split(), 1),
    **dict.fromkeys("equal not_equal less less_equal greater greater_equal".split(), 1),
    **dict.fromkeys("logical_not bitwise_and bitwise_or bitwise_xor".split(), 1),
}
"""Approximate compile cost of a step in drivers: 1 for an addition, COST for most functions."""

StepAttrs = tuple[tuple[str, AttrValue], ...]
Instr = tuple[str, tuple[int, ...], StepAttrs]


# -- programs --------------------------------------------------------------------------------------


def function_of(op: str, types: Sequence[TensorType], attrs: Attrs) -> str | None:
    """Return the shader function of an op, or None if fused elementwise ops do not support it."""
    if not types:
        return None
    dtype = types[-1].dtype if op == "where" else types[0].dtype
    if op == "where":
        name = "where" if dtype == FLOAT32 else ""
    elif op == "cast":
        name = f"{dtype}_to_{attrs.as_str('to')}"
    else:
        name = function_name(op, dtype)
        # a function on words, which supports another type too
        if name.endswith("int32") and dtype != BOOL:
            return None
    return name if name in FUNCTIONS else None


def program_attrs(
    steps: Sequence[Instr], constants: Sequence[tuple[str, int]]
) -> dict[str, AttrValue]:
    """Return the attributes of a fused elementwise op. constants: (element type, word)."""
    return {"steps": tuple(steps), "constants": tuple(constants)}


@dataclass(frozen=True, eq=False)
class FusedProgram:
    """Parsed attributes of a fused elementwise op.

    Attributes
    ----------
    values
        The constants as numpy values.
    dead
        For each step the registers that no later step reads.
    """

    steps: tuple[tuple[Op, tuple[int, ...], Attrs], ...]
    constants: tuple[tuple[str, int], ...]
    values: tuple[NDArray, ...]
    dead: tuple[tuple[int, ...], ...]


@lru_cache(maxsize=512)
def program_of(attrs: Attrs) -> FusedProgram:
    """Return the program of a fused elementwise op."""
    steps = cast(tuple[Instr, ...], attrs["steps"])
    constants = cast(tuple[tuple[str, int], ...], attrs["constants"])
    instrs = tuple(
        (get_op(op), tuple(at), Attrs(dict(attrs_items))) for op, at, attrs_items in steps
    )
    last = {at: number for number, (_, read, _) in enumerate(steps) for at in read}
    dead: list[list[int]] = [[] for _ in steps]
    for at, number in last.items():
        dead[number].append(at)
    values = tuple(_value_of(dtype, at) for dtype, at in constants)
    return FusedProgram(instrs, constants, values, tuple(map(tuple, dead)))


def _value_of(dtype: str, at: int) -> NDArray:
    constant = np.array(at, np.uint32)
    return constant.astype(bool) if dtype == BOOL else constant.view(numpy_dtype(dtype))


def _types(inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    """Return the types of all registers, with all floats as float32."""
    wide = tuple(t.as_dtype(FLOAT32) if t.dtype in FLOATS else t for t in inputs)
    return _types_of(wide, program_of(attrs))


@lru_cache(maxsize=512)
def _types_of(inputs: tuple[TensorType, ...], program: FusedProgram) -> tuple[TensorType, ...]:
    types = [*inputs, *(TensorType((), dtype) for dtype, _ in program.constants)]
    for op, registers, op_attrs in program.steps:
        if any(not 0 <= r < len(types) for r in registers):
            raise ShapeError(
                f"[fused_elementwise] {op.name} reads a register that is not there yet"
            )
        types.append(infer(op, tuple(types[r] for r in registers), op_attrs))
    return tuple(types)


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    types, program = _types(inputs, attrs), program_of(attrs)
    for op, registers, op_attrs in program.steps:
        read = tuple(types[r] for r in registers)
        if function_of(op.name, read, op_attrs) is None:
            raise ShapeError(
                f"[fused_elementwise] expected steps that a fused elementwise op holds, "
                f"got {op.name} of {' and '.join(map(str, read))}"
            )
    if any(t.shape not in ((), types[-1].shape) for t in types[len(inputs) :]):
        raise ShapeError("[fused_elementwise] expected steps of one shape")
    return types[-1]


# -- numpy -----------------------------------------------------------------------------------------

Kind = tuple[Shape, np.dtype[Any]]
"""Shape and dtype of an array."""


def _compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    """Write the result of a fused elementwise op, or a piece of it."""
    program = program_of(attrs)
    values = list(inputs)
    for constant in program.values:  # in float64 if the operands are
        wide = constant.dtype == np.float32 and any(x.dtype == np.float64 for x in inputs)
        values.append(constant.astype(np.float64) if wide else constant)
    result_kinds = _kinds(tuple([(x.shape, x.dtype) for x in inputs]), attrs, out.dtype)
    for number, (op, registers, op_attrs) in enumerate(program.steps):
        operands = tuple([values[r] for r in registers])
        if number + 1 == len(program.steps):
            result = out
        else:
            result = np.empty(*result_kinds[number])
        if op.cpu is None:
            result[...] = op.reference(operands, op_attrs)
        else:
            op.cpu.compute(operands, op_attrs, result)
        values.append(result)
        for at in program.dead[number]:  # reuse cached memory for the next step
            values[at] = result


@lru_cache(maxsize=512)
def _kinds(inputs: tuple[Kind, ...], attrs: Attrs, result: np.dtype[Any]) -> tuple[Kind, ...]:
    """Return the kind of each step's result; float64 if the result is."""
    types = _types([TensorType(shape, str(dtype)) for shape, dtype in inputs], attrs)
    steps = types[-len(program_of(attrs).steps) :]
    wide = {FLOAT32: np.dtype(np.float64)} if result == np.float64 else {}
    return tuple((t.shape, wide.get(t.dtype, numpy_dtype(t.dtype))) for t in steps)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    type_ = _types([TensorType(x.shape, str(x.dtype)) for x in inputs], attrs)[-1]
    wide = type_.dtype == FLOAT32 and any(x.dtype == np.float64 for x in inputs)
    out = np.empty(type_.shape, np.float64 if wide else numpy_dtype(type_.dtype))
    _compute(inputs, attrs, out)
    return out


def native_program_of(
    inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    """Return a native loop of all steps, or None if a step is not supported."""
    if output.dtype not in (FLOAT32, INT32):
        return None
    loop = loop_steps(inputs, attrs)
    return loop and elementwise_program(inputs, output.shape, *loop)


def loop_steps(
    inputs: Sequence[TensorType], attrs: Attrs
) -> tuple[tuple[float, ...], tuple[LoopInstr, ...]] | None:
    """Return constants and instructions for a native loop, or None if a step is not supported."""
    program, types = program_of(attrs), _types(inputs, attrs)
    results = types[-len(program.steps) :]
    steps = tuple(
        (instr_of(op.name, [types[r] for r in at], to.dtype), at, parameters_of(op.name, op_attrs))
        for (op, at, op_attrs), to in zip(program.steps, results, strict=True)
    )
    fit = has_steps([name for name, *_ in steps])
    if not fit or any(dtype != FLOAT32 for dtype, _ in program.constants):
        return None
    return tuple(map(float, program.values)), steps


def cost_of(op: str) -> int:
    """Return the cost of a step."""
    return COSTS.get(op, COST)


# -- devices ---------------------------------------------------------------------------------------


def shader_program_of(call: Call) -> ShaderProgram:
    """Return the steps of a fused elementwise op as shader functions.

    Raises
    ------
    UnsupportedOp
        The shaders lack a function, or the program is too large.
    """
    program, types = program_of(call.attrs), _types(call.inputs, call.attrs)
    count, first = len(call.inputs), len(call.inputs) + len(program.constants)
    cost = sum(cost_of(op.name) for op, _, _ in program.steps)
    if cost > MAX_COST or count > MAX_INPUTS:
        raise UnsupportedOp(
            f"a fused elementwise op holds {MAX_INPUTS} operands and steps of a cost of "
            f"{MAX_COST}, this one has {count} and {cost}"
        )
    operand_types = [tuple(types[r] for r in registers) for _, registers, _ in program.steps]
    parameters = [
        PARAMETERS[op.name](Call(seen, seen[0], attrs)) if op.name in PARAMETERS else ()
        for (op, _, attrs), seen in zip(program.steps, operand_types, strict=True)
    ]
    numbers = (*(word for _, word in program.constants), *chain.from_iterable(parameters))
    words = {word: REGISTERS + at for at, word in enumerate(dict.fromkeys(numbers))}

    def place(register: int) -> int:
        if register < count:
            return register
        if register < first:
            return words[program.constants[register - count][1]]
        return REGISTERS + len(words) + register - first

    calls = []
    for (op, registers, attrs), seen, own in zip(
        program.steps, operand_types, parameters, strict=True
    ):
        name = function_of(op.name, seen, attrs)
        if name is None:
            raise UnsupportedOp(f"no fused elementwise op holds {op.name} of {seen[0].dtype}")
        calls.append((name, (*map(place, registers), *(words[word] for word in own))))
    return ShaderProgram(tuple(calls), tuple(words))


def shader_inputs(inputs: int, storage_buffers: int) -> int | None:
    """Return the operand count of the shader for a call with `inputs` operands, or None."""
    fits = (n for n in SHADER_INPUTS if inputs <= n < storage_buffers)
    return next(fits, None)


def _lower(call: Call) -> tuple[Dispatch, ...]:
    steps = shader_program_of(call)
    if not call.output.size:
        return ()
    operands = shader_inputs(len(call.inputs), call.limits.storage_buffers)
    if operands is None:
        raise UnsupportedOp(
            f"a fused elementwise op of {len(call.inputs)} operands binds more than the "
            f"{call.limits.storage_buffers} buffers that the device allows"
        )
    shape = call.output.shape
    operand_strides = [broadcast_strides(t.shape, shape) for t in (*call.inputs, call.output)]
    sizes, strides = collapse(shape, operand_strides)
    if math.prod(sizes[MAX_AXES:]) > MAX_DISPATCHES:
        raise UnsupportedOp(f"broadcasting to {shape} needs more than {MAX_DISPATCHES} dispatches")
    inner = sizes[:MAX_AXES]
    varies = [s[0] == 1 for s in strides[:-1]]
    wide = len(sizes) == 1 or not any(
        step % 4
        for s, moves in zip(strides, (*varies, True), strict=True)
        for step in (sizes[0], *s[1:])
        if moves
    )
    count = math.prod(inner)
    filled = [*range(len(call.inputs)), *[0] * (operands - len(call.inputs))]
    push: list[tuple[str, int | float | tuple[int, ...]]] = [
        ("count", count),
        ("sizes", pad(inner[:-1], MAX_AXES - 1)),
    ]
    push += [
        (f"{name}_strides", pad(strides[i][1:MAX_AXES], MAX_AXES - 1))
        for name, i in zip("abcdef", filled, strict=False)
    ]
    groups, local_size = launch_run(-(-count // 4) if wide else count, call.limits)
    constants = (
        *local_size,
        ("RANK", len(inner)),
        ("VARIES", sum(1 << i for i, moves in enumerate(varies) if moves)),
    )
    return tuple(
        Dispatch(
            reading(f"fused_{operands}_vec4", call.limits) if wide else f"fused_{operands}",
            (*filled, OUTPUT),
            groups,
            tuple(push),
            constants,
            shifts=(*(shift[i] for i in filled), shift[-1]),
            steps=steps,
        )
        for shift in peel(sizes, strides, MAX_AXES)
    )


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    """Return the work of all steps, with each operand and the result moved once."""
    types, program = _types(inputs, attrs), program_of(attrs)
    first = len(types) - len(program.steps)
    flops = sum(
        op.work(tuple(types[r] for r in registers), types[first + number], op_attrs).flops
        for number, (op, registers, op_attrs) in enumerate(program.steps)
    )
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    return Work(flops, float(moved))


# a single operand is contiguous and read as vec4s
SHADERS = (
    *(f"fused_{n}" for n in SHADER_INPUTS[1:]),
    *both_readings(f"fused_{n}_vec4" for n in SHADER_INPUTS),
)

CPU_KERNEL = CpuKernel(_compute, cut_elements)

register(
    Op(
        "fused_elementwise",
        _infer,
        _reference,
        Kernel(SHADERS, _lower),
        attrs=PROGRAM,
        operands=(1, MANY),
        work=_work,
        cpu=CPU_KERNEL,
        native_program=native_program_of,
        in_place=InPlace(),
    )
)
no_gradient("is created by passes, after differentiation", "fused_elementwise")
no_sharding("is created by passes, after sharding", "fused_elementwise")
