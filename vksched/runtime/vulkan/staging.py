"""Staging: transfers between host arrays and device memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import numpy as np

from ...common.cpu_count import usable_cores
from ...common.dtypes import NDArray, Progress, is_uniform
from ...plan.types.offsets import aligned
from ...plan.types.plan_types import Span
from ...storage.lazy_array import ArrayLike, LazyArray
from ..cpu.worker_pool import Workers
from .buffers import Buffer, HostBuffer
from .context import Context, Recording
from .word_view import _words, to_words
from .zero_pages import Zeros

STAGING_WORDS = 1 << 20
"""Size of a staging buffer: large enough to saturate the bus, small enough to fill quickly at
first.
"""


WRITERS = 4
"""Number of threads that write to new memory: most of the time is spent on page faults."""


PIECES_AT_ONCE = 16
"""Progress is reported after this many pieces of staging size."""


UPLOAD_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Range:
    """A range of words of a value, `start` to `end`, and its position in a piece."""

    at: int
    held: ArrayLike
    start: int
    end: int

    @property
    def behind(self) -> int:
        """The end position in the piece."""
        return self.at + self.end - self.start

    @property
    def is_zero(self) -> bool:
        """Return True if all words are known to be 0, as in the initial value of a state."""
        held = self.held
        return not isinstance(held, LazyArray) and is_uniform(held) and not held.flat[0]

    def lies_in(self, zeros: Zeros) -> bool:
        """Return True if the target already holds the words: zeros, in untouched memory."""
        return self.is_zero and zeros.lie_in(self.at, self.behind)

    def write(self, piece: NDArray) -> None:
        """Write the words to a piece; lazy arrays are materialized directly into it."""
        out = piece[self.at : self.behind]
        if isinstance(self.held, LazyArray):
            self.held.write_to(out, self.start)
        else:
            out[:] = self.held[self.start : self.end]


class _StagingBuffer:
    """One of two staging buffers: the host fills one while the device reads the other."""

    def __init__(self, context: Context, words: int, reads: bool = False) -> None:
        self.host: HostBuffer = context.host(words, zeroed=False, read=reads)
        self._recording: Recording = context.recording(copies=True)
        self._pending = False

    def copy(self, source: Buffer, target: Buffer, at: int, to: int, words: int) -> None:
        """Start a copy from or to the staging buffer."""
        self._recording.begin()
        self._recording.barrier("device", "copy")
        self._recording.copy(source, target, at, to, words)
        self._recording.barrier("copy", "host" if target is self.host else "device")
        self._recording.end()
        self._recording.submit()
        self._pending = True

    def finish(self) -> None:
        if self._pending:
            self._recording.wait(UPLOAD_TIMEOUT_S)
            self._pending = False

    def close(self) -> None:
        self._recording.close()
        self.host.close()


def write_new(
    context: Context,
    target: Buffer,
    arrays: Sequence[ArrayLike],
    progress: Progress | None = None,
    writers: int = WRITERS,
) -> None:
    """Write arrays consecutively, aligned, to unused device memory: directly if the host can map
    it, with several threads, else with `upload`. Zeros are skipped if they are in the memory
    already and the host reads it as fast as its own.
    """
    with target.mapped() as words:
        if words is None:
            return upload(context, target, arrays, progress)

        pieces = list(_rows(arrays, STAGING_WORDS))
        with ExitStack() as stack:
            cores = min(usable_cores(), writers)
            workers = stack.enter_context(closing(Workers("vksched-upload", cores)))
            zeros = stack.enter_context(closing(Zeros(words))) if context.is_host else None
            for first in range(0, len(pieces), PIECES_AT_ONCE):
                some = pieces[first : first + PIECES_AT_ONCE]
                workers.each(_write, ((words, parts, zeros) for parts in some))
                if progress is not None:  # there may be a gap after the last piece
                    last = first + len(some) == len(pieces)
                    done = words.size if last else some[-1][-1].behind
                    progress("upload", 4 * done, 4 * words.size)


def _write(words: NDArray, parts: Sequence[_Range], zeros: Zeros | None) -> None:
    """Write parts; lazy arrays of one class in one call. zeros: skip parts that this finds in
    memory; None: write all.
    """
    if zeros is not None:
        parts = [part for part in parts if not part.lies_in(zeros)]
    lazy: dict[type[LazyArray], list[tuple[LazyArray, int, NDArray]]] = {}
    for part in parts:
        held = part.held
        if isinstance(held, LazyArray):
            rows = held, part.start // held.shape[-1], words[part.at : part.behind]
            lazy.setdefault(type(held), []).append(rows)
        else:
            part.write(words)
    for kind, some in lazy.items():
        kind.write_rows(some)


def upload(
    context: Context,
    target: Buffer,
    arrays: Sequence[ArrayLike],
    progress: Progress | None = None,
    at_word: int = 0,
) -> None:
    """Upload arrays consecutively, aligned, through two staging buffers."""
    total = sum(aligned(_words(a)) for a in arrays)
    if total == 0:
        return
    chunk = min(STAGING_WORDS, total)
    stages: list[_StagingBuffer] = []
    try:
        stages.extend(_StagingBuffer(context, chunk) for _ in range(2 if total > chunk else 1))
        for turn, (start, words, parts) in enumerate(_pieces(arrays, chunk)):
            stage = stages[turn % len(stages)]
            stage.finish()
            for part in parts:
                part.write(stage.host.array)
            stage.copy(stage.host, target, 0, at_word + start, words)
            if progress is not None:
                progress("upload", (start + words) * 4, total * 4)
        for stage in stages:
            stage.finish()
    finally:
        for stage in stages:
            stage.close()


def download(context: Context, source: Buffer, span: Span) -> NDArray:
    """Return the words of a span of device memory."""
    out = np.empty(span.words, np.uint32)
    if not span.words:
        return out
    chunk = min(STAGING_WORDS, span.words)
    stage = _StagingBuffer(context, chunk, reads=True)
    try:
        for start in range(0, span.words, chunk):
            words = min(chunk, span.words - start)
            stage.copy(source, stage.host, span.offset + start, 0, words)
            stage.finish()
            out[start : start + words] = stage.host.array[:words]
    finally:
        stage.close()
    return out


def _pieces(arrays: Sequence[ArrayLike], chunk: int) -> list[tuple[int, int, list[_Range]]]:
    """Split arrays, laid out consecutively, into chunks: (start word, words, parts)."""
    placed, total = _placed(arrays)
    pieces = []
    for start in range(0, total, chunk):
        end = min(start + chunk, total)
        parts = [
            _Range(max(at - start, 0), flat, max(start - at, 0), min(end - at, flat.size))
            for at, flat in placed
            if at < end and at + flat.size > start
        ]
        pieces.append((start, end - start, parts))
    return pieces


def _rows(arrays: Sequence[ArrayLike], size: int) -> Iterator[list[_Range]]:
    """Yield groups of parts with about `size` words, each with one array and whole rows."""
    parts: list[_Range] = []
    for at, held in _placed(arrays)[0]:
        row = held.shape[-1] if isinstance(held, LazyArray) else 1
        step = max(1, size // row) * row
        for start in range(0, held.size, step):
            parts.append(_Range(at + start, held, start, min(start + step, held.size)))
            if parts[-1].behind - parts[0].at >= size:
                yield parts
                parts = []
    if parts:
        yield parts


def _placed(arrays: Sequence[ArrayLike]) -> tuple[list[tuple[int, ArrayLike]], int]:
    """Return arrays with their start words, laid out consecutively, and the total number of words.
    Arrays are converted to words unless they are lazy.
    """
    placed: list[tuple[int, ArrayLike]] = []
    total = 0
    for array in arrays:
        placed.append((total, array if isinstance(array, LazyArray) else to_words(array)))
        total += aligned(_words(array))
    return placed, total
