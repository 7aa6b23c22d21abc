"""Embedder: a language model that makes a vector of each text, several texts at a time.

texts -> tokens -> sorted by length -> batches of 8 of about one length -> vectors, in given order
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import groupby
from reprlib import repr as shortened
from typing import TYPE_CHECKING

import numpy as np

from ..common.dtypes import INT32, NDArray, Progress
from ..common.errors import DTypeError, ShapeError
from ..common.fork_guard import OfProcess
from ..ir.tensor import input
from .generator import CompilingScheduler

if TYPE_CHECKING:
    from ..engine.executable import CompiledGraph
    from ..engine.request import Placements
    from ..importers.gguf.model import LanguageModel

CONTEXT = 2048
SHORTEST = 16
"""Batches are as long as a power of two from here on: each length is a graph."""
TEXTS = 8
"""Of a batch; a text that is left alone is a batch of its own."""


class Embedder(OfProcess):
    """A language model on the devices of a scheduler, that makes vectors of texts.

    model: of a GGUF file, by `vs.load`; an encoder, or any other. pooling: "mean" of the tokens'
    vectors, that of the first one ("cls") or of the "last"; by default as the file says. ctx: how
    many tokens a text may have; at most, and without it, 2,048 or the model's context where that is
    less. placement, progress: as for `Scheduler.compile`.

    Vectors have length 1: their product is the cosine of the angle between them. Any thread may ask
    for some.

    Raises:
        ModelFormatError: the file has no tokenizer, or one that is not known.
        ShapeError: ctx is not a number of tokens that the model can read, or the file does not name
            a pooling.
    """

    _INSTEAD = "to send the path of the model, and to make it in each process"

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
        """Free its graphs, which otherwise stay until the scheduler is closed. Used again, it
        makes them anew.
        """
        with self._compiling:
            for run in self._runs.values():
                run.close()
            self._runs.clear()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, with those that the model wants to see around it."""
        return self.tokenizer.encode(text, bos=True)

    def embed(self, texts: Sequence[str], *, truncate: bool = False) -> NDArray:
        """Return the vectors of texts, (texts, width) of float32.

        truncate: of a text that is too long, the first tokens and the last one are taken.

        Raises:
            ShapeError: a text has no tokens, or too many. DTypeError: these are no texts.
        """
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise DTypeError(f"[embed] expected a list of texts, got {shortened(texts)}")
        tokens = [self._fitting(self.encode(text), truncate) for text in texts]
        out = np.empty((len(tokens), self.width), np.float32)
        by_length = sorted(range(len(tokens)), key=lambda at: len(tokens[at]))
        for length, alike in groupby(by_length, lambda at: self._bucket(len(tokens[at]))):
            rest = list(alike)
            while rest:
                batch, rest = rest[:TEXTS], rest[TEXTS:]
                out[batch] = self._vectors([tokens[at] for at in batch], length)
        return out

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
        """Return how long a batch is that texts of so many tokens belong to."""
        return min(self.ctx, max(SHORTEST, 1 << (tokens - 1).bit_length()))

    def _vectors(self, batch: list[list[int]], length: int) -> NDArray:
        rows = 1 if len(batch) == 1 else TEXTS
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
