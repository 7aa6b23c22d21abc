"""Coopmat check: compares products by cooperative matrices with exact results, once per device and
driver.

    listed driver (topology/coopmat_drivers.py) --> result on disk --> Limits.coopmat_checked
                                                --> none: products of small integers in a child
    wrong, crashed, hung, lost --> result on disk --> warning, the device has no matrices
    no child, no memory        --> nothing is known: the tuner measures first, as for other drivers

    <cache>/coopmat/<hash of device, driver, limits and shaders>.json: {"failure": "" or the reason}

A child process runs the products, because a driver may crash. A crash marker covers the cases that
a child does not: the whole machine hangs, or no child can be started. `VKSCHED_COOPMAT=0` turns
cooperative matrices off, without a check. Examples: tests/runtime/test_coopmat_check.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...common.dtypes import FLOAT16, FLOAT32, UINT32, NDArray, TensorType, numpy_dtype
from ...common.errors import DeviceLost, DeviceTimeout, VkschedError
from ...common.user_warning import warn
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import OUTPUT, SCRATCH, STATUS, Call, get_op
from ...ir.precision import MIXED, PRECISION
from ...ops.linalg.coopmat import COOPMAT_SHADERS, guessed_shape, guessed_tiles
from ...ops.lowering.lower import lower, variants_of
from ...ops.quantized.gguf_formats import format_of
from ...ops.quantized.quant_gemm import quant_gemm_tiles
from ...storage.cache_folder import folder_of, optional_write
from ...storage.crash_marker import CrashMarker, crashed_variants, forget
from ...storage.disk_cache import DiskCache
from ...topology.coopmat_drivers import lists_coopmat
from ...topology.device_spec import DeviceSpec
from ...topology.limits import Limits
from . import device_probe, driver_probe
from .shaders import left_out, load_manifest
from .single_dispatch import Place, SingleDispatcher
from .vulkan_device import VulkanDevice
from .word_view import read_words, write_words

MAX_FILES = 16
"""Maximum number of results on disk; the oldest are removed."""
WAIT_S = 10.0
"""A product without a result by then hangs; it takes less than a millisecond."""
CHECKED_STEPS = 3 * 32 + 8
"""Length of a sum: complete tiles along k, and a part of one."""
LARGEST = 4
"""Largest operand: all sums are integers below 2048, which float16 represents exactly."""
_FORMAT, _QUANTIZED_STEPS = "q8_0", 3 * 32
"""Format of a quantized weight and length of its sums: whole runs."""
CRASHED = "a program ended, or the machine was restarted, during the check"
_MARK = "vksched-coopmat:"
_MARKED = "check", "products"

_lock = threading.Lock()
_known: dict[str, str | None] = {}
"""Results of this process by name, for users without a cache folder; None if a check had none."""
_warned: set[str] = set()


def with_checked_coopmat(
    spec: DeviceSpec, info: device_probe.DeviceInfo, runs: bool = True
) -> DeviceSpec:
    """Return the spec of a device with the result of its check: matrices that calls may use without
    a measurement, or no matrices.

    Parameters
    ----------
    runs
        False to use only a result that is known already.
    """
    failure = coopmat_failure(spec, info, runs)
    if failure is None:
        return spec
    if not failure:
        return replace(spec, limits=replace(spec.limits, coopmat_checked=True))
    name = _name_of(spec)
    if name not in _warned:
        _warned.add(name)
        file = _files().path(name)
        warn(
            f"[devices] {info.name} ({info.label}, {info.driver}) is used without cooperative "
            f"matrices: {failure}; try another version of the driver, or VKSCHED_COOPMAT=0 to turn "
            f"them off without this warning{f'; delete {file} to repeat the check' if file else ''}"
        )
    return replace(spec, limits=replace(spec.limits, matrices=()))


def coopmat_failure(
    spec: DeviceSpec, info: device_probe.DeviceInfo, runs: bool = True
) -> str | None:
    """Return the failure of a device's check, "" if all products were exact. Return None if the
    driver is not listed, or if the result is not known and the check may or can not run.
    """
    listed = lists_coopmat(info.driver_id, info.driver, info.label)
    if not listed or spec.limits.software or not guessed_tiles(spec.limits) or left_out():
        return None
    name = _name_of(spec)
    with _lock:
        if name not in _known:
            failure = _result(name, info.index, runs)
            if failure is None and not runs:
                return None
            _known[name] = failure
        return _known[name]


def _name_of(spec: DeviceSpec) -> str:
    """Return the file name of the result of a device, its driver and the shaders."""
    manifest = load_manifest()
    names = (*COOPMAT_SHADERS, f"quant_gemm_coopmat_{_FORMAT}")
    shaders = [str(manifest[name]["sha256"]) for name in names]
    identity = (spec.memory_node, spec.label, spec.driver, spec.limits.kernel_text(), *shaders)
    return f"{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]}.json"


def _files() -> DiskCache:
    return DiskCache(folder_of("coopmat"), "devices", max_files=MAX_FILES)


def _result(name: str, index: int, runs: bool) -> str | None:
    """Return the failure of a check, "" if there was none; None if it is not known. The lock is
    held.
    """
    files = _files()
    path = files.path(name)
    failure = files.get(name, lambda content: str(json.loads(content)["failure"]))
    if failure is None and crashed_variants(path):
        failure = CRASHED
    elif failure is not None or not runs:
        return failure
    else:
        failure = _run(path, index)
    if failure is not None and files.folder is not None:
        with optional_write(files.folder):
            files.put(name, json.dumps({"failure": failure}).encode())
            forget(path)
    return failure


def _run(path: Path | None, index: int) -> str | None:
    """Return the failure of a check that runs now, in a child process if possible; None if it had
    no result.
    """
    marker = CrashMarker(path)
    marker.begin(*_MARKED, "")
    try:
        if not driver_probe.child_possible():
            return check_device(index)
        code = driver_probe.child_code(__name__, str(index))
        changes = {"VKSCHED_PROBE": "inprocess", "VKSCHED_TRACE": "", "VKSCHED_MONITOR": ""}
        died, out, _ = driver_probe.run_child(code, changes)
        for line in out.splitlines():
            if line.startswith(_MARK):
                result: str | None = json.loads(line[len(_MARK) :])
                return result
        blames_driver = died is not None and died.startswith(driver_probe.DRIVER_ENDINGS)
        return f"the check {died}" if blames_driver else None
    finally:
        marker.close(failed=False)


def child(index: int) -> None:
    """Run in the child: print the result as one marked line."""
    driver_probe.without_core_file()
    print(_MARK + json.dumps(check_device(index)), flush=True)
    os._exit(0)  # some drivers crash at process exit, after the result


def check_device(index: int) -> str | None:
    """Return the failure of the products of a device, "" if there is none; None without a result,
    for example if other programs use the device's memory.

    Parameters
    ----------
    index
        Its index in loader order.
    """
    info = next(each for each in device_probe.list_devices() if each.index == index)
    try:
        device = VulkanDevice(device_probe.device_spec(info), index)
        failure = check_products(device)
        device.close()
    except (DeviceLost, DeviceTimeout) as error:
        return f"the check failed: {error}"
    except VkschedError:
        return None
    return failure


def check_products(device: VulkanDevice) -> str:
    """Return a description of the first wrong product, "" if all are exact."""
    singles = SingleDispatcher(device.context, device.disable_aliasing)
    for call in _quantized_calls(device.limits):
        x, words, values = _quantized_operands(call)
        got = _product(device, singles, "quantized_linear", call, (x, words)).astype(np.float64)
        wrong = int(np.count_nonzero(got != x.astype(np.float64) @ values.T))
        if wrong:
            return (
                f"{wrong} of {got.size} results of a quantized product by {call.variant} are wrong"
            )
    for call in _calls(device.limits):
        a, b = _operands(call)
        left = a.astype(np.float64)
        right = b.astype(np.float64)
        expected = left @ (right.T if call.attrs["transpose_b"] else right)
        got = _product(device, singles, "matmul", call, (a, b)).astype(np.float64)
        wrong = int(np.count_nonzero(got != expected))
        if wrong:
            how = "b transposed" if call.attrs["transpose_b"] else "b not transposed"
            return (
                f"{wrong} of {expected.size} results of a product of {call.inputs[0].dtype} by "
                f"{call.variant}, {how}, are wrong"
            )
    return ""


def _calls(limits: Limits) -> Iterator[Call]:
    """Yield products of both types and with both layouts of b, with each tile that a static choice
    selects for them, and with edges.
    """
    matmul = get_op("matmul")
    for dtype in (FLOAT32, FLOAT16):
        for transpose_b in (False, True):
            call = _call(limits, dtype, transpose_b, 256, 256)
            for tile in guessed_tiles(limits, names=variants_of(matmul, call)):
                m, n = tile.rows + tile.rows // 2, tile.columns + 8
                yield replace(_call(limits, dtype, transpose_b, m, n), variant=tile.name)


def _call(limits: Limits, dtype: str, transpose_b: bool, m: int, n: int) -> Call:
    attrs: dict[str, AttrValue] = {"transpose_a": False, "transpose_b": transpose_b}
    if dtype == FLOAT32:
        attrs[PRECISION] = MIXED
    b = (n, CHECKED_STEPS) if transpose_b else (CHECKED_STEPS, n)
    types = TensorType((m, CHECKED_STEPS), dtype), TensorType(b, dtype)
    return Call(types, TensorType((m, n), dtype), Attrs(attrs), limits)


def _operands(call: Call) -> tuple[NDArray, NDArray]:
    """Return operands with small integers."""
    rng = np.random.default_rng(1)
    a, b = (
        rng.integers(-LARGEST, LARGEST, t.shape, endpoint=True).astype(numpy_dtype(t.dtype))
        for t in call.inputs
    )
    return a, b


def _quantized_calls(limits: Limits) -> Iterator[Call]:
    """Yield products by quantized weights with each tile that a static choice may select."""
    kind, k = format_of(_FORMAT), _QUANTIZED_STEPS
    for tile in quant_gemm_tiles(limits).values():
        if (tile.shape, tile.subgroup) == guessed_shape(limits) and not tile.fp16_sums:
            m, n = tile.rows + tile.rows // 2, tile.columns + 8
            types = TensorType((m, k)), TensorType((n, kind.row_words(k)), UINT32)
            attrs = Attrs({"format": _FORMAT, PRECISION: MIXED})
            yield Call(types, TensorType((m, n)), attrs, limits, tile.name)


def _quantized_operands(call: Call) -> tuple[NDArray, NDArray, NDArray]:
    """Return x and words with small integers, and the values of the words."""
    rng, k = np.random.default_rng(2), _QUANTIZED_STEPS
    x = rng.integers(-LARGEST, LARGEST, call.inputs[0].shape, endpoint=True).astype(np.float32)
    values = rng.integers(-LARGEST, LARGEST, (call.output.shape[-1], k), np.int8, endpoint=True)
    blocks: NDArray = np.empty((len(values), k // 32, 34), np.uint8)
    blocks[..., :2] = np.ones(1, np.float16).view(np.uint8)
    blocks[..., 2:] = values.view(np.uint8).reshape(len(values), k // 32, 32)
    words = format_of(_FORMAT).pack_u32(blocks.reshape(len(values), -1), k)
    return x, words, values.astype(np.float64)


def _product(
    device: VulkanDevice,
    singles: SingleDispatcher,
    op: str,
    call: Call,
    operands: tuple[NDArray, NDArray],
) -> NDArray:
    """Return the result of a product on a device."""
    lowering = lower(get_op(op), call)
    sizes = *(t.words for t in call.inputs), call.output.words, lowering.scratch_words, 4
    buffers = [device.context.host(max(words, 1), read=True) for words in sizes]
    recording = device.context.recording()
    named = {OUTPUT: buffers[2], SCRATCH: buffers[3], STATUS: buffers[4]}
    for buffer, array in zip(buffers, operands, strict=False):
        write_words(buffer.array, array)
    buffers[2].array[:] = 0xFFFFFFFF  # NaN: what no workgroup writes is wrong
    recording.begin()
    recording.barrier("host", "shader")
    singles.record(recording, lowering, lambda i: Place(named[i] if i < 0 else buffers[i], 0))
    recording.barrier("shader", "host")
    recording.end()
    recording.submit()
    recording.wait(WAIT_S)
    words = buffers[2].array.copy()
    result = read_words(words, numpy_dtype(call.output.dtype), call.output.shape)
    recording.close()
    return result
