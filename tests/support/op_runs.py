"""Every way to run the cases of one op on one device, and those that `make test` runs.

    case --> limits --> variant --> lowering --> run     the same dispatches twice are one run
    runs on all devices --> features --> set cover --> chosen runs of each device

A run's features are its shaders, variants, epilogues, operand types, ranks, sizes, layouts and
attributes. Each feature is covered on one of the devices, and each op on every device.
`make test-all` runs them all. Examples: tests/project/test_selection.py, tests/ops/test_ops.py.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from set_cover import set_cover

from vksched.common.errors import UnsupportedOp
from vksched.ir.op import computing_ops, get_op
from vksched.ops.lowering.lower import CONVERTER_SHADERS, Lowering
from vksched.testing.kernel_runner import lowering_of
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample
from vksched.testing.op_table import (
    CASES,
    FP16,
    FUNCTIONS,
    LONGS,
    PRECISE,
    UNSIGNED,
    fits_32_bits,
)
from vksched.topology.limits import Limits

LOWERED = {
    "the Vulkan minimum": Limits(),
    "a CPU driver with few groups": Limits(software=True, max_groups=(3, 2, 1), storage_buffers=8),
    "a GPU with few groups": Limits(max_groups=(2, 1, 1), storage_buffers=8),
}
ROUNDING = Limits(storage_buffers=8, float16=True)
MIN_ROUNDING = Limits(float16=True)
"""GPUs that compute in float16, one with nothing else over the least."""
SYNCHRONIZED = Limits(storage_buffers=9, memory_model=True)
"""A GPU whose workgroups find the last one of a dispatch."""
WITH_DOTS = {"matmul_integer", "conv_integer"}
"""Ops with variants for devices with integer dot products."""
SIZES = (1, 2, 65)
"""Classes of operand sizes: no element, one, few, many."""
OWN_TYPES, OTHER_TYPES, PRECISION = "own types", "other types", "precision"
RUNS_PER_PIPELINE = 4
"""What takes long is to compile a pipeline: one that is there is run with more cases."""
PIPELINE_COST, SHARE_COST = 3.0, 0.05
"""Of a pipeline that no chosen run has, and of each that its device has: devices share the work. A
run with known pipelines costs 1.
"""


@dataclass(eq=False)
class OpRun:
    """One case as it runs with some limits, by one variant of its kernel.

    Attributes
    ----------
    source
        OWN_TYPES, OTHER_TYPES or PRECISION: the part of the case table that it is of.
    """

    case: OpSample
    limits: str
    variant: str
    lowering: Lowering
    source: str

    @property
    def id(self) -> str:
        return ", ".join(filter(None, (self.case.id, self.limits, self.variant)))

    @cached_property
    def pipelines(self) -> frozenset[Hashable]:
        return frozenset(
            (d.shader, repr(d.constants), repr(d.steps), d.subgroup)
            for d in self.lowering.dispatches
        )


def large_gpu(own: Limits) -> Limits:
    """Return the limits of a GPU with nothing beyond the core, as large as a device is."""
    sizes = {"max_invocations": 1024, "shared_bytes": 49152, "max_buffer_bytes": 1 << 32}
    fitting = {name: min(size, getattr(own, name)) for name, size in sizes.items()}
    return replace(Limits(), max_local_size=own.max_local_size, **fitting)


def _limits_of_case(case: OpSample, own: Limits) -> dict[str, Limits]:
    """Return the limits that a float32 or int32 case runs with, its device's own first."""
    if case.large:
        return {"its own limits": own}
    few = {
        "a large GPU": large_gpu(own),
        "its own limits, few groups": replace(own, max_groups=(3, 2, 1)),
    }
    if case.op in WITH_DOTS:
        few["a GPU with its own dot products"] = Limits(integer_dot=own.integer_dot)
    if case.op.startswith("attention") and own.memory_model:
        few["a GPU that synchronizes workgroups"] = SYNCHRONIZED
    return {"its own limits": own, **LOWERED, **few}


