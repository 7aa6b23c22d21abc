"""SlotSteps: the steps of a language model over a KV cache with slots, on a scheduler.

    prefill(slot, chunk)    a graph of one row and 1, 8, 32 or 128 tokens (on a card 512, too)
    decode(slots, tokens)   graphs of 1, 2, 4 or 8 rows of one token, in the cheapest combination
    verify(slot, tokens)    a graph of one row and 2, 4 or 8 tokens, with the bits of decode steps

Each graph names the slot of each of its rows, so all graphs share one cache, and idle rows of a
graph read and write nothing of it. The graphs of a cache with one slot have no slot operand.

Examples: tests/generation/test_slot_steps.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..common.dtypes import NDArray, Progress
from ..common.errors import ShapeError, UnsupportedOp
from .ahead_steps import AheadSteps
from .batching.chunk_grid import chunk_size
from .compiled_steps import CompilingScheduler, StepSize
from .device_precision import FLOAT16_CACHE
from .row_times import RowTimes
from .slot_graphs import SlotGraphs
from .step_runner import MAX_LOGPROBS, Logits

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..engine.request_precision import Precision
    from ..importers.gguf.model import LanguageModel

ROW_COUNTS = (1, 2, 4, 8)
"""The numbers of rows of decode graphs."""
VERIFY_SIZES = (2, 4, 8)
"""The numbers of tokens of verify graphs."""


class SlotSteps(SlotGraphs):
    """The `StepRunner` of a model on a scheduler.

    slots, length: the number of slots of the KV cache, and the tokens of each. placement, progress,
    cache_type, precision, in_flight: as of `CompiledSteps`. ahead: as of `AheadSteps`.
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
        ahead: bool | None = None,
    ) -> None:
        about = placement, progress, cache_type, precision
        super().__init__(scheduler, model, length, slots, *about, in_flight=in_flight)
        self._ahead = AheadSteps(self.steps, ahead)
        self._times = RowTimes()
        self._row_counts: tuple[int, ...] = ()
        """The numbers of rows of decode graphs; none until a step is compiled."""
        self._verify_sizes: tuple[int, ...] | None = None
        """The numbers of tokens of verify graphs; None until a step is compiled."""
        self._is_cache_checked = False
        """True if a decode step has read the rows of a text."""

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """The sizes of prompt chunks in tokens, ascending."""
        self.steps.decide()
        return tuple(sorted(self.steps.sizes))

    @property
    def row_counts(self) -> tuple[int, ...]:
        """The numbers of rows of decode graphs, ascending: those that the slots can fill.

        There are only those whose products have the bits of one row: on a CPU one row without
        native loops or with large float32 matrices, and two with int8 activations. The first call
        may compile a step, because its plan shows the devices.
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
        """The numbers of tokens of verify graphs, ascending; none without native loops on a CPU.

        A step of several tokens has the bits of decode steps where native loops add the keys one by
        one. Kernels of Vulkan devices add cached and new keys apart. A recurrent state cannot be
        cut back to the accepted tokens.
        """
        if self._verify_sizes is None:
            self._verify_sizes = self._retry_if_empty(self._find_verify_sizes)
        return self._verify_sizes

    def _find_verify_sizes(self) -> tuple[int, ...]:
        steps = self.steps
        if self.is_recurrent:
            return ()
        steps.decide()
        steps.run(self._size(1))
        if not steps.is_on_cpu:
            return ()
        try:
            rows = self._size(1).rows
            steps.model.step(steps.cache, 2, rows=rows, all_logits=True, as_decoded=True)
        except UnsupportedOp:
            return ()
        most = min(self.length, steps.max_equal_rows)
        return tuple(size for size in VERIFY_SIZES if size <= most)

    # -- steps -----------------------------------------------------------------------------------

    def prefill(
        self, slot: int, ids: Sequence[int], start: int, *, all_logits: bool = False
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
        return self._retry_if_empty(lambda: self._prefill(slot, list(ids), start, all_logits))

    def _prefill(self, slot: int, ids: list[int], start: int, all_logits: bool) -> Logits:
        self._decide()
        out: list[NDArray] = []
        done, end = 0, start + len(ids)
        while done < len(ids):
            tokens = self._chunk_size(start + done, end)
            part = ids[done : done + tokens]
            size = self._size(tokens, 1, all_logits)
            logits = self._run(size, [slot], [part], [start + done])[0]
            out.append(logits[: len(part)] if all_logits else logits)
            done += len(part)
        result = np.concatenate(out) if all_logits else out[-1]
        self._check_finite(result)
        if tokens == 1 < end:
            self._is_cache_checked = True  # as by a decode step
        self._check_cache(slot, ids[-1], end)
        return result

    def _chunk_size(self, start: int, end: int) -> int:
        """Return the size of the next step from token `start` of a text of `end` tokens."""
        return chunk_size(self.steps.sizes, end - start, self.length - start, is_alone=True)

    def decode(self, slots: Sequence[int], ids: Sequence[int], starts: Sequence[int]) -> Logits:
        """Append one token to each of some slots; return the logits, (len(slots), vocabulary).

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
        return self._retry_if_empty(lambda: self._decode(slots, ids, starts))

    def _decode(self, slots: Sequence[int], ids: Sequence[int], starts: Sequence[int]) -> Logits:
        self._decide()
        out: list[NDArray] = []
        done = 0
        for rows in self._times.plan(len(slots), self.row_counts):
            some = slice(done, done + rows)
            size = self._size(1, rows)
            self.steps.run(size)  # its compilation is not measured
            began = time.perf_counter()
            logits = self._run(size, slots[some], [[token] for token in ids[some]], starts[some])
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
        self._lost_if_fails(lambda: self._ahead.decode(slot, token, start, count, take))
        self._is_cache_checked = True

    def verify(self, slot: int, ids: Sequence[int], start: int) -> Logits:
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
        return self._retry_if_empty(lambda: self._verify(slot, ids, start))

    def _verify(self, slot: int, ids: Sequence[int], start: int) -> Logits:
        self._decide()
        logits: Logits = self._run(self._verify_size(len(ids)), [slot], [ids], [start])[0]
        self._check_finite(logits)
        return logits

    def _verify_size(self, tokens: int) -> StepSize:
        return self._size(tokens, all_logits=True)._replace(as_decoded=True)

    def _check_cache(self, slot: int, token: int, tokens: int) -> None:
        """Do the same if rows of a float16 cache exceed its range; kernels that round the keys of
        their own step may hide them. All chunks before the first decode step are checked.

        A step of one more token reads all rows. It writes a row behind those of the slot, or the
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
        self._cache_rows().prepare()
        self._cache_states().prepare()
        self._ahead.prepare(self.steps.run(self._size(1)))
        if self._slots == 1:
            return
        for rows in self.row_counts:
            size = self._size(1, rows)
            self._run(size, [], [], [])
            began = time.perf_counter()
            self._run(size, [], [], [])
            self._times.measure(rows, time.perf_counter() - began)

    def prepare_verify(self) -> None:
        """Compile the verify graphs."""
        self._retry(self._prepare_verify)

    def _prepare_verify(self) -> None:
        for tokens in self.verify_sizes:
            self.steps.run(self._verify_size(tokens))

    def prepare_prompt(self, tokens: int | None = None) -> None:
        """Compile the steps that prefill a prompt of `tokens` tokens, or those of all prompts and
        of a decode step of one row.
        """
        self._retry(lambda: self._prepare_prompt(tokens))

    def _prepare_prompt(self, tokens: int | None) -> None:
        self.steps.decide()
        if tokens is None:
            sizes = list(self.steps.sizes)
        else:
            sizes, start = [], 0
            while start < tokens:
                sizes.append(self._chunk_size(start, tokens))
                start += sizes[-1]
        for size in sizes:
            self.steps.run(self._size(size))

    def _free(self) -> None:
        self._ahead.forget()
        super()._free()
        self._times.clear()
        self._row_counts, self._verify_sizes = (), None
        self._is_cache_checked = False

    def close(self) -> None:
        """Free everything; devices that were out of memory are considered again."""
        self.forget()
        self.steps.close()
