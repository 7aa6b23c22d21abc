"""onnxruntime's interface, so that existing code changes one import.

    import vksched.session as ort                  # was: import onnxruntime as ort
    session = ort.InferenceSession("model.onnx", providers=["VulkanExecutionProvider"])
    scores, = session.run(["scores"], {"x": batch})

What is set here for onnxruntime's own machinery (threads, memory arenas, graph optimizations) is
accepted and has no effect. The onnx package is needed once a session is made.
"""

from __future__ import annotations

from ..version import __version__
from .binding import IOBinding
from .inference import InferenceSession, ModelMetadata, NodeArg
from .options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from .providers import get_all_providers, get_available_providers, get_device
from .values import OrtValue

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "get_all_providers",
    "get_available_providers",
    "get_device",
]
