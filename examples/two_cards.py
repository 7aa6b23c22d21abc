"""Two cards that are not here: the fastest plan, and that of `--policy priority`, which fills one
before the other.

vksched plan examples/two_cards.py:build --topology examples/data/two_cards.json --svg plan.svg
"""

from functools import partial
from pathlib import Path

import numpy as np

import vksched as vs
from vksched.engine.request import Request


def weight(rows: int, columns: int, name: str) -> vs.Tensor:
    """A weight without content: a plan looks at shapes."""
    return vs.weight(np.zeros((rows, columns), np.float32), name=name)


def layer(x: vs.Tensor, heads: int) -> vs.Tensor:
    """Self-attention, then a layer of four times the width, both with what came in added."""
    length, hidden = x.shape
    query, key, value = (
        (x @ weight(hidden, hidden, name)).reshape(length, heads, -1).transpose(1, 0, 2)
        for name in ("query.w", "key.w", "value.w")
    )
    scores = vs.softmax(vs.matmul(query, key, transpose_b=True), name="scores")
    seen = (scores @ value).transpose(1, 0, 2).reshape(length, hidden)
    x = x + seen @ weight(hidden, hidden, "out.w")
    wide = vs.gelu(x @ weight(hidden, 4 * hidden, "up.w"), name="wide")
    return x + wide @ weight(4 * hidden, hidden, "down.w")


def build(layers: int = 12, hidden: int = 512, heads: int = 8) -> vs.Tensor:
    """Return the model: 144 MiB of weights, more than the first card has room for."""
    x = vs.input("x", (128, hidden))
    for i in range(layers):
        with vs.name_scope(f"layer.{i}"):
            x = layer(x, heads)
    return vs.softmax(x, name="probabilities")


large = partial(build, layers=24, hidden=4096, heads=32)
"""A model of 18 GiB. Nobody reads its weights, so they take no memory here."""


def main() -> vs.Plan:
    """Return the second plan; nothing is allocated."""
    topology = vs.load_topology(str(Path(__file__).parent / "data" / "two_cards.json"))
    written = Request(vs.build_graph(build())[0], (), {})
    graph = written.optimized(topology).graph  # as a scheduler plans it
    fastest, plan = (vs.plan_graph(graph, topology, policy=p) for p in ("auto", "priority"))
    print(fastest.explain(), plan.explain(), plan.explain("layer.11.wide"), sep="\n\n")
    return plan


if __name__ == "__main__":
    main()
