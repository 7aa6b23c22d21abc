"""The address of a Ray cluster: what answers there, and who may have noted it. No Ray is needed."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import needs_posix

from vksched.cluster.ray_address import HEAD_BYTES, SETTINGS, find_ray
from vksched.common.errors import DeviceError
from vksched.storage import cache_folder

pytestmark = needs_posix


@pytest.fixture
def server() -> Iterator[str]:
    """The address of something that answers as a server of gRPC does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with suppress(OSError), listening.accept()[0] as driver:  # nobody may have called
                driver.recv(64)
                driver.sendall(bytes([0, 0, 0, SETTINGS]) + bytes(HEAD_BYTES - 4))
                driver.recv(64)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which Ray notes the cluster of this computer."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray" / "ray_current_cluster"


def test_ray_gets_the_address_that_was_read(noted: Path, server: str) -> None:
    noted.write_text(f"{server}\n")
    noted.chmod(0o644)
    assert find_ray("auto") == server


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_file_that_others_may_write_is_refused(
    noted: Path, server: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_folder, "_is_own_group", lambda _: False)
    noted.write_text(server)
    noted.chmod(mode)
    with pytest.raises(DeviceError, match=f"only you or root may write.*mode {mode:o}.*auto"):
        find_ray("auto")


def test_a_file_of_another_user_is_refused(
    noted: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted.write_text(server)
    owner, about = 12345, os.fstat
    monkeypatch.setattr(
        os, "fstat", lambda fd: os.stat_result([*about(fd)[:4], owner, *about(fd)[5:10]])
    )
    with pytest.raises(DeviceError, match="got one of user 12345"):
        find_ray("auto")


def test_without_a_file_ray_looks(noted: Path) -> None:
    assert find_ray("auto") == "auto"


def test_a_link_is_refused_as_ray_would_follow_it(noted: Path, server: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(server)
    noted.symlink_to(tmp_path / "other")
    with pytest.raises(DeviceError, match="only you or root may write.*auto"):
        find_ray("auto")


def test_a_file_that_is_no_text_is_refused(noted: Path) -> None:
    noted.write_bytes(b"\xff")
    noted.chmod(0o600)
    with pytest.raises(DeviceError, match="only you or root may write"):
        find_ray("auto")


def test_an_address_that_the_user_gives_needs_no_file(noted: Path, server: str) -> None:
    assert find_ray(server) == server


def test_where_nothing_answers_there_is_no_ray(noted: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    noted.write_text(f"127.0.0.1:{port}")
    noted.chmod(0o600)
    with pytest.raises(DeviceError, match=f"'auto', which is 127.0.0.1:{port}"):
        find_ray("auto")
