"""How many of the package's Python functions one step calls: the cost that no device hides.

    python benchmarks/overheads/function_calls.py [--device vulkan:0] [--json]

Each step runs once to warm up and once under a profile. Only functions of vksched count.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import vksched as vs
from vksched.bench.language.random_models import write_model
from vksched.generation.slot_steps import SlotSteps

KIND = "Q4_K"
FOLDER = str(Path(vs.__file__).parent)


def calls_of(step: Callable[[], object]) -> dict[str, int]:
    """Return the calls of functions of the package, the files they are in, and changes of file."""
    calls, files, changes, last = 0, set(), 0, ""

    def profile(frame: object, event: str, _: object) -> None:
        nonlocal calls, changes, last
        if event != "call":
            return
        name = frame.f_code.co_filename  # type: ignore[attr-defined]
        if name.startswith(FOLDER):
            calls += 1
            files.add(name)
            changes += name != last
            last = name

    sys.setprofile(profile)
    try:
        step()
    finally:
        sys.setprofile(None)
    return {"calls": calls, "files": len(files), "changes": changes}


def mlp() -> vs.Tensor:
    rng = np.random.default_rng(0)
    x = vs.input("x", shape=(8, 64))
    for i in range(4):
        w = vs.weight(rng.standard_normal((64, 64)).astype(np.float32), name=f"w{i}")
        x = vs.relu(x @ w)
    return vs.softmax(x)


def timeline_of_a_run(device: str) -> dict[str, int]:
    feed = np.zeros((8, 64), np.float32)
    with vs.Scheduler([device, "cpu"] if device != "cpu" else ["cpu"], trace=vs.Tape()) as sched:
        run = sched.compile(mlp())
        run(x=feed), run(x=feed)
        vs.timeline(run.trace)
        return calls_of(lambda: vs.timeline(run.trace))


def runs_of_a_plan(device: str) -> dict[str, dict[str, int]]:
    feed = np.zeros((8, 64), np.float32)
    with vs.Scheduler([device]) as sched:
        warm = sched.compile(mlp())
        for _ in range(3):
            warm(x=feed)
    with vs.Scheduler([device]) as sched:
        run = sched.compile(mlp())
        return {f"run {i + 1} of a plan": calls_of(lambda: run(x=feed)) for i in range(3)}


def first_token(device: str) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path, KIND)

        def generate() -> None:
            with vs.Scheduler([device]) as sched:
                SlotSteps(sched, vs.load(path), 64, 1).prefill(0, [1, 2, 3], 0)

        generate()
        return calls_of(generate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = {"timeline of two runs": timeline_of_a_run(args.device)}
    found |= runs_of_a_plan(args.device)
    found["first token"] = first_token(args.device)
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for name, row in found.items():
        print(
            f"{name:22} {row['calls']:8,} calls {row['files']:4} files "
            f"{row['changes']:7,} changes of file"
        )


if __name__ == "__main__":
    main()
