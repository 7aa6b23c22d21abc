"""Credentials: whole, or an error that says what to do; nobody else may read them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import clusters
import pytest
from conftest import needs_posix

from vksched.common.errors import VkschedError
from vksched.distributed.wire.credentials import MAX_BYTES, Credentials


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    credentials = clusters.make_credentials()
    credentials.save(tmp_path / "key")
    assert Credentials.load(tmp_path / "key") == credentials


@needs_posix
def test_a_file_is_its_users_alone(tmp_path: Path) -> None:
    path, mask = tmp_path / "key", os.umask(0)
    try:
        clusters.make_credentials().save(path)
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(VkschedError, match="chmod 600"):
        Credentials.load(path)


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("old")
    with pytest.raises(VkschedError, match="expected a new file"):
        clusters.make_credentials().save(tmp_path / "key")
    assert (tmp_path / "key").read_text() == "old"
    with pytest.raises(VkschedError, match="cannot write"):
        clusters.make_credentials().save(tmp_path / "none" / "key")


def broken() -> dict[str, str]:
    """Return texts that are no credentials."""
    good = json.loads(clusters.make_credentials().text())
    return {
        "empty": "",
        "no json": "key",
        "a list": "[]",
        "deep": "[" * 50_000,
        "a missing field": json.dumps({k: v for k, v in good.items() if k != "secret"}),
        "another format": json.dumps({**good, "format": 2}),
        "a short secret": json.dumps({**good, "secret": "00"}),
        "no hexadecimal secret": json.dumps({**good, "secret": "zz" * 32}),
        "no certificate": json.dumps({**good, "certificate": "none"}),
        "no key": json.dumps({**good, "key": "none"}),
        "the key of another": json.dumps({**good, "key": clusters.others().key}),
        "too long": clusters.make_credentials().text() + " " * MAX_BYTES,
    }


def test_what_is_no_credentials_says_so(tmp_path: Path) -> None:
    for text in broken().values():
        path = tmp_path / "key"
        path.write_text(text)
        path.chmod(0o600)
        with pytest.raises(VkschedError, match="expected"):
            Credentials.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(VkschedError, match="it is no text"):
        Credentials.load(path)
    with pytest.raises(VkschedError, match="cannot read"):
        Credentials.load(tmp_path / "none")


def test_secrets_are_not_shown() -> None:
    credentials = clusters.make_credentials()
    assert credentials.secret.hex() not in repr(credentials)
    assert repr(credentials.secret) not in repr(credentials)
    assert "PRIVATE" not in repr(credentials)
    assert credentials.secret != clusters.others().secret


def test_nothing_is_left_in_the_folder_of_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = clusters.make_credentials()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    credentials.context(server=True)
    assert list(tmp_path.iterdir()) == []


def test_making_them_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(VkschedError, match=r"vksched\[cluster\]"):
        Credentials.make()


@needs_posix
def test_no_file_ever_holds_a_private_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts are made of pipes: there is nothing on a disk while they are made, or after."""

    def never(*about: object, **more: object) -> None:
        raise AssertionError("a file was made")

    monkeypatch.setattr("tempfile.mkstemp", never)
    files = len(os.listdir("/dev/fd"))
    for server in (False, True):
        assert clusters.make_credentials().context(server) is not None
    assert len(os.listdir("/dev/fd")) == files
