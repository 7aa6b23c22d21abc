"""PromptSteps: the steps that read a prompt, text and pictures.

    tokens   |  text   | picture |   text    |
    steps    | 8  | 8  |    4    |    32     |   padded at the end of a part

A step has text, or tokens of one picture. Pictures whose tokens see each other take one step.

Examples: tests/generation/test_slot_steps.py, tests/generation/pictures/test_chat_pictures.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..common.dtypes import NDArray
from .batching.chunk_grid import chunk_size
from .compiled_steps import StepSize
from .device_precision import FLOAT16_CACHE
from .pictures.prompt_pictures import Part, PromptPictures, is_picture_id
from .slot_graphs import SlotGraphs, feeds_of
from .step_runner import Logits


class PromptSteps(SlotGraphs):
    """The steps of a model that read prompts into the slots of a KV cache."""

    picture_tokens = 0
    """The number of tokens of a picture that one step must read; 0 if there is no fixed one."""
    _is_cache_checked = False
    """True if a decode step has read the rows of a text."""

    def prefill(
        self,
        slot: int,
        ids: Sequence[int],
        start: int,
        *,
        all_logits: bool = False,
        pictures: PromptPictures | None = None,
    ) -> Logits:
        """Append a chunk of a prompt to a slot that holds `start` tokens; see
        `StepRunner.prefill`.

        A chunk runs in as few steps as `chunk_sizes` allows; they depend only on `start` and the
        number of tokens.

        Raises
        ------
        ShapeError
            The slot does not exist, has no room for the tokens, or has the recurrent states of
            other tokens.
        StateLost
            A device was lost, or a value exceeded float16's range: all slots are empty now.
        """
        self._check_append(slot, start, len(ids))
        return self._retry_if_empty(
            lambda: self._prefill(slot, list(ids), start, all_logits, pictures)
        )

    def _prefill(
        self,
        slot: int,
        ids: list[int],
        start: int,
        all_logits: bool,
        pictures: PromptPictures | None,
    ) -> Logits:
        self._decide()
        out: list[NDArray] = []
        end = start + len(ids)
        for part in pictures.parts(start, end) if pictures else [Part(start, end)]:
            done = part.start
            while done < part.end:
                tokens = part.end - done if part.is_whole else self._chunk_size(done, part.end)
                read = Part(done, min(done + tokens, part.end), part.picture, part.first)
                size = self._size(tokens, 1, all_logits)
                if read.picture is not None and pictures is not None:
                    logits = self._run_picture(size, slot, read, pictures)
                else:
                    shift = pictures.shift_at(done) if pictures else 0
                    own = ids[done - start : read.end - start]
                    logits = self._run(size, [slot], [own], [done], [shift])[0]
                out.append(logits[: read.end - done] if all_logits else logits)
                done = read.end
        result = np.concatenate(out) if all_logits else out[-1]
        self._check_finite(result)
        if tokens == 1 < end:
            self._is_cache_checked = True  # as by a decode step
        self._check_cache(slot, 0 if is_picture_id(ids[-1]) else ids[-1], end)
        return result

    def _chunk_size(self, start: int, end: int) -> int:
        """Return the size of the next step from token `start` of a text of `end` tokens."""
        return chunk_size(self.steps.sizes, end - start, self.length - start, is_alone=True)

    def _run_picture(
        self, size: StepSize, slot: int, part: Part, pictures: PromptPictures
    ) -> NDArray:
        """Run a step over tokens of a picture; return its logits."""
        size = size._replace(picture=True)
        run = self.steps.run(size)
        count, tokens = part.end - part.start, size.tokens
        self._is_empty, self._ends[slot] = False, part.end
        feeds = feeds_of(size, [slot], [[0] * count], [part.start], self.is_recurrent)
        del feeds["ids"]
        feeds["picture"] = _padded(part.rows, tokens)[None]
        if self.steps.is_shifted:
            feeds["positions"] = _padded(pictures.positions(part).T, tokens).T[None]
        logits: Any = run(**feeds)
        row: NDArray = np.asarray(logits)[0]
        return row

    def _check_cache(self, slot: int, token: int, tokens: int) -> None:
        """Call `_check_finite` for a step that reads all rows: those of a float16 cache may exceed
        its range, and kernels that round the keys of their own step may hide them. All chunks
        before the first decode step are checked.

        This step of one more token writes a row behind those of the slot, or the
        last row of a full slot again, which no other text can reuse; recurrent states are restored
        after it.
        """
        if self._is_cache_checked or FLOAT16_CACHE not in self.steps.cache_types:
            return
        start = min(tokens, self.length - 1)
        states = self.read_states(slot)
        self._check_finite(self._run(self._size(1), [slot], [[token]], [start]))
        self.write_states(slot, states, tokens)

    # -- life ------------------------------------------------------------------------------------

    def prepare_prompt(
        self, tokens: int | None = None, pictures: PromptPictures | None = None
    ) -> None:
        """Compile the steps that prefill a prompt of `tokens` tokens with its pictures, or those of
        all prompts and of a decode step of one row.
        """
        self._retry(lambda: self._prepare_prompt(tokens, pictures))

    def _prepare_prompt(self, tokens: int | None, pictures: PromptPictures | None) -> None:
        self.steps.decide()
        if tokens is None:
            for size in self.steps.sizes:
                self.steps.run(self._size(size))
            self._prepare_picture()
            return
        for part in pictures.parts(0, tokens) if pictures else [Part(0, tokens)]:
            start, is_picture = part.start, part.picture is not None
            while start < part.end:
                count = part.end - start if part.is_whole else self._chunk_size(start, part.end)
                self.steps.run(self._size(count)._replace(picture=is_picture))
                start += count

    def _prepare_picture(self) -> None:
        """Compile the step that reads a picture, if pictures have a fixed number of tokens."""
        if 0 < self.picture_tokens <= self.length:
            self.steps.run(self._size(self.picture_tokens)._replace(picture=True))

    def _free(self) -> None:
        super()._free()
        self._is_cache_checked = False


def _padded(rows: NDArray, count: int) -> NDArray:
    """Return an array with rows of zeros after its own."""
    return np.pad(rows, ((0, count - len(rows)), (0, 0)))
