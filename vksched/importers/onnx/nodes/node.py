"""NodeContext: one ONNX node as its rule sees it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto
from onnx.defs import OpSchema
from onnx.helper import get_attribute_value

from ....common.dtypes import NDArray, Shape, numpy_dtype
from ....common.errors import UnsupportedOp
from ....ir.tensor import Tensor
from .elements import element_name
from .scope import NodeScope
from .values import Inferred, Value


class NodeContext:
    """One node during lowering.

    Attributes
    ----------
    inputs
        Operands, None for an omitted one; trailing ones may be missing.
    version
        The opset of the node's domain that the model imports.
    inferred
        The inferred type of each result.
    """

    def __init__(
        self,
        lowering: NodeScope,
        node: NodeProto,
        inputs: tuple[Value | None, ...],
        schema: OpSchema | None,
        inferred: Sequence[Inferred | None],
        version: int,
    ) -> None:
        self.lowering = lowering
        self.node = node
        self.inputs = inputs
        self.version = version
        self.inferred = tuple(inferred)
        self.schema = schema
        self._attributes = {a.name: a for a in node.attribute}

    @property
    def op_type(self) -> str:
        return str(self.node.op_type)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the results; "" for an unused one."""
        return tuple(self.node.output)

    def wants(self, index: int) -> bool:
        """Return True if a result may be read."""
        return index < len(self.node.output) and bool(self.node.output[index])

    def with_input(self, index: int, value: Value) -> NodeContext:
        """Return a copy of the node with one operand replaced."""
        inputs = (*self.inputs[:index], value, *self.inputs[index + 1 :])
        context = self.lowering, self.node, inputs, self.schema, self.inferred, self.version
        return NodeContext(*context)

    # -- operands ------------------------------------------------------------------------------

    def has(self, index: int) -> bool:
        """Return True if the node has an operand at this position."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """Return an operand as a Value, which may be a sequence or an optional."""
        found = self.inputs[index] if self.has(index) else None
        if found is None:
            raise UnsupportedOp(f"{self.op_type} without operand {index}")
        return found

    def tensor(self, index: int) -> Tensor:
        """Return an operand as a Tensor in its storage type."""
        return self.lowering.tensor(self.value(index))

    def optional(self, index: int) -> Tensor | None:
        """Return an operand as a Tensor, or None if it is omitted."""
        return self.tensor(index) if self.has(index) else None

    def tensors(self) -> list[Tensor]:
        """Return all operands; none may be omitted."""
        return [self.tensor(i) for i in range(len(self.inputs))]

    def shape(self, index: int) -> Shape:
        return self.value(index).shape

    def elem_type(self, index: int) -> int:
        return self.value(index).elem_type

    def known(self, index: int) -> NDArray:
        """Return the elements of an operand, as a numpy array of its ONNX type.

        The elements become a guard: the model is lowered again for other elements. If they are not
        known yet, the segment ends here.
        """
        return self.lowering.demand(self.value(index))

    def ints(self, index: int) -> tuple[int, ...]:
        """Return the elements of an integer operand; see `known`."""
        return tuple(int(v) for v in np.ravel(self.known(index)))

    def number(self, index: int, default: float | None = None) -> Any:
        """Return the single element of an operand as a Python number; see `known`."""
        if not self.has(index) and default is not None:
            return default
        array = self.known(index)
        if array.size != 1:
            raise UnsupportedOp(f"{self.op_type} with {array.size} elements as operand {index}")
        return array.reshape(()).item()

    # -- attributes and results ----------------------------------------------------------------

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute as a number, string, tuple, array or graph.

        If the node does not set it, return the default of the op's schema, or `default`.
        """
        found = self._attributes.get(name)
        if found is None and self.schema is not None and name in self.schema.attributes:
            known = self.schema.attributes[name].default_value
            found = known if known.type != AttributeProto.UNDEFINED else None
        return default if found is None else attribute_value(found)

    def has_attr(self, name: str) -> bool:
        """Return True if the node sets an attribute."""
        return name in self._attributes

    def require(self, holds: bool, reason: str) -> None:
        """Raise UnsupportedOp with a reason unless a condition holds."""
        if not holds:
            raise UnsupportedOp(f"{self.op_type} with {reason}")

    def require_room(self, shape: Iterable[int], dtype: str) -> None:
        """Raise UnsupportedOp unless the memory budget has room for a constant of this shape and
        dtype.
        """
        size = math.prod(shape)
        fits = self.lowering.context.budget.has_room(size * numpy_dtype(dtype).itemsize)
        self.require(fits, f"{size} elements as a folded constant")

    def require_type(self, index: int, *elem_types: int) -> None:
        """Raise UnsupportedOp unless an operand has one of these element types."""
        if self.elem_type(index) not in elem_types:
            raise UnsupportedOp(f"{self.op_type} of {element_name(self.elem_type(index))}")


def attribute_value(attribute: AttributeProto) -> Any:
    """Return an attribute as a Python value."""
    value = get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, TensorProto):
        return attribute_array(value)
    if attribute.type == AttributeProto.STRINGS:
        return tuple(v.decode("utf-8", "replace") for v in value)
    if attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS):
        return tuple(value)
    return value


def attribute_array(tensor: TensorProto) -> NDArray:
    """Return a tensor of the file as a read-only array."""
    from onnx.numpy_helper import to_array

    array = to_array(tensor)
    array.flags.writeable = False
    return array
