"""The dispatches and barriers of a language model's steps on a GPU that need not be present.

    python benchmarks/overheads/dispatches.py [--card rtx4090] [--model 1.1B] [--kernels] [--json]

The models are llamas of 1.1 B and 8 B parameters in Q4_K. The file holds their metadata alone, so
nothing is computed: the steps are planned for the card of a preset, with the features that its
drivers have. A card with matrix units has rows without and with cooperative matrices, those of a
listed driver whose results were checked. The barriers of a step are those between its nodes and
those within them; the levels are the longest chain of nodes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from rich.console import Console
from rich.table import Table

import vksched as vs
from vksched.importers import load_gguf
from vksched.importers.gguf.kv_cache import KeyValueCache
from vksched.importers.gguf.model import LanguageModel
from vksched.passes import RewriteConstraints, optimize
from vksched.passes.set_precision import set_precision
from vksched.plan.costs import node_cost
from vksched.plan.costs.fused_writes import fused_dispatch, fused_writes
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.host_names import CPU
from vksched.topology.limits import Limits
from vksched.topology.presets import card
from vksched.topology.topology import Topology

KIND = gguf.GGMLQuantizationType.Q4_K
FEATURES = {
    **dict.fromkeys(("int16", "int8", "float16", "storage16", "storage8"), True),
    **dict.fromkeys(("integer_dot", "integer_dot_fast"), True),
    **dict.fromkeys(("memory_model", "memory_model_checked"), True),
}
"""The features of current drivers of the presets' cards, of which specifications say nothing,
besides cooperative matrices.
"""
FP16_MATRICES = ("float16*float16+float32 16x16x16",)
COOPMATS: Mapping[str, Mapping[str, Any]] = {
    "rtx4090": {"matrices": FP16_MATRICES, "subgroup_sizes": (32,)},
    "rx7900xtx": {"matrices": FP16_MATRICES, "subgroup_sizes": (32, 64)},
    "radeon-780m": {"matrices": FP16_MATRICES, "subgroup_sizes": (32, 64)},
    "arc-a770": {
        "matrices": ("float16*float16+float32 8x8x16",),
        "subgroup_sizes": (8, 16, 32),
    },
}
"""The matrix units that current drivers report for a preset's card."""
CHECKED = {"coopmat_checked": True}
"""The features of a listed driver after the check of its cooperative matrices."""
CONTEXT = 4096


@dataclass(frozen=True)
class Shape:
    """The sizes of a llama."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and shape of each weight."""
        keys = self.width // self.heads * self.kv_heads
        yield "token_embd", (self.vocabulary, self.width)
        for layer in range(self.layers):
            for name, shape in (
                ("attn_norm", (self.width,)),
                ("attn_q", (self.width, self.width)),
                ("attn_k", (keys, self.width)),
                ("attn_v", (keys, self.width)),
                ("attn_output", (self.width, self.width)),
                ("ffn_norm", (self.width,)),
                ("ffn_gate", (self.inner, self.width)),
                ("ffn_up", (self.inner, self.width)),
                ("ffn_down", (self.width, self.inner)),
            ):
                yield f"blk.{layer}.{name}", shape
        yield "output_norm", (self.width,)
        yield "output", (self.vocabulary, self.width)


SHAPES = {
    "1.1B": Shape(22, 2048, 32, 4, 5632, 32000),
    "8B": Shape(32, 4096, 32, 8, 14336, 128256),
}
CASES = (
    (1, "float32", "f32"),
    (1, "mixed", "f16"),
    (1, "int8", "f16"),
    (512, "float32", "f32"),
    (512, "mixed", "f16"),
    (512, "int8", "f16"),
)
"""Tokens of a step, precision and element type of the KV cache."""


@dataclass(frozen=True)
class Step:
    """The counts of one step."""

    model: str
    card: str
    coopmats: bool
    tokens: int
    precision: str
    kv: str
    dispatches: int
    between: int
    inside: int
    levels: int
    kernels: Mapping[str, int]

    @property
    def barriers(self) -> int:
        """The barriers between nodes and within them."""
        return self.between + self.inside


