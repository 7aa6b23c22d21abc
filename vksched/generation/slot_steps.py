"""SlotSteps: the steps of a language model over a KV cache with several slots, on a scheduler.

    prefill(slot, chunk)    a graph of one row and 1, 8, 32 or 128 tokens (on a card 512, too)
    decode(slots, tokens)   graphs of 1, 2, 4 or 8 rows of one token, in the cheapest combination

Each graph names the slot of each of its rows, so all graphs share one cache, and idle rows of a
graph read and write nothing of it. Examples: tests/generation/test_slot_steps.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..common.dtypes import NDArray, Progress
from ..common.errors import OutOfMemory, ShapeError, StateLost
from ..ops.lowering import native_kernels
from .cache_rows import CacheRows
from .compiled_steps import CompiledSteps, CompilingScheduler, StepSize, suitable_size
from .device_precision import FLOAT16_CACHE
from .generator import is_finite
from .overflow import EXACT
from .step_runner import MAX_LOGPROBS, Logits

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..engine.request_precision import Precision
    from ..importers.gguf.model import LanguageModel

T = TypeVar("T")
ROW_COUNTS = (1, 2, 4, 8)
"""The numbers of rows of decode graphs."""
IDLE = -1
"""The slot of a row that reads and writes nothing of the cache."""
NEWEST = 0.2
"""The weight of the newest run in the measured time of a graph."""


class SlotSteps:
    """The `StepRunner` of a model on a scheduler.

    slots, length: the number of slots of the KV cache, and the tokens of each. placement, progress,
    cache_type, precision: as of `CompiledSteps`.
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
    ) -> None:
        self.steps = CompiledSteps(
            scheduler, model, length, placement, progress, cache_type, precision, slots=slots
        )
        self._slots = slots
        self._rows: CacheRows | None = None
        self._seconds: dict[int, float] = {}
        """The measured times of decode graphs, by their rows."""
        self._row_counts: tuple[int, ...] = ()
        """The numbers of rows of decode graphs; none until a step is compiled."""
        self._is_empty = True
        """True if no slot holds tokens."""
        self._is_cache_checked = False

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self._slots

    @property
    def length(self) -> int:
        """The maximum number of tokens of a slot."""
        return self.steps.length

    @property
    def vocabulary(self) -> int:
        """The number of logits of a token."""
        return self.steps.model.hyper.vocabulary

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """The sizes of prompt chunks in tokens, ascending."""
        self.steps.decide()
        return tuple(sorted(self.steps.sizes))

    @property
    def row_counts(self) -> tuple[int, ...]:
        """The numbers of rows of decode graphs, ascending: those that the slots can fill.

        Without native loops, or with float32 matrices on a CPU, there are only graphs of one row:
        the BLAS library's products of several rows differ from those of one in their last bits.
        The first call may compile a step, because its plan shows the devices.
        """
        if not self._row_counts:
            self._row_counts = self._retry_if_empty(self._find_row_counts)
        return self._row_counts

    def _find_row_counts(self) -> tuple[int, ...]:
        if not self.steps.runs:
            self.steps.decide()
            self.steps.run(StepSize(1, 1))
        if not native_kernels.has_programs() or self.steps.has_float_products_on_cpu:
            return ROW_COUNTS[:1]
        most = next((rows for rows in ROW_COUNTS if rows >= self._slots), ROW_COUNTS[-1])
        return tuple(rows for rows in ROW_COUNTS if rows <= most)

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
            The slot does not exist, or has no room for the tokens.
        StateLost
            A device was lost, or a value exceeded float16's range: all slots are empty now.
        """
        self._check(slot, start, len(ids))
        return self._retry_if_empty(lambda: self._prefill(slot, list(ids), start, all_logits))

    def _prefill(self, slot: int, ids: list[int], start: int, all_logits: bool) -> Logits:
        _decide(self.steps)
        out: list[NDArray] = []
        done, end = 0, start + len(ids)
        while done < len(ids):
            size = suitable_size(self.steps.sizes, start + done, end, self.length)
            part = ids[done : done + size]
            run = self.steps.run(StepSize(size, 1, all_logits))
            self._is_empty = False
            feeds = _feeds(1, size, [slot], [part], [start + done])
            if all_logits:
                del feeds["count"]
            logits: Any = run(**feeds)
            out.append(logits[0, : len(part)] if all_logits else logits[0])
            done += len(part)
        result = np.concatenate(out) if all_logits else out[-1]
        self._check_finite(result)
        self._check_cache(slot, end)
        return np.asarray(result)

    def decode(self, slots: Sequence[int], ids: Sequence[int], starts: Sequence[int]) -> Logits:
        """Append one token to each of some slots; return the logits, (len(slots), vocabulary).

        Raises
        ------
        ShapeError
            A slot does not exist, has no room, or comes twice.
        StateLost
            As in `prefill`.
        """
        if len(set(slots)) != len(slots) or not len(slots) == len(ids) == len(starts) > 0:
            raise ShapeError(
                f"[decode] expected different slots, with a token and a start each, got {slots}"
            )
        for slot, start in zip(slots, starts, strict=True):
            self._check(slot, start, 1)
        return self._retry_if_empty(lambda: self._decode(slots, ids, starts))

    def _decode(self, slots: Sequence[int], ids: Sequence[int], starts: Sequence[int]) -> Logits:
        _decide(self.steps)
        out: list[NDArray] = []
        done = 0
        for rows in self._row_plan(len(slots)):
            some = slice(done, done + rows)
            feeds = _feeds(rows, 1, slots[some], [[token] for token in ids[some]], starts[some])
            run = self.steps.run(StepSize(1, rows))
            self._is_empty = False
            began = time.perf_counter()
            logits: Any = run(**feeds)
            self._measure(rows, time.perf_counter() - began)
            out.append(np.asarray(logits)[: len(slots[some])])
            done += rows
        result = out[0] if len(out) == 1 else np.concatenate(out)
        self._check_finite(result)
        return result

    def _row_plan(self, count: int) -> tuple[int, ...]:
        """Return the rows of the graphs that decode a token of `count` slots: the combination with
        the least measured time. Without measurements: the largest graphs first, then the smallest
        one with as many rows.
        """
        known = [rows for rows in self.row_counts if rows in self._seconds]
        if known != list(self.row_counts):
            largest = self.row_counts[-1]
            whole, rest = divmod(count, largest)
            fitting = [rows for rows in self.row_counts if rows >= rest > 0]
            return (largest,) * whole + tuple(fitting[:1])
        plans: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for number in range(1, count + 1):
            before = {rows: plans[max(0, number - rows)] for rows in known}
            least = min(known, key=lambda rows: before[rows][0] + self._seconds[rows])
            seconds, others = before[least]
            plans.append((seconds + self._seconds[least], (*others, least)))
        return plans[count][1][::-1]

    def _measure(self, rows: int, seconds: float) -> None:
        """Take the time of a run of a decode graph into account."""
        old = self._seconds.get(rows, seconds)
        self._seconds[rows] = old + NEWEST * (seconds - old)

    # -- rows of the cache -----------------------------------------------------------------------

    def copy_rows(self, source: int, target: int, tokens: int) -> None:
        """Copy the keys and values of the first tokens of a slot to another one, on the devices."""
        self._check(source, 0, tokens)
        self._check(target, 0, tokens)
        if source != target:
            self._lost_if_fails(lambda: self._cache_rows().copy(source, target, tokens))

    def read_rows(self, slot: int, tokens: int) -> Sequence[NDArray]:
        """Return the keys and values of the first tokens of a slot, in host memory."""
        self._check(slot, 0, tokens)
        return self._lost_if_fails(lambda: self._cache_rows().read(slot, tokens))

    def write_rows(self, slot: int, rows: Sequence[NDArray]) -> None:
        """Write keys and values that `read_rows` returned to a slot."""
        tokens = rows[0].shape[1] if rows else 0
        self._check(slot, 0, tokens)
        self._is_empty = False
        self._lost_if_fails(lambda: self._cache_rows().write(slot, rows))

    def _cache_rows(self) -> CacheRows:
        if self._rows is None:
            self.steps.decide()
            self.steps.run(StepSize(1, 1))  # it creates the states, on the devices of their layers
            self._rows = CacheRows(self.steps.cache, self.steps.compile_graph)
        return self._rows

    # -- faults ----------------------------------------------------------------------------------

    def _retry_if_empty(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, repeated after a device was lost or ran out of memory, or
        after an overflow, if no slot held tokens before.
        """
        for _ in range(len(self.steps.scheduler.devices) + EXACT):
            was_empty = self._is_empty
            try:
                return self._lost_if_fails(work)
            except StateLost:
                if not was_empty:
                    raise
        return self._lost_if_fails(work)

    def _lost_if_fails(self, work: Callable[[], T]) -> T:
        """Return the result of `work`.

        Raises
        ------
        StateLost
            A device was lost or ran out of memory: all slots are empty now.
        """
        try:
            return work()
        except StateLost:
            self.forget()
            raise
        except OutOfMemory as error:
            if not self.steps.handle_full_device(error):
                raise
            self.forget()
            raise StateLost(f"[slots] the KV cache moved to other devices: {error}") from error

    def _check_finite(self, logits: NDArray) -> None:
        """Raise StateLost, after a warning, if steps are computed in another way from now on."""
        if not is_finite(logits.reshape(-1)) and self.steps.handle_overflow():
            self.forget()
            raise StateLost("[slots] logits are not finite; the model is computed in another mode")

    def _check_cache(self, slot: int, tokens: int) -> None:
        """Do the same if rows of a float16 cache exceed its range; kernels that round the keys of
        their own step may hide them. The first chunk is checked.
        """
        if self._is_cache_checked or FLOAT16_CACHE not in self.steps.cache_types:
            return
        rows = [each for each in self._cache_rows().read(slot, tokens) if each.dtype == np.float16]
        if not all(np.isfinite(each).all() for each in rows) and self.steps.handle_overflow():
            self.forget()
            raise StateLost("[slots] keys or values exceed float16's range; the cache is float32")
        self._is_cache_checked = True

    def _check(self, slot: int, start: int, tokens: int) -> None:
        if not 0 <= slot < self._slots:
            raise ShapeError(f"[slots] expected a slot of 0 to {self._slots - 1}, got {slot}")
        if start < 0 or tokens < 1 or start + tokens > self.length:
            raise ShapeError(
                f"[slots] expected 1 or more tokens, and at most {self.length} in a slot, got "
                f"{tokens} after {start}"
            )

    # -- life ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Compile all steps and the graphs that move rows; measure decode steps with idle rows."""
        self._retry_if_empty(self._prepare)

    def _prepare(self) -> None:
        for size in self.chunk_sizes:
            self.steps.run(StepSize(size, 1))
            if size <= MAX_LOGPROBS:
                self.steps.run(StepSize(size, 1, all_logits=True))
        self._cache_rows().prepare()
        for rows in self.row_counts:
            run = self.steps.run(StepSize(1, rows))
            feeds = _feeds(rows, 1, [], [], [])
            run(**feeds)
            began = time.perf_counter()
            run(**feeds)
            self._measure(rows, time.perf_counter() - began)

    def forget(self) -> None:
        """Free the compiled steps and the KV cache; all slots are empty."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None
        self.steps.forget()
        self._seconds.clear()
        self._row_counts = ()
        self._is_empty = True

    def close(self) -> None:
        """Free everything; devices that were out of memory are considered again."""
        self.forget()
        self.steps.close()


def _decide(steps: CompiledSteps) -> None:
    """Decide the placement of layers, unless it is decided.

    Raises
    ------
    StateLost
        A device failed or returned since: layers are placed again.
    """
    failed = set(steps.scheduler.failed_devices)
    if steps.user_placement is None and steps.sizes and failed != steps.without:
        raise StateLost("[slots] a device failed or returned; layers are placed again")
    steps.decide()


def _feeds(
    rows: int,
    tokens: int,
    slots: Sequence[int],
    parts: Sequence[Sequence[int]],
    starts: Sequence[int],
) -> dict[str, NDArray]:
    """Return the inputs of a step; rows behind those of the slots are idle."""
    ids = np.zeros((rows, tokens), np.int32)
    slot, start, count = (np.full(rows, fill, np.int32) for fill in (IDLE, 0, tokens))
    for row, (own, part, cached) in enumerate(zip(slots, parts, starts, strict=True)):
        ids[row, : len(part)] = part
        slot[row], start[row], count[row] = own, cached, len(part)
    return {"ids": ids, "slot": slot, "start": start, "count": count}
