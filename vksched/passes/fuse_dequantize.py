"""Fuse dequantize: ops read quantized weights directly instead of their dequantized floats.

    matmul(x, dequantize(w), transpose_b)         is     quantized_linear(x, w)
    moe_linear(x, dequantize(w), expert_ids)      is     quantized_moe_linear(x, w, expert_ids)
    gather(dequantize(w), ids)                    is     dequantize(gather(w, ids))
    attention_with_kvcache(dequantize_q8_0(kv))   is     attention_with_kvcache(kv)

The dequantize node remains for other readers. Examples: tests/passes/test_fuse_dequantize.py.
"""

from __future__ import annotations

from ..common.dtypes import FLOAT32
from ..ir.graph import Graph, Node
from ..ir.precision import precision_attrs
from .constraints import RewriteConstraints
from .rewrite import Rewriter, Rules, rewrite


def fuse_dequantize(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Let matmuls, gathers and attention read quantized operands directly."""
    rules: Rules = {
        "matmul": (_product,),
        "moe_linear": (_grouped,),
        "gather": (_look_up,),
        "attention_with_kvcache": (_attention,),
    }
    return rewrite(graph, rules, constraints)


def _dequantize_of(r: Rewriter, value: int, op: str = "dequantize") -> Node | None:
    """Return the dequantize node that produces `value` if it is pinned to the device of the current
    node.

    Quantized weights are exempt: every device can hold its own copy, so no floats are transferred.
    """
    node = r[value]
    if node.op != op:
        return None
    is_weight = all(r[quantized].op == "weight" for quantized in node.inputs)
    return node if is_weight or r.same_device(value) else None


def _product(r: Rewriter, node: Node) -> int | None:
    x, weight, *bias = node.inputs
    dequantize, attrs = _dequantize_of(r, weight), node.attrs
    if dequantize is None or node.type.dtype != FLOAT32 or not attrs.as_bool("transpose_b"):
        return None
    if dequantize.type.rank != 2 or attrs.as_bool("transpose_a"):
        return None
    new_attrs = {"format": dequantize.attrs["format"], **precision_attrs(attrs)}
    return r.emit("quantized_linear", (x, *dequantize.inputs, *bias), new_attrs)


def _grouped(r: Rewriter, node: Node) -> int | None:
    x, weight, expert_ids = node.inputs
    dequantize = _dequantize_of(r, weight)
    if dequantize is None or node.type.dtype != FLOAT32:
        return None
    attrs = {"format": dequantize.attrs["format"], **precision_attrs(node.attrs)}
    return r.emit("quantized_moe_linear", (x, *dequantize.inputs, expert_ids), attrs)


def _look_up(r: Rewriter, node: Node) -> int | None:
    table, ids = node.inputs
    dequantize = _dequantize_of(r, table) or _dequantize_of(r, table, "dequantize_q8_0")
    if dequantize is None or node.attrs.as_int("axis") >= dequantize.type.rank - 1:
        return None
    return r.emit(
        dequantize.op, (r.emit("gather", (*dequantize.inputs, ids), node.attrs),), dequantize.attrs
    )


def _attention(r: Rewriter, node: Node) -> int | None:
    q, *cache = node.inputs[:3]
    found = [_dequantize_of(r, value, "dequantize_q8_0") for value in cache]
    quantized = [each.inputs[0] for each in found if each is not None]
    if len(quantized) < len(cache):
        return None
    attrs = dict(node.attrs) | {"columns": r[cache[1]].type.shape[-1]}
    return r.emit("attention_with_kvcache", (q, *quantized, *node.inputs[3:]), attrs)
