"""Forked children: refused with one clear error, end cleanly, and harm nothing of the parent's.

Each script runs in a Python of its own, as pytest must not fork with devices open.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DEVICE_SETS, vulkan_names

ROOT = Path(__file__).parent.parent.parent

pytestmark = [
    pytest.mark.one_set,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
]
needs_vulkan = pytest.mark.skipif(not vulkan_names(), reason="no Vulkan device here")

HEAD = """
import gc, os, signal, sys, threading, traceback
import numpy as np
import vksched as vs
from vksched.runtime.vulkan import binding
X = np.arange(12, dtype=np.float32).reshape(3, 4)
W = np.ones((4, 4), np.float32)
names = sys.argv[1].split(",")
y = vs.relu(vs.input("x", X.shape) @ vs.weight(W, name="w"))

def refused(call):
    try:
        call()
    except vs.DeviceError as error:
        text = str(error)
        assert text.startswith("[fork] expected "), text
        assert text.endswith("in the child alone, or multiprocessing's spawn context"), text
    else:
        raise AssertionError("a forked child was served")

def in_child(work, leave):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    leave(code)
"""


def python(code: str, devices: list[str], **changes: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    # Python itself warns of forks beside threads, from 3.12 on: just that is tested here.
    flags = ["-W", "error", "-W", "ignore:.*fork:DeprecationWarning", "-X", "faulthandler"]
    command = [sys.executable, *flags, "-c", HEAD + code, ",".join(devices)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)


def assert_done(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", ""), done


@pytest.mark.parametrize("devices", DEVICE_SETS.values(), ids=list(DEVICE_SETS))
def test_a_child_is_refused_and_the_parent_goes_on(devices: list[str]) -> None:
    done = python(
        """
with vs.Scheduler(names) as sched:
    run = sched.compile(y)
    expected = run(x=X)

    def work():
        refused(lambda: run(x=X))
        refused(lambda: run.submit(x=X))
        for call in (run.synchronize, sched.synchronize):
            refused(call)
        for call in (sched.compile, sched.reserve, sched.read, sched.delete_state):
            refused(lambda: call(y))
        run.close()
        sched.close()
        if names != ["cpu"]:
            refused(lambda: sched.topology)
            refused(lambda: vs.Scheduler(names))
        refused(lambda: vs.Scheduler(sched.devices).compile(y))
        with vs.Scheduler(["cpu"]) as mine:
            assert np.array_equal(mine.compile(y)(x=X), expected)

    for leave in (os._exit, sys.exit):
        assert in_child(work, leave) == 0
        assert np.array_equal(run(x=X), expected)
    future = run.submit(x=X)
    assert in_child(work, sys.exit) == 0
    assert np.array_equal(future.result(), expected)
    assert np.array_equal(sched.compile(y)(x=X), expected)
print("done", flush=True)
""",
        devices,
    )
    assert_done(done)


def test_a_child_compiles_no_new_shapes_of_the_parent_s_models() -> None:
    done = python(
        """
from onnx import TensorProto as T, helper
x, out = (helper.make_tensor_value_info(name, T.FLOAT, ["n"]) for name in "xy")
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [out])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
with vs.Scheduler(names) as sched:
    run = sched.compile(vs.load(model))
    run(x=X[0])

    def work():
        signal.alarm(20)
        refused(lambda: run(x=X[0, :2]))

    locked, over = threading.Event(), threading.Event()

    def hold():  # as a thread does that compiles
        with sched.graphs.lock:
            locked.set()
            over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    locked.wait()
    assert in_child(work, os._exit) == 0
    over.set()
    holder.join()
print("done", flush=True)
""",
        ["cpu"],
    )
    assert_done(done)


@needs_vulkan
def test_what_a_child_collects_and_leaves_is_not_destroyed() -> None:
    done = python(
        """
def leave_the_with(code):
    global sched, run, view
    del sched, run, view
    gc.collect()
    with vs.Scheduler(["cpu"]) as other:
        other.compile(y)(x=X)
        sys.exit(code + 3)

