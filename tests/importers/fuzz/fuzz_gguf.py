"""Reads mutants of GGUF files, in a process that may end at any of them.

    python tests/importers/fuzz/fuzz_gguf.py --seed 1 --first 0 --count 1000

What loads is described, its tensors become float32, and a model becomes a graph. A line is printed
for each mutant before it is read, and one more where that was not as it should be. Allowed is to
load, or to be refused with a ModelFormatError; not a crash, not more than `LIMIT_S`, not more
memory than `SPARE_BYTES` and 100 times the file, no file opened outside the model's folder, no map
or descriptor left of a load that failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import language
import vision
from gguf_files import all_kinds, part, small_model
from gguf_mutations import mutant
from language.convert import draft
from mutants import LIMIT_S, NO_MEMORY, Watch, left_behind
from vision import qwen
from vision.projectors import projector

SPARE_BYTES = 64 << 20
CORPUS = {
    "all": all_kinds(),
    "model": small_model(),
    "part": part(0, 2, 3, ["a", "b"]),
    "one": part(0, 1, 1, ["a"]),
    **{name: draft(language.load(name)) for name in language.NAMES},
    "projector": projector(vision.load()),
    **{f"projector {name}": qwen.projector(qwen.load(name)) for name in qwen.NAMES},
}


def encoded(path: Path) -> object:
    """Return the graph of the tokens of a small picture."""
    import vksched as vs

    model = vs.load_projector(path)
    side = 2 * model.hyper.patch_size * model.hyper.pool
    shape = (3, side, side) if model.hyper.is_qwen else model.pixels_shape
    return model.encode(vs.input("pixels", (1, *shape)))


def read(path: Path) -> str:
    """Read one file and all that is in it; returns how that ended."""
    import vksched as vs
    from vksched.cli.views.gguf_info import describe_language_model, is_projector
    from vksched.cli.views.projector_info import describe_projector
    from vksched.common.errors import ModelFormatError, ShapeError

    try:
        model = vs.load(path)
    except ModelFormatError as error:
        if any(word in str(error) for word in NO_MEMORY):
            raise
        return f"refused {error}"[:300]
    is_projector(model.file)  # type: ignore[union-attr]
    json.dumps(describe_language_model(model))  # type: ignore[arg-type]
    json.dumps(describe_projector(model.file))  # type: ignore[union-attr]
    for tensor in model.file.tensors.values():  # type: ignore[union-attr]
        try:
            tensor.to_numpy()
        except ModelFormatError:
            continue  # of a type that is no weight
    ids, counts = vs.input("ids", (1, 4), "int32"), vs.input("counts", (1,), "int32")
    for write in (
        lambda: model.logits(ids),  # type: ignore[union-attr]
        lambda: model.step(model.cache(8), 2),  # type: ignore[union-attr]
        lambda: model.embeddings(ids, counts, "mean"),  # type: ignore[union-attr]
        lambda: encoded(path),
    ):
        try:
            write()
            print("written as a graph")
        except (ModelFormatError, ShapeError):
            pass  # of another architecture, or of other sizes
    return "loaded"


def main() -> int:
    """Reads mutants; returns 1 when one of them did what it must not."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--count", type=int, default=1000)
    asked = options.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "model"
        folder.mkdir()
        path = folder / "m-00001-of-00002.gguf"
        (folder / "m-00002-of-00002.gguf").write_bytes(part(1, 2, 3, ["c"]).packed())
        for draft in CORPUS.values():  # imports what is imported late
            path.write_bytes(draft.packed())
            assert read(path) == "loaded"
        names = sorted(p.name for p in folder.iterdir())
        gc.collect()
        base = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        watch = Watch(folder)
        for number in range(asked.first, asked.first + asked.count):
            what, data = mutant(CORPUS, asked.seed, number)
            print("mutant", number, what, flush=True)
            path.write_bytes(data)
            most = base + SPARE_BYTES + 100 * len(data)
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
            signal.alarm(LIMIT_S)  # ends the process, also within a library
            problem = ended = ""
            watch.armed = True
            try:
                ended = read(path)
            except BaseException:
                problem = traceback.format_exc()
            signal.alarm(0)
            watch.armed = False
            if ended != "loaded" and (left := left_behind(folder)):
                problem = f"left behind: {left}"
            if watch.outside:
                problem = f"opened {watch.outside}"
                watch.outside.clear()
            if sorted(p.name for p in folder.iterdir()) != names:
                problem = "files changed"
            if problem:
                print("BAD", number, what, problem, flush=True)
                bad += 1
            print(ended, flush=True)
    print("read up to", asked.first + asked.count)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
