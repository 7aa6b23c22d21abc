"""What programs ask before they trust an installation."""

from ..version import cuda_version, package_name, version

__all__ = ["check_distro_info", "get_package_name_and_version_info"]


def check_distro_info() -> None:
    """Return at once: where vksched imports, it runs."""


def get_package_name_and_version_info() -> tuple[str, str, str]:
    """Return the name of the package, its version, and CUDA's, which is empty."""
    return package_name, version, cuda_version
