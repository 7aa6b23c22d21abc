"""Checks of the installation that programs call."""

from ..version import cuda_version, package_name, version

__all__ = ["check_distro_info", "get_package_name_and_version_info"]


def check_distro_info() -> None:
    """Do nothing: vksched runs on every system that it can be imported on."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Return the package name, its version, and an empty CUDA version."""
    return package_name, version, cuda_version
