"""Ops of ai.onnx.ml that the CPU evaluates: ops on strings and maps, and ops without a vksched op.

They replace the ops of the onnx package's evaluator, some of which are wrong or missing. Results
equal those of onnxruntime: tests/importers/test_onnx_classical.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from ....common.dtypes import NDArray
from .string_ops import number_of, whole_of

ML = "ai.onnx.ml"
Results = tuple[Any, ...]


class _Classical(OpRun):
    """An op whose attributes are those of its node, without defaults."""

    op_domain = ML

    def _run(self, *operands: Any, **_: Any) -> Results:
        attrs = {a.name: getattr(self, a.name) for a in self.onnx_node.attribute}
        return (self.compute(attrs, *operands),)

    def compute(self, attrs: Mapping[str, Any], *operands: Any) -> Any:
        raise NotImplementedError


def _looked_up(x: NDArray, table: Mapping[Any, Any], default: Any, dtype: Any) -> NDArray:
    """Return the table's value for each element."""
    found = [table.get(_key(key), default) for key in np.asarray(x).reshape(-1).tolist()]
    out = np.empty(len(found), dtype)
    out[:] = found
    return out.reshape(np.shape(x))


_NAN = "not a number"


def _key(value: Any) -> Any:
    """Return a value as a table key: all NaN are equal."""
    value = value.item() if isinstance(value, np.generic) else value
    return (_NAN,) if isinstance(value, float) and math.isnan(value) else value


class LabelEncoder(_Classical):
    """Map keys to values; of equal keys the first one counts."""

    def compute(self, attrs: Mapping[str, Any], *operands: Any) -> Any:
        (x,) = operands
        if "classes_strings" in attrs:  # version 1
            names = attrs["classes_strings"]
            if np.asarray(x).dtype.kind in "OUS":
                numbers = {name: i for i, name in enumerate(names)}
                return _looked_up(x, numbers, attrs.get("default_int64", -1), np.int64)
            default = attrs.get("default_string", "_Unused")
            return _looked_up(x, dict(enumerate(names)), default, object)
        keys, _, _ = _column(attrs, "keys")
        values, default, dtype = _column(attrs, "values")
        if len(keys) != len(values):
            raise ValueError(f"expected as many keys as values, got {len(keys)} and {len(values)}")
        table: dict[Any, Any] = {}
        for key, value in zip(keys, values, strict=True):
            table.setdefault(_key(key), value)
        if np.asarray(x).dtype == np.float32:  # keys that are not a tensor are float32, too
            table = {float(np.float32(k)) if isinstance(k, float) else k: table[k] for k in table}
        return _looked_up(x, table, default, dtype)


_KINDS: dict[str, tuple[str, Any, Any]] = {
    "strings": ("default_string", "_Unused", object),
    "int64s": ("default_int64", -1, np.int64),
    "floats": ("default_float", -0.0, np.float32),
}
"""Kinds of keys and values: the attribute of their default, the default, and the numpy dtype."""


def _column(attrs: Mapping[str, Any], name: str) -> tuple[Sequence[Any], Any, Any]:
    """Return the keys or values, the default value, and their dtype."""
    tensor, default = attrs.get(f"{name}_tensor"), attrs.get("default_tensor")
    if tensor is not None:
        letter = tensor.dtype.kind
        kind = "strings" if letter in "OUS" else "floats" if letter == "f" else "int64s"
        attribute, standard, dtype = _KINDS[kind]
        items = tensor.reshape(-1).tolist()
        if default is not None:
            standard = default.reshape(-1).tolist()[0]
        elif attribute in attrs:
            standard = attrs[attribute]
        return items, standard, dtype if kind == "strings" else tensor.dtype
    for kind, (attribute, standard, dtype) in _KINDS.items():
        if f"{name}_{kind}" in attrs:
            return attrs[f"{name}_{kind}"], attrs.get(attribute, standard), dtype
    raise ValueError(f"expected {name}_strings, {name}_int64s, {name}_floats or {name}_tensor")


