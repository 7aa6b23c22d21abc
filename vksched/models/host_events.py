"""Host events: reports the CPU steps between the segments of a program.

    segment 1 | Unique: a warning per kind, an event, a line in explain() | segment 2

Control flow is not reported, nor is CPU work on a few numbers that no device computed. Examples:
tests/models/test_host_events.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..common.dtypes import NDArray
from ..common.user_warning import warn_user
from ..importers.onnx.lower.frame import CpuStep
from ..importers.onnx.lower.frame_lowering import scope_name
from ..importers.onnx.nodes.cpu_node import describe
from ..importers.onnx.nodes.elements import element_name
from ..importers.onnx.nodes.names import slots_of
from ..importers.onnx.nodes.values import CpuValue, CpuValueType, TypeKey
from ..plan.explain.cpu_fallback import FEW_ELEMENTS
from ..trace import Event, Trace
from .segments import BranchPoint, CompiledSegment

SLOTS = 6
"""The maximum number of slots of a segment that the text names."""


def step_kind(step: CpuStep) -> str:
    """Return the kind of a step, in the form of a graph's CPU nodes."""
    domain = f"{step.node.domain}." if step.node.domain else ""
    return f"onnx.{domain}{step.node.op_type}"


def emit_step(trace: Trace, step: CpuStep, start_s: float, plan: int) -> None:
    """Emit the event of a step that ends now. plan: the plan number of the segment before it."""
    fields = {"op": step_kind(step), "node": scope_name(step.node), "cause": step.reason}
    trace.emit(Event("host_op", "cpu", start_s, trace.clock.now(), -1, fields, plan))


def warn_of_step(
    segment: CompiledSegment, step: CpuStep, values: Sequence[CpuValue], warned: set[str]
) -> None:
    """Warn of a kind of steps that is not yet in `warned`, and add it there.

    values: the operands and results.
    """
    kind = f"{step_kind(step)} between segments"
    if kind in warned or (all(map(_is_few, values)) and not _from_device(segment, step)):
        return
    warned.add(kind)
    warn_user(
        f"[fallback] the host runs {step_kind(step).removeprefix('onnx.')} (node "
        f"{scope_name(step.node)!r}) on the CPU, because {step.reason}; the graph is split there, "
        "and the second segment is compiled once its input shapes are known; try "
        "print(run.explain())"
    )


def _is_few(value: CpuValue) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_few, value))
    if isinstance(value, dict):
        return len(value) <= FEW_ELEMENTS
    return value is None or value.size <= FEW_ELEMENTS


def _from_device(segment: CompiledSegment, step: CpuStep) -> bool:
    """Return True if a device has computed an operand in this segment."""
    if segment.run is None:
        return False
    plan = segment.run.plan
    placements, is_cpu = plan.placements, plan.topology.is_cpu
    read = {slot for value in step.inputs if value is not None for slot in slots_of(value)}
    roots = {plan.graph.view_base(node) for name, node in plan.graph.outputs if name in read}
    return any(
        not plan.graph.nodes[r].declaration.leaf and not is_cpu(placements[r].device) for r in roots
    )


# -- as text -------------------------------------------------------------------------------------


def explain_segments(start: BranchPoint, segments: Iterable[CompiledSegment]) -> str:
    """Return a text about the most recently used segments in order, with the steps between them.

    segments: all cached segments, the most recently used one last.
    """
    age = {segment: number for number, segment in enumerate(segments)}
    return "\n".join(_lines(start, age, ""))


def _lines(start: BranchPoint, age: Mapping[CompiledSegment, int], prefix: str) -> list[str]:
    out: list[str] = []
    branch_point: BranchPoint | None = start
    number = 1
    while branch_point is not None:
        name = f"{prefix}segment {number}"
        found = [
            (key, s)
            for key, segments in branch_point.segments.items()
            for s in segments
            if s in age
        ]
        if not found:
            return [*out, f"{name}: not compiled yet; a run compiles it for its shapes"]
        key, segment = max(found, key=lambda pair: age[pair[1]])
        assert isinstance(key, tuple)
        types = dict(zip(branch_point.frame.slots, key, strict=True))
        out += [f"{name}{_key_text(types, segment.lowered.guards)}"]
        out += [segment.run.plan.explain() if segment.run else "nothing to compute", ""]
        if segment.then is not None:
            out += _between(segment, age, name)
        branch_point, number = segment.then, number + 1
    return out[:-1]


def _between(segment: CompiledSegment, age: Mapping[CompiledSegment, int], name: str) -> list[str]:
    step, then = segment.lowered.step, segment.lowered.then
    if step is None:
        node = f" of {describe(then.nodes[0])}" if then and then.nodes else ""
        return [f"after {name}: its results determine the shapes{node}", ""]
    what = "goes through" if segment.step and segment.step.programs else "runs"
    out = [f"after {name}: the host {what} {describe(step.node)}, as {step.reason}", ""]
    for program in segment.step.programs if segment.step else ():
        out += [*_lines(program.start, age, f"{scope_name(step.node)}, "), ""]
    return out


def _key_text(types: Mapping[str, TypeKey], guards: Mapping[str, NDArray]) -> str:
    """Return a text of a segment's key: the types of slots, and the elements of guarded ones."""
    shown = [f"{slot} {_type(kind)}" for slot, kind in types.items()][:SLOTS]
    more = [f"{len(types) - SLOTS} more"] if len(types) > SLOTS else []
    shapes = f", for {', '.join([*shown, *more])}" if shown else ""
    held = [f"{slot} = {_elements(array)}" for slot, array in guards.items()]
    return f"{shapes}{', where ' if held else ''}{', '.join(held)}:"


def _type(kind: TypeKey) -> str:
    if isinstance(kind, CpuValueType):
        return f"{element_name(kind.elem_type)}[{','.join(map(str, kind.shape))}]"
    if isinstance(kind, str):
        return kind
    return "nothing" if kind is None else f"({', '.join(map(_type, kind))})"


def _elements(array: NDArray) -> str:
    return str(array.tolist()) if array.size <= FEW_ELEMENTS else f"{array.size} fixed elements"
