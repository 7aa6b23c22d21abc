"""ncnn on one Vulkan device: a net per case, weights packed beforehand as ncnn does with models.

An extract uploads its input and downloads its result, so a call's time is the difference of two
nets, one with more layers: in a chain where the shape stays, else in branches of which one column
each is kept. Layers without a Vulkan form would run on the host's cores: these are left out.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ncnn
import numpy as np

from .ncnnfile import Line, NcnnFile, text_of
from .networks import build
from .protocol import Job, Skip, TimedCalls, fastest, repeats
from .workloads import Array, Arrays, Spec, result_shape

INSTALL = "pip install ncnn"
DEVICES = ("vulkan",)
MAX_LAYER_BYTES = 1 << 28
CHAIN = 20
LONG_S = 0.5
"""Of a product that takes longer the copies are few, and measured with it."""


@dataclass
class _Layer:
    """type: ncnn's; params: its own numbers; weights: as its model files have them."""

    type: str
    params: str = ""
    weights: bytes = b""
    more: tuple[str, ...] = ()
    """Operands after the first, by name."""


class _Net:
    """Layers compiled for the device. out: the blob that is asked for."""

    def __init__(
        self, device: int, text: str, weights: bytes, feeds: Arrays, out: str, half: bool = False
    ) -> None:
        self._net = ncnn.Net()
        options = self._net.opt
        options.use_vulkan_compute = True
        for name in dir(options):
            if name.startswith(("use_fp16_", "use_bf16_")):
                storage = name in ("use_fp16_packed", "use_fp16_storage")
                setattr(options, name, half and storage)
        self._net.set_vulkan_device(device)
        if self._net.load_param_mem(text) != 0:
            raise Skip("ncnn refuses the net")
        with tempfile.NamedTemporaryFile(suffix=".bin", delete=False) as file:
            file.write(weights)
        try:
            self._net.load_model(file.name)
        finally:
            os.unlink(file.name)
        slow = {one.type for one in self._net.layers() if not one.support_vulkan} - {"Input"}
        self.on_host = ", ".join(sorted(slow))
        self._mats = {n: ncnn.Mat(np.ascontiguousarray(a)).clone() for n, a in feeds.items()}
        self._out = out

    def run(self) -> Any:
        """Return the result as ncnn's matrix, in the host's memory."""
        extractor = self._net.create_extractor()
        for name, mat in self._mats.items():
            extractor.input(name, mat)
        code, mat = extractor.extract(self._out)
        if code != 0:
            raise RuntimeError(f"extract returned {code}")
        return mat


def result_of(net: _Net, shape: tuple[int, ...]) -> Array:
    return np.array(net.run(), dtype=np.float32).reshape(shape)


def _repeated(
    device: int, layer: _Layer, count: int, chained: bool, half: bool, arrays: Arrays
) -> _Net:
    """Return a layer several times, in a chain or side by side."""
    lines, names = _lines(layer, count, chained)
    feeds = {name: arrays[name] for name in names}
    net = _Net(device, text_of(lines), layer.weights * count, feeds, lines[-1][2][0], half)
    if net.on_host:
        raise Skip(f"no Vulkan form of {net.on_host}")
    return net


def _lines(layer: _Layer, count: int, chained: bool) -> tuple[list[Line], list[str]]:
    """Return the layers of a net, and which operands it takes."""
    operands = ["x0", *dict.fromkeys(layer.more)]
    lines: list[Line] = [("Input", [], [name], "") for name in operands]
    parts: dict[str, list[str]] = {}
    for name in operands if not chained else operands[1:]:
        uses = count * (layer.more.count(name) if name != "x0" else 1)
        parts[name] = [f"{name}_{i}" for i in range(uses)]
        lines.append(("Split", [name], list(parts[name]), ""))
    last = "x0"
    for i in range(count):
        first = last if chained else parts["x0"][i]
        last = f"y{i}"
        lines.append(
            (layer.type, [first, *(parts[n].pop() for n in layer.more)], [last], layer.params)
        )
        if not chained and count > 1:
            lines.append(("Crop", [last], [f"c{i}"], "3=1 4=-233 5=-233 14=-233"))  # one column
    if not chained and count > 1:
        lines.append(("Concat", [f"c{i}" for i in range(count)], ["all"], "0=0"))
    return lines, operands


class _Slope:
    """The difference of two nets, per layer."""

    def __init__(
        self, short: _Net, long: _Net, layers: int, shape: tuple[int, ...], one: _Net
    ) -> None:
        self._short, self._long, self._layers = short, long, layers
        self._one, self._shape = one, shape
        self.note = f"{layers} calls"
        self.memory_bytes: float | None = None

    def result(self) -> Array:
        return result_of(self._one, self._shape)

    def sample(self) -> float:
        start = time.perf_counter()
        self._long.run()
        middle = time.perf_counter()
        self._short.run()
        end = time.perf_counter()
        return max((middle - start) - (end - middle), 1e-9) / self._layers


