"""Pipelines and recordings of a context: recording commands, submitting them, and waiting.

    begin -> dispatch, copy, barrier ... -> end -> submit -> wait or done -> duration_s, submit ...

Both keep the objects that they use alive. Examples: tests/runtime/test_companion.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import binding
from .binding import errors
from .buffers import Buffer
from .device_handle import CLOSE_LIMIT_S, DeviceHandle

if TYPE_CHECKING:
    from .buffers import Buffer


class Pipeline:
    """A shader with specialization constants, bound to buffers; group counts and push constants
    vary.
    """

    def __init__(self, device: DeviceHandle, native: Any) -> None:
        self._device = device
        self._native: Any = native
        with self._device.lock:
            self._device.natives.add(self)

    def close(self) -> None:
        """Release the pipeline, at once or with the last recording that uses it."""
        self._native = None


class Recording:
    """Commands that are recorded once and submitted any number of times, one submission at a
    time.
    """

    def __init__(self, device: DeviceHandle, native: Any, sequence: Any) -> None:
        self._device = device
        self._native: Any = native
        self._sequence: Any = sequence
        with self._device.lock:
            self._device.recordings.add(self)

    def begin(self) -> None:
        """Start recording; discard earlier commands."""
        with errors("begin", self._device.name):
            self._open_native().begin()

    def dispatch(self, pipeline: Pipeline, groups: tuple[int, int, int], push: bytes) -> None:
        """Record a dispatch; `push` has exactly the size of the pipeline's push constants."""
        if pipeline._native is None:
            raise self._device.closed_error("dispatch", "pipeline")
        with errors("dispatch", self._device.name):
            self._open_native().dispatch(pipeline._native, groups, push)

    def copy(self, source: Buffer, target: Buffer, at: int, to: int, words: int) -> None:
        """Record a copy of words from word `at` of one buffer to word `to` of another."""
        with errors("copy", self._device.name):
            natives = source._open_native(), target._open_native()
            self._open_native().copy(*natives, at, to, words)

    def copy_imported(self, pages: Any, target: Buffer, at: int, to: int, words: int) -> None:
        """Record a copy of words from byte `at` of imported pages to word `to` of a buffer."""
        with errors("copy", self._device.name):
            self._open_native().copy_host_import(pages, target._open_native(), at, to, words)

    def barrier(self, source: str, destination: str) -> None:
        """Record a barrier from a source to a destination, each one of "shader", "copy", "device"
        (both of these) and "host".
        """
        with errors("barrier", self._device.name):
            self._open_native().barrier(source, destination)

    def end(self) -> None:
        """End recording, before submission."""
        with errors("end", self._device.name):
            self._open_native().end()

    def submit(self, after: Sequence[Recording] = ()) -> None:
        """Submit the commands and return immediately.

        Parameters
        ----------
        after
            Submitted recordings of the same device that must be complete before this one begins.
            The device waits for them, so it must support separate copies (`Context.copies`).
        """
        with errors("submit", self._device.name):
            if after:
                self._open_native().submit([other._open_native() for other in after])
            else:
                self._open_native().submit()
        with self._device.lock:
            self._device.counters.submissions += 1

    def wait(self, timeout_s: float) -> None:
        """Wait for the last submission without the GIL; waiting again after a timeout is allowed.

        Raises
        ------
        DeviceTimeout
            It did not end in time and continues.
        DeviceLost, OutOfMemory
            The error of the driver.
        """
        native = self._open_native()
        with errors("wait", self._device.name):
            if native.pending:
                with self._device.lock:
                    self._device.counters.fence_waits += 1
            native.wait(timeout_s)

    def done(self) -> bool:
        """Return True if the last submission has ended; False if there was none."""
        with errors("done", self._device.name):
            return bool(self._open_native().done())

    @property
    def pending(self) -> bool:
        """Return True if neither `wait` nor `done` has seen the end of the last submission."""
        return bool(self._open_native().pending)

    def duration_s(self) -> float | None:
        """Return the device time of the last submission once it has ended; None without
        timestamps.
        """
        with errors("duration", self._device.name):
            duration: float | None = self._open_native().duration_s()
        return duration

    def close(self, limit_s: float = CLOSE_LIMIT_S) -> None:
        """Wait for a submission in flight, at most limit_s, and release the commands.

        Raises
        ------
        DeviceTimeout
            It did not end; it will be released with the context.
        """
        with self._device.lock:
            if self._native is None:
                return
            limit = time.monotonic() + limit_s
        with errors("close", self._device.name):
            if self._native.pending:
                with contextlib.suppress(binding.companion.DeviceLost):
                    self._native.wait(max(0.0, limit - time.monotonic()))
        self._end(limit_s)

    def _end(self, limit_s: float) -> bool:
        """Return False if the device still executes it; then all objects that it uses are
        retained.
        """
        with self._device.lock:
            native, self._native = self._native, None
            sequence, self._sequence = self._sequence, None
            if native is None:
                return True
            ended = bool(native.close(limit_s))
            if ended:
                sequence.destroy()
            return ended

    def _open_native(self) -> Any:
        native = self._native
        if native is None:
            raise self._device.closed_error("recording", "recording")
        return native
