"""What every importer gives a scheduler."""

from __future__ import annotations

from typing import ClassVar


class ImportedModel:
    """What a scheduler compiles besides tensors: a model of a file. format: that of the file."""

    format: ClassVar[str]
