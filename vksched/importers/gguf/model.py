"""LanguageModel: a GGUF file, whose weights become float32 when they are used."""

from __future__ import annotations

from functools import cached_property

from ...errors import ShapeError
from ...ops.core.tensor import Tensor
from ...types import INT32
from ..base import ImportedModel
from .architectures import architecture
from .architectures.decoder import Attend
from .hyper import Hyper, architecture_of, read_hyper
from .read.loader import GgufFile
from .weights import Weights


class LanguageModel(ImportedModel):
    """A model of a GGUF file. name: what the file says, else the name of the file."""

    format = "gguf"

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        named = file.metadata.get("general.name")
        self.name = named if isinstance(named, str) else ""
        self.name = self.name or (file.path.stem if file.path else "model")
        self.weights = Weights(file)

    def __repr__(self) -> str:
        return f"<LanguageModel {self.name}: {self.parameters:,} parameters>"

    @property
    def architecture(self) -> str:
        """What kind of network it is: "llama", "qwen2"."""
        return architecture_of(self.file)

    @cached_property
    def hyper(self) -> Hyper:
        """Its sizes and numbers."""
        return read_hyper(self.file)

    @property
    def parameters(self) -> int:
        """The number of elements of all tensors."""
        return sum(tensor.size for tensor in self.file.tensors.values())

    @property
    def parameter_bytes(self) -> int:
        """The bytes of these in the file."""
        return sum(tensor.nbytes for tensor in self.file.tensors.values())

    def logits(
        self, ids: Tensor, positions: Tensor | None = None, attend: Attend | None = None
    ) -> Tensor:
        """Returns the logits of what follows each token of a prompt, as a tensor to compile.

        ids: (b, n) int32 -> (b, n, vocabulary). positions: of the tokens, int32 (n,) or (b, n),
        under the context's length; by default 0, 1, ... attend: computes the attention of a layer,
        by default that of each token to itself and those before it.

        Raises:
            ModelFormatError: the architecture is not known, or the file is not as it should be.
            ShapeError: ids are no batch of tokens, or more than the model's context.
        """
        found, hyper = architecture(self.architecture), self.hyper
        if ids.rank != 2 or ids.dtype != INT32 or ids.shape[1] > hyper.context:
            raise ShapeError(
                f"[model] expected ids (b, n) of int32, n at most {hyper.context}, got {ids.type}"
            )
        return found.logits(hyper, self.weights, ids, positions, attend)
