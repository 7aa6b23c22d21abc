"""`vksched run --check`: the same model and inputs elsewhere, and how far apart the results are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import VkschedError
from ..types import NDArray
from .feeds import said

if TYPE_CHECKING:
    from ..importers.onnx.model import Model

TOLERANCE = 1e-4
"""How far a float output may be off, relative to its largest magnitude, unless the user says so;
others must be equal.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one output is from what was expected. wrong: what is, if anything."""

    output: str
    largest: float
    relative: float
    wrong: str = ""


def expected_outputs(
    kind: str, path: str, model: Model, inputs: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """Returns what onnxruntime, or for "numpy" the onnx package's evaluator, makes of inputs.

    Raises:
        VkschedError: it is not installed, or does not run the model.
    """
    try:
        found = (_onnxruntime if kind == "onnxruntime" else _evaluator)(path, model, inputs, names)
    except ImportError as error:
        raise VkschedError(
            f"[check] expected the {kind} package, got none; try pip install {kind}, or "
            "--check numpy"
        ) from error
    except VkschedError:
        raise
    except Exception as error:  # of another library, of many types
        raise VkschedError(f"[check] {kind} does not run the model: {said(error)}") from error
    return dict(zip(names, found, strict=True))


def _onnxruntime(
    path: str, model: Model, inputs: Mapping[str, Any], names: Sequence[str]
) -> Sequence[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found: Sequence[Any] = session.run(list(names), dict(inputs))
    return found


def _evaluator(
    path: str, model: Model, inputs: Mapping[str, Any], names: Sequence[str]
) -> Sequence[Any]:
    from onnx import ModelProto
    from onnx.numpy_helper import from_array
    from onnx.reference import ReferenceEvaluator

    whole = ModelProto()
    whole.CopyFrom(model.file.model)
    del whole.graph.initializer[:]
    arrays = model.file.initializers.items()
    whole.graph.initializer.extend(from_array(array, name) for name, array in arrays)
    return list(ReferenceEvaluator(whole).run(list(names), dict(inputs)))


def compare(
    found: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float = TOLERANCE
) -> list[Difference]:
    """Returns the difference of each output, sequences item by item."""
    pairs = [(name, got, expected[name]) for name, got in found.items()]
    return [d for name, got, wanted in pairs for d in _compare(name, got, wanted, tolerance)]


def _compare(name: str, got: Any, wanted: Any, tolerance: float) -> list[Difference]:
    if isinstance(got, list) and isinstance(wanted, (list, tuple)) and len(got) == len(wanted):
        pairs = enumerate(zip(got, wanted, strict=True))
        return [
            d for i, (one, other) in pairs for d in _compare(f"{name}[{i}]", one, other, tolerance)
        ]
    if got is None or wanted is None or isinstance(got, list):
        same = got is None and wanted is None
        return [Difference(name, 0.0, 0.0, "" if same else "another kind of value")]
    one, other = np.asarray(got), np.asarray(wanted)
    if one.shape != other.shape or (one.dtype != other.dtype and one.dtype.kind not in "OU"):
        text = f"{one.dtype}{list(one.shape)}, expected {other.dtype}{list(other.shape)}"
        return [Difference(name, 0.0, 0.0, text)]
    return [_numbers(name, one, other, tolerance)]


def _numbers(name: str, one: NDArray, other: NDArray, tolerance: float) -> Difference:
    if one.dtype.kind in "biuOU":
        count = int(np.sum(one != other))
        wrong = f"{count} of {one.size} elements differ" if count else ""
        far = 0.0
        if count and one.dtype.kind in "iu":
            far = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max())
        return Difference(name, far, 0.0, wrong)
    kind = np.complex128 if one.dtype.kind == "c" else np.float64
    a, b = one.astype(kind), other.astype(kind)
    finite = np.isfinite(a) & np.isfinite(b)
    rest = int(np.sum(~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))))
    largest = float(np.abs(a[finite] - b[finite]).max(initial=0.0))
    scale = float(np.abs(b[finite]).max(initial=0.0))
    relative = largest / scale if scale else largest
    wrong = "" if relative <= tolerance else f"over {tolerance:g} of the largest magnitude"
    if rest:
        wrong = f"{rest} of {a.size} elements are not finite on one side, or differ in that"
    return Difference(name, largest, relative, wrong)
