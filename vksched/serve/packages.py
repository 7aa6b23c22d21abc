"""The packages of the extra `serve`: one clear error if any is missing."""

from __future__ import annotations

from importlib.util import find_spec

from ..common.errors import VkschedError

PACKAGES = (
    *("starlette", "uvicorn", "sse_starlette", "pydantic", "prometheus_client", "llguidance"),
    *("gguf", "jinja2", "tokenizers"),
)
"""The modules that the server imports."""


def require_packages() -> None:
    """Check that all packages are installed.

    Raises
    ------
    VkschedError
        A package is missing.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise VkschedError(
            f"[serve] expected the packages of the extra 'serve', got none named "
            f'{", ".join(missing)}; try pip install "vksched[serve]"'
        )
