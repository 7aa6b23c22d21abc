"""KV cache: keys and values of a text's tokens, and recurrent states, as states on the devices.

    blk.3.keys, blk.3.values   (slots, heads, length, size)   a row for each token
    blk.0.conv_state, ...      (slots, ...)                   one array for all tokens of a slot

The cost of a step depends on the used rows and the written rows, not on the capacity of the cache.

A cache with several slots holds a sequence in each. A step of some rows names the slot of each row;
a row of no slot, as slot -1, reads and writes nothing of the cache.

A value beyond the range of float16 becomes NaN in an f16 cache, not infinity. The product of an
infinite key and a query may be -inf, which softmax turns into a weight of 0 without notice; NaN
arrives at the logits of all later steps that attend to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context

import numpy as np

from ...common.dtypes import FLOAT16, FLOAT32, UINT32, Shape, numpy_dtype
from ...ir.tensor import Tensor
from ...ops.attention.kv_q8_0 import row_words
from ...ops.creation.state import state

KINDS = {"f32": FLOAT32, "f16": FLOAT16, "q8_0": UINT32}
"""The element types of states by their names on the command line; q8_0 rows are stored as 32-bit
words.
"""
ROWS = (".keys", ".values")
"""The ends of the names of states with a row for each token."""


class KeyValueCache:
    """The states with the keys and values of `slots` sequences of `length` tokens each, created at
    first use by layers.

    kind: the element type, one of KINDS. by_layer: the element types of layers with another one.
    """

    def __init__(
        self,
        length: int,
        kind: str = "f32",
        by_layer: Mapping[int, str] | None = None,
        slots: int = 1,
    ) -> None:
        self.length = length
        self.slots = slots
        self.kind = kind
        self.dtype = KINDS[kind]
        self.by_layer = dict(by_layer or {})
        self.states: dict[str, Tensor] = {}
        """All states by name: those of rows, and recurrent ones."""
        self.shapes: dict[str, Shape] = {}
        """The shapes of a slot's states, as `leaf` takes them."""

    @property
    def row_states(self) -> dict[str, Tensor]:
        """The states with a row for each token, by name."""
        return {name: each for name, each in self.states.items() if name.endswith(ROWS)}

    @property
    def recurrent_states(self) -> dict[str, Tensor]:
        """The recurrent states, by name."""
        return {name: each for name, each in self.states.items() if not name.endswith(ROWS)}

    def leaf(self, name: str, shape: Shape) -> Tensor:
        """Return a state, created at first use. shape: (heads, size) of a name that ends with one
        of ROWS; else that of a slot's recurrent state.
        """
        return (self.rows if name.endswith(ROWS) else self.recurrent_state)(name, shape)

    def rows(self, name: str, shape: Shape) -> Tensor:
        """Return a state with rows of `size` values: (slots, heads, length, size), or 32-bit words
        for q8_0. name: as "blk.3.keys". shape: (heads, size).
        """
        heads, size = shape
        kinds = {f"blk.{layer}": kind for layer, kind in self.by_layer.items()}
        dtype = KINDS[kinds.get(name.rpartition(".")[0], self.kind)]
        width = row_words(size) if dtype == UINT32 else size
        return self._state(name, shape, (heads, self.length, width), dtype)

    def recurrent_state(self, name: str, shape: Shape) -> Tensor:
        """Return a recurrent state, (slots, *shape) of float32 in a cache of any type. name: as
        "blk.3.conv_state".
        """
        return self._state(name, shape, shape, FLOAT32)

    def _state(self, name: str, shape: Shape, of_slot: Shape, dtype: str) -> Tensor:
        if name not in self.states:
            nothing = np.zeros((), numpy_dtype(dtype))
            empty = np.broadcast_to(nothing, (self.slots, *of_slot))  # it needs no memory
            self.shapes[name] = shape
            self.states[name] = Context().run(state, empty, name, backup=False)
        return self.states[name]
