"""Epilogues: elementwise ops behind a product or convolution become part of it.

    conv -> add residual -> relu        is        conv(x, w, bias, residual) {epilogue: add, relu}

Nobody but the first of these ops may read the product, which has their shape and home; what else
they read is numbers, and one value of the result's own type. Fused elementwise ops and single ops
are taken whole or not at all, so this comes behind `fuse_chains`. A residual takes one more buffer
than the kernel has: where a device of the graph allows too few, only ops without one are taken.
Every program with other numbers is a pipeline of its own, which CPU drivers compile for a second or
two, so few are taken with numbers. numpy alone takes those that its native loops of convolutions
know, and none without these: it would pass over the result just as often. Examples:
tests/passes/test_epilogue.py.
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
"""CPU drivers of fewer lanes (SwiftShader) take longer over exponentials in the kernel of a
product, which has no registers left for them, than over a pass of their own.
"""
MAX_PROGRAMS_WITH_CONSTANTS = 2
"""Programs that differ in their steps or numbers, of those with numbers in a graph: the limits of
its clips, the slope of its leaky ReLUs, but not a scale for each layer.
"""
ElementwiseParts = tuple[tuple[int, ...], tuple[Instr, ...], tuple[tuple[str, int], ...]]
"""The values that elementwise ops read, their steps and constants, as of a fused elementwise op."""


def fuse_epilogues(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Make elementwise ops part of the product or convolution that they follow."""
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
        numbers = (steps, constants) if constants or any(given for _, _, given in steps) else ()
        if numbers and numbers not in with_numbers and len(with_numbers) == most:
            return None
        # the later value first: the other one is there by then
        tried = (
            _follow(r, node, own, program, ops, limits) for own in sorted(set(values), reverse=True)
        )
        made = next((made for made in tried if made is not None), None)
        if made is not None and numbers:
            with_numbers.add(numbers)
        return made

    return rewrite(
        graph, dict.fromkeys(("fused_elementwise", *taken), (rule,)), constraints, whole=True
    )


def _program(r: Rewriter, node: Node) -> ElementwiseParts:
    """Return a node as the steps of a fused elementwise op."""
    if node.op == "fused_elementwise":
        program = program_of(node.attrs)
        steps = tuple((op.name, at, tuple(given.items())) for op, at, given in program.steps)
        return node.inputs, steps, program.constants
    words = {i: word_of(a) for i in node.inputs if (a := r.array(i)) is not None and a.size == 1}
    values = tuple(i for i in node.inputs if i not in words)
    order = (*values, *words)
    step = (node.op, tuple(map(order.index, node.inputs)), tuple(node.attrs.items()))
    return values, (step,), tuple(words.values())


def _follow(
    r: Rewriter,
    node: Node,
    own: int,
    program: ElementwiseParts,
    ops: tuple[str, ...],
    limits: Limits | None,
) -> int | None:
    """Return a product, one of `ops`, that takes a node's steps, where it is one and can."""
    values, steps, constants = program
    product, beside = r[own], tuple(set(values) - {own})
    if product.op not in ops or EPILOGUE in product.attrs or product.type != node.type:
        return None
    if not r.is_read(own, values.count(own)):
        return None
    if beside and not (_is_residual(r, node, *beside) and accepts_residual(product.op, node.type)):
        return None
    places = [int(i != own) for i in values]
    moved = tuple(
        (op, tuple(_moved(at, places, 1 + len(beside)) for at in registers), given)
        for op, registers, given in steps
    )
    attrs = Attrs({**product.attrs, **epilogue_attrs(1 + len(beside), moved, constants)})
    try:
        shader_program_of(node.type, attrs)
        if (
            beside and limits is not None
        ):  # float16 takes scratch memory for it: the product must not go to numpy for that
            types = tuple(r[i].type for i in (*product.inputs, *beside))
            lower(get_op(product.op), Call(types, node.type, attrs, limits))
    except UnsupportedOp:
        return None
    return r.emit(product.op, (*product.inputs, *beside), attrs)


def _moved(register: int, places: Sequence[int], count: int) -> int:
    """Return a register of steps whose operands were at other places, and are `count` now."""
    return places[register] if register < len(places) else register - len(places) + count


def _is_residual(r: Rewriter, node: Node, value: int) -> bool:
    """Whether kernels may read a value beside the result; from another device, the product would
    have to wait for it.
    """
    near = r.same_device(value) or r[value].declaration.leaf
    return r[value].type == node.type and near and r.allows(BUFFERS)
