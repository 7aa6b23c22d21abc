"""Safe opening of files below a folder: no path or link can lead outside.

Each component of a path is opened relative to the descriptor of its parent, without following
links. Nothing can be exchanged between a check and the use. A link is read, and its target is
opened in this way, component by component; ".." in a target leads to the parent that was opened
before. A link that leads out of the folder, or is absolute, is refused. Model hubs store a
repository with links: `snapshots/REVISION/model.onnx_data` is a link to `blobs/HASH`. Links of a
snapshot may lead anywhere below the folder of the repository.

Windows cannot open relative to a folder. There each component is checked before and after the
opening, and links are refused.
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
"""Maximum number of links on the path of a file, as in Linux."""
_FROM_FOLDERS = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
_LINK = (errno.ELOOP, errno.ENOTDIR, errno.EMLINK)
"""Errors of opening a link with O_NOFOLLOW: Linux, Linux for a folder, FreeBSD."""
_JUNCTION = 0xA0000003
"""Windows' reparse tag of a junction."""


def parts_of(location: str, windows: bool = os.sep == "\\") -> list[str] | None:
    """Return the components of a path below a folder, or None if the path leads outside."""
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
    # Windows: drives, alternate streams, and names whose end is dropped: ".. " is "..".
    if windows and any(":" in p or p[-1] in ". " for p in parts):
        return None
    return parts or ["."]


def root_of(folder: Path) -> Path:
    """Return the folder that links below a folder may lead to: the repository of a hub's snapshot,
    else the folder itself.
    """
    for parent in folder.absolute().parents:
        if parent.name == "snapshots" and (parent.parent / "blobs").is_dir():
            return parent.parent
    return folder


def opened_below(stack: ExitStack, folder: Path, parts: list[str]) -> int:
    """Return a descriptor of a file below a folder.

    Parameters
    ----------
    parts
        Components of its path, from `parts_of`.

    Raises
    ------
    OSError
        The file does not exist, or a link leads out of `root_of` the folder.
    """
    if not _FROM_FOLDERS:
        return _open_checked(stack, folder, parts)
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
    """Return the components of a link's target; raise OSError if it is no link or leads outside."""
    try:
        target = os.readlink(link, dir_fd=folder)
    except OSError:
        raise OSError(errno.ENOTDIR, "no folder") from None
    if target.startswith("/"):
        raise OSError(errno.ELOOP, "a link that leads outside")
    return [part for part in target.split("/") if part not in ("", ".")]


def _open_checked(stack: ExitStack, folder: Path, parts: list[str]) -> int:
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
