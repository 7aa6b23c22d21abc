"""SavedValues: results of a forward graph that stay on devices for its backward graph.

    forward graph --updates--> states --leaves--> backward graph
         |                        ^
         +---> DeviceTensors -----+      the autograd graph holds these instead of the values

One call at a time has the states of a graph: from its forward pass until nothing refers to its
DeviceTensors, which is after its backward pass. A call in between passes its values through host
memory, and so does one with hooks of saved tensors. The states are deleted after the graphs that
use them. Examples: tests/torch_backend/test_torch_saved.py.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree

from ..common.dtypes import BOOL, FLOAT16, FLOAT32, INT32, NDArray, numpy_dtype
from ..ir.tensor import Tensor
from ..ops.creation.state import state
from .convert import to_tensor
from .lower import value_of
from .runtime import Runtime

DTYPES = frozenset({FLOAT32, FLOAT16, INT32, BOOL})
"""The element types that states on devices have without bounds."""
LEAVES = frozenset({"input", "weight", "state", "constant"})
_USES = itertools.count(1)


class SavedValues:
    """The states of one forward graph.

    Parameters
    ----------
    nodes
        The results that AOTAutograd saves for the backward graph.

    Attributes
    ----------
    tensors
        The states of the nodes whose values stay on devices.
    was_read
        True if a backward graph has been compiled for the states.
    used
        The number of the last call that had the states, over all graphs.
    is_refused
        True if the devices had no memory for a backward graph that reads the states.
    """

    def __init__(self, runtime: Runtime, nodes: Collection[fx.Node]) -> None:
        self.scheduler = runtime.scheduler
        self.tensors: dict[fx.Node, Tensor] = {}
        self.was_read = self.is_refused = False
        self.used = 0
        self._nodes = frozenset(nodes)
        self._created: list[Tensor] = []
        self._free = deque([True])  # with an item if no call has the states
        weakref.finalize(self, runtime.memory.unused_states.append, self._created).atexit = False

    def hold(self, values: Mapping[fx.Node, Any]) -> dict[Tensor, Tensor]:
        """Create states for some of the nodes, and return their next values.

        Parameters
        ----------
        values
            The lowered values of nodes.
        """
        created: dict[Tensor, Tensor] = {}
        for node, value in values.items():
            if node in self._nodes and isinstance(value, Tensor) and _can_hold(value):
                if value not in created:
                    created[value] = state(_zeros(value), backup=False)
                self.tensors[node] = created[value]
        self._created += created.values()
        return {held: value for value, held in created.items()}

    @property
    def states(self) -> Sequence[Tensor]:
        """All states of the graph."""
        return self._created

    @property
    def is_idle(self) -> bool:
        """True if there are states, and no call has them."""
        return bool(self._created and self._free)

    def lease(self) -> Lease | None:
        """Return the right to the states; None if an earlier call has it."""
        try:
            self._free.pop()
        except IndexError:
            return None
        self.used = next(_USES)
        lease = Lease(self)
        weakref.finalize(lease, self._free.append, True).atexit = False
        return lease

    def reset(self) -> None:
        """Write zeros to the states, whose values a failed device has lost."""
        for held in self._created:
            self.scheduler.write(held, _zeros(held))


def _can_hold(value: Tensor) -> bool:
    return value.op not in LEAVES and value.dtype in DTYPES and value.size > 0


def _zeros(like: Tensor) -> NDArray:
    return np.broadcast_to(np.zeros((), numpy_dtype(like.dtype)), like.shape)


class Lease:
    """The right of one call to the states of a graph. It ends with the object."""

    def __init__(self, saved: SavedValues) -> None:
        self.saved = saved

    def tensor(self, node: fx.Node) -> DeviceTensor:
        """Return the tensor that stands for the value of a node."""
        held, like = self.saved.tensors[node], value_of(node)
        found: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            DeviceTensor, held.shape, strides=like.stride(), dtype=like.dtype, device="cpu"
        )
        found.state, found.lease = held, self
        return found


class DeviceTensor(torch.Tensor):  # type: ignore[misc]
    """A saved value in a state. Any op on it reads the state and computes in eager PyTorch.

    Attributes
    ----------
    state
        The state with the value.
    lease
        The right to the state.
    """

    state: Tensor
    lease: Lease

    __torch_function__ = torch._C._disabled_torch_function_impl

    def on_host(self) -> Any:
        """Return a copy of the value as a plain tensor.

        Raises
        ------
        StateLost
            The device of the state has failed.
        """
        array = self.lease.saved.scheduler.read(self.state)
        return to_tensor(array, self.dtype, self.stride())

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        plain = pytree.tree_map_only(DeviceTensor, DeviceTensor.on_host, (args, kwargs or {}))
        return func(*plain[0], **plain[1])

    def tolist(self) -> Any:
        """Return the value as nested lists."""
        return self.on_host().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return the value as an array."""
        return self.on_host().numpy(force=force)

    def __reduce_ex__(self, protocol: Any) -> Any:  # pickle, copy and torch.save
        return self.on_host().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return memo.setdefault(id(self), self.on_host())

    def __repr__(self, **_: Any) -> str:  # without the values, which are on a device
        return f"DeviceTensor({self.state.name!r}, {tuple(self.shape)}, {self.dtype})"


def on_host(value: Any) -> Any:
    """Return a value; that of a DeviceTensor as a plain tensor."""
    return value.on_host() if isinstance(value, DeviceTensor) else value


def has_hooks() -> bool:
    """Return True if functions of the caller get all saved tensors: they may need plain ones."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
