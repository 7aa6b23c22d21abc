"""LanguageModel: a GGUF file, whose weights become float32 when they are used."""

from __future__ import annotations

from ..base import ImportedModel
from .read.loader import GgufFile


class LanguageModel(ImportedModel):
    """A model of a GGUF file. name: what the file says, else the name of the file."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        named = file.metadata.get("general.name")
        self.name = str(named or (file.path.stem if file.path else "model"))

    def __repr__(self) -> str:
        return f"<LanguageModel {self.name}: {self.architecture}, {self.parameters:,} parameters>"

    @property
    def architecture(self) -> str:
        """What kind of network it is: "llama", "qwen2"; "" where the file does not say."""
        return str(self.file.metadata.get("general.architecture", ""))

    @property
    def parameters(self) -> int:
        """The number of elements of all tensors."""
        return sum(tensor.size for tensor in self.file.tensors.values())

    @property
    def parameter_bytes(self) -> int:
        """The bytes of these in the file."""
        return sum(tensor.nbytes for tensor in self.file.tensors.values())
