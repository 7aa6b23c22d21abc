"""The emulated version of onnxruntime, and build information."""

from __future__ import annotations

from ..common.version import __version__ as _own

package_name = "onnxruntime"
version = "1.32.0"
"""The version of the interface."""
cuda_version = ""


def get_version_string() -> str:
    """Return the version of onnxruntime whose interface this is."""
    return version


def get_build_info() -> str:
    """Return build information; programs print it."""
    return f"ORT Build Info: vksched={_own}, interface={version}, build type=Release"
