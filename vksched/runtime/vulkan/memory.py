"""Weights on a Vulkan device: uploaded once, shared by every plan that uses them, freed with the
last of these. And states, which runs change and which stay.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np

from ...common.cpu_count import usable_cores
from ...common.dtypes import (
    WORD_BYTES,
    NDArray,
    Progress,
    TensorType,
    elements_of_word,
    is_uniform,
    numpy_dtype,
)
from ...common.errors import DeviceLost, DTypeError
from ...ops.lowering import native_kernels
from ...ops.quantized.gguf_formats import Repacked
from ...plan.types.offsets import ALIGN_WORDS, aligned
from ...plan.types.plan_types import Span
from ...storage.lazy_array import Held, Late
from ..host.workers import Workers
from ..states import Item
from .buffers import Buffer, HostBuffer
from .context import Context, Recording
from .zeros import Zeros

STAGING_WORDS = 1 << 20
"""Large enough for the bus, small enough to be soon full the first time."""

WRITERS = 4
"""Threads that write to new memory side by side: most of the time goes into its first touch."""
PIECES_AT_ONCE = 16
"""After so many pieces of staging size, the user hears of it."""

UPLOAD_TIMEOUT_S = 120.0


def to_words(array: NDArray) -> NDArray:
    """Returns an array as 32-bit words (see TensorType), a view where it can be.

    Raises:
        DTypeError: an int64 that does not fit int32, or a type that stays on the CPU.
    """
    if is_uniform(array):
        one = to_words(np.full(elements_of_word(array.dtype.name), array.flat[0]))
        return np.broadcast_to(one, _words(array))
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype == np.bool_:
        return flat.astype(np.uint32)
    if flat.dtype == np.int64:
        small = flat.astype(np.int32)
        if not np.array_equal(small, flat):
            raise DTypeError(
                f"[run] expected int64 values that fit int32, as the plan was told, got "
                f"{flat.min()}..{flat.max()}"
            )
        return small.view(np.uint32)
    if elements_of_word(flat.dtype.name) > 1:
        rest = -flat.size % elements_of_word(flat.dtype.name)
        return (np.append(flat, np.zeros(rest, flat.dtype)) if rest else flat).view(np.uint32)
    if flat.dtype.itemsize != WORD_BYTES:
        raise DTypeError(f"[run] expected values that a device can hold, got {flat.dtype}")
    return flat.view(np.uint32)


class WordView:
    """Words of mapped memory as the values of one type."""

    __slots__ = ("_type", "_values", "_words")

    def __init__(self, words: NDArray, type_: TensorType) -> None:
        self._words = words
        self._type = type_
        dtype = numpy_dtype(type_.dtype)
        as_is = dtype.itemsize == WORD_BYTES or dtype == np.float16
        self._values = read_words(words, dtype, type_.shape) if as_is else None

    def write(self, array: NDArray) -> None:
        if self._values is None:
            self._words[:] = to_words(array)
        else:
            self._values[...] = array

    def read(self) -> NDArray:
        """Returns the values; a view where the words hold them as numpy does."""
        if self._values is None:
            return read_words(self._words, numpy_dtype(self._type.dtype), self._type.shape)
        return self._values


def write_words(target: NDArray, array: NDArray) -> None:
    """Writes an array into 32-bit words."""
    target[:] = to_words(array)


def read_words(words: NDArray, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> NDArray:
    """Returns words as an array of an element type; a view for the 32-bit types and float16."""
    if dtype == np.bool_:
        return np.asarray(words != 0).reshape(shape)
    if dtype == np.int64:
        return words.view(np.int32).astype(np.int64).reshape(shape)
    count = math.prod(shape)
    return words.view(dtype)[:count].reshape(shape)


def _words(held: Held) -> int:
    return -(-held.size // _elements_of_word(held.dtype))


@lru_cache
def _elements_of_word(dtype: np.dtype[np.generic]) -> int:
    return elements_of_word(dtype.name)  # of which numpy makes a text each time


@dataclass(frozen=True, slots=True)
class _Part:
    """Words of a value, `start` to `end`, and where they go in a piece."""

    at: int
    held: Held
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
        """Returns whole rows as `loops.repack_file` takes them."""
        assert isinstance(self.held, Repacked)
        return self.held.part(piece[self.at : self.behind], self.start // self.held.shape[-1])

    def require(self) -> None:
        """Raises ModelFormatError where the file has changed."""
        if isinstance(self.held, Repacked):
            self.held.require()

    @property
    def is_zero(self) -> bool:
        """Whether they are known to be 0, as a state begins with."""
        held = self.held
        return not isinstance(held, Late) and is_uniform(held) and not held.flat[0]

    def lies_in(self, zeros: Zeros) -> bool:
        """Whether the words are there already: zeros, in memory that no one has touched."""
        return self.is_zero and zeros.lie_in(self.at, self.behind)

    def write(self, piece: NDArray) -> None:
        """Writes them, made there and then where the host does not have them."""
        out = piece[self.at : self.behind]
        if isinstance(self.held, Late):
            self.held.into(out, self.start)
        else:
            out[:] = self.held[self.start : self.end]


@dataclass(slots=True)
class _Page:
    buffer: Buffer
    users: int


class WeightStore:
    """The weight pages of one device."""

    def __init__(self, context: Context, page_bytes: int) -> None:
        self._context = context
        self._page_words = page_bytes // 4
        self._pages: dict[int, _Page] = {}
        self._spans: dict[object, Span] = {}
        self._next_page = 0
        self._lock = threading.RLock()

    @property
    def resident_bytes(self) -> int:
        """Bytes of weights on the device, alignment included."""
        with self._lock:
            return sum(aligned(span.words) * 4 for span in self._spans.values())

    def holds(self, key: object) -> bool:
        """Returns whether a weight is on the device now."""
        return key in self._spans  # asked while another thread uploads for long

    def span(self, key: object) -> Span:
        return self._spans[key]

    def buffer(self, page: int) -> Buffer:
        return self._pages[page].buffer

    def acquire(
        self,
        items: Sequence[tuple[object, Held]],
        progress: Progress | None = None,
        writers: int = WRITERS,
    ) -> tuple[int, ...]:
        """Makes arrays resident and returns the pages that hold them; give these to `release`.
        writers: how many threads may write to memory that the host sees.
        """
        with self._lock:
            missing = {key: array for key, array in items if key not in self._spans}
            added: list[int] = []
            try:
                for group in self._pack(list(missing.items())):
                    added.append(self._upload(group, progress, writers))
            except BaseException:
                for page in added:
                    self._drop(page)
                raise
            pages = tuple(sorted({self._spans[key].page for key, _ in items}))
            for page in pages:
                self._pages[page].users += 1
            return pages

    def release(self, pages: Sequence[int]) -> None:
        """Gives back what `acquire` returned; a page without users is freed."""
        with self._lock:
            for page in pages:
                self._pages[page].users -= 1
                if self._pages[page].users == 0:
                    self._drop(page)

    def _drop(self, page: int) -> None:
        self._pages.pop(page).buffer.close()
        self._spans = {key: span for key, span in self._spans.items() if span.page != page}

    def _pack(self, items: Sequence[tuple[object, Held]]) -> list[list[tuple[object, Held]]]:
        groups: list[list[tuple[object, Held]]] = []
        used = self._page_words + 1
        for key, array in items:
            words = aligned(_words(array))
            if used + words > self._page_words:
                groups.append([])
                used = 0
            groups[-1].append((key, array))
            used += words
        return groups

    def _upload(
        self, items: Sequence[tuple[object, Held]], progress: Progress | None, writers: int
    ) -> int:
        total = sum(aligned(_words(array)) for _, array in items)
        page = self._next_page
        self._next_page += 1
        buffer = self._context.storage(max(total, ALIGN_WORDS))
        try:
            write_new(self._context, buffer, [a for _, a in items], progress, writers)
        except BaseException:
            buffer.close()
            raise
        self._pages[page] = _Page(buffer, 0)
        offset = 0
        for key, array in items:
            self._spans[key] = Span(page, offset, _words(array))
            offset += aligned(_words(array))
        return page


class DeviceStates:
    """The states of one Vulkan device: like weights, but they change and stay until removed."""

    def __init__(self, context: Context, page_bytes: int, apart: bool) -> None:
        self._context = context
        self._store = WeightStore(context, page_bytes)
        self._apart = apart
        self._held: dict[object, tuple[TensorType, tuple[int, ...]]] = {}

    def holds(self, key: object) -> bool:
        return key in self._held

    def place(self, key: object) -> tuple[Buffer, Span]:
        """Returns where a state lies: a buffer and a span of it."""
        try:
            span = self._store.span(key)
            return self._store.buffer(span.page), span
        except KeyError:
            raise DeviceLost(
                "[state] expected a state, got none: its device failed meanwhile"
            ) from None

    def add(self, items: Iterable[Item]) -> None:
        # one that comes twice counts once, else its first pages would never be given back
        new = list({key: (key, array) for key, array in items if key not in self._held}.values())
        # in one page, unless validation is to see each as a buffer of its own
        groups = [[item] for item in new] if self._apart else [new]
        taken: list[tuple[int, ...]] = []
        try:
            for group in groups:
                taken.append(self._store.acquire(group))
            for key, array in new:
                type_ = TensorType(array.shape, str(array.dtype))
                self._held[key] = type_, self._store.acquire([(key, array)])
        finally:
            for pages in taken:
                self._store.release(pages)

    def read(self, key: object) -> NDArray:
        type_, _ = self._held[key]
        words = download(self._context, *self.place(key))
        dtype = numpy_dtype(type_.dtype)
        return np.array(read_words(words, dtype, type_.shape), copy=True)

    def write(self, key: object, array: NDArray) -> None:
        buffer, span = self.place(key)
        upload(self._context, buffer, [array], at_word=span.offset)

    def remove(self, key: object) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._store.release(held[1])

    def keys(self) -> tuple[object, ...]:
        return tuple(self._held)


class _Stage:
    """One of two staging buffers: the host fills one while the device empties the other."""

    def __init__(self, context: Context, words: int, reads: bool = False) -> None:
        self.host: HostBuffer = context.host(words, zeroed=False, read=reads)
        self._recording: Recording = context.recording(copies=True)
        self._pending = False

    def copy(self, source: Buffer, target: Buffer, at: int, to: int, words: int) -> None:
        """Starts a copy from or to the staging buffer."""
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
    arrays: Sequence[Held],
    progress: Progress | None = None,
    writers: int = WRITERS,
) -> None:
    """Writes arrays one behind the other, aligned, to device memory that nothing has used yet: at
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
    """Writes parts, where native loops read a file many of them in one call. zeros: those that lie
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
    arrays: Sequence[Held],
    progress: Progress | None = None,
    at_word: int = 0,
) -> None:
    """Writes arrays one behind the other, aligned, to a device through two staging buffers."""
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
    """Returns the words of a span of device memory."""
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


def _pieces(arrays: Sequence[Held], chunk: int) -> list[tuple[int, int, list[_Part]]]:
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


def _rows(arrays: Sequence[Held], size: int) -> Iterator[list[_Part]]:
    """Yields parts that have about so many words together, of the same memory and of whole rows."""
    parts: list[_Part] = []
    for at, held in _placed(arrays)[0]:
        row = held.shape[-1] if isinstance(held, Late) else 1
        step = max(1, size // row) * row
        for start in range(0, held.size, step):
            parts.append(_Part(at + start, held, start, min(start + step, held.size)))
            if parts[-1].behind - parts[0].at >= size:
                yield parts
                parts = []
    if parts:
        yield parts


def _placed(arrays: Sequence[Held]) -> tuple[list[tuple[int, Held]], int]:
    """Returns arrays, as words unless they are late, with the words where they begin, one behind
    the other; and how many words there are.
    """
    placed: list[tuple[int, Held]] = []
    total = 0
    for array in arrays:
        placed.append((total, array if isinstance(array, Late) else to_words(array)))
        total += aligned(_words(array))
    return placed, total
