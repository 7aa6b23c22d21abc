"""Compiled shaders: SPIR-V, and the manifest's bindings, push constants and specialization
constants.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from ...common.errors import ShaderError
from ...ir.op import ShaderProgram
from .spirv_patch import FUSED, link

DIRECTORY = Path(__file__).parents[2] / "spirv"
_REMEDY = (
    "try `python build_shaders.py` in a clone, before `pip install .` where it was installed so"
)
_FORMAT = {"uint": "I", "int": "i", "float": "f"}

PushValue = int | float | tuple[int, ...]


@dataclass(frozen=True)
class Shader:
    """One SPIR-V module.

    Parameters
    ----------
    push
        The push constants: (name, type, count) in order.
    constants
        The specialization constants: (name, id, default).
    """

    name: str
    spirv: bytes
    bindings: tuple[str, ...]
    push: tuple[tuple[str, str, int], ...]
    constants: tuple[tuple[str, int, int], ...]

    @cached_property
    def push_bytes(self) -> int:
        return 4 * sum(count for _, _, count in self.push)

    def pack_push(self, offsets: Sequence[int], values: Mapping[str, PushValue]) -> bytes:
        """Return the push constants: one word offset per binding, then the named fields. The last
        binding of a module may be omitted if none of its steps reads it.

        Raises
        ------
        ShaderError
            A field is missing, unknown, or has another length.
        """
        fields, layout = self._fields
        missing = len(self.bindings) - len(offsets)
        if missing not in (0, int(self._accepts_residual)) or fields.keys() != values.keys():
            raise ShaderError(
                f"[{self.name}] expected {len(self.bindings)} offsets and the fields "
                f"{sorted(fields)}, got {len(offsets)} and {sorted(values)}"
            )
        out: list[float] = [*offsets, *(0,) * missing]
        for name, count in fields.items():
            value = values[name]
            items = value if isinstance(value, tuple) else (value,)
            if len(items) != count:
                raise ShaderError(
                    f"[{self.name}] expected {count} values for {name}, got {len(items)}"
                )
            out += items
        return layout.pack(*out)

    @cached_property
    def _fields(self) -> tuple[Mapping[str, int], struct.Struct]:
        """The fields after the offsets with their counts, and the layout of all of them."""
        fields = self.push[len(self.bindings) :]
        letters = "".join(f"{count}{_FORMAT[kind]}" for _, kind, count in fields)
        layout = struct.Struct(f"<{len(self.bindings)}I{letters}")
        return {name: count for name, _, count in fields}, layout

    def specialize(self, constants: Mapping[str, int]) -> tuple[int, ...]:
        """Return the values of all specialization constants by id; omitted ones have their
        defaults.

        Raises
        ------
        ShaderError
            A name is unknown.
        """
        known = self._defaults
        if not constants.keys() <= known.keys():
            unknown = sorted(constants.keys() - known.keys())
            raise ShaderError(f"[{self.name}] expected constants of {sorted(known)}, got {unknown}")
        return tuple({**known, **constants}.values())

    @cached_property
    def _defaults(self) -> Mapping[str, int]:
        return {name: default for name, _, default in self.constants}

    def module(self, steps: ShaderProgram = ShaderProgram()) -> bytes:  # noqa: B008, as it is frozen
        """Return the SPIR-V module, with a fused program or epilogue inserted if it has one."""
        return link(self.spirv, steps) if self._accepts_steps else self.spirv

    @cached_property
    def _accepts_steps(self) -> bool:
        return FUSED.encode() in self.spirv or self._accepts_residual

    @property
    def _accepts_residual(self) -> bool:
        return self.bindings[-1] == "residual"


@lru_cache(maxsize=1)
def _manifest() -> tuple[Mapping[str, Any], frozenset[str]]:
    try:
        read = json.loads((DIRECTORY / "manifest.json").read_text("utf-8"))
        return read["variants"], frozenset(read.get("left_out", ()))
    except (OSError, ValueError, KeyError) as error:
        raise ShaderError(f"[shaders] no compiled shaders: {error}; {_REMEDY}") from None


def load_manifest() -> Mapping[str, Any]:
    """Return the manifest's variants by name.

    Raises
    ------
    ShaderError
        The manifest does not exist or cannot be read.
    """
    return _manifest()[0]


def left_out() -> frozenset[str]:
    """Return the variants that were not compiled, because the compiler had no cooperative matrices.

    Raises
    ------
    ShaderError
        As `load_manifest`.
    """
    return _manifest()[1]


@cache
def load_shader(name: str) -> Shader:
    """Return a compiled variant by name.

    Raises
    ------
    ShaderError
        It does not exist or cannot be read.
    """
    entry = load_manifest().get(name)
    if entry is None:
        raise ShaderError(f"[shaders] expected a variant of the manifest, got {name!r}; {_REMEDY}")
    try:
        spirv = (DIRECTORY / entry["file"]).read_bytes()
    except OSError as error:
        raise ShaderError(f"[shaders] {name}: {error}; {_REMEDY}") from None
    return Shader(
        name,
        spirv,
        tuple(entry["bindings"]),
        tuple((n, t, c) for n, t, c in entry["push"]),
        tuple((n, i, d) for n, i, d in entry["constants"]),
    )
