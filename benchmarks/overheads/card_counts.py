"""Count the work of language models' steps on six cards that need not be present, by their plans.

    python benchmarks/overheads/card_counts.py

The command writes the counts of these sources to docs/performance/data/card-predictions.json, of
which the site makes the page Predictions for cards (benchmarks/report/card_model.py). `--set
before` writes the reference instead: the counts of an earlier revision of vksched on PYTHONPATH.

A step is planned for a described card, in the default precision of language models on GPUs. Each
node's operations belong to the kind of kernel that its plan selects. Bytes are those of weights,
and of weights that are dequantized to memory and read again.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from dispatches import CHECKED, COOPMATS, FEATURES, SHAPES, plan_step, write_outline

from vksched.common.dtypes import UINT32
from vksched.importers import load_gguf
from vksched.importers.gguf.model import LanguageModel
from vksched.ir.graph import Graph, Node
from vksched.ops.quantized import gemv_rows
from vksched.plan.costs import node_cost
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.presets import card

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs" / "performance" / "data" / "card-predictions.json"
FORMAT = 1
UNPACK_FLOPS: float = getattr(gemv_rows, "UNPACK_FLOPS", 0.0)
"""Estimated operations to unpack a weight; earlier revisions count none."""
CARDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    # an H100 has the limits of GeForce cards and more cores
    "NVIDIA H100": ("rtx4090", {"cores": 132}),
    "GeForce RTX 4070": ("rtx4090", {"cores": 46}),
    "Radeon RX 7900 XTX": ("rx7900xtx", {"mixed_dot": True}),
    "Radeon RX 6600": ("rx6600", {"subgroup_sizes": (32, 64), "mixed_dot": True}),
    "Arc A770": ("arc-a770", {}),
    "Radeon 780M": ("radeon-780m", {"mixed_dot": True}),
}
"""The preset of each card, and what its current driver reports beyond the preset and its matrix
units.
"""
TOKENS = (1, 512)
MODES = {"before": ("float32", "f32"), "after": ("mixed", "f16")}
"""The default precision of language models on GPUs, and the element type of the KV cache."""


@dataclass(frozen=True)
class StepCount:
    """The counts of one step.

    Attributes
    ----------
    flops
        Operations by the kind of kernel: "float32", "float16", "coopmat", "int8" or "gemv".
    weight_bytes
        Bytes of the weights that products read.
    scratch_bytes
        Bytes that dequantized weights take in memory, written and read.
    """

    card: str
    model: str
    tokens: int
    precision: str
    dispatches: int
    barriers: int
    flops: Mapping[str, float]
    weight_bytes: float
    scratch_bytes: float


def spec_of(name: str) -> DeviceSpec:
    """Return the device of a card. Fields that this revision of Limits lacks are left out."""
    preset, more = CARDS[name]
    spec = card(preset).spec("gpu")
    known = {each.name for each in fields(Limits)}
    units = {**COOPMATS[preset], **CHECKED} if preset in COOPMATS else {}
    wanted = {**FEATURES, **units, **more}
    limits: Limits = replace(
        spec.limits, **{key: value for key, value in wanted.items() if key in known}
    )
    # planned as if it had room: small cards have the same kernels
    return replace(spec, label=name, limits=limits, memory_bytes=1 << 36)


def kind_of(shaders: list[str]) -> str:
    """Return the kind of the kernels that compute a product or attention."""
    text = " ".join(shaders)
    if "coopmat" in text:
        return "coopmat"
    if "gemv" in text or "decode" in text:
        return "gemv"
    if "int8_gemm" in text or "q8_activations" in text:
        return "int8"
    return "float16" if "fp16acc" in text else "float32"


def work_of(graph: Graph, node: Node, tokens: int) -> tuple[float, float]:
    """Return the operations of a node, and the bytes of its weights, which are words of blocks.
    Operations are multiplications and additions, without those that unpack weights.
    """
    types = graph.input_types(node)
    if node.op.startswith("attention"):  # causal: half of the keys of the step
        return 2.0 * node.type.size * tokens, 0.0
    if "linear" not in node.op and node.op != "matmul":  # all that multiply by weights
        return 0.0, 0.0
    work = node.declaration.work(types, node.type, node.attrs)
    flops = work.flops
    if "linear" in node.op:
        products = 2.0 * math.prod(types[0].shape[:-1])  # operations of a weight
        flops *= products / (products + UNPACK_FLOPS)
    return flops, float(sum(t.device_bytes for t in types if t.dtype == UINT32))


def count(label: str, model: LanguageModel, name: str, tokens: int, mode: str) -> StepCount:
    """Return the counts of one step of a model without data."""
    precision, kv = MODES[mode]
    spec = spec_of(name)
    plan = plan_step(model, spec, tokens, precision, kv)
    graph = plan.graph
    flops: Counter[str] = Counter()
    dispatches, weights, scratch = 0, 0.0, 0.0
    for node_id in (n for split in plan.splits for n in split.nodes):
        node = graph.nodes[node_id]
        run = node_cost.lower_node(spec, graph, node).run(node_id in plan.in_place)
        dispatches += len(run)
        own, read = work_of(graph, node, tokens)
        shaders = [dispatch.shader for dispatch in run]
        if own:
            flops[kind_of(shaders)] += own
        weights += read
        unpacks = [shader for shader in shaders if shader.startswith("dequantize_weights")]
        if unpacks:
            # all weights of a product: operations are two for each of them and each row
            elements = own / 2 / math.prod(node.type.shape[:-1])
            scratch += 2.0 * elements * (2 if "fp16" in unpacks[0] else 4)
    return StepCount(
        *(name, label, tokens, precision, dispatches, plan.barriers + plan.inner_barriers),
        *(dict(flops), weights, scratch),
    )


def counts(mode: str) -> Iterator[StepCount]:
    """Yield the counts of all models, cards and steps."""
    for label, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_outline(path, shape)
            model = load_gguf(path).meta()
            for name in CARDS:
                for tokens in TOKENS:
                    yield count(label, model, name, tokens, mode)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set", choices=MODES, default="after")
    args = parser.parse_args()
    stored = json.loads(DATA.read_text("utf-8")) if DATA.exists() else {"format": FORMAT}
    stored[args.set] = [asdict(each) for each in counts(args.set)]
    DATA.write_text(json.dumps(stored, indent=1) + "\n", "utf-8")
    print(f"{DATA.relative_to(ROOT)}: {len(stored[args.set])} steps")


if __name__ == "__main__":
    main()
