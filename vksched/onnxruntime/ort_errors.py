"""Errors by two names: a session raises vksched's errors, and each is one of onnxruntime's as well.

`except vs.ModelFormatError` and `except onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph`
both catch a model that is not valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..common.errors import (
    DeviceError,
    DTypeError,
    GraphError,
    IndexOutOfRange,
    ModelFormatError,
    NotOnnx,
    OutOfMemory,
    ShapeError,
    UnsupportedOp,
    VkschedError,
)


class DeviceReset(Exception):
    """Never raised here."""


class EPFail(Exception):
    """A device failed."""


class EngineError(Exception):
    """Never raised here."""


class Fail(Exception):
    """What no other class says."""


class InvalidArgument(Exception):
    """Names or arrays do not fit the model."""


class InvalidGraph(Exception):
    """The model is not valid."""


class InvalidProtobuf(Exception):
    """The bytes are no model."""


class ModelLoadCanceled(Exception):
    """Never raised here."""


class ModelLoaded(Exception):
    """Never raised here."""


class ModelRequiresCompilation(Exception):
    """Never raised here."""


class NoModel(Exception):
    """Never raised here."""


class NoSuchFile(Exception):
    """There is no model file."""


class NotFound(Exception):
    """Never raised here."""


class NotImplemented(Exception):
    """An op or a part of the interface that vksched does not have."""


class RuntimeException(Exception):
    """A device has no memory left."""


class MissingEntry(VkschedError, RuntimeError):
    """Options have no such entry."""


_KINDS: tuple[tuple[type[VkschedError], type[Exception]], ...] = (
    (NotOnnx, InvalidProtobuf),
    (ModelFormatError, InvalidGraph),
    (UnsupportedOp, NotImplemented),
    (OutOfMemory, RuntimeException),
    (DeviceError, EPFail),
    (GraphError, InvalidArgument),
    (ShapeError, InvalidArgument),
    (DTypeError, InvalidArgument),
    (IndexOutOfRange, InvalidArgument),
    (VkschedError, Fail),
)
"""By class of ours what onnxruntime raises; the first that fits counts."""


_classes: dict[tuple[type[VkschedError], type[Exception]], type[VkschedError]] = {}


def both(ours: type[VkschedError], theirs: type[Exception]) -> type[VkschedError]:
    """Return a class that is one of ours and one of onnxruntime's; it shows the name of ours."""
    if issubclass(ours, theirs):
        return ours
    if (ours, theirs) not in _classes:
        body = {"__module__": ours.__module__, "__doc__": ours.__doc__, "__reduce__": _reduce}
        _classes[ours, theirs] = type(ours.__name__, (ours, theirs), body)
    return _classes[ours, theirs]


def _reduce(error: VkschedError) -> tuple[Any, ...]:
    """How pickle keeps an error of two names, whose class no module holds."""
    ours, theirs = type(error).__bases__
    return _make, (ours, theirs, error.args), error.__dict__


def _make(ours: type[VkschedError], theirs: type[Exception], args: tuple[Any, ...]) -> VkschedError:
    return both(ours, theirs)(*args)


@contextmanager
def translated(loading: bool = False) -> Iterator[None]:
    """Raise errors of ours from inside as those of onnxruntime, too. loading: a model is opened;
    what is wrong with a model in a run is a Fail there.
    """
    try:
        yield
    except VkschedError as error:
        theirs = next(kind for ours, kind in _KINDS if isinstance(error, ours))
        if theirs is InvalidGraph and not loading:
            theirs = Fail
        raise named(error, theirs).with_traceback(error.__traceback__) from error.__cause__


def named(error: VkschedError, theirs: type[Exception]) -> VkschedError:
    """Return an error under a second name; itself where it has one already."""
    if any(isinstance(error, kind) for _, kind in _KINDS):
        return error
    twin = both(type(error), theirs)(*error.args)
    twin.__dict__.update(error.__dict__)
    return twin