sched = vs.Scheduler(names)
run = sched.compile(y)
view = sched.devices[0].context.host(8).array[2:]
for _ in range(2):
    assert in_child(lambda: None, leave_the_with) == 3
    assert (run(x=X) == X @ W).all()
run.close()
sched.close()
assert in_child(lambda: refused(lambda: vs.Scheduler(names)), sys.exit) == 0
print("done", flush=True)
""",
        vulkan_names(),
    )
    assert_done(done)


@needs_vulkan
def test_a_fork_amid_the_work_of_other_threads() -> None:
    done = python(
        """
def busy():
    while not stop.is_set():
        with vs.Scheduler(names) as sched:
            got = [sched.compile(y).submit(x=X) for _ in range(2)]
            results.extend((f.result() == X @ W).all() for f in got)

def work():
    refused(lambda: vs.Scheduler(names))
    refused(lambda: sched.compile(y))
    gc.collect()
    sched.close()

results, stop = [], threading.Event()
with vs.Scheduler(names) as sched:
    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    for i in range(8):
        assert in_child(work, (os._exit, sys.exit)[i % 2]) == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert all(results)
    assert (sched.compile(y)(x=X) == X @ W).all()
print("done", flush=True)
""",
        vulkan_names()[-1:],
    )
    assert_done(done)


@needs_vulkan
def test_drivers_that_were_only_listed_do_not_hold_a_child_up() -> None:
    code = """
for _ in range(int(os.environ["LISTS"])):
    vs.devices()

def work():
    assert [d.name for d in vs.devices()][-1] == "cpu"
    if binding.forked():
        refused(lambda: vs.Scheduler(names))
        vs.Scheduler(["cpu"]).close()
    else:  # the first list is made by a process of its own
        with vs.Scheduler(names) as sched:
            assert (sched.compile(y)(x=X) == X @ W).all()

assert in_child(work, sys.exit) == in_child(work, os._exit) == 0
print("done", flush=True)
"""
    for lists in "12":
        assert_done(python(code, vulkan_names(), LISTS=lists))


def test_a_fork_while_another_thread_plans() -> None:
    """The child gets one clear error for the function, not its lock, and collects garbage."""
    done = python(
        """
import signal
from vksched.common.gc_pause import resting_collector
inside, go = threading.Event(), threading.Event()
with vs.Scheduler(names) as sched:
    def build(x):
        with resting_collector(10**6):
            inside.set()
            assert go.wait(60)
        return vs.relu(x)
    f = sched.function(build)
    thread = threading.Thread(target=lambda: f(x=X))
    thread.start()
    assert inside.wait(60)

    def work():
        signal.alarm(30)  # ends a child that waits for a lock
        refused(lambda: f(x=X))
        refused(lambda: f.submit(x=X))
        f.close()
        assert gc.isenabled()

    code, rested = in_child(work, os._exit), not gc.isenabled()
    go.set()
    thread.join()
    assert code == 0 and rested
    assert np.array_equal(f(x=X), X) and gc.isenabled()
    print("done")
