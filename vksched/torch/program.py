"""Program: a graph of AOTAutograd on a scheduler.

    call(args) --sizes, parameters known?--> segments, one after another --> results
                       no: cut and compile once; at most `limit` specialisations are cached

Sizes that Dynamo left symbolic become specialisations. Parameters belong to a specialisation, too:
modules that share their code share a graph, but not its weights. Values that a forward graph saves
for the backward graph stay on GPUs (saved_values.py). Examples:
tests/torch_backend/test_torch_programs.py.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from ..common.errors import OutOfMemory, StateLost
from ..common.user_warning import warn
from ..ir.tensor import Tensor
from .current_weights import CurrentWeights
from .device_memory import Idle
from .lower import op_name, value_of
from .partition import Segment, cut, find_unsupported
from .runtime import Runtime
from .saved_values import DeviceTensor, Lease, SavedValues, has_hooks, on_host
from .segment import DeviceSegment, EagerSegment
from .weights import ManagedWeight, key_of

Step = DeviceSegment | EagerSegment


@dataclass(frozen=True)
class ProgramInfo:
    """A description of a program.

    Attributes
    ----------
    kind
        "inference", "forward" or "backward".
    managed
        The names of parameters and buffers by position among the arguments.
    saved_from
        The position of the first result that a forward graph saves for the backward graph; None for
        other graphs.
    """

    kind: str
    managed: Mapping[int, str]
    saved_from: int | None = None


class Specialisation:
    """A program for one set of sizes and parameters.

    Parameters
    ----------
    weights
        The managed weights by position among the arguments.
    received
        The states of arguments that a forward graph has left on devices, by position.
    saved_from
        The first result that may stay on devices; None if there is none.

    Attributes
    ----------
    states
        The states of saved values that it reads or writes.
    host_reason
        The reason if saved values pass through host memory in all calls; "" otherwise.
    """

    def __init__(
        self,
        runtime: Runtime,
        module: fx.GraphModule,
        weights: Mapping[int, ManagedWeight],
        received: Mapping[int, Tensor],
        saved_from: int | None,
    ) -> None:
        self.weights = dict(weights)
        self.leaves = {i: entry.leaf for i, entry in self.weights.items()}
        graph = module.graph
        self._runtime, self._module = runtime, module
        self._placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        self._result: Any = next(n for n in graph.nodes if n.op == "output").args[0]
        self.unsupported = find_unsupported(module)
        leaves = {self._placeholders[i]: leaf for i, leaf in {**self.leaves, **received}.items()}
        self.segments: list[Segment] = cut(module, self.unsupported)
        self.saved: SavedValues | None = None
        if saved_from is not None:
            on_host = {*self._result[:saved_from], *(n for s in self.segments for n in s.inputs)}
            nodes = {n for n in self._result[saved_from:] if isinstance(n, fx.Node)}
            self.saved = SavedValues(runtime, nodes - on_host)
        self.steps: list[Step] = [
            DeviceSegment(runtime, module, s, leaves, self.saved)
            if s.on_device
            else EagerSegment(module, s)
            for s in self.segments
        ]
        self._frees = _last_uses(self.segments, self._result)
        self._through_host: Specialisation | None = None
        self.host_reason = ""
        written = () if self.saved is None else self.saved.states
        self.states = frozenset([*received.values(), *written])

    @property
    def is_current(self) -> bool:
        """False if a weight has become a state since, or if saved values cannot stay on devices."""
        return not self.is_refused and all(
            entry.leaf is self.leaves[i] for i, entry in self.weights.items()
        )

    @property
    def is_refused(self) -> bool:
        """True if devices had no memory for a backward graph that reads the saved values."""
        return self.saved is not None and self.saved.is_refused

    @property
    def has_host_version(self) -> bool:
        """True if a call has returned saved values to the host."""
        return self._through_host is not None

    def through_host(self) -> Specialisation:
        """Return the specialisation that returns all results to the host."""
        if self._through_host is None:
            self._through_host = Specialisation(self._runtime, self._module, self.weights, {}, None)
        return self._through_host

    def run(self, args: Sequence[Any], lease: Lease | None) -> list[Any]:
        """Run all segments and return the results.

        Parameters
        ----------
        lease
            The right to the states of saved values; None if there are none.
        """
        values: dict[fx.Node, Any] = dict(zip(self._placeholders, args, strict=True))
        for step, free in zip(self.steps, self._frees, strict=True):
            values.update(step([values[n] for n in step.segment.inputs]))
            for node in free:
                values.pop(node, None)  # a saved value is on a device
        return [
            n
            if not isinstance(n, fx.Node)
            else lease.tensor(n)
            if lease is not None and n not in values
            else on_host(values[n])
            for n in self._result
        ]


def _last_uses(segments: Sequence[Segment], result: Any) -> list[list[fx.Node]]:
    """Return, for each segment, the values that nothing reads after it."""
    live = {n for n in result if isinstance(n, fx.Node)}
    frees: list[list[fx.Node]] = []
    for segment in reversed(segments):
        unread = [n for n in dict.fromkeys((*segment.inputs, *segment.outputs)) if n not in live]
        live.update(unread)
        frees.append(unread)
    return frees[::-1]


class Program:
    """A callable for AOTAutograd: takes a list of arguments, and returns a list of results.

    Attributes
    ----------
    unplaced
        The placement patterns that match no node yet.
    """

    def __init__(self, runtime: Runtime, module: fx.GraphModule, info: ProgramInfo) -> None:
        self.info = info
        self._runtime = runtime
        self._module = module
        self._lock = threading.RLock()
        self.specialisations: OrderedDict[Any, Specialisation] = OrderedDict()
        self._noted: set[str] = set()
        self.unplaced = set(runtime.placement)
        examples = [value_of(n) for n in module.graph.nodes if n.op == "placeholder"]
        self._sized = [i for i, value in enumerate(examples) if _is_symbolic(value)]
        self._recent: tuple[Any, Specialisation, CurrentWeights] | None = None  # of the last call
        self.calls = 0
        runtime.memory.add(self)

    def __call__(self, args: list[Any]) -> list[Any]:
        values = list(args)
        args.clear()  # the caller's references end here, as AOTAutograd expects
        try:
            found = self._find(values)
        except OutOfMemory:
            if not _refuse(values):
                raise
            values = [on_host(value) for value in values]
            found = self._find(values)
        lease = None
        self.calls += 1
        if found.saved is not None and found.saved.states:
            lease = None if has_hooks() else found.saved.lease()
            if lease is None:
                with self._lock:
                    found = found.through_host()
        try:
            return found.run(values, lease)
        except StateLost as error:
            if lease is None:
                if self.info.kind != "backward":
                    raise
                reason = str(error).split("; try")[0]
                raise StateLost(
                    f"[torch] values that the backward pass needs are lost: {reason}; try the "
                    "forward pass again"
                ) from error
            lease.saved.reset()
            return found.run(values, lease)

    def _find(self, args: Sequence[Any]) -> Specialisation:
        received = self._received(args)
        sizes = tuple(
            tuple(args[i].shape) if isinstance(args[i], torch.Tensor) else args[i]
            for i in self._sized
        )
        sizes = sizes, tuple(received.items())
        managed = [args[i] for i in self.info.managed]
        with self._lock:
            if self._is_recent(sizes, managed):
                assert self._recent is not None
                return self._recent[1]
            keys = tuple(key_of(tensor) for tensor in managed)
            found = self.specialisations.get((sizes, keys))
            if found is not None:
                for i, entry in found.weights.items():
                    if not entry.is_current(args[i]):
                        self._runtime.weights.refresh(entry, args[i])
            is_refused = found is not None and found.is_refused
            if found is not None and not found.is_current:
                found = None
                del self.specialisations[sizes, keys]
            if found is None:
                found = self._specialise(args, keys, received, is_refused)
                self._drop_freed()
                self.specialisations[sizes, keys] = found
                while len(self.specialisations) > self._runtime.limit:
                    self.specialisations.popitem(last=False)
            self.specialisations.move_to_end((sizes, keys))
            entries = {
                at: found.weights[i] for at, i in enumerate(self.info.managed) if i in found.weights
            }
            self._recent = sizes, found, CurrentWeights(managed, entries)
        return found

    def _is_recent(self, sizes: Any, managed: Sequence[Any]) -> bool:
        """Return True if the last call had these sizes and parameters."""
        if self._recent is None:
            return False
        known, recent, current = self._recent
        return bool(known == sizes and recent.is_current and current.equal(managed))

    def _received(self, args: Sequence[Any]) -> dict[int, Tensor]:
        """Return the states of arguments of a backward graph, by position."""
        if self.info.kind != "backward":
            return {}
        found = {i: arg for i, arg in enumerate(args) if isinstance(arg, DeviceTensor)}
        for arg in found.values():
            arg.lease.saved.was_read = True
        return {i: arg.state for i, arg in found.items()}

    def _drop_freed(self) -> None:
        """Forget specialisations whose parameters no longer exist."""
        for key, special in list(self.specialisations.items()):
            if any(entry.storage.expired() for entry in special.weights.values()):
                del self.specialisations[key]

    def idle_values(self) -> list[Idle]:
        """Return the saved values of its specialisations that no call uses."""
        if not self._lock.acquire(blocking=False):
            return []  # another thread compiles it, and may wait for the caller
        try:
            each = [special.saved for special in self.specialisations.values()]
            return [values for values in each if values is not None and values.is_idle]
        finally:
            self._lock.release()

    def drop(self, states: Collection[Tensor]) -> None:
        """Forget the specialisations that read or write some states of saved values."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            for key, special in list(self.specialisations.items()):
                if not special.states.isdisjoint(states):
                    del self.specialisations[key]
                    self._recent = None  # it may be the last one
        finally:
            self._lock.release()

    def _specialise(
        self,
        args: Sequence[Any],
        keys: Sequence[Any],
        received: Mapping[int, Tensor],
        is_refused: bool,
    ) -> Specialisation:
        table, trained = self._runtime.weights, self.info.kind != "inference"
        weights = {
            i: table.acquire(key, args[i], name, trained and args[i].requires_grad)
            for (i, name), key in zip(self.info.managed.items(), keys, strict=True)
            if key is not None
        }
        module = _with_sizes(self._module, args) if self._sized else self._module
        created = self._compile(module, weights, received, is_refused)
        for step in created.steps:
            if isinstance(step, DeviceSegment):
                self.unplaced.difference_update(step.placement)
        self._note(created)
        return created

    def _compile(
        self,
        module: fx.GraphModule,
        weights: Mapping[int, ManagedWeight],
        received: Mapping[int, Tensor],
        is_refused: bool,
    ) -> Specialisation:
        """Return a specialisation. Its saved values stay on devices if these have memory for them.

        Parameters
        ----------
        is_refused
            The devices had no memory for the backward graph of the former one.
        """
        saved_from = self.info.saved_from if self._runtime.has_gpus else None
        reason, about = "", (self._runtime, module, weights, received)
        if saved_from is not None and is_refused:
            reason = "no memory for the backward graph"
        elif saved_from is not None or received:
            try:
                with self._runtime.memory.on_devices():
                    return Specialisation(*about, saved_from)
            except OutOfMemory as error:
                if saved_from is None:
                    raise  # the next try gets the values from the host
                reason = str(error).split("; try")[0]
        if reason:
            warn(f"[torch] values for the backward pass pass through host memory: {reason}")
        created = Specialisation(*about, None)
        created.host_reason = reason
        return created

    def _note(self, created: Specialisation) -> None:
        """Warn once of each op that runs in eager PyTorch."""
        names = Counter(op_name(n) for n in created.unsupported if n.op == "call_function")
        new = {name: count for name, count in names.items() if name not in self._noted}
        new.pop("getitem", None)
        if not new:
            return
        self._noted.update(new)
        first = next(n for n in created.unsupported if op_name(n) in new)
        total = sum(n.op == "call_function" for n in self._module.graph.nodes)
        listed = ", ".join(sorted(new)[:5]) + (", ..." if len(new) > 5 else "")
        graph = {"inference": "an inference"}.get(self.info.kind, f"a {self.info.kind}")
        warn(
            f"[torch] {sum(new.values())} of {total} ops of {graph} graph run in eager PyTorch: "
            f"{listed} ({op_name(first)}: {created.unsupported[first]}); "
            "vksched.torch.explain has all"
        )


def _refuse(args: Sequence[Any]) -> bool:
    """Mark the states of arguments as refused; return False if there are none."""
    leases = {id(arg.lease): arg.lease for arg in args if isinstance(arg, DeviceTensor)}
    for lease in leases.values():
        lease.saved.is_refused = True
    return bool(leases)


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(d, torch.SymInt) for d in value.shape)
    return value is not None


def _with_sizes(module: fx.GraphModule, args: Sequence[Any]) -> fx.GraphModule:
    """Return a copy of a graph for the sizes of some arguments."""
    sized = fx.GraphModule(module, copy.deepcopy(module.graph))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(a.detach()) if isinstance(a, torch.Tensor) else a for a in args]
        FakeTensorProp(sized, mode).propagate_dont_convert_inputs(*fakes)
    for node, value in zip(sized.graph.nodes, args, strict=False):
        if not isinstance(value, torch.Tensor):
            node.meta["val"] = value
    return sized
