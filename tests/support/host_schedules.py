"""Parts carried out by numpy on plain threads, and parts as documents of this process: what a node
does beside its messages, in a few lines.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping

import numpy as np

from vksched.common.dtypes import NDArray, Progress
from vksched.distributed.protocols import Driver, RunKey, TensorTransport
from vksched.distributed.wire.channel import Payload
from vksched.distributed.worker.weight_cache import hash_of
from vksched.plan.multi_host.host_plan import HostPlan, Send
from vksched.runtime.cpu.evaluate import Values, evaluate_node
from vksched.runtime.run_stats import RunStats

TAKE_S = 60.0


def walk(
    part: HostPlan, run: RunKey, feeds: Mapping[int, NDArray], transport: TensorTransport
) -> list[NDArray]:
    """Carry out a part and returns its outputs."""
    graph, values = part.plan.graph, Values(part.plan.graph)
    for node, array in feeds.items():
        values[node] = array
    for position in range(len(part.plan.splits) + 1):
        for step in part.steps.get(position, ()):
            if isinstance(step, Send):
                transport.send(run, step.value, step.host, np.ascontiguousarray(values[step.value]))
            else:
                values[step.value] = transport.recv(run, step.value, step.host, TAKE_S)
        for node in part.plan.splits[position].nodes if position < len(part.plan.splits) else ():
            operands = tuple(values[i] for i in graph.nodes[node].inputs)
            values[node] = evaluate_node(graph, node, operands)
    transport.end(run)
    return [np.array(values[node]) for _, node in graph.outputs[: part.results]]


class Walker:
    """Implements `session.WorkerService`. hold: cleared, parts stand still before they begin."""

    def __init__(self, transport: TensorTransport, driver: Driver) -> None:
        self.transport, self.driver = transport, driver
        self.parts: dict[int, HostPlan] = {}
        self.hold = threading.Event()
        self.hold.set()
        self.fails: BaseException | None = None
        self.commits: list[RunKey] = []
        self.runs: list[threading.Thread] = []
        self.closed = threading.Event()

    def prepare(self, number: int, part: HostPlan, progress: Progress | None = None) -> None:
        if self.fails is not None:
            raise self.fails
        assert progress is not None
        progress("weights", 1, 2)
        self.parts[number] = part

    def start(self, run: RunKey, feeds: Mapping[int, NDArray], traced: bool = False) -> None:
        thread = threading.Thread(target=self._run, args=(run, feeds))
        self.runs.append(thread)
        thread.start()

    def _run(self, run: RunKey, feeds: Mapping[int, NDArray]) -> None:
        try:
            assert self.hold.wait(TAKE_S)
            if self.fails is not None:
                raise self.fails
            walk(self.parts[run.plan], run, feeds, self.transport)
            self.driver.ready(run)
            self.driver.done(
                run, RunStats(run.sequence_number, 0.5, 1, 2, 3, 4, 5, start_s=7.0), ()
            )
        except BaseException as error:
            self.transport.end(run)
            self.driver.failed(run, error)

    def commit(self, run: RunKey) -> None:
        self.commits.append(run)

    def abort(self, run: RunKey) -> None:
        self.transport.abort(run)

    def release_plan(self, number: int) -> None:
        self.parts.pop(number)

    def close(self) -> None:
        self.hold.set()
        for number in self.parts:
            for slot, sequence_number in itertools.product(range(4), range(64)):
                self.transport.abort(RunKey(number, slot, sequence_number))
        for thread in self.runs:
            thread.join()
        self.closed.set()


class Registry:
    """Implements `session.Documents` within one process: a document is a number, and a weight is
    asked for as a real one would be.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[HostPlan, Mapping[str, Payload]]] = []
        self.read_weights: list[NDArray] = []

    def write(
        self, part: HostPlan, state: Callable[[object], str]
    ) -> tuple[bytes, Mapping[str, Payload]]:
        data = part.plan.graph.data.values()
        weights: dict[str, Payload] = {hash_of([np.asarray(a)]): [np.asarray(a)] for a in data}
        self.parts.append((part, weights))
        return str(len(self.parts) - 1).encode(), weights

    def read(
        self, text: bytes, weight: Callable[[str], NDArray], state: Callable[[str], object]
    ) -> HostPlan:
        part, weights = self.parts[int(text)]
        self.read_weights = [weight(name) for name in weights]
        return part
