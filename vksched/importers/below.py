"""Opens files below a folder: never one outside, whatever their paths say.

Where a path leads is decided by the opening itself: every part of it is opened from the folder
before it and without following links, so nothing can be exchanged between check and use. Windows
cannot open from a folder: there every part is looked at before and after the opening.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack
from pathlib import Path

from .files import FLAGS, opened

_FROM_FOLDERS = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_JUNCTION = 0xA0000003
"""Windows' mark of a folder that leads elsewhere."""


def parts_of(location: str, windows: bool = os.sep == "\\") -> list[str] | None:
    """Returns the parts of a path below a folder; None of one that may lead elsewhere."""
    if windows:
        location = location.replace("\\", "/")
    parts = location.split("/")
    if not location or "\0" in location or location[0] == "/" or ".." in parts:
        return None
    parts = [p for p in parts if p not in ("", ".")]
    # Windows: drives, streams of a file, and names that lose their end: ".. " is "..".
    if windows and any(":" in p or p[-1] in ". " for p in parts):
        return None
    return parts or ["."]


def opened_below(stack: ExitStack, folder: Path, parts: list[str]) -> int:
    """Returns a descriptor of a file below a folder, at `parts_of` a path.

    Raises:
        OSError: there is none, or a link on the way.
    """
    if not _FROM_FOLDERS:
        return _opened_and_looked_at(stack, folder, parts)
    at = opened(stack, folder, FLAGS | os.O_DIRECTORY, None)
    for part in parts[:-1]:
        at = opened(stack, part, FLAGS | os.O_DIRECTORY | os.O_NOFOLLOW, at)
    return opened(stack, parts[-1], FLAGS | os.O_NOFOLLOW, at)


def _opened_and_looked_at(stack: ExitStack, folder: Path, parts: list[str]) -> int:
    ends = [folder.joinpath(*parts[: count + 1]) for count in range(len(parts))]

    def look() -> os.stat_result:
        for end in ends:
            about = os.lstat(end)
            if stat.S_ISLNK(about.st_mode) or getattr(about, "st_reparse_tag", 0) == _JUNCTION:
                raise OSError(errno.ELOOP, "a link")
        return about

    look()
    file = opened(stack, ends[-1], FLAGS, None)
    if not os.path.samestat(look(), os.fstat(file)):
        raise OSError(errno.ELOOP, "a link")
    return file
