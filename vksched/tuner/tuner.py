"""Tuner: the tuned choices of a scheduler's devices; measures what is missing, within a budget."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import DeviceError, OutOfMemory, PlanError, UnsupportedOp
from ..graph import Graph
from ..ops.choices import Choices
from ..ops.op import get_op
from ..plan.machine import DeviceSpec
from ..plan.plan import Plan
from ..runtime.device import Device
from ..trace import Event, Trace
from .calls import Tunable, calls_of, shader_hash
from .search import LONGEST_S, Bench, search
from .store import Found, Identity, Store, choices

FIRST_USE_S = 3.0
"""What a scheduler spends by itself, in all, on devices that are hardware."""

Tell = Callable[[str, int, int], None]
"""Called with (what, done, total), in calls."""
OpenBench = Callable[[Device, Tunable], AbstractContextManager[Bench]]


@dataclass(frozen=True, slots=True)
class Mode:
    """What a scheduler does about tuning. reads: whether results on disk are used. budget_s: for
    measuring what is missing. software: whether CPU drivers are measured, too.
    """

    reads: bool
    budget_s: float = 0.0
    software: bool = False


def mode_of(tune: object) -> Mode:
    """Returns what the `tune` of a Scheduler means; VKSCHED_TUNE=0 turns "auto" off."""
    if tune == "auto":
        on = os.environ.get("VKSCHED_TUNE", "1") not in ("", "0")
        return Mode(on, FIRST_USE_S if on else 0.0)
    if tune is False:
        return Mode(False)
    if tune is True:
        return Mode(True, math.inf, software=True)
    if isinstance(tune, (int, float)) and tune > 0:
        return Mode(True, float(tune), software=True)
    raise PlanError(
        f'[Scheduler] expected tune of "auto", True, False or seconds above 0, got {tune!r}'
    )


def identity_of(spec: DeviceSpec) -> Identity | None:
    """Returns what results of a device are kept under; None for what has no kernels."""
    if spec.kind != "vulkan" or not spec.driver:
        return None
    return Identity(spec.pool, spec.driver, spec.label)


@dataclass(slots=True)
class _Results:
    found: dict[str, Found]
    choices: Choices = field(default_factory=Choices)


class Tuner:
    """Results by device, from disk and measured. May be used from any number of threads.

    open_bench: makes a call ready to be measured; tests give one that takes no time.
    """

    def __init__(
        self, mode: Mode, store: Store | None = None, open_bench: OpenBench | None = None
    ) -> None:
        self._mode = mode
        self._open_bench = open_bench or _open_bench
        self._store = store
        self._left_s = mode.budget_s
        self._results: dict[Identity, _Results] = {}
        self._given_up: set[tuple[Identity | None, str]] = set()
        """What cannot be compared: too long, too large."""
        self._lock = threading.RLock()

    def tuned(self, spec: DeviceSpec) -> DeviceSpec:
        """Returns a device with its tuned choices."""
        identity = identity_of(spec) if self._mode.reads else None
        if identity is None:
            return spec
        found = self._of(identity).choices
        return replace(spec, limits=replace(spec.limits, tuned=found)) if found else spec

    def results(self, spec: DeviceSpec) -> Mapping[str, Found]:
        """Returns what was measured on a device, by call key."""
        identity = identity_of(spec)
        return {} if identity is None else dict(self._of(identity).found)

    def file(self, spec: DeviceSpec) -> Path | None:
        """Returns where the results of a device are kept."""
        identity = identity_of(spec)
        return None if identity is None or self._store is None else self._store.path(identity)

    def wants(self, spec: DeviceSpec) -> bool:
        """Whether calls are to be measured on a device."""
        may = self._mode.software or not spec.limits.software
        return may and self._left_s > 0 and identity_of(spec) is not None

    def missing(self, spec: DeviceSpec, calls: Mapping[str, Tunable]) -> list[Tunable]:
        """Returns the calls of which not all variants were measured on a device, and could be."""
        known, identity = self.results(spec), identity_of(spec)
        out = []
        for key, call in calls.items():
            found = known.get(key)
            if (identity, key) in self._given_up:
                continue
            if found is None or not {*call.names} <= {*found.seconds, *found.dropped}:
                out.append(call)
        return out

    def measure(self, device: Device, calls: Iterable[Tunable], tell: Tell) -> tuple[Found, ...]:
        """Measures calls on a device while the budget lasts, and keeps what was found.

        Raises:
            DeviceError: the device failed; its `device` and `during` are set.
        """
        calls, made, start = list(calls), [], time.monotonic()
        budget_s = self._left_s

        def left_s() -> float:
            return budget_s - (time.monotonic() - start)

        try:
            for number, call in enumerate(calls):
                if left_s() <= 0:
                    break
                tell(f"{device.name} {call.op.name}", number, len(calls))
                found = _measure(device, call, self._open_bench, left_s)
                if found is not None:
                    made.append(found)
                elif left_s() > 0:
                    self._given_up.add((identity_of(device.spec), call.key))
        finally:
            with self._lock:
                self._left_s -= time.monotonic() - start
            self._keep(device.spec, made)
        tell(device.name, len(calls), len(calls))
        return tuple(made)

    def measure_graph(
        self, graph: Graph, devices: Iterable[Device], plan: Callable[[], Plan], trace: Trace
    ) -> None:
        """Measures the calls of a graph that are missing on the devices where they would run.

        plan: asked only where something is missing. Raises DeviceError as `measure`.
        """
        wanted: list[tuple[Device, dict[str, Tunable]]] = []
        for device in devices:
            if self.wants(device.spec):
                calls = calls_of(graph, device.spec)
                if self.missing(device.spec, calls):
                    wanted.append((device, calls))
        if not wanted:
            return
        made = plan()
        with progress_bar() as tell:
            for device, _ in wanted:
                index = made.machine.index(device.name)
                here = {n for split in made.splits if split.device == index for n in split.nodes}
                missing = self.missing(device.spec, calls_of(graph, device.spec, here))
                start = trace.clock.now()
                found = self.measure(device, missing, tell)
                fields = {"calls": len(found), "missing": len(missing) - len(found)}
                trace.emit(Event("tune", device.name, start, trace.clock.now(), fields=fields))

    def _keep(self, spec: DeviceSpec, made: Iterable[Found]) -> None:
        made = list(made)
        identity = identity_of(spec)
        if identity is None or not made:
            return
        with self._lock:
            found = self._of(identity).found | {each.key: each for each in made}
            self._results[identity] = _Results(found, choices(found.values()))
        if self._store is not None:  # outside the lock: another process may hold the file
            self._store.add(identity, made)

    def _of(self, identity: Identity) -> _Results:
        with self._lock:
            if identity not in self._results:
                read = self._store.load(identity) if self._store is not None else {}
                found = {key: each for key, each in read.items() if _is_current(each)}
                self._results[identity] = _Results(found, choices(found.values()))
            return self._results[identity]


def _is_current(found: Found) -> bool:
    """Whether a result is of the shaders that are here."""
    with suppress(Exception):  # of an op that is not there any more
        return get_op(found.op).kernel is not None and found.shaders == shader_hash(found.op)
    return False


def _measure(
    device: Device, call: Tunable, open_bench: OpenBench, left_s: Callable[[], float]
) -> Found | None:
    """Returns what one call gave; None where it cannot be compared here."""
    work = call.op.work(call.call.inputs, call.call.output, call.call.attrs)
    if device.spec.seconds(work) > LONGEST_S:
        return None  # a submission this long risks the device, and drowns what is to be compared
    try:
        with open_bench(device, call) as bench:
            found = search(call.key, call.names, bench, left_s)
    except (OutOfMemory, UnsupportedOp):
        return None
    except DeviceError as error:
        error.device, error.during = device.name, "tuning"
        raise
    return found and replace(found, shaders=shader_hash(call.op.name))


def _open_bench(device: Device, call: Tunable) -> AbstractContextManager[Bench]:
    """Returns a call ready to be measured on a Vulkan device."""
    from ..runtime.vulkan import VulkanDevice  # needs the native modules
    from .bench import CallBench

    if not isinstance(device, VulkanDevice):
        raise UnsupportedOp(f"[tune] expected a Vulkan device, got {device.name}")
    return CallBench(device, call.op, call.call)


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Tell]:
    """Gives a function that shows a bar on stderr; nothing is shown where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("tuning"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    text = TextColumn("{task.description}", markup=False)
    hide = quiet or not console.is_terminal
    with Progress(*columns, text, console=console, transient=True, disable=hide) as bars:
        task = bars.add_task("", total=None)

        def tell(what: str, done: int, total: int) -> None:
            bars.update(task, description=what, completed=done, total=total)

        yield tell
