"""What every importer gives a scheduler."""

from __future__ import annotations


class ImportedModel:
    """What a scheduler compiles besides tensors: a model of a file."""
