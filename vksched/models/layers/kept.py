"""Kept: what layers take on a machine, on disk, so that later starts of a model need not ask again.

    <cache>/layers/<hash of all that decides>.json: {"format", "digest", "measured"}

The hash is of the model's sizes and tensors, the cache, the steps, the machine without its free
memory, and the code: whatever changes has another file. Nothing here is needed: a file that is
damaged, of another format or not there means that layers are measured; so does a folder that
cannot be found or written. Files are replaced whole, under a lock, so any number of processes may
read and write. Examples: tests/models/test_kept_layers.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...caches import (
    code_files,
    default_folder,
    kept_if_room,
    locked,
    make_folder,
    read_whole,
    remove_old,
    replace_whole,
)
from ...machine.spec import Machine
from ...ops.core import loops
from ...tuner.device_files import DAMAGE
from .divide import Experts, Layer
from .measure import Measured, places_of

if TYPE_CHECKING:
    from ...importers.gguf.cache import KeyValueCache
    from ...importers.gguf.model import LanguageModel

FORMAT = 1
LEAST_LAYERS = 12
"""Of a model that takes long enough to measure."""
MOST_FILES = 32
"""Then those written first are removed."""


def kept_or_measured(
    model: LanguageModel,
    cache: KeyValueCache,
    sizes: Sequence[int],
    machine: Machine,
    measure: Callable[[], Measured],
) -> Measured:
    """Returns what layers take: what is kept, or what `measure` gives, which is kept then."""
    folder = default_folder()
    if folder is None or model.hyper.layers < LEAST_LAYERS:
        return measure()
    path = folder / "layers" / f"{key_of(model, cache, sizes, machine)}.json"
    found = _read(path, machine)
    if found is None:
        found = measure()
        with kept_if_room(folder):
            _write(path, found)
    return found


def key_of(
    model: LanguageModel, cache: KeyValueCache, sizes: Sequence[int], machine: Machine
) -> str:
    """Returns a hash of all that decides what layers take."""
    # whatever is free at the moment makes room, and no layer slower
    bare = replace(machine, devices=tuple(replace(d, memory_bytes=0) for d in machine.devices))
    tensors = [(t.name, t.shape, t.type) for t in model.file.tensors.values()]
    told = (
        *(FORMAT, code_files(), loops.native is not None, repr(model.hyper), tensors),
        *(cache.length, cache.dtype, list(sizes), bare.as_dict(), repr(machine.links.default)),
    )
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


# -- files -----------------------------------------------------------------------------------------


def _read(path: Path, machine: Machine) -> Measured | None:
    """Returns what a file has, with the room that devices have now; None where it has nothing."""
    try:
        data = json.loads(read_whole(path))
        told = data["measured"]
        if data["format"] != FORMAT or data["digest"] != _digest(told):
            return None
        layers = tuple(_layer(each) for each in told["layers"])
        shared_bytes, seconds = told["shared_bytes"], told["stretch_s"]
        places = places_of(machine, shared_bytes, [(write, read) for write, read in seconds])
        return Measured(layers, places, shared_bytes, told["tokens"], told["hidden_bytes"])
    except DAMAGE:
        return None


def _layer(told: Mapping[str, Any]) -> Layer:
    experts = told["experts"] and Experts(**{k: _tuples(v) for k, v in told["experts"].items()})
    return Layer(**{k: _tuples(v) for k, v in told.items()} | {"experts": experts})


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _write(path: Path, measured: Measured) -> None:
    told = {
        "layers": [asdict(layer) for layer in measured.layers],
        "stretch_s": [(place.write_s, place.read_s) for place in measured.places],
        "shared_bytes": measured.shared_bytes,
        "tokens": measured.tokens,
        "hidden_bytes": measured.hidden_bytes,
    }
    make_folder(path.parent)
    with locked(path.parent / "lock"):
        replace_whole(
            path, json.dumps({"format": FORMAT, "digest": _digest(told), "measured": told})
        )
        remove_old(path.parent, MOST_FILES)


def _digest(told: object) -> str:
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()
