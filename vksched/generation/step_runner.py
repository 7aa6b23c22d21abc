"""StepRunner: the steps of a language model over a KV cache with several slots.

InferenceEngine: which tokens of which requests run next
    | prefill(slot, chunk), decode(slots, one token each), verify(slot, tokens)
    v
StepRunner: compiled graphs of 1, 2, 4 and 8 rows over one cache
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from .pictures.prompt_pictures import PromptPictures

MAX_LOGPROBS = 32
"""The maximum size of chunks with the logits of all tokens: the log-probabilities of a large
vocabulary take milliseconds per token.
"""
Logits = np.ndarray[Any, np.dtype[np.float32]]


class StepRunner(Protocol):
    """The steps of one model over a KV cache with several slots: the interface between the engine,
    which decides what runs, and the graphs, which compute it. One thread calls it.

    A slot holds the keys and values of one sequence of at most `length` tokens. Logits of a row do
    not depend on the other rows of its step, to the bit.
    """

    @property
    def slots(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def cache_version(self) -> int:
        """A number that changes when tokens in the slots are lost: all slots are empty then. Also
        where no `StateLost` says it: `prepare` compiles again, or an interrupt ended a step.
        """

    @property
    def is_recurrent(self) -> bool:
        """True if layers have recurrent states: a slot goes on from its last token only, from token
        0, or from the tokens of states that `write_states` restored.
        """

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """The sizes of prompt chunks in tokens, ascending."""

    @property
    def row_counts(self) -> tuple[int, ...]:
        """The numbers of rows of decode steps that have a graph of their own, ascending."""

    def prefill(
        self,
        slot: int,
        ids: Sequence[int],
        start: int,
        *,
        all_logits: bool = False,
        pictures: PromptPictures | None = None,
    ) -> Logits:
        """Append a chunk of a prompt to a slot that holds `start` tokens.

        pictures: those of the prompt; a chunk is text, or tokens of one picture.

        Returns
        -------
        Logits
            The logits after the last token, (vocabulary,), or after each token,
            (len(ids), vocabulary).

        Raises
        ------
        StateLost
            A device with a part of the cache was lost: all slots are empty now.
        """

    def decode(
        self,
        slots: Sequence[int],
        ids: Sequence[int],
        starts: Sequence[int],
        *,
        shifts: Sequence[int] | None = None,
    ) -> Logits:
        """Append one token to each of some slots; return the logits, (len(slots), vocabulary).

        shifts: the differences of the tokens' positions and indices, if pictures are before them.

        Raises
        ------
        StateLost
            As in `prefill`.
        """

    @property
    def decodes_ahead(self) -> bool:
        """True if `decode_ahead` exists: `prepare` compiles its steps if the device has work then
        while the host chooses a token. After `StateLost`, `prepare_ahead` does.
        """

    def prepare_ahead(self) -> bool:
        """Compile a part of the steps of `decode_ahead` again, if `StateLost` freed them; return
        False if there is nothing to compile. An engine calls it while it has no requests.

        Without memory for them, they do not exist.

        Raises
        ------
        StateLost
            As in `prefill`.
        """

    def decode_ahead(
        self, slot: int, token: int, start: int, count: int, take: Callable[[int], bool]
    ) -> None:
        """Append a token to a slot that holds `start` tokens, and then up to `count` - 1 of those
        that follow, each the most likely one after the one before.

        It ends early if a device was lost; the next step then says it.

        Parameters
        ----------
        take
            Gets the token after each appended one, as `decode` with temperature 0 has it. If it
            returns False, no further token is appended. It must not call the runner.

        Raises
        ------
        StateLost
            As in `decode`. The tokens that `take` got are right.
        """

    @property
    def verify_sizes(self) -> tuple[int, ...]:
        """The numbers of tokens of verify steps, ascending, from 2; none if their logits differ
        from those of decode steps.
        """

    def verify(self, slot: int, ids: Sequence[int], start: int, *, shift: int = 0) -> Logits:
        """Append as many tokens as a verify step has to a slot that holds `start` tokens; return
        the logits after each, (len(ids), vocabulary): those of decode steps, to the bit. shift: as
        in `decode`.

        Raises
        ------
        StateLost
            As in `prefill`.
        """

    def copy_rows(self, source: int, target: int, tokens: int, present: int = 0) -> None:
        """Copy the keys and values of the first tokens of a slot to another one, on the devices.
        present: the number of first tokens that the other slot has; they need no copy.
        """

    def read_rows(self, slot: int, tokens: int) -> Sequence[np.ndarray[Any, Any]]:
        """Return the keys and values of the first tokens of a slot, in host memory."""

    def write_rows(self, slot: int, rows: Sequence[np.ndarray[Any, Any]], present: int = 0) -> None:
        """Write keys and values that `read_rows` returned to a slot. present: as in `copy_rows`."""

    def read_states(self, slot: int) -> Sequence[np.ndarray[Any, Any]]:
        """Return the recurrent states after the tokens of a slot, in host memory."""

    def write_states(self, slot: int, states: Sequence[np.ndarray[Any, Any]], tokens: int) -> None:
        """Restore states that `read_states` returned after `tokens` tokens."""

    def prepare(self) -> None:
        """Compile all steps but verify steps."""

    def prepare_prompt(
        self, tokens: int | None = None, pictures: PromptPictures | None = None
    ) -> None:
        """Compile the steps that prefill a prompt of `tokens` tokens with its pictures, or those of
        all prompts and of a decode step of one row.
        """

    def prepare_verify(self) -> None:
        """Compile the verify steps."""

    def close(self) -> None:
        """Free the compiled steps and the KV cache."""
