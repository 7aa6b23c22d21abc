"""Epilogue: elementwise steps on what a product or convolution makes, before it is stored.

    matmul(a, b, bias) -> add residual -> gelu   is     matmul(a, b, bias, residual) {epilogue: ...}

A pass makes it (vksched/passes/fuse_epilogues.py), users do not. The attribute `epilogue` says
(operands, steps, constants): a fused op's program, whose first operand is the op's own result; the
second, where it has one, is a residual of the same type, the last input. Devices take the steps in
the kernel that writes the result (shaders/include/epilogue.glsl), once all parts of a sum are in
it; numpy takes them on pieces of the result. Examples: tests/passes/test_epilogue.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial, wraps
from typing import TypeVar, cast

import numpy as np

from ...common.dtypes import FLOAT32, NDArray, TensorType
from ...common.errors import DTypeError, ShapeError, UnsupportedOp
from ...ir.attrs import Attrs, AttrValue
from ...ir.check_call import check_call
from ...ir.cpu_kernel import CpuKernel, Piece, cut_elements, is_small
from ...ir.native_program import NativeProgram, with_native_epilogue
from ...ir.op import (
    EPILOGUE,
    OUTPUT,
    Call,
    Dispatch,
    Kernel,
    Op,
    ShaderProgram,
    Work,
    fp16_operands,
    get_op,
    no_variants,
)
from .fused_elementwise import CPU_KERNEL, Instr, program_attrs
from .fused_elementwise import native_program_of as native_program_of_steps
from .fused_elementwise import shader_program_of as fused_program_of
from .program_domains import Epilogue

MAX_STEPS = 4
"""What a kernel computes beside a product: its registers are full."""
MAX_NAMED_STEPS = 16
"""Steps that the text of an epilogue or a fused elementwise op names."""
FUNCTIONS = frozenset(
    f"{name}_float32"
    for name in (
        *("relu", "clip", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "leaky_relu"),
        *("hard_sigmoid", "hard_swish", "add", "mul"),
    )
)
"""Those of shaders/include/epilogue.glsl."""
OF_MATRICES = ("matmul", "quantized_linear", "merged_linear")
"""Ops whose results are rows of matrices; others make images."""
BUFFERS = 6
"""What a kernel binds at most with a residual."""

EpilogueProgram = tuple[int, Attrs]
"""The operands of the steps, and the attributes of their fused op."""
T = TypeVar("T")


def epilogue_attrs(
    operands: int, steps: tuple[Instr, ...], constants: tuple[tuple[str, int], ...]
) -> dict[str, AttrValue]:
    """Return the attribute of an epilogue."""
    return {EPILOGUE: (operands, steps, constants)}


@lru_cache(maxsize=4096)
def program_of(attrs: Attrs) -> EpilogueProgram | None:
    """Return the epilogue among the attributes of an op."""
    if EPILOGUE not in attrs:
        return None
    operands, steps, constants = cast(
        tuple[int, tuple[Instr, ...], tuple[tuple[str, int], ...]], attrs[EPILOGUE]
    )
    return operands, Attrs(program_attrs(steps, constants))


def attrs_text(attrs: Attrs) -> str:
    """Return attributes as people read them: of fused elementwise ops and epilogues the ops, or
    the first.
    """
    if attrs.keys() == program_attrs((), ()).keys():
        return f"steps {_ops_text(attrs['steps'])}"
    if EPILOGUE not in attrs:
        return str(attrs)
    _, steps, _ = cast(tuple[int, AttrValue, object], attrs[EPILOGUE])
    kept = (f"{name}={value!r}" for name, value in attrs.items() if name != EPILOGUE)
    return ", ".join((*kept, f"then {_ops_text(steps)}"))


def _ops_text(steps: AttrValue) -> str:
    names = [op for op, _, _ in cast(tuple[Instr, ...], steps)]
    if len(names) > MAX_NAMED_STEPS:
        names[MAX_NAMED_STEPS - 1 :] = ["...", f"{len(names)} in all"]
    return ", ".join(names)


def shader_program_of(result: TensorType, attrs: Attrs) -> ShaderProgram:
    """Return the steps of an epilogue as functions of the kernels; none of none.

    Raises:
        UnsupportedOp: kernels hold no such function, or not so much.
    """
    program = program_of(attrs)
    if program is None:
        return ShaderProgram()
    wide = result.as_dtype(FLOAT32)
    steps = fused_program_of(Call((wide,) * program[0], wide, program[1]))
    names = [name for name, _ in steps.calls]
    if len(names) > MAX_STEPS or not FUNCTIONS.issuperset(names):
        raise UnsupportedOp(
            f"an epilogue holds {MAX_STEPS} steps of {', '.join(sorted(FUNCTIONS))}, "
            f"this one has {', '.join(names)}"
        )
    return steps


def accepts_residual(op: str, result: TensorType) -> bool:
    """Whether kernels can read a residual: in vec4s, of rows of matrices or planes of images."""
    row = result.shape[-1] if op in OF_MATRICES else math.prod(result.shape[2:])
    return row % 4 == 0


def with_epilogue(op: Op) -> Op:
    """Return an op of floats that takes an epilogue, from the one that takes none."""
    assert op.kernel is not None
    kernel = op.kernel
    choice = kernel.variants

    @wraps(op.work)  # its module tells the op's family
    def work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
        return _work(op, inputs, output, attrs)

    least, most = op.operands
    return replace(
        op,
        attrs={**(op.attrs or {}), EPILOGUE: Epilogue()},
        operands=(least, most + 1),
        infer=lambda inputs, attrs: _infer(op, inputs, attrs),
        reference=lambda inputs, attrs: _reference(op, inputs, attrs),
        work=work,
        cpu=None if op.cpu is None else _cpu(op.cpu),
        native_program=None if op.native_program is None else partial(_native_program, op),
        kernel=Kernel(
            kernel.shaders,
            lambda call: _lower(kernel, call),
            _without_epilogue(kernel.scratch),
            variants=choice if choice is no_variants else _without_epilogue(choice),
            takes_fp16=lambda call: (
                fp16_operands(call) if kernel.takes_fp16(call.without_epilogue) else ()
            ),
        ),
    )


def _without_epilogue(ask: Callable[[Call], T]) -> Callable[[Call], T]:
    return lambda call: ask(call.without_epilogue)


def _infer(op: Op, inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    program = program_of(attrs)
    if program is None:
        check_call(op, inputs, attrs)
        return op.infer(inputs, attrs)
    own, own_attrs, rest = _parted(inputs, attrs, program)
    check_call(op, own, own_attrs)
    result = op.infer(own, own_attrs)
    if result.dtype != FLOAT32:
        raise DTypeError(f"[{op.name}] expected steps on float32, got {result}")
    made = get_op("fused_elementwise").infer((result, *rest), program[1])
    if any(t != result for t in (made, *rest)):
        raise DTypeError(f"[{op.name}] expected steps on {result} alone, got {made}")
    if rest and not accepts_residual(op.name, result):
        raise ShapeError(f"[{op.name}] expected a residual of rows of vec4, got {result}")
    return result


def _parted(
    inputs: tuple[T, ...], attrs: Attrs, program: EpilogueProgram
) -> tuple[tuple[T, ...], Attrs, tuple[T, ...]]:
    """Return the operands and attributes of the op itself, and the residual."""
    count = len(inputs) - program[0] + 1
    return inputs[:count], attrs_without_epilogue(attrs), inputs[count:]


@lru_cache(maxsize=4096)
def attrs_without_epilogue(attrs: Attrs) -> Attrs:
    """Return the attributes without the epilogue."""
    return Attrs({name: value for name, value in attrs.items() if name != EPILOGUE})


def _reference(op: Op, inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    program = program_of(attrs)
    if program is None:
        return op.reference(inputs, attrs)
    own, own_attrs, rest = _parted(inputs, attrs, program)
    return get_op("fused_elementwise").reference((op.reference(own, own_attrs), *rest), program[1])


def _native_program(
    op: Op, inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> NativeProgram | None:
    """The op's own loops, and those of the steps."""
    assert op.native_program is not None
    program = program_of(attrs)
    if program is None:
        return op.native_program(inputs, output, attrs)
    own, own_attrs, rest = _parted(inputs, attrs, program)
    first = op.native_program(own, output, own_attrs)
    epilogue = native_program_of_steps((output, *rest), output, program[1])
    if first is None or epilogue is None:
        return None
    return with_native_epilogue(first, epilogue, len(own), len(inputs))