def write_outline(path: Path, shape: Shape) -> None:
    """Write the file of a llama whose weights are a hole without data."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("no_vocab")
    size_bytes = 0
    for name, sizes in shape.tensors():
        kind = gguf.GGMLQuantizationType.F32 if len(sizes) == 1 else KIND
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        row = (*sizes[:-1], sizes[-1] // block * block_bytes)
        own_bytes = row[-1] * (row[0] if len(row) > 1 else 1)
        writer.add_tensor_info(f"{name}.weight", row, np.dtype(np.uint8), own_bytes, kind)
        size_bytes += gguf.GGUFWriter.ggml_pad(own_bytes, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    end = gguf.GGUFWriter.ggml_pad(path.stat().st_size, writer.data_alignment)
    with path.open("r+b") as file:
        file.truncate(end + size_bytes)


def described(name: str, **features: object) -> DeviceSpec:
    """Return the device of a preset with the features of current drivers."""
    spec = card(name).spec("gpu")
    limits: Limits = replace(spec.limits, **(FEATURES | features))  # type: ignore[arg-type]
    # planned as if it had room: small cards have the same kernels
    return replace(spec, limits=limits, memory_bytes=1 << 36)


def plan_step(
    model: LanguageModel, spec: DeviceSpec, tokens: int, precision: str, kv: str
) -> vs.Plan:
    """Return the plan of a step of a model without data."""
    step = model.step(KeyValueCache(CONTEXT, kv), tokens)
    graph, _ = vs.build_graph(step.logits, step.updates)
    graph = set_precision(graph, {node.id: precision for node in graph.nodes})
    graph = optimize(graph, RewriteConstraints(limits=spec.limits))
    host = DeviceSpec(name=CPU, kind="cpu", memory_bytes=1 << 36)
    return vs.plan_graph(graph, Topology((spec, host)), overrides=[("*", spec.name)])


def count(
    model: LanguageModel, spec: DeviceSpec, tokens: int, precision: str, kv: str
) -> tuple[vs.Plan, Counter[str]]:
    """Return the plan of a step of a model without data, and the number of dispatches by shader."""
    plan = plan_step(model, spec, tokens, precision, kv)
    kernels: Counter[str] = Counter()
    for split in plan.splits:
        groups = fused_writes(plan, split).values()
        kernels.update(fused_dispatch(plan, split, group).shader for group in groups)
        fused = {node_id for group in groups for node_id in group}
        for node_id in (n for n in split.nodes if n not in fused):
            lowering = node_cost.lower_node(spec, plan.graph, plan.graph.nodes[node_id])
            kernels.update(d.shader for d in lowering.run(node_id in plan.in_place))
    return plan, kernels


def specs_of(name: str) -> list[DeviceSpec]:
    """Return the device of a preset without cooperative matrices, and with them if it has any."""
    units = COOPMATS.get(name)
    with_units = [] if units is None else [described(name, **units, **CHECKED)]
    return [described(name), *with_units]


def measure(name: str, spec: DeviceSpec, label: str) -> Iterator[Step]:
    """Yield the counts of all cases of a model."""
    coopmats = spec.limits.coopmat_checked
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_outline(path, SHAPES[name])
        model = load_gguf(path).meta()
        for tokens, precision, kv in CASES:
            plan, kernels = count(model, spec, tokens, precision, kv)
            yield Step(
                *(name, label, coopmats, tokens, precision, kv, kernels.total(), plan.barriers),
                *(plan.inner_barriers, plan.depth, dict(kernels.most_common())),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--card", default="rtx4090", help="the name of a preset")
    parser.add_argument("--model", choices=SHAPES, action="append")
    parser.add_argument("--kernels", action="store_true", help="the dispatches of each shader")
    args = parser.parse_args()
    cases = ((name, spec) for name in args.model or SHAPES for spec in specs_of(args.card))
    steps = [step for name, spec in cases for step in measure(name, spec, args.card)]
    if args.json:
        print(json.dumps([asdict(step) | {"barriers": step.barriers} for step in steps], indent=2))
        return
    columns = ("tokens", "precision", "kv", "dispatches", "barriers", "between", "inside", "levels")
    table = Table("model", "coopmats", *columns, box=None, padding=(0, 1, 0, 0))
    for step in steps:
        units = "yes" if step.coopmats else "no"
        table.add_row(step.model, units, *(str(getattr(step, column)) for column in columns))
    Console().print(table)
    if args.kernels:
        for step in steps:
            units = ", cooperative matrices" * step.coopmats
            title = f"{step.model}, {step.tokens} tokens, {step.precision}{units}"
            Console().print(title, dict(step.kernels))


if __name__ == "__main__":
    main()
