"""Opens files below a folder: never one outside, whatever their paths and links say.

Where a path leads is decided by the opening itself: every part of it is opened from the folder
before it and without following links, so nothing can be exchanged between check and use. A link is
read and its target is opened in the same way, part by part; ".." in it leads to the folder that was
opened before. A link that leads out of the folder, or begins at the root of the file system, is
refused. Hubs lay out a repository so: `snapshots/REVISION/model.onnx_data` is a link to
`blobs/HASH`; links of such a snapshot may lead anywhere below the repository's folder.

Windows cannot open from a folder: there every part is looked at before and after the opening, and
links are refused.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from contextlib import ExitStack
from pathlib import Path

from .model_file import FLAGS, opened

MAX_LINKS = 40
"""On the way to one file, as Linux has it."""
_FROM_FOLDERS = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_LINK = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
"""What systems answer who may not follow a link: Linux, the same for a folder, FreeBSD."""
_JUNCTION = 0xA0000003
"""Windows' mark of a folder that leads elsewhere."""


def parts_of(location: str, windows: bool = os.sep == "\\") -> list[str] | None:
    """Return the parts of a path below a folder; None of one that leads elsewhere."""
    if windows:
        location = location.replace("\\", "/")
    if not location or "\0" in location or location[0] == "/":
        return None
    parts: list[str] = []
    for part in location.split("/"):
        if part == ".." and not parts:
            return None
        if part == "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    # Windows: drives, streams of a file, and names that lose their end: ".. " is "..".
    if windows and any(":" in p or p[-1] in ". " for p in parts):
        return None
    return parts or ["."]


def root_of(folder: Path) -> Path:
    """Return the folder that links of a folder may lead to: that of the repository for a snapshot
    in a hub's cache, else itself.
    """
    for parent in folder.absolute().parents:
        if parent.name == "snapshots" and (parent.parent / "blobs").is_dir():
            return parent.parent
    return folder


def opened_below(stack: ExitStack, folder: Path, parts: list[str]) -> int:
    """Return a descriptor of a file below a folder, at `parts_of` a path.

    Raises:
        OSError: there is none, or a link on the way leads out of `root_of` the folder.
    """
    if not _FROM_FOLDERS:
        return _opened_and_looked_at(stack, folder, parts)
    root = root_of(folder)
    above = folder.absolute().relative_to(root).parts if root != folder else ()
    at, left, links = [opened(stack, root, FLAGS | os.O_DIRECTORY, None)], deque(above), 0
    left.extend(parts)
    while left:
        part = left.popleft()
        if part == "..":
            at.pop()
            if not at:
                raise OSError(errno.ELOOP, "a link that leads outside")
            continue
        kind = os.O_DIRECTORY if left else 0
        try:
            at.append(opened(stack, part, FLAGS | os.O_NOFOLLOW | kind, at[-1]))
        except OSError as error:
            links += 1
            if error.errno not in _LINK or links > MAX_LINKS:
                raise
            left.extendleft(reversed(_target_of(part, at[-1])))
    return at[-1]


def _target_of(link: str, folder: int) -> list[str]:
    """Return the parts of a link's target; raises OSError of what is no link, or leads outside."""
    try:
        target = os.readlink(link, dir_fd=folder)
    except OSError:
        raise OSError(errno.ENOTDIR, "no folder") from None
    if target.startswith("/"):
        raise OSError(errno.ELOOP, "a link that leads outside")
    return [part for part in target.split("/") if part not in ("", ".")]


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
