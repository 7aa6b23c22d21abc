"""Weights on a Vulkan device: uploaded once, shared by every plan that uses them, freed with the
last of these.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import DTypeError
from ..plan.memory import ALIGN_WORDS, aligned
from ..plan.plan import Span
from ..types import WORD_BYTES, NDArray, TensorType
from .device import Progress
from .kompute import Buffer, Context, HostBuffer, Pipeline, Recording
from .shaders import Shader, load_shader

STAGING_WORDS = 4 << 20
UPLOAD_TIMEOUT_S = 120.0


def to_words(array: NDArray) -> NDArray:
    """Returns an array as 32-bit words (see TensorType), a view where it can be.

    Raises:
        DTypeError: an int64 that does not fit int32, or a type that stays on the CPU.
    """
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
    if flat.dtype == np.float16:
        if flat.size % 2:
            flat = np.append(flat, np.float16(0))
        return flat.view(np.uint32)
    if flat.dtype.itemsize != WORD_BYTES:
        raise DTypeError(f"[run] expected values that a device can hold, got {flat.dtype}")
    return flat.view(np.uint32)


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


def copy_groups(words: int, shader: Shader, max_groups: int) -> tuple[int, int, int]:
    """Returns the groups of the copy kernel, which strides over what the groups do not reach."""
    per_group = int(shader.specialize({})[0]) * 16
    return (max(1, min(-(-words // per_group), max_groups)), 1, 1)


def _words(array: NDArray) -> int:
    return TensorType(array.shape, str(array.dtype)).words


@dataclass(slots=True)
class _Page:
    buffer: Buffer
    users: int


class WeightStore:
    """The weight pages of one device."""

    def __init__(self, context: Context, page_bytes: int, max_groups: int) -> None:
        self._context = context
        self._page_words = page_bytes // 4
        self._max_groups = max_groups
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
        with self._lock:
            return key in self._spans

    def span(self, key: object) -> Span:
        return self._spans[key]

    def buffer(self, page: int) -> Buffer:
        return self._pages[page].buffer

    def acquire(
        self, items: Sequence[tuple[object, NDArray]], progress: Progress | None = None
    ) -> tuple[int, ...]:
        """Makes arrays resident and returns the pages that hold them; give these to `release`."""
        with self._lock:
            missing = {key: array for key, array in items if key not in self._spans}
            added: list[int] = []
            try:
                for group in self._pack(list(missing.items())):
                    added.append(self._upload(group, progress))
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

    def _pack(self, items: Sequence[tuple[object, NDArray]]) -> list[list[tuple[object, NDArray]]]:
        groups: list[list[tuple[object, NDArray]]] = []
        used = self._page_words + 1
        for key, array in items:
            words = aligned(_words(array))
            if used + words > self._page_words:
                groups.append([])
                used = 0
            groups[-1].append((key, array))
            used += words
        return groups

    def _upload(self, items: Sequence[tuple[object, NDArray]], progress: Progress | None) -> int:
        total = sum(aligned(_words(array)) for _, array in items)
        page = self._next_page
        self._next_page += 1
        buffer = self._context.storage(max(total, ALIGN_WORDS))
        try:
            upload(self._context, buffer, [a for _, a in items], self._max_groups, progress)
        except BaseException:
            buffer.close()
            raise
        self._pages[page] = _Page(buffer, 0)
        offset = 0
        for key, array in items:
            self._spans[key] = Span(page, offset, _words(array))
            offset += aligned(_words(array))
        return page


class _Stage:
    """One of two staging buffers: the host fills one while the device empties the other."""

    def __init__(self, context: Context, target: Buffer, shader: Shader, words: int) -> None:
        self.host: HostBuffer = context.host(words)
        self.recording: Recording = context.recording()
        self.pipeline: Pipeline = context.pipeline(
            shader.spirv, [self.host, target], shader.specialize({}), shader.push_bytes
        )
        self.pending = False

    def finish(self) -> None:
        if self.pending:
            self.recording.wait(UPLOAD_TIMEOUT_S)
            self.pending = False

    def close(self) -> None:
        self.recording.close()
        self.pipeline.close()
        self.host.close()


def upload(
    context: Context,
    target: Buffer,
    arrays: Sequence[NDArray],
    max_groups: int,
    progress: Progress | None = None,
) -> None:
    """Writes arrays one behind the other, aligned, to a device through two staging buffers."""
    total = sum(aligned(_words(a)) for a in arrays)
    if total == 0:
        return
    shader = load_shader("copy")
    chunk = min(STAGING_WORDS, total)
    stages = [_Stage(context, target, shader, chunk) for _ in range(2 if total > chunk else 1)]
    try:
        pieces = _pieces(arrays, chunk)
        for turn, (start, words, parts) in enumerate(pieces):
            stage = stages[turn % len(stages)]
            stage.finish()
            for at, flat in parts:
                stage.host.array[at : at + flat.size] = flat
            stage.recording.begin()
            stage.recording.dispatch(
                stage.pipeline,
                copy_groups(words, shader, max_groups),
                shader.pack_push((0, start), {"count": words}),
            )
            stage.recording.barrier("shader", "shader")
            stage.recording.end()
            stage.recording.submit()
            stage.pending = True
            if progress is not None:
                progress("upload", (start + words) * 4, total * 4)
        for stage in stages:
            stage.finish()
    finally:
        for stage in stages:
            stage.close()


def _pieces(
    arrays: Sequence[NDArray], chunk: int
) -> list[tuple[int, int, list[tuple[int, NDArray]]]]:
    """Cuts arrays, laid one behind the other, into chunks: (start word, words, [(word in chunk,
    part)]).
    """
    placed: list[tuple[int, NDArray]] = []
    total = 0
    for array in arrays:
        placed.append((total, to_words(array)))
        total += aligned(_words(array))
    pieces = []
    for start in range(0, total, chunk):
        end = min(start + chunk, total)
        parts = [
            (max(at - start, 0), flat[max(start - at, 0) : end - at])
            for at, flat in placed
            if at < end and at + flat.size > start
        ]
        pieces.append((start, end - start, parts))
    return pieces