def _limits_of_precision(own: Limits) -> dict[str, Limits]:
    """Return the limits that a case of a precision runs with."""
    sets = {"its own limits": own, "a GPU": ROUNDING, "the least": Limits()}
    sets["the least with float16"] = MIN_ROUNDING
    sets["a GPU with its own subgroups"] = replace(own, software=False)
    return {name: limits for name, limits in sets.items() if own.float16 or not limits.float16}


def _lowered(case: OpSample, sets: Mapping[str, Limits], source: str) -> Iterator[OpRun]:
    """Yield a case's runs. Limits that give dispatches seen before give no run; numpy computes
    what limits refuse.
    """
    ran: list[Lowering] = []
    for name, limits in sets.items():
        for variant in case.variants(limits):
            try:
                lowering = lowering_of(case, limits, variant)
            except UnsupportedOp as reason:
                assert str(reason)
                continue
            if lowering not in ran:
                ran.append(lowering)
                yield OpRun(case, name, variant, lowering, source)


@lru_cache(16)
def runs_of(op: str, own: Limits) -> tuple[OpRun, ...]:
    """Return all runs of an op's cases on a device with these limits of its own."""
    runs: list[OpRun] = []
    for case in cases_of(op, CASES):
        runs += _lowered(case, _limits_of_case(case, own), OWN_TYPES)
    for case in cases_of(op, (*FP16, *LONGS, *UNSIGNED)):
        if fits_32_bits(case.expected()):
            runs += _lowered(case, {"its own limits": own}, OTHER_TYPES)
    for case in cases_of(op, PRECISE):
        runs += _lowered(case, _limits_of_precision(own), PRECISION)
    return tuple(runs)


def cases_of(op: str, cases: Iterable[OpSample] = CASES) -> list[OpSample]:
    """Return the cases of an op, of the case table or of a part of it."""
    return [case for case in cases if case.op == op]


# -- the choice ------------------------------------------------------------------------------------


def features_of(run: OpRun, limits: tuple[Limits, ...]) -> frozenset[tuple[Hashable, ...]]:
    """Return all that a run covers of its op on devices with these limits: what a mistake may
    depend on.
    """
    dispatches = run.lowering.dispatches
    steps = [call for d in dispatches for call, *_ in d.steps.calls]
    shaders = {d.shader for d in dispatches}
    found: set[tuple[Hashable, ...]] = features_of_case(run.case)
    found |= {("shader", s) for s in shaders if _owner_of(s, limits) == run.case.op}
    found |= {("variant", run.variant), ("epilogue", bool(steps))}
    if run.case.op == "fused_elementwise":  # which has the functions of all epilogues
        found |= {("step", name) for name in steps}
    found.add(("several dispatches", len(dispatches) > 1))
    return frozenset(found)


def features_of_case(case: OpSample) -> set[tuple[Hashable, ...]]:
    """Return all that a case covers of its op, whatever computes it."""
    found: set[tuple[Hashable, ...]] = set()
    for name, value in case.attrs.items():
        scalar = isinstance(value, (str, bool, int)) or value is None
        found.add(("attribute", name, value if scalar else type(value).__name__))
    found.add(("types", tuple(t.dtype for t in case.types)))
    found.add(("ranks", tuple(len(t.shape) for t in case.types)))
    for i, array in enumerate(case.inputs):
        found.add(("size", i, bisect(SIZES, array.size)))
        found.add(("vec4", i, array.ndim > 0 and array.shape[-1] % 4 == 0))
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            found.add(("not finite", i))
    return found


def choose_cases(op: str) -> list[int]:
    """Return some cases of an op, by their own features alone: for what no device computes.

    Returns
    -------
    list of int
        Positions among the op's cases in the case table.
    """
    return set_cover([features_of_case(case) for case in cases_of(op, CASES)])


