"""Error codec: errors as messages between hosts.

A host reports only its own failures: its errors blame its own devices or the whole host, regardless
of the names in them. Only exceptions of vksched are decoded by class; all others become a
DeviceError that names the class. Examples: tests/distributed/test_channel.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...common import errors
from ...common.errors import DeviceError, HostLost, VkschedError
from ...common.formatting import printable
from ...common.schema import SchemaError
from ...topology.host_names import host_of, on
from .messages import MAX_FIELD_BYTES, Fields

MAX_TEXT = MAX_FIELD_BYTES // 16


def _tree(kind: type[VkschedError]) -> Iterator[type[VkschedError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)


_KINDS = {kind.__name__: kind for kind in _tree(VkschedError) if kind.__module__ == errors.__name__}


def fields_of(error: BaseException) -> Fields:
    """Return an error as the fields of a message."""
    known = type(error).__name__ in _KINDS
    text = str(error) if known else f"[cluster] {type(error).__name__}: {error}"
    return {
        "error": type(error).__name__ if known else DeviceError.__name__,
        "text": text[:MAX_TEXT],
        "device": getattr(error, "device", ""),
        "host": getattr(error, "host", ""),
    }


def copy_error(error: HostLost) -> HostLost:
    """Return a copy of `error`, so that each recipient raises its own instance."""
    copy = HostLost(*error.args)
    copy.host = error.host
    return copy


def error_of(fields: Fields, host: str) -> VkschedError:
    """Return the error of a message. host: sender, "" for a driver."""
    error = _KINDS.get(fields["error"], DeviceError)(printable(fields["text"]))
    if isinstance(error, DeviceError) and host:
        device = fields["device"]
        full = device if "/" in device else on(host, device)
        own = bool(device) and host_of(full) == host
        error.device = full if own else ""
        error.host = host if fields["host"] or (device and not own) else ""
    return error


@contextmanager
def refusing(host: str) -> Iterator[None]:
    """Blame a worker for its errors about a part, which is valid because the driver produced it.

    Otherwise no host would be blamed, and the next plan would fail in the same way.
    """
    try:
        yield
    except DeviceError:
        raise
    except (VkschedError, SchemaError) as error:
        raise DeviceError(f"[cluster] {host} refuses its host plan: {error}") from error
