"""The schedulers of the package anrg-saga, asked in a process of their own with a limit of time.

Some of them take minutes for 50 tasks, and Python cannot stop a function. So a child process holds
the package; it is ended when a scheduler runs over its limit, and a fresh one goes on. The limit is
CPU time, so that saga loses no plans on a busy machine.

    parent: Instance --pipe--> child: saga.Network, saga.TaskGraph --schedule()--> starts and ends

Both models mean the same: a task takes cost / speed, an edge bytes / link speed, nothing on the
same node, and transfers overlap everything. What differs, and how the two meet:

- saga has speeds of nodes, no time per pair of task and node: only consistent instances fit.
- saga's links have no latency: instances have none either.
- Some of its schedulers want one first and one last task: a task without cost is added, as saga's
  own `TaskGraph.create` does, and left out of the plan again.
- Ties fall as sets of names fall, which Python's hash decides: the child runs with PYTHONHASHSEED=0
  and draws from seeded sources of chance, so that the same instance gives the same plan.
- Ranks that saga keeps between calls are forgotten first, so that no scheduler is timed with the
  work of another.

HBMCT of version 2.0.2 loses tasks when it moves one between two of three or more nodes; a plan
without all tasks is no plan. BruteForce and SMT search all plans and are left out. Hybrid takes the
best of the schedulers that it is given and has no list of its own: here HEFT and CPoP. `PARAMETRIC`
are the 72 that saga puts together from a ranking, a way to insert, and a way to compare.

tests/bench/test_schedules.py has examples.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from multiprocessing.connection import Connection
from typing import Any

START_S = 120.0
"""How long a child may take to begin: it imports saga."""
BUSY = 20.0
"""How many times its limit a scheduler may take by the wall's clock."""
OVER = 87
"""The exit code of a child whose scheduler ran over its limit."""
LOOK_S = 0.05
"""How often a child looks at its CPU time. A timer of the system would make that clock coarse."""
PLAIN = (
    "BIL",
    "Cpop",
    "DPS",
    "Duplex",
    "ETF",
    "FastestNode",
    "FCP",
    "FLB",
    "GDL",
    "Hbmct",
    "Heft",
    "Hybrid",
    "MaxMin",
    "MCT",
    "MET",
    "MinMin",
    "Msbc",
    "MST",
    "OLB",
    "Sufferage",
    "WBA",
)
PARAMETRIC = tuple(
    f"{rank}/{compare}/{insert}{path}{sufferage}"
    for rank, compare, insert, path, sufferage in product(
        ("UpwardRanking", "CPoPRanking", "ArbitraryTopological"),
        ("EFT", "EST", "Quickest"),
        ("append", "insert"),
        ("", "+path"),
        ("", "+sufferage"),
    )
)
ADDED = ("(first)", "(last)")
"""Names of the tasks that are added."""


@dataclass(frozen=True)
class Problem:
    """Input of saga. cost: work of each task; edges: bytes by pairs of task numbers; speed: speed
    of each node; bytes_per_s: bandwidth of the links between nodes by number, lower number first.
    """

    cost: Sequence[float]
    edges: Sequence[tuple[int, int, int]]
    speed: Sequence[float]
    bytes_per_s: Mapping[tuple[int, int], float]


@dataclass(frozen=True)
class Answer:
    """node, start_s, finish_s: place and times of each task; seconds: CPU time of the scheduler;
    why: reason of a missing answer, else "".
    """

    node: tuple[int, ...] = ()
    start_s: tuple[float, ...] = ()
    finish_s: tuple[float, ...] = ()
    seconds: float = 0.0
    why: str = ""


def installed() -> bool:
    """Return whether the package anrg-saga is there."""
    return importlib.util.find_spec("saga") is not None


