"""Name and version of the emulated package."""

from ..version import package_name
from ..version import version as __version__

__all__ = ["__version__", "package_name"]
