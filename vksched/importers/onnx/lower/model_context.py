"""ModelContext: what all lowerings of one model share: weights and folded values are made once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto
from onnx.defs import OpSchema
from onnx.helper import (
    make_attribute,
    make_opsetid,
    make_sequence_type_proto,
    make_tensor_type_proto,
)
from onnx.numpy_helper import from_array
from onnx.shape_inference import infer_node_outputs

from ....common.dtypes import WORD_BYTES, NDArray
from ....common.env import is_on
from ....ir.graph import INLINE_BYTES
from ....ir.tensor import Tensor, constant, weight
from ....ops import dequantize_linear
from ..nodes.cpu_node import CpuNode, naming, require_compared
from ..nodes.elements import as_narrow, to_storage
from ..nodes.functions import canonical_domain
from ..nodes.names import JOINT
from ..nodes.node import attribute_array, attribute_value
from ..nodes.schemas import find_schema
from ..nodes.values import SEQUENCE, Inferred, Value, known
from .memory_budget import Budget

DATA_ELEMENTS = 1024
"""Known values up to this size are shown to shape inference."""

_KINDS: dict[str, Any] = {
    **dict.fromkeys(("value_float", "value_floats"), np.float32),
    **dict.fromkeys(("value_int", "value_ints"), np.int64),
    **dict.fromkeys(("value_string", "value_strings"), object),
}
"""numpy's types of the attributes of a Constant node."""


class ModelContext:
    """What is shared by all lowerings of a model.

    opsets: the version of each domain that the model imports. functions: of the model, which the
    host evaluates. taken: names of the model that begin as those which lowering makes may. budget:
    for what lowering makes.
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        functions: Sequence[FunctionProto] = (),
        taken: Collection[str] = (),
        budget: Budget | None = None,
    ) -> None:
        self._taken = taken
        self.budget = budget or Budget(0)
        self.opsets = {canonical_domain(d): v for d, v in opsets.items()}
        self._functions = functions
        self._shared: dict[int, NDArray] = {}
        self._tensors: dict[int, Tensor] = {}
        self._names: dict[int, str] = {}
        self._constants: dict[bytes, Value] = {}
        self._folded: dict[object, list[Value | None]] = {}
        self._opset_ids = [make_opsetid(d, v) for d, v in self.opsets.items()]
        self.not_inferable: set[bytes] = set()
        """Nodes, as bytes, for which shape inference has said what the evaluator did not find."""
        self.host_node = lru_cache(maxsize=4096)(self._host_node)

    def initializers(self, arrays: Mapping[str, NDArray]) -> dict[str, Value]:
        """Return arrays as values, which keep their names, by their identity, as weights."""
        self.budget.leave_out(arrays.values())
        self._names.update({id(a): name for name, a in arrays.items()})
        return {name: self._keep(known(array)) for name, array in arrays.items()}

    def _keep_constant(self, array: NDArray) -> Value:
        """Return the value of an array that is a copy of one in the file."""
        self.budget.leave_out([array])
        return self._keep(known(array))

    def _keep(self, value: Value) -> Value:
        """Notes that an array is the same one in every lowering."""
        if value.array is not None:
            self._shared[id(value.array)] = value.array
        return value

    def graph_initializers(self, graph: GraphProto) -> dict[str, Value]:
        """Return the initializers of a subgraph as values, the same ones every time."""
        out: dict[str, Value] = {}
        for tensor in graph.initializer:
            key = hashlib.blake2b(tensor.SerializeToString(deterministic=True)).digest()
            if key not in self._constants:
                self._constants[key] = self._keep_constant(attribute_array(tensor))
            out[tensor.name] = self._constants[key]
        for sparse in graph.sparse_initializer:
            node = NodeProto(op_type="Constant", output=[sparse.values.name])
            node.attribute.append(make_attribute("sparse_value", sparse))
            (result,) = self.host_node(node.SerializeToString(deterministic=True))([])
            out[sparse.values.name] = known(np.asarray(result))
        return out

    def constant_node(self, node: NodeProto) -> Value | None:
        """Return the value of a Constant node, the same one every time; None for other forms, and
        for other nodes.
        """
        if node.op_type != "Constant" or node.domain:
            return None
        attribute = node.attribute[0] if len(node.attribute) == 1 else None
        if attribute is None or attribute.type == AttributeProto.SPARSE_TENSOR:
            return None
        key = hashlib.blake2b(attribute.SerializeToString(deterministic=True)).digest()
        if key not in self._constants:
            value = attribute_value(attribute)
            result = value if attribute.name == "value" else np.array(value, _KINDS[attribute.name])
            result.flags.writeable = False
            self._constants[key] = self._keep_constant(result)
        return self._constants[key]

    def tensor(self, array: NDArray) -> Tensor:
        """Return the weight or constant that holds an array, one for all graphs where the array is
        the same one in all.

        Raises:
            UnsupportedOp: only the host can hold it.
        """
        found = self._tensors.get(id(array))
        if found is not None:
            return found
        name = self._names.get(id(array))
        narrow = narrow_weight(array)
        stored = to_storage(array) if narrow is None else narrow
        is_weight = narrow is not None or stored.nbytes > INLINE_BYTES
        result = weight(stored) if is_weight else constant(stored)
        if name:
            result.name, result._named = name, True
        elif is_weight:
            result.name = "folded"  # not by the node that happened to read it first
        if narrow is not None:
            held, result = result, dequantize_linear(result)
            result.name = f"{held.name}.widened"
        self.budget.hold(stored)
        if id(array) in self._shared:
            self._tensors[id(array)] = result
        return result

    def prefix(self, node: NodeProto) -> str:
        """Returns what the names of a node's body begin with, and no name of the model."""
        result = next((str(name) for name in node.output if name), str(node.name)) + JOINT
        while any(name.startswith(result) for name in self._taken):
            result += JOINT
        return result

    # -- one node ------------------------------------------------------------------------------

    def version(self, domain: str) -> int:
        """Return the opset of a domain that the model asks for, 1 where it does not say."""
        return self.opsets.get(canonical_domain(domain), 1)

    def schema(self, node: NodeProto, version: int | None = None) -> OpSchema | None:
        """Return the declaration of a node's op, at the model's opset or another; None where the
        onnx package has none.
        """
        return find_schema(node.op_type, version or self.version(node.domain), node.domain)

    def _host_node(self, serialized: bytes) -> CpuNode:
        return CpuNode(NodeProto.FromString(serialized), self.opsets, self._functions)

    def check_host(self, node: NodeProto, reason: str) -> None:
        """Raise ModelFormatError for a node that the evaluator is not to compute. reason: why it
        would have to.
        """
        with naming(reason):
            require_compared(node, self._functions)

    def infer(
        self, node: NodeProto, inputs: Sequence[Value | None], schema: OpSchema | None
    ) -> list[Inferred | None]:
        """Returns what shape inference says of each result, None where it says nothing."""
        if schema is None or any(a.type == AttributeProto.GRAPH for a in node.attribute):
            return [None] * len(node.output)
        types: dict[str, TypeProto] = {}
        data = {}
        for name, value in zip(node.input, inputs, strict=True):
            if value is None or (value.slot is not None and value.type is None):
                continue  # of maps nothing more is known
            types[name] = type_proto(value)
            array = value.array
            if array is not None and array.size <= DATA_ELEMENTS:
                data[name] = from_array(array, name)
        node = _in_full(node)
        try:
            found = infer_node_outputs(schema, node, types, data, opset_imports=self._opset_ids)
        except Exception:  # of the C++ library, of several types: what it cannot tell is not known
            return [None] * len(node.output)
        return [_inferred(found.get(name)) if name else None for name in node.output]

    def fold(
        self,
        node: bytes,
        operands: Sequence[Value | None],
        make: Callable[[], list[Value | None] | None],
    ) -> list[Value | None] | None:
        """Return the values that are made of known operands; None where there can be none.
        Operands that every lowering shares, such as weights, give the same values each time.
        """
        arrays = [None if v is None else v.array for v in operands]
        if any(v is not None and id(v.array) not in self._shared for v in operands):
            return make()
        key = (node, *map(id, arrays))
        if key not in self._folded:
            result = make()
            if result is None:
                return None
            self._folded[key] = [v if v is None else self._keep(v) for v in result]
        return self._folded[key]


