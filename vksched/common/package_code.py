"""Package code: the source files of vksched, on which cached results depend.

    loaded_code --> (file, size, time) of each loaded module --cached with a result--> is_code
    code_files  --> (file, size, time) of all files, a cache key

A process may have loaded another version of a file than the one on disk: a file that was written
after the process began to load the package counts as unknown.

Examples: tests/generation/test_layer_cost_cache.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from .version import LOADED_NS, __version__

PACKAGE = Path(__file__).parents[1]
TOP = PACKAGE.name


def loaded_code() -> list[tuple[str, int, int]] | None:
    """Return the source files of the loaded modules of the package, with sizes and times: computed
    results depend on them. Return None if a file was removed or was written after this process
    began, because the process may have loaded another version.
    """
    own = [module for name, module in list(sys.modules.items()) if name.startswith(TOP)]
    files = {str(file) for module in own if (file := getattr(module, "__file__", None))}
    # the separator excludes native modules, whose names begin with the package's
    folder = f"{PACKAGE}{os.sep}"
    inside = [file for file in sorted(files) if file.startswith(folder)]
    about_files = [(file[len(folder) :], about_loaded(file)) for file in inside]
    found = [(file, *about) for file, about in about_files if about is not None]
    return found if len(found) == len(about_files) else None


def about_loaded(file: str) -> tuple[int, int] | None:
    """Return the size and time of a loaded file. Return None if the file was removed or was written
    after it was loaded.
    """
    try:
        about = os.stat(file)
    except OSError:
        return None
    written_ns = max(about.st_mtime_ns, about.st_ctime_ns)  # a copied file may have an old mtime
    return (about.st_size, about.st_mtime_ns) if written_ns < LOADED_NS else None


def is_code(files: Iterable[tuple[str, int, int]]) -> bool:
    """Return True if files of the package are unchanged since `loaded_code` listed them, and this
    process has loaded these versions.
    """
    folder = f"{PACKAGE}{os.sep}"
    new = {(str(file), size, time_ns) for file, size, time_ns in files} - _seen
    if not all(about_loaded(folder + file) == (size, time_ns) for file, size, time_ns in new):
        return False
    _seen.update(new)
    return True


_seen: set[tuple[str, int, int]] = set()
"""Files that `is_code` has found unchanged: this process has loaded these versions."""


@cache
def code_files() -> list[tuple[str, int, int]]:
    """Return the cache key of the package: its version, and its files with sizes and times."""
    found = [("version " + __version__, 0, 0)]
    with suppress(OSError):
        found += sorted(_files(str(PACKAGE), len(str(PACKAGE))))
    return found


def _files(folder: str, skipped: int) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".json")):
                about = entry.stat()
                yield entry.path[skipped:], about.st_size, about.st_mtime_ns
            elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                yield from _files(entry.path, skipped)
