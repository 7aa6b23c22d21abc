"""Opens model files: regular files only, mapped. A mapped file must not be changed while arrays of
it live.
"""

from __future__ import annotations

import mmap
import os
import stat
from contextlib import ExitStack
from pathlib import Path

from ..errors import ModelFormatError

LEAST_MAPPED_BYTES = 1 << 16
"""Files up to this size are read, not mapped."""

FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)  # opening a fifo does not wait then
FLAGS |= getattr(os, "O_BINARY", 0)  # Windows would change the ends of lines


def open_model(path: Path, stage: str) -> memoryview:
    """Returns the bytes of a model file, mapped. stage: what errors begin with.

    Raises:
        ModelFormatError: there is none, or it is not a regular file.
    """
    try:
        with ExitStack() as stack:
            file = opened(stack, path, FLAGS, None)
            return content_of(file, str(path), f"[{stage}] model", True)
    except ModelFormatError:
        raise
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise ModelFormatError(
            f"[{stage}] expected a model file at {str(path)!r}, got {said}"
        ) from None


def read_ahead(content: memoryview) -> None:
    """Tells the system that all of a mapped file is wanted soon, and waits for nothing. A file of
    more than half of the machine's memory is read as it is used.
    """
    mapped = content.obj
    if not (isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_WILLNEED")):
        return
    if len(mapped) <= os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE // 2:
        mapped.madvise(mmap.MADV_WILLNEED)


def opened(stack: ExitStack, path: Path | str, flags: int, folder: int | None) -> int:
    """Returns a descriptor of a file, below that of a folder if one is given."""
    file = os.open(path, flags) if folder is None else os.open(path, flags, dir_fd=folder)
    stack.callback(os.close, file)
    return file


def content_of(file: int, name: str, where: str, mapped: bool) -> memoryview:
    """Returns the bytes of an open file. where: what errors begin with."""
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode):
        raise ModelFormatError(f"{where}: expected a regular file, got something else at {name!r}")
    if mapped and about.st_size > LEAST_MAPPED_BYTES:
        return memoryview(mmap.mmap(file, about.st_size, access=mmap.ACCESS_READ))
    with open(file, "rb", closefd=False) as stream:
        return memoryview(stream.read(about.st_size))
