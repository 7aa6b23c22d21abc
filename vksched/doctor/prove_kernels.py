"""Op cases on one device, in a child process, because a driver may end it.

parent: starts the child at a case -> reads its lines    the child ended: it goes on behind it
child:  {"number": 0, "begin": [op, case]} -> runs -> {"number": 0, "outcome": ...} -> next
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from tempfile import TemporaryFile
from typing import Any

from ..testing.check_ops import check_samples, op_of, select
from ..testing.op_cases.op_sample import FunctionSample, OpSample
from .health_report import KernelFailure, KernelProof

SILENT_S = 300.0
"""A child without a line for this time hangs."""
MAX_ENDED = 5
"""Number of child processes that may end before the device is given up."""

Case = OpSample | FunctionSample


def selected_cases(every: bool) -> list[Case]:
    """Return all cases, or a small one for each op and element type."""
    cases = select(())
    if every:
        return cases
    found: dict[object, Case] = {}
    for case in cases:
        if isinstance(case, FunctionSample):
            found.setdefault(case.function, case)
        elif not case.large:
            found.setdefault((case.op, tuple(x.dtype.name for x in case.inputs)), case)
    return [*found.values()]


def prove(device: str, every: bool, advance: Callable[[str], None]) -> KernelProof:
    """Compare cases on a device with numpy. advance: called with the op of each case."""
    count, start, ended = len(selected_cases(every)), 0, 0
    right = on_cpu = 0
    failures: list[KernelFailure] = []
    while start < count and ended < MAX_ENDED:
        begun: tuple[str, str] | None = None
        child = _Child(device, every, start)
        for line in child.lines():
            if "begin" in line:
                begun, start = (line["begin"][0], line["begin"][1]), line["number"]
                continue
            outcome, begun, start = line["outcome"], None, line["number"] + 1
            right += not outcome["error"] and not outcome["reason"]
            on_cpu += bool(outcome["reason"])
            if outcome["error"]:
                failures.append(KernelFailure(outcome["op"], outcome["case"], outcome["error"]))
            advance(outcome["op"])
        if start < count:
            ended += 1
            failures.append(KernelFailure(*(begun or ("", "")), child.ending))
            start += 1
            advance(begun[0] if begun else "")
            if begun is None:  # it would end again
                break
    if start < count:
        text = f"{count - start} op cases were not run after {ended} ends of the process"
        failures.append(KernelFailure("", "", text))
    return KernelProof(start, right, on_cpu, tuple(failures))


class _Child:
    """The child process that runs cases from `start` on. ending: how it ended."""

    def __init__(self, device: str, every: bool, start: int) -> None:
        which = "all" if every else "some"
        self._command = [sys.executable, "-m", __name__, device, which, str(start)]
        self.ending = ""

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the child until it ends."""
        with (
            TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
            subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
                errors="replace",
            ) as child,
        ):
            assert child.stdout is not None
            watch = _Watch(child)
            try:
                for text in child.stdout:
                    watch.restart()
                    if text.startswith('{"number":'):
                        with suppress(ValueError):  # a line that the driver cut
                            yield json.loads(text)
            finally:
                watch.stop()
                child.kill()
            errors.seek(0)
            last = (errors.read().strip().splitlines() or [""])[-1]
            self.ending = _ending(child.wait(), last, watch.hung)


def _ending(code: int, last: str, hung: bool) -> str:
    """Return a text for the end of a child. last: the last line that it wrote to stderr."""
    if hung:
        return f"the driver gave no answer for {SILENT_S:.0f} s"
    if code < 0:
        return f"the driver ended the process with signal {-code}"
    return f"the process ended with code {code}: {last or 'no message'}"


class _Watch:
    """Kills a child that is silent for SILENT_S."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        self._timer: threading.Timer | None = None
        self.hung = False
        self.restart()

    def restart(self) -> None:
        self.stop()
        self._timer = threading.Timer(SILENT_S, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        self.hung = True
        self._child.kill()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def main(device: str, which: str, start: str) -> None:
    """Run in the child: print a line before and after each case."""
    from ..runtime.vulkan.vulkan_device import VulkanDevice
    from ..scheduler.scheduler import Scheduler
    from ..testing.kernel_runner import Runner

    with Scheduler([device]) as sched:
        opened = sched.devices[0]
        assert isinstance(opened, VulkanDevice)
        runner = Runner(opened)
        for number, case in enumerate(selected_cases(which == "all")):
            if number < int(start):
                continue
            _print_line(number, "begin", [op_of(case), case.id])
            for outcome in check_samples(runner, [case]):
                _print_line(number, "outcome", asdict(outcome))


def _print_line(number: int, key: str, value: object) -> None:
    """Print a line of the child, apart from texts that the driver prints."""
    print(f"\n{json.dumps({'number': number, key: value})}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
