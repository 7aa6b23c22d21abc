"""Node names: the nodes of a graph that match an id, a name or a pattern.

Problem: names are long and easily misspelled. Method: an exact name has precedence, otherwise the
key is a pattern as in fnmatch. A node that passes have fused into another matches as well, and
stands for the fused node. A key without a match raises an error with similar names.
Complexity: O(nodes) per pattern. Examples: tests/plan/test_explain.py, tests/plan/test_plan.py.
"""

from __future__ import annotations

import difflib
import re
from fnmatch import translate
from functools import cached_property

from ...common.errors import PlanError
from ...ir.graph import Graph

SHOWN = 8
CLOSE_AMONG = 5000
"""Maximum number of names compared with an unknown one: each comparison takes microseconds."""


class NameIndex:
    """The names of one graph. stage: the prefix of error messages."""

    def __init__(self, graph: Graph, stage: str) -> None:
        self._graph = graph
        self._stage = stage

    @cached_property
    def _by_name(self) -> dict[str, int]:
        return {node.name: node.id for node in self._graph.nodes}

    def find(self, key: str | int) -> tuple[int, ...]:
        """Return the ids of the nodes that a key matches, at least one, in order.

        Raises
        ------
        PlanError
            No node matches; the text suggests similar names.
        """
        count = len(self._graph.nodes)
        if isinstance(key, int):
            if not 0 <= key < count:
                raise PlanError(f"[{self._stage}] expected a node id below {count}, got {key}")
            return (key,)
        if not isinstance(key, str):
            raise PlanError(f"[{self._stage}] expected a name, a pattern or a node id, got {key!r}")
        matched = self.matches(key)
        if not matched:
            raise PlanError(
                f"[{self._stage}] expected a node that matches {key!r}, got none; {self._hint(key)}"
            )
        return matched

    def matches(self, key: str) -> tuple[int, ...]:
        """Return the ids of the nodes that a name or a pattern matches, in order; () for none."""
        if key in self._by_name:
            return (self._by_name[key],)
        if key in self._graph.aliases:
            return (self._graph.aliases[key],)
        pattern = re.compile(translate(key))
        found = {n.id for n in self._graph.nodes if pattern.match(n.name)}
        found |= {n for name, n in self._graph.aliases.items() if pattern.match(name)}
        return tuple(sorted(found))

    def _hint(self, key: str) -> str:
        names = [*self._by_name, *self._graph.aliases]
        close = difflib.get_close_matches(key, names[:CLOSE_AMONG], 3, 0.4)
        if close:
            return f"close: {', '.join(close)}"
        return f"there is: {', '.join(names[:SHOWN])}" + (", ..." if len(names) > SHOWN else "")
