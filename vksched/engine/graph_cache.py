"""Graph cache: stores rewritten graphs and their plans on disk, so that later starts skip passes
and planning, and language models also the construction of their steps.

    first start    outputs --> graph --passes--> graph --> plan
                                                   '--------'--> file: nodes, references of leaves
    later starts   file, leaves -------------------> graph, plan

    <cache>/graphs/<hash of the inputs>.graph: a line with the digest of the rest; a line of JSON
    with the graph, its plan and the code that built them; the bytes of the constants

The hash covers everything that determines the graph, the native modules, numpy's version, vksched's
environment variables except WITHOUT_INFLUENCE, and the options of the passes; any change selects
another file. A graph that is built already is hashed by its nodes, constants and weights: weights
of a file by the file and their position in it, all others by content; a graph of a file that was
written a moment ago is not cached. A `DeferredGraph` names its inputs instead, and is built only if
there is no file. The code is the list of modules that were loaded: a file written by other modules
is ignored, and no file is written if a module has changed since it was loaded. The planner checks
the plan when it is used (planner/plan_cache.py). Files are written in the background, at the latest
when the scheduler is closed (storage/background_writes.py). The cache is optional: if a file is
damaged, has another format or does not fit the leaves, or if the folder cannot be read or written,
the graph is rewritten again.

The digest detects damage, not tampering: whoever can write to the folder can compute a digest.
Types are therefore checked, graph and plan are verified like those of untrusted input, and a file
names the request that it answers, whose inputs, outputs and observed nodes the graph must have. An
invalid file is set aside with a warning. Constants are used as stored: whoever can write to the
folder can change results, as with the package itself.

Examples: tests/engine/test_cached_graphs.py, tests/generation/test_graph_cache.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..common.errors import GraphError
from ..common.package_code import PACKAGE, about_loaded, is_code, loaded_code
from ..common.version import __version__
from ..ir.build_graph import Outputs, Updates
from ..ir.graph import Graph
from ..ops.lowering import native_kernels
from ..passes import RewriteConstraints
from ..planner.plan_cache import CachedPlan
from ..storage.background_writes import WRITES
from ..storage.cache_folder import folder_of, optional_write
from ..storage.content_hash import is_settled
from ..storage.disk_cache import DiskCache
from ..storage.lazy_array import LazyArray, origin_of
from ..topology.tuned_variants import TunedVariants
from .graph_document import Document, LeafTable, bytes_of, decode_graph, document_of, encode_graph

FORMAT = 7
MIN_NODES = 48
"""The minimum number of nodes of a graph that is worth a file."""
MAX_FILES = 32
"""The maximum number of files; the oldest are removed first."""
MAX_HASHED_BYTES = 8 << 20
"""The maximum bytes of a graph's leaves that are hashed by content."""

WITHOUT_INFLUENCE = (
    "VKSCHED_CACHE",  # the folder
    "VKSCHED_CHECK",  # checks runs
    "VKSCHED_FIND_OVERFLOW",  # after runs
    "VKSCHED_MONITOR",
    "VKSCHED_PROBE",  # the process in which drivers are loaded
    "VKSCHED_TEMPLATES",  # the process in which chat templates are rendered
    "VKSCHED_TRACE",
)
"""Environment variables of the package that change neither a graph nor its plan. All others are
part of the hash.
"""


@dataclass(frozen=True, eq=False)
class DeferredGraph:
    """A graph of one output that is built only if the cache has none.

    key: everything that determines the graph besides the options of passes, as plain data; None
    disables the cache. leaves: the weights and states that `build` would use. inputs: the names of
    its inputs.
    """

    key: tuple[object, ...] | None
    leaves: LeafTable
    build: Callable[[], tuple[Outputs, Updates]]
    inputs: frozenset[str]

    def require_ends(self, graph: Graph) -> None:
        """Raise GraphError unless a graph from a file has these inputs and one output."""
        names = {node.name for node in graph.inputs}
        if names != self.inputs or len(graph.outputs) != 1:
            raise GraphError(
                f"[graph] expected inputs {sorted(self.inputs)} and one output, got "
                f"{sorted(names)} and {len(graph.outputs)}"
            )


