"""Epilogue: elementwise steps on what a product or convolution makes, before it is stored.

    matmul(a, b, bias) -> add residual -> gelu     is     matmul(a, b, bias, residual) {then: ...}

A pass makes it (vksched/passes/fuse_epilogues.py), users do not. The attribute `then` says
(operands, steps, constants): a chain's program, whose first operand is the op's own result; the
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
from ...ir.cpu_kernel import HostKernel, Piece, cut_elements, is_small
from ...ir.native_program import Recipe, followed
from ...ir.op import (
    OUTPUT,
    THEN,
    Call,
    Dispatch,
    Kernel,
    Op,
    Steps,
    Work,
    fp16_operands,
    get_op,
    no_variants,
)
from .fused_elementwise import HOST, Step, program_attrs
from .fused_elementwise import recipe_of as recipe_of_chain
from .fused_elementwise import steps_of as steps_of_chain
from .program_domains import Then

MAX_STEPS = 4
"""What a kernel computes beside a product: its registers are full."""
MOST_NAMED = 16
"""Steps that the text of an epilogue or a chain names."""
FUNCTIONS = frozenset(
    f"{name}_float32"
    for name in (
        *("relu", "clip", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh", "leaky_relu"),
        *("hard_sigmoid", "hard_swish", "add", "mul"),
    )
)
"""Those of shaders/include/epilogue.glsl."""
OF_MATRICES = ("matmul", "linear_packed", "linear_beside")
"""Ops whose results are rows of matrices; others make images."""
BUFFERS = 6
"""What a kernel binds at most with a residual."""

ChainSteps = tuple[int, Attrs]
"""The operands of the steps, and the attributes of their chain."""
T = TypeVar("T")


def then(
    operands: int, steps: tuple[Step, ...], constants: tuple[tuple[str, int], ...]
) -> dict[str, AttrValue]:
    """Returns the attribute of an epilogue."""
    return {THEN: (operands, steps, constants)}


@lru_cache(maxsize=4096)
def program_of(attrs: Attrs) -> ChainSteps | None:
    """Returns the epilogue among the attributes of an op."""
    if THEN not in attrs:
        return None
    operands, steps, constants = cast(
        tuple[int, tuple[Step, ...], tuple[tuple[str, int], ...]], attrs[THEN]
    )
    return operands, Attrs(program_attrs(steps, constants))


def attrs_text(attrs: Attrs) -> str:
    """Returns attributes as people read them: of chains and epilogues the ops, or the first."""
    if attrs.keys() == program_attrs((), ()).keys():
        return f"steps {_ops_text(attrs['steps'])}"
    if THEN not in attrs:
        return str(attrs)
    _, steps, _ = cast(tuple[int, AttrValue, object], attrs[THEN])
    kept = (f"{name}={value!r}" for name, value in attrs.items() if name != THEN)
    return ", ".join((*kept, f"then {_ops_text(steps)}"))


def _ops_text(steps: AttrValue) -> str:
    names = [op for op, _, _ in cast(tuple[Step, ...], steps)]
    if len(names) > MOST_NAMED:
        names[MOST_NAMED - 1 :] = ["...", f"{len(names)} in all"]
    return ", ".join(names)


def steps_of(result: TensorType, attrs: Attrs) -> Steps:
    """Returns the steps of an epilogue as functions of the kernels; none of none.

    Raises:
        UnsupportedOp: kernels hold no such function, or not so much.
    """
    program = program_of(attrs)
    if program is None:
        return Steps()
    wide = result.as_dtype(FLOAT32)
    steps = steps_of_chain(Call((wide,) * program[0], wide, program[1]))
    names = [name for name, _ in steps.calls]
    if len(names) > MAX_STEPS or not FUNCTIONS.issuperset(names):
        raise UnsupportedOp(
            f"an epilogue holds {MAX_STEPS} steps of {', '.join(sorted(FUNCTIONS))}, "
            f"this one has {', '.join(names)}"
        )
    return steps


def takes_residual(op: str, result: TensorType) -> bool:
    """Whether kernels can read a residual: in vec4s, of rows of matrices or planes of images."""
    row = result.shape[-1] if op in OF_MATRICES else math.prod(result.shape[2:])
    return row % 4 == 0


def with_epilogue(op: Op) -> Op:
    """Returns an op of floats that takes an epilogue, from the one that takes none."""
    assert op.kernel is not None
    kernel = op.kernel
    choice = kernel.variants

    @wraps(op.work)  # its module tells the op's family
    def work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
        return _work(op, inputs, output, attrs)

    least, most = op.operands
    return replace(
        op,
        attrs={**(op.attrs or {}), THEN: Then()},
        operands=(least, most + 1),
        infer=lambda inputs, attrs: _infer(op, inputs, attrs),
        reference=lambda inputs, attrs: _reference(op, inputs, attrs),
        work=work,
        host=None if op.host is None else _host(op.host),
        recipe=None if op.recipe is None else partial(_recipe, op),
        kernel=Kernel(
            kernel.shaders,
            lambda call: _lower(kernel, call),
            _of_bare(kernel.scratch),
            variants=choice if choice is no_variants else _of_bare(choice),
            takes_fp16=lambda call: fp16_operands(call) if kernel.takes_fp16(call.bare) else (),
        ),
    )


def _of_bare(ask: Callable[[Call], T]) -> Callable[[Call], T]:
    return lambda call: ask(call.bare)


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
    made = get_op("chain").infer((result, *rest), program[1])
    if any(t != result for t in (made, *rest)):
        raise DTypeError(f"[{op.name}] expected steps on {result} alone, got {made}")
    if rest and not takes_residual(op.name, result):
        raise ShapeError(f"[{op.name}] expected a residual of rows of fours, got {result}")
    return result


def _parted(
    inputs: tuple[T, ...], attrs: Attrs, program: ChainSteps
) -> tuple[tuple[T, ...], Attrs, tuple[T, ...]]:
    """Returns the operands and attributes of the op itself, and the residual."""
    count = len(inputs) - program[0] + 1
    return inputs[:count], bare_attrs(attrs), inputs[count:]


@lru_cache(maxsize=4096)
def bare_attrs(attrs: Attrs) -> Attrs:
    """Returns the attributes without the epilogue."""
    return Attrs({name: value for name, value in attrs.items() if name != THEN})


def _reference(op: Op, inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    program = program_of(attrs)
    if program is None:
        return op.reference(inputs, attrs)
    own, own_attrs, rest = _parted(inputs, attrs, program)
    return get_op("chain").reference((op.reference(own, own_attrs), *rest), program[1])


def _recipe(
    op: Op, inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs
) -> Recipe | None:
    """The op's own loops, and those of the steps."""
    assert op.recipe is not None
    program = program_of(attrs)
    if program is None:
        return op.recipe(inputs, output, attrs)
    own, own_attrs, rest = _parted(inputs, attrs, program)
    first = op.recipe(own, output, own_attrs)
    then = recipe_of_chain((output, *rest), output, program[1])
    if first is None or then is None:
        return None
    return followed(first, then, len(own), len(inputs))