class CategoryMapper(_Classical):
    """Map names to numbers, or numbers to names."""

    def compute(self, attrs: Mapping[str, Any], *operands: Any) -> Any:
        (x,) = operands
        numbers, names = attrs.get("cats_int64s", ()), attrs.get("cats_strings", ())
        if len(numbers) != len(names):
            raise ValueError(f"expected as many numbers as names, got {len(numbers)}, {len(names)}")
        if np.asarray(x).dtype.kind in "OUS":
            table: dict[Any, Any] = dict(zip(names, numbers, strict=True))
            return _looked_up(x, table, attrs.get("default_int64", -1), np.int64)
        table = dict(zip(numbers, names, strict=True))
        return _looked_up(x, table, attrs.get("default_string", "_Unused"), object)


class OneHotEncoder(_Classical):
    """One-hot encode categories along a new last axis."""

    def compute(self, attrs: Mapping[str, Any], *operands: Any) -> Any:
        x = np.asarray(operands[0])
        text = x.dtype.kind in "OUS"
        names = attrs.get("cats_strings", ()) if text else attrs.get("cats_int64s", ())
        count = len(attrs.get("cats_int64s", ()) or attrs.get("cats_strings", ()))
        places = {name: i for i, name in enumerate(names)}
        with np.errstate(all="ignore"):
            keys = x if text else x.astype(np.int64)
        found = _looked_up(keys, places, -1, np.int64)
        if not attrs.get("zeros", 1) and (found < 0).any():
            raise ValueError("a category that is not among those of the node, and zeros is 0")
        return (found[..., None] == np.arange(count)).astype(np.float32)


class ArrayFeatureExtractor(_Classical):
    """Select columns of the last axis; a one-dimensional input becomes a row."""

    def compute(self, attrs: Mapping[str, Any], *operands: Any) -> Any:
        x, places = (np.asarray(a) for a in operands)
        at = places.reshape(-1)
        if at.size and not 0 <= at.min() <= at.max() < x.shape[-1]:
            raise ValueError(f"expected indices below {x.shape[-1]}, got {at.min()}..{at.max()}")
        found = x[..., at]
        return found if x.ndim > 1 else found[None]


# -- maps ----------------------------------------------------------------------------------------

_NUMPY: dict[type, Any] = {float: np.float32, int: np.int64, str: object}
"""Value dtypes of maps that the model creates."""


class DictVectorizer(_Classical):
    """Return a row with the map's value for each entry of a vocabulary, 0 or "" if it is
    missing.
    """

    def compute(self, attrs: Mapping[str, Any], *operands: Any) -> Any:
        (found,) = operands
        words = attrs.get("string_vocabulary") or attrs.get("int64_vocabulary") or ()
        dtype = getattr(found, "dtype", None) or _NUMPY[type(next(iter(found.values()), 0.0))]
        empty = "" if np.dtype(dtype).kind == "O" else 0
        return np.array([[found.get(word, empty) for word in words]], dtype)


class CastMap(_Classical):
    """Return a row with the values of a map, in the order of its keys or at the positions they
    name.
    """

    def compute(self, attrs: Mapping[str, Any], *operands: Any) -> Any:
        (found,) = operands
        cast, empty, dtype = _CASTS[attrs.get("cast_to", "TO_FLOAT")]
        if attrs.get("map_form", "DENSE") == "DENSE":
            values = [cast(found[key]) for key in sorted(found)]
        else:
            if any(key < 0 for key in found):
                raise ValueError(f"expected keys from 0 on, got {min(found)}")
            places = range(attrs.get("max_map", 1))
            values = [cast(found[i]) if i in found else empty for i in places]
        out = np.empty((1, len(values)), dtype)
        out[0, :] = values
        return out


def _to_float(value: Any) -> float:
    return number_of(value) if isinstance(value, str) else float(value)


