"""Cache states: graphs that read and write the recurrent states of a slot, of all layers.

    read    slot 2: state of each layer --> host
    write   host --> slot 0

A recurrent state belongs to all tokens of a slot: it cannot be cut back to fewer tokens. Copies in
host memory are its checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.dtypes import INT32, NDArray
from ..ir.name_scope import name_scope
from ..ir.tensor import Tensor, input
from ..ops import dynamic_update_slice, gather
from .cache_rows import Compile

if TYPE_CHECKING:
    from ..engine.executable import CompiledGraph
    from ..importers.gguf.kv_cache import KeyValueCache


class CacheStates:
    """The graphs of one cache, whose states exist; each is compiled at its first use."""

    def __init__(self, cache: KeyValueCache, compile_graph: Compile) -> None:
        self._slots = cache.slots
        self._states = dict(sorted(cache.recurrent_states.items()))
        self._compile = compile_graph
        self._compiled: list[CompiledGraph] = []

    def prepare(self) -> None:
        """Compile both graphs."""
        if self._states:
            _ = self._read_graph, self._write_graph

    def read(self, slot: int) -> tuple[NDArray, ...]:
        """Return the states of a slot."""
        if not self._states:
            return ()
        found: Any = self._read_graph(slot=np.array([slot], np.int32))
        return tuple(np.array(each) for each in found)

    def write(self, slot: int, states: Sequence[NDArray]) -> None:
        """Write states that `read` returned."""
        if self._states:
            names = (f"state.{name}" for name in self._states)
            feeds = dict(zip(names, states, strict=True))
            self._write_graph(slot=np.array([slot], np.int32), **feeds)

    def close(self) -> None:
        """Free the compiled graphs."""
        for graph in self._compiled:
            graph.close()

    @cached_property
    def _read_graph(self) -> CompiledGraph:
        slot, own = self._slot(), []
        for name, state in self._states.items():
            with name_scope(name.rpartition(".")[0]):
                own.append(gather(state, slot))
        self._compiled.append(self._compile(own, {}, self._states))
        return self._compiled[-1]

    @cached_property
    def _write_graph(self) -> CompiledGraph:
        slot, updates = self._slot(), {}
        first = slot * 0
        for name, state in self._states.items():
            own = input(f"state.{name}", (1, *state.shape[1:]))
            with name_scope(name.rpartition(".")[0]):
                updates[state] = dynamic_update_slice(state, own, first, axis=1, slots=slot)
        self._compiled.append(self._compile(slot + 0, updates, self._states))
        return self._compiled[-1]

    def _slot(self) -> Tensor:
        return input("slot", (1,), INT32, bounds=(0, self._slots - 1))
