"""Keys: the metadata of one architecture, each value in its range.

Keys begin with the name of the architecture: "llama.block_count". Wrong or missing ones are a
ModelFormatError that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from reprlib import repr as shortened

import numpy as np

from ....common.errors import ModelFormatError
from ..read.metadata import Value

MAX_SIZE = (1 << 31) - 1
MAX_REAL = 1e38
"""A little of float32 is left, for what is computed of it."""

USUAL: Mapping[str, Value] = {
    "gemma2.attention.sliding_window": 4096,
    "llama4.attention.sliding_window": 8192,
    "llama4.attention.temperature_length": 8192,
    "llama4.attention.temperature_scale": 0.1,
}
"""What files leave out, as all models of the architecture have it."""
NEEDED = frozenset(
    {
        "cohere2.attention.sliding_window",
        "cohere2.logit_scale",
        "command-r.logit_scale",
        "gemma2.attn_logit_softcapping",
        "gemma2.final_logit_softcapping",
        "gpt-oss.attention.sliding_window",
        "granite.logit_scale",
        "granitemoe.logit_scale",
    }
)
"""What other architectures may leave out."""


class Keys:
    """Takes values of one architecture from the metadata, each in its range."""

    def __init__(self, architecture: str, metadata: Mapping[str, Value]) -> None:
        self.architecture = architecture
        self._metadata = metadata

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self._metadata

    def whole(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_SIZE
    ) -> int:
        """Return a whole number."""
        value = self._get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise self._wrong(name, f"a whole number of {least} to {most}", value)

    def real(self, name: str, default: float | None = None) -> float:
        """Return a number over 0 that float32 holds with some to spare; also 0 where that is the
        default.
        """
        value = self._get(name, default)
        if default == 0 and value == 0:
            return 0.0
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if np.finfo(np.float32).tiny <= value <= MAX_REAL:
                return float(value)
        raise self._wrong(name, f"a float32 over 0, at most {MAX_REAL:g}", value)

    def flag(self, name: str, default: bool) -> bool:
        """Return whether something is so."""
        value = self._get(name, default)
        if isinstance(value, bool):
            return value
        raise self._wrong(name, "true or false", value)

    def text(self, name: str, default: str) -> str:
        """Return a word."""
        value = self._get(name, default)
        if isinstance(value, str):
            return value
        raise self._wrong(name, "a word", value)

    def per_layer(
        self, name: str, layers: int, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Return a number for each layer; one in the file stands for all."""
        if default is not None and not self.has(name):
            return default
        value = self._get(name, None)
        if not isinstance(value, np.ndarray):
            return (self.whole(name),) * layers
        found = value.tolist()
        if value.dtype.kind in "iu" and len(found) == layers:
            if all(0 <= each <= MAX_SIZE for each in found):
                return tuple(found)
        raise self._wrong(name, f"{layers} whole numbers of 0 to {MAX_SIZE}", found)

    def flags(self, name: str, layers: int) -> tuple[bool, ...]:
        """Return true or false for each layer; () where the file has no such key. A number p in
        the file stands for p layers in turn of which the last one is false, and 0 for true.
        """
        if not self.has(name):
            return ()
        value = self._get(name, None)
        if not isinstance(value, np.ndarray):
            period = self.whole(name, least=0)
            return tuple(period == 0 or (each + 1) % period > 0 for each in range(layers))
        if value.dtype.kind in "bui" and value.shape == (layers,):
            return tuple(bool(each) for each in value.tolist())
        raise self._wrong(name, f"a whole number or {layers} times true or false", value)

    def _get(self, name: str, default: Value | None) -> Value:
        key = f"{self.architecture}.{name}"
        default = USUAL.get(key, None if key in NEEDED else default)
        value = self._metadata.get(key, default)
        if value is None:
            raise ModelFormatError(
                f"[gguf] expected the key {key!r} of a model of architecture "
                f"{self.architecture!r}, got none; try to convert the model again"
            )
        return value

    def _wrong(self, name: str, expected: str, value: object) -> ModelFormatError:
        return ModelFormatError(
            f"[gguf] key '{self.architecture}.{name}': expected {expected}, got {shortened(value)}"
        )
