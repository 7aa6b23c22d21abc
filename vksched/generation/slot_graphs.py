"""SlotGraphs: the graphs of a KV cache with slots, and the response to their faults.

    run a graph --> logits
        '-- a device is lost or full, a value exceeds float16's range --> forget all --> StateLost
                                           nothing was cached, or is needed --> again

`PromptSteps` and `SlotSteps` compose the steps of an engine from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..common.dtypes import NDArray, Progress
from ..common.errors import OutOfMemory, ShapeError, StateLost
from .cache_rows import CacheRows
from .cache_states import CacheStates
from .compiled_steps import CompiledSteps, CompilingScheduler, StepSize
from .overflow import EXACT

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..engine.request_precision import Precision
    from ..importers.gguf.model import LanguageModel

T = TypeVar("T")
IDLE = -1
"""The slot of a row that reads and writes nothing of the cache."""


class SlotGraphs:
    """The graphs of a model over a KV cache with slots.

    slots, length: the number of slots of the KV cache, and the tokens of each. placement, progress,
    cache_type, precision, in_flight, reads_pictures: as of `CompiledSteps`.
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
    ) -> None:
        about = scheduler, model, length, placement, progress, cache_type, precision
        self.steps = CompiledSteps(
            *about, slots=slots, in_flight=in_flight, reads_pictures=reads_pictures
        )
        self._slots = slots
        self._is_empty = True
        """True if no slot holds tokens."""
        self._rows: CacheRows | None = None
        self._states: CacheStates | None = None
        self._ends: dict[int, int] = {}
        """By slot, the number of tokens after which it has its recurrent states."""
        self.cache_version = 0
        """See `StepRunner.cache_version`."""

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self._slots

    @property
    def length(self) -> int:
        """The maximum number of tokens of a slot."""
        return self.steps.length

    @property
    def is_recurrent(self) -> bool:
        """See `StepRunner.is_recurrent`."""
        return self.steps.model.is_recurrent

    @property
    def vocabulary(self) -> int:
        """The number of logits of a token."""
        return self.steps.model.hyper.vocabulary

    def _decide(self) -> None:
        """Decide the placement of layers, unless it is decided.

        Raises
        ------
        StateLost
            A device with layers failed since, or one returned that gets some: layers are placed
            again.
        """
        if self.steps.is_outdated():
            raise StateLost("[slots] a device failed or returned; layers are placed again")
        self.steps.decide()

    def _size(self, tokens: int, rows: int = 1, all_logits: bool = False) -> StepSize:
        return StepSize(tokens, None if self._slots == 1 else rows, all_logits)

    def _run(
        self,
        size: StepSize,
        slots: Sequence[int],
        parts: Sequence[Sequence[int]],
        starts: Sequence[int],
        shifts: Sequence[int] | None = None,
    ) -> NDArray:
        """Run a step; return its logits. Rows behind those of the slots are idle. shifts: the
        differences of positions and indices; all are 0 if None.
        """
        run = self.steps.run(size)
        self._is_empty = self._is_empty and not slots
        for slot, part, start in zip(slots, parts, starts, strict=True):
            self._ends[slot] = start + len(part)
        feeds = feeds_of(size, slots, parts, starts, self.is_recurrent)
        if self.steps.is_shifted:
            feeds["shift"] = _shifts_of(size, shifts or ())
        logits: Any = run(**feeds)
        return np.asarray(logits)

    def _check(self, slot: int, start: int, tokens: int) -> None:
        if not 0 <= slot < self._slots:
            raise ShapeError(f"[slots] expected a slot of 0 to {self._slots - 1}, got {slot}")
        if start < 0 or tokens < 1 or start + tokens > self.length:
            raise ShapeError(
                f"[slots] expected 1 or more tokens, and at most {self.length} in a slot, got "
                f"{tokens} after {start}"
            )

    def _check_append(self, slot: int, start: int, tokens: int) -> None:
        self._check(slot, start, tokens)
        if self.is_recurrent and start and (end := self._ends.get(slot, 0)) != start:
            raise ShapeError(
                f"[slots] expected tokens after the {end} that slot {slot} has the recurrent "
                f"states of, or from token 0 on, got {tokens} after {start}; try write_states"
            )

    # -- rows and recurrent states of slots -------------------------------------------------------

    def copy_rows(self, source: int, target: int, tokens: int, present: int = 0) -> None:
        """Copy the keys and values of the first tokens of a slot to another one, on the devices.
        present: see `StepRunner.copy_rows`.
        """
        self._check(source, 0, tokens)
        self._check(target, 0, tokens)
        if source != target:
            self._lost_if_fails(lambda: self._cache_rows().copy(source, target, tokens, present))

    def read_rows(self, slot: int, tokens: int) -> Sequence[NDArray]:
        """Return the keys and values of the first tokens of a slot, in host memory."""
        self._check(slot, 0, tokens)
        return self._lost_if_fails(lambda: self._cache_rows().read(slot, tokens))

    def write_rows(self, slot: int, rows: Sequence[NDArray], present: int = 0) -> None:
        """Write keys and values that `read_rows` returned to a slot. present: as in `copy_rows`."""
        if not rows:  # no layer has any
            return
        self._check(slot, 0, rows[0].shape[1])
        self._is_empty = False
        self._lost_if_fails(lambda: self._cache_rows().write(slot, rows, present))

    def read_states(self, slot: int) -> Sequence[NDArray]:
        """Return the recurrent states after the tokens of a slot, in host memory."""
        self._check(slot, 0, 1)
        if not self.is_recurrent:
            return ()
        return self._lost_if_fails(lambda: self._cache_states().read(slot))

    def write_states(self, slot: int, states: Sequence[NDArray], tokens: int) -> None:
        """Restore states that `read_states` returned after `tokens` tokens."""
        self._check(slot, 0, tokens)
        if not self.is_recurrent:
            return
        self._is_empty = False
        self._lost_if_fails(lambda: self._cache_states().write(slot, states))
        self._ends[slot] = tokens

    def _cache_rows(self) -> CacheRows:
        if self._rows is None:
            self.steps.decide()
            self.steps.run(self._size(1))  # it creates the states, on the devices of their layers
            self._rows = CacheRows(self.steps.cache, self.steps.compile_graph)
        return self._rows

    def _cache_states(self) -> CacheStates:
        if self._states is None:
            self.steps.decide()
            self.steps.run(self._size(1))  # it creates the states, on the devices of their layers
            self._states = CacheStates(self.steps.cache, self.steps.compile_graph)
        return self._states

    # -- faults ----------------------------------------------------------------------------------

    def _retry_if_empty(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, repeated as by `_retry` if no slot held tokens before."""
        return self._retry(work) if self._is_empty else self._lost_if_fails(work)

    def _retry(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, repeated after a device was lost or ran out of memory, or
        after an overflow. It needs no tokens in the slots.
        """
        was_empty, version = self._is_empty, self.cache_version
        for _ in range(len(self.steps.scheduler.devices) + EXACT):
            try:
                return self._lost_if_fails(work)
            except StateLost:
                if was_empty:
                    self.cache_version = version  # no tokens were lost
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

    def forget(self) -> None:
        """Free the compiled steps and the KV cache; all slots are empty."""
        self.cache_version += 1  # first, because an interrupt may end the rest
        self._free()
        self._is_empty = True

    def _free(self) -> None:
        self._ends.clear()
        if self._rows is not None:
            self._rows.close()
            self._rows = None
        if self._states is not None:
            self._states.close()
            self._states = None
        self.steps.forget()


def feeds_of(
    size: StepSize,
    slots: Sequence[int],
    parts: Sequence[Sequence[int]],
    starts: Sequence[int],
    is_recurrent: bool,
) -> dict[str, NDArray]:
    """Return the inputs of a step; rows behind those of the slots are idle."""
    rows, tokens = size.rows or 1, size.tokens
    ids = np.zeros((rows, tokens), np.int32)
    slot, start, count = (np.full(rows, fill, np.int32) for fill in (IDLE, 0, tokens))
    for row, (own, part, cached) in enumerate(zip(slots, parts, starts, strict=True)):
        ids[row, : len(part)] = part
        slot[row], start[row], count[row] = own, cached, len(part)
    feeds = {"slot": slot, "start": start, "count": count}
    if size.all_logits and not is_recurrent:
        del feeds["count"]
    if size.rows is None:
        del feeds["slot"]
        feeds = {name: values[0] for name, values in feeds.items()}
    return {"ids": ids, **feeds}


def _shifts_of(size: StepSize, shifts: Sequence[int]) -> NDArray:
    """Return the input `shift` of a step; that of idle rows is 0."""
    own = np.zeros(size.rows or 1, np.int32)
    own[: len(shifts)] = shifts
    return own[0] if size.rows is None else own


def is_finite(logits: NDArray) -> bool:
    """Return True if all logits are finite; a sum of squares is the fastest check."""
    with np.errstate(all="ignore"):
        return math.isfinite(float(np.dot(logits, logits))) or bool(np.isfinite(logits).all())
