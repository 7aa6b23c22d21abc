"""Credentials: the shared key of the hosts of one cluster.

    Credentials.make() --save--> one file, mode 600 --copied by its owner--> each host --load-->

Every holder of the file may run graphs on every worker of the cluster; others are refused. It holds
a certificate with its private key, and a secret of 256 bits. With security "tls" both ends present
the certificate and trust no other; with "plain" nothing is encrypted. In both modes each end proves
that it knows the secret; see tls.py. Examples: tests/distributed/test_credentials.py.
"""

from __future__ import annotations

import json
import os
import secrets
import ssl
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ...common.errors import VkschedError
from ...common.schema import SchemaError, Whole, parse, record

SECRET_BYTES = 32
VALID_DAYS = 3650
MAX_BYTES = 1 << 16
"""Maximum size of a file; a valid one has about 1,000 bytes."""
DESCRIPTORS = "/dev/fd"
"""Folder in which systems other than Windows list a process's open files."""
PIPE_BYTES = 1 << 14
"""Minimum capacity of a pipe."""
_FILE = record(format=Whole, secret=str, certificate=str, key=str)
_FORMAT = 1
_REMEDY = "try `vksched cluster key FILE`, which makes one, and copy it to each computer"


@dataclass(frozen=True)
class Credentials:
    """secret: SECRET_BYTES random bytes. certificate, key: in PEM. `repr` shows none of them."""

    secret: bytes = field(repr=False)
    certificate: str = field(repr=False)
    key: str = field(repr=False)

    @staticmethod
    def make() -> Credentials:
        """Return new credentials. Raise VkschedError if the package cryptography is missing."""
        certificate, key = _certificate()
        return Credentials(secrets.token_bytes(SECRET_BYTES), certificate, key)

    def text(self) -> str:
        """Return the contents of a file for `of_text`."""
        data = {"format": _FORMAT, "secret": self.secret.hex()}
        return json.dumps({**data, "certificate": self.certificate, "key": self.key}, indent=1)

    @staticmethod
    def of_text(text: str, where: str = "the text") -> Credentials:
        """Return the credentials in the text of a file. Raise VkschedError if it is invalid."""
        try:
            data = parse(text, _FILE, "it")
            secret = bytes.fromhex(data["secret"])
            if data["format"] != _FORMAT or len(secret) != SECRET_BYTES:
                raise SchemaError(
                    f"it has format {data['format']} and {len(secret)} bytes of secret"
                )
            credentials = Credentials(secret, data["certificate"], data["key"])
            credentials.context(server=False)
        except (ValueError, RecursionError, ssl.SSLError) as error:
            raise VkschedError(
                f"[cluster] expected credentials of a cluster in {where}: {error}; {_REMEDY}"
            ) from None
        return credentials

    def save(self, path: Path) -> None:
        """Write a new file that only this user may read. Raise VkschedError if it exists or cannot
        be written.
        """
        try:
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(number, "w", encoding="utf-8", newline="\n") as file:
                file.write(self.text())
        except FileExistsError:
            raise VkschedError(
                f"[cluster] expected a new file, got {path}, which is there; try another name, or "
                "remove it: then workers with the old file are unreachable"
            ) from None
        except OSError as error:
            raise VkschedError(
                f"[cluster] cannot write {path}: {error.strerror}; try another folder"
            ) from error

    @staticmethod
    def load(path: Path) -> Credentials:
        """Return the credentials of a file.

        Raises
        ------
        VkschedError
            Other users may read the file, or it is missing or invalid.
        """
        try:
            with open(path, encoding="utf-8") as file:
                _require_private(path, os.fstat(file.fileno()))
                text = file.read(MAX_BYTES + 1)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise VkschedError(f"[cluster] cannot read {path}: {why}; {_REMEDY}") from error
        if len(text) > MAX_BYTES:
            raise VkschedError(f"[cluster] expected at most {MAX_BYTES} bytes in {path}")
        return Credentials.of_text(text, str(path))

    def context(self, server: bool) -> ssl.SSLContext:
        """Return a TLS 1.3 context that presents this certificate and trusts no other."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the certificate names the cluster, not a host
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.certificate)
        if server:
            context.num_tickets = 0
        with _as_file(self.certificate) as certificate, _as_file(self.key) as key:
            try:
                context.load_cert_chain(certificate, key)
            # includes ssl's errors; those of a pipe may have no more than a number
            except OSError as error:
                raise ssl.SSLError("its private key is none, or not its certificate's") from error
        return context


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield a path of a text for ssl, which reads only files.

    It is a pipe, so that no private key is written to disk. Windows has no paths of pipes and gets
    a file in the user's own folder.
    """
    data = text.encode("ascii")
    if os.path.isdir(DESCRIPTORS) and len(data) <= PIPE_BYTES:
        read, write = os.pipe()
        try:
            with open(write, "wb") as pipe:  # closes the writer's end
                pipe.write(data)
            yield f"{DESCRIPTORS}/{read}"
        finally:
            os.close(read)
        return
    number, name = tempfile.mkstemp(prefix="vksched-")  # mode 600
    try:
        with open(number, "wb") as file:
            file.write(data)
        yield name
    finally:
        with suppress(OSError):
            os.unlink(name)


def _require_private(path: Path, found: os.stat_result) -> None:
    """Raise if other users may access a file; Windows has no file modes."""
    if not hasattr(os, "geteuid"):
        return
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o077:
        raise VkschedError(
            f"[cluster] expected {path} to be this user's alone (mode 600), got mode "
            f"{stat.S_IMODE(found.st_mode):o} of user {found.st_uid}; try chmod 600 {path}"
        )


def _certificate() -> tuple[str, str]:
    """Return a new certificate and its private key in PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise VkschedError(
            f'[cluster] making keys needs cryptography: {error}; try pip install "vksched[cluster]"'
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "vksched cluster")])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    own = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem).decode(), own.decode()
