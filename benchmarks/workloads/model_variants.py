"""Variants of a GGUF file that show what a precision mode costs (`vksched perplexity`).

    python benchmarks/workloads/model_variants.py large llama.gguf large.gguf [--exponent 9]
    python benchmarks/workloads/model_variants.py float16 model.gguf float16.gguf

`large` makes a Qwen-like model with activations beyond float16's range from a llama. It computes
the same function. Its architecture is qwen2, whose rotary embedding pairs other rows of queries and
keys, so these rows are permuted. Up projections are multiplied by 2^exponent, and down projections
by 2^-exponent: so are the activations between both, which are several hundreds at most in
SmolLM2-135M. Scales of blocks are float16, so down projections lose digits. Types: F32, F16 and
blocks that begin with their float16 scales (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0).

`float16` rounds all matrices but the embedding to float16, as kernels do that multiply in float16.
"""

from __future__ import annotations

from pathlib import Path

import click
import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from vksched.common.dtypes import NDArray

SCALE_BYTES = {Type.Q4_0: 2, Type.Q4_1: 4, Type.Q5_0: 2, Type.Q5_1: 4, Type.Q8_0: 2}
"""The bytes of float16 scales at the beginning of a block, by type."""
NEW = "qwen2"
BIASED = (".attn_q", ".attn_k", ".attn_v")
"""The linear layers that have biases in the new architecture; here they are 0."""


def scaled(data: NDArray, kind: Type, exponent: int) -> NDArray:
    """Return a weight times 2^exponent, in its type."""
    if kind in (Type.F32, Type.F16):
        return np.asarray(np.ldexp(data, exponent).astype(data.dtype))
    if kind not in SCALE_BYTES:
        names = ", ".join(each.name for each in (Type.F32, Type.F16, *SCALE_BYTES))
        raise click.ClickException(f"expected a weight of {names}, got {kind.name}")
    size_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = data.reshape(-1, size_bytes).copy()
    scales = blocks[:, : SCALE_BYTES[kind]].copy().view(np.float16)
    blocks[:, : SCALE_BYTES[kind]] = np.ldexp(scales, exponent).astype(np.float16).view(np.uint8)
    return blocks.reshape(data.shape)


def permuted(data: NDArray, heads: int) -> NDArray:
    """Return the rows of queries or keys: neighbours of a pair become halves of a head."""
    apart = data.reshape(heads, -1, 2, data.shape[-1])
    return np.ascontiguousarray(apart.swapaxes(1, 2)).reshape(data.shape)


def begin(reader: gguf.GGUFReader, target: Path, architecture: str = "") -> gguf.GGUFWriter:
    """Return the writer of a file with the metadata of another one, or another architecture."""
    old = str(reader.fields["general.architecture"].contents())
    new = architecture or old
    writer = gguf.GGUFWriter(target, new)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            name = f"{new}{key.removeprefix(old)}" if key.startswith(f"{old}.") else key
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub)
    return writer


def finish(writer: gguf.GGUFWriter) -> None:
    """Write a file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@click.group()
def main() -> None:
    """Write variants of a GGUF file."""


@main.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--exponent", default=9, show_default=True, help="Power of two of activations.")
def large(source: Path, target: Path, exponent: int) -> None:
    """Write TARGET, a Qwen-like model with large activations, from the llama SOURCE."""
    reader = gguf.GGUFReader(source)
    fields = reader.fields
    if fields["general.architecture"].contents() != "llama":
        raise click.ClickException("expected a llama")
    heads = {
        "q": int(fields["llama.attention.head_count"].contents()),
        "k": int(fields["llama.attention.head_count_kv"].contents()),
    }
    writer = begin(reader, target, NEW)
    for tensor in reader.tensors:
        kind, data = Type(tensor.tensor_type), np.asarray(tensor.data)
        for which, count in heads.items():
            if f".attn_{which}." in tensor.name:
                data = permuted(data, count)
        for which, factor in (("up", exponent), ("down", -exponent)):
            if f".ffn_{which}." in tensor.name:
                data = scaled(data, kind, factor)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
        stem, _, _ = tensor.name.rpartition(".")
        if stem.endswith(BIASED):
            writer.add_tensor(f"{stem}.bias", np.zeros(data.shape[0], np.float32))
    finish(writer)


@main.command()
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
def float16(source: Path, target: Path) -> None:
    """Write TARGET, the model SOURCE with matrices in float16."""
    reader = gguf.GGUFReader(source)
    writer = begin(reader, target)
    for tensor in reader.tensors:
        kind, data = Type(tensor.tensor_type), np.asarray(tensor.data)
        if kind == Type.F32 or tensor.name.startswith("token_embd."):
            writer.add_tensor(tensor.name, data, raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, gguf.dequantize(data, kind).astype(np.float16))
    finish(writer)


if __name__ == "__main__":
    main()
