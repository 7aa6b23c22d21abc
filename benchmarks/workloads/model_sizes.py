"""What language models of well-known shapes take, by element type, and which cards they fit.

    python benchmarks/workloads/model_sizes.py           # prints the table
    python benchmarks/workloads/model_sizes.py --write   # puts it into its page, with a picture

Weights: all matrices in the element type, norms and biases in float32. Keys and values: two values
of each layer for each token, in float16, the default of GPUs with float16. A card takes a model
where both and ROOM fit into what plans use of its memory. Nothing is measured: `vksched info` tells
more of a file.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from vksched.runtime.vulkan.device_probe import PLANNED_SHARE
from vksched.viz.svg import (
    add_rect,
    add_text,
    add_tip,
    as_text,
    colours_of,
    new_picture,
    save_picture,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "gguf-language-models.md"
PICTURE = PAGE.parent / "pictures" / "model-sizes.svg"
BEGIN = "<!-- python benchmarks/workloads/model_sizes.py --write -->"
END = "<!-- end -->"
GIB, MIB = 1 << 30, 1 << 20
TYPES = ("Q4_K", "Q6_K", "Q8_0", "F16")
CARDS_GIB = (2, 4, 6, 8, 12, 16, 24, 48)
CONTEXT = 4096
ROOM = 256 * MIB
"""For results between ops, and windows to the host."""
CACHE_BYTES = 2.0
"""The size of an element of keys and values."""


@dataclass(frozen=True)
class Shape:
    """A decoder. tied: the output layer is the embedding; biases: q, k and v have them."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int
    tied: bool = True
    biases: bool = False

    @property
    def matrices(self) -> int:
        """Elements of all matrices."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        layer = self.width * (2 * queries + 2 * keys + 3 * self.inner)
        return self.layers * layer + (1 if self.tied else 2) * self.vocabulary * self.width

    @property
    def vectors(self) -> int:
        """Elements of norms and biases."""
        biases = (self.heads + 2 * self.kv_heads) * self.head_size if self.biases else 0
        return self.layers * (2 * self.width + biases) + self.width

    @property
    def parameters(self) -> int:
        return self.matrices + self.vectors

    def weight_bytes(self, kind: str) -> int:
        """Return the bytes of all weights, matrices in an element type of ggml."""
        elements, size_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        return self.matrices * size_bytes // elements + 4 * self.vectors

    def cache_bytes(self, tokens: int, element_bytes: float) -> int:
        """Return the bytes of keys and values."""
        per_token = 2 * self.layers * self.kv_heads * self.head_size
        return int(tokens * per_token * element_bytes)

    def card_gib(self, kind: str, element_bytes: float = CACHE_BYTES) -> int | None:
        """Return the smallest card that takes weights, CONTEXT tokens and ROOM; None: none does.

        element_bytes: size of an element of keys and values.
        """
        need = self.need_bytes(kind, element_bytes)
        return next((gib for gib in CARDS_GIB if need <= gib * GIB * PLANNED_SHARE), None)

    def need_bytes(self, kind: str, element_bytes: float) -> int:
        """Return the bytes that it needs on a card."""
        return self.weight_bytes(kind) + self.cache_bytes(CONTEXT, element_bytes) + ROOM


SHAPES = (
    Shape("SmolLM2 135M", 30, 576, 9, 3, 64, 1536, 49152),
    Shape("SmolLM2 360M", 32, 960, 15, 5, 64, 2560, 49152),
    Shape("Qwen 2.5 0.5B", 24, 896, 14, 2, 64, 4864, 151936, biases=True),
    Shape("TinyLlama 1.1B", 22, 2048, 32, 4, 64, 5632, 32000, tied=False),
    Shape("Llama 3.2 1B", 16, 2048, 32, 8, 64, 8192, 128256),
    Shape("Qwen 2.5 1.5B", 28, 1536, 12, 2, 128, 8960, 151936, biases=True),
    Shape("Llama 3.2 3B", 28, 3072, 24, 8, 128, 8192, 128256),
    Shape("Mistral 7B", 32, 4096, 32, 8, 128, 14336, 32768, tied=False),
    Shape("Llama 3.1 8B", 32, 4096, 32, 8, 128, 14336, 128256, tied=False),
    Shape("Qwen 2.5 14B", 48, 5120, 40, 8, 128, 13824, 152064, tied=False, biases=True),
    Shape("Qwen 2.5 32B", 64, 5120, 40, 8, 128, 27648, 152064, tied=False, biases=True),
    Shape("Llama 3.1 70B", 80, 8192, 64, 8, 128, 28672, 128256, tied=False),
)


def table() -> str:
    """Return the table of the page."""
    head = ["model", "parameters", *TYPES, f"{CONTEXT:,} tokens", "card, Q4_K", "card, Q8_0"]
    lines = [head, ["---"] * len(head)]
    for shape in SHAPES:
        sizes = [f"{shape.weight_bytes(kind) / GIB:.2f}" for kind in TYPES]
        cards = [_card(shape.card_gib(kind)) for kind in ("Q4_K", "Q8_0")]
        cache = f"{shape.cache_bytes(CONTEXT, CACHE_BYTES) / GIB:.2f}"
        lines.append([shape.name, f"{shape.parameters / 1e9:.2f} G", *sizes, cache, *cards])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


WIDTH, LEFT, TOP, ROW, BAR = 960.0, 130.0, 62.0, 34.0, 11.0
MIN_GIB, MAX_GIB = 0.25, 128.0
"""Where the axis begins and ends; it is a logarithmic one."""
DRAWN = ("Q4_K", "Q8_0")


def draw() -> str:
    """Return the picture of the page as SVG text: what models take, beside what cards have."""
    bottom = TOP + ROW * len(SHAPES)
    title = "Which models fit which card"
    root = new_picture(WIDTH, bottom + 34, title)
    add_text(root, 16, 22, title, weight="bold", size="12")
    legend = f"weights in {DRAWN[0]} (upper bar) and {DRAWN[1]} (lower bar)"
    more = f"keys and values of {CONTEXT:,} tokens in float16 (light), and room for results"
    add_text(root, 16, 40, f"{legend}, {more}; lines: what plans use of a card")
    for gib in CARDS_GIB:
        x = _x(gib * PLANNED_SHARE)
        add_tip(add_rect(root, x, TOP - 8, 1, bottom - TOP + 12, "#888888", "none"), f"{gib} GiB")
        add_text(root, x, bottom + 18, f"{gib}", anchor="middle", fill="#555555")
    add_text(root, LEFT - 16, bottom + 18, "GiB (log)", anchor="end", fill="#555555")
    for at, shape in enumerate(SHAPES):
        add_text(root, 16, TOP + ROW * at + 15, shape.name, weight="bold")
        for number, kind in enumerate(DRAWN):
            light, dark = colours_of(number)
            y = TOP + ROW * at + (BAR + 2) * number
            weights, whole = (
                shape.weight_bytes(kind) / GIB,
                shape.need_bytes(kind, CACHE_BYTES) / GIB,
            )
            bar = add_rect(root, LEFT, y, _x(whole) - LEFT, BAR, light, dark)
            add_tip(bar, f"{shape.name}, {kind}: {whole:.2f} GiB, {weights:.2f} of it weights")
            if weights > MIN_GIB:
                add_rect(root, LEFT, y, _x(weights) - LEFT, BAR, dark, "none")
    return as_text(root)


def _x(gib: float) -> float:
    share = math.log(gib / MIN_GIB) / math.log(MAX_GIB / MIN_GIB)
    return LEFT + (WIDTH - LEFT - 30) * share


def _card(gib: int | None) -> str:
    return "several" if gib is None else f"{gib} GiB"


def written(page: str) -> str:
    """Return a page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    if "--write" in arguments:
        PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
        save_picture(PICTURE, draw)
    else:
        print(table())
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
