"""GGUF files as bytes, made field by field, so that any field can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import gguf
import numpy as np

Type, ValueType = gguf.GGMLQuantizationType, gguf.GGUFValueType
CODES = dict(
    zip(ValueType, ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d"), strict=True)
)
QUANTS = [
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K"),
    *("Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"),
    *("IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0"),
]
"""Types that become float32."""


def string(text: str | bytes, length: int | None = None) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def value(kind: ValueType, data: object, inner: ValueType | None = None) -> bytes:
    """Return a value without its type. inner: type of the elements of an array."""
    if kind == ValueType.STRING:
        return string(data)  # type: ignore[arg-type]
    if kind != ValueType.ARRAY:
        return struct.pack(f"<{CODES[kind]}", data)
    assert inner is not None and isinstance(data, Sequence)
    return array(inner, len(data), b"".join(value(inner, each) for each in data))


def array(inner: int, count: int, content: bytes) -> bytes:
    return struct.pack("<IQ", inner, count) + content


@dataclass(frozen=True)
class Key:
    name: str | bytes
    kind: int
    raw: bytes

    def packed(self) -> bytes:
        return string(self.name) + struct.pack("<I", self.kind) + self.raw


@dataclass(frozen=True)
class Info:
    """sizes: the innermost first, as in the file."""

    name: str | bytes
    sizes: tuple[int, ...]
    kind: int
    offset: int
    rank: int | None = None

    def packed(self) -> bytes:
        rank = len(self.sizes) if self.rank is None else self.rank
        sizes = struct.pack(f"<{len(self.sizes)}Q", *self.sizes)
        end = struct.pack("<IQ", self.kind, self.offset)
        return string(self.name) + struct.pack("<I", rank) + sizes + end


@dataclass(frozen=True)
class Draft:
    """A file to be. tensor_count, key_count: what the header says, by default the truth."""

    keys: tuple[Key, ...] = ()
    infos: tuple[Info, ...] = ()
    data: bytes = b""
    version: int = 3
    magic: bytes = b"GGUF"
    alignment: int = 32
    tensor_count: int | None = None
    key_count: int | None = None
    order: str = field(default="<")

    def packed(self) -> bytes:
        tensors = len(self.infos) if self.tensor_count is None else self.tensor_count
        keys = len(self.keys) if self.key_count is None else self.key_count
        head = self.magic + struct.pack(f"{self.order}IQQ", self.version, tensors, keys)
        head += b"".join(each.packed() for each in (*self.keys, *self.infos))
        return head + bytes(-len(head) % self.alignment) + self.data

    def with_key(self, name: str, kind: int, data: object, inner: ValueType | None = None) -> Draft:
        """Return this file with one more key."""
        raw = value(ValueType(kind), data, inner)
        return replace(self, keys=(*self.keys, Key(name, kind, raw)))

    def with_tensor(self, name: str, shape: tuple[int, ...], kind: Type, raw: bytes) -> Draft:
        """Return this file with one more tensor."""
        data = self.data + bytes(-len(self.data) % self.alignment)
        info = Info(name, shape[::-1], kind, len(data))
        return replace(self, infos=(*self.infos, info), data=data + raw)


def bytes_of(shape: tuple[int, ...], kind: Type, rng: np.random.Generator) -> bytes:
    """Return the data of a tensor with elements of about 1."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    count = int(np.prod(shape))
    try:
        return gguf.quantize(rng.standard_normal(shape, np.float32), kind).tobytes()
    except NotImplementedError:  # any bytes are a tensor
        return rng.integers(0, 0x3C, count // block * size, np.uint8).tobytes()


def all_kinds() -> Draft:
    """Return a file with every type of metadata and every element type."""
    draft, rng = Draft(), np.random.default_rng(0)
    draft = draft.with_key("general.architecture", ValueType.STRING, "llama")
    for kind in ValueType:
        if kind in (ValueType.STRING, ValueType.ARRAY):
            continue
        draft = draft.with_key(f"number.{kind.name}", kind, 1)
        draft = draft.with_key(f"array.{kind.name}", ValueType.ARRAY, [0, 1, 1], kind)
    draft = draft.with_key("array.texts", ValueType.ARRAY, ["a", "", "ü"], ValueType.STRING)
    inner = value(ValueType.ARRAY, [1, 2, 3], ValueType.INT16)
    inner += value(ValueType.ARRAY, ["x"], ValueType.STRING)
    nested = array(ValueType.ARRAY, 2, inner)
    draft = replace(draft, keys=(*draft.keys, Key("nested", ValueType.ARRAY, nested)))
    for name in QUANTS:
        shape = (2, 3, 256)
        draft = draft.with_tensor(
            f"{name}.weight", shape, Type[name], bytes_of(shape, Type[name], rng)
        )
    return draft


def small_model() -> Draft:
    """Return a llama of one layer, whose weights are zeros."""
    draft = Draft().with_key("general.architecture", ValueType.STRING, "llama")
    for name, number in (
        *(("block_count", 1), ("context_length", 16), ("embedding_length", 16)),
        *(("attention.head_count", 2), ("attention.head_count_kv", 1), ("vocab_size", 7)),
        ("feed_forward_length", 32),
    ):
        draft = draft.with_key(f"llama.{name}", ValueType.UINT32, number)
    eps = "llama.attention.layer_norm_rms_epsilon"
    draft = draft.with_key(eps, ValueType.FLOAT32, 1e-5)
    for name, shape in (
        *(("token_embd", (7, 16)), ("output_norm", (16,)), ("blk.0.attn_norm", (16,))),
        *(("blk.0.attn_q", (16, 16)), ("blk.0.attn_k", (8, 16)), ("blk.0.attn_v", (8, 16))),
        *(("blk.0.attn_output", (16, 16)), ("blk.0.ffn_norm", (16,))),
        *(("blk.0.ffn_gate", (32, 16)), ("blk.0.ffn_up", (32, 16)), ("blk.0.ffn_down", (16, 32))),
    ):
        raw = bytes(4 * int(np.prod(shape)))
        draft = draft.with_tensor(f"{name}.weight", shape, Type.F32, raw)
    return draft


def part(number: int, count: int, total: int | None = None, tensors: Sequence[str] = ()) -> Draft:
    """Return a part of a model, with tensors of four float32 each."""
    draft = Draft()
    if number == 0:
        draft = draft.with_key("general.architecture", ValueType.STRING, "llama")
    draft = draft.with_key("split.no", ValueType.UINT16, number)
    draft = draft.with_key("split.count", ValueType.UINT16, count)
    if total is not None:
        draft = draft.with_key("split.tensors.count", ValueType.INT32, total)
    for name in tensors:
        draft = draft.with_tensor(name, (4,), Type.F32, np.full(4, number, np.float32).tobytes())
    return draft
