"""IREE: each case compiled for Vulkan by its compiler, called with arrays that are on the device.

Small cases have several calls in one function, with barriers against their being merged.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import iree.runtime as rt
import numpy as np

from .mlir import module_of
from .onnx_writer import network_file
from .protocol import Job, Skip, TimedCalls, repeats
from .workloads import Array, Arrays, Spec, result_shape

INSTALL = "pip install iree-base-compiler iree-base-runtime"
DEVICES = ("vulkan",)
COMPILE_LIMIT_S, COMPILE_MODEL_LIMIT_S = 100, 180
MAX_BYTES = 1 << 28
_ELEMENTS = {
    "float32": rt.HalElementType.FLOAT_32,
    "float16": rt.HalElementType.FLOAT_16,
    "int32": rt.HalElementType.SINT_32,
}


class IreeBaseline:
    """IREE on the device with that UUID, or else that name."""

    def __init__(self, device: Mapping[str, Any]) -> None:
        self.version = version("iree-base-compiler")
        driver = rt.get_driver("vulkan")
        found = driver.query_available_devices()
        plain = str(device["uuid"]).replace("-", "")
        fitting = [d for d in found if plain and plain in d["path"].replace("-", "")]
        fitting += [d for d in found if d["name"].startswith(device["name"])]
        if not fitting:
            raise LookupError(f"IREE has no device {device['name']}, only {found}")
        self._config = rt.Config(device=driver.create_device(fitting[0]["device_id"]))
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._cache = cache / "vksched" / "bench"

    def prepare(self, spec: Spec, arrays: Arrays) -> Job:
        if spec.kind == "model":
            return self._model(spec)
        args = [self._upload(a) for a in _args(spec, arrays)]
        one = self._function(spec, 1)

        def call_one() -> Any:
            return one(*args)

        def result() -> Array:
            found = call_one()
            first = found[0] if isinstance(found, tuple) else found
            return self._download(first).reshape(result_shape(spec))

        if spec.kind == "chain":
            return TimedCalls(call_one, result, spec["ops"])
        result()
        start = time.perf_counter()
        call_one()
        calls = repeats(time.perf_counter() - start)
        calls = min(calls, max(1, MAX_BYTES // (4 * int(np.prod(result_shape(spec))))))
        if calls == 1:
            return TimedCalls(call_one, result)
        many = self._function(spec, calls)
        return TimedCalls(lambda: many(*args), result, calls, f"{calls} calls")

    def _model(self, spec: Spec) -> TimedCalls:
        """Inputs from the host and results to it in each run; a cache stays on the device."""
        data, file = network_file(spec.params, result_shape(spec))
        compiled = self._cached(data, _compile_model)
        call = self._load(compiled, "network")
        states = [self._upload(a) for a in file.state_inputs.values()]

        def run() -> Array:
            return self._download(call(*map(self._upload, file.feeds.values()), *states))

        return TimedCalls(run, run, 1, "its compiler reads ONNX")

    def _upload(self, array: Array) -> Any:
        # asdevicearray() and to_host() import host memory where the driver can, and fail where it
        # is not aligned (IREE 3.13, llvmpipe).
        device = self._config.device
        view = device.allocator.allocate_buffer_copy(
            memory_type=rt.MemoryType.DEVICE_LOCAL,
            allowed_usage=rt.BufferUsage.DEFAULT,
            device=device,
            buffer=array,
            element_type=_ELEMENTS[array.dtype.name],
        )
        return rt.DeviceArray(device, view)

    def _download(self, value: Any) -> Array:
        device, view = self._config.device, value._buffer_view
        source = view.get_buffer()
        staging = device.allocator.allocate_buffer(
            memory_type=rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE,
            allowed_usage=rt.BufferUsage.TRANSFER_TARGET | rt.BufferUsage.MAPPING_SCOPED,
            allocation_size=source.byte_length(),
        )
        done = device.create_semaphore(0)
        before, after = rt.HalFence.create_at(done, 0), rt.HalFence.create_at(done, 1)
        device.queue_copy(source, staging, wait_semaphores=before, signal_semaphores=after)
        after.wait()
        return np.array(staging.map().asarray(view.shape, np.dtype(np.float32)))

    def _function(self, spec: Spec, calls: int) -> Callable[..., Any]:
        return self._load(self._cached(module_of(spec, calls).encode(), _compile_call), "f")

    def _cached(self, source: bytes, compiler: Callable[[Path, Path], None]) -> bytes:
        """Return the compiled module of a source, from the cache if it is there."""
        key = hashlib.sha256(self.version.encode() + b"\n" + source).hexdigest()[:24]
        compiled = self._cache / f"iree-{key}.vmfb"
        if not compiled.exists():
            self._cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:
                path, output = Path(folder) / "source", Path(folder) / "made.vmfb"
                path.write_bytes(source)
                compiler(path, output)
                partial = compiled.with_suffix(f".{os.getpid()}")
                partial.write_bytes(output.read_bytes())
                os.replace(partial, compiled)
        return compiled.read_bytes()

    def _load(self, compiled: bytes, name: str) -> Callable[..., Any]:
        context = rt.SystemContext(config=self._config)
        context.add_vm_module(rt.VmModule.copy_buffer(context.instance, compiled))
        function: Callable[..., Any] = context.modules.module[name]
        return function


def _compile_call(source: Path, target: Path) -> None:
    _compile(source, target, COMPILE_LIMIT_S)


def _compile_model(source: Path, target: Path) -> None:
    imported = target.with_suffix(".mlir")
    importer = "iree.compiler.tools.import_onnx"
    _tool(importer, COMPILE_LIMIT_S, str(source), "-o", str(imported))
    _compile(imported, target, COMPILE_MODEL_LIMIT_S, "--iree-input-type=onnx")


def _compile(source: Path, target: Path, limit_s: float, *options: str) -> None:
    module = "iree.compiler.tools.scripts.iree_compile"
    device = "--iree-hal-target-device=vulkan"
    _tool(module, limit_s, device, *options, str(source), "-o", str(target))


def _tool(module: str, limit_s: float, *arguments: str) -> None:
    """Run one of its compiler's programs; raises Skip where that fails."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        raise Skip(f"its compiler took more than {limit_s} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error:" in line]
        raise Skip(f"its compiler: {(lines or ['failed'])[0][-200:]}")


def _args(spec: Spec, arrays: Arrays) -> list[Array]:
    """Return the operands in the order of the function's: convolutions take a padded image."""
    values = [a for _, a in sorted(arrays.items(), key=lambda item: (item[0][0] == "w", item[0]))]
    if spec.kind == "conv" and spec.get("pad"):
        pad = spec["pad"]
        values[0] = np.pad(values[0], ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    if spec.kind == "conv" and spec.get("groups", 1) > 1:
        values[1] = values[1][:, 0]
    return [np.ascontiguousarray(a) for a in values]


def open_baseline(device: Mapping[str, Any]) -> IreeBaseline:
    return IreeBaseline(device)
