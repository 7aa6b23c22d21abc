"""The Vulkan loader and its layers, asked without an instance."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from dataclasses import dataclass

_NAMES = {
    "win32": ("vulkan-1.dll",),
    "darwin": ("libvulkan.1.dylib", "libvulkan.dylib", "libMoltenVK.dylib"),
}
_LAYER_VARIABLES = ("VK_INSTANCE_LAYERS", "VK_LOADER_LAYERS_ENABLE")


class _LayerProperties(ctypes.Structure):
    """VkLayerProperties."""

    _fields_ = (
        ("name", ctypes.c_char * 256),
        ("spec_version", ctypes.c_uint32),
        ("implementation_version", ctypes.c_uint32),
        ("description", ctypes.c_char * 256),
    )


@dataclass(frozen=True, slots=True)
class Loader:
    """The loader. version: "" if there is none. layers: the installed layers. enabled: layers that
    the environment enables.
    """

    version: str
    layers: tuple[str, ...]
    enabled: tuple[str, ...]


def find_loader() -> Loader:
    """Return the loader of this computer."""
    enabled = tuple(
        name
        for variable in _LAYER_VARIABLES
        for name in os.environ.get(variable, "").replace(",", os.pathsep).split(os.pathsep)
        if name
    )
    library = _load()
    if library is None:
        return Loader("", (), enabled)
    version = ctypes.c_uint32(1 << 22)
    if hasattr(library, "vkEnumerateInstanceVersion"):
        library.vkEnumerateInstanceVersion(ctypes.byref(version))
    number = version.value
    text = f"{number >> 22 & 0x7F}.{number >> 12 & 0x3FF}.{number & 0xFFF}"
    return Loader(text, _layers(library), enabled)


def _load() -> ctypes.CDLL | None:
    for name in _NAMES.get(sys.platform, ("libvulkan.so.1", "libvulkan.so")):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _layers(library: ctypes.CDLL) -> tuple[str, ...]:
    """Return the names of the installed layers; () if the loader does not list them."""
    count = ctypes.c_uint32(0)
    if library.vkEnumerateInstanceLayerProperties(ctypes.byref(count), None):
        return ()
    found = (_LayerProperties * count.value)()
    if library.vkEnumerateInstanceLayerProperties(ctypes.byref(count), found):
        return ()
    return tuple(layer.name.decode("utf-8", "replace") for layer in found[: count.value])
