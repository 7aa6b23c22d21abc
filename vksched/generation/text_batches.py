"""TextBatches: runs a graph over tokenized texts, in batches of texts with similar lengths.

tokens -> sorted by length -> batches of up to 8 -> a row of numbers for each, in the order of texts
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from ..common.dtypes import INT32, NDArray, Progress
from ..common.errors import ShapeError
from ..ir.tensor import Tensor, input
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


def text_context(model: LanguageModel, ctx: int | None, stage: str) -> int:
    """Return the maximum number of tokens of a text; the default is at most 2,048.

    Raises
    ------
    ShapeError
        `ctx` is not a valid number of tokens for the model.
    """
    most = model.hyper.context
    length = min(CONTEXT, most) if ctx is None else ctx
    if not 0 < length <= most:
        raise ShapeError(f"[{stage}] expected a ctx of 1 to {most} tokens, got {length}")
    return length


class TextBatches:
    """The compiled graphs of one model. Its methods are thread-safe.

    Parameters
    ----------
    scheduler, placement, progress
        See `Scheduler.compile`.
    graph
        Returns the rows of padded texts, (b, width), from `ids`, (b, n) int32, and `counts`, (b,).
    ctx
        The maximum number of tokens of a text.
    """

    def __init__(
        self,
        scheduler: CompilingScheduler,
        graph: Callable[[Tensor, Tensor], Tensor],
        ctx: int,
        placement: Placements | None,
        progress: Progress | None,
    ) -> None:
        self.ctx = ctx
        self._scheduler = scheduler
        self._graph = graph
        self._how = placement, progress
        self._runs: dict[tuple[int, int], CompiledGraph] = {}
        self._compiling = threading.Lock()

    def close(self) -> None:
        """Free the compiled graphs; the next use compiles them again."""
        with self._compiling:
            for run in self._runs.values():
                run.close()
            self._runs.clear()

    def compute(self, texts: Sequence[Sequence[int]], width: int) -> NDArray:
        """Return the row of each tokenized text, (texts, width) float32."""
        out = np.empty((len(texts), width), np.float32)
        for batch in self.batches(texts):
            length = self._bucket(max(len(texts[at]) for at in batch))
            out[batch] = self._rows([texts[at] for at in batch], length)
        return out

    def batches(self, texts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Yield the indices of texts that are computed at the same time."""
        by_length = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        for _, alike in groupby(by_length, lambda at: self._bucket(len(texts[at]))):
            rest = list(alike)
            while rest:
                batch, rest = rest[:BATCH_SIZE], rest[BATCH_SIZE:]
                yield batch

    def _bucket(self, tokens: int) -> int:
        """Return the padded length of the batch for texts of `tokens` tokens."""
        return min(self.ctx, max(MIN_LENGTH, 1 << (tokens - 1).bit_length()))

    def _rows(self, batch: Sequence[Sequence[int]], length: int) -> NDArray:
        rows = 1 if len(batch) == 1 else BATCH_SIZE
        ids, counts = np.zeros((rows, length), np.int32), np.ones(rows, np.int32)
        for at, tokens in enumerate(batch):
            ids[at, : len(tokens)], counts[at] = tokens, len(tokens)
        return np.asarray(self._run(rows, length)(ids=ids, counts=counts))[: len(batch)]

    def _run(self, rows: int, length: int) -> CompiledGraph:
        with self._compiling:
            if (rows, length) not in self._runs:
                ids, counts = input("ids", (rows, length), INT32), input("counts", (rows,), INT32)
                graph = self._graph(ids, counts)
                self._runs[rows, length] = self._scheduler.compile(graph, *self._how)
            return self._runs[rows, length]
