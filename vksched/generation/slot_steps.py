"""SlotSteps: the steps of a language model over a KV cache with slots, on a scheduler.

    prefill(slot, chunk)    a graph of one row and 1, 8, 32 or 128 tokens (on a card 512, too)
    decode(slots, tokens)   graphs of 1, 2, 4 or 8 rows of one token, in the cheapest combination
    verify(slot, tokens)    a graph of 2, 4 or 8 rows of one slot, with the bits of decode steps

Each graph names the slot of each of its rows, so all graphs share one cache, and idle rows of a
graph read and write nothing of it. The graphs of a cache with one slot have no slot operand, except
verify graphs.

Examples: tests/generation/test_slot_steps.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..common.dtypes import NDArray, Progress
from ..common.errors import OutOfMemory, ShapeError, StateLost
from .ahead_steps import AheadSteps
from .compiled_steps import CompilingScheduler, StepSize
from .equal_rows import cached_attention_variants
from .prompt_steps import PromptSteps
from .row_times import RowTimes
from .step_runner import MAX_LOGPROBS, Logits

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..engine.request_precision import Precision
    from ..importers.gguf.model import LanguageModel

ROW_COUNTS = (1, 2, 4, 8)
"""The numbers of rows of decode graphs."""
VERIFY_SIZES = (2, 4, 8)
"""The numbers of tokens of verify graphs."""


class SlotSteps(PromptSteps):
    """The `StepRunner` of a model on a scheduler.

    slots, length: the number of slots of the KV cache, and the tokens of each. placement, progress,
    cache_type, precision, in_flight, reads_pictures: as of `CompiledSteps`. ahead: as of
    `AheadSteps`.
    """

    def __init__(
        self,
        scheduler: CompilingScheduler,
        model: LanguageModel,
        length: int,
        slots: int,
        placement: Placements | None = None,
        progress: Progress | None = None,
        cache_type: str | None = None,
        precision: Precision | None = None,
        in_flight: int = 1,
        reads_pictures: bool = False,
        ahead: bool | None = None,
    ) -> None:
        super().__init__(
            *(scheduler, model, length, slots, placement, progress, cache_type, precision),
            in_flight=in_flight,
            reads_pictures=reads_pictures,
        )
        self._ahead = AheadSteps(self.steps, ahead)
        self._times = RowTimes()
        self._row_counts: tuple[int, ...] = ()
        """The numbers of rows of decode graphs; none until a step is compiled."""
        self._verify_sizes: tuple[int, ...] | None = None
        """The numbers of tokens of verify graphs; None until they are decided."""

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """The sizes of prompt chunks in tokens, ascending."""
        self.steps.decide()
        return tuple(sorted(self.steps.sizes))

    @property
    def row_counts(self) -> tuple[int, ...]:
        """The numbers of rows of decode graphs, ascending: those that the slots can fill.

        There are only those whose products have the bits of one row: on a CPU one row without
        native loops or with large float32 matrices. The first call may compile a step, because its
        plan shows the devices.
        """
        if not self._row_counts:
            self._row_counts = self._retry_if_empty(self._find_row_counts)
        return self._row_counts

    def _find_row_counts(self) -> tuple[int, ...]:
        if self._slots == 1:
            return ROW_COUNTS[:1]
        if not self.steps.runs:
            self.steps.decide()
            self.steps.run(self._size(1))
        fitting = next((rows for rows in ROW_COUNTS if rows >= self._slots), ROW_COUNTS[-1])
        most = min(fitting, self.steps.max_equal_rows)
        return tuple(rows for rows in ROW_COUNTS if rows <= most)

    @property
    def verify_sizes(self) -> tuple[int, ...]:
        """The numbers of tokens of verify graphs, ascending; none if their bits may differ from
        those of decode steps.

        A verify graph is a decode graph whose rows have one slot, so `max_equal_rows` limits its
        rows. Without slots, tuning may select another attention kernel for decode steps. A
        recurrent state cannot be cut back to the accepted tokens.
        """
        if self._verify_sizes is None:
            self._verify_sizes = self._retry_if_empty(self._find_verify_sizes)
        return self._verify_sizes

    def _find_verify_sizes(self) -> tuple[int, ...]:
        if self.is_recurrent:
            return ()
        self.steps.decide()
        plan = self.steps.run(self._size(1)).plan
        most = min(self.length, self.steps.max_equal_rows)
        found = tuple(size for size in VERIFY_SIZES if size <= most)
        if self._slots == 1 and found and (variants := cached_attention_variants(plan)):
            several = self.steps.run(self._verify_size(found[0])).plan
            if cached_attention_variants(several) != variants:
                return ()
        return found

    # -- steps -----------------------------------------------------------------------------------

    def decode(
        self,
        slots: Sequence[int],
        ids: Sequence[int],
        starts: Sequence[int],
        *,
        shifts: Sequence[int] | None = None,
    ) -> Logits:
        """Append one token to each of some slots; return the logits, (len(slots), vocabulary). See
        `StepRunner.decode`.

        Raises
        ------
        ShapeError
            A slot does not exist, has no room, comes twice, or has the recurrent states of other
            tokens.
        StateLost
            As in `prefill`.
        """
        if len(set(slots)) != len(slots) or not len(slots) == len(ids) == len(starts) > 0:
            raise ShapeError(
                f"[decode] expected different slots, with a token and a start each, got {slots}"
            )
        for slot, start in zip(slots, starts, strict=True):
            self._check_append(slot, start, 1)
        own = [0] * len(slots) if shifts is None else shifts
        return self._retry_if_empty(lambda: self._decode(slots, ids, starts, own))

    def _decode(
        self,
        slots: Sequence[int],
        ids: Sequence[int],
        starts: Sequence[int],
        shifts: Sequence[int],
    ) -> Logits:
        self._decide()
        out: list[NDArray] = []
        done = 0
        for rows in self._times.plan(len(slots), self.row_counts):
            some = slice(done, done + rows)
            size = self._size(1, rows)
            self.steps.run(size)  # its compilation is not measured
            began = time.perf_counter()
            parts = [[token] for token in ids[some]]
            logits = self._run(size, slots[some], parts, starts[some], shifts[some])
            self._times.measure(rows, time.perf_counter() - began)
            out.append(logits[: len(slots[some])])
            done += rows
        result = out[0] if len(out) == 1 else np.concatenate(out)
        self._check_finite(result)
        self._is_cache_checked = True
        return result

    @property
    def decodes_ahead(self) -> bool:
        """See `StepRunner.decodes_ahead`."""
        return self._ahead.is_ready

    def decode_ahead(
        self, slot: int, token: int, start: int, count: int, take: Callable[[int], bool]
    ) -> None:
        """Append up to `count` tokens to a slot, each the most likely one after the one before; see
        `StepRunner.decode_ahead`.

        Raises
        ------
        ShapeError
            The slot does not exist, or has no room for `count` tokens.
        StateLost
            As in `prefill`.
        """
        self._check_append(slot, start, count)

        self._lost_if_fails(self._decide)
        self._is_empty = False
        last = self._lost_if_fails(lambda: self._ahead.decode(slot, token, start, count, take))
        if last is not None:
            self._check_finite(last)
            self._is_cache_checked = True

    def verify(self, slot: int, ids: Sequence[int], start: int, *, shift: int = 0) -> Logits:
        """Append as many tokens as a verify graph has to a slot that holds `start` tokens; see
        `StepRunner.verify`.

        Raises
        ------
        ShapeError
            The slot does not exist, or has no room, or there is no such graph.
        StateLost
            As in `prefill`.
        """
        self._check(slot, start, len(ids))
        if len(ids) not in self.verify_sizes:
            raise ShapeError(
                f"[verify] expected a number of tokens of {self.verify_sizes}, got {len(ids)}"
            )
        return self._retry_if_empty(lambda: self._verify(slot, ids, start, shift))

    def _verify(self, slot: int, ids: Sequence[int], start: int, shift: int) -> Logits:
        self._decide()
        count = len(ids)
        parts, starts = [[token] for token in ids], range(start, start + count)
        slots, shifts = [slot] * count, [shift] * count
        logits: Logits = self._run(self._verify_size(count), slots, parts, starts, shifts)
        self._check_finite(logits)
        return logits

    def _verify_size(self, tokens: int) -> StepSize:
        return StepSize(1, tokens, one_text=True)

    # -- life ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Compile all steps but verify steps, and the graphs that move rows; measure decode steps
        with idle rows.
        """
        self._retry(self._prepare)

    def _prepare(self) -> None:
        for tokens in self.chunk_sizes:
            self.steps.run(self._size(tokens))
            if tokens <= MAX_LOGPROBS:
                self.steps.run(self._size(tokens, all_logits=True))
        self._prepare_picture()
        self._cache_rows().prepare()
        self._cache_states().prepare()
        for rows in self.row_counts if self._slots > 1 else ():
            size = self._size(1, rows)
            self._run(size, [], [], [])
            began = time.perf_counter()
            self._run(size, [], [], [])
            self._times.measure(rows, time.perf_counter() - began)
        self._ahead.prepare(self.steps.run(self._size(1)))  # last, as others need memory first

    def prepare_ahead(self) -> bool:
        """Compile one graph of those before the steps ahead, or the steps themselves, if they were
        lost; see `StepRunner.prepare_ahead`.

        Raises
        ------
        StateLost
            As in `prefill`.
        """
        if not self._ahead.is_due or not self.steps.runs:
            return False
        try:
            self._prepare_next()
        except OutOfMemory:
            self._ahead.is_due = False  # they are optional, and answers may need no other graph
        except StateLost:
            self.forget()
            raise
        return True

    def _prepare_next(self) -> None:
        """Compile the first missing graph: answers need memory before the steps ahead."""
        wanted = [self._size(tokens) for tokens in self.chunk_sizes]
        wanted += [self._size(1, rows) for rows in self.row_counts]
        missing = [size for size in wanted if size not in self.steps.runs]
        if missing:
            self.steps.run(missing[0])
        else:
            self._ahead.prepare(self.steps.run(self._size(1)))

    def prepare_verify(self) -> None:
        """Compile the verify graphs."""
        self._retry(self._prepare_verify)

    def _prepare_verify(self) -> None:
        for tokens in self.verify_sizes:
            self.steps.run(self._verify_size(tokens))

    def _free(self) -> None:
        self._ahead.forget()
        super()._free()
        self._times.clear()
        self._row_counts, self._verify_sizes = (), None

    def close(self) -> None:
        """Free everything; devices that were out of memory are considered again."""
        self.forget()
        self.steps.close()
