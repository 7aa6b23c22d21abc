"""Packed: what reads weights of few bits reads the bits, not the floats that they stand for.

    matmul(x, dequantize(words), transpose_b)     is     quantized_linear(x, words)
    moe_linear(x, dequantize(words), expert_ids)  is     quantized_moe_linear(x, words, expert_ids)
    gather(dequantize(words), ids)                is     dequantize(gather(words, ids))
    attention to dequantize_q8_0(words) in use      is     attention to the words

The floats of other readers stay, made in each run. Examples: tests/passes/test_fuse_dequantize.py.
"""

from __future__ import annotations

from ..common.dtypes import FLOAT32
from ..ir.graph import Graph, Node
from ..ir.precision import kept_precision
from .constraints import RewriteConstraints
from .rewrite import Rewriter, Rules, rewrite


def fuse_dequantize(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Make products and look-ups of weights of few bits read these themselves."""
    rules: Rules = {
        "matmul": (_product,),
        "moe_linear": (_grouped,),
        "gather": (_look_up,),
        "attention_with_kvcache": (_attention,),
    }
    return rewrite(graph, rules, constraints)


def _packed(r: Rewriter, value: int, op: str = "dequantize") -> Node | None:
    """Returns what unpacks words, where it is at the home of the node that is looked at. Words of
    weights are read wherever their floats are: each device may have them, and no floats cross.
    """
    node = r[value]
    if node.op != op:
        return None
    held = all(r[words].op == "weight" for words in node.inputs)
    return node if held or r.same_device(value) else None


def _product(r: Rewriter, node: Node) -> int | None:
    x, weight, *bias = node.inputs
    dequantize, attrs = _packed(r, weight), node.attrs
    if dequantize is None or node.type.dtype != FLOAT32 or not attrs.as_bool("transpose_b"):
        return None
    if dequantize.type.rank != 2 or attrs.as_bool("transpose_a"):
        return None
    given = {"format": dequantize.attrs["format"], **kept_precision(attrs)}
    return r.emit("quantized_linear", (x, *dequantize.inputs, *bias), given)


def _grouped(r: Rewriter, node: Node) -> int | None:
    x, weight, expert_ids = node.inputs
    dequantize = _packed(r, weight)
    if dequantize is None or node.type.dtype != FLOAT32:
        return None
    given = {"format": dequantize.attrs["format"], **kept_precision(node.attrs)}
    return r.emit("quantized_moe_linear", (x, *dequantize.inputs, expert_ids), given)


def _look_up(r: Rewriter, node: Node) -> int | None:
    table, ids = node.inputs
    dequantize = _packed(r, table) or _packed(r, table, "dequantize_q8_0")
    if dequantize is None or node.attrs.as_int("axis") >= dequantize.type.rank - 1:
        return None
    return r.emit(
        dequantize.op, (r.emit("gather", (*dequantize.inputs, ids), node.attrs),), dequantize.attrs
    )


def _attention(r: Rewriter, node: Node) -> int | None:
    q, *kept = node.inputs[:3]
    found = [_packed(r, value, "dequantize_q8_0") for value in kept]
    words = [each.inputs[0] for each in found if each is not None]
    if len(words) < len(kept):
        return None
    attrs = dict(node.attrs) | {"columns": r[kept[1]].type.shape[-1]}
    return r.emit("attention_with_kvcache", (q, *words, *node.inputs[3:]), attrs)
