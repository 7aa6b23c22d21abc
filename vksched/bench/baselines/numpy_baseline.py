"""numpy, with preallocated outputs if possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .protocol import Job, Skip, TimedCalls
from .workloads import Array, Arrays, Spec, expected_of


class NumpyBaseline:
    """The numpy functions that a user would call."""

    version = np.__version__

    def prepare(self, spec: Spec, arrays: Arrays) -> Job:
        if spec.kind == "chain":
            return self._chain(spec, arrays)
        if spec.get("storage") == "float16":
            raise Skip("numpy has no product of float16 that is not elementwise")
        if spec.kind == "model":
            raise Skip("numpy has no models of its own")
        first = expected_of(spec, arrays)
        call = _into(spec, arrays, np.empty_like(first))
        return TimedCalls(call, lambda: np.asarray(call()))

    def _chain(self, spec: Spec, arrays: Arrays) -> Job:
        out, count = arrays["x0"].copy(), spec["ops"]

        def call() -> Array:
            np.copyto(out, arrays["x0"])
            for _ in range(count):
                np.add(out, arrays["x1"], out=out)
            return np.asarray(out)

        return TimedCalls(call, call, count)


def _into(spec: Spec, arrays: Arrays, out: Array) -> Callable[[], Array]:
    x, kind = arrays["x0"], spec.kind
    if kind == "matmul":
        a = np.swapaxes(x, -1, -2) if spec.get("transpose_a") else x
        b = arrays["x1"] if spec.get("batch") else arrays["w0"]
        b = np.swapaxes(b, -1, -2) if spec.get("transpose_b") else b
        return lambda: np.matmul(a, b, out=out)
    if kind == "binary":
        function: Any = np.add if spec["op"] == "add" else np.multiply
        return lambda: function(x, arrays["x1"], out=out)
    if kind == "unary" and spec["op"] == "relu":
        return lambda: np.maximum(x, np.float32(0), out=out)
    if kind == "unary" and spec["op"] == "exp":
        return lambda: np.exp(x, out=out)
    if kind == "unary":
        raise Skip("numpy has no erf")
    if kind == "reduce":
        reduction: Any = np.add.reduce if spec["op"] == "sum" else np.maximum.reduce
        return lambda: reduction(x, axis=spec["axis"], out=out)
    if kind == "gather":
        return lambda: np.take(x, arrays["x1"], axis=0, out=out)
    if kind == "transpose":

        def turn() -> Array:
            np.copyto(out, x.transpose(spec["axes"]))
            return np.asarray(out)

        return turn
    return lambda: expected_of(spec, arrays)


def open_baseline(device: Mapping[str, Any]) -> NumpyBaseline:
    return NumpyBaseline()
