"""PlanRunner: run the host plans of one driver, with a thread for each slot.

    prepare(number, part) --> HostPlanExecutor      start(run) --> a thread of the part: carry
    commit, abort --> the thread that waits in agree    ready, done, failed --> Driver

Examples: tests/distributed/test_cluster.py.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceError, PlanError, RunAborted
from ...plan.multi_host.host_plan import HostPlan
from ...runtime.device import Device
from ...runtime.executors.base_executor import CommitFailed, RunResult
from ...runtime.executors.executor_context import ExecutorContext
from ...topology.host_names import on
from ...trace import GatheredTrace, Trace
from ..protocols import Driver, RunKey, TensorTransport
from .host_plan_executor import HostPlanExecutor

MAX_RUNS = 512
"""Maximum number of runs of a driver; each has a thread."""


@dataclass(slots=True)
class _Run:
    """A run in progress. decided: set once the driver has decided on the commit."""

    decided: threading.Event = field(default_factory=threading.Event)
    aborted: bool = False


class _PreparedPart:
    """A prepared part and its threads."""

    def __init__(self, executor: HostPlanExecutor) -> None:
        self.executor = executor
        slots = executor.plan.copies
        self.threads = ThreadPoolExecutor(slots, thread_name_prefix="vksched-part")
        self.runs: dict[RunKey, _Run] = {}

    def close(self) -> None:
        """Wait for its runs and free it."""
        self.threads.shutdown(wait=True)
        self.executor.close()


class PlanRunner:
    """The parts of one driver. devices: devices of this host, named as in the plans of parts."""

    def __init__(
        self,
        devices: Sequence[Device],
        transport: TensorTransport,
        driver: Driver,
        trace: Trace,
        timeout_s: float,
    ) -> None:
        self._devices = {device.name: device for device in devices}
        self._transport = transport
        self._driver = driver
        self._trace = GatheredTrace(trace.clock)
        self._timeout_s = timeout_s
        self._plans: dict[int, _PreparedPart] = {}
        self._preparing: set[int] = set()
        self._running = 0
        self._closed = False
        self._lock = threading.Lock()

    def prepare(self, number: int, part: HostPlan, progress: Progress | None = None) -> None:
        """Prepare a part; see `Worker.prepare`.

        Raises
        ------
        PlanError
            It is for other devices, or a plan has this number.
        """
        with self._lock:
            if number in self._plans or number in self._preparing:
                raise PlanError(f"[host plan] expected a new plan, got {number}, which is prepared")
            self._preparing.add(number)
        try:
            prepared = self._prepared_part(number, part, progress)
            with self._lock:
                if not self._closed:
                    self._plans[number] = prepared
                    return
            prepared.close()
        finally:
            with self._lock:
                self._preparing.discard(number)
        raise RunAborted("[host plan] the driver has gone")

    def _prepared_part(
        self, number: int, part: HostPlan, progress: Progress | None
    ) -> _PreparedPart:
        devices = self._devices_of(part)
        context = ExecutorContext(
            devices, self._trace, self._timeout_s, progress, plan_number=number
        )
        try:
            return _PreparedPart(HostPlanExecutor(part, self._transport, context))
        except DeviceError as error:
            _with_device_name(error, part.host)
            raise

    def _devices_of(self, part: HostPlan) -> list[Device]:
        """Return the devices of a part; raise unless their specs match.

        A CPU that the driver excluded is neither known nor used.
        """
        found = []
        used = {split.device for split in part.plan.splits}
        for number, planned in enumerate(part.plan.topology.devices):
            device = self._devices.get(planned.name)
            if device is None:
                known = ", ".join(self._devices)
                raise PlanError(
                    f"[host plan] expected one of {known} as device, got {planned.name}"
                )
            there = device.spec
            same = replace(planned.limits, tuned=there.limits.tuned) == there.limits
            fits = number not in used or (
                same and planned.max_buffer_bytes <= there.max_buffer_bytes
            )
            if planned.kind != there.kind or not fits:
                raise PlanError(
                    f"[host plan] it takes {planned.name} for another device than it is; try to "
                    "plan again"
                )
            found.append(device)
        return found

    def start(self, run: RunKey, feeds: Mapping[int, NDArray], traced: bool = False) -> None:
        """Start a run on a thread of its part; see `Worker.start`."""
        with self._lock:
            served = self._plans.get(run.plan)
            busy = served is not None and any(key.slot == run.slot for key in served.runs)
            free = served is not None and 0 <= run.slot < served.executor.plan.copies and not busy
            free = free and self._running < MAX_RUNS
            if served is not None and free:
                served.runs[run] = _Run()
                self._running += 1
        if served is None or not free:
            error = PlanError(
                f"[run] expected a plan that is ready and a free slot, and less than {MAX_RUNS} "
                f"runs under way, got {run}"
            )
            self._driver.failed(run, error)
            return
        served.threads.submit(self._run_part, served, run, feeds, traced)

    def commit(self, run: RunKey) -> None:
        """Let a ready run commit its states."""
        found = self._find(run)
        if found is not None:
            found.decided.set()

    def abort(self, run: RunKey) -> None:
        """Abort a run; a finished run is unchanged."""
        found = self._find(run)
        if found is not None:
            self._give_up(run, found)

    def _give_up(self, run: RunKey, found: _Run) -> None:
        found.aborted = True
        self._transport.abort(run)
        found.decided.set()

    def release_plan(self, number: int) -> None:
        """Free a plan. Runs that an interrupted driver has abandoned are aborted."""
        with self._lock:
            served = self._plans.pop(number, None)
            runs = dict(served.runs) if served is not None else {}
        for run, found in runs.items():
            self._give_up(run, found)
        if served is not None:
            served.close()

    def close(self) -> None:
        """Abort all runs and free all plans; none starts afterwards."""
        with self._lock:
            self._closed = True
            plans = list(self._plans)
        for number in plans:
            self.release_plan(number)

    def _find(self, run: RunKey) -> _Run | None:
        with self._lock:
            served = self._plans.get(run.plan)
            return served.runs.get(run) if served is not None else None

    def _run_part(
        self, served: _PreparedPart, run: RunKey, feeds: Mapping[int, NDArray], traced: bool
    ) -> None:
        """Run a part and report its end to the driver; by then the slot is free."""
        executor, here = served.executor, served.runs[run]

        def agree(results: RunResult) -> None:
            if executor.plan.commits:
                self._driver.ready(run)
                here.decided.wait()
            if here.aborted:
                raise RunAborted(f"[run] run {run.sequence_number} of plan {run.plan} was given up")

        try:
            with self._trace.gathering(traced) as events:
                measured = executor.carry(run, feeds, agree).plan_and_stats
        except BaseException as error:
            self._forget(served, run)
            self._driver.failed(run, _with_device_name(executor.why(error), executor.part.host))
        else:
            assert measured is not None
            self._forget(served, run)
            self._driver.done(run, measured[1], events)

    def _forget(self, served: _PreparedPart, run: RunKey) -> None:
        with self._lock:
            del served.runs[run]
            self._running -= 1


def _with_device_name(error: BaseException, host: str) -> BaseException:
    """Set the full name of the device that an error blames."""
    cause = error.cause if isinstance(error, CommitFailed) else error
    if isinstance(cause, DeviceError) and cause.device and "/" not in cause.device:
        cause.device = on(host, cause.device)
    return error
