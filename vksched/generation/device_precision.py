"""Device precision: the precision and KV cache type of a language model's layers, by their device.

                          "auto"     "fast"     KV cache
    GPU with float16      mixed      mixed      f16
    other GPU             float32    float32    f32
    software driver       float32    float32    f32
    CPU                   float32    int8       f32

In another mode than mixed and float16 the KV cache is f32 on every device.
Examples: tests/generation/test_chat_precision.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ..engine.request_precision import PrecisionDefaults
from ..ir.precision import BYTES, HALF, MIXED, PRECISIONS, SINGLE
from ..topology.device_spec import DeviceSpec
from ..topology.topology import Topology

if TYPE_CHECKING:
    from ..engine.compile_options import Placements
    from ..engine.request_precision import Precision

AUTO, FAST = "auto", "fast"
"""The precision by device: the default, and the fastest mode of each device."""
CHAT_PRECISIONS = (*PRECISIONS, AUTO, FAST)
FLOAT32_CACHE, FLOAT16_CACHE = "f32", "f16"


def mode_of(spec: DeviceSpec, word: str) -> str:
    """Return the precision mode of a device. word: AUTO or FAST."""
    if spec.computes_float16:
        return MIXED
    return BYTES if word == FAST and spec.kind == "cpu" else SINGLE


def modes_of(topology: Topology, precision: Precision) -> tuple[str, ...]:
    """Return the precision mode of each device, by which layers are placed. Of a precision by names
    it is the mode of all other names.
    """
    word = precision if isinstance(precision, str) else precision.get("*", SINGLE)
    by_device = word in (AUTO, FAST)
    return tuple(mode_of(spec, word) if by_device else word for spec in topology.devices)


def cache_type_of(spec: DeviceSpec) -> str:
    """Return the element type of the KV cache of layers on a device."""
    return FLOAT16_CACHE if spec.computes_float16 else FLOAT32_CACHE


def cache_type_of_mode(precision: Precision) -> str:
    """Return the element type of the KV cache of a GPU with float16 in a precision."""
    modes = set(precision.values()) if isinstance(precision, Mapping) else {precision}
    return FLOAT16_CACHE if modes & {MIXED, HALF, AUTO, FAST} else FLOAT32_CACHE


def placement_cache_type(topology: Topology, precision: Precision) -> str:
    """Return the element type of the KV cache by which layers are placed."""
    if cache_type_of_mode(precision) == FLOAT32_CACHE:
        return FLOAT32_CACHE
    types = {cache_type_of(spec) for spec in _working(topology)}
    return FLOAT16_CACHE if types == {FLOAT16_CACHE} else FLOAT32_CACHE


def precision_by_name(
    word: str, placement: Placements | None, topology: Topology, later: bool = False
) -> Precision:
    """Return the precision of a model's nodes: one mode, or modes by the placement's names, which
    the scheduler's config outranks.

    word: AUTO or FAST. later: after a device was lost; layers that come to the CPU are not rounded
    then, and the answer continues with the same tokens.
    """
    specs = {spec.name: spec for spec in topology.devices}

    def mode(device: str) -> str:
        own = mode_of(specs[device], word) if device in specs else SINGLE
        return SINGLE if later and own == BYTES else own

    placed = placement or {}
    modes: dict[Any, str] = {} if "*" in placed else {"*": mode(_working(topology)[0].name)}
    modes |= {name: mode(device) for name, device in placed.items()}
    first, *others = dict.fromkeys(modes.values())
    return PrecisionDefaults(modes) if others else first


def cache_types_by_layer(
    placement: Placements | None, topology: Topology, layers: int, precision: Precision
) -> dict[int, str]:
    """Return the element type of the KV cache of each layer, which follows the layer's device."""
    if cache_type_of_mode(precision) == FLOAT32_CACHE:
        return dict.fromkeys(range(layers), FLOAT32_CACHE)
    types = {spec.name: cache_type_of(spec) for spec in topology.devices}
    default = cache_type_of(_working(topology)[0])
    out = dict.fromkeys(range(layers), default)
    for name, device in (placement or {}).items():
        for layer in out:
            if isinstance(name, str) and fnmatchcase(f"blk.{layer}.keys", name):
                out[layer] = types.get(device, FLOAT32_CACHE)
    return out


def _working(topology: Topology) -> list[DeviceSpec]:
    """Return the enabled devices in the order of their priority, without the CPU if there are
    others.
    """
    enabled = [spec for spec in topology.devices if not spec.disabled_reason]
    return [spec for spec in enabled if spec.kind != "cpu"] or enabled