class Peers:
    """A child process with saga in it; use it in a `with` statement."""

    def __init__(self, limit_s: float) -> None:
        """limit_s: what a scheduler may take, in seconds of CPU."""
        self.limit_s = limit_s
        self._child: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None
        self._known: Problem | None = None

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, name: str, problem: Problem) -> Answer:
        """Return the answer of the scheduler of that name, or why it has none."""
        pipe = self._open()
        if self._known is not problem:
            pipe.send(problem)
            self._known = problem
        pipe.send(name)
        over = f"over {self.limit_s:g} s"
        try:
            if pipe.poll(self.limit_s * BUSY):
                answer: Answer = pipe.recv()
                return answer
            why = over
        except EOFError:
            assert self._child is not None
            self._child.join(START_S)
            why = over if self._child.exitcode == OVER else "the process ended"
        self.close()
        return Answer(why=why)

    def close(self) -> None:
        """End the child; the next question starts another."""
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._child.close()
        if self._pipe is not None:
            self._pipe.close()
        self._child = self._pipe = self._known = None

    def _open(self) -> Connection:
        if self._pipe is not None:
            return self._pipe
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        with _environment("PYTHONHASHSEED", "0"):
            self._child = context.Process(target=serve, args=(other, self.limit_s), daemon=True)
            self._child.start()
        other.close()
        if not self._pipe.poll(START_S):
            self.close()
            raise TimeoutError(f"[saga] expected a process within {START_S:g} s, got none")
        self._pipe.recv()
        return self._pipe


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def serve(pipe: Connection, limit_s: float) -> None:
    """Answer what comes over the pipe, in the child: a problem is kept, a name is asked.

    limit_s: seconds of CPU after which a scheduler ends the process.
    """
    logging.disable(logging.WARNING)
    import saga.schedulers
    import saga.schedulers.parametric.components  # noqa: F401

    problem: Problem | None = None
    pipe.send("ready")
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            question = pipe.recv()
            if isinstance(question, Problem):
                problem = question
            else:
                assert problem is not None
                with limited(limit_s):
                    found = answer(question, problem)
                pipe.send(found)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End the process when it has taken so many seconds of CPU."""
    done, end = threading.Event(), time.process_time() + seconds

    def watch() -> None:
        while not done.wait(LOOK_S):
            if time.process_time() > end:
                os._exit(OVER)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def answer(name: str, problem: Problem) -> Answer:
    """Return the plan of a scheduler of saga for fresh objects, timed."""
    network, graph = network_of(problem), graph_of(problem)
    for module in [m for key, m in sys.modules.items() if key.startswith("saga.")]:
        for value in list(vars(module).values()):
            if hasattr(value, "cache_clear"):
                value.cache_clear()
    random.seed(0)
    scheduler = _scheduler(name)
    began = time.process_time()
    try:
        plan = scheduler.schedule(network, graph)
    except Exception as error:  # whatever a package raises is an answer here
        return Answer(why=f"{type(error).__name__}: {error}"[:100])
    seconds = time.process_time() - began
    placed = {s.name: s for tasks in plan.mapping.values() for s in tasks}
    missing = len(problem.cost) - len(placed.keys() - set(ADDED))
    if missing:
        return Answer(seconds=seconds, why=f"{missing} tasks are not in the plan")
    each = [placed[_task(i)] for i in range(len(problem.cost))]
    return Answer(
        tuple(int(s.node[1:]) for s in each),
        tuple(s.start for s in each),
        tuple(s.end for s in each),
        seconds,
    )


def _task(number: int) -> str:
    return f"t{number}"


def _scheduler(name: str) -> Any:
    from saga import schedulers
    from saga.schedulers.parametric import ParametricScheduler
    from saga.schedulers.parametric import components as parts

    if name == "Hybrid":
        return schedulers.HybridScheduler([schedulers.HeftScheduler(), schedulers.CpopScheduler()])
    if "/" not in name:
        return getattr(schedulers, f"{name}Scheduler")()
    rank, compare, rest = name.split("/")
    insert, *options = rest.split("+")
    heuristic = ParametricScheduler(
        initial_priority=getattr(parts, rank)(),
        insert_task=parts.GreedyInsert(
            append_only=insert == "append",
            compare=parts.GreedyInsertCompareFuncs(compare),
            critical_path="path" in options,
        ),
    )
    return parts.ParametricSufferageScheduler(heuristic) if "sufferage" in options else heuristic


def network_of(problem: Problem) -> Any:
    """Return the nodes and links as a `saga.Network`."""
    from saga import Network

    nodes = [(f"n{i}", speed) for i, speed in enumerate(problem.speed)]
    links = [(f"n{a}", f"n{b}", speed) for (a, b), speed in problem.bytes_per_s.items()]
    return Network.create(nodes, links)


def graph_of(problem: Problem) -> Any:
    """Return the tasks as a `saga.TaskGraph`, with one first and one last task.

    `TaskGraph.create` would do that in time of tasks times edges; this one takes their sum.
    """
    from saga import TaskGraph, TaskGraphEdge, TaskGraphNode

    numbers = range(len(problem.cost))
    tasks = [TaskGraphNode(name=_task(i), cost=problem.cost[i]) for i in numbers]
    edges = [
        TaskGraphEdge(source=_task(a), target=_task(b), size=size) for a, b, size in problem.edges
    ]
    first = sorted(set(numbers) - {b for _, b, _ in problem.edges})
    last = sorted(set(numbers) - {a for a, _, _ in problem.edges})
    if len(first) > 1:
        tasks.append(TaskGraphNode(name=ADDED[0], cost=0.0))
        edges += [TaskGraphEdge(source=ADDED[0], target=_task(i), size=0.0) for i in first]
    if len(last) > 1:
        tasks.append(TaskGraphNode(name=ADDED[1], cost=0.0))
        edges += [TaskGraphEdge(source=_task(i), target=ADDED[1], size=0.0) for i in last]
    return TaskGraph(tasks=frozenset(tasks), dependencies=frozenset(edges))
