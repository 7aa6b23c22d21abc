"""ONNX models as graphs of vksched ops; needs the `onnx` extra."""

from ..errors import VkschedError

try:
    import onnx as _onnx  # noqa: F401
except ImportError as error:
    raise VkschedError(
        '[onnx] expected the onnx package, got none; try pip install "vksched[onnx]"'
    ) from error
