"""Load an ONNX model from a file or bytes: a checked model, and its weights as arrays.

    file --map--> bytes --split--> skeleton --protobuf--> ModelProto --check, infer--> OnnxFile
                        \\---------> raw data, external data --------> read-only views

Weights are not copied if their bytes in the file have numpy's layout. Every fault raises
ModelFormatError, which names the node, input, output or initializer. A mapped file must not be
changed while its arrays are in use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import onnx
from google.protobuf.message import DecodeError, EncodeError

from ....common.dtypes import NDArray, Progress
from ....common.errors import ModelFormatError, NotOnnx
from ....storage.model_file import open_model
from ..nodes.subgraphs import LocalFunction, find_functions
from .check import check_model
from .external_data import Folder
from .local_functions import inline_functions
from .nchwc import mark_blocks
from .protobuf_wire import LargeField, begins_as_model, split
from .shape_inference import check_inference
from .tensors import TensorReader, text

Source = str | os.PathLike[str] | bytes | onnx.ModelProto


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """A checked model. Functions of onnx that open files are neither needed nor safe from here
    on.
    """

    model: onnx.ModelProto
    """The model with sorted nodes; initializers of the main graph have type and shape only."""
    initializers: Mapping[str, NDArray]
    """Initializers of the main graph, read-only, with dtypes of numpy or ml_dtypes."""
    path: Path | None
    file_bytes: int
    """Size of the model with its external data."""
    functions: tuple[LocalFunction, ...] = ()
    """Local functions of the file, whose calls are inlined."""
    materialized_bytes: int = 0
    """Memory of tensors that are larger than their description in the file."""


def read_onnx(
    source: Source,
    progress: Progress | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> OnnxFile:
    """Read and check a model.

    Parameters
    ----------
    source
        A path, the bytes of a file, or a model.
    folder
        Folder of the external data, for bytes or a model. The external data of a path is in its
        folder.

    Raises
    ------
    ModelFormatError
        The file cannot be read, or the model is invalid.
    """
    try:
        return _read(source, progress, folder)
    except ModelFormatError as error:
        kind, failure = type(error), str(error)
    # A new error: the frames of the old one would keep the file mapped.
    raise kind(failure)


def _read(
    source: Source, progress: Progress | None, data_folder: str | os.PathLike[str] | None
) -> OnnxFile:
    path = Path(source).absolute() if isinstance(source, (str, os.PathLike)) else None
    if path is not None and data_folder is not None:
        raise ModelFormatError(
            f"[onnx] expected the external data of {path.name!r} in its own folder, got "
            f"folder={str(data_folder)!r}; try the bytes of the file, or no folder"
        )
    data = _content(source)
    named = None if data_folder is None else Path(data_folder).absolute()
    folder = Folder(path.parent if path is not None else named)
    reader = TensorReader(folder)
    try:
        skeleton, large = split(data)
        model = onnx.ModelProto.FromString(skeleton)
    except (DecodeError, ModelFormatError) as error:
        if not begins_as_model(data):
            begin = bytes(data[:12])
            name = path.name if path is not None else "this"
            hint = "; try vksched chat, generate or embed" if begin[:4] == b"GGUF" else ""
            raise NotOnnx(
                f"[onnx] {name} is not an ONNX file: it begins with {begin!r}{hint}"
            ) from None
        if isinstance(error, ModelFormatError):
            raise
        raise NotOnnx(
            f"[onnx] expected an ONNX model, got bytes that do not parse ({error}); the file is "
            "truncated, damaged, something else, or has graphs nested too deep"
        ) from None
    del skeleton
    nodes = check_model(model, reader)
    functions = find_functions(model)
    model = inline_functions(model)
    mark_blocks(model)
    arrays = _arrays(model.graph, large, reader, len(data), progress)
    _check_defaults(model.graph, arrays)
    check_inference(model, arrays, nodes)
    _drop_data(model.graph, arrays)
    size, materialized = len(data) + folder.total_bytes, reader.materialized_bytes
    return OnnxFile(model, MappingProxyType(arrays), path, size, functions, materialized)


def _content(source: Source) -> memoryview:
    if isinstance(source, onnx.ModelProto):
        try:
            return memoryview(source.SerializeToString())
        except (EncodeError, ValueError) as error:
            raise ModelFormatError(
                f"[onnx] expected a model that can be written, {error}; try a file with external "
                "data"
            ) from None
    if isinstance(source, (bytes, bytearray, memoryview)):
        return memoryview(source).cast("B").toreadonly()
    return open_model(Path(source), "onnx").content


def _arrays(
    graph: onnx.GraphProto,
    large: list[LargeField | None],
    reader: TensorReader,
    file_bytes: int,
    progress: Progress | None,
) -> dict[str, NDArray]:
    arrays: dict[str, NDArray] = {}
    done = 0
    for tensor, data in zip(graph.initializer, large, strict=True):
        array = reader.array(tensor, f"initializer {tensor.name!r}", data)
        arrays[tensor.name] = array
        done += array.nbytes
        if progress is not None:
            progress("load", done, max(file_bytes, done))
    for sparse in graph.sparse_initializer:
        name = text(sparse.values.name, "initializer")
        arrays[name] = reader.dense(sparse, f"initializer {name!r}")
    if progress is not None:
        total = max(file_bytes, done)
        progress("load", total, total)
    return arrays


def _check_defaults(graph: onnx.GraphProto, arrays: Mapping[str, NDArray]) -> None:
    """Compare each initializer that is also an input with the input's declared type."""
    types = {t.name: t.data_type for t in graph.initializer}
    types |= {s.values.name: s.values.data_type for s in graph.sparse_initializer}
    for value in graph.input:
        array = arrays.get(value.name)
        if array is None:
            continue
        declared = value.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else None for d in declared.shape.dim]
        fits = declared.elem_type == types[value.name]
        if declared.HasField("shape"):
            fits = fits and len(dims) == array.ndim
            fits = fits and all(d in (None, s) for d, s in zip(dims, array.shape, strict=False))
        if not fits:
            wanted = onnx.TensorProto.DataType.Name(declared.elem_type)
            raise ModelFormatError(
                f"[onnx] initializer {value.name!r}: expected {wanted} {dims} as the input of this "
                f"name declares, got {array.dtype} {array.shape}"
            )


def _drop_data(graph: onnx.GraphProto, arrays: Mapping[str, NDArray]) -> None:
    described = [
        onnx.TensorProto(name=t.name, data_type=t.data_type, dims=t.dims) for t in graph.initializer
    ]
    described += [
        onnx.TensorProto(name=s.values.name, data_type=s.values.data_type, dims=s.dims)
        for s in graph.sparse_initializer
    ]
    del graph.initializer[:], graph.sparse_initializer[:]
    graph.initializer.extend(described)
