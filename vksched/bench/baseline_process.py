"""Baseline process: control of a baseline's worker by JSON lines, with timeouts.

    this process --{"do": "prepare", "spec": ...}--> worker (baselines/protocol.py, in any Python)
                 <--{"nmse": ..., "note": ...}------

A worker that exits, hangs or sends invalid responses has no result for that case; the next case
starts a new one, up to RESTARTS times. Between requests the worker is stopped, so it cannot detect
a closed pipe: on Linux the kernel kills it together with this process.

Examples: tests/bench/test_baselines.py.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .baselines.protocol import OWNED
from .baselines.workloads import LANGUAGE, SERVING, Spec

FOLDER = Path(__file__).resolve().parent
START_LIMIT_S, PREPARE_LIMIT_S, MEASURE_LIMIT_S = 60.0, 120.0, 120.0
SLOW_LIMITS_S = {"model": 240.0, LANGUAGE: 900.0, SERVING: 2400.0}
"""Timeouts by kind of case. Some baselines, for example IREE, compile models for minutes, once for
all devices. A prompt of 512 tokens takes minutes on a software device, 16 answers more.
"""
RESTARTS = 3
_START = (
    "import runpy, sys; folder = sys.argv.pop(1); sys.path[0] = folder; "
    "runpy.run_module('baselines', run_name='__main__', alter_sys=False)"
)


class BaselineFailed(Exception):
    """The process of a baseline has failed, with the reason."""


class BaselineMissing(BaselineFailed):
    """The baseline cannot be imported or does not support the device."""


class BaselineProcess:
    """One baseline on one device; see `rounds.Runner`.

    pythons: interpreters to try in order. folder: folder of its file, unless it is part of the
    package.
    """

    def __init__(
        self,
        name: str,
        device: Mapping[str, Any],
        pythons: Sequence[str] = (sys.executable,),
        command: Sequence[str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self.version = ""
        self.latencies_s: dict[str, float] = {}
        self._device = dict(device)
        self._folder = folder
        self._commands = [list(command)] if command else [self._command(p) for p in pythons]
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._stderr_file = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._starts = 0
        self._limit_s = MEASURE_LIMIT_S
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def _command(self, python: str) -> list[str]:
        own = [] if self._folder is None else [str(self._folder)]
        return [python, "-c", _START, str(FOLDER), self.name, json.dumps(self._device), *own]

    def start(self) -> None:
        """Start a worker. Raise BaselineMissing if no Python has the baseline, or it does not know
        the device.
        """
        self._starts += 1
        reasons: dict[str, None] = {}
        for command in list(self._commands):
            try:
                self._launch(command)
                hello = self._answer(START_LIMIT_S)
            except (OSError, BaselineFailed) as error:
                self.kill()
                reasons[str(error)] = None
                continue
            if "missing" not in hello:
                self.version = str(hello.get("version", ""))
                self._commands = [command]
                return
            reasons[str(hello["missing"])] = None
            self.kill()
        raise BaselineMissing("; ".join(reasons))

    def _launch(self, command: Sequence[str]) -> None:
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", OWNED)}
        if threading.current_thread() is threading.main_thread():
            env[OWNED] = "1"  # the kernel signals the child at the end of the thread that starts it
        self._stderr_file.seek(0)
        self._stderr_file.truncate()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr_file,
            encoding="utf-8",
            errors="replace",
            env=env,
        )
        self._lines = queue.Queue()
        threading.Thread(target=_read, args=(self._process, self._lines), daemon=True).start()

    def _answer(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise BaselineFailed(f"no answer within {limit_s:g} s") from None
        if line is None:
            raise BaselineFailed(f"its process ended{self._stderr_tail()}")
        try:
            answer = json.loads(line)
        except ValueError:
            raise BaselineFailed(f"an answer that is no JSON: {line[:80]!r}") from None
        if not isinstance(answer, dict):
            raise BaselineFailed(f"an answer that is no object: {line[:80]!r}")
        return answer

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Return the response; on failure end the process and raise BaselineFailed."""
        try:
            if self._process is None or self._process.stdin is None:
                raise BaselineFailed("its process ended")
            try:
                self._signal("SIGCONT")
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
            except OSError:
                raise BaselineFailed(f"its process ended{self._stderr_tail()}") from None
            answer = self._answer(limit_s)
            # some workers wait by spinning, on a core that the next one needs
            self._signal("SIGSTOP")
            return answer
        except BaselineFailed:
            self.kill()
            raise

    def _signal(self, name: str) -> None:
        """Stop or continue the process, where the system supports it; Windows does not."""
        number = getattr(signal, name, None)
        if number is not None and self._process is not None:
            self._process.send_signal(number)

    def prepare(self, spec: Spec) -> dict[str, Any]:
        """Prepare the case; return its error relative to numpy's result, or why it is skipped."""
        if self._process is None:
            if self._starts > RESTARTS:
                return {"error": "its process failed too often"}
            try:
                self.start()
            except BaselineFailed as error:
                return {"error": str(error)}
        self._limit_s, self.latencies_s = SLOW_LIMITS_S.get(spec.kind, MEASURE_LIMIT_S), {}
        try:
            request = {"do": "prepare", "spec": spec.as_dict()}
            return self.ask(request, SLOW_LIMITS_S.get(spec.kind, PREPARE_LIMIT_S))
        except BaselineFailed as error:
            return {"error": str(error)}

    def measure(self, seconds: float) -> list[float]:
        """Return the seconds per call, several times. Raise BaselineFailed on failure."""
        answer = self.ask({"do": "measure", "seconds": seconds}, self._limit_s + seconds)
        samples = answer.get("seconds")
        good = isinstance(samples, list) and samples
        if not good or not all(isinstance(s, (int, float)) and s > 0 for s in samples or ()):
            self.kill()
            raise BaselineFailed(str(answer.get("error", f"no times: {answer}"))[:200])
        self.latencies_s = dict(answer.get("latencies", {}))
        return [float(s) for s in samples or ()]

    def drop(self) -> None:
        """Release the case."""
        if self._process is not None:
            try:
                self.ask({"do": "drop"}, MEASURE_LIMIT_S)
            except BaselineFailed:
                return  # the next case starts a new process

    def _stderr_tail(self) -> str:
        self._stderr_file.seek(0)
        lines = [line.strip() for line in self._stderr_file.read().splitlines() if line.strip()]
        return f": {lines[-1][:200]}" if lines else ""

    def kill(self) -> None:
        """Kill the process; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # unsent data cannot be flushed

    def close(self) -> None:
        self.kill()
        self._stderr_file.close()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.put(line)
    except ValueError:
        pass  # closed by kill()
    lines.put(None)