class NcnnBaseline:
    """ncnn on the device of that name."""

    def __init__(self, device: Mapping[str, Any]) -> None:
        self.version = str(ncnn.__version__)
        names = [ncnn.get_gpu_info(i).device_name() for i in range(ncnn.get_gpu_count())]
        if device["name"] not in names:
            raise LookupError(f"ncnn has no device {device['name']}, only {', '.join(names)}")
        self._device = names.index(device["name"])

    def prepare(self, spec: Spec, arrays: Arrays) -> Job:
        if spec.kind == "model":
            return fastest([self._model(spec, gemm) for gemm in (False, True)])
        layer = _layer_of(spec, arrays)
        half = spec.get("storage") == "float16"
        feeds = {n: a.astype(np.float32) if half else a for n, a in arrays.items()}
        if spec.kind == "conv":
            feeds["x0"] = feeds["x0"][0]
        if spec.get("m") == 1:
            feeds["x0"] = feeds["x0"][0]
        shape, before = result_shape(spec), arrays["x0"].shape
        chained = shape == before

        def net(count: int, chained: bool = chained) -> _Net:
            return _repeated(self._device, layer, count, chained, half, feeds)

        if spec.kind == "chain":
            ops = spec["ops"]
            return _Slope(net(CHAIN), net(CHAIN + ops), ops, shape, net(ops))
        one = net(1)
        one.run()
        start = time.perf_counter()
        one.run()
        seconds = time.perf_counter() - start
        if spec.kind == "matmul" and seconds > LONG_S:
            return TimedCalls(one.run, lambda: result_of(one, shape), 1, "copies counted")
        size = max(4 * int(np.prod(shape)), len(layer.weights), 1)
        more = min(repeats(seconds, 0.05, 16), max(1, MAX_LAYER_BYTES // size))
        more = max(more, 2)  # else the copies in both nets drown the difference
        if chained:
            return _Slope(one, net(1 + more), more, shape, one)
        return _Slope(net(2, False), net(2 + more, False), more, shape, one)

    def _model(self, spec: Spec, gemm: bool) -> TimedCalls:
        file = NcnnFile(spec.params, gemm)
        out, shape = build(spec.params, file), result_shape(spec)
        net = _Net(self._device, *file.finish(), file.feeds, out)
        note = f"products by {'Gemm' if gemm else 'InnerProduct'}"
        note += f"; {net.on_host} on the host" if net.on_host else ""
        net.run()
        return TimedCalls(net.run, lambda: result_of(net, shape), 1, note)


def _weights(array: Array) -> bytes:
    return struct.pack("<I", 0) + np.ascontiguousarray(array, "<f4").tobytes()


def _raw(*arrays: Array) -> bytes:
    return b"".join(np.ascontiguousarray(a, "<f4").tobytes() for a in arrays)


def _layer_of(spec: Spec, arrays: Arrays) -> _Layer:
    kind, w = spec.kind, arrays.get("w0")
    if kind == "matmul" and w is not None:
        if spec["m"] == 1:
            transposed = w if spec.get("transpose_b") else w.T
            return _Layer("InnerProduct", f"0={spec['n']} 1=0 2={w.size}", _weights(transposed))
        a, b = int(bool(spec.get("transpose_a"))), int(bool(spec.get("transpose_b")))
        sizes = f"7=0 8={spec['n']} 9={spec['k']} 10=-1"
        return _Layer("Gemm", f"0=1.0 1=1.0 2={a} 3={b} 4=0 5=1 6=1 {sizes}", _weights(w))
    if kind == "binary":
        return _Layer("BinaryOp", "0=0" if spec["op"] == "add" else "0=2", more=("x1",))
    if kind == "chain":
        return _Layer("BinaryOp", "0=0", more=("x1",))
    if kind == "unary":
        return {"relu": _Layer("ReLU"), "gelu": _Layer("GELU"), "exp": _Layer("UnaryOp", "0=7")}[
            spec["op"]
        ]
    if kind == "softmax":
        return _Layer("Softmax", "0=1 1=1")
    if kind == "layer_norm" and w is not None:
        return _Layer("LayerNorm", f"0={w.size} 1=0.00001 2=1", _raw(w, arrays["w1"]))
    if kind == "rms_norm" and w is not None:
        return _Layer("RMSNorm", f"0={w.size} 1=0.00001 2=1", _raw(w))
    if kind == "reduce":
        return _Layer("Reduction", f"0={_reduction(spec)} 1=0 -23303=1,{spec['axis']} 4=0 5=1")
    if kind == "transpose":
        return _Layer("Permute", "0=1" if len(spec["shape"]) == 2 else "0=2")
    if kind == "conv" and w is not None:
        params = (
            f"0={spec['out']} 1={spec['kernel']} 3={spec.get('stride', 1)} 4={spec.get('pad', 0)} "
            f"5=0 6={w.size}"
        )
        if spec.get("groups", 1) > 1:
            return _Layer("ConvolutionDepthWise", f"{params} 7={spec['groups']}", _weights(w))
        return _Layer("Convolution", params, _weights(w))
    if kind == "attention":
        return _Layer("SDPA", "5=0 7=0", more=("x1", "x2"))
    raise Skip("no layer of ncnn does this with Vulkan")


def _reduction(spec: Spec) -> int:
    return {"sum": 0, "max": 4}[spec["op"]]


def open_baseline(device: Mapping[str, Any]) -> NcnnBaseline:
    return NcnnBaseline(device)