""",
        ["cpu"],
    )
    assert_done(done)


SESSION = """
from onnx import TensorProto as T, helper, numpy_helper
x, out = (helper.make_tensor_value_info(name, T.FLOAT, ["n", 4]) for name in "xy")
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])],
    "g", [x], [out], [numpy_helper.from_array(W, "w")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()

def right(session, rows=3):
    (got,) = session.run(None, {"x": X[:rows]})
    return np.array_equal(got, X[:rows] @ W)
"""


def test_a_session_on_the_cpu_works_in_children() -> None:
    """As servers have it that load a model, then fork: before and after, at once, and nested."""
    done = python(
        SESSION
        + """
def work():
    signal.alarm(60)
    assert all(right(session, rows) for rows in (3, 2, 3)), "in a child"
    found = []
    threads = [threading.Thread(target=lambda: found.append(right(session))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 3
    ended = threading.Event()
    session.run_async(None, {"x": X}, lambda got, data, error: (found.append(got), ended.set()), 0)
    assert ended.wait(30) and np.array_equal(found[-1][0], X @ W)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert np.array_equal(binding.copy_outputs_to_cpu()[0], X @ W)
    assert session.model_run.plan and session.get_providers() == ["CPUExecutionProvider"]

def nested():
    work()
    assert in_child(work, os._exit) == 0
    session.close()
    try:
        right(session)
    except vs.PlanError as error:
        assert "closed" in str(error)
    else:
        raise AssertionError("a closed session ran")

session = vs.InferenceSession(model, providers=["CPUExecutionProvider"])
assert right(session)
others = [threading.Thread(target=in_child, args=(work, os._exit)) for _ in range(2)]
for other in others:
    other.start()
assert in_child(nested, sys.exit) == 0
for other in others:
    other.join()
assert right(session)
print("done", flush=True)
""",
        ["cpu"],
    )
    assert_done(done)


def test_a_session_works_in_children_while_the_parent_runs_it() -> None:
    done = python(
        SESSION
        + """
def busy():
    while not stop.is_set():
        results.append(right(session))

def work():
    signal.alarm(60)
    assert right(session)

results, stop = [], threading.Event()
session = vs.InferenceSession(model, providers=["CPUExecutionProvider"])
thread = threading.Thread(target=busy)
thread.start()
codes = [in_child(work, leave) for leave in (os._exit, sys.exit, os._exit)]
stop.set()
thread.join()
assert codes == [0] * 3 and results and all(results)
print("done", flush=True)
""",
        ["cpu"],
    )
    assert_done(done)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="cached properties have no lock")
def test_a_session_works_in_a_child_of_one_whose_threads_compute_cached_properties() -> None:
    done = python(
        SESSION
        + """
from contextlib import ExitStack
from functools import cached_property

def hold():
    modules = [m for n, m in list(sys.modules.items()) if n.startswith("vksched.")]
    kinds = {k for m in modules for k in vars(m).values() if isinstance(k, type)}
    found = {p for k in kinds for p in vars(k).values() if isinstance(p, cached_property)}
    assert len(found) > 20
    with ExitStack() as stack:
        for each in found:
            stack.enter_context(each.lock)
        held.set()
        over.wait(60)

def work():
    signal.alarm(20)
    assert right(session)

session = vs.InferenceSession(model, providers=["CPUExecutionProvider"])
assert right(session)
held, over = threading.Event(), threading.Event()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
assert in_child(work, os._exit) == 0
over.set()
holder.join()
print("done", flush=True)
""",
        ["cpu"],
    )
    assert_done(done)


@needs_vulkan
def test_a_session_on_a_gpu_is_refused_in_a_child() -> None:
    done = python(
        SESSION
        + """
session = vs.InferenceSession(model, providers=names)
assert right(session)
assert in_child(lambda: refused(lambda: right(session)), sys.exit) == 0
assert right(session)
print("done", flush=True)
""",
        vulkan_names()[:1],
    )
    assert_done(done)


MULTIPROCESSING = """
import multiprocessing, os, sys
import numpy as np
import vksched as vs
X = np.ones((2, 3), np.float32)

def work(names, queue):
    try:
        with vs.Scheduler(names) as sched:
            queue.put(float(sched.compile(vs.input("x", X.shape) + 1.0)(x=X).sum()))
    except vs.DeviceError as error:
        queue.put(str(error)[:15])

if __name__ == "__main__":
    names, got = sys.argv[1].split(","), []
    with vs.Scheduler(names) as sched:
        for method in ("fork", "spawn"):
            context = multiprocessing.get_context(method)
            queue = context.SimpleQueue()
            process = context.Process(target=work, args=(names, queue))
            process.start()
            got.append(queue.get())
            process.join()
            assert process.exitcode == 0
        work(names, queue)
        got.append(queue.get())
    print(got)
"""


@pytest.mark.parametrize("devices", [["cpu"], vulkan_names()], ids=["cpu", "vulkan"])
def test_multiprocessing_by_fork_and_by_spawn(devices: list[str], tmp_path: Path) -> None:
    if not devices:
        pytest.skip("no Vulkan device here")
    (tmp_path / "program.py").write_text(MULTIPROCESSING)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), ",".join(devices)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    forked = 12.0 if devices == ["cpu"] else "[fork] expected"
    assert done.stdout == f"{[forked, 12.0, 12.0]}\n", done
