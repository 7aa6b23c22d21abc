"""Embedder: computes embedding vectors of texts, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from reprlib import repr as shortened
from typing import TYPE_CHECKING

from ..common.dtypes import NDArray, Progress
from ..common.errors import DTypeError, ShapeError
from ..common.fork_guard import ProcessBound
from ..ir.tensor import Tensor
from .compiled_steps import CompilingScheduler
from .text_batches import TextBatches, text_context

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..importers.gguf.model import LanguageModel


class Embedder(ProcessBound):
    """A language model on the devices of a scheduler that computes embedding vectors.

    Vectors are normalized to length 1, so their dot product is the cosine similarity. Methods are
    thread-safe.

    Parameters
    ----------
    scheduler
        The scheduler whose devices are used.
    model
        A model loaded from a GGUF file by `vs.load`: an encoder or any other model.
    pooling
        "mean", "cls" (the first token) or "last" (the last token); the file's default if None.
    ctx
        The maximum number of tokens of a text. The default is the model's context length, at most
        2,048.
    placement, progress
        See `Scheduler.compile`.

    Raises
    ------
    ModelFormatError
        The file has no tokenizer, or an unknown one.
    ShapeError
        `ctx` is not a valid number of tokens for the model, or neither the caller nor the file
        names a pooling.
    """

    _INSTEAD = "to send the path of the model, and to create it in each process"

    def __init__(
        self,
        scheduler: CompilingScheduler,
        model: LanguageModel,
        pooling: str | None = None,
        ctx: int | None = None,
        *,
        placement: Placements | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.model = model
        self.pooling = model.pooling(pooling)
        self.tokenizer = model.tokenizer
        self.ctx = text_context(model, ctx, "embed")
        self._batches = TextBatches(scheduler, self._graph, self.ctx, placement, progress)

    @property
    def width(self) -> int:
        """The number of elements of a vector."""
        return self.model.hyper.width

    def close(self) -> None:
        """Free the compiled graphs, which otherwise live until the scheduler is closed. The next
        use compiles them again.
        """
        self._batches.close()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with the special tokens that the model expects around it."""
        return self.tokenizer.encode(text, bos=True)

    def embed(self, texts: Sequence[str], *, truncate: bool = False) -> NDArray:
        """Return the embedding vectors of texts, (texts, width) float32.

        Parameters
        ----------
        texts
            The texts.
        truncate
            Truncate texts that are too long to their first tokens and the last token.

        Raises
        ------
        ShapeError
            A text has no tokens, or too many.
        DTypeError
            A value is not a text.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise DTypeError(f"[embed] expected a list of texts, got {shortened(texts)}")
        return self.embed_tokens([self._fitting(self.encode(text), truncate) for text in texts])

    def embed_tokens(self, texts: Sequence[Sequence[int]]) -> NDArray:
        """Return the embedding vectors of tokenized texts, (texts, width) float32.

        Parameters
        ----------
        texts
            The tokens of each text, as `encode` returns them.

        Raises
        ------
        ShapeError
            A text has no tokens, or too many.
        """
        tokens = [self._fitting(list(text), False) for text in texts]
        return self._batches.compute(tokens, self.width)

    def batches(self, texts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Return the indices of tokenized texts that `embed_tokens` computes at the same time."""
        return self._batches.batches(texts)

    def _graph(self, ids: Tensor, counts: Tensor) -> Tensor:
        return self.model.embeddings(ids, counts, self.pooling)

    def _fitting(self, tokens: list[int], truncate: bool) -> list[int]:
        if truncate and len(tokens) > self.ctx:
            return tokens[: self.ctx - 1] + tokens[-1:]
        if not 0 < len(tokens) <= self.ctx:
            raise ShapeError(
                f"[embed] expected a text of 1 to {self.ctx} tokens, got {len(tokens)}; try a "
                "larger ctx, parts of the text, or truncate=True"
            )
        return tokens
