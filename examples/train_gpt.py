"""A small language model learns to write like an old book, letter by letter.

    python examples/train_gpt.py [--config examples/data/gpt_pipeline.yaml] [--steps 600]

It is a transformer of four layers, and the book is Genesis in the King James Version. The model
says nothing of devices. A config does: `data/gpt_data_parallel.yaml` cuts the batch over them,
`data/gpt_tensor_parallel.yaml` the weights, and `data/gpt_pipeline.yaml` gives each some layers.
The losses are the same, with each of them and without. `vksched plan examples/train_gpt.py:build
--config FILE` shows what would run where.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pick import pick_devices
from rich.progress import Progress

import vksched as vs
from vksched.common.dtypes import NDArray

BOOK = Path(__file__).parent / "data" / "genesis.txt"
LAYERS, HEADS, WIDTH = 4, 4, 96
LENGTH, BATCH, SEED = 64, 16, 0
Values = dict[str, vs.Tensor]


@dataclass(frozen=True)
class Result:
    """losses: loss of each step. written: text of the model at the end. busy: the devices that took
    part in the training.
    """

    losses: list[float]
    written: str
    busy: list[str]


class Letters:
    """A text as numbers of its letters."""

    def __init__(self, text: str) -> None:
        self.letters = sorted(set(text))
        numbers = {letter: i for i, letter in enumerate(self.letters)}
        self.text = np.array([numbers[letter] for letter in text], np.int32)

    def batch(self, step: int) -> dict[str, NDArray]:
        """Return passages of the text, and for each letter of them the next one."""
        rng = np.random.default_rng([SEED, step])
        at = rng.integers(0, len(self.text) - LENGTH, BATCH)[:, None] + np.arange(LENGTH + 1)
        passages = self.text[at]
        return {"letters": passages[:, :-1], "next": passages[:, 1:]}


def first_values(letters: int) -> dict[str, NDArray]:
    """Return the initial parameters, the same on every machine."""
    shapes: dict[str, tuple[int, ...]] = {"letter": (letters, WIDTH), "place": (LENGTH, WIDTH)}
    for i in range(LAYERS):
        shapes |= {f"layer.{i}.{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "o")}
        shapes |= {f"layer.{i}.up": (WIDTH, 4 * WIDTH), f"layer.{i}.down": (4 * WIDTH, WIDTH)}
    shapes["head"] = (WIDTH, letters)
    out = {k: vs.init.normal(s, s[0] ** -0.5, name=k, seed=SEED) for k, s in shapes.items()}
    for i in range(LAYERS):
        out |= {f"layer.{i}.{name}": np.ones(WIDTH, np.float32) for name in ("norm.0", "norm.1")}
    return out | {"norm": np.ones(WIDTH, np.float32)}


def attend(x: vs.Tensor, p: Values) -> vs.Tensor:
    """Mixes each letter with those before it: (batch, length, width) -> the same."""

    def heads(name: str) -> vs.Tensor:
        cut = vs.reshape(x @ p[name], (-1, x.shape[1], HEADS, WIDTH // HEADS))
        return vs.transpose(cut, (0, 2, 1, 3))

    mixed = vs.attention(heads("q"), heads("k"), heads("v"), causal=True)
    return vs.reshape(vs.transpose(mixed, (0, 2, 1, 3)), (-1, x.shape[1], WIDTH)) @ p["o"]


def network(letters: vs.Tensor, params: Values) -> vs.Tensor:
    """Return logits of the next letters: (batch, length) -> (batch, length, letters)."""
    with vs.signal("embed"):
        h = vs.gather(params["letter"], letters) + params["place"]
    for i in range(LAYERS):
        p = {k.removeprefix(f"layer.{i}."): v for k, v in params.items()}
        with vs.signal(f"layer.{i}"):
            h = h + attend(vs.layer_norm(h, p["norm.0"]), p)
            h = h + vs.gelu(vs.layer_norm(h, p["norm.1"]) @ p["up"]) @ p["down"]
    with vs.signal("head"):
        return vs.layer_norm(h, params["norm"]) @ params["head"]


def model(count: int, steps: int) -> tuple[vs.Tensor, vs.optim.Updates, Values]:
    """Return the loss of a batch, the updates of a step, and the parameters."""
    params = {name: vs.state(value, name) for name, value in first_values(count).items()}
    shape, bounds = (BATCH, LENGTH), (0, count - 1)
    letters = vs.input("letters", shape, "int32", bounds=bounds)
    following = vs.input("next", shape, "int32", bounds=bounds)
    loss = vs.losses.cross_entropy(network(letters, params), following)
    rate = vs.optim.cosine(4e-3, steps, 4e-4, warmup=steps // 20)
    grads = vs.optim.clip_by_global_norm(vs.grad(loss, params), 1.0)
    return loss, vs.optim.adamw(params, grads, rate), params


def build() -> tuple[vs.Tensor, vs.optim.Updates]:
    """Return a training step, for `vksched plan`."""
    return model(len(Letters(BOOK.read_text("utf-8")).letters), 600)[:2]


def write(run: vs.CompiledGraph, letters: Letters, count: int) -> str:
    """Return the text that the model writes after "And "."""
    rng = np.random.default_rng(SEED)
    text = [letters.letters.index(letter) for letter in "And "]
    for _ in range(count):
        seen = text[-LENGTH:]
        logits = run(letters=np.array([seen + [0] * (LENGTH - len(seen))], np.int32))
        chances = np.exp(logits[0, len(seen) - 1] / 0.5)
        text.append(int(rng.choice(len(chances), p=chances / chances.sum())))
    return "".join(letters.letters[i] for i in text)


def train(
    devices: Sequence[str], steps: int, config: str | None = None, book: Path = BOOK
) -> Result:
    """Trains on the devices as a config says, and writes a few lines."""
    letters = Letters(book.read_text("utf-8"))
    loss, updates, params = model(len(letters.letters), steps)
    one = vs.input("letters", (1, LENGTH), "int32", bounds=(0, len(letters.letters) - 1))
    losses = []
    with vs.Scheduler(devices, config=config) as sched, Progress(transient=True) as bars:
        step = sched.compile(loss, updates=updates)
        task = bars.add_task("training", total=steps)
        for i in range(steps):
            losses.append(float(step(**letters.batch(i))))
            bars.update(task, advance=1, description=f"loss {losses[-1]:.3f}")
        topology = step.plan.topology
        busy = list(dict.fromkeys(topology.devices[s.device].name for s in step.plan.splits))
        learnt = {name: vs.weight(sched.read(state), name) for name, state in params.items()}
    with vs.Scheduler(devices[:1]) as sched:
        written = write(sched.compile(network(one, learnt)), letters, 300)
    return Result(losses, written, busy)


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", help="such as vulkan:0,vulkan:1")
    parser.add_argument("--config", help="a YAML file that says how the work is cut")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--text", type=Path, default=BOOK, help="learn from this file instead")
    args = parser.parse_args(arguments)
    devices = args.devices.split(",") if args.devices else pick_devices(2)
    result = train(devices, args.steps, args.config, args.text)
    print(f"{len(result.losses)} steps over {' and '.join(result.busy)}")
    print(f"loss {result.losses[0]:.3f} at first, {np.mean(result.losses[-10:]):.3f} at the end")
    print(result.written)
    return result


if __name__ == "__main__":
    main()
