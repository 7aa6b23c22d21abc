"""Importers: model files as graphs of vksched ops. All but this file needs the `onnx` extra."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..errors import VkschedError
from ..types import Progress

if TYPE_CHECKING:
    from onnx import ModelProto

    from .onnx.model import Model


def load(
    source: str | os.PathLike[str] | bytes | ModelProto, progress: Progress | None = None
) -> Model:
    """Reads an ONNX model, whose weights stay in the file until they are used.

    source: a path, the bytes of a file, or an onnx.ModelProto; external data is only found for a
        path.

    Raises:
        ModelFormatError: it is no valid model; the message names the node that is wrong.
        VkschedError: the onnx package is missing.
    """
    require_onnx()
    from .onnx.model import Model
    from .onnx.read.loader import read_onnx

    return Model(read_onnx(source, progress))


def require_onnx() -> None:
    """Raises VkschedError where the onnx package is missing."""
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise VkschedError(
            '[onnx] expected the onnx package, got none; try pip install "vksched[onnx]"'
        ) from error
