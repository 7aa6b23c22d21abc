"""A small convolutional network learns handwritten digits, over two devices.

    python examples/train_digits.py [--devices vulkan:0,vulkan:1] [--epochs 12] [--plot curve.svg]

The data are the 1,797 scans of 8 x 8 pixels that come with scikit-learn. The first half of the
network lies on one device and the second half on the other one; so do their backward passes, their
parameters and what the optimizer keeps of them. `train_digits_torch.py` is the same in PyTorch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
from pick import pick_devices
from rich.progress import Progress

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.viz.svg import add_text, as_text, new_picture, save_picture

BATCH, SEED = 64, 0
SHAPES = {
    "body.0": (16, 1, 3, 3),
    "body.1": (32, 16, 3, 3),
    "head.0": (64, 32 * 4 * 4),
    "head.1": (10, 64),
}


@dataclass(frozen=True)
class Result:
    """losses: loss of each step. right: the share of the held-out scans classified correctly."""

    losses: list[float]
    right: float


def load_digits() -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Return scans and classes to learn from, and those held out: every fifth."""
    from sklearn import datasets

    scans, classes = datasets.load_digits(return_X_y=True)
    x = (scans.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    held = np.arange(len(x)) % 5 == 0
    return x[~held], classes[~held].astype(np.int32), x[held], classes[held].astype(np.int32)


def first_values() -> dict[str, NDArray]:
    """Return the initial parameters, the same on every machine."""
    out: dict[str, NDArray] = {}
    for name, shape in SHAPES.items():
        out[f"{name}.w"] = vs.init.kaiming_normal(shape, name=f"{name}.w", seed=SEED)
        out[f"{name}.b"] = np.zeros(shape[0], np.float32)
    return out


def network(x: vs.Tensor, params: dict[str, vs.Tensor]) -> vs.Tensor:
    """Return ten logits for each scan: (n, 1, 8, 8) -> (n, 10)."""
    with vs.name_scope("body"):
        h = vs.relu(vs.conv(x, params["body.0.w"], params["body.0.b"], padding=1))
        h = vs.relu(vs.conv(h, params["body.1.w"], params["body.1.b"], padding=1))
        h = vs.max_pool(h, 2)
    with vs.name_scope("head"):
        h = vs.flatten(h, 1)
        h = vs.relu(vs.linear(h, params["head.0.w"], params["head.0.b"]))
        return vs.linear(h, params["head.1.w"], params["head.1.b"])


def batches(count: int, epochs: int) -> list[NDArray]:
    """Return the scans of each step, by their numbers: each epoch in another order."""
    rng = np.random.default_rng(SEED)
    out: list[NDArray] = []
    for _ in range(epochs):
        order = rng.permutation(count)
        out += [order[i : i + BATCH] for i in range(0, count - BATCH + 1, BATCH)]
    return out


def train(devices: Sequence[str], epochs: int, steps: int | None = None) -> Result:
    """Trains over one device or two, and tries what was learnt on the scans held out. steps: how
    many of those of all epochs are done; None: all.
    """
    x, classes, held_x, held_classes = load_digits()
    order = batches(len(x), epochs)
    params = {name: vs.state(value, name) for name, value in first_values().items()}
    logits = network(vs.input("x", (BATCH, 1, 8, 8)), params)
    loss = vs.losses.cross_entropy(logits, vs.input("classes", (BATCH,), "int32", bounds=(0, 9)))
    rate = vs.optim.cosine(2e-3, len(order), warmup=20)
    updates = vs.optim.adamw(params, vs.grad(loss, params), rate)
    predicted = vs.argmax(network(vs.input("x", held_x.shape), params), 1)
    front, back = devices[0], devices[-1]
    halves = {"body.*": front, "head.*": back}
    losses, order = [], order[:steps]
    with vs.Scheduler(devices) as sched, Progress(transient=True) as bars:
        step = sched.compile(loss, updates=updates, placement=halves)
        task = bars.add_task("training", total=len(order))
        for chosen in order:
            losses.append(float(step(x=x[chosen], classes=classes[chosen])))
            bars.update(task, advance=1, description=f"loss {losses[-1]:.3f}")
        right = sched.compile(predicted, placement=halves)(x=held_x) == held_classes
    return Result(losses, float(np.mean(right)))


def draw(losses: Sequence[float]) -> str:
    """Return the loss curve as an SVG; a step up is ten times the loss."""
    logs = np.log10(np.maximum(losses, 1e-6))
    low, high = int(np.floor(logs.min())), int(np.ceil(logs.max() + 1e-9))
    picture = new_picture(640, 360, "Digits: loss of each step")
    for power in range(low, high + 1):
        y = 320 - 290 * (power - low) / (high - low)
        ET.SubElement(picture, "path", d=f"M60 {y:.1f}H620", stroke="#dddddd")
        add_text(picture, 52, y + 3, f"{10.0**power:g}", anchor="end")
    xs = 60 + 560 * np.arange(len(losses)) / max(len(losses) - 1, 1)
    ys = 320 - 290 * (logs - low) / (high - low)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    ET.SubElement(picture, "polyline", points=points, fill="none", stroke="#0072b2")
    add_text(picture, 340, 345, f"loss of steps 1 to {len(losses)}", anchor="middle")
    return as_text(picture)


def main(arguments: Sequence[str] | None = None) -> Result:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", help="one or two, such as vulkan:0,vulkan:1")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--plot", help="draw the loss curve into this .svg file")
    args = parser.parse_args(arguments)
    if args.epochs < 1:
        parser.error(f"expected --epochs of 1 or more, got {args.epochs}")
    if args.plot and not (args.plot.endswith(".svg") and Path(args.plot).parent.is_dir()):
        parser.error(f"expected --plot as an .svg file in a folder that exists, got {args.plot}")
    devices = args.devices.split(",") if args.devices else pick_devices(2)
    result = train(devices, args.epochs)
    print(f"loss {result.losses[0]:.3f} at first, {np.mean(result.losses[-10:]):.4f} at the end")
    print(f"{result.right:.1%} of the scans held out are told right, over {' and '.join(devices)}")
    if args.plot:
        save_picture(args.plot, lambda: draw(result.losses))
        print(f"wrote {args.plot}")
    return result


if __name__ == "__main__":
    main()
