"""Reads mutants of parts, as a driver with the key may send them, in a process that may end at any.

    python tests/planner/fuzz_host_plans.py --seed 1 --first 0 --count 1000

A part that is read is carried out on null devices and the CPU, and must give the numbers of its
graph. A line is printed for each mutant before it is read, and one more where that was not as it
should be. Allowed is to be read, or to be refused with a PlanError; not a crash, not more than
`LIMIT_S`, not more memory than `SPARE_BYTES`.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from cut_plans import spread
from drawn_plans import draw_case
from mutants import LIMIT_S
from mutated_json import mutate

import vksched as vs
from vksched.common.dtypes import NDArray, numpy_dtype
from vksched.common.errors import PlanError, VkschedError
from vksched.distributed.protocols import RunKey
from vksched.distributed.worker.host_plan_executor import HostPlanExecutor
from vksched.plan.multi_host.host_plan import HostPlan, Send
from vksched.plan.multi_host.host_plan_codec import Weights, decode_host_plan, encode_host_plan
from vksched.planner.partition.host_partition import cut
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.cpu.evaluate import Values, evaluate_node
from vksched.runtime.device import Device
from vksched.runtime.executors.executor_context import ExecutorContext

SPARE_BYTES = 1 << 30
DRAWN = 24
"""Cases whose parts are changed."""
SPARED = frozenset(("limits", "costs"))
"""Of devices: many numbers, of which plans by hand have others, too."""
MAX_ELEMENTS = 1 << 20
"""Of a graph that is carried out."""
Document = dict[str, Any]
Seen = Mapping[str, NDArray]


@cache
def corpus() -> tuple[tuple[Document, Seen], ...]:
    """Return parts as documents, with the bytes of their weights by hash."""
    out: list[tuple[Document, Seen]] = []
    for seed in range(DRAWN):
        try:
            plan = draw_case(seed, 12).plan("priority")
        except PlanError:
            continue
        for part in cut(spread(plan, ("node1", "node2"))):
            weights = Weights(part)
            held = {
                each: np.frombuffer(b"".join(p.tobytes() for p in weights[each]), np.uint8)
                for each in weights
            }
            document = encode_host_plan(part, lambda key: f"state {id(key)}")
            out.append((json.loads(json.dumps(document)), held))
    return tuple(out)


def read(document: Document, held: Seen) -> HostPlan | None:
    """Return the part; None if it is refused as it should be."""

    def weight(digest: str) -> NDArray:
        if digest not in held:
            raise PlanError("no such weight")
        return held[digest]

    try:
        return decode_host_plan(document, weight)
    except PlanError:
        return None


class Differs(Exception):
    """A part does something else than its graph says."""


class TensorTransport:
    """Sends to nobody, and gives whoever takes what it was told."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self.sent: list[tuple[int, NDArray]] = []

    def send(self, run: RunKey, value: int, host: str, array: NDArray) -> None:
        self.sent.append((value, np.array(array)))

    def recv(self, run: RunKey, value: int, host: str, timeout_s: float) -> NDArray:
        return np.array(self._values[value])

    def has_arrived(self, run: RunKey, value: int, host: str) -> bool:
        return True

    def abort(self, run: RunKey) -> None:
        pass

    def end(self, run: RunKey) -> None:
        pass


def devices_of(part: HostPlan) -> list[Device]:
    clock = vs.SimulatedClock()
    return [
        CpuDevice(spec) if spec.kind == "cpu" else vs.SimulatedDevice(spec, clock)
        for spec in part.plan.topology.devices
    ]


def inputs_of(part: HostPlan) -> dict[int, NDArray]:
    rng = np.random.default_rng(0)
    return {
        node.id: rng.integers(0, 2, node.type.shape).astype(numpy_dtype(node.type.dtype))
        for node in part.plan.graph.nodes
        if node.op in ("input", "state")
    }


def numpy_values(part: HostPlan, feeds: Mapping[int, NDArray]) -> Values:
    """Return the values of all nodes, whatever the plan is."""
    graph, values = part.plan.graph, Values(part.plan.graph)
    for node in graph.nodes:
        if node.id in feeds:
            values[node.id] = feeds[node.id]
        elif node.inputs and node.op != "assign":
            operands = tuple(values[i] for i in node.inputs)
            values[node.id] = evaluate_node(graph, node.id, operands)
    return values


def carry(part: HostPlan) -> None:
    """Carry a part out and compare it with its graph.

    Raises
    ------
    Differs
        It gives other numbers.
    """
    graph = part.plan.graph
    if sum(node.type.size for node in graph.nodes) > MAX_ELEMENTS or part.plan.copies > 8:
        return
    values, key = inputs_of(part), RunKey(0, 0, 0)
    feeds = {node: values[node] for node in part.inputs}
    expected = numpy_values(part, values)
    devices, got = devices_of(part), TensorTransport(expected)
    for device, memory in zip(devices, part.plan.memory, strict=True):
        device.states.add([(graph.keys[node], values[node]) for node in memory.states])
    try:
        executor = HostPlanExecutor(part, got, ExecutorContext(devices, vs.Trace(), 5.0))
    except VkschedError:
        return
    try:
        results = executor.carry(key, feeds, lambda results: None)
    except VkschedError:
        return  # it cannot be carried out, and says so
    finally:
        executor.close()
    own = [node for _, node in graph.outputs[: part.results]]
    for node, array in [*zip(own, results.outputs, strict=True), *got.sent]:
        if not np.array_equal(array, expected[node], equal_nan=True):
            raise Differs(f"it gives other numbers of node {node}")
    sends = sorted(step.value for step in part.walk() if isinstance(step, Send))
    if sorted(value for value, _ in got.sent) != sends:
        raise Differs(f"it sends {got.sent}, not {sends}")


def mutants(seed: int, first: int, count: int) -> Iterator[tuple[int, str, Document, Seen]]:
    known = corpus()
    for number in range(first, first + count):
        rng = random.Random(f"{seed} {number}")
        document, held = known[rng.randrange(len(known))]
        change, mutant = mutate(rng, document, SPARED)
        yield number, change, mutant, held


def main() -> int:
    """Read mutants; return 1 if one of them did what it must not."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--count", type=int, default=1000)
    asked = options.parse_args()
    for document, held in corpus():  # imports what is imported late
        carry(decode_host_plan(document, held.__getitem__))
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + SPARE_BYTES, resource.RLIM_INFINITY))
    bad = 0
    for number, change, mutant, held in mutants(asked.seed, asked.first, asked.count):
        print("mutant", number, change, flush=True)
        signal.alarm(LIMIT_S)  # ends the process, also within a library
        part = None
        try:
            part = read(mutant, held)
            if part is not None:
                carry(part)
                print("ran well", flush=True)
        except BaseException:
            print("BAD", number, change, traceback.format_exc(), flush=True)
            bad += 1
        signal.alarm(0)
        print("loaded" if part is not None else "refused", flush=True)
    print("read up to", asked.first + asked.count)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
