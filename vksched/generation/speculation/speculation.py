"""Speculation: how an engine guesses the next tokens of its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...common.errors import ModelFormatError
from ...importers.gguf.tokenizer.vocabulary import UNUSED
from ..compiled_steps import CompiledSteps
from ..slot_steps import SlotSteps
from .draft_model import DraftModel
from .drafter import Drafter
from .ngram_lookup import NgramLookup

if TYPE_CHECKING:
    from ...importers.gguf.model import LanguageModel
    from ..compiled_steps import CompilingScheduler


@dataclass(frozen=True)
class Speculation:
    """How an engine guesses the next tokens of its requests. One step of the model verifies several
    guesses, so answers are the same with and without them, to the bit. A request stops guessing if
    it does not gain time.

    Without verify steps a warning says so, and nothing is guessed; see `SlotSteps.verify_sizes`.

    Parameters
    ----------
    ngram
        Guess that the text goes on as it did after the same last tokens before.
    draft
        A smaller model with the same tokens, loaded by `vs.load`, that guesses where `ngram` has
        no guesses.
    scheduler
        The scheduler whose devices run the draft model. It must stay open. None selects that of the
        large model.
    """

    ngram: bool = True
    draft: LanguageModel | None = None
    scheduler: CompilingScheduler | None = None

    def drafters(
        self, model: LanguageModel, scheduler: CompilingScheduler, length: int, slots: int
    ) -> list[Drafter]:
        """Return the methods that guess tokens for an engine.

        Parameters
        ----------
        model, scheduler, length, slots
            Those of the engine: the large model, its scheduler, and the size of its KV cache.

        Raises
        ------
        ModelFormatError
            The draft model has other tokens than the model, or recurrent layers.
        """
        found: list[Drafter] = [NgramLookup(slots)] if self.ngram else []
        if self.draft is not None:
            if self.draft.is_recurrent:
                raise ModelFormatError(
                    "[speculation] expected a draft model whose layers all have attention, got "
                    f"{self.draft.architecture!r}, whose recurrent states cannot forget wrong "
                    "guesses; try another draft model, or guesses by ngram"
                )
            check_vocabulary(model, self.draft)
            length = self._draft_length(length)
            steps = SlotSteps(self.scheduler or scheduler, self.draft, length, slots)
            found.append(DraftModel(steps, self.draft.tokenizer.ends))
        return found

    def draft_steps(self, scheduler: CompilingScheduler, length: int) -> CompiledSteps | None:
        """Return the steps of the draft model for one slot, of which nothing is compiled; their
        placement is decided. None without a draft model.

        Parameters
        ----------
        scheduler, length
            Those of the engine.
        """
        if self.draft is None:
            return None
        about = self.scheduler or scheduler, self.draft, self._draft_length(length)
        steps = CompiledSteps(*about, prefetch=False)
        steps.decide()
        return steps

    def _draft_length(self, length: int) -> int:
        return length if self.draft is None else min(length, self.draft.hyper.context)


def check_vocabulary(model: LanguageModel, draft: LanguageModel) -> None:
    """Raise an error unless a draft model has the tokens of a model. The vocabularies of one family
    may end with different numbers of unused tokens, which pad them to a size that suits GPUs.

    Raises
    ------
    ModelFormatError
        A token differs, or one model has more tokens that are used.
    """
    own, other = (_used_tokens(each) for each in (model, draft))
    if len(own) != len(other):
        raise ModelFormatError(
            f"[speculation] expected a draft model with {len(own)} tokens, got {len(other)}; try a "
            "smaller model of the same family"
        )
    for token, (text, guessed) in enumerate(zip(own, other, strict=True)):
        if text != guessed:
            raise ModelFormatError(
                f"[speculation] expected token {token} of the draft model to be {text!r}, got "
                f"{guessed!r}; try a smaller model of the same family"
            )


def _used_tokens(model: LanguageModel) -> list[str]:
    """Return the tokens of a model without the unused ones at the end."""
    vocabulary = model.tokenizer.vocabulary
    count = len(vocabulary.tokens)
    while count and vocabulary.types[count - 1] == UNUSED:
        count -= 1
    return vocabulary.tokens[:count]
