"""Fixtures shared by all tests: the devices that are present, and what runs on them."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if "PYTEST_XDIST_WORKER" in os.environ:  # BLAS threads of several processes spin for each other
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
from failures import Failures
from kept_devices import _own_devices as _own_devices
from kept_devices import pooled_devices as pooled_devices
from selection import TIER, Tier, quick_items, rest_items

import vksched as vs
import vksched.onnxruntime
from vksched.engine import graph_cache
from vksched.generation import deferred_step
from vksched.monitor import socket_dir
from vksched.runtime.vulkan import device_probe

if TYPE_CHECKING:
    from cluster_nodes import StartedWorkers

os.environ.setdefault("VKSCHED_CHECK", "1")  # every run of the suite, and of its children
os.environ.pop("VKSCHED_MONITOR", None)
os.environ["VKSCHED_TUNE"] = "0"  # nothing but the static choice, whatever this machine knows
os.environ["VKSCHED_CACHE"] = os.path.join(tempfile.gettempdir(), "no results of the tests' own")

graph_cache.MIN_NODES = deferred_step.MIN_LAYERS = sys.maxsize  # passes run in each test

THOROUGH = TIER is not Tier.QUICK
"""More draws: what `make test-all` runs beyond `make test`."""
needs_posix = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no sh, no fifos and no modes of files"
)
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells in /proc")

COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""All tests that pytest found, those too that `make test` leaves out."""
LAYER_LINE = re.compile(r"^Validation Layer Info - Logging|/build/validation/messages\.pipe$")
"""Or the rest of it, where a process was forked while the line was on its way."""

NUMPY_ONLY = {"nonzero"}
"""Ops that no device runs."""


@cache
def _vulkan_names() -> tuple[str, ...]:
    return tuple(i.name for i in device_probe.list_devices() if i.name != "cpu" and i.usable)


def vulkan_names() -> list[str]:
    """Names of the Vulkan devices that can be opened, software ones too."""
    return list(_vulkan_names())


def device_sets() -> dict[str, list[str]]:
    """The device sets of the suite: none, each alone, the first twice, all together."""
    names = vulkan_names()
    sets = {"cpu": ["cpu"], **{name: [name] for name in names}}
    if names:
        sets[f"{names[0]} twice"] = [names[0], names[0]]
    if len(names) > 1:
        sets["all"] = names
    return sets


DEVICE_SETS = device_sets()
MULTI_SETS = {k: v for k, v in DEVICE_SETS.items() if len(v) > 1}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartedWorkers]:
    """Starts nodes of a cluster in this process."""
    from cluster_nodes import StartedWorkers  # which skips where keys cannot be made

    workers = StartedWorkers(tmp_path)
    yield workers
    workers.close()


@pytest.fixture(autouse=True, scope="session")
def _without_the_layers_line() -> Iterator[None]:
    """Newer layers print where their messages go; no test of a child process means that line."""
    run = subprocess.run

    def quiet(*args: Any, **named: Any) -> Any:
        done = run(*args, **named)
        if isinstance(done.stdout, str):
            lines = done.stdout.splitlines(keepends=True)
            done.stdout = "".join(line for line in lines if not LAYER_LINE.search(line))
        return done

    with pytest.MonkeyPatch.context() as patch:
        if "VK_LAYER_SETTINGS_PATH" in os.environ:
            patch.setattr(subprocess, "run", quiet)
        yield


@pytest.fixture(params=list(DEVICE_SETS), scope="session")
def devices(request: pytest.FixtureRequest) -> list[str]:
    """Each set of devices in turn, as names for a Scheduler."""
    return DEVICE_SETS[request.param]


@pytest.fixture(params=list(MULTI_SETS) or [None], scope="session")
def two_devices(request: pytest.FixtureRequest) -> list[str]:
    """Each set of at least two Vulkan devices in turn."""
    if request.param is None:
        pytest.skip("no Vulkan device here")
    return MULTI_SETS[request.param][:2]


Scheds = tuple[vs.Scheduler, vs.Scheduler]


@pytest.fixture(scope="module")
def scheds(devices: list[str]) -> Iterator[Scheds]:
    """With and without passes, on each set of devices."""
    with vs.Scheduler(devices) as sched, vs.Scheduler(devices, optimize=False) as plain:
        yield sched, plain


@pytest.fixture
def runtime_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory of the test's own: there, no process of the user's tells of itself."""
    if socket_dir.available() is not None:
        pytest.skip("this system has no Unix sockets")
    with tempfile.TemporaryDirectory(prefix="vs", dir="/tmp") as name:  # sockets have short paths
        os.chmod(name, 0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


@pytest.fixture
def rng() -> Iterator[np.random.Generator]:
    """A generator with a fixed seed."""
    yield np.random.default_rng(20240229)


@pytest.fixture(scope="module", params=["vksched", "onnxruntime"])
def ort(request: pytest.FixtureRequest) -> ModuleType:
    """vksched's session and onnxruntime in turn."""
    if request.param == "vksched":
        return vksched.onnxruntime
    found: ModuleType = pytest.importorskip("onnxruntime")
    found.set_default_logger_severity(3)
    return found


def pytest_collection_finish() -> None:
    """Take what was collected out of what the garbage collector walks: many tests call it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def failures(request: pytest.FixtureRequest) -> Failures:
    """Collect the failures of a test that goes through cases; see `pytest_runtest_call`."""
    return Failures(request.node.nodeid, request.config.getoption("--case"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test whose cases failed."""
    result = yield
    found = getattr(item, "funcargs", {}).get("failures")
    if isinstance(found, Failures):
        found.raise_all()
    return result


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--case",
        default="",
        metavar="TEXT",
        help="of tests that go through cases: run those alone whose names contain TEXT",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest go first, so that no process ends alone with them."""
    config.stash[COLLECTED] = list(items)
    quick = quick_items(items)
    if TIER is not Tier.ALL and not config.getoption("--case"):
        wanted = quick if TIER is Tier.QUICK else rest_items(items, quick)
        config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
        items[:] = [item for item in items if item in wanted]
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
