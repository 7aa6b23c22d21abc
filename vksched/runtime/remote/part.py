"""Part: carries out what one host does of a plan, in the slot and at the time that the caller says.

    for each step before a split:  Send: wait for its split, check, fetch --> Post
                                   Take: Post --> a feed, which the splits find like an input
    when all but commits is done:  agree, which the caller answers when all hosts are that far

Examples: tests/runtime/remote/test_cluster.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import TIMEOUT_MAX

from ...errors import DeviceError
from ...plan.parts import Part, Send, Take
from ...plan.value import HOST
from ...trace import Trace
from ...types import NDArray, Progress, numpy_dtype
from ..carrier import Results, Retired
from ..device import Device
from ..executor import Executor
from ..record import Observers, RunRecord
from .ports import Post, RunKey

Agree = Callable[[Results], None]
"""Is given the results of this part; waits until states may be written, or raises."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a run was started with. feeds: its inputs, and what it has taken."""

    key: RunKey
    feeds: dict[int, NDArray]
    agree: Agree


class PartExecutor(Executor):
    """Carries out one part. devices: as in the machine of its plan."""

    def __init__(
        self,
        part: Part,
        devices: Sequence[Device],
        post: Post,
        trace: Trace,
        timeout_s: float,
        progress: Progress | None = None,
        numbers: Iterator[int] | None = None,
        number: int = -1,
    ) -> None:
        self.part = part
        self._post = post
        self._asked: dict[int, _Asked] = {}
        self.fault: DeviceError | None = None
        """Why it is out of use: the first failure of its devices."""
        super().__init__(part.plan, devices, trace, timeout_s, progress, numbers, number)
        self._outputs = self._outputs[: part.results]

    def carry(
        self,
        key: RunKey,
        feeds: Mapping[int, NDArray],
        agree: Agree,
        observers: Observers | None = None,
    ) -> Results:
        """Runs once on the calling thread, in the slot of the key; see `Carrier.run`.

        agree: is called once all but commits is done; what it raises ends the run, and no state
        changes then.
        """
        asked = self._asked[key.slot] = _Asked(key, dict(feeds), agree)
        try:
            return self.run(asked.feeds, observers, key.slot)
        finally:
            self._post.end(key)

    def why(self, error: BaseException) -> BaseException:
        """Returns why a run failed: of one that came when the part was out of use, why it is."""
        return self.fault if self.fault and isinstance(error, Retired) else error

    def _ticket(self, slot: int) -> int:
        return self._asked[slot].key.ticket

    def _agree(self, run: RunRecord, results: Results) -> None:
        self._asked[run.slot].agree(results)

    def _cross(self, run: RunRecord, split_id: int) -> None:
        for step in self.part.steps.get(split_id, ()):
            if isinstance(step, Send):
                self._send(run, step)
            else:
                self._take(run, step)

    def _send(self, run: RunRecord, step: Send) -> None:
        self._wait(run, step.split, HOST)
        start = self._trace.clock.now()
        array = self._ask(run, step.split).fetch(run.slot, step.value)
        self._post.send(self._asked[run.slot].key, step.value, step.host, array)
        self._fetched(run, step.split, step.value, array, start, HOST)

    def _take(self, run: RunRecord, step: Take) -> None:
        type_ = self.plan.graph.nodes[step.value].type
        limit_s = min(self._timeout_s * (1 + self.part.splits), TIMEOUT_MAX)
        asked = self._asked[run.slot]
        array = self._post.take(asked.key, step.value, step.host, limit_s)
        if array.shape != type_.shape or array.dtype != numpy_dtype(type_.dtype):
            name = self.plan.graph.nodes[step.value].name
            error = DeviceError(
                f"[run] expected {type_} for {name} from {step.host or 'the caller'}, got "
                f"{array.dtype} of shape {array.shape}"
            )
            error.host = step.host
            raise error
        asked.feeds[step.value] = array
        run.crossing_bytes += type_.device_bytes
        self._show(run, step.shown)

    def _fail(self, run: RunRecord, error: DeviceError, blame: bool = True) -> None:
        """What another host is to blame for leaves the devices here as they are."""
        if not error.host:
            super()._fail(run, error, blame)
            self.fault = self.fault or error
