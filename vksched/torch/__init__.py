"""PyTorch models on vksched: `torch.compile(model, backend="vksched")`.

PyTorch is imported at the first use of a name, and only by those that need it.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of this

if TYPE_CHECKING:
    from .backend import vksched as vksched
    from .explanation import explain as explain
    from .export import save as save
    from .model_file import ExportedModel as ExportedModel
    from .model_file import load as load
    from .runtime import BackendOptions as BackendOptions
    from .runtime import release as release

_PUBLIC = {
    "BackendOptions": "runtime",
    "explain": "explanation",
    "ExportedModel": "model_file",
    "load": "model_file",
    "release": "runtime",
    "save": "export",
    "vksched": "backend",
}
"""The module of each public name."""

__all__ = ["BackendOptions", "ExportedModel", "explain", "load", "release", "save", "vksched"]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value
