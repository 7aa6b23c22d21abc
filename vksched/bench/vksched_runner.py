"""vksched as a runner: a compiled graph that is replayed, with all operands on the device.

    timed:     state x0, weight w0 -> op, op, ... (several calls, each with its own data)
                                      -> the first word of each result          one submission
    baseline:  state x0, ...       -> the first word of each operand            one submission
    seconds of a call = (timed - baseline) / calls

A call's time includes its dispatches, its barriers and its share of the scheduler's work per node;
submission, fence and the copies of the words occur in both graphs and cancel. Data is in states and
weights in weights, as in a model, so that no pass can fold the computation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common.errors import OutOfMemory, UnsupportedOp, VkschedError
from ..ir.precision import SINGLE
from ..ir.tensor import Tensor, weight
from ..ops import (
    attention,
    conv,
    exp,
    gather,
    gelu,
    layer_norm,
    matmul,
    reduce_max,
    reduce_sum,
    relu,
    reshape,
    rms_norm,
    softmax,
    transpose,
)
from ..ops.creation.state import state
from ..scheduler.scheduler import Scheduler
from .baselines.protocol import repeats, sample_for
from .baselines.workloads import (
    COPY,
    EPSILON,
    FILE,
    LANGUAGE,
    SERVING,
    Array,
    Arrays,
    Spec,
    arrays_of,
)
from .networks_runner import FileRun, NetworkRun
from .transfer_bandwidth import BusCopy

if TYPE_CHECKING:
    from .language.llm_runner import LanguageRun, Model
    from .serve_runner import OwnServer, ServerRun

Tune = str | float
MAX_BYTES = 1 << 28
"""Maximum size of the operands of all calls of a submission."""


def build(spec: Spec, v: Mapping[str, Tensor]) -> Tensor:
    """Return the case as user code."""
    kind, x = spec.kind, v["x0"]
    if kind == "matmul":
        b = v["x1"] if spec.get("batch") else v["w0"]
        transposed = bool(spec.get("transpose_a")), bool(spec.get("transpose_b"))
        return matmul(x, b, transpose_a=transposed[0], transpose_b=transposed[1])
    if kind == "binary":
        return x + v["x1"] if spec["op"] == "add" else x * v["x1"]
    if kind == "unary":
        return {"relu": relu, "gelu": gelu, "exp": exp}[spec["op"]](x)
    if kind == "softmax":
        return softmax(x)
    if kind == "layer_norm":
        return layer_norm(x, v["w0"], v["w1"], eps=EPSILON)
    if kind == "rms_norm":
        return rms_norm(x, v["w0"], eps=EPSILON)
    if kind == "reduce":
        return {"sum": reduce_sum, "max": reduce_max}[spec["op"]](x, axis=spec["axis"])
    if kind == "transpose":
        return transpose(x, tuple(spec["axes"]))
    if kind == "gather":
        return gather(x, v["x1"])
    if kind == "conv":
        sizes = {"stride": spec.get("stride", 1), "padding": spec.get("pad", 0)}
        return conv(x, v["w0"], **sizes, groups=spec.get("groups", 1))
    if kind == "attention":
        shape = (1, spec["heads"], spec["tokens"], spec["width"])
        q, k, values = (reshape(v[name], shape) for name in ("x0", "x1", "x2"))
        return reshape(attention(q, k, values), shape[1:])
    if kind == "chain":
        for _ in range(spec["ops"]):
            x = x + v["x1"]
        return x
    raise UnsupportedOp(f"[bench] no graph for {kind}")


class _Pair:
    """The compiled graph of some calls, and the baseline graph."""

    def __init__(self, sched: Scheduler, spec: Spec, arrays: Arrays, calls: int) -> None:
        shared = {n: weight(a, name=n) for n, a in arrays.items() if n.startswith("w")}
        timed: list[Tensor] = []
        baseline: list[Tensor] = []
        self.held: list[Tensor] = []
        for _ in range(calls):
            data = {n: state(a, backup=False) for n, a in arrays.items() if n.startswith("x")}
            self.held += data.values()
            timed.append(_first_word(build(spec, {**shared, **data})))
            baseline.append(_first_word(data["x0"]))
        self.timed = sched.compile(timed, precision=spec.get("precision", SINGLE))
        self.baseline = sched.compile(baseline)
        self.calls = calls
        self._ops = int(spec.get("ops", 1))
        self._sched = sched

    def seconds(self) -> float:
        """Return the seconds per call, from one run of each graph."""
        alone = _seconds(self.baseline)
        return max(_seconds(self.timed) - alone, 1e-9) / self.calls / self._ops

    def close(self) -> None:
        self.timed.close()
        self.baseline.close()
        for one in self.held:
            self._sched.delete_state(one)


def _first_word(x: Tensor) -> Tensor:
    return reshape(x, (-1,))[0:1]


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _other_devices(devices: Collection[str]) -> str:
    return f"{', '.join(sorted(devices))} takes a part of it" if devices else ""


class VkschedRunner:
    """vksched on one device; see `rounds.Runner`. tune: tuning mode of its schedulers."""

    name = "vksched"
    version = ""

    def __init__(self, device: str, tune: Tune = "auto") -> None:
        self._tune: Tune = tune
        self._sched = Scheduler([device], on_device_failure="raise", tune=tune)
        # Single ops are measured unfused.
        self._plain = Scheduler([device], on_device_failure="raise", optimize=False, tune=tune)
        self.device = self._sched.devices[0]
        self._device = self.device.name
        self._wholes = {
            "model": self._model,
            LANGUAGE: self._reading,
            FILE: self._file,
            COPY: self._copy,
            SERVING: self._serving,
        }
        self._pair: _Pair | NetworkRun | FileRun | LanguageRun | BusCopy | ServerRun | None = None
        self._language: Model | None = None
        self._server: OwnServer | None = None

    def prepare(self, spec: Spec) -> dict[str, Any]:
        """Prepare the case and return its error relative to numpy."""
        self.drop()
        if spec.kind in self._wholes:
            try:
                return self._wholes[spec.kind](spec)
            except (UnsupportedOp, OutOfMemory) as error:
                return {"skip": str(error)}
            except VkschedError as error:
                return {"error": str(error)}
        arrays = arrays_of(spec)
        try:
            got, where = self._result(spec, arrays)
            if where != {self._device}:
                other = ", ".join(sorted(where - {self._device}))
                return {"skip": f"{other} takes a part of it"}
            pair = _Pair(self._for(spec), spec, arrays, 1)
            pair = pair if spec.kind == "chain" else self._repeat(pair, spec, arrays)
            self._pair = pair
        except (UnsupportedOp, OutOfMemory) as error:
            return {"skip": str(error)}
        except VkschedError as error:
            return {"error": str(error)}
        calls = pair.calls
        return {"result": got, "note": f"{calls} calls" if calls > 1 else ""}

    def _model(self, spec: Spec) -> dict[str, Any]:
        self._pair = run = NetworkRun(self._sched, spec)
        answer = {"result": run.result(), "bytes": run.memory_bytes}
        return {**answer, "note": _other_devices(run.devices - {self._device})}

    def _file(self, spec: Spec) -> dict[str, Any]:
        self._pair = run = FileRun(self._sched, spec["file"], arrays_of(spec))
        return {"result": run.result(), "note": _other_devices(run.devices - {self._device})}

    def _copy(self, spec: Spec) -> dict[str, Any]:
        self._pair = run = BusCopy(self.device, arrays_of(spec)["x0"], spec["direction"])
        return {"result": run.result(), "note": "the device's own copy, of mapped memory"}

    def _reading(self, spec: Spec) -> dict[str, Any]:
        from .language.llm_runner import LanguageRun, Model

        precision = spec.get("precision", SINGLE)

        def opened() -> Model:
            where = self._device, spec["file"], spec["context"], spec["cache_type"]
            return Model(*where, precision, self._tune)

        if self._language is None or self._language.what != (spec["file"], precision):
            self._forget_language()
            self._language = opened()
        self._pair = run = LanguageRun(spec, self._language, opened)
        result = run.result()
        return {"result": result, "bytes": run.memory_bytes, "note": _other_devices(run.elsewhere)}

    def _serving(self, spec: Spec) -> dict[str, Any]:
        from .serve_runner import OwnServer, ServerRun

        if self._server is None or not self._server.fits(spec):
            self._close_server()
            self._server = OwnServer(self._device, spec)
        self._pair = run = ServerRun(self._server, spec)
        return {"result": run.result()}

    def _for(self, spec: Spec) -> Scheduler:
        return self._plain if spec.kind == "chain" and not spec.get("fused") else self._sched

    def _result(self, spec: Spec, arrays: Arrays) -> tuple[Array, set[str]]:
        values = {
            n: weight(a, name=n) if n.startswith("w") else state(a, backup=False)
            for n, a in arrays.items()
        }
        sched = self._for(spec)
        run = sched.compile(build(spec, values), precision=spec.get("precision", SINGLE))
        got = np.array(run())
        split_names = {run.plan.topology.devices[s.device].name for s in run.plan.splits}
        run.close()
        for name, value in values.items():
            if name.startswith("x"):
                sched.delete_state(value)
        return got, split_names

    def _repeat(self, pair: _Pair, spec: Spec, arrays: Arrays) -> _Pair:
        """Put enough calls into a submission to amortize its overhead."""
        pair.seconds()
        calls = repeats(min(pair.seconds() for _ in range(2)))
        size = sum(a.nbytes for n, a in arrays.items() if n.startswith("x"))
        calls = min(calls, max(1, MAX_BYTES // (3 * size)))
        if calls > 1:
            pair.close()
            pair = _Pair(self._for(spec), spec, arrays, calls)
            pair.seconds()
        return pair

    def measure(self, seconds: float) -> list[float]:
        """Return the seconds per call, several times."""
        assert self._pair is not None
        return sample_for(self._pair.seconds, seconds)

    @property
    def latencies_s(self) -> dict[str, float]:
        """Latencies of the case, if it is one of a server."""
        latencies = getattr(self._pair, "latencies_s", dict[str, float])
        return dict(latencies())

    def drop(self) -> None:
        """Release the case."""
        if self._pair is not None:
            self._pair.close()
            self._pair = None

    def _forget_language(self) -> None:
        if self._language is not None:
            self._language.close()
            self._language = None

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        self.drop()
        self._forget_language()
        self._close_server()
        self._plain.close()
        self._sched.close()
