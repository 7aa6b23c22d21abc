"""Reads mutants of ONNX models, in a process that may end at any of them.

    python tests/importers/fuzz/fuzz_onnx.py --seed 1 --first 0 --count 1000

With --run what loads is run on the CPU as well, which may end in any VkschedError. A line is
printed for each mutant before it is read, and one more where that was not as it should be. Allowed
is to load, or to be refused with a ModelFormatError; not a crash, not more than `LIMIT_S`, not more
memory than `SPARE_BYTES` and four times the file, no file opened outside the model's folder, no
map or descriptor left of a load that failed.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import resource
import signal
import sys
import tempfile
import traceback
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from mutants import LIMIT_S, NO_MEMORY, SPARE_BYTES, Watch, left_behind
from onnx import helper

from vksched.common.errors import VkschedError

if TYPE_CHECKING:
    from vksched import Scheduler
    from vksched.importers.onnx.model import Model

RUN_LIMIT_S = 3


def make_folder(folder: Path, files: dict[str, int]) -> None:
    """Lays out what mutants may find: external data, and what they must not follow."""
    (folder / "sub").mkdir()
    for name, size in files.items():
        (folder / name).write_bytes(bytes(size))
    outside = folder.parent / "outside.bin"
    outside.write_bytes(bytes(1 << 16))
    (folder / "link.bin").symlink_to(outside)
    (folder / "linked").symlink_to(folder / "sub")
    os.mkfifo(folder / "fifo")


class Slow(BaseException):
    """A run takes long, which a loop of a valid model may."""


def run(sched: Scheduler, model: Model) -> str:
    """Run a model once on small inputs; returns how that ended, a traceback where it must not."""
    rng = np.random.default_rng(0)
    feeds: dict[str, object] = {}
    for value in model.inputs:
        dims = [d if isinstance(d, int) else 2 for d in value.dims or ()]
        if value.kind != "tensor" or math.prod(dims) > 1 << 16:
            return "not: it takes no small tensors"
        built = rng.integers(0, 4, dims)
        if value.dtype == "string":
            built = built.astype(str)
        feeds[value.name] = built.astype(helper.tensor_dtype_to_np_dtype(value.elem_type))
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(RUN_LIMIT_S)
    try:
        with closing(sched.compile(model)) as compiled:
            compiled(**feeds)
        return "well"
    except VkschedError as error:
        return f"not: {type(error).__name__} {error}"
    except Slow:
        return "not: it takes long"
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _stop(number: int, frame: object) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LIMIT_S)
    raise Slow


def main() -> int:
    """Reads mutants; returns 1 when one of them did what it must not."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--run", action="store_true", help="run what loads, on the CPU")
    asked = options.parse_args()
    from onnx_corpus import EXTERNAL_FILES, corpus
    from onnx_mutations import mutant

    import vksched as vs
    from vksched.common.errors import ModelFormatError
    from vksched.ops.lowering import blas

    models, bad, sched = corpus(), 0, vs.Scheduler(["cpu"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "model"
        folder.mkdir()
        make_folder(folder, EXTERNAL_FILES)
        os.chdir(folder)  # where names relative to an open folder are resolved by the watch
        path = folder / "m.onnx"
        for model in models.values():  # imports what is imported late
            path.write_bytes(model.SerializeToString())
            values = vs.load(path)
            if asked.run:
                print("ran", run(sched, values))
            del values
        blas.is_in_loops()  # finds the libraries of products once, in /proc/self/maps
        names = sorted(p.name for p in folder.iterdir())
        gc.collect()
        base = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        watch = Watch(folder)
        for number in range(asked.first, asked.first + asked.count):
            what, data = mutant(models, asked.seed, number)
            print("mutant", number, what, flush=True)
            path.write_bytes(data)
            most = base + SPARE_BYTES + 4 * len(data)
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
            signal.alarm(LIMIT_S)  # ends the process, also within a library
            problem, failure = "", None
            watch.armed = True
            loaded = None
            try:
                loaded = vs.load(path)
            except ModelFormatError as error:
                failure = error
                if any(word in str(error) for word in NO_MEMORY):
                    problem = f"too much memory: {error}"
            except BaseException:
                problem = traceback.format_exc()
            signal.alarm(0)
            if loaded is not None and asked.run:
                print("ran", ran := run(sched, loaded))
                if ran.startswith("Traceback"):
                    problem = ran
            del loaded
            watch.armed = False
            if failure is not None and (left := left_behind(folder)):
                problem = f"left behind: {left}"
            if watch.outside:
                problem = f"opened {watch.outside}"
                watch.outside.clear()
            if sorted(p.name for p in folder.iterdir()) != names:
                problem = "files changed"
            if problem:
                print("BAD", number, what, problem, flush=True)
                bad += 1
            print("loaded" if failure is None else f"refused {failure}"[:300], flush=True)
    print("read up to", asked.first + asked.count)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
