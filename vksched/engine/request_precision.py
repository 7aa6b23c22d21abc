"""Request precision: selects the precision mode of each node of a request.

    scheduler < compile: one mode, defaults < config: signals < compile: tensors and patterns

Later entries win. In the options of `compile` a tensor wins over patterns, and a later pattern over
an earlier one, as for placement. Examples: tests/engine/test_precision.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..common.errors import PlanError
from ..ir.graph import Graph
from ..ir.precision import PRECISIONS, SINGLE
from ..ir.tensor import Tensor
from ..parallel.config.config_types import Config
from ..parallel.config.match_sections import sections_of
from ..passes.set_precision import has_precision, set_precision
from ..plan.types.node_names import NameIndex

Precision = str | Mapping[Tensor | str, str]
"""One mode for all nodes, or a mapping of tensors or name patterns to modes."""


class PrecisionDefaults(dict[Any, str]):
    """Modes by name pattern that rank as one mode does, below a config."""

    def __repr__(self) -> str:
        return f"PrecisionDefaults({super().__repr__()})"


def check_precision(value: object, stage: str, modes: Sequence[str] = PRECISIONS) -> str:
    """Return a valid precision mode.

    Raises
    ------
    PlanError
        The value is not one of the modes.
    """
    if isinstance(value, str) and value in modes:
        return value
    known = ", ".join(f'"{mode}"' for mode in modes)
    raise PlanError(f"[{stage}] expected a precision of {known}, got {value!r}")


def apply_precision(
    graph: Graph,
    ids: Mapping[Tensor, int],
    default: str,
    asked: Precision | None,
    config: Config | None,
) -> Graph:
    """Return a graph whose matmuls, convolutions and attention have the requested precision.

    default: the scheduler's mode. asked: the `precision` option of `compile`. config: the
    scheduler's config.

    Raises
    ------
    PlanError
        A mode is invalid, or a name matches nothing.
    """
    modes = _of_config(graph, config)
    if default == SINGLE and asked is None and not modes:
        return graph
    defaults, patterns = dict[int, str](), dict[int, str]()
    if isinstance(asked, PrecisionDefaults):
        defaults = _of_names(graph, ids, asked)
    elif asked is not None and not isinstance(asked, str):
        patterns = _of_names(graph, ids, asked)
    elif asked is not None:
        default = check_precision(asked, "precision")
    everywhere = {node.id: default for node in graph.nodes if has_precision(node)}
    return set_precision(graph, everywhere | defaults | modes | patterns)


def _of_names(graph: Graph, ids: Mapping[Tensor, int], asked: object) -> dict[int, str]:
    if not isinstance(asked, Mapping):
        raise PlanError(
            f"[precision] expected a mode, or tensors or name patterns to modes, got {asked!r}"
        )
    names, out, own = NameIndex(graph, "precision"), dict[int, str](), dict[int, str]()
    for key, value in asked.items():
        mode = check_precision(value, "precision")
        if isinstance(key, Tensor):
            if key not in ids:
                raise PlanError(f"[precision] {key!r} is not part of this graph")
            own[ids[key]] = mode
        else:
            out.update(dict.fromkeys(names.find(key), mode))
    return out | own


def _of_config(graph: Graph, config: Config | None) -> dict[int, str]:
    if config is None or not any(section.precision for section in config.sections.values()):
        return {}
    found = sections_of([node.name for node in graph.nodes], config)
    return {
        i: section.precision for i, section in enumerate(found) if section and section.precision
    }
