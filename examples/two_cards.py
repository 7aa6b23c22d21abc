"""Two cards that are not here: the fastest plan, and that of `--policy priority`, which fills one
before the other.

vksched plan examples/two_cards.py:build --machine examples/data/two_cards.json --svg plan.svg
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import vksched as vs
from vksched.engine.request import Request

CARDS = Path(__file__).parent / "data" / "two_cards.json"
LAYERS, HIDDEN, LENGTH, HEADS = 12, 512, 128, 8


def weight(rows: int, columns: int, name: str) -> vs.Tensor:
    """A weight without content: a plan looks at shapes."""
    return vs.weight(np.zeros((rows, columns), np.float32), name=name)


def layer(x: vs.Tensor) -> vs.Tensor:
    """Self-attention, then a layer of four times the width, both with what came in added."""
    query, key, value = (
        (x @ weight(HIDDEN, HIDDEN, name)).reshape(LENGTH, HEADS, -1).transpose(1, 0, 2)
        for name in ("query.w", "key.w", "value.w")
    )
    scores = vs.softmax(vs.matmul(query, key, transpose_b=True), name="scores")
    seen = (scores @ value).transpose(1, 0, 2).reshape(LENGTH, HIDDEN)
    x = x + seen @ weight(HIDDEN, HIDDEN, "out.w")
    wide = vs.gelu(x @ weight(HIDDEN, 4 * HIDDEN, "up.w"), name="wide")
    return x + wide @ weight(4 * HIDDEN, HIDDEN, "down.w")


def build() -> vs.Tensor:
    """Returns the model: 144 MiB of weights, more than the first card has room for."""
    x = vs.input("x", (LENGTH, HIDDEN))
    for i in range(LAYERS):
        with vs.scope(f"layer.{i}"):
            x = layer(x)
    return vs.softmax(x, name="probabilities")


def main() -> vs.Plan:
    """Returns the second plan; nothing is allocated."""
    machine = vs.Machine.from_dict(json.loads(CARDS.read_text("utf-8")))
    written = Request(vs.build_graph(build())[0], (), {})
    graph = written.optimized(machine).graph  # as a scheduler plans it
    fastest, plan = (vs.plan_graph(graph, machine, policy=p) for p in ("auto", "priority"))
    print(fastest.explain(), plan.explain(), plan.explain("layer.11.wide"), sep="\n\n")
    return plan


if __name__ == "__main__":
    main()
