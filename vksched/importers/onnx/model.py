"""Model: an ONNX file with named inputs and outputs, which can be lowered for any shapes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.dtypes import NDArray, Shape
from ...common.errors import (
    DTypeError,
    GraphError,
    ShapeError,
    call_text,
    cast_text,
    close_text,
)
from ..base import ImportedModel
from .lower.frame import Frame, LoweredSegment
from .lower.frame_lowering import FrameLowering
from .lower.memory_budget import Budget
from .lower.model_context import ModelContext
from .model_tensors import ModelTensors, tensors_of
from .nodes.elements import INTS, element_name, numpy_of
from .nodes.names import joined_names
from .nodes.subgraphs import count_embedded
from .nodes.values import CpuValue, CpuValueType, Map, Value, type_of
from .read.loader import OnnxFile

if TYPE_CHECKING:
    from onnx import NodeProto, TypeProto, ValueInfoProto

Dim = int | str | None


@dataclass(frozen=True, slots=True)
class ModelValue:
    """An input or output of a model.

    Attributes
    ----------
    kind
        "tensor", "sequence", "optional" or "map".
    elem_type
        ONNX element type; for a map, the type of its values.
    dims
        A size, a name, or None for each dimension; None if the rank is unknown. One name may have
        several sizes, as in onnxruntime. An input without dimensions accepts any shape.
    key_type
        ONNX type of the keys of a map or of a sequence of maps.
    """

    name: str
    kind: str
    elem_type: int
    dims: tuple[Dim, ...] | None
    key_type: int = 0

    @property
    def dtype(self) -> str:
        """The element type as ONNX names it: "float", "int64"."""
        return element_name(self.elem_type)

    @property
    def type(self) -> str:
        """The type as onnxruntime writes it: "tensor(float)", "seq(map(int64,tensor(float)))"."""
        inner = f"tensor({self.dtype})"
        if self.key_type:
            inner = f"map({element_name(self.key_type)},{inner})"
        outer = {"sequence": "seq", "optional": "optional"}.get(self.kind)
        return f"{outer}({inner})" if outer else inner

    def __str__(self) -> str:
        if self.key_type:
            return f"{self.name}: {self.type}"
        dims = "..." if self.dims is None else ",".join(_dim_text(d) for d in self.dims)
        text = f"{self.dtype}[{dims}]"
        return f"{self.name}: {text if self.kind == 'tensor' else f'{self.kind}({text})'}"


def _dim_text(dim: Dim) -> str:
    return "?" if dim is None else str(dim)


class Model(ImportedModel):
    """An ONNX model.

    Attributes
    ----------
    inputs
        Inputs without a default value. Inputs with a default can be passed as well.
    opsets
        The version of each domain that the model imports.
    defaults
        Initializers that are also inputs.
    """

    format = "onnx"

    def __init__(self, file: OnnxFile) -> None:
        self.file = file
        model = file.model
        graph = model.graph
        self.opsets = {o.domain: o.version for o in model.opset_import}
        functions, taken = tuple(model.functions), joined_names(graph)
        budget = Budget(file.file_bytes, file.materialized_bytes)
        self.context = ModelContext(self.opsets, functions, taken, budget)
        self.name = graph.name or (file.path.stem if file.path else "model")
        self._env = self.context.initializers(file.initializers)
        declared = [_model_value(v) for v in graph.input]
        self.inputs = tuple(v for v in declared if v.name not in self._env)
        self.defaults = {v.name: v for v in declared if v.name in self._env}
        self.outputs = tuple(_model_value(v) for v in graph.output)
        self._fitting: tuple[object, ...] | None = None
        """The types of the last inputs that fitted, to skip repeated checks."""
        self._nodes = tuple(graph.node)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, v)) for v in (self.inputs, self.outputs))
        return f"<Model {self.name}: ({inputs}) -> ({outputs}), {len(self._nodes)} nodes>"

    def with_sizes(self, sizes: Mapping[str, int]) -> Model:
        """Return a copy with fixed sizes for some named dimensions; unknown names are ignored."""
        if not sizes:
            return self
        copied = copy.copy(self)
        copied._fitting = None
        copied.inputs = tuple(_sized(v, sizes) for v in self.inputs)
        copied.outputs = tuple(_sized(v, sizes) for v in self.outputs)
        copied.defaults = {name: _sized(v, sizes) for name, v in self.defaults.items()}
        return copied

    def with_outputs(self, names: Iterable[str]) -> Model:
        """Return a copy with additional outputs: tensors of the main graph, by name."""
        known = {v.name for v in self.outputs}
        copied = copy.copy(self)
        more = (ModelValue(n, "tensor", 0, None) for n in dict.fromkeys(names) if n not in known)
        copied.outputs = (*self.outputs, *more)
        return copied

    @property
    def is_static(self) -> bool:
        """True if all inputs are tensors of fixed shapes."""
        return all(
            v.kind == "tensor" and v.dims is not None and all(isinstance(d, int) for d in v.dims)
            for v in self.inputs
        )

    @property
    def parameters(self) -> int:
        """The number of elements of all initializers and constants, including those of
        subgraphs.
        """
        return self._embedded[0] + sum(a.size for a in self.file.initializers.values())

    @property
    def parameter_bytes(self) -> int:
        """The size of all initializers and constants in numpy arrays."""
        return self._embedded[1] + sum(a.nbytes for a in self.file.initializers.values())

    @cached_property
    def _embedded(self) -> tuple[int, int]:
        return count_embedded(self.file.model)

    @property
    def nodes(self) -> tuple[NodeProto, ...]:
        """The nodes of the main graph, with local functions inlined."""
        return self._nodes

    def lower(self, inputs: Mapping[str, CpuValueType | CpuValue]) -> LoweredSegment:
        """Return the first segment for input types or for concrete inputs.

        Nothing is planned, and CPU steps between segments are not evaluated.

        Raises
        ------
        NeedsInputs
            Types are not enough: shapes depend on elements.
        """
        types = {name: type_of(value) for name, value in inputs.items()}
        only_types = any(isinstance(value, CpuValueType) for value in inputs.values())
        return FrameLowering(
            self.context, self.frame(), types, None if only_types else inputs
        ).run()

    def tensors(
        self, shapes: Mapping[str, Any] | None = None, trainable: str | Sequence[str] = ()
    ) -> ModelTensors:
        """Return the model as tensors, to train it or to extend its graph.

        Parameters
        ----------
        shapes
            Shapes of inputs by name; required for inputs with free dimensions.
        trainable
            Names or patterns ("fc.*") of float initializers, or names of constant nodes. They
            become states for `vs.grad` and the optimizers; all others stay weights. A pattern skips
            initializers on which a shape depends, for instance the scales of a Resize.

        Raises
        ------
        UnsupportedOp
            The model is not a single graph for these shapes.
        GraphError
            A pattern matches no float initializer, a shape depends on a named one, or an input is
            unknown.
        ShapeError
            A size is unknown or does not fit.
        """
        known = [value.name for value in self.inputs]
        for name in shapes or {}:
            if name not in known:
                hint = close_text(name, known)
                raise GraphError(f"[model] expected shapes of inputs {known}, got {name!r}{hint}")
        types = self.input_types(shapes or {})
        return tensors_of(self.context, self.frame(), types, trainable, self._env)

    def frame(self, as_inputs: frozenset[str] = frozenset()) -> Frame:
        """Return the whole graph as a frame; the initializers in `as_inputs` become inputs."""
        names = [*(v.name for v in self.inputs), *as_inputs]
        nodes, constants = self._without_constants
        env = {**self._env, **constants, **{name: Value(0, slot=name) for name in names}}
        return Frame(nodes, env, tuple(v.name for v in self.outputs))

    @cached_property
    def _without_constants(self) -> tuple[tuple[NodeProto, ...], dict[str, Value]]:
        """The nodes that are not constants, and the constants, cached for all frames."""
        nodes, constants = [], {}
        for node in self._nodes:
            value = self.context.constant_node(node)
            if value is None:
                nodes.append(node)
            else:
                constants[node.output[0]] = value
        return tuple(nodes), constants

    def input_types(self, shapes: Mapping[str, Any]) -> dict[str, CpuValueType]:
        """Return the types of all inputs; inputs of fixed shape need no entry in `shapes`.

        Raises
        ------
        ShapeError
            A size is unknown or does not fit.
        """
        out: dict[str, CpuValueType] = {}
        for value in self.inputs:
            shape = shapes.get(value.name, value.dims)
            if value.kind != "tensor" or shape is None:
                raise ShapeError(f"[model] input {value} has no fixed shape; try to give it one")
            if any(not isinstance(d, (int, np.integer)) for d in shape):
                raise ShapeError(
                    f"[model] expected a size for each dimension of {value}, got "
                    f"({', '.join(map(str, shape))}); try to give input {value.name!r} a shape"
                )
            fixed = tuple(int(d) for d in shape)
            _check_shape(value, fixed)
            out[value.name] = CpuValueType(value.elem_type, fixed, _usual_bound(value.elem_type))
        return out

    def check_inputs(self, feeds: Mapping[str, Any]) -> dict[str, CpuValue]:
        """Return inputs by name, converted to the types of the model.

        Raises
        ------
        GraphError
            Names are missing or unknown.
        DTypeError, ShapeError
            An array does not fit.
        """
        seen = types_of(feeds)
        if seen is not None and seen == self._fitting:
            return dict(feeds)
        arrays = self._checked(feeds)
        self._fitting = seen
        return arrays

    def _checked(self, feeds: Mapping[str, Any]) -> dict[str, CpuValue]:
        known = {v.name: v for v in self.inputs}
        if known.keys() != feeds.keys():
            missing, unknown = known.keys() - feeds.keys(), feeds.keys() - known.keys()
            unknown -= self.defaults.keys()
            if missing or unknown:
                raise GraphError(
                    f"[run] expected inputs {sorted(known)}, got {sorted(feeds)}; try "
                    f"{call_text(known)}"
                )
            known |= self.defaults
        return {name: _check_input(known[name], value) for name, value in feeds.items()}


Types = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]
"""Names, element types and shapes of arrays."""


def types_of(feeds: Mapping[str, Any]) -> Types | None:
    """Return the types of arrays, or None if one is not a numeric array."""
    found: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
    for name, array in feeds.items():
        if type(array) is not np.ndarray or array.dtype.kind in "OUS":
            return None
        found.append((name, array.dtype, array.shape))
    return tuple(found)


def _usual_bound(elem_type: int) -> int:
    """Return the bound assumed for inputs of unknown elements: most int64 values are small."""
    from .nodes.values import BUCKETS

    return BUCKETS[0] if element_name(elem_type) == "int64" else 0


def _model_value(info: ValueInfoProto) -> ModelValue:
    kinds, type_ = [], info.type
    while not type_.HasField("tensor_type"):
        if type_.HasField("sequence_type"):
            kinds.append("sequence")
            type_ = type_.sequence_type.elem_type
        elif type_.HasField("optional_type"):
            kinds.append("optional")
            type_ = type_.optional_type.elem_type
        elif type_.HasField("map_type"):
            values = type_.map_type.value_type.tensor_type.elem_type
            kind = kinds[0] if kinds else "map"
            return ModelValue(info.name, kind, values, None, type_.map_type.key_type)
        else:
            return ModelValue(info.name, kinds[0] if kinds else "tensor", 0, None)
    kind = kinds[0] if kinds else "tensor"  # an optional sequence may be empty, too
    return ModelValue(info.name, kind, type_.tensor_type.elem_type, _dims(type_))


def _dims(type_: TypeProto) -> tuple[Dim, ...] | None:
    tensor = type_.tensor_type
    if not tensor.HasField("shape"):
        return None
    out: list[Dim] = []
    for dim in tensor.shape.dim:
        kind = dim.WhichOneof("value")
        out.append(
            None if kind is None else getattr(dim, kind) or (None if kind != "dim_value" else 0)
        )
    return tuple(out)


def _sized(value: ModelValue, sizes: Mapping[str, int]) -> ModelValue:
    if value.dims is None:
        return value
    dims = (sizes.get(d, d) if isinstance(d, str) else d for d in value.dims)
    return replace(value, dims=tuple(dims))


def _check_input(value: ModelValue, arg: Any) -> CpuValue:
    if arg is None and value.kind == "optional":
        return None
    if value.kind == "map":
        return _check_map(value, arg)
    if value.kind != "tensor" and isinstance(arg, (list, tuple)):
        kind = "map" if value.key_type else "tensor"
        inner = ModelValue(value.name, kind, value.elem_type, None, value.key_type)
        return [_check_input(inner, item) for item in arg]
    if value.kind == "sequence":
        raise DTypeError(
            f"[run] expected a list of arrays for input {value.name!r}, got {type(arg).__name__}"
        )
    if value.elem_type == 0:
        return np.asarray(arg)
    wanted = numpy_of(value.elem_type)
    array = np.asarray(arg) if hasattr(arg, "dtype") else _converted(value, arg, wanted)
    text = wanted.kind == "O" and array.dtype.kind in "US"
    if array.dtype != wanted and not text:
        raise DTypeError(
            f"[run] expected {wanted} for input {value.name!r}, got {array.dtype}; try "
            f"{cast_text(value.name, wanted)}"
        )
    if value.kind == "tensor":
        _check_shape(value, array.shape)
    return array.astype(object) if text else array


def _check_map(value: ModelValue, arg: Any) -> Map:
    """Return a map whose keys and values have the declared types."""
    if not isinstance(arg, Mapping):
        raise DTypeError(
            f"[run] expected a dict for input {value.name!r}, got {type(arg).__name__}; try "
            "{key: value, ...}"
        )
    keys = ModelValue(value.name, "tensor", value.key_type, None)
    values = ModelValue(value.name, "tensor", value.elem_type, None)
    dtypes = [numpy_of(v.elem_type) for v in (keys, values)]
    columns = [
        _converted(v, list(column), dtype).tolist() if len(arg) else []
        for v, column, dtype in zip((keys, values), (arg, arg.values()), dtypes, strict=True)
    ]
    for column, dtype in zip(columns, dtypes, strict=True):
        if dtype.kind == "O" and not all(isinstance(item, str) for item in column):
            raise DTypeError(f"[run] expected strings in the map for input {value.name!r}")
    return Map(zip(*columns, strict=True), dtypes[1])


def _converted(value: ModelValue, arg: Any, wanted: np.dtype[Any]) -> NDArray:
    """Return Python numbers as an array if the conversion changes them by float rounding only."""
    try:
        found = np.array(arg)
        whole = value.elem_type in INTS or wanted.kind == "b"
        if wanted.kind != "O" and found.size and found.dtype.kind in ("OUSfc" if whole else "OUSc"):
            raise TypeError(f"its elements are {found.dtype}")
        return np.array(arg, wanted)
    except (TypeError, ValueError, OverflowError) as error:
        raise DTypeError(
            f"[run] expected {wanted} for input {value.name!r}, got {type(arg).__name__} that "
            f"cannot be converted: {error}"
        ) from None


def _check_shape(value: ModelValue, shape: Shape) -> None:
    """Raise ShapeError if a shape does not fit the declared sizes."""
    if not value.dims:
        return
    wrong = ""
    if len(shape) != len(value.dims):
        wrong = f"{len(shape)} dimensions, not {len(value.dims)}"
    for axis, (size, dim) in enumerate(zip(shape, value.dims, strict=False)):
        if not wrong and isinstance(dim, int) and dim != size:
            wrong = f"axis {axis} is {size}, not {dim}"
    if wrong:
        raise ShapeError(f"[run] expected {value} as input, got shape {shape}: {wrong}")