def _host(host: HostKernel) -> HostKernel:
    """The op itself as before; with an epilogue that it does not take, pieces take the steps."""

    def compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
        program = program_of(attrs)
        if program is None:
            host.compute(inputs, attrs, out)
            return
        if host.fused is not None and host.fused(inputs, attrs, out):
            return
        own, own_attrs, rest = _parted(inputs, attrs, program)
        host.compute(own, own_attrs, out)
        if is_small(inputs, out):
            HOST.compute((out.copy(), *rest), program[1], out)
            return
        for (*residual, _), part in cut_elements((*rest, out), attrs, out):
            HOST.compute((np.array(part), *residual), program[1], part)

    def cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
        program = program_of(attrs)
        if program is None or host.fused is not None:
            yield from host.cut(inputs, attrs, out)
            return
        own, own_attrs, rest = _parted(inputs, attrs, program)
        whole = (out, *map(np.ascontiguousarray, rest)) if out.flags.c_contiguous else (out, *rest)
        lines = (host.cut(own, own_attrs, each) for each in whole)  # cut alike
        for (operands, part), *others in zip(*lines, strict=True):
            yield (*operands, *(residual for _, residual in others)), part

    return HostKernel(compute, cut, host.least)


def _work(op: Op, inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    program = program_of(attrs)
    if program is None:
        return op.work(inputs, output, attrs)
    own, own_attrs, rest = _parted(inputs, attrs, program)
    made = op.work(own, output, own_attrs)
    steps = get_op("chain").work((output, *rest), output, program[1])
    moved = sum(t.device_bytes for t in rest)
    return Work(made.flops + steps.flops, made.bytes_moved + moved, made.rounds)


def _lower(kernel: Kernel, call: Call) -> tuple[Dispatch, ...]:
    """The dispatches that write results take the steps; the residual lies as the result does."""
    dispatches, program = kernel.lower(call.bare), program_of(call.attrs)
    if program is None:
        return dispatches
    steps = steps_of(call.output, call.attrs)
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
