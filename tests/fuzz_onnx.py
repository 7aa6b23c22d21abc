"""Reads mutants of ONNX models, in a process that may end at any of them.

    python tests/fuzz_onnx.py --seed 1 --first 0 --count 1000

For each mutant a line is printed before it is read, and one after it where that was not as it
should be. Allowed is to load, or to be refused with a VkschedError of the right kind; not a crash,
not more than `LIMIT_S`, not more memory than `SPARE_BYTES` and four times the file, no file opened
outside the model's folder, no map or descriptor left of a load that failed.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path

SPARE_BYTES = 512 << 20
LIMIT_S = 10
NO_MEMORY = ("MemoryError", "bad_alloc", "Unable to allocate", "allocate memory")


class Watch:
    """Collects the files that are opened outside a folder while it is armed."""

    def __init__(self, folder: Path) -> None:
        self._allowed = (f"{folder.resolve()}{os.sep}",)
        self._code = tuple(f"{p}{os.sep}" for p in {sys.prefix, sys.base_prefix, *sys.path} if p)
        self.armed = False
        self.outside: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if not self.armed or event != "open" or isinstance(args[0], int):
            return
        path = os.path.abspath(os.fsdecode(args[0]))  # type: ignore[arg-type]
        is_code = path.endswith((".py", ".pyc", ".so")) and path.startswith(self._code)
        if not is_code and not f"{path}{os.sep}".startswith(self._allowed):
            self.outside.append(path)


def left_behind(folder: Path) -> str:
    """Returns the maps and descriptors that a process has in a folder."""
    maps = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line
    ]
    links = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
    opened = [os.readlink(link) for link in links if os.path.islink(link)]
    return " ".join(maps + [o for o in opened if o.startswith(str(folder))])


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


def main() -> int:
    """Reads mutants; returns 1 when one of them did what it must not."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--count", type=int, default=1000)
    asked = options.parse_args()
    from onnx_corpus import EXTERNAL_FILES, corpus
    from onnx_mutations import mutant

    from vksched.errors import ModelFormatError
    from vksched.importers.loader import read_onnx

    models, bad = corpus(), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "model"
        folder.mkdir()
        make_folder(folder, EXTERNAL_FILES)
        os.chdir(folder)  # where names relative to an open folder are resolved by the watch
        path = folder / "m.onnx"
        for model in models.values():  # imports what is imported late
            path.write_bytes(model.SerializeToString())
            read_onnx(path)
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
            try:
                read_onnx(path)
            except ModelFormatError as error:
                failure = error
                if any(word in str(error) for word in NO_MEMORY):
                    problem = f"too much memory: {error}"
            except BaseException:
                problem = traceback.format_exc()
            watch.armed = False
            signal.alarm(0)
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
