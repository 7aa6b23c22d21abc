"""The same training as train_digits.py in PyTorch: the curve that the tests compare with.

    python examples/train_digits_torch.py > examples/data/train_digits_torch.json

It needs torch and scikit-learn, and takes the first values of the parameters from vksched.
"""

from __future__ import annotations

import json
import math

import torch
from torch.nn import functional
from train_digits import batches, first_values, load_digits

EPOCHS, STEPS, WARMUP, PEAK = 12, 50, 20, 2e-3


def main() -> None:
    x, classes, _, _ = load_digits()
    order = batches(len(x), EPOCHS)
    params = {k: torch.nn.Parameter(torch.tensor(v)) for k, v in first_values().items()}
    optimizer = torch.optim.AdamW(params.values(), lr=0.0)
    losses = []
    for done, chosen in enumerate(order[:STEPS]):
        part = min(max((done - WARMUP) / (len(order) - WARMUP), 0.0), 1.0)
        rising = min((done + 1) / WARMUP, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rising * PEAK * (0.5 + 0.5 * math.cos(math.pi * part))
        h = torch.tensor(x[chosen])
        h = functional.relu(functional.conv2d(h, params["body.0.w"], params["body.0.b"], padding=1))
        h = functional.relu(functional.conv2d(h, params["body.1.w"], params["body.1.b"], padding=1))
        h = functional.max_pool2d(h, 2).flatten(1)
        h = functional.relu(functional.linear(h, params["head.0.w"], params["head.0.b"]))
        h = functional.linear(h, params["head.1.w"], params["head.1.b"])
        loss = functional.cross_entropy(h, torch.tensor(classes[chosen], dtype=torch.int64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(round(float(loss.detach()), 6))
    print(json.dumps(losses))


if __name__ == "__main__":
    main()
