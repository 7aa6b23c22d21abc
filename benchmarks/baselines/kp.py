"""Plain Kompute with GLSL by hand, for sizes that fit its blocks: what the device gives through it.

A measure of the device and no runtime: shapes are fixed, nothing is checked, and the shaders are
compiled by glslangValidator when the bench runs.
"""

from __future__ import annotations

import importlib
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .protocol import Job, Skip, TimedCalls, fastest, repeats
from .workloads import Array, Arrays, Spec, result_shape

kp: Any
try:
    kp = importlib.import_module("kp")
except ImportError:  # as native/build.py of vksched installs it
    kp = importlib.import_module("vksched_native.kp")

INSTALL = "make setup, and glslangValidator"
DEVICES = ("vulkan",)
BLOCKS = ((8, 2, 8, 4), (8, 4, 8, 4))
NONE = np.array([], np.uint32)


class KomputeBaseline:
    """The kp package on the device of that number."""

    def __init__(self, device: Mapping[str, Any]) -> None:
        self.version = str(getattr(kp, "__version__", ""))
        self._manager = kp.Manager(device["index"])
        found = self._manager.get_device_properties()["device_name"]
        if found != device["name"]:
            raise LookupError(f"kp's device {device['index']} is {found}, not {device['name']}")

    def prepare(self, spec: Spec, arrays: Arrays) -> Job:
        if spec.get("storage") == "float16":
            raise Skip("no shader by hand for float16")
        sources = _sources(spec)
        make = self._manager.tensor
        held = {n: make(np.ascontiguousarray(a, np.float32).ravel()) for n, a in arrays.items()}
        held["r"] = make(np.zeros(int(np.prod(result_shape(spec))), np.float32))
        if spec.kind == "chain":
            held["y"] = make(np.zeros(spec["count"], np.float32))
        up = self._manager.sequence()
        up.record(kp.OpTensorSyncDevice(list(held.values()))).eval()
        jobs = [self._job(source, held, spec) for source in sources]
        return fastest(jobs)

    def _job(self, steps: list[_Step], held: Mapping[str, Any], spec: Spec) -> TimedCalls:
        known: dict[_Step, Any] = {}
        for step in steps:
            if step not in known:
                source, names, groups = step
                tensors = [held[n] for n in names]
                known[step] = self._manager.algorithm(tensors, _compile(source), groups, NONE, NONE)

        def record(times: int) -> Any:
            sequence = self._manager.sequence()
            for _ in range(times):
                for step in steps:
                    sequence.record(kp.OpAlgoDispatch(known[step]))
            return sequence

        once = record(1)

        def result() -> Array:
            once.eval()
            down = self._manager.sequence()
            down.record(kp.OpTensorSyncLocal([held["r"]])).eval()
            return np.array(held["r"].data()).reshape(result_shape(spec))

        if spec.kind == "chain":
            return TimedCalls(once.eval, result, spec["ops"])
        once.eval()
        calls = repeats(TimedCalls(once.eval, result).sample())
        many = record(calls)
        return TimedCalls(many.eval, result, calls, f"{calls} calls")


_Step = tuple[str, tuple[str, ...], tuple[int, int, int]]


def _compile(source: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder) / "case.comp", Path(folder) / "case.spv"
        path.write_text(source, encoding="utf-8")
        command = [
            "glslangValidator",
            "-V",
            "--target-env",
            "vulkan1.1",
            str(path),
            "-o",
            str(output),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return output.read_bytes()


def _shader(local: tuple[int, int], types: Mapping[str, str], body: str) -> str:
    lines = [
        "#version 450",
        f"layout(local_size_x = {local[0]}, local_size_y = {local[1]}) in;",
    ]
    for i, (name, type_) in enumerate(types.items()):
        access = "readonly " if i < len(types) - 1 else ""
        lines.append(f"layout(set = 0, binding = {i}) {access}buffer B{i} {{ {type_} {name}[]; }};")
    return "\n".join([*lines, "void main() {", "uvec3 g = gl_GlobalInvocationID;", body, "}"])


def _sources(spec: Spec) -> list[list[_Step]]:
    """Return ways to compute the case, each some dispatches."""
    kind = spec.kind
    plain = not (spec.get("batch") or spec.get("transpose_a") or spec.get("transpose_b"))
    if kind == "matmul" and spec["m"] == 1:
        return [[_matvec(spec["k"], spec["n"])]]
    if kind == "matmul" and plain:
        m, k, n = spec["m"], spec["k"], spec["n"]
        fitting = [b for b in BLOCKS if not (n % (4 * b[1] * b[2]) or m % (b[0] * b[3]) or k % 4)]
        if fitting:
            return [[_product(m, k, n, *block)] for block in fitting]
    if kind == "binary":
        op = {"add": "+", "mul": "*"}[spec["op"]]
        count = int(np.prod(spec["shape"]))
        body = f"r[g.x] = x0[g.x] {op} x1[g.x];"
        return [[_step((256, 1), ("x0", "x1", "r"), "vec4", body, (count // 1024, 1, 1))]]
    if kind == "chain":
        steps = []
        for i in range(spec["ops"]):
            a, o = ("x0" if not i else "ry"[i % 2]), "yr"[i % 2]
            body = f"{o}[g.x] = {a}[g.x] + x1[g.x];"
            steps.append(_step((64, 1), (a, "x1", o), "float", body, (1, 1, 1)))
        return [steps]
    raise Skip("no shader by hand for this")


def _step(
    local: tuple[int, int],
    names: tuple[str, ...],
    type_: str,
    body: str,
    groups: tuple[int, int, int],
) -> _Step:
    return _shader(local, dict.fromkeys(names, type_), body), names, groups


def _matvec(k: int, n: int) -> _Step:
    n4 = n // 4
    steps = "".join(f"s += x0[k + {i}u] * w0[(k + {i}u) * {n4}u + g.x];\n" for i in range(4))
    body = f"vec4 s = vec4(0);\nfor (uint k = 0u; k < {k}u; k += 4u) {{\n{steps}}}\nr[g.x] = s;"
    types = {"x0": "float", "w0": "vec4", "r": "vec4"}
    return _shader((32, 1), types, body), tuple(types), (n4 // 32, 1, 1)


def _product(m: int, k: int, n: int, tm: int, tn: int, wx: int, wy: int) -> _Step:
    n4, k4 = n // 4, k // 4
    body = [f"uint c = g.x * {tn}u, d = g.y * {tm}u;"]
    body += [f"vec4 s{i}_{j} = vec4(0);" for i in range(tm) for j in range(tn)]
    body.append(f"for (uint k = 0u; k < {k4}u; ++k) {{")
    body += [f"vec4 a{i} = x0[(d + {i}u) * {k4}u + k];" for i in range(tm)]
    for q, part in enumerate("xyzw"):
        body += [f"vec4 b{q}_{j} = w0[(k * 4u + {q}u) * {n4}u + c + {j}u];" for j in range(tn)]
        body += [f"s{i}_{j} += a{i}.{part} * b{q}_{j};" for i in range(tm) for j in range(tn)]
    body.append("}")
    body += [f"r[(d + {i}u) * {n4}u + c + {j}u] = s{i}_{j};" for i in range(tm) for j in range(tn)]
    groups = (n4 // (tn * wx), m // (tm * wy), 1)
    return _step((wx, wy), ("x0", "w0", "r"), "vec4", "\n".join(body), groups)


def open_baseline(device: Mapping[str, Any]) -> KomputeBaseline:
    return KomputeBaseline(device)