def _to_int(value: Any) -> int:
    return whole_of(value) if isinstance(value, str) else int(value)


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:f}"


_CASTS: dict[str, tuple[Any, Any, Any]] = {
    "TO_FLOAT": (_to_float, 0.0, np.float32),
    "TO_INT64": (_to_int, 0, np.int64),
    "TO_STRING": (_to_text, "0.f", object),
}
"""For each target type: the conversion, the default for missing values, and the numpy dtype."""


class ZipMap(_Classical):
    """Return a list with one map from labels to scores for each row."""

    def compute(self, attrs: Mapping[str, Any], *operands: Any) -> Any:
        x = np.asarray(operands[0])
        names = attrs.get("classlabels_strings") or attrs.get("classlabels_int64s") or ()
        if not 1 <= x.ndim <= 2 or x.shape[-1] != len(names):
            raise ValueError(f"expected scores of {len(names)} labels, got shape {x.shape}")
        order = sorted(range(len(names)), key=lambda i: _sort_key(names[i]))
        keys = [names[i] for i in order]
        rows = x.reshape(-1, len(names))[:, order].tolist()
        return [dict(zip(keys, row, strict=True)) for row in rows]


def _sort_key(name: Any) -> Any:
    return name.encode() if isinstance(name, str) else name


# -- probabilities -------------------------------------------------------------------------------


class PairwiseCoupling(OpRun):
    """Compute class probabilities from pairwise ones: (rows, pairs) -> (rows, classes).

    Source: Wu, Lin, Weng (2004), algorithm 2, as in libsvm. float32 and the iteration limits follow
    onnxruntime.
    """

    op_domain = "vksched"

    def _run(self, pairs: NDArray, **_: Any) -> Results:
        return (couple(pairs),)


COUPLING = PairwiseCoupling
_ROUNDS = 100
_LEAST = np.float32(1e-7)


def couple(pairs: NDArray) -> NDArray:
    """Return the probabilities of classes: (rows, pairs) -> (rows, classes).

    Parameters
    ----------
    pairs
        Probability of the first class of each pair (0, 1), (0, 2), ... (1, 2), ...
    """
    rows, count = pairs.shape
    classes = (1 + math.isqrt(1 + 8 * count)) // 2
    first, second = np.triu_indices(classes, 1)
    r = np.zeros((rows, classes, classes), np.float32)
    r[:, first, second] = np.clip(pairs, _LEAST, np.float32(1) - _LEAST)
    r[:, second, first] = 1 - r[:, first, second]
    q = -np.swapaxes(r, 1, 2) * r
    inner = np.arange(classes)
    q[:, inner, inner] = np.square(r).sum(1)
    p = np.full((rows, classes), np.float32(1) / np.float32(classes), np.float32)
    open_rows, bound = np.arange(rows), np.float32(0.005) / np.float32(classes)
    for _ in range(_ROUNDS):
        part, at = p[open_rows], q[open_rows]
        qp = np.einsum("rij,rj->ri", at, part)
        pqp = (part * qp).sum(1)
        going = np.abs(qp - pqp[:, None]).max(1) >= bound
        open_rows, part, at, qp, pqp = (a[going] for a in (open_rows, part, at, qp, pqp))
        if not open_rows.size:
            break
        for i in range(classes):
            own = at[:, i, i]
            step = (pqp - qp[:, i]) / own
            part[:, i] += step
            grown = 1 + step
            pqp = (pqp + step * (step * own + 2 * qp[:, i])) / grown / grown
            qp = (qp + step[:, None] * at[:, i]) / grown[:, None]
            part /= grown[:, None]
        p[open_rows] = part
    return p


OPS: tuple[type[OpRun], ...] = (
    ArrayFeatureExtractor,
    CastMap,
    CategoryMapper,
    DictVectorizer,
    LabelEncoder,
    OneHotEncoder,
    PairwiseCoupling,
    ZipMap,
)
"""All ops of this module."""
