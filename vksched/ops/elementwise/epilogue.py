"""Epilogues: elementwise steps fused into the kernel of a matmul or convolution.

    matmul(a, b, bias) -> add residual -> gelu   is     matmul(a, b, bias, residual) {epilogue: ...}

A pass creates epilogues (vksched/passes/fuse_epilogues.py); users do not. The attribute `epilogue`
is (operands, steps, constants): the program of a fused elementwise op, whose first operand is the
op's own result. The optional second operand is a residual of equal type, which is the last input.
Devices run the steps in the kernel that writes the result (shaders/include/epilogue.glsl), after
all partial sums; numpy applies them to pieces of the result. Examples:
tests/passes/test_epilogue.py.
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
"""Maximum steps of an epilogue, because registers are limited."""
MAX_NAMED_STEPS = 16
"""Maximum number of steps in the text of an epilogue or a fused elementwise op."""
FUNCTIONS = frozenset(
    f"{name}_float32"
    for name in (
        *("relu", "clip", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "leaky_relu"),
        *("hard_sigmoid", "hard_swish", "add", "mul"),
    )
)
"""Functions in shaders/include/epilogue.glsl."""
OF_MATRICES = ("matmul", "quantized_linear", "merged_linear")
"""Ops whose results are rows of matrices; results of the others are images."""
BUFFERS = 6
"""Maximum number of buffers of a kernel with a residual."""

EpilogueProgram = tuple[int, Attrs]
"""The number of operands of the steps, and the attributes of their fused op."""
T = TypeVar("T")


def epilogue_attrs(
    operands: int, steps: tuple[Instr, ...], constants: tuple[tuple[str, int], ...]
) -> dict[str, AttrValue]:
    """Return the attribute of an epilogue."""
    return {EPILOGUE: (operands, steps, constants)}


@lru_cache(maxsize=4096)
def program_of(attrs: Attrs) -> EpilogueProgram | None:
    """Return the epilogue in the attributes of an op, or None."""
    if EPILOGUE not in attrs:
        return None
    operands, steps, constants = cast(
        tuple[int, tuple[Instr, ...], tuple[tuple[str, int], ...]], attrs[EPILOGUE]
    )
    return operands, Attrs(program_attrs(steps, constants))


def attrs_text(attrs: Attrs) -> str:
    """Format attributes; the program of a fused elementwise op or epilogue is shown as its ops."""
    if attrs.keys() == program_attrs((), ()).keys():
        return f"steps {_ops_text(attrs['steps'])}"
    if EPILOGUE not in attrs:
        return str(attrs)
    _, steps, _ = cast(tuple[int, AttrValue, object], attrs[EPILOGUE])
    own_attrs = (f"{name}={value!r}" for name, value in attrs.items() if name != EPILOGUE)
    return ", ".join((*own_attrs, f"then {_ops_text(steps)}"))


def _ops_text(steps: AttrValue) -> str:
    names = [op for op, _, _ in cast(tuple[Instr, ...], steps)]
    if len(names) > MAX_NAMED_STEPS:
        names[MAX_NAMED_STEPS - 1 :] = ["...", f"{len(names)} in all"]
    return ", ".join(names)


def shader_program_of(result: TensorType, attrs: Attrs) -> ShaderProgram:
    """Return the steps of an epilogue as shader functions; an empty program without an epilogue.

    Raises
    ------
    UnsupportedOp
        The kernels lack a function, or the program is too large.
    """
    program = program_of(attrs)
    if program is None:
        return ShaderProgram()
    wide = result.as_dtype(FLOAT32)
    steps = fused_program_of(Call((wide,) * program[0], wide, program[1]))
    names = [name for name, _ in steps.calls]
    if len(names) > MAX_STEPS or not FUNCTIONS.issuperset(names):
        raise UnsupportedOp(
            f"an epilogue supports {MAX_STEPS} steps of {', '.join(sorted(FUNCTIONS))}, "
            f"this one has {', '.join(names)}"
        )
    return steps


def accepts_residual(op: str, result: TensorType) -> bool:
    """Return True if kernels can load a residual as vec4s, in matrix rows or image planes."""
    row = result.shape[-1] if op in OF_MATRICES else math.prod(result.shape[2:])
    return row % 4 == 0


def with_epilogue(op: Op) -> Op:
    """Return a variant of a float op that supports epilogues."""
    assert op.kernel is not None
    kernel = op.kernel
    choice = kernel.variants

    @wraps(op.work)  # the module of `work` determines the op's family
    def work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
        return _work(op, inputs, output, attrs)

    minimum, maximum = op.operands
    return replace(
        op,
        attrs={**(op.attrs or {}), EPILOGUE: Epilogue()},
        operands=(minimum, maximum + 1),
        infer=lambda inputs, attrs: _infer(op, inputs, attrs),
        reference=lambda inputs, attrs: _reference(op, inputs, attrs),
        work=work,
        cpu=None if op.cpu is None else _cpu(op.cpu),
        native_program=None if op.native_program is None else partial(_native_program, op),
        kernel=Kernel(
            kernel.shaders,
            lambda call: _lower(kernel, call),
            _without_epilogue(kernel.scratch),
            counters=_without_epilogue(kernel.counters),
            variants=choice if choice is no_variants else _without_epilogue(choice),
            takes_fp16=lambda call: _takes_fp16(kernel, call),
        ),
    )


def _takes_fp16(kernel: Kernel, call: Call) -> tuple[int, ...]:
    """Return the float16 operands that the kernel accesses directly: a residual, if it is stored as
    the result is, and the kernel writes that.
    """
    own = kernel.takes_fp16(call.without_epilogue)
    return fp16_operands(call) if OUTPUT in own else own


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
    final = get_op("fused_elementwise").infer((result, *rest), program[1])
    if any(t != result for t in (final, *rest)):
        raise DTypeError(f"[{op.name}] expected steps on {result} alone, got {final}")
    if rest and not accepts_residual(op.name, result):
        raise ShapeError(f"[{op.name}] expected a residual of rows of vec4, got {result}")
    return result


def _parted(
    inputs: tuple[T, ...], attrs: Attrs, program: EpilogueProgram
) -> tuple[tuple[T, ...], Attrs, tuple[T, ...]]:
    """Split operands and attributes into those of the op itself and the residual."""
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
    """Return the native loops of the op followed by those of the epilogue."""
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
    """Return a CPU kernel that applies unsupported epilogues to pieces of the result."""

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
        lines = (cpu.cut(own, own_attrs, each) for each in whole)  # split consistently
        for (operands, part), *others in zip(*lines, strict=True):
            yield (*operands, *(residual for _, residual in others)), part

    return CpuKernel(compute, cut, cpu.least)


def _work(op: Op, inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    program = program_of(attrs)
    if program is None:
        return op.work(inputs, output, attrs)
    own, own_attrs, rest = _parted(inputs, attrs, program)
    own_work = op.work(own, output, own_attrs)
    steps = get_op("fused_elementwise").work((output, *rest), output, program[1])
    moved = sum(t.device_bytes for t in rest)
    return Work(own_work.flops + steps.flops, own_work.bytes_moved + moved, own_work.rounds)


def _lower(kernel: Kernel, call: Call) -> tuple[Dispatch, ...]:
    """Add the steps to the dispatches that write results; the residual has the result's layout."""
    dispatches, program = kernel.lower(call.without_epilogue), program_of(call.attrs)
    if program is None:
        return dispatches
    steps = shader_program_of(call.output, call.attrs)
    residual = (len(call.inputs) - 1,) * (program[0] - 1)
    if residual and call.limits.storage_buffers < BUFFERS:
        raise UnsupportedOp(
            f"a residual needs a kernel with {BUFFERS} buffers, the device allows "
            f"{call.limits.storage_buffers}"
        )

    def ending(one: Dispatch) -> Dispatch:
        if OUTPUT not in one.operands or one.partial:
            return one
        if not residual:
            return replace(one, steps=steps)
        count = one.operands.index(OUTPUT) + 1
        assert set(one.operands[count:]) <= {0}, "only a placeholder of the residual may follow"
        shifts = (*one.shifts[:count], one.shifts[count - 1]) if one.shifts else ()
        return replace(one, operands=(*one.operands[:count], *residual), shifts=shifts, steps=steps)

    return tuple(map(ending, dispatches))
