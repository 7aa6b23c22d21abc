"""Staging: transfers between host arrays and device memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ...common.cpu_count import usable_cores
from ...common.dtypes import NDArray, Progress, is_uniform
from ...ops.lowering import native_kernels
from ...ops.quantized.gguf_formats import Repacked
from ...plan.types.offsets import aligned
from ...plan.types.plan_types import Span
from ...storage.lazy_array import ArrayLike, LazyArray
from ..cpu.worker_pool import Workers
from .buffers import Buffer, HostBuffer
from .context import Context, Recording
from .word_view import _words, to_words
from .zero_pages import Zeros

STAGING_WORDS = 1 << 20
"""Large enough for the bus, small enough to be soon full the first time."""


WRITERS = 4
"""Threads that write to new memory side by side: most of the time goes into its first touch."""


PIECES_AT_ONCE = 16
"""After so many pieces of staging size, the user hears of it."""


UPLOAD_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class _Part:
    """Words of a value, `start` to `end`, and where they go in a piece."""

    at: int
    held: ArrayLike
    start: int
    end: int

    @property
    def behind(self) -> int:
        """The word of a piece behind them."""
        return self.at + self.end - self.start

    @property
    def file(self) -> int | None:
        """The file of which native loops make the value; None where they do not."""
        held = self.held
        known = isinstance(held, Repacked) and native_kernels.has_repack_file() and held.place
        return known[0] if known else None

    def of_file(self, piece: NDArray) -> native_kernels.FilePart:
        """Return whole rows as `loops.repack_file` takes them."""
        assert isinstance(self.held, Repacked)
        return self.held.part(piece[self.at : self.behind], self.start // self.held.shape[-1])

    def require(self) -> None:
        """Raise ModelFormatError where the file has changed."""
        if isinstance(self.held, Repacked):
            self.held.require()

    @property
    def is_zero(self) -> bool:
        """Whether they are known to be 0, as a state begins with."""
        held = self.held
        return not isinstance(held, LazyArray) and is_uniform(held) and not held.flat[0]

    def lies_in(self, zeros: Zeros) -> bool:
        """Whether the words are there already: zeros, in memory that no one has touched."""
        return self.is_zero and zeros.lie_in(self.at, self.behind)

    def write(self, piece: NDArray) -> None:
        """Write them, made there and then where the host does not have them."""
        out = piece[self.at : self.behind]
        if isinstance(self.held, LazyArray):
            self.held.write_to(out, self.start)
        else:
            out[:] = self.held[self.start : self.end]


class _Stage:
    """One of two staging buffers: the host fills one while the device empties the other."""

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
    """Write arrays one behind the other, aligned, to device memory that nothing has used yet: at
    once where the host can see it, by so many threads, and else by `upload`. What lies there
    already is not written where the host reads it as fast as its own memory.
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
                if progress is not None:  # behind the last piece there may be a gap
                    last = first + len(some) == len(pieces)
                    done = words.size if last else some[-1][-1].behind
                    progress("upload", 4 * done, 4 * words.size)


def _write(words: NDArray, parts: Sequence[_Part], zeros: Zeros | None) -> None:
    """Write parts, where native loops read a file many of them in one call. zeros: those that lie
    there already, if they are to be left alone.
    """
    if zeros is not None:
        parts = [part for part in parts if not part.lies_in(zeros)]
    in_file = [part for part in parts if part.file is not None]
    left = [part for part in parts if part.file is None]
    for _, some in groupby(in_file, lambda part: part.file):
        same = list(some)
        left += same[native_kernels.repack_file([part.of_file(words) for part in same]) :]
        same[0].require()
    for part in left:  # where the file lacks something, it says so
        part.write(words)


def upload(
    context: Context,
    target: Buffer,
    arrays: Sequence[ArrayLike],
    progress: Progress | None = None,
    at_word: int = 0,
) -> None:
    """Write arrays one behind the other, aligned, to a device through two staging buffers."""
    total = sum(aligned(_words(a)) for a in arrays)
    if total == 0:
        return
    chunk = min(STAGING_WORDS, total)
    stages: list[_Stage] = []
    try:
        stages.extend(_Stage(context, chunk) for _ in range(2 if total > chunk else 1))
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
    stage = _Stage(context, chunk, reads=True)
    try:
        for start in range(0, span.words, chunk):
            words = min(chunk, span.words - start)
            stage.copy(source, stage.host, span.offset + start, 0, words)
            stage.finish()
            out[start : start + words] = stage.host.array[:words]
    finally:
        stage.close()
    return out


def _pieces(arrays: Sequence[ArrayLike], chunk: int) -> list[tuple[int, int, list[_Part]]]:
    """Cuts arrays, laid one behind the other, into chunks: (start word, words, what is in it)."""
    placed, total = _placed(arrays)
    pieces = []
    for start in range(0, total, chunk):
        end = min(start + chunk, total)
        parts = [
            _Part(max(at - start, 0), flat, max(start - at, 0), min(end - at, flat.size))
            for at, flat in placed
            if at < end and at + flat.size > start
        ]
        pieces.append((start, end - start, parts))
    return pieces


def _rows(arrays: Sequence[ArrayLike], size: int) -> Iterator[list[_Part]]:
    """Yield parts that have about so many words together, of the same memory and of whole rows."""
    parts: list[_Part] = []
    for at, held in _placed(arrays)[0]:
        row = held.shape[-1] if isinstance(held, LazyArray) else 1
        step = max(1, size // row) * row
        for start in range(0, held.size, step):
            parts.append(_Part(at + start, held, start, min(start + step, held.size)))
            if parts[-1].behind - parts[0].at >= size:
                yield parts
                parts = []
    if parts:
        yield parts


def _placed(arrays: Sequence[ArrayLike]) -> tuple[list[tuple[int, ArrayLike]], int]:
    """Return arrays, as words unless they are late, with the words where they begin, one behind
    the other; and how many words there are.
    """
    placed: list[tuple[int, ArrayLike]] = []
    total = 0
    for array in arrays:
        placed.append((total, array if isinstance(array, LazyArray) else to_words(array)))
        total += aligned(_words(array))
    return placed, total
