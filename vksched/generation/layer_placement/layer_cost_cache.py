"""Layer cost cache: stores estimated layer costs on disk, so that later starts of a model skip the
estimation.

    <cache>/layers/<hash of the inputs>.json: {"format", "key", "digest", "measured"}

The hash covers the model's hyperparameters and tensors, the KV cache, the steps, the machine
without its free memory, and the code; any change selects another file. The cache is optional: if a
file is missing or has another format, or if the folder cannot be read or written, costs are
estimated again. A damaged file, or one with another key, is set aside with a warning. Plausible
numbers are trusted, because they affect only speed. Files are replaced atomically under a lock, so
any number of processes may read and write. Examples: tests/generation/test_layer_cost_cache.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from ...common.package_code import code_files
from ...common.schema import Number, Size, check
from ...ops.lowering import native_kernels
from ...storage.cache_folder import folder_of, optional_write
from ...storage.disk_cache import DiskCache
from ...topology.topology import Topology
from .layer_costs import LayerCosts, places_of
from .partition_layers import Layer

if TYPE_CHECKING:
    from ...importers.gguf.kv_cache import KeyValueCache
    from ...importers.gguf.model import LanguageModel

FORMAT = 3
MIN_LAYERS = 12
"""The minimum number of layers of a model whose costs are worth a file."""
MAX_FILES = 32
"""The maximum number of files; the oldest are removed first."""
REMEDY = ", and layer costs are estimated again"


class MeasuredDocument(TypedDict):
    """The fields of `LayerCosts`; of `DeviceBudget` only the times of a layer range."""

    layers: tuple[Layer, ...]
    range_s: list[tuple[Number, Number]]
    shared_bytes: Size
    tokens: Size
    hidden_bytes: Size


def cached_or_measured(
    model: LanguageModel,
    cache: KeyValueCache,
    sizes: Sequence[int],
    topology: Topology,
    measure: Callable[[], LayerCosts],
) -> LayerCosts:
    """Return the cached layer costs, or call `measure` and cache its result."""
    files = DiskCache(folder_of("layers"), "layers", REMEDY, MAX_FILES)
    if files.folder is None or model.hyper.layers < MIN_LAYERS:
        return measure()
    key = cache_key(model, cache, sizes, topology)
    name = f"{key}.json"
    found = files.get(name, lambda content: _parse(content, key, topology))
    if found is None:
        found = measure()
        with optional_write(files.folder):
            files.put(name, _content(key, found), "*.*", with_lock=True)
    return found


def cache_key(
    model: LanguageModel, cache: KeyValueCache, sizes: Sequence[int], topology: Topology
) -> str:
    """Return a hash of all inputs of the layer costs."""
    # free memory changes the budget, not the cost of a layer
    bare = replace(topology, devices=tuple(replace(d, memory_bytes=0) for d in topology.devices))
    tensors = [(t.name, t.shape, t.type) for t in model.file.tensors.values()]
    fields = (
        *(FORMAT, code_files(), native_kernels.native is not None, repr(model.hyper), tensors),
        *(
            cache.length,
            cache.slots,
            cache.dtype,
            list(sizes),
            bare.as_dict(),
            repr(topology.links.default),
        ),
    )
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:32]


# -- files -----------------------------------------------------------------------------------------


def _parse(content: bytes, key: str, topology: Topology) -> LayerCosts | None:
    """Return the costs of a file with the devices' current memory budgets; None if it has another
    format.
    """
    data = json.loads(content)
    if data["format"] != FORMAT:
        return None
    fields = data["measured"]
    if data["key"] != key or data["digest"] != _digest(fields):
        raise ValueError("it has another key, or is damaged")
    return _measured_of(fields, topology)


def _measured_of(fields: Any, topology: Topology) -> LayerCosts:
    """Return the costs of plain data; raise one of DECODE_ERRORS if they are invalid."""
    found: MeasuredDocument = check(fields, MeasuredDocument, "what layers take")
    if json.loads(msgspec.json.encode(found)) != fields:
        raise ValueError("it has other fields")
    layers, count, seconds = found["layers"], len(topology.devices), found["range_s"]
    of_devices = [seconds, *(each for layer in layers for each in (layer.write_s, layer.read_s))]
    of_experts = [layer.experts for layer in layers if layer.experts is not None]
    of_devices += [each for experts in of_experts for each in (experts.write_s, experts.read_s)]
    if not layers or any(len(each) != count for each in of_devices):
        raise ValueError(f"expected times of {count} devices")
    shared_bytes = found["shared_bytes"]
    places = places_of(topology, shared_bytes, seconds)
    return LayerCosts(layers, places, shared_bytes, found["tokens"], found["hidden_bytes"])


def _content(key: str, measured: LayerCosts) -> bytes:
    """Return the content of a file."""
    fields = {
        "layers": [asdict(layer) for layer in measured.layers],
        "range_s": [(place.write_s, place.read_s) for place in measured.places],
        "shared_bytes": measured.shared_bytes,
        "tokens": measured.tokens,
        "hidden_bytes": measured.hidden_bytes,
    }
    whole = {"format": FORMAT, "key": key, "digest": _digest(fields), "measured": fields}
    return json.dumps(whole).encode()


def _digest(fields: object) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()
