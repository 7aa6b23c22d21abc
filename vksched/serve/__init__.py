"""An HTTP server for language models, with OpenAI's API. It needs the extra `serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .packages import require_packages

if TYPE_CHECKING:
    from .application import app as app
    from .build_engine import explain_split as explain_split
    from .limits import ServerLimits as ServerLimits
    from .model_service import ModelService as ModelService

_MODULES = {
    "app": "application",
    "explain_split": "build_engine",
    "ModelService": "model_service",
    "ServerLimits": "limits",
}
__all__ = sorted(_MODULES)

if not TYPE_CHECKING:

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        require_packages()
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
