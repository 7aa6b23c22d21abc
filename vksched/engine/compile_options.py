"""Compile options: the arguments of `Scheduler.compile` besides the outputs, as one value.

`Scheduler.compile` builds the value once. Compiled models and functions hold it, and the graph
registry turns it into a request (request.py). Examples: tests/engine/test_compile_options.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from ..common.dtypes import NDArray, Progress
from ..common.errors import GraphError, PlanError
from ..importers.base import ImportedModel
from ..ir.build_graph import Updates
from ..ir.tensor import Tensor
from .request_precision import Precision

Placements = Mapping[Tensor | str, str] | Mapping[str, str]
"""A mapping of tensors or name patterns to device names."""
Observe = Mapping[Tensor | str, Callable[[str, NDArray], object]]
"""A mapping of tensors or name patterns to functions that are called with name and value."""
GRAPH_OPTIONS = ("updates", "observe", "precision", "ahead")
"""The options of `compile` that are fields of `CompileOptions`."""
OPTIONS = {
    "tensors": GRAPH_OPTIONS,
    "onnx": ("limit", "precision"),
    "gguf": ("ctx", "cache_type", "precision"),
}
"""The options of `compile` for tensors, and for models by file format."""


@dataclass(frozen=True, eq=False)
class CompileOptions:
    """The options of one graph; see `Scheduler.compile`."""

    placement: Placements | None = None
    progress: Progress | None = None
    updates: Updates | None = None
    observe: Observe | None = None
    precision: Precision | None = None
    ahead: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.placement, Tensor) or isinstance(self.progress, Tensor):
            raise GraphError(
                "[compile] expected one output, a sequence or a dict, got several; try "
                "compile([a, b])"
            )

    @property
    def placements(self) -> Placements:
        """The placements, empty by default.

        Raises
        ------
        PlanError
            They are not a mapping of tensors or name patterns to device names.
        """
        placement = self.placement or {}
        if not isinstance(placement, Mapping):
            raise PlanError(f"[placement] expected a dict, got {placement!r}")
        for key, device in placement.items():
            if not isinstance(device, str) or not isinstance(key, (str, Tensor)):
                raise PlanError(
                    "[placement] expected tensors or name patterns to device names, "
                    f"got {key!r}: {device!r}"
                )
        return placement

    def copy(self) -> CompileOptions:
        """Return the options with mappings that the caller cannot change."""
        precision = self.precision  # anything but a mode or a mapping is refused later
        if isinstance(precision, Mapping):
            precision = copy(precision) if isinstance(precision, dict) else dict(precision)
            precision = precision or None
        return replace(self, placement=dict(self.placements), precision=precision)


def split_options(
    outputs: object,
    placement: Placements | None,
    progress: Progress | None,
    options: Mapping[str, Any],
) -> tuple[CompileOptions, dict[str, Any]]:
    """Return the options of each graph, and those of a model by name. Options of None are absent.

    Raises
    ------
    GraphError
        An option is not supported for this kind of outputs.
    """
    kind = outputs.format if isinstance(outputs, ImportedModel) else "tensors"
    known = {name for names in OPTIONS.values() for name in names}
    values = {n: value for n, value in options.items() if value is not None or n not in known}
    for name in values:
        if name not in OPTIONS[kind]:
            what = kind if kind == "tensors" else f"a model of a {kind} file"
            allowed = ", ".join(OPTIONS[kind])
            raise GraphError(f"[compile] expected {allowed} for {what}, got {name!r}")
    own = {name: values.pop(name) for name in GRAPH_OPTIONS if name in values}
    return CompileOptions(placement, progress, **own), values
