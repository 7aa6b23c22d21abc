"""A pytest plugin for llama.cpp's server tests: no downloads, and outcomes as JSON lines.

LLAMA_TESTS_OUTCOMES names the file of the outcomes. The plugin is loaded with `-p`, in the
environment of the tests, by scripts/checks/llama_tests.py.
"""

from __future__ import annotations

import json
import os
from typing import Any

OUTCOMES_VARIABLE = "LLAMA_TESTS_OUTCOMES"


def pytest_configure(config: Any) -> None:
    import utils  # of the tests

    utils.ServerPreset.load_all = staticmethod(lambda: None)  # it downloads all models


def pytest_runtest_logreport(report: Any) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    reason = crash.message if crash else ""
    shim = [line for line in report.capstdout.splitlines() if line.startswith("[shim]")]
    shim += [line for line in report.capstderr.splitlines() if line.startswith("[shim]")]
    entry = {"test": report.nodeid, "outcome": report.outcome, "reason": (shim or [reason])[0]}
    with open(os.environ[OUTCOMES_VARIABLE], "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
