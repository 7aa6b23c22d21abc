"""Importers: load model files as graphs of vksched ops. Each format needs an extra: `onnx` or
`gguf`.
"""

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
    from .gguf.vision.vision_model import VisionModel
    from .onnx.model import Model


def load(
    source: str | os.PathLike[str] | bytes | ModelProto,
    progress: Progress | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Model | LanguageModel:
    """Load an ONNX or a GGUF model; its weights stay in the file until they are used.

    Parameters
    ----------
    source
        A path, the bytes of a file, or an onnx.ModelProto. The other parts of a split GGUF model
        are found only for a path.
    progress
        Called while an ONNX model is read.
    folder
        Folder of the external data of an ONNX model without a path; with a path, it is in the
        model's folder.

    Raises
    ------
    ModelFormatError
        The model is invalid; the message names the node, key or tensor.
    VkschedError
        The package of the format is not installed.
    """
    if not is_gguf(source):
        return load_onnx(source, progress, folder)
    if folder is not None:
        raise VkschedError(
            f"[gguf] expected no folder of external data for a GGUF model, got {str(folder)!r}; "
            "try load without folder"
        )
    model = load_gguf(source)
    if progress is not None:  # the file is open; its weights are read when they are used
        progress("load", model.file.file_bytes, model.file.file_bytes)
    return model


def load_gguf(source: str | os.PathLike[str] | bytes) -> LanguageModel:
    """Load a GGUF model, as `load` does; reject other files."""
    require_gguf()
    from .gguf.model import LanguageModel
    from .gguf.read.loader import read_gguf

    return LanguageModel(read_gguf(source))


def load_projector(source: str | os.PathLike[str] | bytes) -> VisionModel:
    """Load a projector file (mmproj), the encoder of pictures of a language model. Its weights stay
    in the file until they are used.

    Parameters
    ----------
    source
        A path, or the bytes of a file.

    Raises
    ------
    ModelFormatError
        The file is not a projector file of a supported kind, or invalid.
    VkschedError
        The gguf package is not installed.
    """
    require_gguf()
    from .gguf.read.loader import read_gguf
    from .gguf.vision.vision_model import VisionModel

    return VisionModel(read_gguf(source))


def load_onnx(
    source: str | os.PathLike[str] | bytes | ModelProto,
    progress: Progress | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Model:
    """Load an ONNX model, as `load` does; reject other files."""
    require_onnx()
    from .onnx.model import Model
    from .onnx.read.loader import read_onnx

    return Model(read_onnx(source, progress, folder))


def require_onnx() -> None:
    """Raise VkschedError if the onnx package is not installed."""
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise VkschedError(
            '[onnx] expected the onnx package, got none; try pip install "vksched[onnx]"'
        ) from error


def require_gguf() -> None:
    """Raise VkschedError if the gguf package is not installed."""
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise VkschedError(
            '[gguf] expected the gguf package, got none; try pip install "vksched[gguf]"'
        ) from error


def is_gguf(source: object) -> TypeGuard[str | os.PathLike[str] | bytes]:
    """Return True if `load` treats a source as GGUF, by its first bytes or its file name."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source[:4]) == b"GGUF"
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = Path(source)
    return path.suffix == ".gguf" or bytes(open_model(path, "onnx").content[:4]) == b"GGUF"
