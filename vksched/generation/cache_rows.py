"""Cache rows: graphs that copy, read and write rows of a KV cache with slots, of all layers.

    copy    slot 2: a b c d e f ...  --blocks of 128 rows-->  slot 0: a b c d e f ...
    read    slot 2: a b c d e f ...  --blocks-->  host
    write   host  --blocks-->  slot 0: a b c d e f ...

The cost depends on the number of rows, not on the size of the cache. The last block may copy rows
behind the wanted ones; a slot never reads rows behind its tokens. Copies of a state's rows run on
the device of its layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.dtypes import INT32, NDArray
from ..ir.name_scope import name_scope
from ..ir.tensor import Tensor, input
from ..ops import arange, dynamic_update_slice, gather, reshape

if TYPE_CHECKING:
    from ..engine.executable import CompiledGraph
    from ..importers.gguf.kv_cache import KeyValueCache
    from ..ir.build_graph import Outputs, Updates

BLOCK = 128
"""Maximum rows that one run copies."""
Compile = Callable[["Outputs", "Updates", Iterable[str]], "CompiledGraph"]
"""Compiles a graph of the states of some names."""


class CacheRows:
    """The graphs of one cache, whose states exist; each is compiled at its first use."""

    def __init__(self, cache: KeyValueCache, compile_graph: Compile) -> None:
        self._cache = cache
        self._compile = compile_graph
        self._block = min(BLOCK, cache.length)
        self._names = sorted(cache.row_states)
        self._compiled: list[CompiledGraph] = []

    def prepare(self) -> None:
        """Compile all graphs; a cache of one slot has no rows to copy."""
        if not self._names:
            return
        graphs = [self._read_graph, self._write_graph]
        if self._cache.slots > 1:
            graphs.append(self._copy_graph)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first rows of a slot to another one."""
        for start in self._starts(tokens):
            places = np.array([[source], [target], [start]], np.int32)
            self._copy_graph(source=places[0], target=places[1], start=places[2])

    def read(self, slot: int, tokens: int) -> tuple[NDArray, ...]:
        """Return the first rows of a slot, (heads, tokens, ...) of each state."""
        out: list[NDArray] = []
        for start in self._starts(tokens):
            places = np.array([[slot], [start]], np.int32)
            blocks: Any = self._read_graph(source=places[0], start=places[1])
            if not out:
                shapes = ((b.shape[1], tokens, b.shape[3]) for b in blocks)
                out = [np.empty(s, b.dtype) for s, b in zip(shapes, blocks, strict=True)]
            for rows, block in zip(out, blocks, strict=True):
                end = min(start + self._block, tokens)
                rows[:, start:end] = block[0, :, : end - start]
        return tuple(out)

    def write(self, slot: int, rows: Sequence[NDArray]) -> None:
        """Write rows that `read` returned."""
        tokens = rows[0].shape[1] if rows else 0
        for start in self._starts(tokens):
            end = min(start + self._block, tokens)
            blocks = {}
            for name, own in zip(self._names, rows, strict=True):
                block = np.zeros((1, own.shape[0], self._block, own.shape[2]), own.dtype)
                block[0, :, : end - start] = own[:, start:end]
                blocks[f"rows.{name}"] = block
            places = np.array([[slot], [start]], np.int32)
            self._write_graph(target=places[0], start=places[1], **blocks)

    def close(self) -> None:
        """Free the compiled graphs."""
        for graph in self._compiled:
            graph.close()

    def _starts(self, tokens: int) -> list[int]:
        """Return the first rows of the blocks, which all lie within the cache; none if no layer has
        rows.
        """
        if not self._names:
            return []
        last = self._cache.length - self._block
        return [min(start, last) for start in range(0, tokens, self._block)]

    # -- graphs ----------------------------------------------------------------------------------

    @cached_property
    def _copy_graph(self) -> CompiledGraph:
        source, target, start = self._slot("source"), self._slot("target"), self._start()
        updates = {}
        for name in self._names:
            with name_scope(name.rpartition(".")[0]):
                block = self._block_of(name, source, start)
                updates[self._cache.states[name]] = self._written(name, block, target, start)
        return self._stored(start + 0, updates)

    @cached_property
    def _read_graph(self) -> CompiledGraph:
        source, start = self._slot("source"), self._start()
        blocks = []
        for name in self._names:
            with name_scope(name.rpartition(".")[0]):
                blocks.append(self._block_of(name, source, start))
        return self._stored(blocks, {})

    @cached_property
    def _write_graph(self) -> CompiledGraph:
        target, start = self._slot("target"), self._start()
        updates = {}
        for name in self._names:
            _, heads, _, width = self._cache.states[name].shape
            dtype = self._cache.states[name].dtype
            block = input(f"rows.{name}", (1, heads, self._block, width), dtype)
            with name_scope(name.rpartition(".")[0]):
                updates[self._cache.states[name]] = self._written(name, block, target, start)
        return self._stored(start + 0, updates)

    def _stored(self, outputs: Outputs, updates: Updates) -> CompiledGraph:
        self._compiled.append(self._compile(outputs, updates, self._names))
        return self._compiled[-1]

    def _slot(self, name: str) -> Tensor:
        return input(name, (1,), INT32, bounds=(0, self._cache.slots - 1))

    def _start(self) -> Tensor:
        return input("start", (1,), INT32, bounds=(0, self._cache.length - self._block))

    def _block_of(self, name: str, slot: Tensor, start: Tensor) -> Tensor:
        """Return a block of rows of a state, (1, heads, block, width)."""
        state = self._cache.states[name]
        slots, heads, length, width = state.shape
        head = reshape(slot, (1, 1)) * heads + reshape(arange(heads), (heads, 1))
        line = head * length + start + arange(self._block)
        rows = gather(reshape(state, (slots * heads * length, width)), line)
        return reshape(rows, (1, heads, self._block, width))

    def _written(self, name: str, block: Tensor, slot: Tensor, start: Tensor) -> Tensor:
        return dynamic_update_slice(self._cache.states[name], block, start, axis=2, slots=slot)
