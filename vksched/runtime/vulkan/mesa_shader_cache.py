"""Mesa's shader cache: disable it if its folder has no space left.

Mesa maps a sparse index file: on a full disk the first access kills the process with SIGBUS. If the
folder cannot be created, Mesa prints a message. Therefore the blocks of the index are allocated
before drivers are loaded, or the free space is checked. Without space the cache is disabled for
this process and its children.

    settle_shader_cache() -> drivers -> settle_shader_cache(): allocates a new index

Examples: tests/runtime/test_mesa_shader_cache.py.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...storage.cache_folder import existing, room_error, warn_full

OFF = "MESA_SHADER_CACHE_DISABLE"
FOLDER = "MESA_SHADER_CACHE_DIR"
OLD_NAMES = ("MESA_GLSL_CACHE_DISABLE", "MESA_GLSL_CACHE_DIR")
INDEX_BYTES = 2 << 20
"""More than the size of an index: 65,536 keys of 20 bytes."""
MIN_BYTES = 16 << 20
"""The cache is disabled below this free space, because other programs write to the disk, too."""


def settle_shader_cache(tries: bool = False) -> bool:
    """Disable the cache if there is no space for it, with one warning, or if its folder cannot be
    created; return True if this call disabled it. Settings of the user have precedence.

    Parameters
    ----------
    tries
        True to try an allocation if there is no index yet, which detects quotas; it may take 4 ms.
    """
    if not hasattr(os, "posix_fallocate") or OFF in os.environ or OLD_NAMES[0] in os.environ:
        return False
    for folder in _folders():
        error = _error_of(folder, tries)
        if error is not None:
            os.environ[OFF] = "true"
            warn_full(
                folder, error, ", and the shader cache of Mesa is off", f" and {FOLDER}=<folder>"
            )
            return True
    return False


def _folders() -> Iterator[Path]:
    """Yield the possible folders of the cache: versions of Mesa differ in the use of HOME."""
    for name in (FOLDER, OLD_NAMES[1], "XDG_CACHE_HOME"):
        if os.environ.get(name):
            yield Path(os.environ[name]).absolute()
            return
    import pwd

    homes = [os.environ.get("HOME", "")]
    with suppress(KeyError):
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    yield from dict.fromkeys(Path(home).absolute() / ".cache" for home in homes if home)


def _error_of(folder: Path, tries: bool) -> OSError | None:
    try:
        file = os.open(folder / "mesa_shader_cache" / "index", os.O_RDWR)
    except OSError:
        return (room_error(folder, INDEX_BYTES) if tries else None) or _disk_error(folder)
    try:
        os.posix_fallocate(file, 0, os.fstat(file).st_size)
    except OSError as error:
        return error if error.errno in (errno.ENOSPC, errno.EDQUOT) else None
    finally:
        os.close(file)
    return None


def _disk_error(folder: Path) -> OSError | None:
    at = existing(folder)
    about = os.statvfs(at)
    if about.f_flag & os.ST_RDONLY:
        return OSError(errno.EROFS, os.strerror(errno.EROFS))
    if not about.f_blocks:  # a virtual file system, as /proc
        return OSError(errno.EACCES, os.strerror(errno.EACCES))
    if about.f_bavail * about.f_frsize < MIN_BYTES:
        return OSError(errno.ENOSPC, f"less than {MIN_BYTES >> 20} MiB are free")
    if not os.access(at, os.W_OK):
        return OSError(errno.EACCES, os.strerror(errno.EACCES))
    return None
