"""Workloads: operands, expected result and amount of work of a case, as plain data.

Shared by vksched and all baselines, so that all runtimes have equal inputs and tolerances. Operands
are `x0`, `x1`, ... (data) or `w0`, ... (weights, which a runtime may repack).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from . import numpy_functions
from .networks import computed
from .numpy_functions import EPSILON as EPSILON
from .numpy_functions import Array as Array

Arrays = dict[str, Array]

NMSE = {"float32": 1e-7, "float16": 1e-6}
"""Maximum normalized squared error of a correct result, by element type; that of Winograd
convolution is about 1e-10.
"""
MAX_COMPARED, EACH = 1 << 36, 16
"""Maximum multiply-adds of a matmul that numpy computes completely; of a larger one every EACH-th
row is compared.
"""
MODEL, TRAINING = WHOLE = "model", "training"
"""Kinds of cases that are networks. The result of a training is the mean square of the network's
result; `phase` is "forward" or "step", which also takes an SGD step with RATE.
"""
RATE = 1e-6
MODEL_NMSE = 1e-6
"""Maximum error of a network; some runtimes approximate GELU with tanh."""
SINGLE, MIXED, HALF = "float32", "mixed", "float16"
"""Precisions of matmuls, convolutions and attention: `precision` of a case. "mixed" may round their
operands to float16, "float16" also sums and results.
"""
COPY = "copy"
"""Kind of cases that copy bytes between host and device: `direction` is "in" or "out". Their result
is the bytes, as 32-bit words, back on the host.
"""
FACTORS = ("matmul", "conv", "attention", MODEL)
"""Kinds of cases that have a precision."""
ROUNDED_NMSE = {MIXED: 1e-5, HALF: 1e-4}
ROUNDED_MODEL_NMSE = {MIXED: 1e-4, HALF: 2.5e-3}
"""Maximum errors of a case and of a network with a reduced precision; the latter are squares of the
limits in docs/guides/precision-modes.md.
"""
LANGUAGE = "language"
"""Kind of cases that process a text with a language model; see language/llm_cases.py."""
GENERATED = 32
"""Number of tokens that are decoded after a text before the context is truncated again."""
FILE = "file"
"""Kind of cases that are ONNX files. `feeds`: element type, shape and range of each input. Their
result is the `joined` outputs.
"""
SERVING = "serving"
"""Kind of cases that are clients of a language model's server; see serve_cases.py."""
UNREPORTED = ("file", "expected", "ids")
"""Parameters with local paths, and texts: the file, the file of its expected result, tokens."""
LANGUAGE_NMSE = 1e-4
"""Maximum error of the logits of a language model."""
FILE_NMSE = 1e-4
"""Maximum error of the outputs of a file. Some round to 8-bit integers in between, which amplifies
last-bit differences.
"""
ROUGH_NMSE = {"llama.cpp": 0.02, "int8": 0.02}
"""Maximum errors, by runner or precision, for runtimes that quantize activations to 8-bit
integers.
"""


