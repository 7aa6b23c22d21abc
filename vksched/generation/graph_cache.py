"""Graph cache: stores the rewritten graphs and plans of a language model's steps on disk, so that
later starts skip building, passes and planning.

    first start    model.step --> graph --passes--> graph --> plan
                                                      '--------'--> file: nodes, names of weights
    later starts   file, weights, states -----------> graph, plan

    <cache>/steps/<hash of the inputs>.step: a line with the digest of the rest; a line of JSON
    with the graph, its plan and the code that built them; the bytes of the constants

The hash covers the model's files as they were opened, its hyperparameters, the KV cache, the size
of the step, the native modules, numpy's version, vksched's environment variables and the
scheduler's pass options; any change selects another file. The code is the list of modules that were
loaded: a file written by other modules is ignored, and no file is written if a module has changed
since it was loaded. The planner checks the plan when it is used (planner/plan_cache.py). The cache
is optional: if a file is damaged, has another format or does not fit the weights, or if the folder
cannot be read or written, the step is built from the model.

The digest detects damage, not tampering: whoever can write to the folder can compute a digest.
Types are therefore checked, graph and plan are verified like those of untrusted input, and a file
names the request that it answers. An invalid file is set aside with a warning. Constants are used
as stored: whoever can write to the folder can change results, as with the package itself.

Examples: tests/generation/test_graph_cache.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.dtypes import NDArray, TensorType, numpy_dtype
from ..common.schema import Whole, parse, record
from ..common.user_warning import warn
from ..common.version import __version__
from ..ir.attrs import Attrs, AttrValue
from ..ir.graph import Graph, Node
from ..ops.lowering import native_kernels
from ..plan.serialize.graph_codec import NONSENSE
from ..planner.plan_cache import CachedPlan
from ..storage.disk_cache import (
    PACKAGE,
    about_loaded,
    folder_of,
    is_code,
    loaded_code,
    locked,
    make_folder,
    optional_write,
    read_whole,
    remove_old,
    replace_whole,
    set_aside,
)
from ..storage.lazy_array import ArrayLike, as_array

if TYPE_CHECKING:
    from ..importers.gguf.kv_cache import KeyValueCache
    from ..importers.gguf.model import LanguageModel

FORMAT = 6
MIN_LAYERS = 12
"""The minimum number of layers of a model whose steps are worth a file."""
MAX_FILES = 32
"""The maximum number of files; the oldest are removed first."""
SUFFIX = ".step"
MAX_BYTES = 8 << 20
"""The maximum bytes of constants of a cached graph."""
ALIGN = 64
"""The alignment of constants in bytes."""
STEP = record(
    key=str,
    code=list[tuple[str, Whole, Whole]],
    plan=dict[str, Any] | None,
    nodes=list[tuple[str, list[Whole], Whole, Whole, str]],
    attrs=list[dict[str, Any]],
    types=list[tuple[list[Whole], str]],
    leaves=list[tuple[Whole, str, Whole | list[Any]]],
    outputs=list[tuple[str, Whole]],
    backed_up_states=list[Whole],
    aliases=dict[str, Whole],
)
"""The fields of a document. `key` is the key of the plan request. A node is its op, inputs, indices
of attributes and type, and name. A leaf is its node, kind, and the name or offset of its data. The
rest is as in `Graph`.
"""


class CachedStepGraph:
    """The file of one cached step. rewriting: the scheduler's pass options; None disables the
    cache.
    """

    def __init__(
        self, model: LanguageModel, cache: KeyValueCache, size: int, rewriting: str | None
    ) -> None:
        self._model, self._cache = model, cache
        self._read: Document | None = None
        self._content = b""
        key, folder = None, folder_of("steps")
        if rewriting is not None and folder is not None and model.hyper.layers >= MIN_LAYERS:
            key = cache_key(model, cache, size, rewriting)
        self._key = key
        self._path = None if key is None or folder is None else folder / f"{key}{SUFFIX}"

    def read(self) -> CachedPlan | None:
        """Return the rewritten graph of the step with this model's weights and this cache's states,
        and its plan; None if there is no valid file.
        """
        if self._path is None:
            return None
        try:
            self._content = read_whole(self._path)
        except OSError:
            return None
        try:
            document = _document_of(self._content)
            if document.fields["key"] != self._key:
                raise ValueError("it has another key")
            if not is_code(document.fields["code"]):
                return None
            graph = _graph(document, self._model, self._cache)
            cached = CachedPlan(graph, document.fields["plan"])
            self._read = document
            return cached
        except NONSENSE as error:
            self.set_aside(error)
            return None

    def set_aside(self, why: BaseException) -> None:
        """Rename an invalid file, with a warning."""
        self._read = None
        if self._path is not None:
            set_aside(self._path, self._content)
            warn(
                f"[steps] {self._path} is not used: {type(why).__name__}: {why}; it is set aside "
                "as .damaged, and built again"
            )

    def write(self, graph: Graph, plan: Mapping[str, Any] | None) -> None:
        """Write the graph of a step that was compiled or read. plan: its plan, if it can be
        cached.
        """
        if self._path is None:
            return
        document, code = self._read or _document(graph, self._model, self._cache), loaded_code()
        if document is None or code is None:
            return
        # modules that built the cached graph, and modules that planned it
        modules = sorted({*map(tuple, document.fields.get("code", ())), *code})
        fields = {**document.fields, "key": self._key, "plan": plan, "code": modules}
        whole = replace(document, fields=fields)
        with optional_write(self._path.parent):
            make_folder(self._path.parent)
            with locked(self._path.parent / "lock"):
                replace_whole(self._path, _bytes_of(whole))
                remove_old(self._path.parent, MAX_FILES, "*.*")  # files of older formats, too


def cache_key(model: LanguageModel, cache: KeyValueCache, size: int, rewriting: str) -> str | None:
    """Return a hash of all inputs of a step's graph; None if the model is in memory or native
    modules were rebuilt since they were loaded.
    """
    native = getattr(native_kernels.native, "__file__", None)
    about = about_loaded(native) if native else None
    if model.file.identity is None or (native and about is None):
        return None
    fields = (
        *(FORMAT, str(PACKAGE), __version__),
        *(sys.version, np.__version__, platform.machine()),
        (native, about),
        sorted(item for item in os.environ.items() if item[0].startswith("VKSCHED_")),
        (model.file.identity, type(model).__name__, model.architecture, repr(model.hyper)),
        (cache.length, cache.dtype, size, rewriting),
    )
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:32]


# -- graphs as plain data --------------------------------------------------------------------------


@dataclass(frozen=True)
class Document:
    """A graph as plain data, and the concatenated bytes of its constants."""

    fields: Mapping[str, Any]
    constants: bytes | memoryview


def _bytes_of(document: Document) -> bytes:
    text = json.dumps(document.fields, separators=(",", ":")).encode()
    before = len(_digest(b"")) + len(text) + 2  # two newlines
    text += b" " * (-before % ALIGN)
    content = b"".join([text, b"\n", document.constants])
    return b"\n".join([_digest(content), content])


def _document_of(content: bytes) -> Document:
    """Return the document of a file; raise one of NONSENSE if the file is invalid."""
    whole, size = memoryview(content), len(_digest(b""))
    if content[: size + 1] != _digest(whole[size + 1 :]) + b"\n":
        raise ValueError("another digest")
    end = content.index(b"\n", size + 1)
    fields = parse(content[size + 1 : end], STEP, "the step")
    return Document(fields, whole[end + 1 :])


def _digest(content: bytes | memoryview) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _document(graph: Graph, model: LanguageModel, cache: KeyValueCache) -> Document | None:
    """Return a document that refers to weights and states by name; None if the graph has other
    leaves, too many constants, or allocates device memory of its own.
    """
    weights: dict[object, Any] = dict(model.weights.leaves())  # type: ignore[arg-type]
    states: dict[object, Any] = {
        tensor: (name, *cache.sizes[name]) for name, tensor in cache.states.items()
    }
    attrs: dict[Attrs, int] = {}
    types: dict[TensorType, int] = {}
    leaves: list[tuple[int, str, Any]] = []
    constants: list[bytes] = []
    used = 0
    for node_id, key in graph.keys.items():
        if key in weights:
            leaves.append((node_id, "weight", weights[key]))
        elif key in states:
            leaves.append((node_id, "state", states[key]))
        elif graph.nodes[node_id].op == "constant":
            size = graph.data[node_id].nbytes
            if used + size > MAX_BYTES:
                return None
            leaves.append((node_id, "constant", used))
            constants.append(np.ascontiguousarray(as_array(graph.data[node_id])).tobytes())
            constants.append(bytes(-size % ALIGN))
            used += size + len(constants[-1])
        else:
            return None
    if len(graph.outputs) != 1 or any("conv" in node.op for node in graph.nodes):
        return None
    nodes = [
        (
            n.op,
            n.inputs,
            attrs.setdefault(n.attrs, len(attrs)),
            types.setdefault(n.type, len(types)),
            n.name,
        )
        for n in graph.nodes
    ]
    fields = {
        "nodes": nodes,
        "attrs": [dict(each) for each in attrs],
        "types": [(each.shape, each.dtype) for each in types],
        "leaves": leaves,
        "outputs": graph.outputs,
        "backed_up_states": graph.backed_up_states,
        "aliases": dict(graph.aliases),
    }
    return Document(fields, b"".join(constants))


def _graph(document: Document, model: LanguageModel, cache: KeyValueCache) -> Graph:
    """Return the graph of a document.

    Raises
    ------
    NONSENSE
        One of these exceptions, if the document does not fit the model.
    """
    fields = document.fields
    attrs = [Attrs({k: _attr(v) for k, v in each.items()}) for each in fields["attrs"]]
    types = [TensorType(tuple(shape), dtype) for shape, dtype in fields["types"]]
    nodes = tuple(
        [
            Node(at, op, tuple(inputs), attrs[attr], types[kind], name)
            for at, (op, inputs, attr, kind, name) in enumerate(fields["nodes"])
        ]
    )
    data: dict[int, ArrayLike] = {}
    keys: dict[int, object] = {}
    initial: dict[int, NDArray] = {}
    for node_id, kind, value in fields["leaves"]:
        expected = nodes[node_id].type
        if kind == "constant":
            data[node_id] = _array_of(document.constants, value, expected)
            keys[node_id] = object()
            continue
        name, *how = value
        if kind == "weight":
            leaf = model.weights.leaf(name, tuple(how[0]), how[1])
        else:
            leaf = cache.state(name, *how)
        if leaf.type != expected or leaf.held is None:
            raise ValueError(f"{name}: expected {expected}, got {leaf.type}")
        keys[node_id] = leaf
        if kind == "weight":
            data[node_id] = leaf.held
        else:
            initial[node_id] = as_array(leaf.held)
    outputs = tuple((name, node_id) for name, node_id in fields["outputs"])
    maps = (MappingProxyType(data), MappingProxyType(keys), MappingProxyType(initial))
    backed_up, merged = tuple(fields["backed_up_states"]), MappingProxyType(dict(fields["aliases"]))
    return Graph(nodes, outputs, *maps, backed_up, merged).verify()


def _attr(value: Any) -> AttrValue:
    return tuple(map(_attr, value)) if isinstance(value, list) else value


def _array_of(constants: bytes | memoryview, start: int, expected: TensorType) -> NDArray:
    flat = np.frombuffer(constants, numpy_dtype(expected.dtype), expected.size, start)
    return flat.reshape(expected.shape)  # read-only, like all constants
