"""Op loaders, which declare the ops of an importer at the first use of their names.

`vksched/__init__.py` registers the loaders. A deserialized plan can then name an op of an ONNX
file, although no module below the importers imports them.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable

    Loader = Callable[[str], object]

_LOADERS: dict[str, Loader] = {}


def register_op_loader(prefix: str, loader: Loader) -> None:
    """Register the function that declares ops whose names start with a prefix."""
    _LOADERS[prefix] = loader


def find_op_loader(name: str) -> Loader | None:
    """Return the loader for an op's name, or None for an op of vksched."""
    return next((load for prefix, load in _LOADERS.items() if name.startswith(prefix)), None)
