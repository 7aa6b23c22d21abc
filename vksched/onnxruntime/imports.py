"""install: make vksched replace onnxruntime in programs that import it.

    import vksched.onnxruntime
    vksched.onnxruntime.install()
    import program_that_imports_onnxruntime

    python -m vksched.onnxruntime program.py           # equivalent command line

A meta path finder in front of Python's own finds "onnxruntime" and its submodules. It also serves
importlib.metadata, with which programs look up the version.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Iterable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from typing import Any

from ..common.errors import VkschedError
from .providers import SWITCH, offered
from .unsupported import refuse
from .version import version

NAME = "onnxruntime"
_GPU = f"{NAME}-gpu"
_OURS = __name__.rpartition(".")[0]


def install(vulkan: Sequence[str] | None = None) -> None:
    """Make later imports of onnxruntime in this process return vksched. May be called twice.

    Parameters
    ----------
    vulkan
        Providers, for instance "cuda" and "cpu", that are offered to programs and stand for the
        Vulkan devices; None for those in VKSCHED_PROVIDERS. The value is stored in that environment
        variable for child processes.

    Raises
    ------
    VkschedError
        onnxruntime is already imported, or a provider is unknown.
    """
    loaded = sys.modules.get(NAME)
    if loaded is not None and not isinstance(loaded.__loader__, _Finder):
        raise VkschedError(
            f"[session] expected to be installed before {NAME} is imported, got it from "
            f"{getattr(loaded, '__file__', None)}; try install() in the program's first lines, or "
            "python -m vksched.onnxruntime program.py"
        )
    before = os.environ.get(SWITCH)
    if vulkan is not None:
        os.environ[SWITCH] = ",".join(vulkan)
    try:
        offered()  # raise for an unknown name here, not later in the program
    except VkschedError:
        if before is None:
            os.environ.pop(SWITCH, None)
        else:
            os.environ[SWITCH] = before
        raise
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(DistributionFinder, Loader):
    """Find and load "onnxruntime" and its submodules, and provide its distribution."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, rest = name.partition(".")
        if top != NAME:
            return None
        source = _source(rest)
        if source is None:
            return None
        spec = ModuleSpec(
            name, self, origin=source.__file__, is_package=hasattr(source, "__path__")
        )
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        source = _source(module.__name__.partition(".")[2])
        assert source is not None  # find_spec found it
        names = [*getattr(source, "__all__", ()), "__doc__"]
        own = {name: getattr(source, name) for name in names if name in vars(source)}
        module.__dict__.update(
            (name, value) for name, value in own.items() if not isinstance(value, types.ModuleType)
        )
        for name, value in own.items():
            if isinstance(value, types.ModuleType):  # capi and its modules
                setattr(module, name, importlib.import_module(f"{module.__name__}.{name}"))
        if module.__name__ == NAME:
            module.__dict__["__getattr__"] = lambda name: refuse(NAME, name)

    def find_distributions(self, context: Any = None) -> Iterable[Distribution]:
        names = [NAME, *([_GPU] if "CUDAExecutionProvider" in offered() else [])]
        asked = getattr(context, "name", None)
        wanted = None if asked is None else asked.lower().replace("_", "-")
        return [_OrtDistribution(name) for name in names if wanted in (None, name)]


class _OrtDistribution(Distribution):
    """The distribution that importlib.metadata returns."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        if filename in ("METADATA", "PKG-INFO"):
            return f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {version}\n"
        return f"{NAME}\n" if filename == "top_level.txt" else None

    def locate_file(self, path: Any) -> Path:
        return Path(__file__).parent.joinpath(path)


def _source(rest: str) -> types.ModuleType | None:
    """Return the vksched module of a submodule of onnxruntime: "" or "capi._pybind_state"."""
    if rest and rest.partition(".")[0] != "capi":
        return None
    try:
        return importlib.import_module(f"{_OURS}.{rest}" if rest else _OURS)
    except ModuleNotFoundError:
        return None