@lru_cache(1 << 12)
def _owner_of(shader: str, limits: tuple[Limits, ...]) -> str:
    """Return the op that covers a shader: of those with a run that dispatches it the one that it is
    named after, or the one with fewest others.
    """
    if shader in CONVERTER_SHADERS:
        return "cast"
    ops = [o for o in computing_ops() if shader in _shaders_of(o)]
    ops.sort(key=lambda o: (not shader.startswith(o), len(_shaders_of(o)), o))
    return next(o for o in ops if shader in _dispatched(o, limits))


@lru_cache(1 << 10)
def _dispatched(op: str, limits: tuple[Limits, ...]) -> frozenset[str]:
    """Return the shaders of all runs of an op."""
    runs = (run for own in limits for run in runs_of(op, own))
    return frozenset(d.shader for run in runs for d in run.lowering.dispatches)


def _shaders_of(op: str) -> tuple[str, ...]:
    kernel = get_op(op).kernel
    return tuple(kernel.shaders) if kernel else ()


def choose_runs(op: str, limits: tuple[Limits, ...], device: int) -> tuple[int, ...]:
    """Return the runs of an op that `make test` has on one device.

    Parameters
    ----------
    limits
        Of each device that is tested.
    device
        The device's number among them.

    Returns
    -------
    tuple of int
        Positions in `runs_of(op, limits[device])`.
    """
    return _choose_on_all(op, limits)[device]


@lru_cache(1 << 10)
def _choose_on_all(op: str, limits: tuple[Limits, ...]) -> tuple[tuple[int, ...], ...]:
    """Return for each device some runs of an op: together they have every feature that a run on
    any of the devices has, each device that runs the op has one, and pipelines run several cases.
    """
    items = [
        (device, number, run)
        for device, own in enumerate(limits)
        for number, run in enumerate(runs_of(op, own))
    ]
    features = [
        features_of(run, limits) | {("device", device, bool(run.pipelines))}
        for device, _, run in items
    ]
    known: list[frozenset[Hashable]] = [frozenset() for _ in limits]

    def cost_of(item: int) -> float:
        device, _, run = items[item]
        new = PIPELINE_COST * len(run.pipelines - known[device])
        return 1.0 + new + SHARE_COST * len(known[device])

    def take(item: int) -> None:
        device, _, run = items[item]
        known[device] |= run.pipelines

    chosen = [items[item] for item in set_cover(features, cost_of, take)]
    return tuple(
        _with_known_pipelines({n for d, n, _ in chosen if d == device}, runs_of(op, own))
        for device, own in enumerate(limits)
    )


def _with_known_pipelines(chosen: set[int], runs: tuple[OpRun, ...]) -> tuple[int, ...]:
    """Return chosen runs and, up to RUNS_PER_PIPELINE, others that compile nothing more."""
    known = frozenset[Hashable]().union(*(runs[number].pipelines for number in chosen))
    count = Counter(runs[number].pipelines for number in chosen)
    every = set(chosen)
    for number, run in enumerate(runs):
        if number not in chosen and run.pipelines <= known:
            if count[run.pipelines] < RUNS_PER_PIPELINE:
                count[run.pipelines] += 1
                every.add(number)
    return tuple(sorted(every))


def choose_function_cases(function: str, device: int, devices: int) -> list[int]:
    """Return some cases of a function: together those of all devices have every feature of its
    graphs, and each device has one.

    Returns
    -------
    list of int
        Positions among the function's cases in the case table.
    """
    cases = [case for case in FUNCTIONS if case.function == function]
    chosen = set_cover([_features_of_graph(case) for case in cases])
    return chosen[device::devices] or chosen[:1]


def _features_of_graph(case: FunctionSample) -> frozenset[Hashable]:
    """Return what a case of a function covers: ops, their switches, types and ranks."""
    found: set[Hashable] = set()
    for node in case.graph.nodes:
        for name, value in node.attrs.items():
            if isinstance(value, (str, bool)):
                found.add((node.op, name, value))
        found.add((node.op, node.type.dtype, len(node.type.shape)))
    return frozenset(found)
