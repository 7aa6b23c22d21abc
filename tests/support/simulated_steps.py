"""SimulatedSteps: a StepRunner over a tiny hash, for tests of engines.

A row of its KV cache is a hash of the token, its position, the chunk that computed it, and all rows
before it. Logits are a hash of all rows. A wrong slot, start, copy, chunk or order changes them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from vksched.common.errors import StateLost
from vksched.generation.pictures.prompt_pictures import PromptPictures
from vksched.generation.step_runner import Logits

MASK = (1 << 64) - 1
STALE = 0xDEAD


def mix(*values: int) -> int:
    """Return a hash of some integers, of 64 bits (FNV-1a with a final avalanche)."""
    state = 0xCBF29CE484222325
    for value in values:
        state = ((state ^ (value & MASK)) * 0x100000001B3) & MASK
        state ^= state >> 29
    return (state * 0xBF58476D1CE4E5B9) & MASK


def logits_of(rows: Sequence[int], vocabulary: int) -> Logits:
    """Return the logits after some rows of a KV cache."""
    rng = np.random.Generator(np.random.Philox(key=mix(*rows)))
    return rng.normal(size=vocabulary).astype(np.float32) * np.float32(3)


class SimulatedClock:
    """A clock that steps advance."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class SimulatedSteps:
    """A StepRunner that checks its contract.

    lost_at: the numbers of calls, counted from 0, at which the cache is lost. before_call: a
    function that gets the number of each call before it, and may raise an error; the call then
    leaves its slots empty. verify_s: the time of a verify step in seconds. is_recurrent: a slot
    goes on only from where its recurrent state is, a hash of all rows before.
    """

    def __init__(
        self,
        slots: int = 4,
        length: int = 64,
        vocabulary: int = 50,
        chunk_sizes: tuple[int, ...] = (1, 2, 4, 8),
        row_counts: tuple[int, ...] = (1, 2, 4),
        lost_at: Iterable[int] = (),
        before_call: Callable[[int], None] | None = None,
        clock: SimulatedClock | None = None,
        verify_sizes: tuple[int, ...] = (),
        verify_s: float = 0.02,
        is_recurrent: bool = False,
        decodes_ahead: bool = False,
    ) -> None:
        self.decodes_ahead = decodes_ahead
        self.is_recurrent = is_recurrent
        self._states = [0] * slots
        self.verify_sizes, self.verify_s = verify_sizes, verify_s
        self.slots, self.length, self.vocabulary = slots, length, vocabulary
        self.chunk_sizes, self.row_counts = chunk_sizes, row_counts
        self.rows = [[STALE] * length for _ in range(slots)]
        self.used = [0] * slots
        self.lost_at = set(lost_at)
        self.before_call = before_call
        self.clock = clock or SimulatedClock()
        self.log: list[tuple[Any, ...]] = []
        """The calls: their name, and the numbers they are about."""
        self.is_prepared = self.is_closed = False
        self.shifts: Sequence[int] | None = None
        """Those of the last decode step."""
        self.cache_version = 0
        self._calls = 0
        self._thread: int | None = None

    def _begin(self, *entry: Any, writes: Sequence[int] = ()) -> None:
        assert not self.is_closed, "a step after close"
        self._thread = self._thread or threading.get_ident()
        assert self._thread == threading.get_ident(), "a step in another thread"
        number, self._calls = self._calls, self._calls + 1
        self.log.append(entry)
        try:
            if self.before_call is not None:
                self.before_call(number)
        except BaseException:
            self._empty(writes)
            raise
        if number in self.lost_at:
            self.lose()
            raise StateLost("[simulated] the cache was lost")

    def lose(self) -> None:
        """Lose the cache."""
        self._empty(range(self.slots))
        self.cache_version += 1

    def _empty(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.rows[slot], self.used[slot] = [STALE] * self.length, 0

    def _check(
        self, slot: int, ids: Sequence[int], start: int, pictures: PromptPictures | None = None
    ) -> None:
        assert 0 <= slot < self.slots
        assert ids and all(type(i) is int and 0 <= i for i in ids)
        if any(i >= self.vocabulary for i in ids):
            assert pictures is not None, "tokens of pictures without pictures"
            (part,) = pictures.parts(start, start + len(ids))
            assert part.picture is not None and len(part.rows) == len(ids)
            assert list(ids) == list(part.picture.tokens.ids)[part.start - part.first :][: len(ids)]
            assert not part.is_whole or len(ids) == part.picture.tokens.count
        assert 0 <= start <= self.used[slot], "a step after rows that the slot does not hold"
        assert start + len(ids) <= self.length

    def _append(self, slot: int, token: int, at: int, *chunk: int) -> None:
        rows = self.rows[slot]
        before = rows[at - 1] if at else 0
        if self.is_recurrent:
            before = self._states[slot] if at else 0
        rows[at] = mix(token, at, before, *chunk)
        self._states[slot] = mix(rows[at], before)
        self.used[slot] = at + 1

    def prefill(
        self,
        slot: int,
        ids: Sequence[int],
        start: int,
        *,
        all_logits: bool = False,
        pictures: PromptPictures | None = None,
    ) -> Logits:
        self._check(slot, ids, start, pictures)
        self._begin("prefill", slot, start, len(ids), writes=[slot])
        sizes = [size for size in self.chunk_sizes if size >= len(ids)]
        assert sizes or ids[0] >= self.vocabulary
        size = min(sizes, default=len(ids))
        self.clock.now_s += 0.01 * size
        logits = []
        for at, token in enumerate(ids, start):
            self._append(slot, token, at, start, size, all_logits)
            logits.append(logits_of(self.rows[slot][: at + 1], self.vocabulary))
        return np.stack(logits) if all_logits else logits[-1]

    def decode(
        self,
        slots: Sequence[int],
        ids: Sequence[int],
        starts: Sequence[int],
        *,
        shifts: Sequence[int] | None = None,
    ) -> Logits:
        self.shifts = shifts
        assert len(set(slots)) == len(slots) == len(ids) == len(starts) <= self.row_counts[-1]
        for slot, token, start in zip(slots, ids, starts, strict=True):
            self._check(slot, [token], start)
        self._begin("decode", *slots, writes=slots)
        self.clock.now_s += 0.02
        for slot, token, start in zip(slots, ids, starts, strict=True):
            self._append(slot, token, start, -1)
        rows = [
            logits_of(self.rows[s][: at + 1], self.vocabulary)
            for s, at in zip(slots, starts, strict=True)
        ]
        return np.stack(rows)

    def decode_ahead(
        self, slot: int, token: int, start: int, count: int, take: Callable[[int], bool]
    ) -> None:
        self._check(slot, [token] * count, start)
        self._begin("decode_ahead", slot, start, count, writes=[slot])
        for at in range(start, start + count):
            self.clock.now_s += 0.02
            self._append(slot, token, at, -1)
            token = int(np.argmax(logits_of(self.rows[slot][: at + 1], self.vocabulary)))
            if not take(token):
                if at + 1 < start + count:  # a step that was submitted ahead
                    self.rows[slot][at + 1] = mix(token, at + 1, self.rows[slot][at], -1)
                break

    def prepare_ahead(self) -> bool:
        return False

    def verify(self, slot: int, ids: Sequence[int], start: int, *, shift: int = 0) -> Logits:
        self._check(slot, ids, start)
        assert len(ids) in self.verify_sizes
        self._begin("verify", slot, start, len(ids), writes=[slot])
        self.clock.now_s += self.verify_s
        logits = []
        for at, token in enumerate(ids, start):
            self._append(slot, token, at, -1)
            logits.append(logits_of(self.rows[slot][: at + 1], self.vocabulary))
        self.used[slot] = self.length  # rows behind the text hold wrong guesses
        return np.stack(logits)

    def copy_rows(self, source: int, target: int, tokens: int, present: int = 0) -> None:
        assert source != target
        assert 0 < tokens <= self.used[source] and present <= self.used[target]
        more = (present,) if present else ()
        self._begin("copy_rows", source, target, tokens, *more, writes=[target])
        self.rows[target][present:tokens] = self.rows[source][present:tokens]
        self.used[target] = tokens

    def read_rows(self, slot: int, tokens: int) -> Sequence[np.ndarray[Any, Any]]:
        assert 0 < tokens <= self.used[slot]
        self._begin("read_rows", slot, tokens)
        return [np.array(self.rows[slot][:tokens], np.uint64)]

    def write_rows(self, slot: int, rows: Sequence[np.ndarray[Any, Any]], present: int = 0) -> None:
        assert present <= self.used[slot]
        more = (present,) if present else ()
        self._begin("write_rows", slot, len(rows[0]), *more, writes=[slot])
        self.rows[slot][present : len(rows[0])] = [int(row) for row in rows[0][present:]]
        self.used[slot] = len(rows[0])

    def read_states(self, slot: int) -> Sequence[np.ndarray[Any, Any]]:
        self._begin("read_states", slot, self.used[slot])
        return [np.array([self._states[slot]], np.uint64)]

    def write_states(self, slot: int, states: Sequence[np.ndarray[Any, Any]], tokens: int) -> None:
        assert 0 < tokens <= self.used[slot]
        self._begin("write_states", slot, tokens, writes=[slot])
        self._states[slot], self.used[slot] = int(states[0][0]), tokens

    def prepare(self) -> None:
        self._begin("prepare")
        self.is_prepared = True

    def prepare_prompt(
        self, tokens: int | None = None, pictures: PromptPictures | None = None
    ) -> None:
        self._begin("prepare_prompt")
        self.is_prepared = True

    def prepare_verify(self) -> None:
        self._begin("prepare_verify")

    def close(self) -> None:
        self._begin("close")
        self.is_closed = True