@dataclass(frozen=True)
class Spec:
    """One case. kind: its computation. params: its sizes. group: row of the report."""

    name: str
    kind: str
    group: str
    params: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.params[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.params.get(key, default)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for a worker."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Spec:
        """The inverse of `as_dict`."""
        return Spec(data["name"], data["kind"], data["group"], data["params"])


def reported(spec: Spec) -> Spec:
    """Return a case for a report, without temporary paths and texts."""
    return replace(spec, params={k: v for k, v in spec.params.items() if k not in UNREPORTED})


def most_error(spec: Spec, runner: str = "") -> float:
    """Return the maximum normalized squared error of a runner's correct result."""
    if spec.kind == LANGUAGE:
        own = ROUGH_NMSE.get(spec.get("precision", ""), LANGUAGE_NMSE)
        return ROUGH_NMSE.get(runner, own)
    if spec.kind == FILE:
        return FILE_NMSE
    if spec.kind == SERVING:
        return 0.0
    if (word := spec.get("precision", SINGLE)) != SINGLE:
        return (ROUNDED_MODEL_NMSE if spec.kind in WHOLE else ROUNDED_NMSE)[word]
    return MODEL_NMSE if spec.kind in WHOLE else NMSE[spec.get("storage", SINGLE)]


def in_precision(spec: Spec, word: str) -> Spec | None:
    """Return a case with a precision, or None if the precision does not affect it."""
    if spec.kind not in FACTORS or spec.get("storage", SINGLE) != SINGLE:
        return None
    params = {**spec.params, "precision": word}
    return Spec(f"{spec.name} in {word}", spec.kind, f"{spec.group} in {word}", params)


# -- operands --------------------------------------------------------------------------------------


def shapes_of(spec: Spec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the operands by name."""
    kind = spec.kind
    if kind in WHOLE:
        return {name: array.shape for name, array in computed(spec.params)[1].feeds.items()}
    if kind == "matmul":
        m, k, n = spec["m"], spec["k"], spec["n"]
        a = (k, m) if spec.get("transpose_a") else (m, k)
        b = (n, k) if spec.get("transpose_b") else (k, n)
        batch = (spec["batch"],) if spec.get("batch") else ()
        return {"x0": (*batch, *a), ("w0" if not batch else "x1"): (*batch, *b)}
    if kind == "binary":
        return {"x0": tuple(spec["shape"]), "x1": tuple(spec["shape"])}
    if kind in ("unary", "softmax", "reduce", "transpose"):
        return {"x0": tuple(spec["shape"])}
    if kind in ("layer_norm", "rms_norm"):
        width = (spec["shape"][-1],)
        more = {"w1": width} if kind == "layer_norm" else {}
        return {"x0": tuple(spec["shape"]), "w0": width, **more}
    if kind == "gather":
        return {"x0": tuple(spec["shape"]), "x1": (spec["count"],)}
    if kind == "conv":
        channels, size, out, kernel = (spec[k] for k in ("channels", "size", "out", "kernel"))
        weights = (out, channels // spec.get("groups", 1), kernel, kernel)
        return {"x0": (1, channels, size, size), "w0": weights}
    if kind == "attention":
        one = (spec["heads"], spec["tokens"], spec["width"])
        return {"x0": one, "x1": one, "x2": one}
    if kind == "chain":
        return {"x0": (spec["count"],), "x1": (spec["count"],)}
    if kind == COPY:
        return {"x0": (spec["bytes"] // 4,)}
    raise ValueError(f"[bench] expected a known kind, got {kind!r}")


def arrays_of(spec: Spec) -> Arrays:
    """Return the operands, deterministic for each case."""
    if spec.kind in WHOLE:
        return dict(computed(spec.params)[1].feeds)
    if spec.kind == LANGUAGE:
        return {"ids": text_of(spec["vocabulary"], spec["tokens"] + GENERATED)}
    if spec.kind == SERVING:
        return {}
    rng = np.random.default_rng(zlib.crc32(spec.name.encode()))
    out: Arrays = {}
    if spec.kind == FILE:
        for name, (dtype, shape, low, high) in spec["feeds"].items():
            drawn = low + (high - low) * rng.random(shape)
            out[name] = np.asarray(drawn).astype(dtype)
        return out
    for name, shape in shapes_of(spec).items():
        if spec.kind == "gather" and name == "x1":
            out[name] = rng.integers(0, spec["shape"][0], shape, dtype=np.int32)
            continue
        values = rng.random(shape, dtype=np.float32)
        values -= np.float32(0.5)
        if spec.get("storage") == "float16":
            values = values.astype(np.float16)
        out[name] = values
    return out


def text_of(vocabulary: int, length: int) -> Array:
    """Return the text of all language-model cases as tokens (length,): shorter texts are prefixes
    of longer ones. The first tokens of a vocabulary are excluded: some end a text.
    """
    rng = np.random.default_rng(zlib.crc32(LANGUAGE.encode()))
    return rng.integers(3, min(vocabulary, 8000), length).astype(np.int32)


# -- results ---------------------------------------------------------------------------------------


def compared_rows(spec: Spec) -> Array | None:
    """Return the indices of the compared rows of the result, or None for all. For a large matmul it
    is one row of each EACH, at varying positions.
    """
    large = spec.kind == "matmul" and spec["m"] * spec["k"] * spec["n"] > MAX_COMPARED
    if not large or spec.get("transpose_a") or spec.get("batch"):
        return None
    blocks = np.arange(spec["m"] // EACH)
    rows: Array = EACH * blocks + 7 * blocks % EACH
    return rows


def error_of(spec: Spec, arrays: Arrays, got: Array) -> float:
    """Return the normalized squared error of the compared rows of a result."""
    rows = compared_rows(spec)
    if rows is None:
        return nmse_of(got, expected_of(spec, arrays))
    if got.shape != result_shape(spec):
        return float("inf")
    return nmse_of(got[rows], expected_of(spec, {**arrays, "x0": arrays["x0"][rows]}))


def expected_of(spec: Spec, arrays: Arrays) -> Array:
    """Return the result with numpy."""
    if spec.kind == MODEL:
        return computed(spec.params)[0]
    if spec.kind in (LANGUAGE, FILE):
        return np.asarray(np.load(spec["expected"]))
    if spec.kind == SERVING:  # the tokens of each answer
        return np.full(spec["clients"], spec["answer"], np.float32)
    if spec.kind == TRAINING:
        return np.asarray(np.square(computed(spec.params)[0]).mean())
    x, kind = arrays["x0"], spec.kind
    if x.dtype == np.float16:
        x = x.astype(np.float32)
    if kind == "matmul":
        a = np.swapaxes(x, -1, -2) if spec.get("transpose_a") else x
        b = arrays["x1"] if spec.get("batch") else arrays["w0"].astype(np.float32)
        return np.asarray(a @ (np.swapaxes(b, -1, -2) if spec.get("transpose_b") else b))
    if kind == "binary":
        return np.asarray(x + arrays["x1"] if spec["op"] == "add" else x * arrays["x1"])
    if kind == "unary":
        return _unary(spec["op"], x)
    if kind == "softmax":
        return numpy_functions.softmax(x)
    if kind == "layer_norm":
        return numpy_functions.layer_norm(x, arrays["w0"], arrays["w1"])
    if kind == "rms_norm":
        root = np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(EPSILON))
        return np.asarray(x / root * arrays["w0"])
    if kind == "reduce":
        return np.asarray(getattr(x, spec["op"])(axis=spec["axis"]))
    if kind == "transpose":
        return np.ascontiguousarray(x.transpose(spec["axes"]))
    if kind == "gather":
        return np.asarray(x[arrays["x1"]])
    if kind == "conv":
        sizes = spec.get("stride", 1), spec.get("pad", 0), spec.get("groups", 1)
        return numpy_functions.conv(x, arrays["w0"], *sizes)
    if kind == "attention":
        scores = x @ np.swapaxes(arrays["x1"], -1, -2) * np.float32(spec["width"] ** -0.5)
        return np.asarray(numpy_functions.softmax(scores) @ arrays["x2"])
    if kind == COPY:
        return x
    if kind == "chain":
        value = x
        for _ in range(spec["ops"]):
            value = value + arrays["x1"]
        return np.asarray(value)
    raise ValueError(f"[bench] expected a known kind, got {kind!r}")


def _unary(op: str, x: Array) -> Array:
    if op == "relu":
        return np.asarray(np.maximum(x, np.float32(0)))
    if op == "exp":
        return np.asarray(np.exp(x))
    if op == "gelu":
        return numpy_functions.gelu(x)
    raise ValueError(f"[bench] expected a known op, got {op!r}")


def side_of(spec: Spec) -> int:
    """Return the height and width of a convolution's result."""
    return (
        int((spec["size"] + 2 * spec.get("pad", 0) - spec["kernel"]) // spec.get("stride", 1)) + 1
    )


def result_shape(spec: Spec) -> tuple[int, ...]:
    """Return the shape of the result."""
    kind = spec.kind
    if kind in WHOLE:
        return computed(spec.params)[0].shape if kind == MODEL else ()
    if kind == "matmul":
        return (*((spec["batch"],) if spec.get("batch") else ()), spec["m"], spec["n"])
    if kind == "reduce":
        return tuple(n for i, n in enumerate(spec["shape"]) if i != spec["axis"] % 2)
    if kind == "transpose":
        return tuple(spec["shape"][i] for i in spec["axes"])
    if kind == "gather":
        return (spec["count"], *spec["shape"][1:])
    if kind == "conv":
        return (1, spec["out"], side_of(spec), side_of(spec))
    return shapes_of(spec)["x0"]


def joined(outputs: Sequence[Any]) -> Array:
    """Return outputs as one array (all elements,), each divided by its root mean square, so that
    all have equal weight.
    """
    parts = []
    for output in outputs:
        flat = np.asarray(output).astype(np.float64).reshape(-1)
        parts.append(flat / (np.sqrt(np.square(flat).mean()) if flat.any() else 1.0))
    return np.concatenate(parts).astype(np.float32)


def nmse_of(got: Array, expected: Array) -> float:
    """Return the normalized squared error, or infinity if shapes or non-finite values differ."""
    if got.shape != expected.shape or not np.isfinite(got).all():
        return float("inf")
    far = got.astype(np.float32) - expected
    norm = float(np.vdot(expected, expected))
    error = float(np.vdot(far, far))
    return error / norm if norm else error


# -- work ------------------------------------------------------------------------------------------


def work_of(spec: Spec) -> tuple[float, float]:
    """Return the number of multiplications and additions, and the bytes of operands and result,
    each counted once.

    Convolutions count as direct ones. Work of `chain` is per op; work of a model is that of its
    matmuls and their weights.
    """
    if spec.kind in (LANGUAGE, FILE, SERVING):
        return spec.get("flops", 0.0), spec.get("bytes", 0.0)
    if spec.kind in WHOLE:
        numbers = computed(spec.params)[1]
        return numbers.flops, numbers.weight_bytes
    sizes = {name: float(np.prod(shape)) for name, shape in shapes_of(spec).items()}
    result = float(np.prod(result_shape(spec)))
    width = 2 if spec.get("storage") == "float16" else 4
    moved = width * (sum(sizes.values()) + result)
    kind = spec.kind
    if kind == COPY:
        return 0.0, float(spec["bytes"])
    if kind == "matmul":
        flops = 2.0 * result * spec["k"]
    elif kind == "conv":
        flops = 2.0 * result * spec["channels"] // spec.get("groups", 1) * spec["kernel"] ** 2
    elif kind == "attention":
        flops = 4.0 * spec["heads"] * spec["tokens"] ** 2 * spec["width"]
    elif kind == "gather":
        flops, moved = 0.0, 8 * result + 4 * spec["count"]
    else:
        flops = sizes["x0"] if kind != "transpose" else 0.0
    return flops, moved


def tokens_of(spec: Spec) -> int:
    """Return the number of tokens that a call processes, or 0 if the case has no text.

    A call of a serving case generates the answers of all clients.
    """
    if spec.kind == SERVING:
        return int(spec["clients"] * spec["answer"])
    if spec.kind != LANGUAGE or spec["phase"] == "load":
        return 0
    return int(spec["tokens"]) if spec["phase"] == "prompt" else 1
