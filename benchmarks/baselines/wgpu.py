"""wgpu-py on one Vulkan device: shaders by hand, several dispatches in one submission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import product
from typing import Any

import numpy as np
import wgpu

from . import wgsl
from .protocol import Job, Skip, TimedCalls, fastest, repeats
from .wgsl import Kernel, Product
from .workloads import Array, Arrays, Spec, result_shape

INSTALL = "pip install wgpu"
DEVICES = ("vulkan",)
_LIMITS = (
    "max-storage-buffer-binding-size",
    "max-buffer-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-storage-size",
    "max-compute-workgroup-size-x",
    "max-compute-workgroups-per-dimension",
)
_UNARY = {
    "relu": "max(a, vec4<f32>())",
    "exp": "exp(a)",
    "gelu": "a * 0.5 * (1.0 + erf4(a * 0.70710678118))",
}


class WgpuBaseline:
    """wgpu on the Vulkan device of that name."""

    def __init__(self, device: Mapping[str, Any]) -> None:
        self.version = version("wgpu")
        found = [
            adapter
            for adapter in wgpu.gpu.enumerate_adapters_sync()
            if adapter.info["backend_type"] == "Vulkan"
        ]
        fitting = [adapter for adapter in found if adapter.info["device"] == device["name"]]
        if not fitting:
            names = ", ".join(adapter.info["device"] for adapter in found)
            raise LookupError(f"wgpu has no device {device['name']}, only {names}")
        limits = {name: fitting[0].limits[name] for name in _LIMITS}
        self._device = fitting[0].request_device_sync(required_limits=limits)

    def prepare(self, spec: Spec, arrays: Arrays) -> Job:
        usage = wgpu.BufferUsage
        flags = usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
        buffers = {
            name: self._device.create_buffer_with_data(data=np.ascontiguousarray(a), usage=flags)
            for name, a in arrays.items()
        }
        sizes = {"r": int(np.prod(result_shape(spec))), **_between(spec)}
        for name, size in sizes.items():
            buffers[name] = self._device.create_buffer(size=4 * size, usage=flags)
        forms = list(_forms(spec))
        last = forms[0][-1].buffers[-1]

        def read() -> Array:
            data = self._device.queue.read_buffer(buffers[last])
            return np.frombuffer(data, np.float32).reshape(result_shape(spec))

        jobs = [self._job(form, buffers, read, spec) for form in forms]
        best = fastest(jobs)
        best.note = f"{best.note}, form {jobs.index(best) + 1} of {len(jobs)}".lstrip(", ")
        return best

    def _job(
        self, form: Sequence[Kernel], buffers: Mapping[str, Any], read: Any, spec: Spec
    ) -> TimedCalls:
        items = [self._bind(kernel, buffers) for kernel in form]
        calls = 1

        def call() -> None:
            encoder = self._device.create_command_encoder()
            dispatches = encoder.begin_compute_pass()
            for _ in range(calls):
                for pipeline, group, groups in items:
                    dispatches.set_pipeline(pipeline)
                    dispatches.set_bind_group(0, group)
                    dispatches.dispatch_workgroups(*groups)
            dispatches.end()
            self._device.queue.submit([encoder.finish()])
            # on_submitted_work_done_sync() raises a TypeError (wgpu 0.32)
            self._device._poll_wait()

        def result() -> Array:
            call()
            return np.asarray(read())

        if spec.kind == "chain":
            return TimedCalls(call, result, spec["ops"])
        call()
        calls = repeats(TimedCalls(call, result).sample())
        return TimedCalls(call, result, calls, f"{calls} calls" if calls > 1 else "")

    def _bind(self, kernel: Kernel, buffers: Mapping[str, Any]) -> tuple[Any, Any, wgsl.Groups]:
        module = self._device.create_shader_module(code=kernel.source)
        pipeline = self._device.create_compute_pipeline(
            layout="auto", compute={"module": module, "entry_point": "main"}
        )
        entries = [
            {"binding": i, "resource": {"buffer": buffers[n], "offset": 0, "size": buffers[n].size}}
            for i, n in enumerate(kernel.buffers)
        ]
        layout = pipeline.get_bind_group_layout(0)
        group = self._device.create_bind_group(layout=layout, entries=entries)
        return pipeline, group, kernel.groups


def _between(spec: Spec) -> dict[str, int]:
    """Return the values of buffers beside operands and result."""
    if spec.kind == "attention":
        scores = spec["heads"] * spec["tokens"] ** 2
        return {"s": scores, "p": scores}
    if spec.kind == "reduce" and spec["axis"] == 0:
        return {"t0": 64 * spec["shape"][1]}
    if spec.kind == "chain":
        return {"y": spec["count"]}
    return {}


def _forms(spec: Spec) -> list[list[Kernel]]:
    """Return ways to compute the case, each some dispatches."""
    kind = spec.kind
    if spec.get("storage") == "float16":
        raise Skip("no shader by hand for float16")
    if kind == "matmul" and spec["m"] == 1:
        return [[wgsl.matvec(spec["k"], spec["n"], local)] for local in (32, 64)]
    if kind == "matmul":
        batch = spec.get("batch") or 1
        transposed = bool(spec.get("transpose_a")), bool(spec.get("transpose_b"))
        one = Product(spec["m"], spec["k"], spec["n"], batch, *transposed)
        return [[k] for k in one.kernels(("x0", "x1" if batch > 1 else "w0", "r"))]
    if kind in ("binary", "unary"):
        binary = {"add": "a + b", "mul": "a * b"}
        expression = binary[spec["op"]] if kind == "binary" else _UNARY[spec["op"]]
        operands = ("x0", "x1") if kind == "binary" else ("x0",)
        return [[wgsl.elementwise(expression, operands, int(np.prod(spec["shape"])))]]
    if kind == "softmax":
        return [[k] for k in wgsl.rows(wgsl.softmax_row(), *spec["shape"])]
    if kind in ("layer_norm", "rms_norm"):
        return [[k] for k in wgsl.rows(wgsl.norm_row(spec), *spec["shape"])]
    if kind == "reduce" and spec["axis"] == 0:
        return [wgsl.column_sums(*spec["shape"])]
    if kind == "reduce":
        start, how = ("-3.0e38", "max") if spec["op"] == "max" else ("0.0", "add")
        row = wgsl.Row((("total", start, "v", how),), None)
        return [[k] for k in wgsl.rows(row, *spec["shape"])]
    if kind == "transpose":
        shape = tuple(spec["shape"])
        return [[wgsl.transposed(*shape) if len(shape) == 2 else wgsl.swapped(shape)]]
    if kind == "gather":
        return [[wgsl.gathered(spec["count"], spec["shape"][1])]]
    if kind == "attention":
        return _attention(spec)
    if kind == "chain":
        body = "{o}[g.x] = {a}[g.x] + x1[g.x];"
        steps = []
        for i in range(spec["ops"]):
            a, o = ("x0" if not i else "ry"[i % 2]), "yr"[i % 2]
            types = {a: "f32", "x1": "f32", o: "f32"}
            steps.append(wgsl.kernel(types, (64, 1), body.format(a=a, o=o), (1, 1, 1)))
        return [steps]
    raise Skip(f"no shader by hand for {kind}")


def _attention(spec: Spec) -> list[list[Kernel]]:
    heads, tokens, width = spec["heads"], spec["tokens"], spec["width"]
    scores = Product(tokens, width, tokens, heads, transpose_b=True).kernels(("x0", "x1", "s"))
    row = wgsl.Row(
        wgsl.softmax_row(width**-0.5).folds,
        wgsl.softmax_row().result,
        ("s",),
        f" * {width**-0.5}",
    )
    softmax = wgsl.rows(row, heads * tokens, tokens, "p")
    mixed = Product(tokens, tokens, width, heads).kernels(("p", "x2", "r"))
    return [list(form) for form in product(scores[:2], softmax, mixed[:3:2])]


def open_baseline(device: Mapping[str, Any]) -> WgpuBaseline:
    return WgpuBaseline(device)
