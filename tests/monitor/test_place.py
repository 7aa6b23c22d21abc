"""The folder and the sockets: this user's alone, and clean of what killed processes left."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from monitored import ROOT

import vksched as vs
from vksched.monitor import socket_dir

as_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may become another user"
)
STRANGER = 65534


def dead_socket(path: Path) -> None:
    """Leave what a killed process leaves."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as own:
        own.bind(str(path))
    path.chmod(0o600)


def test_folder_and_socket_are_for_this_user_only(runtime_home: Path) -> None:
    own, path = socket_dir.listen(4711, 2)
    with own:
        assert path == runtime_home / "vksched" / "4711.sock"
        assert stat.S_IMODE(os.lstat(path.parent).st_mode) == 0o700
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        assert socket_dir.sockets() == {4711: path}
        with socket_dir.connect(path) as other:
            assert socket_dir.is_mine(other)


def test_without_a_runtime_directory_there_is_one_in_the_folder_for_temporary_files(
    runtime_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_dir, "_system_folder", lambda: None)
    monkeypatch.setattr(tempfile, "tempdir", str(runtime_home))
    path = socket_dir.folder(make=True)
    assert path == runtime_home / f"vksched-{os.geteuid()}"
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o700


def test_a_runtime_directory_that_others_may_write_to_is_not_used(
    runtime_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runtime_home.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert socket_dir.folder().parent == tmp_path


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_is_open_to_others_is_refused(runtime_home: Path, mode: int) -> None:
    (runtime_home / "vksched").mkdir()
    (runtime_home / "vksched").chmod(mode)
    for call in (
        lambda: socket_dir.listen(1, 1),
        socket_dir.sockets,
        lambda: socket_dir.connect(runtime_home / "x"),
    ):
        with pytest.raises(vs.VkschedError, match=r"folder of this user's alone \(mode 700\), got"):
            call()


def test_a_folder_that_is_a_link_is_refused(runtime_home: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (runtime_home / "vksched").symlink_to(tmp_path)
    with pytest.raises(vs.VkschedError, match="got a link"):
        socket_dir.listen(1, 1)


@as_root
def test_a_folder_of_another_user_is_refused(runtime_home: Path) -> None:
    (runtime_home / "vksched").mkdir(mode=0o700)
    os.chown(runtime_home / "vksched", STRANGER, STRANGER)
    with pytest.raises(vs.VkschedError, match=f"got a folder of user {STRANGER} with mode 700"):
        socket_dir.listen(1, 1)


def test_sockets_that_are_links_or_open_to_others_are_refused(runtime_home: Path) -> None:
    own, path = socket_dir.listen(4711, 2)
    with own:
        link = path.parent / "4712.sock"
        link.symlink_to(path)
        with pytest.raises(vs.VkschedError, match="got a link of user"):
            socket_dir.connect(link)
        path.chmod(0o666)
        with pytest.raises(vs.VkschedError, match=r"got a socket of user \d+ with mode 666"):
            socket_dir.connect(path)
    (path.parent / "4713.sock").write_text("no socket")
    (path.parent / "4713.sock").chmod(0o600)
    with pytest.raises(vs.VkschedError, match="got a file of user"):
        socket_dir.connect(path.parent / "4713.sock")


@as_root
def test_another_user_gets_nothing(runtime_home: Path) -> None:
    """Even where modes let somebody in: the other end's user is asked of the system."""
    own, path = socket_dir.listen(4711, 2)
    runtime_home.chmod(0o755)
    path.parent.chmod(0o755)
    path.chmod(0o666)
    code = (
        "import os, socket, sys; os.setgid(65534); os.setuid(65534)\n"
        "own = socket.socket(socket.AF_UNIX); own.connect(sys.argv[1]); own.settimeout(5)\n"
        "print(own.recv(10))"
    )
    command = [sys.executable, "-c", code, str(path)]
    with own, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stranger:
        own.setblocking(True)
        theirs, _ = own.accept()
        with theirs:
            assert not socket_dir.is_mine(theirs)
        assert stranger.communicate(timeout=30)[0] == "b''\n"


@as_root
def test_a_socket_of_another_user_is_not_listened_to(runtime_home: Path) -> None:
    socket_dir.folder(make=True)
    path = runtime_home / "vksched" / "4711.sock"
    dead_socket(path)
    os.chown(path, STRANGER, STRANGER)
    with pytest.raises(vs.VkschedError, match=f"got a socket of user {STRANGER}"):
        socket_dir.connect(path)
    socket_dir.clean()
    assert path.exists(), "it is not ours to remove"


def test_what_killed_processes_left_is_removed(runtime_home: Path) -> None:
    folder = socket_dir.folder(make=True)
    dead_socket(folder / "1.sock")
    dead_socket(folder / "2.new")
    os.utime(folder / "2.new", (0, 0))
    (folder / "3.sock").write_text("no socket")
    own, path = socket_dir.listen(4711, 2)
    with own:
        assert sorted(p.name for p in folder.iterdir()) == ["3.sock", "4711.sock"]
        again, _ = socket_dir.listen(4711, 2)  # its own number, used before by one that was killed
        again.close()
    with pytest.raises(vs.VkschedError, match="no process listens at"):
        socket_dir.connect(path)
    assert not path.exists()


def test_a_process_that_is_about_to_listen_keeps_its_socket(
    runtime_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process starts, and cleans, between the two calls that make a socket."""
    chmod = Path.chmod

    def clean_and_chmod(path: Path, mode: int) -> None:
        socket_dir.clean()
        chmod(path, mode)

    monkeypatch.setattr(Path, "chmod", clean_and_chmod)
    own, path = socket_dir.listen(4711, 2)
    with own, socket_dir.connect(path):
        assert socket_dir.sockets() == {4711: path}


def test_a_path_that_is_too_long_is_one_clear_error(
    runtime_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = runtime_home / ("d" * 60) / ("e" * 40)
    deep.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(vs.VkschedError, match="a path of at most 100 bytes for a socket"):
        socket_dir.listen(1, 1)


def test_systems_without_such_sockets_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "AF_UNIX")
    with pytest.raises(vs.VkschedError, match="needs Unix sockets"):
        socket_dir.folder()


def test_the_module_is_imported_where_there_are_no_such_sockets() -> None:
    code = "import socket, os; del socket.AF_UNIX; import vksched.monitor.socket_dir as p; "
    code += "assert p.available()"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=environ, check=True, timeout=60)
