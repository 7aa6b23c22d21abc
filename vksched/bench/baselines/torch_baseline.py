"""PyTorch on the CPU, or on CUDA for a GPU that it supports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from .protocol import Job, Skip, TimedCalls, repeats
from .torch_networks import network, training
from .workloads import (
    COPY,
    EPSILON,
    HALF,
    MIXED,
    MODEL,
    SINGLE,
    TRAINING,
    Array,
    Arrays,
    Spec,
)

REDUCTIONS: dict[str, Callable[..., Any]] = {"sum": torch.sum, "max": torch.amax}
UNARY: dict[str, Callable[..., Any]] = {
    "relu": torch.relu,
    "exp": torch.exp,
    "gelu": functional.gelu,
}


class TorchBaseline:
    """Eager functions in inference mode; a reduced precision uses autocast to float16, with weights
    converted in advance.
    """

    precisions = (MIXED, HALF)

    def __init__(self, device: Mapping[str, Any]) -> None:
        self.version = str(torch.__version__)
        self._cuda = device["name"] != "numpy"
        if self._cuda:
            names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
            fitting = [i for i, name in enumerate(names) if name == device["name"]]
            if not fitting:
                raise LookupError(f"torch has no CUDA device {device['name']}, only {names}")
            self._device = torch.device("cuda", fitting[0])
            # Full float32, like all other runtimes.
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False
        else:
            self._device = torch.device("cpu")

    def prepare(self, spec: Spec, arrays: Arrays) -> Job:
        if spec.kind in (MODEL, COPY):
            return self._model(spec) if spec.kind == MODEL else self._copy(spec, arrays["x0"])
        mode: Callable[[], Any] = nullcontext
        if spec.kind == TRAINING:
            function = training(spec, self._device)
        else:
            v = {n: self._held(spec, n, a) for n, a in arrays.items()}
            function, mode = _function(spec, v), lambda: self._inference(spec)
        count = spec["ops"] if spec.kind == "chain" else 1

        def call(times: int = 1) -> Any:
            with mode():
                for _ in range(times):
                    out = function()
                if self._cuda:
                    torch.cuda.synchronize()
            return out

        def result() -> Array:
            return np.asarray(call().float().cpu().numpy())

        result()
        calls = repeats(TimedCalls(call, result).sample())
        return TimedCalls(lambda: call(calls), result, calls * count, f"{calls} calls")

    def _model(self, spec: Spec) -> TimedCalls:
        """Return a network with host inputs and results in each run; a KV cache stays on the
        device.
        """
        run_steps = network(spec, self._device, _factors(spec))

        def run() -> Array:
            with self._inference(spec):
                return np.asarray(run_steps().float().cpu().numpy())

        run()
        return TimedCalls(run, run, 1, "eager")

    def _copy(self, spec: Spec, values: Array) -> TimedCalls:
        if not self._cuda:
            raise Skip("a CPU has no bus to copy over")
        host_values = torch.from_numpy(values).pin_memory()
        if spec["direction"] == "in":
            source, target = host_values, torch.zeros_like(host_values, device=self._device)
        else:
            source, target = (
                host_values.to(self._device),
                torch.zeros_like(host_values).pin_memory(),
            )

        def call() -> None:
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()

        def result() -> Array:
            call()
            return np.array(target.cpu().numpy())

        return TimedCalls(call, result, 1, "pinned memory")

    def _held(self, spec: Spec, name: str, array: Array) -> torch.Tensor:
        """Return an operand on the device, for weights in the element type of matmuls."""
        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
        rounded = name.startswith("w") and _factors(spec) != torch.float32
        return tensor.to(_factors(spec)) if rounded else tensor

    @contextmanager
    def _inference(self, spec: Spec) -> Iterator[None]:
        word = spec.get("precision", SINGLE)
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if word != SINGLE:
                kind = self._device.type
                stack.enter_context(torch.autocast(kind, torch.float16, cache_enabled=False))
            if hasattr(torch.backends.cuda.matmul, "allow_fp16_accumulation"):
                torch.backends.cuda.matmul.allow_fp16_accumulation = word == HALF
            yield


def _factors(spec: Spec) -> torch.dtype:
    """Return the element type of matmul weights."""
    return torch.float32 if spec.get("precision", SINGLE) == SINGLE else torch.float16


def _function(spec: Spec, v: Mapping[str, Any]) -> Callable[[], Any]:
    kind, x = spec.kind, v["x0"]
    if kind == "matmul":
        a = x.mT if spec.get("transpose_a") else x
        b = v["x1"] if spec.get("batch") else v["w0"]
        b = b.mT if spec.get("transpose_b") else b
        if spec.get("precision", SINGLE) != SINGLE:
            return lambda: torch.matmul(a, b)  # autocast ignores calls with an `out` argument
        out = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=a.dtype, device=a.device)
        return lambda: torch.matmul(a, b, out=out)
    if kind == "binary":
        out = torch.empty_like(x)
        function: Callable[..., Any] = torch.add if spec["op"] == "add" else torch.mul
        return lambda: function(x, v["x1"], out=out)
    if kind == "unary":
        return lambda: UNARY[spec["op"]](x)
    if kind == "softmax":
        return lambda: torch.softmax(x, -1)
    if kind == "layer_norm":
        return lambda: functional.layer_norm(x, x.shape[-1:], v["w0"], v["w1"], EPSILON)
    if kind == "rms_norm":
        return lambda: functional.rms_norm(x, x.shape[-1:], v["w0"], EPSILON)
    if kind == "reduce":
        return lambda: REDUCTIONS[spec["op"]](x, spec["axis"])
    if kind == "transpose":
        return lambda: x.permute(spec["axes"]).contiguous()
    if kind == "gather":
        return lambda: torch.index_select(x, 0, v["x1"])
    if kind == "conv":
        sizes = spec.get("stride", 1), spec.get("pad", 0), 1, spec.get("groups", 1)
        return lambda: functional.conv2d(x, v["w0"], None, *sizes)
    if kind == "attention":
        parts = [v[n].unsqueeze(0) for n in ("x0", "x1", "x2")]
        return lambda: functional.scaled_dot_product_attention(*parts)[0]

    def chain() -> Any:
        value = x
        for _ in range(spec["ops"]):
            value = value + v["x1"]
        return value

    return chain


def open_baseline(device: Mapping[str, Any]) -> TorchBaseline:
    return TorchBaseline(device)
