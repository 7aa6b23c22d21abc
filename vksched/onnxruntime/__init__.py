"""onnxruntime's interface: existing programs change one import, or nothing.

    import vksched.onnxruntime as ort                  # was: import onnxruntime as ort
    session = ort.InferenceSession("model.onnx", providers=["VulkanExecutionProvider"])
    scores, = session.run(["scores"], {"x": batch})

    python -m vksched.onnxruntime program.py           # for an unchanged program

Settings of onnxruntime's own implementation (threads, memory arenas, graph optimizations) are
accepted and ignored. Sessions need the onnx package. See docs/guides/onnxruntime-drop-in.md.
"""

from __future__ import annotations

from typing import Any

from . import capi
from .binding import IOBinding
from .devices import (
    OrtAllocatorType,
    OrtDevice,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtEpDevice,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDevice,
    OrtHardwareDeviceType,
    OrtMemoryInfo,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    get_ep_devices,
)
from .environment import (
    copy_tensors,
    create_and_register_allocator,
    create_and_register_allocator_v2,
    disable_telemetry_events,
    enable_telemetry_events,
    has_collective_ops,
    preload_dlls,
    print_debug_info,
    register_execution_provider_library,
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
    set_global_thread_pool_sizes,
    set_seed,
    unregister_execution_provider_library,
)
from .imports import install
from .inference import InferenceSession, ModelMetadata, NodeArg
from .options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    RunOptions,
    SessionOptions,
)
from .ort_value import OrtValue
from .providers import get_all_providers, get_available_providers, get_device
from .unsupported import refuse
from .version import (
    cuda_version,
    get_build_info,
    get_version_string,
    package_name,
    version,
)

__version__ = version
"""The version of onnxruntime that this interface implements; vksched's own is
vksched.__version__.
"""

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtEpDevice",
    "OrtExecutionProviderDevicePolicy",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "__version__",
    "capi",
    "copy_tensors",
    "create_and_register_allocator",
    "create_and_register_allocator_v2",
    "cuda_version",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "install",
    "package_name",
    "preload_dlls",
    "print_debug_info",
    "register_execution_provider_library",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_global_thread_pool_sizes",
    "set_seed",
    "unregister_execution_provider_library",
    "version",
]


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
