"""The exception tree: one root, so that a caller can catch everything of ours with one clause."""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterable


class VkschedError(Exception):
    """Root of every error that vksched raises on purpose."""


class ShapeError(VkschedError, ValueError):
    """Shapes do not fit the op, or an input array does not fit the graph."""


class DTypeError(VkschedError, TypeError):
    """Element types do not fit the op, or an input array does not fit the graph."""


class UnsupportedOp(VkschedError, NotImplementedError):
    """A device cannot run this op with these types; the message is the reason shown to the user."""


class PlanError(VkschedError):
    """No valid plan exists, or a plan breaks one of its own invariants."""


class GraphError(VkschedError, ValueError):
    """A graph is malformed: unknown names, duplicate names, an operand that comes too late."""


class GradientError(VkschedError, ValueError):
    """A gradient is asked for that does not exist, or whose rule is not known."""


class ShaderError(VkschedError):
    """A shader is missing, stale, or was refused by a driver."""


class ModelFormatError(VkschedError, ValueError):
    """A model file cannot be read."""


class NotOnnx(ModelFormatError):
    """Bytes do not parse as an ONNX model at all."""


class IndexOutOfRange(VkschedError, IndexError):
    """A kernel met an index outside the axis it indexes."""


class SamplingError(VkschedError, ValueError):
    """A number of `Sampling` is out of its range, or scores are none to choose a token by."""


class NotPicklable(VkschedError, TypeError):
    """An object that belongs to one process is pickled or copied."""


class RunCancelled(VkschedError):
    """An observer stopped the run."""


class RunAborted(VkschedError):
    """The rest of the plan gave a run up, as something failed on another computer."""


class DeviceError(VkschedError, RuntimeError):
    """A device is absent, cannot be opened, or failed.

    device: the name of the device to blame, "" where that is not known. host: where another
    computer is to blame, its name; device is "" then. during: what it was doing for a compiled
    graph then, in words.
    """

    device: str = ""
    host: str = ""
    during: str = ""


class DeviceLost(DeviceError):
    """The driver reported the device as lost, or its results cannot be trusted any more."""


class HostLost(DeviceLost):
    """A computer of the plan does not answer any more, and all its devices with it; see `host`."""


class OutOfMemory(DeviceError):
    """An allocation failed, or a plan needs more memory than the device has free.

    holder: the name of the device that holds a state and has no memory for its graph beside it; ""
    where a graph may go elsewhere, or could nowhere.
    """

    holder: str = ""


class DeviceTimeout(DeviceError):
    """A submission did not finish within the time allowed."""


class StateLost(DeviceError):
    """A state tensor was on a device that failed, and there is no good copy of it."""


def call_text(names: Iterable[str]) -> str:
    """Return how `run` is called with inputs of these names, as Python that runs."""
    given = list(names)
    if all(map(_is_name, given)):
        return f"run({', '.join(f'{name}=...' for name in given)})"
    return f"run(**{dict_text(given)})"


def dict_text(names: Iterable[str]) -> str:
    """Return a dict with these keys, as Python that runs: {"x": ...}."""
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: ..." for name in names) + "}"


def cast_text(name: str, dtype: object) -> str:
    """Return how an input is converted, as Python that runs."""
    return f"{name if _is_name(name) else 'array'}.astype({str(dtype)!r})"


def close_text(name: str, known: Iterable[str]) -> str:
    """Return how an error about an unknown name ends: "; close: batch", "" where nothing is close.
    Capitals and small letters count as the same.
    """
    from difflib import get_close_matches

    folded = {each.casefold(): each for each in known}
    close = [folded[each] for each in get_close_matches(name.casefold(), sorted(folded), 3)]
    return f"; close: {', '.join(close)}" if close else ""


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
