"""The demo's sentence encoder learns a label that it was never trained for, from 100 sentences.

    python examples/finetune_minilm.py [--devices vulkan:0,vulkan:1] [--steps 40]

The label: does a sentence tell of an event ("The goalkeeper guessed right ..."), or of what is
always so ("Sharp knives are safer ...")? All weights stay as they are. What learns are two narrow
matrices beside each query and value projection (LoRA), 37 thousand numbers. A sentence has the
label if its vector is nearer to the mean of the events than to the mean of the truths, as these
means were before. The means are not trained.

Source: Hu and others, LoRA: low-rank adaptation of large language models, ICLR 2022.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from minilm import MiniLM, load_minilm
from pick import pick_devices
from rich.progress import Progress

import vksched as vs
from vksched.common.dtypes import NDArray

SENTENCES = Path(__file__).parent / "data" / "sentences.txt"
TRUTHS = """
2 3 4 7 8 10 13 15 16 17 19 20 21 24 30 31 34 36 39 41 42 43 44 47 48 51 52 56 58 59 61 64 66 69 71
76 77 78 79 80 82 84 87 88 89 90 93 95 98 99 103 105 107 108 110 111 114 118 121 122 124 134 135 138
139 140 142 143 145 148 155 156 157 161 162 165 167 169 171 174 178 179 184 185 186 189 191 192 193
195 198 199 200 201 202 206 209 213 216 217
"""
EVENTS = """
1 6 9 11 12 14 22 23 25 26 27 29 32 33 35 38 46 49 50 54 55 57 60 62 63 67 68 70 72 74 75 81 85 92
94 96 97 100 101 102 104 106 109 115 116 117 119 120 123 125 127 128 130 132 133 136 137 144 146 147
149 150 151 152 153 154 158 159 163 164 168 170 172 173 175 176 180 182 190 194 196 203 204 207 210
211 212 218 230 236 237 238 239 249 255 258 260 261 262 263
"""
"""Lines of the file, counted from 1. The first 50 of each are learnt from, the rest held out."""
LEARNT, BATCH, LENGTH, RANK, SCALE = 50, 16, 32, 4, 20.0


@dataclass(frozen=True)
class Result:
    """losses: loss of each step. before, after: the share of the sentences held out whose label is
    right. trained: how many numbers learnt.
    """

    losses: list[float]
    before: float
    after: float
    trained: int


class Lora(MiniLM):
    """MiniLM with two narrow matrices beside each query and value projection."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.params: dict[str, vs.Tensor] = {}
        for i in range(self.layers):
            for part in ("query", "value"):
                name = f"encoder.layer.{i}.attention.self.{part}"
                rows, columns = self.arrays[f"{name}.weight"].shape
                short = f"layer.{i}.lora.{part}"
                narrow = vs.init.kaiming_normal((RANK, columns), 1.0, name=f"{short}.a")
                self.params[f"{name}.a"] = vs.state(narrow, f"{short}.a")
                self.params[f"{name}.b"] = vs.state(
                    np.zeros((rows, RANK), np.float32), f"{short}.b"
                )

    def _linear(self, x: vs.Tensor, name: str) -> vs.Tensor:
        whole = super()._linear(x, name)
        if f"{name}.a" not in self.params:
            return whole
        narrow = vs.linear(x, self.params[f"{name}.a"])
        return whole + vs.linear(narrow, self.params[f"{name}.b"])


def sentences() -> tuple[list[str], NDArray]:
    """Return the sentences, those learnt from first, and their labels: 1 for events."""
    lines = SENTENCES.read_text("utf-8").splitlines()
    kinds = [[lines[int(n) - 1] for n in text.split()] for text in (TRUTHS, EVENTS)]
    texts = [t for kind in kinds for t in kind[:LEARNT]] + [t for k in kinds for t in k[LEARNT:]]
    sizes = [LEARNT, LEARNT, *(len(kind) - LEARNT for kind in kinds)]
    return texts, np.repeat(np.asarray([0, 1, 0, 1], np.float32), sizes)


def train(devices: Sequence[str], steps: int) -> Result:
    """Trains over one device or two: the first three layers on one, the others on the other."""
    model = load_minilm(Lora)
    texts, labels = sentences()
    rows = [row[:LENGTH] for row in model.tokenize(texts)]
    vectors = model.build_encoder(BATCH, LENGTH)
    axis, middle = vs.input("axis", (384,)), vs.input("middle", ())
    logits = (vs.reduce_sum(vectors * axis, 1) - middle) * SCALE
    loss = vs.losses.binary_cross_entropy(logits, vs.input("label", (BATCH,)))
    updates = vs.optim.adamw(model.params, vs.grad(loss, model.params), 2e-3, weight_decay=0.0)
    places = {"layer.[0-2].*": devices[0], "layer.[3-5].*": devices[-1]}
    rng, losses = np.random.default_rng(0), []
    with vs.Scheduler(devices) as sched, Progress(transient=True) as bars:
        encoder = sched.compile(vectors, placement=places)
        step = sched.compile(loss, places, updates=updates)

        def encode() -> NDArray:
            parts = [
                encoder(**model.fill(rows[i : i + BATCH], BATCH, LENGTH))[: len(rows) - i]
                for i in range(0, len(rows), BATCH)
            ]
            return np.concatenate(parts)

        first = encode()
        means = [first[: 2 * LEARNT][labels[: 2 * LEARNT] == kind].mean(0) for kind in (0, 1)]
        fixed = {
            "axis": (means[1] - means[0]).astype(np.float32),
            "middle": np.float32((means[1] @ means[1] - means[0] @ means[0]) / 2),
        }
        task = bars.add_task("learning", total=steps)
        for _ in range(steps):
            half = BATCH // 2
            chosen = [*rng.choice(LEARNT, half, False), *(rng.choice(LEARNT, half, False) + LEARNT)]
            feeds = model.fill([rows[i] for i in chosen], BATCH, LENGTH)
            losses.append(float(step(**feeds, **fixed, label=labels[chosen])))
            bars.update(task, advance=1, description=f"loss {losses[-1]:.3f}")
        shares = []
        for found in (first, encode()):
            predicted = found @ fixed["axis"] > fixed["middle"]
            shares.append(float(np.mean(predicted[2 * LEARNT :] == labels[2 * LEARNT :])))
    return Result(losses, *shares, sum(p.size for p in model.params.values()))


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", help="one or two, such as vulkan:0,vulkan:1")
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args(arguments)
    devices = args.devices.split(",") if args.devices else pick_devices(2)
    result = train(devices, args.steps)
    print(f"{result.trained:,} numbers learnt over {' and '.join(devices)}")
    print(f"loss {result.losses[0]:.3f} at first, {np.mean(result.losses[-5:]):.3f} at the end")
    print(
        f"labels of sentences held out: {result.before:.0%} right before, {result.after:.0%} after"
    )
    return result


if __name__ == "__main__":
    main()
