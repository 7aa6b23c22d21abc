"""Base class of imported models."""

from __future__ import annotations

from typing import ClassVar


class ImportedModel:
    """A model that a scheduler can compile; `format` is that of its file."""

    format: ClassVar[str]
