"""Rounding: what of a plan may be rounded to float16 or 8 bits, and which devices do so.

    precision: 24 mixed; numpy rounds 2; vulkan:0 computes 22 in float32: it has no float16

Complexity: O(nodes). Examples: tests/plan/test_rounding.py.
"""

from __future__ import annotations

from collections import Counter

from ...graph import Node
from ...machine.spec import DeviceSpec
from ...ops.core.precision import BYTES, PRECISIONS, SINGLE, precision_of
from ..value import PlanValue


def precision_lines(plan: PlanValue) -> list[str]:
    """Returns a line on nodes that have a precision; [] where all is float32."""
    words: Counter[str] = Counter()
    devices: Counter[tuple[int, bool]] = Counter()
    halved: Counter[int] = Counter()
    for split in plan.splits:
        for node_id in split.nodes:
            node = plan.graph.nodes[node_id]
            word = precision_of(node.attrs)
            if word != SINGLE:
                words[word] += 1
                is_cpu = plan.machine.devices[split.device].kind == "cpu"
                devices[split.device, word == BYTES and not is_cpu] += 1
                halved[split.device] += _reads_halves(node)
    if not words:
        return []
    told = [f"{words[word]} {word}" for word in PRECISIONS if words[word]]
    done = [
        _told(plan.machine.devices[device], devices[device, codes], codes)
        + _weights_told(0 if codes else halved[device])
        for device, codes in sorted(devices)
    ]
    return ["; ".join((f"precision: {', '.join(told)}", *done))]


def _told(spec: DeviceSpec, count: int, codes: bool) -> str:
    if spec.kind == "cpu":
        return f"numpy rounds {count}"
    if codes and not spec.limits.integer_dot:
        return f"{spec.name} computes {count} in float32: it has no integer dot products"
    if codes:
        return f"{spec.name} may round {count}, as the variant of each says"
    if not spec.limits.float16:
        return f"{spec.name} computes {count} in float32: it has no float16"
    if spec.limits.software:
        return f"{spec.name} computes {count} in float32, as CPU drivers do"
    return f"{spec.name} may round {count}, as the variant of each says"


def _reads_halves(node: Node) -> bool:
    """Whether the weights of a product are float16 in memory (vksched/passes/halves.py)."""
    return node.attrs.get("format") == "f16"


def _weights_told(count: int) -> str:
    return f", with the weights of {count} held as float16" if count else ""
