"""The cache folder: this user's alone, or not used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from conftest import needs_posix

from vksched.storage import cache_folder
from vksched.storage.cache_folder import default_folder, folder_of, make_folder
from vksched.storage.disk_cache import DiskCache, read_whole

pytestmark = needs_posix


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the user named, which is not there yet."""
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path / "cache"))
    cache_folder._warn_once.cache_clear()
    return tmp_path / "cache"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_and_files_are_created_for_this_user_alone(named: Path) -> None:
    before = os.umask(0)
    try:
        make_folder(named / "plans" / "new")
        DiskCache(named / "plans" / "new", "test").put("a.json", b"{}")
    finally:
        os.umask(before)
    assert [mode_of(p) for p in (named, named / "plans", named / "plans" / "new")] == [0o700] * 3
    assert mode_of(named / "plans" / "new" / "a.json") == 0o600
    assert default_folder() == named
    make_folder(named / "plans")  # again


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_a_folder_where_others_write_is_not_used(
    named: Path, mode: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_folder, "_is_own_group", lambda _: False)
    named.mkdir()
    named.chmod(mode)
    assert default_folder() is None is default_folder()
    (text,) = caplog.messages  # once
    assert f"yours alone, got mode {mode:o}" in text and "chmod 700" in text
    named.chmod(0o755)
    assert default_folder() == named


def test_a_group_of_this_user_alone_may_write(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grp, pwd = pytest.importorskip("grp"), pytest.importorskip("pwd")
    named.mkdir()
    named.chmod(0o775)
    user, group = pwd.getpwuid(os.geteuid()).pw_name, named.stat().st_gid
    for name, members, is_own in ((user, [], True), (user, ["eve"], False), ("all", [], False)):
        found = grp.struct_group((name, "x", group, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _, found=found: found)
        cache_folder._is_own_group.cache_clear()
        assert (default_folder() == named) == is_own
    cache_folder._is_own_group.cache_clear()


def test_a_folder_of_another_user_is_not_used(
    named: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    named.mkdir(0o700)
    uid = os.geteuid()
    about = named.stat()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    stranger = os.stat_result([*about[:4], uid + 2, *about[5:10]])
    monkeypatch.setattr(Path, "stat", lambda *_, **__: stranger)
    assert default_folder() is None
    assert f"one of user {uid + 2}" in caplog.text


def test_a_file_in_place_of_a_folder_is_reported(named: Path) -> None:
    named.write_text("")
    with pytest.raises(OSError, match="File exists|folder, got a file|Not a directory"):
        make_folder(named)


def test_a_folder_that_is_not_there_is_a_place(named: Path) -> None:
    assert default_folder() == named


def test_the_users_own_folder_of_an_older_version_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VKSCHED_CACHE", raising=False)
    monkeypatch.setattr(
        cache_folder.platformdirs, "user_cache_path", lambda *_, **__: tmp_path / "own"
    )
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o777)
    assert default_folder() == tmp_path / "own"
    assert mode_of(tmp_path / "own") == 0o700


def test_folders_inside_that_others_could_write_are_taken_back(named: Path) -> None:
    (named / "steps").mkdir(parents=True)
    named.chmod(0o755)
    (named / "steps").chmod(0o777)
    assert folder_of("steps") == named / "steps" and mode_of(named / "steps") == 0o700
    assert folder_of("layers") == named / "layers"
    named.chmod(0o777)
    assert folder_of("steps") is None


def test_folders_inside_of_another_user_are_not_used(
    named: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (named / "steps").mkdir(parents=True)
    about, own = (named / "steps").stat(), named.stat()
    stranger = os.stat_result([*about[:4], os.geteuid() + 2, *about[5:10]])
    monkeypatch.setattr(Path, "stat", lambda path, **_: stranger if path.name == "steps" else own)
    assert folder_of("steps") is None and folder_of("layers") is not None
    assert f"one of user {os.geteuid() + 2}" in caplog.text


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o602])
def test_files_that_others_may_write_are_not_read(
    named: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are of an older version, or were put there while the folder was open."""
    monkeypatch.setattr(cache_folder, "_is_own_group", lambda _: False)
    make_folder(named)
    cache = DiskCache(named, "test")
    cache.put("x", b"one")
    assert read_whole(named / "x") == b"one"
    (named / "x").chmod(mode)
    with pytest.raises(PermissionError, match=f"yours alone, got mode {mode:o}"):
        read_whole(named / "x")
    cache.put("x", b"two")
    assert read_whole(named / "x") == b"two"
