"""llama.cpp's server on the CPU or on one Vulkan device.

Without other settings it is the server of the package xllamacpp, which computes on the CPU.
LLAMA_SERVER names the program `llama-server` of another build, for Vulkan. All slots fit into one
unified KV cache. On the CPU it has all threads of the process, or half of them, whichever is faster
in a case, because its threads spin.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from .protocol import Job, Skip
from .server_process import Command, ServerProcess
from .serving_job import ServingJob
from .workloads import SERVING, Arrays, Spec

PROGRAM_VARIABLE = "LLAMA_SERVER"
VISIBLE = "GGML_VK_VISIBLE_DEVICES"
"""Without it, llama.cpp ignores software devices."""
ALL_LAYERS = 999
XLLAMACPP = """
import json, sys, threading
import xllamacpp
options = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
params.model.path, params.port = options["file"], options["port"]
params.n_parallel, params.n_ctx = options["slots"], options["context"]
params.kv_unified, params.n_gpu_layers, params.cache_ram_mib = True, options["layers"], 0
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
server = xllamacpp.Server(params)
threading.Event().wait()
"""


def threads() -> int:
    """Return the number of threads that this process may use."""
    found = getattr(os, "sched_getaffinity", None)
    return len(found(0)) if found else os.cpu_count() or 1


class LlamaServer:
    """The server on one device. device: its name in llama.cpp, "" for the CPU. program: the path of
    llama-server; "" for xllamacpp.
    """

    def __init__(self, program: str, device: str, env: Mapping[str, str], version: str) -> None:
        self.version = version
        self._program, self._device, self._env = program, device, env
        self._open: dict[int, ServerProcess] = {}
        self._what: tuple[Any, ...] = ()

    def prepare(self, spec: Spec, arrays: Arrays) -> Job:
        if spec.kind != SERVING:
            raise Skip("llama-server is measured with clients only")
        counts = {threads()} if self._device else {threads(), max(1, threads() // 2)}
        self._start(spec, sorted(counts))
        jobs = {}
        for count, server in self._open.items():
            note = "" if self._device else f"{count} threads" if count > 1 else "1 thread"
            jobs[count] = ServingJob(server, spec, note)
        if len(jobs) == 1:
            return jobs.popitem()[1]
        trials = {count: ServingJob(server, spec) for count, server in self._open.items()}
        seconds = {count: trial.sample() for count, trial in trials.items()}
        return jobs[min(seconds, key=seconds.__getitem__)]

    def _start(self, spec: Spec, counts: Sequence[int]) -> None:
        """Start a server for each number of threads, or use those of the case before."""
        what = tuple(spec[key] for key in ("file", "slots", "context"))
        if self._what == what:
            return
        for server in self._open.values():
            server.close()
        self._open, self._what = {}, what
        for count in counts:
            self._open[count] = ServerProcess(self._command(spec, count), self._env)

    def _command(self, spec: Spec, count: int) -> Command:
        context, layers = spec["slots"] * spec["context"], ALL_LAYERS if self._device else 0

        def command(port: int) -> list[str]:
            if not self._program:
                options = {"file": spec["file"], "port": port, "slots": spec["slots"]}
                options |= {"context": context, "layers": layers, "threads": count}
                return [sys.executable, "-c", XLLAMACPP, json.dumps(options)]
            words = ["--model", spec["file"], "--host", "127.0.0.1", "--port", port]
            words += ["--parallel", spec["slots"], "--ctx-size", context, "--kv-unified"]
            words += ["--threads", count, "--n-gpu-layers", layers, "--cache-ram", 0]
            words += ["--device", self._device or "none"]
            return [self._program, *map(str, words)]

        return command


def open_baseline(device: Mapping[str, Any]) -> LlamaServer:
    """Return llama-server on the device of this name."""
    on_cpu = device["index"] < 0
    program = os.environ.get(PROGRAM_VARIABLE, "")
    env = {VISIBLE: "" if on_cpu else str(device["index"])}
    if not program:
        import xllamacpp  # noqa: F401  # a missing package is reported at once

        if not on_cpu:
            raise LookupError(
                f"the package xllamacpp computes on the CPU; {PROGRAM_VARIABLE} names the program "
                "llama-server of a build for Vulkan"
            )
        return LlamaServer("", "", env, f"xllamacpp {version('xllamacpp')}")
    about = _output([program, "--version"], env)
    number = next((line for line in about if line.startswith("version")), "")
    if on_cpu:
        return LlamaServer(program, "", env, number)
    names = [line.strip() for line in _output([program, "--list-devices"], env)]
    found = [name.split(":")[0] for name in names if f": {device['name']}" in name]
    if not found:
        listed = "; ".join(name for name in names if ": " in name) or "none"
        raise LookupError(f"llama-server takes no {device['name']}, only {listed}")
    return LlamaServer(program, found[0], env, number)


def _output(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    done = subprocess.run(
        command,
        env={**os.environ, **env},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=60,
        check=True,
    )
    return (done.stdout + done.stderr).splitlines()
