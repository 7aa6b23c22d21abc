"""Explain a compiled model: its graphs, plans, eager ops and graph breaks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from ..common.errors import VkschedError
from .frame import FrameInfo, function_of, programs
from .lower import op_name
from .program import Program, Specialisation
from .segment import DeviceSegment


def explain(compiled: Any) -> str:
    """Return the state of a compiled module or function as text: for each graph its sizes, the plan
    of each segment on devices, the ops that run in eager PyTorch with the reason, and graph breaks.

    Raises
    ------
    VkschedError
        The argument is not a result of `torch.compile(..., backend="vksched")`, or was not called.
    """
    original = getattr(compiled, "_orig_mod", None) or getattr(
        compiled, "_torchdynamo_orig_callable", None
    )
    if original is None:
        raise VkschedError(
            f"[explain] expected a result of torch.compile, got {type(compiled).__name__}"
        )
    found = [(frame, program) for frame, program in programs() if _belongs(frame, original)]
    if not found:
        raise VkschedError(
            "[explain] expected a model that was called, with backend='vksched', got no graph of "
            "it; try to call it once"
        )
    breaks = [frame for frame, _ in found if frame.break_reason]
    lines = [f"{len(found)} graphs, {len({id(f) for f in breaks})} graph breaks"]
    unplaced = set.intersection(*[program.unplaced for _, program in found])
    lines += [f"placement: no op or weight matches {pattern!r}" for pattern in sorted(unplaced)]
    for number, (frame, program) in enumerate(found):
        lines += ["", *_program_lines(number, frame, program)]
    return "\n".join(lines)


def _belongs(frame: FrameInfo, original: Any) -> bool:
    if not isinstance(original, torch.nn.Module):
        code = getattr(original, "__code__", None)
        return code is not None and frame.function == function_of(code)
    if frame.owner is not None:
        owner = frame.owner()
        return any(owner is module for module in original.modules())
    forwards = (getattr(module.forward, "__code__", None) for module in original.modules())
    return any(frame.function == function_of(code) for code in forwards if code is not None)


def _program_lines(number: int, frame: FrameInfo, program: Program) -> list[str]:
    lines = [f"graph {number}: {program.info.kind} of {frame.label}, {program.calls} calls"]
    if frame.break_reason:
        lines.append(f"  graph break: {frame.break_reason.splitlines()[0]}")
    for special in list(program.specialisations.values()):
        lines += [f"  {line}" for line in _specialisation_lines(special)]
    return lines


def _specialisation_lines(special: Specialisation) -> list[str]:
    kinds = Counter(entry.leaf.op for entry in special.weights.values())
    held = ", ".join(f"{kinds[k]} {k}s" for k in ("weight", "state") if kinds[k])
    lines = [f"{len(special.segments)} segments{held and ', ' + held}"]
    if special.saved is not None and special.saved.tensors:
        count = len(special.saved.tensors)
        lines.append(f"  {count} saved values on devices for the backward pass")
    if special.host_reason:
        lines.append(f"  saved values pass through host memory: {special.host_reason}")
    for step in special.steps:
        if isinstance(step, DeviceSegment):
            lines += [f"  {line}" for line in step.compiled.plan.explain().splitlines()]
        else:
            names = Counter(op_name(n) for n in step.segment.nodes)
            listed = ", ".join(f"{name} x {count}" for name, count in names.most_common())
            lines.append(f"  eager PyTorch: {listed}")
    reasons = Counter(
        (op_name(n), reason) for n, reason in special.unsupported.items() if op_name(n) != "getitem"
    )
    lines += [f"  {name} x {count}: {why}" for (name, why), count in reasons.most_common()]
    return lines