class CachedGraph:
    """The file of one cached graph. key: as returned by `hash_of`; None disables the cache."""

    def __init__(self, key: str | None, leaves: LeafTable) -> None:
        self._key, self._leaves = key, leaves
        self._read: Document | None = None
        self._content = b""
        folder = None if key is None else folder_of("graphs")
        self._name = f"{key}.graph"
        self._files = DiskCache(folder, "graphs", ", and built again", MAX_FILES)

    def read(self, require_ends: Callable[[Graph], None]) -> CachedPlan | None:
        """Return the rewritten graph with the leaves of this process, and its plan; None if there
        is no valid file. require_ends: raises GraphError if it is not the graph of the request.
        """
        WRITES.wait(self._name)
        return self._files.get(self._name, partial(self._parse, require_ends))

    def _parse(self, require_ends: Callable[[Graph], None], content: bytes) -> CachedPlan | None:
        document = document_of(content)
        if document.fields["key"] != self._key:
            raise ValueError("it has another key")
        if not is_code(document.fields["code"]):
            return None
        graph = decode_graph(document, self._leaves)
        require_ends(graph)
        self._read, self._content = document, content
        return CachedPlan(graph, document.fields["plan"])

    def set_aside(self, why: Exception) -> None:
        """Rename a file whose graph or plan turned out to be invalid, with a warning."""
        self._read = None
        self._files.set_aside(self._name, self._content, why)

    def write_later(
        self, graph: Graph, plan: Callable[[], Mapping[str, Any] | None], needs_plan: bool
    ) -> None:
        """Write a graph that was rewritten or read, in the background.

        Parameters
        ----------
        plan
            Returns its plan; None if it cannot be cached.
        needs_plan
            True if nothing is written without a plan.
        """
        if self._files.folder is None:
            return

        def write() -> None:
            fields = plan()
            if fields is not None or not needs_plan:
                self.write(graph, fields)

        WRITES.add(self._name, write)

    def write(self, graph: Graph, plan: Mapping[str, Any] | None) -> None:
        """Write a graph that was rewritten or read. plan: its plan, if it can be cached."""
        if self._files.folder is None:
            return
        document, code = self._read or encode_graph(graph, self._leaves), loaded_code()
        if document is None or code is None:
            return
        # modules that built the cached graph, and modules that planned it
        modules = sorted({*map(tuple, document.fields.get("code", ())), *code})
        fields = {**document.fields, "key": self._key, "plan": plan, "code": modules}
        try:
            content = bytes_of(replace(document, fields=fields))
        except TypeError:  # an attribute that is no plain data
            return
        with optional_write(self._files.folder):
            # files of older formats count, too
            self._files.put(self._name, content, "*.*", with_lock=True)


def hash_of(inputs: tuple[object, ...] | None, rewriting: str | None) -> str | None:
    """Return a hash of all inputs of a rewritten graph, as plain data; None if an argument is None
    or native modules were rebuilt since they were loaded.
    """
    native = getattr(native_kernels.native, "__file__", None)
    about = about_loaded(native) if native else None
    if inputs is None or rewriting is None or (native and about is None):
        return None
    fields = (
        *(FORMAT, str(PACKAGE), __version__),
        *(sys.version, np.__version__, platform.machine()),
        (native, about),
        sorted(item for item in os.environ.items() if _has_influence(item[0])),
        (inputs, rewriting),
    )
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:32]


def _has_influence(variable: str) -> bool:
    """Return True if an environment variable may change a graph or its plan."""
    return variable.startswith("VKSCHED_") and variable not in WITHOUT_INFLUENCE


def describe_graph(graph: Graph) -> tuple[object, ...] | None:
    """Return everything that passes read of a graph as plain data; None if it is too small, has ops
    that are not declared by name alone, if too many bytes would have to be hashed, or if a file of
    weights was written a moment ago.
    """
    if len(graph.nodes) < MIN_NODES or any(node.declaration.opaque for node in graph.calls):
        return None
    leaves: list[tuple[object, ...]] = []
    contents, left = hashlib.sha256(), MAX_HASHED_BYTES
    for node_id, held in graph.data.items():
        origin = None if graph.nodes[node_id].op == "constant" else origin_of(held)
        if origin is not None:
            extent = origin.extent
            if not is_settled(extent.identity):
                return None
            where = extent.identity, extent.start, extent.size
            leaves.append((node_id, where, origin.shape, origin.dtype, origin.blocks))
            continue
        left -= held.nbytes
        if left < 0 or isinstance(held, LazyArray):
            return None
        contents.update(held.tobytes())  # its size is that of the node's type
    nodes = [(n.op, n.inputs, n.attrs, n.type.shape, n.type.dtype, n.name) for n in graph.nodes]
    ends = graph.outputs, graph.backed_up_states
    return repr(nodes), repr(ends), repr(leaves), contents.hexdigest()


def depends_on_memory(graph: Graph) -> bool:
    """Return True if the passes' result may depend on the memory of devices."""
    return any("conv" in node.op for node in graph.calls)


def describe_constraints(constraints: RewriteConstraints, with_memory: bool) -> str:
    """Return the options of passes as text. with_memory: include the memory of devices."""
    limits = constraints.limits
    return repr(
        (
            sorted(constraints.observed),
            sorted(constraints.pinned_devices.items()),
            None if limits is None else dict(limits.tuned),
            None if limits is None else replace(limits, tuned=TunedVariants()),
            constraints.memory_bytes if with_memory else None,
        )
    )
