"""Exception classes, with one root, and the hints that error messages end with."""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterable


class VkschedError(Exception):
    """Base class of all errors that vksched raises."""


class ShapeError(VkschedError, ValueError):
    """The shapes of operands or input arrays are invalid."""


class DTypeError(VkschedError, TypeError):
    """The element types of operands or input arrays are invalid."""


class UnsupportedOp(VkschedError, NotImplementedError):
    """A device does not support an op with these types; the message is the reason."""


class PlanError(VkschedError):
    """No valid plan exists, or a plan violates an invariant."""


class GraphError(VkschedError, ValueError):
    """A graph is malformed, e.g. unknown or duplicate names, or operands after their users."""


class GradientError(VkschedError, ValueError):
    """A requested gradient does not exist or has no rule."""


class ShaderError(VkschedError):
    """A shader is missing or stale, or a driver rejected it."""


class ModelFormatError(VkschedError, ValueError):
    """A model file cannot be read."""


class NotOnnx(ModelFormatError):
    """Bytes cannot be parsed as an ONNX model."""


class IndexOutOfRange(VkschedError, IndexError):
    """A kernel read an index outside of the indexed axis."""


class SamplingError(VkschedError, ValueError):
    """A parameter of `Sampling` is out of range, or logits are invalid."""


class MessageError(VkschedError, ValueError):
    """A message of a conversation, or a tool, is invalid or not supported by the chat template.

    Attributes
    ----------
    field
        The invalid field, for example "messages[2].content".
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"[chat] {field}: {message}")
        self.field = field


class GrammarError(VkschedError, ValueError):
    """A grammar or schema is invalid, or exceeds a limit before or during the answer.

    Attributes
    ----------
    field
        The field of the request that has the grammar; None if it is not known.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class QueueFull(VkschedError):
    """An inference engine's queue of requests is full.

    Attributes
    ----------
    retry_after_s
        The time after which a new attempt may succeed, in seconds, estimated from running requests.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineError(VkschedError):
    """A step of an inference engine failed unexpectedly; `__cause__` is the error."""


class NotPicklable(VkschedError, TypeError):
    """An object that belongs to one process was pickled or copied."""


class RunCancelled(VkschedError):
    """A callback cancelled the run."""


class RunAborted(VkschedError):
    """Another host aborted the run after a failure."""


class DeviceError(VkschedError, RuntimeError):
    """A device is missing, cannot be opened, or failed.

    Attributes
    ----------
    device
        Name of the failed device; "" if it is unknown.
    host
        Name of the failed host; `device` is "" then.
    during
        Description of the operation that failed in a compiled graph.
    """

    device: str = ""
    host: str = ""
    during: str = ""


class DeviceLost(DeviceError):
    """The driver reported the device as lost, or its results are unreliable."""


class HostLost(DeviceLost):
    """A host of the plan, with all its devices, does not respond; see `host`."""


class OutOfMemory(DeviceError):
    """An allocation failed, or a plan needs more memory than a device has free.

    Attributes
    ----------
    holder
        Name of the device that holds a state and has no memory left for its graph; "" if the graph
        may run on another device, or on none.
    """

    holder: str = ""


class DeviceTimeout(DeviceError):
    """A submission did not finish before its timeout."""


class StateLost(DeviceError):
    """A state was on a failed device and has no valid copy."""


DECODE_ERRORS = (
    *(VkschedError, ValueError, LookupError, TypeError, AttributeError, AssertionError),
    *(ArithmeticError, RecursionError, MemoryError),
)
"""Errors of decoding untrusted data that is damaged or has inconsistent values."""


def call_text(names: Iterable[str]) -> str:
    """Return a call of `run` with inputs of these names, as Python code."""
    items = list(names)
    if all(map(_is_name, items)):
        return f"run({', '.join(f'{name}=...' for name in items)})"
    return f"run(**{dict_text(items)})"


def dict_text(names: Iterable[str]) -> str:
    """Return a dict with these keys as Python code: {"x": ...}."""
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: ..." for name in names) + "}"


def cast_text(name: str, dtype: object) -> str:
    """Return the conversion of an input to another dtype, as Python code."""
    return f"{name if _is_name(name) else 'array'}.astype({str(dtype)!r})"


def close_text(name: str, known: Iterable[str]) -> str:
    """Return a hint with similar names, "; close: batch", or "" without one. Case is ignored."""
    from difflib import get_close_matches

    folded = {each.casefold(): each for each in known}
    close = [folded[each] for each in get_close_matches(name.casefold(), sorted(folded), 3)]
    return f"; close: {', '.join(close)}" if close else ""


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