def narrow_weight(array: NDArray) -> NDArray | None:
    """Return narrow integers as a weight holds them; None of other elements, and of a few, which
    are a constant. VKSCHED_NARROW=0: all are widened once, for four times the memory.
    """
    if array.size * WORD_BYTES <= INLINE_BYTES or not is_on("VKSCHED_NARROW", True):
        return None
    return as_narrow(array)


def type_proto(value: Value) -> TypeProto:
    """Return the ONNX type of a value."""
    if value.is_tensor:
        return make_tensor_type_proto(value.elem_type, value.shape)
    item = type_proto(value.items[0]) if value.items else make_tensor_type_proto(1, None)
    return make_sequence_type_proto(item)


def _in_full(node: NodeProto) -> NodeProto:
    """Return a node with the attributes named that onnx's inference takes for something else where
    they are not (onnx 1.23).
    """
    if node.op_type != "STFT" or any(a.name == "onesided" for a in node.attribute):
        return node
    named = NodeProto()
    named.CopyFrom(node)
    named.attribute.append(make_attribute("onesided", 1))
    return named


def _inferred(found: TypeProto | None) -> Inferred | None:
    if found is None or not found.WhichOneof("value"):
        return None
    if not found.HasField("tensor_type"):
        return Inferred(SEQUENCE, None)
    tensor = found.tensor_type
    dims = tensor.shape.dim
    static = tensor.HasField("shape") and all(d.WhichOneof("value") == "dim_value" for d in dims)
    return Inferred(tensor.elem_type, tuple(d.dim_value for d in dims) if static else None)
