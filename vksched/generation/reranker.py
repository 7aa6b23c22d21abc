"""Reranker: computes scores of documents for a query, in batches.

query, document -> one text -> tokens -> model -> score
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from reprlib import repr as shortened
from typing import TYPE_CHECKING

import numpy as np

from ..common.dtypes import NDArray, Progress
from ..common.errors import DTypeError, ModelFormatError, ShapeError, VkschedError
from ..common.fork_guard import ProcessBound
from ..importers.gguf.pooling import check_ranks
from .compiled_steps import CompilingScheduler
from .conversation.control_shield import ControlShield
from .text_batches import TextBatches, text_context

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..importers.gguf.model import LanguageModel

TEMPLATE = "tokenizer.chat_template.rerank"
PLACES = re.compile(r"\{(query|document)\}")


class Reranker(ProcessBound):
    """A language model on the devices of a scheduler that scores documents for a query.

    Higher scores are better. They are logits, as the file's classification head computes them, or,
    for a decoder with several labels such as Qwen 3 Reranker, the probability of its first label.
    All tokens have type 0. Methods are thread-safe.

    Parameters
    ----------
    scheduler
        The scheduler whose devices are used.
    model
        A model loaded from a GGUF file with pooling "rank" by `vs.load`.
    ctx
        The maximum number of tokens of a query and a document. The default is the model's context
        length, at most 2,048.
    placement, progress
        See `Scheduler.compile`.

    Raises
    ------
    ModelFormatError
        The file is not that of a reranker; or it has no tokenizer, or an unknown one.
    ShapeError
        `ctx` is not a valid number of tokens for the model.
    """

    _INSTEAD = "to send the path of the model, and to create it in each process"

    def __init__(
        self,
        scheduler: CompilingScheduler,
        model: LanguageModel,
        ctx: int | None = None,
        *,
        placement: Placements | None = None,
        progress: Progress | None = None,
    ) -> None:
        check_ranks(model.hyper.pooling)
        self.model = model
        self.tokenizer = model.tokenizer
        self.ctx = text_context(model, ctx, "rerank")
        self._template = _template_of(model)
        self._shield = ControlShield(self.tokenizer.control_names)
        self._batches = TextBatches(scheduler, model.scores, self.ctx, placement, progress)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the scores in the file; () for one score without a name."""
        return self.model.hyper.labels

    def close(self) -> None:
        """Free the compiled graphs, which otherwise live until the scheduler is closed. The next
        use compiles them again.
        """
        self._batches.close()

    def encode(self, query: str, document: str) -> list[int]:
        """Return the tokens of a query and a document, as the model expects them: by the template
        of the file, or with separators. Names of control tokens in them are text.
        """
        if not self._template:
            return self.tokenizer.encode_pair(query, document)
        marker = self._shield.marker([query, document], self._template)
        texts = {"query": marker.add(query), "document": marker.add(document)}
        text = PLACES.sub(lambda found: texts[found[1]], self._template)
        return self.tokenizer.encode(text, special=True, mark=marker.mark)

    def score(self, query: str, documents: Collection[str], *, truncate: bool = False) -> NDArray:
        """Return the score of each document, (documents,) float32.

        Parameters
        ----------
        query
            The query.
        documents
            The documents.
        truncate
            Truncate documents that are too long to the characters that fit.

        Raises
        ------
        ShapeError
            A query and a document have too many tokens.
        DTypeError
            A value is not a text.
        VkschedError
            A score is not finite.
        """
        is_list = isinstance(documents, Collection) and not isinstance(documents, str)
        if not is_list or not all(isinstance(text, str) for text in (query, *documents)):
            raise DTypeError(
                "[rerank] expected a query and a list of documents, got "
                f"{shortened(query)} and {shortened(documents)}"
            )
        return self.score_tokens([self._fitting(query, each, truncate) for each in documents])

    def score_tokens(self, texts: Sequence[Sequence[int]]) -> NDArray:
        """Return the score of each tokenized pair, (pairs,) float32. Equal pairs have equal scores.

        Parameters
        ----------
        texts
            The tokens of each query and document, as `encode` returns them.

        Raises
        ------
        ShapeError
            A pair has no tokens, or too many.
        VkschedError
            A score is not finite.
        """
        for tokens in texts:
            self._check(tokens)
        distinct, places = distinct_texts(texts)
        scores = self._batches.compute(distinct, max(1, len(self.labels)))[:, 0]
        if not np.isfinite(scores).all():
            raise VkschedError(
                f"[rerank] expected finite scores, got {scores[~np.isfinite(scores)][0]}; try "
                "--precision float32, or another file of the model"
            )
        return np.asarray(scores[places])

    def batches(self, texts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """Return the indices of pairs that `score_tokens` computes at the same time."""
        return self._batches.batches(texts)

    def _fitting(self, query: str, document: str, truncate: bool) -> list[int]:
        """Return the tokens of a query and a document, which is truncated on request."""
        tokens = self.encode(query, document)
        if not truncate or len(tokens) <= self.ctx:
            return tokens
        tokens = self.encode(query, "")
        if len(tokens) > self.ctx:
            raise ShapeError(
                f"[rerank] expected a query of at most {self.ctx} tokens without a document, got "
                f"{len(tokens)}; try a larger ctx or a shorter query"
            )
        low, high = 0, len(document)  # `low` characters fit, if any
        while low < high - 1:
            middle = (low + high) // 2
            cut = self.encode(query, document[:middle])
            if len(cut) <= self.ctx:
                low, tokens = middle, cut
            else:
                high = middle
        return tokens

    def _check(self, tokens: Sequence[int]) -> None:
        if not 0 < len(tokens) <= self.ctx:
            raise ShapeError(
                f"[rerank] expected a query and a document of 1 to {self.ctx} tokens together, got "
                f"{len(tokens)}; try a larger ctx, parts of the document, or truncate=True"
            )


def distinct_texts(texts: Sequence[Sequence[int]]) -> tuple[list[Sequence[int]], list[int]]:
    """Return the tokenized texts without repetitions, and the place of each text among them.

    The bits of a score depend on the size of the batch, so equal texts are computed once.
    """
    found: dict[tuple[int, ...], int] = {}
    places = [found.setdefault(tuple(text), len(found)) for text in texts]
    return list(found), places


def _template_of(model: LanguageModel) -> str:
    """Return the text that a query and a document are inserted into; "" for separators."""
    found = model.file.metadata.get(TEMPLATE, "")
    if not isinstance(found, str) or found and set(PLACES.findall(found)) != {"query", "document"}:
        raise ModelFormatError(
            f"[gguf] key '{TEMPLATE}': expected a text with {{query}} and {{document}}, got "
            f"{shortened(found)}"
        )
    return found
