"""Fuse epilogues: elementwise ops after a matmul or convolution become part of its kernel.

    conv -> add residual -> relu        is        conv(x, w, bias, residual) {epilogue: add, relu}

Only the first elementwise op may read the product, which has its shape and device. Its other
operands are scalars and at most one value of the result's type, the residual. A fused elementwise
op becomes an epilogue as a whole or not at all, so this pass runs after `fuse_elementwise_ops`. A
residual binds one more buffer; epilogues with one are not fused if a device allows too few. Each
program with other constants is a pipeline of its own, which CPU drivers compile for a second or
two, so the number of programs with constants is limited. If only the CPU is a candidate, ops that
its native convolution kernels support are fused, because numpy would need a pass over the result in
any case. Examples: tests/passes/test_epilogue.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..common.dtypes import FLOAT16, FLOAT32
from ..common.errors import UnsupportedOp
from ..ir.attrs import Attrs
from ..ir.graph import Graph, Node
from ..ir.op import EPILOGUE, Call, get_op
from ..ops.elementwise.epilogue import (
    BUFFERS,
    FUNCTIONS,
    OF_MATRICES,
    accepts_residual,
    epilogue_attrs,
    shader_program_of,
)
from ..ops.elementwise.fused_elementwise import Instr, program_of
from ..ops.lowering import native_kernels
from ..ops.lowering.lower import lower
from ..topology.limits import Limits
from .constraints import RewriteConstraints
from .fuse_elementwise import word_of
from .rewrite import Rewriter, rewrite

PRODUCTS = (*OF_MATRICES, "conv", "winograd_conv")
OPS = frozenset(name.removesuffix("_float32") for name in FUNCTIONS)
EXPONENTIAL = frozenset(("tanh", "sigmoid", "silu", "gelu", "gelu_tanh"))
MIN_LANES = 8
"""CPU drivers with smaller subgroups (SwiftShader) compute exponentials slower in the kernel of a
matmul, which has no free registers, than in a kernel of their own.
"""
MAX_PROGRAMS_WITH_CONSTANTS = 2
"""Maximum number of distinct epilogue programs with constants in a graph. It suffices for the
limits of clips or the slope of leaky ReLUs, but not for a scale for each layer.
"""
ElementwiseParts = tuple[tuple[int, ...], tuple[Instr, ...], tuple[tuple[str, int], ...]]
"""The operands, steps and constants of an elementwise program, as in a fused elementwise op."""


def fuse_epilogues(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Fuse elementwise ops into the matmul or convolution that they follow."""
    limits, most = constraints.limits, MAX_PROGRAMS_WITH_CONSTANTS
    ops: tuple[str, ...] = PRODUCTS
    few = limits is not None and limits.software and limits.subgroup_size < MIN_LANES
    taken = OPS - EXPONENTIAL if few else OPS
    if limits is None:
        ops, taken, most = ("conv",), native_kernels.conv_epilogue_ops(), len(graph.nodes)
    with_numbers: set[tuple[object, ...]] = set()

    def rule(r: Rewriter, node: Node) -> int | None:
        if node.type.dtype not in (FLOAT32, FLOAT16) or not node.type.size:
            return None
        program = _program(r, node)
        values, steps, constants = program
        if len(set(values)) > 2 or not all(op in taken for op, _, _ in steps):
            return None
        numbers = (steps, constants) if constants or any(attrs for _, _, attrs in steps) else ()
        if numbers and numbers not in with_numbers and len(with_numbers) == most:
            return None
        # the later value first: the other one is computed by then
        tried = (
            _fuse(r, node, operand, program, ops, limits)
            for operand in sorted(set(values), reverse=True)
        )
        fused = next((fused for fused in tried if fused is not None), None)
        if fused is not None and numbers:
            with_numbers.add(numbers)
        return fused

    return rewrite(
        graph, dict.fromkeys(("fused_elementwise", *taken), (rule,)), constraints, whole=True
    )


def _program(r: Rewriter, node: Node) -> ElementwiseParts:
    """Return a node as an elementwise program."""
    if node.op == "fused_elementwise":
        program = program_of(node.attrs)
        steps = tuple((op.name, at, tuple(attrs.items())) for op, at, attrs in program.steps)
        return node.inputs, steps, program.constants
    words = {i: word_of(a) for i in node.inputs if (a := r.array(i)) is not None and a.size == 1}
    values = tuple(i for i in node.inputs if i not in words)
    order = (*values, *words)
    step = (node.op, tuple(map(order.index, node.inputs)), tuple(node.attrs.items()))
    return values, (step,), tuple(words.values())


def _fuse(
    r: Rewriter,
    node: Node,
    product_id: int,
    program: ElementwiseParts,
    ops: tuple[str, ...],
    limits: Limits | None,
) -> int | None:
    """Return a product with the steps of a node as its epilogue; None if unsupported."""
    values, steps, constants = program
    product, residual = r[product_id], tuple(set(values) - {product_id})
    if product.op not in ops or EPILOGUE in product.attrs or product.type != node.type:
        return None
    if not r.is_read(product_id, values.count(product_id)):
        return None
    if residual and not (
        _is_residual(r, node, *residual) and accepts_residual(product.op, node.type)
    ):
        return None
    places = [int(i != product_id) for i in values]
    moved = tuple(
        (op, tuple(_moved(at, places, 1 + len(residual)) for at in registers), step_attrs)
        for op, registers, step_attrs in steps
    )
    attrs = Attrs({**product.attrs, **epilogue_attrs(1 + len(residual), moved, constants)})
    try:
        shader_program_of(node.type, attrs)
        if (
            residual and limits is not None
        ):  # float16 needs scratch memory: the op must not fall back to numpy for lack of it
            types = tuple(r[i].type for i in (*product.inputs, *residual))
            lower(get_op(product.op), Call(types, node.type, attrs, limits))
    except UnsupportedOp:
        return None
    return r.emit(product.op, (*product.inputs, *residual), attrs)


def _moved(register: int, places: Sequence[int], count: int) -> int:
    """Return the new register of a step after its operands moved; `count` is their number."""
    return places[register] if register < len(places) else register - len(places) + count


def _is_residual(r: Rewriter, node: Node, value: int) -> bool:
    """Return True if a value may be a residual: of equal type and without a transfer."""
    near = r.same_device(value) or r[value].declaration.leaf
    return r[value].type == node.type and near and r.allows(BUFFERS)
