"""Embedder: computes embedding vectors of texts, in batches.

texts -> tokens -> sorted by length -> batches of up to 8 -> vectors, in the order of the texts
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import groupby
from reprlib import repr as shortened
from typing import TYPE_CHECKING

import numpy as np

from ..common.dtypes import INT32, NDArray, Progress
from ..common.errors import DTypeError, ShapeError
from ..common.fork_guard import ProcessBound
from ..ir.tensor import input
from .compiled_steps import CompilingScheduler

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..engine.executable import CompiledGraph
    from ..importers.gguf.model import LanguageModel

CONTEXT = 2048
MIN_LENGTH = 16
"""The minimum padded length. Longer batches are padded to powers of two; each length is one graph.
"""
BATCH_SIZE = 8
"""The number of texts of a batch; a single remaining text is a batch of one."""


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
        self.ctx = min(CONTEXT, model.hyper.context) if ctx is None else ctx
        if not 0 < self.ctx <= model.hyper.context:
            raise ShapeError(
                f"[embed] expected a ctx of 1 to {model.hyper.context} tokens, got {self.ctx}"
            )
        self._scheduler = scheduler
        self._how = placement, progress
        self._runs: dict[tuple[int, int], CompiledGraph] = {}
        self._compiling = threading.Lock()

    @property
    def width(self) -> int:
        """The number of elements of a vector."""
        return self.model.hyper.width

    def close(self) -> None:
        """Free the compiled graphs, which otherwise live until the scheduler is closed. The next
        use compiles them again.
        """
        with self._compiling:
            for run in self._runs.values():
                run.close()
            self._runs.clear()

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
        out = np.empty((len(tokens), self.width), np.float32)
        for batch in self.batches(tokens):
            length = self._bucket(max(len(tokens[at]) for at in batch))
            out[batch] = self._vectors([tokens[at] for at in batch], length)
        return out

    def batches(self, texts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Yield the indices of tokenized texts that `embed_tokens` computes at the same time."""
        by_length = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        for _, alike in groupby(by_length, lambda at: self._bucket(len(texts[at]))):
            rest = list(alike)
            while rest:
                batch, rest = rest[:BATCH_SIZE], rest[BATCH_SIZE:]
                yield batch

    def _fitting(self, tokens: list[int], truncate: bool) -> list[int]:
        if truncate and len(tokens) > self.ctx:
            return tokens[: self.ctx - 1] + tokens[-1:]
        if not 0 < len(tokens) <= self.ctx:
            raise ShapeError(
                f"[embed] expected a text of 1 to {self.ctx} tokens, got {len(tokens)}; try a "
                "larger ctx, parts of the text, or truncate=True"
            )
        return tokens

    def _bucket(self, tokens: int) -> int:
        """Return the padded length of the batch for texts of `tokens` tokens."""
        return min(self.ctx, max(MIN_LENGTH, 1 << (tokens - 1).bit_length()))

    def _vectors(self, batch: list[list[int]], length: int) -> NDArray:
        rows = 1 if len(batch) == 1 else BATCH_SIZE
        ids, counts = np.zeros((rows, length), np.int32), np.ones(rows, np.int32)
        for at, tokens in enumerate(batch):
            ids[at, : len(tokens)], counts[at] = tokens, len(tokens)
        return np.asarray(self._run(rows, length)(ids=ids, counts=counts))[: len(batch)]

    def _run(self, rows: int, length: int) -> CompiledGraph:
        with self._compiling:
            if (rows, length) not in self._runs:
                ids, counts = input("ids", (rows, length), INT32), input("counts", (rows,), INT32)
                vectors = self.model.embeddings(ids, counts, self.pooling)
                self._runs[rows, length] = self._scheduler.compile(vectors, *self._how)
            return self._runs[rows, length]
