"""What the parts of a plan over several computers ask of each other and of the network.

    driver --Worker.prepare(part)--> each host                       once per plan
    driver --Worker.start(run, feeds)--> each host                   one message per host and run
    host --TensorTransport.send--> host <--TensorTransport.recv--    one message per transfer
    driver <--Driver.ready-- host   --Worker.commit--> host          only if a host has states
    driver <--Driver.done-- host                                     times of its splits

Of a run that fails anywhere every host is told by `Worker.abort`; each part then waits for what its
devices have under way, and says `failed`. Only when all have, the driver gives the slot to another
run. `PlanRunner` in served.py carries parts out on the side of a host; who moves messages
implements `Worker`, `TensorTransport` and `Driver`, as tests do in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..common.dtypes import NDArray, Progress
from ..plan.multi_host.host_plan import HostPlan
from ..runtime.run_stats import RunStats
from ..trace import Event


class RunKey(NamedTuple):
    """One run of one plan, the same on all hosts. plan: its number, by the driver's own counting.
    slot: the set of memory that it has on every host. sequence_number: grows with each run of the
    plan.
    """

    plan: int
    slot: int
    sequence_number: int


class WorkerRunResult(NamedTuple):
    """What a host tells of a run that is done there, as `Driver.done` is told, but by the driver's
    clock. error_s: by how much its times may be off.
    """

    stats: RunStats
    events: Sequence[Event] = ()
    error_s: float = 0.0


class TensorTransport(Protocol):
    """Values that go from host to host. Threads of several runs use it at once.

    A value may come before its run has started here: it is kept. One that comes after `end`, or for
    a smaller sequence number than that of a run that has ended in this plan and slot, is dropped.
    """

    def send(self, run: RunKey, value: int, host: str, array: NDArray) -> None:
        """Send a value; returns once the array may change again, and does not wait for the
        receiver's `recv`.

        Raises:
            HostLost: there is no way to that host; its `host` says whom. RunAborted.
        """

    def recv(self, run: RunKey, value: int, host: str, timeout_s: float) -> NDArray:
        """Return a value that a host has sent or will send. It is taken once, and is the taker's.

        Raises:
            HostLost: that host is lost. DeviceTimeout: nothing came; `host` says from whom.
            RunAborted: by `abort`, before or meanwhile.
        """

    def has_arrived(self, run: RunKey, value: int, host: str) -> bool:
        """Return whether a value is there that `recv` would return; it does not wait."""

    def abort(self, run: RunKey) -> None:
        """Has every `recv` and `send` of a run raise RunAborted, those that wait now, too."""

    def end(self, run: RunKey) -> None:
        """Drop what is left of a run, and what comes later of it."""


class Driver(Protocol):
    """Whom a host tells how its part of a run goes on. Nothing of it waits or raises."""

    def ready(self, run: RunKey) -> None:
        """All but the commits is done. RemoteDeviceInfo only where the part has commits."""

    def done(self, run: RunKey, stats: RunStats, events: Sequence[Event]) -> None:
        """The part is done. stats, events: splits by their numbers in the part, devices by their
        names there, times by its own clock. events: none, unless the run was started with some
        wanted.
        """

    def failed(self, run: RunKey, error: BaseException) -> None:
        """The part has failed, and nothing of it is under way. Of a DeviceError, `device` is the
        full name, as "node1/vulkan:0", or `host` says which other host is to blame. A CommitFailed
        (runtime/executors/base_executor.py) says which devices of the part may have torn states.
        """


class Worker(Protocol):
    """A computer that carries out parts, as the driver sees it."""

    @property
    def name(self) -> str: ...

    def prepare(self, number: int, part: HostPlan, progress: Progress | None = None) -> None:
        """Make a part ready to run there: memory, weights that are not there, recordings.

        number: of the plan, by the driver's counting; `RunKey.plan` of its runs.

        Raises:
            HostLost. OutOfMemory, DeviceError: what went wrong there; nothing is left of it.
        """

    def start(
        self,
        run: RunKey,
        feeds: Mapping[int, NDArray],
        failed: Callable[[BaseException], None],
        traced: bool = False,
    ) -> None:
        """Start a part's run and does not wait; the arrays may not change before `finish`.

        feeds: the inputs of `HostPlan.inputs`, by node. failed: is called once, on any thread, as
        soon as it is known that the part has failed or its host is lost; it must not wait. traced:
        whether events are wanted.

        Raises:
            HostLost.
        """

    def ready(self, run: RunKey, timeout_s: float) -> None:
        """Wait until all but the commits is done there; of a part without commits do not ask.

        Raises:
            HostLost. DeviceTimeout. What `Driver.failed` was told there.
        """

    def commit(self, run: RunKey) -> None:
        """Has a part that is ready write its states; does not wait. It may be said twice."""

    def finish(self, run: RunKey, timeout_s: float) -> WorkerRunResult:
        """Wait until the part is done, and returns its times. After a DeviceTimeout one may wait
        again.

        Raises:
            HostLost. DeviceTimeout: it says nothing. What `Driver.failed` was told there.
            RunAborted: the run is not known, as an interrupt came before its start.
        """

    def abort(self, run: RunKey) -> None:
        """Has a part give up; does not wait, and raises nothing. `finish` tells when it has."""

    def release_plan(self, number: int) -> None:
        """Free what a plan holds there, once its runs have ended; raises nothing."""
