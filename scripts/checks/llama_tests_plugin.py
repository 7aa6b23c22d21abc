"""A pytest plugin for llama.cpp's server tests: no downloads, shared servers, outcomes as JSON.

Successive tests with the same options use one server: its start takes longer than most tests.
LLAMA_TESTS_OUTCOMES names the file of the outcomes, a line of JSON per test. The plugin is loaded
with `-p`, in the environment of the tests, by scripts/checks/llama_tests.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any

from llama_server_shim import IGNORED

OUTCOMES_VARIABLE = "LLAMA_TESTS_OUTCOMES"
START_LIMIT_S = 600


def pytest_configure(config: Any) -> None:
    import utils  # of the tests

    utils.ServerPreset.load_all = staticmethod(lambda: None)  # it downloads all models
    utils.ServerProcess.start.__defaults__ = (START_LIMIT_S,)
    utils.subprocess = SharedServers()


def pytest_unconfigure(config: Any) -> None:
    import utils

    if isinstance(utils.subprocess, SharedServers):
        utils.subprocess.close()


def pytest_runtest_logreport(report: Any) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    reason = crash.message if crash else ""
    printed = (report.capstdout + report.capstderr).splitlines()
    shim = [line for line in printed if line.startswith("[shim]")]
    entry = {"test": report.nodeid, "outcome": report.outcome, "reason": (shim or [reason])[0]}
    with open(os.environ[OUTCOMES_VARIABLE], "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def effective_options(words: Sequence[str]) -> list[str]:
    """Return the options of a server that have an effect."""
    out, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if word in IGNORED:
            del rest[: IGNORED[word]]
        else:
            out.append(word)
    return out


class SharedServers:
    """Replaces the module subprocess in the tests: one server runs at a time, and goes on after a
    test until another one has other options.
    """

    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self) -> None:
        self._server: SharedServer | None = None
        self._options: list[str] = []

    def Popen(self, words: Sequence[str], **options: Any) -> SharedServer:
        wanted = effective_options(words)
        if self._server is None or self._options != wanted or self._server.poll() is not None:
            self.close()
            options |= {"stdout": None, "stderr": None}
            process = subprocess.Popen(words, **options)
            self._server, self._options = SharedServer(process), wanted
        return self._server

    def close(self) -> None:
        if self._server is not None:
            self._server.process.kill()
            self._server.process.wait()
            self._server = None


class SharedServer:
    """A process that the tests cannot end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    def poll(self) -> int | None:
        return self.process.poll()

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int:
        return 0
