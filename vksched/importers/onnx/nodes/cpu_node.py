"""CPU nodes: ONNX nodes without a vksched op, computed by the onnx package's reference evaluator.

A node with several results becomes one node that packs their bytes, and one node per result that
extracts it. Both run on the CPU and carry the reason.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from onnx import FunctionProto, NodeProto
from onnx.helper import make_function, make_opsetid
from onnx.reference import ReferenceEvaluator

from ....common.dtypes import UINT32, NDArray, TensorType, as_shape, numpy_dtype
from ....common.errors import ModelFormatError, ShapeError, UnsupportedOp, VkschedError
from ....ir.attr_domains import LONG, MANY, Dims, Int, dtype_of
from ....ir.attrs import Attrs, AttrValue
from ....ir.op import Call, Dispatch, Kernel, Op, all_ops, register
from ....ir.tensor import Tensor, apply
from .allow_list import find_uncompared
from .elements import from_storage, storage, to_storage
from .functions import canonical_domain
from .message_tensors import is_external, tensors_in
from .normalize_node import as_was_meant, with_defaults
from .reference_evaluator import make_evaluator
from .values import CpuValue, CpuValueType

PART = "onnx.part"
"""Op that extracts one result from the packed bytes of a CPU node."""
_ALIGN_BYTES = 8


def describe(node: NodeProto) -> str:
    """Return the description of a node for messages."""
    name = node.name or next((o for o in node.output if o), "without a name")
    return f"{node.domain + '.' if node.domain else ''}{node.op_type} node {name!r}"


class EvaluatorRefused(ModelFormatError):
    """The evaluator rejects a node or its operands.

    Attributes
    ----------
    message
        The evaluator's message.
    """

    def __init__(self, node: NodeProto, message: str) -> None:
        super().__init__(f"[onnx] {describe(node)}: {message}")
        self.node, self.message = node, message


@contextmanager
def naming(reason: str) -> Iterator[None]:
    """Add the reason why the CPU computes a node to errors of the evaluator."""
    try:
        yield
    except EvaluatorRefused as error:
        raise ModelFormatError(
            f"[onnx] {describe(error.node)}: {reason}; the onnx evaluator: {error.message}"
        ) from error


def require_compared(node: NodeProto, functions: Sequence[FunctionProto] = ()) -> None:
    """Raise Refused for a node that the evaluator must not compute: its op was not compared with
    onnxruntime, or its result differs.
    """
    found = find_uncompared([node], functions)
    if found is None:
        return
    inner = "" if found is node else f"its {describe(found)}: "
    raise EvaluatorRefused(
        node,
        f"{inner}not used for {found.op_type}: its results differ from onnxruntime's, or were not "
        "compared; try to export the model for another opset, or without that op",
    )


class CpuNode:
    """One ONNX node as a function of CPU values."""

    def __init__(
        self,
        node: NodeProto,
        opsets: dict[str, int],
        functions: Sequence[FunctionProto] = (),
    ) -> None:
        self.node = node
        if any(is_external(tensor) for each in (node, *functions) for tensor in tensors_in(each)):
            raise EvaluatorRefused(
                node, "expected tensors within the node, got one with external data"
            )
        require_compared(node, functions)
        node, self._defaults = with_defaults(as_was_meant(node, opsets))
        try:
            known: list[ReferenceEvaluator | FunctionProto] = [*functions]
            function = _as_function(node, opsets)
            self._evaluator = make_evaluator(function, known)
        except Exception as error:
            raise EvaluatorRefused(node, _format_error(error)) from error

    def __call__(self, inputs: Sequence[CpuValue]) -> list[CpuValue]:
        """Return the results by position, None for a result without a name.

        Raises
        ------
        Refused
            The evaluator rejects the node or its operands.
        """
        feeds = {name: v for name, v in zip(self.node.input, inputs, strict=True) if name}
        feeds.update(self._defaults)
        names = [name for name in self.node.output if name]
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = dict(zip(names, self._evaluator.run(names, feeds, {}), strict=True))
        except Exception as error:
            raise EvaluatorRefused(self.node, _format_error(error)) from error
        return [_host_value(found.get(name)) for name in self.node.output]


def _as_function(node: NodeProto, opsets: Mapping[str, int]) -> FunctionProto:
    """Return a function that contains one node: for a bare node the evaluator uses the newest op
    version.
    """
    imports = {canonical_domain(node.domain): 1, "": 1, **opsets}
    return make_function(
        "vksched",
        "node",
        list(dict.fromkeys(name for name in node.input if name)),
        [name for name in node.output if name],
        [node],
        [make_opsetid(d, v) for d, v in imports.items()],
    )


def _format_error(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def _host_value(value: object) -> CpuValue:
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        return [_host_value(item) for item in value]
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


# -- in a graph ----------------------------------------------------------------------------------


def add_host_node(
    node: NodeProto,
    opsets: dict[str, int],
    inputs: Sequence[Tensor | None],
    elem_types: Sequence[int],
    outputs: Sequence[CpuValueType | None],
    reason: str,
) -> list[Tensor | None]:
    """Add a node to the graph that the reference evaluator computes.

    Parameters
    ----------
    inputs
        One Tensor per input of the node, None for an omitted one.
    elem_types
        ONNX element types of the inputs.
    outputs
        Types of the results, None for a result without a name.
    reason
        Why no vksched op computes the node.
    """
    wanted = [t for t in outputs if t is not None]
    attrs: dict[str, AttrValue] = {
        "node": base64.b64encode(node.SerializeToString(deterministic=True)).decode(),
        "opsets": json.dumps(opsets, sort_keys=True),
        "given": tuple(e if t is not None else 0 for e, t in zip(elem_types, inputs, strict=True)),
        "elem_types": tuple(t.elem_type for t in wanted),
        "shapes": tuple(t.shape for t in wanted),
        "reason": reason,
    }
    tensors = [t for t in inputs if t is not None]
    result = apply(_host_op(node), tensors, attrs)
    if len(wanted) == 1:
        return [result if t is not None else None for t in outputs]
    starts = iter(_starts(wanted))
    return [
        None
        if t is None
        else apply(
            PART,
            (result,),
            {"start": next(starts), "shape": t.shape, "dtype": storage(t.elem_type)},
        )
        for t in outputs
    ]


def _host_op(node: NodeProto) -> str:
    """Return the op for nodes of this type, declared at first use."""
    return declare(f"onnx.{node.domain + '.' if node.domain else ''}{node.op_type}")


def declare(name: str) -> str:
    """Declare the op for a type of nodes unless it exists; return its name."""
    if name not in all_ops():
        kernel = Kernel((), _refuse)
        register(
            Op(
                name,
                _infer,
                _reference,
                kernel,
                attrs=None,
                operands=(0, MANY),
                any_dtype=True,
                opaque=True,
            )
        )
    return name


def _refuse(call: Call) -> tuple[Dispatch, ...]:
    raise UnsupportedOp(call.attrs.as_str("reason"))


def _host_types(attrs: Attrs) -> list[CpuValueType]:
    shapes, elem_types = attrs["shapes"], attrs.as_ints("elem_types")
    if not isinstance(shapes, tuple) or len(shapes) != len(elem_types):
        raise ShapeError(f"expected {len(elem_types)} shapes of results, got {shapes!r}")
    return [CpuValueType(e, as_shape(s)) for e, s in zip(elem_types, shapes, strict=True)]  # type: ignore[arg-type]


def _starts(types: Sequence[CpuValueType]) -> list[int]:
    """Return the offset of each packed result, and the end of the last one."""
    sizes = [math.prod(t.shape) * numpy_dtype(storage(t.elem_type)).itemsize for t in types]
    return list(
        itertools.accumulate((-(-n // _ALIGN_BYTES) * _ALIGN_BYTES for n in sizes), initial=0)
    )


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    types = _host_types(attrs)
    if len(types) == 1:
        return TensorType(types[0].shape, storage(types[0].elem_type))
    return TensorType((_starts(types)[-1] // 4,), UINT32)


@lru_cache(maxsize=1024)
def _evaluator(node: str, opsets: str) -> CpuNode:
    return CpuNode(NodeProto.FromString(base64.b64decode(node)), json.loads(opsets))


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    arrays, input_types = iter(inputs), attrs.as_ints("given")
    with naming(attrs.as_str("reason")):
        evaluate = _evaluator(attrs.as_str("node"), attrs.as_str("opsets"))
        found = evaluate([from_storage(next(arrays), e) if e else None for e in input_types])
    types = _host_types(attrs)
    results = [r for name, r in zip(evaluate.node.output, found, strict=True) if name]
    held = [_checked(evaluate.node, r, t) for r, t in zip(results, types, strict=True)]
    if len(held) == 1:
        return held[0]
    starts = _starts(types)
    packed = np.zeros(starts[-1], np.uint8)
    for start, array in zip(starts, held, strict=False):
        packed[start : start + array.nbytes] = (
            np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        )
    return packed.view(np.uint32)


def _checked(node: NodeProto, result: CpuValue, wanted: CpuValueType) -> NDArray:
    if not isinstance(result, np.ndarray) or result.shape != wanted.shape:
        got = result.shape if isinstance(result, np.ndarray) else type(result).__name__
        raise WrongShape(
            f"[onnx] {describe(node)}: expected {wanted.shape} by shape inference, got {got}", node
        )
    return to_storage(from_storage(result, wanted.elem_type))


class WrongShape(VkschedError):
    """The evaluator's result has another shape than shape inference predicted."""

    def __init__(self, text: str, node: NodeProto | None = None) -> None:
        super().__init__(text)
        self.node = node


def _part_infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    result, start = TensorType(attrs.as_ints("shape"), attrs.as_str("dtype")), attrs.as_int("start")
    end, dtype = start + result.host_bytes, numpy_dtype(result.dtype)
    if end > inputs[0].host_bytes or start % dtype.itemsize:
        raise ShapeError(
            f"[{PART}] expected {result} within {inputs[0]}, got bytes {start} to {end}"
        )
    return result


def _part_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    shape, dtype = attrs.as_ints("shape"), numpy_dtype(attrs.as_str("dtype"))
    start = attrs.as_int("start")
    data = np.ascontiguousarray(inputs[0]).view(np.uint8)
    return data[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


register(
    Op(
        PART,
        _part_infer,
        _part_reference,
        None,
        attrs={"shape": Dims(), "dtype": dtype_of(), "start": Int(0, LONG)},
        operands=(1, 1),
        any_dtype=True,
        opaque=True,
        cpu_only_reason="it extracts one result of a CPU node",
    )
)
