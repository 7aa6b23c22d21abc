"""Precision text: the nodes of a plan that may be rounded to 16 or 8 bits, and the devices that do
so.

    precision: 24 mixed; numpy rounds 2; vulkan:0 computes 22 in float32: it has no float16

Complexity: O(nodes). Examples: tests/plan/test_precision_text.py.
"""

from __future__ import annotations

from collections import Counter

from ...ir.graph import Node
from ...ir.precision import BRAIN, BYTES, PRECISIONS, SINGLE, precision_of
from ...topology.device_spec import DeviceSpec
from ..types.plan_types import PlanValue


def precision_lines(plan: PlanValue) -> list[str]:
    """Return a line on nodes that have a precision mode; [] if all compute in float32."""
    counts, done = _counts_and_devices(plan)
    return ["; ".join((f"precision: {', '.join(counts)}", *done))] if counts else []


def float32_lines(plan: PlanValue) -> list[str]:
    """Return a line on each device that computes nodes with a precision mode in float32."""
    _, done = _counts_and_devices(plan)
    return [each for each in done if _IN_FLOAT32 in each]


def _counts_and_devices(plan: PlanValue) -> tuple[list[str], list[str]]:
    """Return the numbers of nodes by precision mode, and a text for each device that has some."""
    words: Counter[str] = Counter()
    devices: Counter[tuple[int, str]] = Counter()
    held: Counter[tuple[int, str, str]] = Counter()
    for split in plan.splits:
        for node_id in split.nodes:
            node = plan.graph.nodes[node_id]
            word = precision_of(node.attrs)
            if word != SINGLE:
                words[word] += 1
                is_cpu = plan.topology.devices[split.device].kind == "cpu"
                how = word if word in _SPECIAL_MODES and not is_cpu else ""
                devices[split.device, how] += 1
                held[split.device, how, _weight_type(node)] += 1
    counts = [f"{words[word]} {word}" for word in PRECISIONS if words[word]]
    done = [
        _describe(plan.topology.devices[device], devices[device, how], how)
        + "".join(_format_weights(held[device, how, name], name) for name in _WEIGHT_TYPES.values())
        for device, how in sorted(devices)
    ]
    return counts, done


_IN_FLOAT32 = " in float32"
_SPECIAL_MODES = BRAIN, BYTES
"""Precision modes with a device text of their own."""
_WEIGHT_TYPES = {"f16": "float16", "bf16": "bfloat16"}
"""Types of weights in memory, by format (vksched/passes/fp16_weights.py)."""


def _describe(spec: DeviceSpec, count: int, how: str) -> str:
    codes = how == BYTES
    if spec.kind == "cpu":
        return f"numpy rounds {count}"
    if how == BRAIN:
        return f"{spec.name} computes {count}{_IN_FLOAT32}"
    if codes and not spec.limits.integer_dot:
        return f"{spec.name} computes {count}{_IN_FLOAT32}: it has no integer dot products"
    if codes:
        return f"{spec.name} may round {count}, as the variant of each says"
    if not spec.limits.float16:
        return f"{spec.name} computes {count}{_IN_FLOAT32}: it has no float16"
    if spec.limits.software:
        return f"{spec.name} computes {count}{_IN_FLOAT32}, as CPU drivers do"
    return f"{spec.name} may round {count}, as the variant of each says"


def _weight_type(node: Node) -> str:
    """Return the 16-bit type of a node's weights in memory, or "" if they have none."""
    return _WEIGHT_TYPES.get(str(node.attrs.get("format")), "")


def _format_weights(count: int, name: str) -> str:
    return f", with the weights of {count} held as {name}" if count else ""
