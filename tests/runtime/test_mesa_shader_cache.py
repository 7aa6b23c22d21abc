"""The shader cache of Mesa where there is no room: off, with one warning, not the end of the
process.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import needs_posix, vulkan_names

from vksched.runtime.vulkan import mesa_shader_cache
from vksched.runtime.vulkan.mesa_shader_cache import FOLDER, OFF, settle_shader_cache
from vksched.storage import cache_folder
from vksched.storage.cache_folder import optional_write, room_error

pytestmark = [
    needs_posix,
    pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no room is reserved here"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable is set, and nothing was told."""
    for name in (OFF, FOLDER, *mesa_shader_cache.OLD_NAMES):
        monkeypatch.setenv(name, "")  # which puts back what was there, also where code sets it
        del os.environ[name]
    monkeypatch.setattr(cache_folder, "_full", set())
    cache_folder._warn_once.cache_clear()
    yield
    os.environ.pop(OFF, None)


def full(*_: object) -> None:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def test_a_folder_with_room_keeps_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "there"))
    assert not settle_shader_cache() and not settle_shader_cache(tries=True)
    assert OFF not in os.environ and not caplog.messages and not list(tmp_path.iterdir())


def test_an_index_gets_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    index = tmp_path / "mesa_shader_cache" / "index"
    index.parent.mkdir()
    with index.open("wb") as file:
        file.truncate(1 << 20)
    assert not settle_shader_cache()
    about = index.stat()
    assert about.st_blocks * 512 >= about.st_size == 1 << 20


@pytest.mark.parametrize("index", [True, False])
def test_without_room_the_cache_is_off_and_one_warning_says_so(
    index: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if index:
        (tmp_path / "mesa_shader_cache").mkdir()
        (tmp_path / "mesa_shader_cache" / "index").write_bytes(bytes(9))
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert settle_shader_cache(tries=True) and os.environ[OFF] == "true"
    assert not settle_shader_cache(tries=True)
    with optional_write(tmp_path / "vksched"):
        full()
    (text,) = caplog.messages
    assert f"expected room in {tmp_path}, got none ({os.strerror(errno.EDQUOT)})" in text
    assert "the shader cache of Mesa is off" in text and f"{FOLDER}=<folder>" in text


def test_a_disk_with_little_room_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(mesa_shader_cache, "MIN_BYTES", 1 << 60)
    assert settle_shader_cache() and "MiB are free" in caplog.text


def test_a_folder_that_cannot_be_created_has_no_cache_and_no_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(FOLDER, "/proc/none/cache")  # Mesa would print that it cannot be made
    assert settle_shader_cache() and os.environ[OFF] == "true" and not caplog.messages


def test_what_the_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, "/proc/none/cache")
    monkeypatch.setenv(OFF, "false")
    assert not settle_shader_cache() and os.environ[OFF] == "false"


def test_caches_go_without_what_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
        with optional_write(tmp_path):
            raise OSError(number, os.strerror(number))
    (text,) = caplog.messages  # of the first; that others may not write there is no matter of room
    assert "computed again by each start; try to free some, or VKSCHED_CACHE=<folder>" in text
    with pytest.raises(ValueError), optional_write(tmp_path):
        raise ValueError
    assert room_error(tmp_path, 1 << 12) is None and not list(tmp_path.iterdir())


FULL_DISK = """
import os, subprocess, sys
folder, names = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
try:
    with open(folder + "/fill", "wb", buffering=0) as file:
        file.write(bytes(1 << 17))
except OSError:
    pass
import numpy as np
import vksched as vs
x = vs.input("x", (4, 4))
with vs.Scheduler(names.split(","), tune=0.01) as sched:
    print((sched.compile(x @ x)(x=np.eye(4, dtype=np.float32)) == np.eye(4)).all())
"""


@pytest.mark.own_devices
@pytest.mark.skipif(not vulkan_names(), reason="no Vulkan device here")
def test_a_full_disk_does_not_end_the_process(tmp_path: Path) -> None:
    """In a namespace of its own, where it is mounted."""
    alone = ["unshare", "--mount", "--map-root-user"]
    try:
        subprocess.run([*alone, "mount", "-t", "tmpfs", "tmpfs", tmp_path], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nothing can be mounted here")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MESA_")}
    environ |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "VKSCHED_SOFTWARE": "1"}
    environ.pop("VKSCHED_CACHE", None)
    done = subprocess.run(
        [*alone, sys.executable, "-c", FULL_DISK, str(tmp_path), ",".join(vulkan_names())],
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done
    assert done.stderr.count("got none") == 1 and "the shader cache of Mesa is off" in done.stderr
