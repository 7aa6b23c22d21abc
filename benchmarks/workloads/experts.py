"""A layer of experts: each expert computed for the tokens that chose it, and for all of them.

python benchmarks/workloads/experts.py [--device cpu] [--tokens 512] [--experts 16] [--used 2]
    [--kind q4_K]

Ways are timed in turns; a way's time is the least of all turns. "grouped" is what models run. "all"
gives each token to every expert and weighs by 0 what it did not choose. "dense" is a layer without
a choice that does as many products as each token asks for: no way should take less.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import click
import numpy as np

import vksched as vs
from vksched.importers.gguf.architectures.moe import Experts
from vksched.testing.op_cases.linalg.quantized_linear import blocks

F32 = "f32"


def weight(name: str, kind: str, shape: tuple[int, ...]) -> vs.Tensor:
    """A random weight whose products keep about the size of what goes in."""
    if kind != F32:
        rows = int(np.prod(shape[:-1]))
        return vs.quantized_weight(blocks(kind, rows, shape[-1]), kind, shape, name=name)
    drawn = np.random.default_rng(0).standard_normal(shape, np.float32)
    return vs.weight(drawn * np.float32(shape[-1] ** -0.5), name)


def between(gate: vs.Tensor, up: vs.Tensor) -> vs.Tensor:
    """What is made of both products."""
    return vs.silu(gate) * up


def ways(
    tokens: int, experts: int, used: int, width: int, inner: int, kind: str
) -> Iterator[tuple[str, vs.Tensor]]:
    """Yield each way by name."""
    x, scores = vs.input("x", (1, tokens, width)), vs.input("scores", (1, tokens, experts))
    gate, up = (weight(name, kind, (experts, inner, width)) for name in ("gate", "up"))
    down = weight("down", kind, (experts, width, inner))
    yield "grouped", Experts(gate, up, down, used, True, between).mix(x, scores)

    chances, chosen = vs.topk(vs.softmax(scores)[0], used)
    chances = chances / vs.reduce_sum(chances, -1, keepdims=True)
    shares = vs.scatter_elements(vs.zeros((tokens, experts)), chosen, chances, axis=-1)
    a, b = (vs.matmul(x, each, transpose_b=True) for each in (gate, up))
    products = vs.matmul(between(a, b), down, transpose_b=True)
    yield "all", vs.reduce_sum(products * shares.T[:, :, None], 0, keepdims=True)

    size = used * inner
    a, b = (vs.linear(x, weight(f"{n} dense", kind, (size, width))) for n in ("gate", "up"))
    yield "dense", vs.linear(between(a, b), weight("down dense", kind, (width, size)))


@click.command()
@click.option("--device", default="cpu", show_default=True)
@click.option("--tokens", default=512, show_default=True)
@click.option("--experts", default=16, show_default=True)
@click.option("--used", default=2, show_default=True)
@click.option("--width", default=512, show_default=True)
@click.option("--inner", default=768, show_default=True)
@click.option("--kind", default="q4_K", show_default=True, help="type of the weights, also f32")
@click.option("--turns", default=5, show_default=True)
def main(
    device: str,
    tokens: int,
    experts: int,
    used: int,
    width: int,
    inner: int,
    kind: str,
    turns: int,
) -> None:
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((1, tokens, width), np.float32),
        "scores": rng.standard_normal((1, tokens, experts), np.float32),
    }
    runs: dict[str, Callable[..., np.ndarray]] = {}
    least: dict[str, float] = {}
    with vs.Scheduler([device]) as sched:
        for name, output in ways(tokens, experts, used, width, inner, kind):
            runs[name] = sched.compile(output)
        first, second = (runs[name](**feeds) for name in ("grouped", "all"))
        apart = float(abs(first - second).max() / abs(second).max())
        for _ in range(turns):
            for name, run in runs.items():
                fed = feeds if name != "dense" else {"x": feeds["x"]}
                start = time.perf_counter()
                run(**fed)
                took = time.perf_counter() - start
                least[name] = min(took, least.get(name, took))
    click.echo(f"{device}, {kind}: {tokens} tokens, {used} of {experts} experts, {width} x {inner}")
    for name, took in least.items():
        ratio = least["all"] / took
        click.echo(f"{name:<8} {took * 1e3:9.2f} ms   {ratio:5.2f} times as fast as all")
    click.echo(f"grouped and all differ by {apart:.1e} of the largest")


if __name__ == "__main__":
    main()
