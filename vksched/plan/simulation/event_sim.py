"""Event simulation of a run on one host: its loop, and the queues of its devices.

The loop is the executor's, see simulate_plan.py. Concurrent runs share the queues.

Examples: tests/plan/test_simulate.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..types.plan_types import HOST
from .sim_types import Busy, Program, SplitTiming


class Queues:
    """The times at which the compute queue and the copy queue of each device become idle."""

    def __init__(self, program: Program) -> None:
        self.of = program.queues or range(len(program.devices))
        self.work_s = [0.0] * len(program.devices)
        self.copies_s = [0.0] * len(program.devices)


class Run:
    """One run. Its clock is the host's time at the next submission."""

    def __init__(
        self, program: Program, number: int, start_s: float, queues: Queues, spans: list[Busy]
    ) -> None:
        self.number = number
        self.now_s = start_s + program.run_s
        self._program = program
        self._queues = queues
        self._spans = spans
        self._done_s: dict[int, float] = {}
        self._async_downloads: dict[int, float | None] = {}
        """For each split, the end of downloads that the host has not waited for; None if not yet
        submitted.
        """
        self._host = self._walk()
        next(self._host, None)

    def advance(self) -> bool:
        """Submit the next split and advance to the next submission; return False at the end."""
        return next(self._host, None) is not None

    def _walk(self) -> Iterator[object]:
        """Run the loop of the host, with a stop before each submission."""
        steps = self._program.steps
        run = len(steps) - self._program.commits
        for number, step in enumerate(steps):
            self._copy(step.input_s, step.device, number)
            yield from self._wait(step.waits)
            if number == run:
                self._fetch(number)
            self._copy(step.crossed_s, step.device, number)
            yield True
            self._submit(step, number)
        yield from self._wait(self._program.final_waits)
        if run == len(steps):
            self._fetch(run)

    def _submit(self, step: SplitTiming, number: int) -> None:
        there_s = 0.0
        if step.coming_s is not None:
            self.now_s += step.submit_s
            free_s = self._done_s[step.after] if step.after != HOST else 0.0
            there_s = self._submit_copies(step.device, number, step.coming_s, free_s)
        queue = self._queues.of[step.device]
        self.now_s += step.submit_s
        start_s = max(self.now_s, self._queues.work_s[queue], there_s)
        finish_s = self._queues.work_s[queue] = start_s + step.seconds
        self._done_s[number] = finish_s
        self._record_span("split", step.device, number, start_s, finish_s)
        if step.leaving_s is not None:
            self._async_downloads[number] = None
        for other in step.deferred_downloads:
            self._submit_downloads(other, self._done_s[other])

    def _submit_downloads(self, number: int, free_s: float = 0.0) -> None:
        """Submit the downloads of a split. free_s: the end of its work."""
        step = self._program.steps[number]
        self.now_s += step.submit_s
        end_s = self._submit_copies(step.device, number, step.leaving_s or 0.0, free_s)
        self._async_downloads[number] = end_s

    def _submit_copies(self, device: int, split: int, seconds: float, free_s: float = 0.0) -> float:
        """Submit copies to a copy queue, and return their end. free_s: the time at which their
        memory is free.
        """
        start_s = max(self.now_s, self._queues.copies_s[device], free_s)
        finish_s = self._queues.copies_s[device] = start_s + seconds
        self._record_span("transfer_queue", device, split, start_s, finish_s)
        return finish_s

    def _fetch(self, number: int) -> None:
        """Fetch the results. number: the number of the next split."""
        device = self._program.steps[number - 1].device if number else 0
        self._copy(self._program.fetched_s, device, None)

    def _copy(self, seconds: float, device: int, split: int | None) -> None:
        if seconds:
            self._record_span("copy", device, split, self.now_s, self.now_s + seconds)
            self.now_s += seconds

    def _wait(self, splits: Iterable[int]) -> Iterator[object]:
        for split in splits:
            self._wait_until(self._done_s[split], split)
            yield from self._await_downloads(split)

    def _await_downloads(self, split: int) -> Iterator[bool]:
        """Submit and await the downloads of a split and of the earlier ones on its device."""
        steps = self._program.steps
        device = steps[split].device
        now = [n for n in self._async_downloads if n <= split and steps[n].device == device]
        for number in now:
            if self._async_downloads[number] is None:
                yield True
                self._submit_downloads(number)
        if now:
            self._wait_until(max(self._async_downloads.pop(number) or 0.0 for number in now), split)

    def _wait_until(self, until_s: float, split: int) -> None:
        if until_s > self.now_s:
            device = self._program.steps[split].device
            self._record_span("wait", device, split, self.now_s, until_s)
            self.now_s = until_s
        self.now_s += self._program.steps[split].fence_s

    def _record_span(
        self, kind: str, device: int, split: int | None, start_s: float, finish_s: float
    ) -> None:
        self._spans.append(Busy(kind, device, split, self.number, start_s, finish_s))
