"""The number of rows of a step whose products have the bits of one row.

    large float32 matrix       numpy's BLAS library: the bits depend on the number of rows
    small float32 matrix       a loop on a CPU: up to 8 rows
    quantized, float16         up to 8 rows, also with 8-bit activations

Kernels of Vulkan devices have equal bits for all of these numbers. Attention with slots has one
variant there. Without slots, there may be a choice among several. Examples:
tests/generation/test_slot_steps.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir.precision import BYTES, precision_of, rounds_operands
from ..ops.attention.attention_with_kvcache import NAME as CACHED_ATTENTION
from ..ops.linalg.matmul_kernels import MAX_GEMV_ROWS
from ..ops.linalg.matmul_native import has_equal_rows
from ..ops.lowering import native_kernels
from ..ops.quantized.q8_activations import has_int8_activations
from ..plan.costs.node_cost import variant_of

if TYPE_CHECKING:
    from ..ir.graph import Node
    from ..plan.plan import Plan


def max_equal_rows(plan: Plan) -> int:
    """Return the number of rows up to which products that CPUs compute have the bits of one row; 1
    without native loops.

    Parameters
    ----------
    plan
        The plan of a step of one row.
    """
    if not native_kernels.has_programs():
        return 1
    for node, placed in zip(plan.graph.nodes, plan.placements, strict=True):
        kind = plan.topology.devices[placed.device].kind
        if kind == "vulkan":
            continue
        if "format" in node.attrs and not _has_kernels(node):
            return 1
        if node.op == "matmul":
            has_loop = kind == "cpu" and not rounds_operands(node.attrs)
            if not (has_loop and has_equal_rows(plan.graph.input_types(node), node.attrs)):
                return 1
    return MAX_GEMV_ROWS


def _has_kernels(node: Node) -> bool:
    """Return True if native kernels compute a product of a quantized weight."""
    name = node.attrs.as_str("format")
    if precision_of(node.attrs) == BYTES and has_int8_activations(name):
        return native_kernels.has_q8(name)
    return native_kernels.has_quantized(name)


def cached_attention_variants(plan: Plan) -> list[tuple[int, str]]:
    """Return the device and the kernel variant of each attention to a KV cache on Vulkan devices;
    steps with equal lists add the keys of a row in the same order.
    """
    graph, devices = plan.graph, plan.topology.devices
    placed = ((node, plan.placements[node.id].device) for node in graph.nodes)
    return [
        (device, variant_of(devices[device], graph, node).variant)
        for node, device in placed
        if node.op == CACHED_ATTENTION and devices[device].kind == "vulkan"
    ]
