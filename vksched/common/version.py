"""The version of vksched."""

__version__ = "0.1.0"
