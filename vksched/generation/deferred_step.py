"""Deferred step: a language model's step as a graph that is built only if the cache has none.

    model, cache, size --> key, names of weights and states --engine/graph_cache.py--> graph, plan

The key covers the model's files as they were opened, its hyperparameters, the KV cache, and the
rows and the size of the step. Weights and states have the names of the model, so the cached graph
of another process is bound to this process's tensors without building the step.

Examples: tests/generation/test_graph_cache.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..engine.graph_cache import DeferredGraph
from ..engine.graph_document import STATE, Leaf
from ..ir.build_graph import Outputs, Updates
from ..storage.content_hash import is_settled

if TYPE_CHECKING:
    from ..importers.gguf.kv_cache import KeyValueCache
    from ..importers.gguf.model import LanguageModel

MIN_LAYERS = 4
"""The minimum number of layers of a model whose steps are worth a file."""


class StepLeaves:
    """The weights and states of a model's steps; a reference is the arguments that create one."""

    def __init__(self, model: LanguageModel, cache: KeyValueCache) -> None:
        self._model, self._cache = model, cache

    def references(self) -> Mapping[object, Any]:
        found: dict[object, Any] = dict(self._model.weights.leaves())  # type: ignore[arg-type]
        shapes = self._cache.shapes
        found |= {tensor: (name, *shapes[name]) for name, tensor in self._cache.states.items()}
        return found

    def leaf(self, kind: str, reference: Any) -> Leaf:
        name, *how = reference
        if kind == STATE:
            tensor = self._cache.leaf(name, tuple(how))
        else:
            tensor = self._model.weights.leaf(name, tuple(how[0]), how[1])
        return Leaf(tensor.type, tensor.held, tensor)


def step_inputs(
    rows: int | None,
    all_logits: bool,
    is_recurrent: bool = False,
    picture: bool = False,
    shifted: bool = False,
) -> frozenset[str]:
    """Return the names of the inputs of a step; see `LanguageModel.step`."""
    several = () if rows is None else ("slot",)
    counted = ("count",) if is_recurrent or not all_logits else ()
    moved = ("positions" if picture else "shift",) if shifted else ()
    return frozenset(("picture" if picture else "ids", "start", *several, *counted, *moved))


def step_key(
    model: LanguageModel,
    cache: KeyValueCache,
    size: int,
    scale_rows: bool = False,
    rows: int | None = None,
    all_logits: bool = False,
    one_text: bool = False,
    picture: bool = False,
    shifted: bool = False,
) -> tuple[object, ...] | None:
    """Return everything that determines a step as plain data; None if the model is in memory or its
    file was written a moment ago.
    """
    if model.file.identity is None or not all(map(is_settled, model.file.identity)):
        return None
    about = model.file.identity, type(model).__name__, model.architecture, repr(model.hyper)
    types = cache.kind, tuple(sorted(cache.by_layer.items()))
    variant = scale_rows, rows, all_logits, one_text, picture, shifted
    return (*about, cache.length, cache.slots, types, size, *variant)


def deferred_step(
    model: LanguageModel,
    cache: KeyValueCache,
    size: int,
    parts: int,
    is_cached: bool,
    scale_rows: bool = False,
    rows: int | None = None,
    all_logits: bool = False,
    one_text: bool = False,
    picture: bool = False,
    shifted: bool = False,
) -> DeferredGraph:
    """Return a step of `size` tokens in `parts` microbatches. is_cached: cache its graph on disk,
    if the model is deep enough. The others are those of `LanguageModel.step`.
    """

    def build() -> tuple[Outputs, Updates]:
        step = model.step(
            *(cache, size, parts),
            rows=rows,
            all_logits=all_logits,
            scale_rows=scale_rows,
            one_text=one_text,
            picture=picture,
            shifted=shifted,
        )
        return step.logits, step.updates

    is_worth = is_cached and model.hyper.layers >= MIN_LAYERS
    variant = scale_rows, rows, all_logits, one_text, picture, shifted
    key = step_key(model, cache, size, *variant) if is_worth else None
    inputs = step_inputs(rows, all_logits, model.is_recurrent, picture, shifted)
    return DeferredGraph(key, StepLeaves(model, cache), build, inputs)
