"""How the command line starts: quickly, with lazy names, and no traceback after Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

import vksched

ROOT = Path(vksched.__file__).parents[1]
WAYS = {
    "module": "import runpy, sys; sys.argv[:] = ['vksched', 'ops']; "
    "runpy.run_module('vksched', run_name='__main__', alter_sys=True)",
    "script": "import sys; from vksched.__main__ import main; sys.argv[:] = ['vksched', 'ops']; "
    "sys.exit(main())",
}


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    args: Sequence[str] = (sys.executable, *options, "-c", textwrap.dedent(code))
    return subprocess.run(args, capture_output=True, text=True, env=env, timeout=100, check=False)


PRESS = """
import builtins, os, signal
real = builtins.__import__

def press(name, globals=None, locals=None, fromlist=(), level=0):
    if name == {name!r}:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):  # handlers are called between instructions
            pass
    return real(name, globals, locals, fromlist, level)

builtins.__import__ = press
"""


@pytest.mark.skipif(os.name != "posix", reason="no such signals")
@pytest.mark.parametrize("name", ["cli", "numpy", "click"])
@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_while_it_is_imported_shows_no_traceback(way: str, name: str) -> None:
    # As in a terminal: what a script starts in the background, as a suite may be, ignores it.
    minded = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    done = python(minded + PRESS.format(name=name) + WAYS[way])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nAborted!\n")


@pytest.mark.skipif(os.name != "posix", reason="no such signals")
def test_an_ignored_signal_stays_ignored() -> None:
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    done = python(ignored + PRESS.format(name="cli") + WAYS["script"].replace("'ops'", "'-h'"))
    assert done.returncode == 0 and "Usage: vksched" in done.stdout and done.stderr == ""


def test_a_command_is_imported_when_it_is_asked_for() -> None:
    done = python(
        """
        import click, sys
        from vksched.cli import MODULES, import_named, main

        def imported():
            place = "vksched.cli.commands."
            return {name for name in MODULES if place + MODULES[name] in sys.modules}

        import_named(["--help", "model.gguf"])
        assert not imported()
        import_named(["-x", "generate", "bench"])
        assert imported() == {"chat", "generate"}
        context = click.Context(main)
        for name in main.list_commands(context):
            assert main.get_command(context, name).name == name
        assert imported() == set(MODULES) and main.get_command(context, "cli") is None
        """
    )
    assert not done.stderr and done.returncode == 0


def test_the_package_alone_imports_next_to_nothing() -> None:
    done = python(
        """
        import sys
        before = set(sys.modules)
        import vksched
        assert vksched.__version__
        print(*set(sys.modules) - before)
        vksched.relu
        assert "numpy" in sys.modules
        """
    )
    names = set(done.stdout.split())
    assert not done.stderr and names <= {
        "vksched",
        "vksched.common",
        "vksched.common.op_loaders",
        "vksched.common.version",
        "__future__",
    }


def test_a_scheduler_without_a_cluster_needs_no_ssl() -> None:
    done = python(
        """
        import sys
        sys.modules["ssl"] = sys.modules["_ssl"] = None
        import vksched as vs
        vs.Cluster
        with vs.Scheduler(["cpu"]) as sched:
            print(sched.compile(vs.constant([3.0]) * 2.0)())
        """
    )
    assert (done.stdout.strip(), done.stderr) == ("[6.]", "")


def test_names_are_there_at_their_first_use() -> None:
    done = python(
        """
        import vksched as vs
        print(vs.onnxruntime.__name__, vs.Scheduler.__name__, vs.relu.__name__)
        try:
            vs.nothing
        except AttributeError as error:
            print(error)
        print(hasattr(vs, "__wrapped__"), "relu" in dir(vs), "onnxruntime" in dir(vs))
        from vksched import *
        print(matmul.__name__, load.__name__)
        from vksched import errors
        print(errors.__name__)
        """
    )
    assert done.stderr == "" and done.stdout.splitlines() == [
        "vksched.onnxruntime Scheduler relu",
        "module 'vksched' has no attribute 'nothing'",
        "False True True",
        "matmul load",
        "vksched.common.errors",
    ]


def test_the_command_is_started_by_the_module_that_minds_ctrl_c() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'vksched = "vksched.__main__:main"' in text
