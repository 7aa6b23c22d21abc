"""Protocols of distributed execution: interfaces between drivers, workers and the transport.

    driver --Worker.prepare(part)--> each host                       once per plan
    driver --Worker.start(run, feeds)--> each host                   one message per host and run
    host --TensorTransport.send--> host <--TensorTransport.recv--    one message per transfer
    driver <--Driver.ready-- host   --Worker.commit--> host          only if a host has states
    driver <--Driver.done-- host                                     times of its splits

If a run fails anywhere, the driver calls `Worker.abort` on every host; each host plan then waits
for pending work of its devices and reports `failed`. The driver reuses the slot only after all
hosts have reported. `PlanRunner` in worker/worker.py runs host plans; implementations of the
network, and of tests in memory, provide `Worker`, `TensorTransport` and `Driver`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..common.dtypes import NDArray, Progress
from ..plan.multi_host.host_plan import HostPlan
from ..runtime.run_stats import RunStats
from ..trace import Event


class RunKey(NamedTuple):
    """Key of one run of one plan, equal on all hosts.

    plan: number of the plan, assigned by the driver. slot: memory slot on every host.
    sequence_number: increases with each run of the plan.
    """

    plan: int
    slot: int
    sequence_number: int


class WorkerRunResult(NamedTuple):
    """Result of a host's part of a run, in the driver's clock.

    error_s: error bound of its times.
    """

    stats: RunStats
    events: Sequence[Event] = ()
    error_s: float = 0.0


class TensorTransport(Protocol):
    """Transport of values between hosts. Thread-safe.

    A value may arrive before its run has started here: it is buffered. A value is dropped if it
    arrives after `end`, or if its sequence number is below that of an ended run in its plan and
    slot.
    """

    def send(self, run: RunKey, value: int, host: str, array: NDArray) -> None:
        """Send a value; return once the array may be overwritten, without waiting for `recv`.

        Raises
        ------
        HostLost
            The host cannot be reached; `host` names it.
        RunAborted
            The run was aborted.
        """

    def recv(self, run: RunKey, value: int, host: str, timeout_s: float) -> NDArray:
        """Return a value that a host has sent or will send. It is returned once and owned by the
        receiver.

        Raises
        ------
        HostLost
            The host is lost.
        DeviceTimeout
            No value arrived in time; `host` names the sender.
        RunAborted
            The run was aborted before or meanwhile.
        """

    def has_arrived(self, run: RunKey, value: int, host: str) -> bool:
        """Return True if `recv` would return a value without waiting."""

    def abort(self, run: RunKey) -> None:
        """Make every pending and later `recv` and `send` of a run raise RunAborted."""

    def end(self, run: RunKey) -> None:
        """Drop the remaining values of a run, and values of it that arrive later."""


class Driver(Protocol):
    """Receives the progress of a host's part of a run. No method blocks or raises."""

    def ready(self, run: RunKey) -> None:
        """Report that all but the commits is done; called only if the part commits states."""

    def done(self, run: RunKey, stats: RunStats, events: Sequence[Event]) -> None:
        """Report that the part is done.

        stats, events: splits by their ids in the part, devices by their names there, times by the
        host's clock. events: empty unless the run was started with `traced`.
        """

    def failed(self, run: RunKey, error: BaseException) -> None:
        """Report that the part has failed and none of its work is pending.

        A DeviceError has the full name of the device in `device`, as "node1/vulkan:0", or in `host`
        the other host that caused it. A CommitFailed (runtime/executors/base_executor.py) names the
        devices of the part whose states may be torn.
        """


class Worker(Protocol):
    """A host that runs host plans, as the driver sees it."""

    @property
    def name(self) -> str: ...

    def prepare(self, number: int, part: HostPlan, progress: Progress | None = None) -> None:
        """Prepare a host plan there: allocate memory, upload missing weights, record commands.

        Parameters
        ----------
        number
            Number of the plan, assigned by the driver; `RunKey.plan` of its runs.

        Raises
        ------
        HostLost
            The host is lost.
        OutOfMemory, DeviceError
            The preparation failed there; all of it is released.
        """

    def start(
        self,
        run: RunKey,
        feeds: Mapping[int, NDArray],
        failed: Callable[[BaseException], None],
        traced: bool = False,
    ) -> None:
        """Start a run of a part without waiting; the arrays must not change before `finish`.

        Parameters
        ----------
        feeds
            The inputs in `HostPlan.inputs`, by node.
        failed
            Called once, on any thread, as soon as the part has failed or its host is lost; must not
            block.
        traced
            Record events.

        Raises
        ------
        HostLost
            The host is lost.
        """

    def ready(self, run: RunKey, timeout_s: float) -> None:
        """Wait until all but the commits is done there; call only for parts with commits.

        Raises
        ------
        HostLost
            The host is lost.
        DeviceTimeout
            The host did not report in time.
        VkschedError
            The error that was passed to `Driver.failed` there.
        """

    def commit(self, run: RunKey) -> None:
        """Let a ready part commit its states; does not wait, and may be repeated."""

    def finish(self, run: RunKey, timeout_s: float) -> WorkerRunResult:
        """Wait until the part is done and return its times. May be repeated after a DeviceTimeout.

        Raises
        ------
        HostLost
            The host is lost.
        DeviceTimeout
            The host did not report in time.
        VkschedError
            The error that was passed to `Driver.failed` there.
        RunAborted
            The run is unknown, because an interrupt came before its start.
        """

    def abort(self, run: RunKey) -> None:
        """Abort a part; does not wait or raise. `finish` waits for the end."""

    def release_plan(self, number: int) -> None:
        """Free the resources of a plan there once its runs have ended; does not raise."""
