"""The name and the version of the package that is imitated."""

from ..version import package_name
from ..version import version as __version__

__all__ = ["__version__", "package_name"]