def _cpu(cpu: CpuKernel) -> CpuKernel:
    """The op itself as before; with an epilogue that it does not take, pieces take the steps."""

    def compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
        program = program_of(attrs)
        if program is None:
            cpu.compute(inputs, attrs, out)
            return
        if cpu.fused is not None and cpu.fused(inputs, attrs, out):
            return
        own, own_attrs, rest = _parted(inputs, attrs, program)
        cpu.compute(own, own_attrs, out)
        if is_small(inputs, out):
            CPU_KERNEL.compute((out.copy(), *rest), program[1], out)
            return
        for (*residual, _), part in cut_elements((*rest, out), attrs, out):
            CPU_KERNEL.compute((np.array(part), *residual), program[1], part)

    def cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
        program = program_of(attrs)
        if program is None or cpu.fused is not None:
            yield from cpu.cut(inputs, attrs, out)
            return
        own, own_attrs, rest = _parted(inputs, attrs, program)
        whole = (out, *map(np.ascontiguousarray, rest)) if out.flags.c_contiguous else (out, *rest)
        lines = (cpu.cut(own, own_attrs, each) for each in whole)  # cut alike
        for (operands, part), *others in zip(*lines, strict=True):
            yield (*operands, *(residual for _, residual in others)), part

    return CpuKernel(compute, cut, cpu.least)


def _work(op: Op, inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    program = program_of(attrs)
    if program is None:
        return op.work(inputs, output, attrs)
    own, own_attrs, rest = _parted(inputs, attrs, program)
    made = op.work(own, output, own_attrs)
    steps = get_op("fused_elementwise").work((output, *rest), output, program[1])
    moved = sum(t.device_bytes for t in rest)
    return Work(made.flops + steps.flops, made.bytes_moved + moved, made.rounds)


def _lower(kernel: Kernel, call: Call) -> tuple[Dispatch, ...]:
    """The dispatches that write results take the steps; the residual lies as the result does."""
    dispatches, program = kernel.lower(call.without_epilogue), program_of(call.attrs)
    if program is None:
        return dispatches
    steps = shader_program_of(call.output, call.attrs)
    residual = (len(call.inputs) - 1,) * (program[0] - 1)
    if residual and call.limits.storage_buffers < BUFFERS:
        raise UnsupportedOp(
            f"a residual takes a kernel of {BUFFERS} buffers, the device allows "
            f"{call.limits.storage_buffers}"
        )

    def ending(one: Dispatch) -> Dispatch:
        if OUTPUT not in one.operands or one.partial:
            return one
        shifts = one.shifts
        if shifts:
            shifts += (shifts[one.operands.index(OUTPUT)],) * len(residual)
        return replace(one, operands=(*one.operands, *residual), shifts=shifts, steps=steps)

    return tuple(map(ending, dispatches))
