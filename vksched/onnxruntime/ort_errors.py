"""Errors with two base classes: vksched's errors, raised as errors of onnxruntime, too.

`except vs.ModelFormatError` and `except onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph`
both catch an invalid model.
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
    """Any other failure."""


class InvalidArgument(Exception):
    """Names or arrays do not fit the model."""


class InvalidGraph(Exception):
    """The model is invalid."""


class InvalidProtobuf(Exception):
    """The bytes are not a model."""


class ModelLoadCanceled(Exception):
    """Never raised here."""


class ModelLoaded(Exception):
    """Never raised here."""


class ModelRequiresCompilation(Exception):
    """Never raised here."""


class NoModel(Exception):
    """Never raised here."""


class NoSuchFile(Exception):
    """The model file does not exist."""


class NotFound(Exception):
    """Never raised here."""


class NotImplemented(Exception):
    """An unsupported op or part of the interface."""


class RuntimeException(Exception):
    """A device is out of memory."""


class MissingEntry(VkschedError, RuntimeError):
    """The options have no such entry."""


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
"""onnxruntime's exception for each class of vksched; the first match counts."""


_classes: dict[tuple[type[VkschedError], type[Exception]], type[VkschedError]] = {}


def both(ours: type[VkschedError], theirs: type[Exception]) -> type[VkschedError]:
    """Return a class derived from both arguments, with the name of the first."""
    if issubclass(ours, theirs):
        return ours
    if (ours, theirs) not in _classes:
        body = {"__module__": ours.__module__, "__doc__": ours.__doc__, "__reduce__": _reduce}
        _classes[ours, theirs] = type(ours.__name__, (ours, theirs), body)
    return _classes[ours, theirs]


def _reduce(error: VkschedError) -> tuple[Any, ...]:
    """Support pickling of an error whose class is not a module attribute."""
    ours, theirs = type(error).__bases__
    return _make, (ours, theirs, error.args), error.__dict__


def _make(ours: type[VkschedError], theirs: type[Exception], args: tuple[Any, ...]) -> VkschedError:
    return both(ours, theirs)(*args)


@contextmanager
def translated(loading: bool = False) -> Iterator[None]:
    """Re-raise vksched's errors as errors of onnxruntime, too.

    Parameters
    ----------
    loading
        A model is being loaded; in a run, faults of the model are a Fail in onnxruntime.
    """
    try:
        yield
    except VkschedError as error:
        theirs = next(kind for ours, kind in _KINDS if isinstance(error, ours))
        if theirs is InvalidGraph and not loading:
            theirs = Fail
        raise named(error, theirs).with_traceback(error.__traceback__) from error.__cause__


def named(error: VkschedError, theirs: type[Exception]) -> VkschedError:
    """Return an error with a second base class, or the error itself if it has one."""
    if any(isinstance(error, kind) for _, kind in _KINDS):
        return error
    twin = both(type(error), theirs)(*error.args)
    twin.__dict__.update(error.__dict__)
    return twin
