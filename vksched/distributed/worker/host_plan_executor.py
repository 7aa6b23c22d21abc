"""HostPlanExecutor: run one host's part of a plan, in the slot and at the time that the driver
sets.

    before each split:  Send: complete values: check, fetch --> TensorTransport
                        Take: TensorTransport --> a feed, which splits use like an input
    before each wait:   Send: results of earlier splits: wait, check, fetch --> TensorTransport
    when all but commits is done:  agree; the driver answers when all hosts are ready

Examples: tests/distributed/test_cluster.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import TIMEOUT_MAX

from ...common.dtypes import NDArray, numpy_dtype
from ...common.errors import DeviceError, RunAborted
from ...plan.multi_host.host_plan import HostPlan, Recv, Send
from ...plan.types.plan_types import HOST
from ...runtime.device import Closeable
from ...runtime.executors.base_executor import ExecutorClosed, RunResult
from ...runtime.executors.executor_context import ExecutorContext
from ...runtime.executors.plan_executor import PlanExecutor
from ...runtime.executors.run_record import Observers, RunRecord
from ...runtime.run_stats import HostSpan
from ...topology.host_names import on
from ...trace import Event
from ...trace.perfetto import HOST as HOST_LANE
from ..protocols import RunKey, TensorTransport
from .sending import SentTensor, TensorSender

Agree = Callable[[RunResult], None]
"""Called with the results of this part; waits until states may be committed, or raises."""


@dataclass(frozen=True, slots=True)
class _RunArguments:
    """Arguments of a run. feeds: its inputs and received values. unsent: values to send, in the
    order of the splits that produce them.
    """

    key: RunKey
    feeds: dict[int, NDArray]
    agree: Agree
    unsent: deque[Send] = field(default_factory=deque)


class HostPlanExecutor(PlanExecutor):
    """Run one part; the devices are those of the topology of its plan."""

    def __init__(
        self, part: HostPlan, transport: TensorTransport, context: ExecutorContext
    ) -> None:
        self.part = part
        self._transport = transport
        self._asked: dict[int, _RunArguments] = {}
        self.fault: DeviceError | None = None
        """The first failure of its devices, or None."""
        super().__init__(part.plan, context)
        self._outputs = self._outputs[: part.results]
        targets = {step.host for step in part.walk() if isinstance(step, Send)}
        self._sender = TensorSender(transport, len(targets), context.trace.clock)

    def carry(
        self,
        key: RunKey,
        feeds: Mapping[int, NDArray],
        agree: Agree,
        observers: Observers | None = None,
    ) -> RunResult:
        """Run once on the calling thread in the slot of `key`; see `BaseExecutor.run`.

        agree: called once all but commits is done; its exception ends the run without changes of
        states.
        """
        asked = self._asked[key.slot] = _RunArguments(key, dict(feeds), agree)
        try:
            return self.run(asked.feeds, observers, key.slot)
        finally:
            self._transport.end(key)
            self._sender.end(key)

    def why(self, error: BaseException) -> BaseException:
        """Return the cause of a failed run; for a run after a device failure, that failure."""
        return self.fault if self.fault and isinstance(error, ExecutorClosed) else error

    def _sequence_number(self, slot: int) -> int:
        return self._asked[slot].key.sequence_number

    def shutdown(self) -> tuple[Closeable, ...]:
        left = super().shutdown()
        if not self.under_way:  # called from a callback of a run
            self._sender.close()
        return left

    def _agree(self, run: RunRecord, results: RunResult) -> None:
        asked = self._asked[run.slot]
        self._sender.wait(asked.key)
        if self._trace.active:
            for each in self._sender.sent(asked.key):
                self._emit_sent(run, each)
        asked.agree(results)

    def _cross(self, run: RunRecord, split_id: int) -> None:
        unsent, steps = self._asked[run.slot].unsent, self.part.steps.get(split_id, ())
        for complete in [each for each in unsent if self._is_complete(run, each.split)]:
            unsent.remove(complete)
            self._send(run, complete)
        unsent += [step for step in steps if isinstance(step, Send)]
        for step in steps:
            if isinstance(step, Recv):
                self._receive(run, step, split_id)
        if split_id == len(self._before_commits):
            while unsent:
                self._send(run, unsent.popleft(), alone=not unsent)

    def _is_complete(self, run: RunRecord, split_id: int) -> bool:
        if split_id in run.complete_s:
            return True
        ends_s = self._ask(run, split_id).ends_s(run.slot, split_id)
        return ends_s is not None and ends_s <= self._trace.clock.now()

    def _wait(self, run: RunRecord, split_id: int, needed_by: int) -> None:
        """Wait for a split; send the results of earlier splits before."""
        unsent = self._asked[run.slot].unsent
        while split_id not in run.complete_s and unsent and unsent[0].split < split_id:
            self._send(run, unsent.popleft())
        super()._wait(run, split_id, needed_by)

    def _send(self, run: RunRecord, step: Send, alone: bool = False) -> None:
        self._wait(run, step.split, HOST)
        start = self._trace.clock.now()
        array = self._ask(run, step.split).fetch(run.slot, step.value)
        key = self._asked[run.slot].key
        self._sender.send(key, step.value, step.host, array, alone)
        self._fetched(run, step.split, step.value, array, start, HOST)

    def _emit_sent(self, run: RunRecord, each: SentTensor) -> None:
        about = {"split": self._makers[each.value], "to": on(each.host, HOST_LANE)}
        self._emit_transfer(("send", each.value, each.start_s, each.end_s), run, about)

    def _emit_transfer(
        self, transfer: HostSpan, run: RunRecord, about: Mapping[str, object]
    ) -> None:
        name, value, start_s, end_s = transfer
        size = self.plan.graph.nodes[value].type.device_bytes
        fields = {"node": value, "bytes": size, **about}
        self._trace.emit(Event(name, HOST_LANE, start_s, end_s, run.number, fields, self.number))

    def _receive(self, run: RunRecord, step: Recv, position: int) -> None:
        type_ = self.plan.graph.nodes[step.value].type
        limit_s = min(self._timeout_s * (1 + self.part.splits), TIMEOUT_MAX)
        asked, start = self._asked[run.slot], self._trace.clock.now()
        while asked.unsent and not self._transport.has_arrived(asked.key, step.value, step.host):
            self._send(run, asked.unsent.popleft())
            start = self._trace.clock.now()
        try:
            array = self._transport.recv(asked.key, step.value, step.host, limit_s)
        except RunAborted:
            self._sender.require(asked.key)
            raise
        if self._trace.active:
            needed_by = position if position < len(self._before_commits) else HOST
            about = {"of": on(step.host, HOST_LANE), "needed_by": needed_by}
            transfer = "recv", step.value, start, self._trace.clock.now()
            self._emit_transfer(transfer, run, about)
        if array.shape != type_.shape or array.dtype != numpy_dtype(type_.dtype):
            name = self.plan.graph.nodes[step.value].name
            error = DeviceError(
                f"[run] expected {type_} for {name} from {step.host or 'the driver'}, got "
                f"{array.dtype} of shape {array.shape}"
            )
            error.host = step.host
            raise error
        asked.feeds[step.value] = array
        run.transfer_bytes += type_.device_bytes
        self._show(run, step.shown)

    def _settle(self, run: RunRecord, interrupted: bool) -> None:
        super()._settle(run, interrupted)
        try:
            self._sender.settle(self._asked[run.slot].key)
        except BaseException:  # interrupted again: a thread may still read this slot
            self._busy.update(self._working)
            self.stop_accepting()
            raise

    def _fail(self, run: RunRecord, error: DeviceError, blame: bool = True) -> None:
        """Fail without a device failure here if another host is to blame."""
        if not error.host:
            super()._fail(run, error, blame)
            self.fault = self.fault or error
