"""FrameLowering: convert the nodes of an ONNX graph to vksched Tensors while shapes are known.

Problem: a vksched graph has fixed shapes. Shapes of an ONNX graph may depend on inputs, on computed
values, or on the iterations of a loop. Method: nodes are visited in order, for concrete input
types. Nodes with constant results are folded. A rule lowers each other node to Tensors, or the node
becomes a CPU node. If a shape depends on a value that is not computed yet, the walk stops: the
graph so far is one segment, the values that later nodes read are its slots, and the remaining nodes
are lowered once the slots are filled.

    x -> Conv -> Relu | NonZero | Gather -> ...      segment 1 | CPU step | segment 2, per shape
                        ^ its shape depends on data

If a segment uses the elements of a slot, not only its type, they are its guard: the segment is
reused only for runs with equal elements. Complexity: O(nodes). Examples:
tests/importers/test_onnx_lowering.py.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from onnx import NodeProto

from ....common.dtypes import MAX_RANK, NDArray
from ....common.errors import ModelFormatError, UnsupportedOp, VkschedError
from ....ir.name_scope import name_scope
from ....ir.tensor import Tensor, input
from ..nodes.cpu_node import add_host_node, describe
from ..nodes.elements import SAME, storage
from ..nodes.names import free_names, has_subgraphs, item_slot, names_read
from ..nodes.node import NodeContext
from ..nodes.values import (
    EMPTY,
    CpuValue,
    CpuValueType,
    Inferred,
    TypeKey,
    Value,
    arrays_of,
)
from ..rules import find_rule
from .constant_folding import evaluated, fold, is_fixed
from .frame import CpuStep, Frame, LoweredSegment, NeedsInputs, NeedsValue
from .function_expansion import expand
from .model_context import ModelContext

MAX_ELEMENTS = 1 << 32
"""Maximum number of elements of a tensor of a model."""


MISFIT = "operands that may not fit"
"""Prefix of the reason if a rule rejects its operands."""


@dataclass(eq=False)
class FrameLowering:
    """The walk over one frame.

    Attributes
    ----------
    types
        Types of all slots.
    arrays
        Elements of slots if a run waits for the lowering; None if only types are available.
    needed
        The value whose elements a node needs before they are computed, after `run` stopped there.
    """

    context: ModelContext
    frame: Frame
    types: Mapping[str, TypeKey]
    arrays: Mapping[str, CpuValue] | None
    env: dict[str, Value] = field(init=False)
    todo: deque[NodeProto] = field(init=False)
    guards: dict[str, NDArray] = field(default_factory=dict)
    _constants: dict[int, tuple[NDArray, Tensor]] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    needed: Value | None = None
    _slots: dict[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.env = {name: self._expand(value) for name, value in self.frame.env.items()}
        self.todo = deque(self.frame.nodes)

    def _expand(self, value: Value) -> Value:
        """Return a slot with its known type and elements."""
        if value.items is not None:
            return replace(value, items=tuple(self._expand(item) for item in value.items))
        if value.slot is None:
            return value
        return self._slot(value.slot, self.types[value.slot])

    def _slot(self, slot: str, kind: TypeKey) -> Value:
        if isinstance(kind, CpuValueType):
            return Value(kind.elem_type, slot=slot, type=kind)
        if isinstance(kind, str):
            return Value(0, slot=slot)
        if kind is None:
            return EMPTY
        items = tuple(self._slot(item_slot(slot, i), k) for i, k in enumerate(kind))
        return Value(0, items=items)

    def run(self) -> LoweredSegment:
        """Lower nodes up to the end, or up to the first node that needs a value not computed yet.

        Raises
        ------
        ModelFormatError
            A node is invalid.
        NeedsInputs
            Elements of inputs are needed.
        """
        while self.todo:
            node = self.todo.popleft()
            try:
                step = self._lower(node)
            except NeedsValue as need:
                if need.value.tensor is None:
                    raise NeedsInputs(f"[onnx] {describe(node)} needs values of inputs") from None
                self.todo.appendleft(node)
                self.needed = need.value
                return self._cut(None)
            if step is not None:
                return self._cut(step)
        return self._cut(None)

    # -- called by rules ---------------------------------------------------------------------------

    def tensor(self, value: Value) -> Tensor:
        """Return the Tensor of a value; raise UnsupportedOp if only the CPU can hold it."""
        if value.tensor is not None:
            return value.tensor
        if len(value.shape) > MAX_RANK:
            raise UnsupportedOp(f"a rank of {len(value.shape)}, tensors have at most {MAX_RANK}")
        if value.array is not None:
            key = id(value.array)
            if key not in self._constants:
                self._constants[key] = value.array, self.context.tensor(value.array)
            return self._constants[key][1]
        if value.slot is None or value.type is None:
            raise UnsupportedOp("a sequence, a map or an optional as an operand")
        if value.slot not in self.inputs:
            bound = value.type.bound
            bounds = (-bound, bound - 1) if bound else None
            held = storage(value.elem_type)
            self._slots[value.slot] = value
            self.inputs[value.slot] = input(value.slot, value.shape, held, bounds)
        return self.inputs[value.slot]

    def demand(self, value: Value) -> NDArray:
        """Return the elements of a value, and add them to the guards if they can vary between runs.

        Raise NeedsValue if they are not computed yet.
        """
        if value.array is not None:
            return value.array
        if value.slot is None or self.arrays is None:
            raise NeedsValue(value)
        if value.slot not in self.guards:  # a copy: the caller may change its array
            self.guards[value.slot] = np.array(self.arrays[value.slot])
        return self.guards[value.slot]

    def splice(self, nodes: Iterable[NodeProto], env: Mapping[str, Value]) -> None:
        """Insert nodes before all remaining ones; `env` holds further values that they read."""
        self.env.update(env)
        self.todo.extendleft(reversed(list(nodes)))

    # -- one node ------------------------------------------------------------------------------

    def _lower(self, node: NodeProto) -> CpuStep | None:
        """Lower one node into the environment, or return it as a CPU step."""
        inputs = tuple(self._read(node, name) for name in node.input)
        computed = self.context.constant_node(node)
        if computed is not None:
            self.env[node.output[0]] = computed
            return None
        schema = self.context.schema(node)
        inferred = self.context.infer(node, inputs, schema)
        self._check_sizes(node, [i.shape for i in inferred if i is not None])
        version = self.context.version(node.domain)
        context = NodeContext(self, node, inputs, schema, inferred, version)
        folded = fold(context, self._by_rule)
        if folded is not None:
            self._write(node, folded)
            return None
        try:
            results = self._by_rule(context)
        except UnsupportedOp as error:
            body = expand(self.context, node, inputs, schema)
            if body is not None:
                self.splice(body, {})
                return None
            return self._on_host(node, inputs, inferred, str(error))
        if results is not None:
            if is_fixed(context):
                results = [evaluated(context, each) for each in results]
            self._write(node, results)
        return None

    def _read(self, node: NodeProto, name: str) -> Value | None:
        if not name:
            return None
        if name not in self.env:
            raise ModelFormatError(
                f"[onnx] {describe(node)} reads {name!r}, which no node produces"
            )
        return self.env[name]

    def _by_rule(self, n: NodeContext) -> list[Value | None] | None:
        """Return the results of the rule of a node, or None if the rule spliced in other nodes.

        Raise UnsupportedOp if no rule expresses the node.
        """
        rule = find_rule(n.node.domain, n.op_type)
        if rule is None:
            raise UnsupportedOp(f"no vksched op expresses {n.op_type}")
        before, guards = len(self.todo), len(self.guards)
        try:
            with name_scope(scope_name(n.node)):
                found = rule(n)
        except (NeedsValue, UnsupportedOp):
            while len(self.guards) > guards:
                self.guards.popitem()  # this segment does not depend on their elements
            raise
        except VkschedError as error:
            if isinstance(error, ModelFormatError):
                raise
            # stricter than ONNX, or the node is invalid: then the evaluator rejects it, too
            raise UnsupportedOp(f"{MISFIT}: {error}") from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # neither their elements nor the operands of an unknown op were checked before
            raise ModelFormatError(
                f"[onnx] {describe(n.node)}: operands that do not fit, {error}"
            ) from error
        if len(self.todo) > before and not found:
            return None
        return [self._as_value(n, i, result) for i, result in enumerate(found)]

    def _as_value(self, n: NodeContext, index: int, result: Tensor | Value | None) -> Value | None:
        if not isinstance(result, Tensor):
            return result
        self._check_sizes(n.node, [result.shape])
        inferred = n.inferred[index] if index < len(n.inferred) else None
        if inferred is not None:
            elem_type = inferred.elem_type
        else:
            elem_type = _elem_type_like(result, n.inputs)
        if storage(elem_type) != result.dtype:
            raise UnsupportedOp(
                f"{n.op_type}: the rule returned {result.dtype}, expected {storage(elem_type)}"
            )
        if inferred is not None and inferred.shape not in (None, result.shape):
            raise UnsupportedOp(
                f"{n.op_type}: the rule returned shape {result.shape}, expected {inferred.shape}"
            )
        return Value(elem_type, tensor=result)

    def _write(self, node: NodeProto, results: Sequence[Value | None]) -> None:
        for array in arrays_of(results):
            self.context.budget.hold(array)
        for name, value in zip(node.output, results, strict=False):
            if name and value is not None:
                self.env[name] = value

    def _check_sizes(self, node: NodeProto, shapes: Iterable[tuple[int, ...] | None]) -> None:
        for shape in shapes:
            if shape is not None and (any(d < 0 for d in shape) or math.prod(shape) > MAX_ELEMENTS):
                raise ModelFormatError(
                    f"[onnx] {describe(node)}: expected results of at most 2^32 elements, got "
                    f"shape {shape}"
                )

    # -- CPU nodes ---------------------------------------------------------------------------------

    def _on_host(
        self,
        node: NodeProto,
        inputs: tuple[Value | None, ...],
        inferred: Sequence[Inferred | None],
        reason: str,
    ) -> CpuStep | None:
        """Add a node to the graph as a CPU node, or return it as a step between segments if the
        shapes of its results are unknown.
        """
        if not has_subgraphs(node):
            self.context.check_host(node, reason)
        if has_subgraphs(node) or self._is_not_inferable(node):
            return self._step(node, inputs, reason)
        types: list[CpuValueType | None] = []
        for name, found in zip(node.output, inferred, strict=True):
            if name and (found is None or found.shape is None):
                return self._step(node, inputs, reason)
            if found is not None and found.shape is not None and len(found.shape) > MAX_RANK:
                return self._step(node, inputs, reason)
            wanted = name and found is not None and found.shape is not None
            types.append(CpuValueType(found.elem_type, found.shape) if wanted else None)  # type: ignore[union-attr,arg-type]
        try:
            for kind in types:
                if kind is not None:
                    storage(kind.elem_type)
            tensors = [None if v is None else self.tensor(v) for v in inputs]
        except UnsupportedOp:
            return self._step(node, inputs, reason)
        elem_types = [0 if v is None else v.elem_type for v in inputs]
        with name_scope(scope_name(node)):
            computed = add_host_node(node, self.context.opsets, tensors, elem_types, types, reason)
        self._write(
            node,
            [
                None if t is None or kind is None else Value(kind.elem_type, tensor=t)
                for t, kind in zip(computed, types, strict=True)
            ],
        )
        return None

    def _is_not_inferable(self, node: NodeProto) -> bool:
        found = self.context.not_inferable
        return bool(found) and node.SerializeToString(deterministic=True) in found

    def _step(self, node: NodeProto, inputs: tuple[Value | None, ...], reason: str) -> CpuStep:
        captured = {name: self.env[name] for name in free_names(node) if name in self.env}
        return CpuStep(node, inputs, captured, reason)

    # -- the end of a segment ----------------------------------------------------------------------

    def _cut(self, step: CpuStep | None) -> LoweredSegment:
        """End the segment: store the values that remaining nodes read in slots."""
        handing = _Handing(
            self.inputs, {(t, self._slots[s].elem_type): s for s, t in self.inputs.items()}
        )
        hand_on, outputs, elem_types = handing.hand_on, handing.outputs, handing.elem_types
        known = frozenset(name for name, value in self.env.items() if value.array is not None)
        if not self.todo and step is None:
            results = []
            for name in self.frame.outputs:
                if name not in self.env:
                    raise ModelFormatError(f"[onnx] no node produces the output {name!r}")
                results.append(hand_on(name, self.env[name]))
            return LoweredSegment(
                outputs, elem_types, self.guards, None, None, tuple(results), known
            )
        nodes = tuple(self.todo)
        read = dict.fromkeys(name for node in nodes for name in names_read(node))
        wanted = [*read, *self.frame.outputs]
        env = {name: hand_on(name, self.env[name]) for name in wanted if name in self.env}
        if step is not None:
            handed = [
                None if v is None else hand_on(name, v)
                for name, v in zip(step.node.input, step.inputs, strict=True)
            ]
            captured = {name: hand_on(name, v) for name, v in step.captured.items()}
            step = replace(step, inputs=tuple(handed), captured=captured)
            env.update({name: Value(0, slot=name) for name in step.node.output if name})
        then = Frame(nodes, env, self.frame.outputs)
        return LoweredSegment(outputs, elem_types, self.guards, step, then, known=known)


@dataclass(frozen=True, eq=False)
class _Handing:
    """Slots that a segment passes on.

    Attributes
    ----------
    inputs
        Values that are slots of the segment itself.
    slots
        Slots of Tensors, keyed by Tensor and element type.
    """

    inputs: Mapping[str, Tensor]
    slots: dict[tuple[Tensor, int], str]
    outputs: dict[str, Tensor] = field(default_factory=dict)
    elem_types: dict[str, int] = field(default_factory=dict)

    def hand_on(self, name: str, value: Value) -> Value:
        """Return a value as the following segment reads it."""
        if value.items is not None:
            items = [self.hand_on(item_slot(name, i), v) for i, v in enumerate(value.items)]
            return replace(value, items=tuple(items))
        if value.tensor is None:
            return value
        # one Tensor may hold values of two element types, as after a cast that keeps bits
        slot = self.slots.setdefault((value.tensor, value.elem_type), name)
        if slot == name and slot not in self.inputs:
            self.outputs[slot], self.elem_types[slot] = value.tensor, value.elem_type
        return Value(value.elem_type, slot=slot)


# -- names ---------------------------------------------------------------------------------------


def scope_name(node: NodeProto) -> str:
    """Return the name scope of a node's ops in the graph."""
    return str(node.name or next((o for o in node.output if o), node.op_type))


def _elem_type_like(result: Tensor, inputs: Sequence[Value | None]) -> int:
    """Return the element type of a result without a declared one: that of the first operand whose
    storage has the result's dtype, else the type that the dtype names.
    """
    for value in inputs:
        if value is not None and value.is_tensor:
            try:
                if storage(value.elem_type) == result.dtype:
                    return value.elem_type
            except UnsupportedOp:
                continue
    return known_elem_type(result.dtype)


def known_elem_type(dtype: str) -> int:
    """Return the ONNX element type that a Tensor of this dtype stores unchanged."""
    return next(e for e, held in SAME.items() if held == dtype)
