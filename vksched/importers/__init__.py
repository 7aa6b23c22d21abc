"""Importers: model files as graphs of vksched ops. Each format needs an extra: `onnx` or `gguf`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from ..common.dtypes import Progress
from ..common.errors import VkschedError
from ..storage.model_file import open_model

if TYPE_CHECKING:
    from onnx import ModelProto

    from .gguf.model import LanguageModel
    from .onnx.model import Model


def load(
    source: str | os.PathLike[str] | bytes | ModelProto,
    progress: Progress | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Model | LanguageModel:
    """Read an ONNX or a GGUF model, whose weights stay in the file until they are used.

    source: a path, the bytes of a file, or an onnx.ModelProto; the other parts of a GGUF model in
        parts are only found for a path.
    folder: where the external data of an ONNX model lies that is given without a path; with one it
        lies in the folder of the model.

    Raises:
        ModelFormatError: it is no valid model; the message names the node, key or tensor that is
            wrong.
        VkschedError: the package of the format is missing.
    """
    if not is_gguf(source):
        return load_onnx(source, progress, folder)
    if folder is not None:
        raise VkschedError(
            f"[gguf] expected no folder of external data for a GGUF model, got {str(folder)!r}; "
            "try load without folder"
        )
    model = load_gguf(source)
    if progress is not None:  # it is open; its weights are read as they are used
        progress("load", model.file.file_bytes, model.file.file_bytes)
    return model


def load_gguf(source: str | os.PathLike[str] | bytes) -> LanguageModel:
    """Read a GGUF model, as `load` does; other files are refused."""
    require_gguf()
    from .gguf.model import LanguageModel
    from .gguf.read.loader import read_gguf

    return LanguageModel(read_gguf(source))


def load_onnx(
    source: str | os.PathLike[str] | bytes | ModelProto,
    progress: Progress | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Model:
    """Read an ONNX model, as `load` does; other files are refused."""
    require_onnx()
    from .onnx.model import Model
    from .onnx.read.loader import read_onnx

    return Model(read_onnx(source, progress, folder))


def require_onnx() -> None:
    """Raise VkschedError where the onnx package is missing."""
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise VkschedError(
            '[onnx] expected the onnx package, got none; try pip install "vksched[onnx]"'
        ) from error


def require_gguf() -> None:
    """Raise VkschedError where the gguf package is missing."""
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise VkschedError(
            '[gguf] expected the gguf package, got none; try pip install "vksched[gguf]"'
        ) from error


def is_gguf(source: object) -> TypeGuard[str | os.PathLike[str] | bytes]:
    """Whether `load` takes a model as GGUF: by its first bytes, or as it is called so."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source[:4]) == b"GGUF"
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = Path(source)
    return path.suffix == ".gguf" or bytes(open_model(path, "onnx").content[:4]) == b"GGUF"
