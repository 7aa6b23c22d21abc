"""Nodes as processes that start in a moment: one process has vksched imported, and forks them.

    Forked --one JSON line--> this file as a process --fork--> a node, which notes what it has
                                                       '-----> a caller of nodes, as in chaos.py

A node may be killed or stopped, lie in a network of its own, be of another version, or find no room
on its disk. Needs `os.fork`.
"""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

START_S = 60.0
CLONE_NEWNET = 0x40000000
PR_SET_CHILD_SUBREAPER = 36
TICK_S = 0.02
BRIEF = {1 << 16: 1}
"""What links are measured by where each message counts."""


class ForkedNode:
    """One node that runs. pid: its process."""

    def __init__(self, pid: int, about: Path) -> None:
        self.pid, self._about = pid, about

    def status(self) -> dict[str, Any]:
        """What the node noted last: its address, how many callers it has; its exit code, if any."""
        with suppress(OSError, ValueError):
            return dict(json.loads(self._about.read_text()))
        return {}

    def wait(self, what: Callable[[dict[str, Any]], object], limit_s: float) -> dict[str, Any]:
        """Return the notes of the node, once they are as expected."""
        end_s = time.monotonic() + limit_s
        while not what(status := self.status()):
            assert time.monotonic() < end_s, f"node {self.pid} said {status} after {limit_s:g} s"
            time.sleep(TICK_S)
        return status

    @property
    def address(self) -> str:
        return str(self.wait(lambda status: "address" in status, START_S)["address"])

    @property
    def alive(self) -> bool:
        return "code" not in self.status()

    def signal(self, number: int) -> None:
        """Send a signal; returns once a killed process is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.wait(lambda status: "code" in status, START_S)

    def wait_free(self, limit_s: float) -> None:
        """Wait until it has no callers, or has ended."""
        self.wait(lambda status: "code" in status or status.get("callers") == 0, limit_s)

    def end(self, limit_s: float) -> None:
        """End it as a service does, well in time; before that it is free of callers by itself."""
        if self.alive:
            self.signal(signal.SIGCONT)
            self.wait_free(limit_s)
            self.signal(signal.SIGTERM)
            assert self.wait(lambda status: "code" in status, limit_s) == {"code": 0}

    def wrong_in(self, what: Callable[[float], None], limit_s: float) -> list[str]:
        """Return the failures to meet the time limit."""
        try:
            what(limit_s)
        except AssertionError as error:
            return [str(error)]
        return []


class Forked:
    """Starts nodes, and ends them. key: the file with the cluster's credentials."""

    def __init__(self, key: Path, folder: Path, security: str) -> None:
        self._folder, self._count = folder, 0
        self._lock = threading.Lock()
        self.nodes: list[ForkedNode] = []
        about = [str(key), security]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *about],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, name: str, **how: object) -> ForkedNode:
        """Return a new process.

        how: options; of a caller `addresses`, `peers` and `states`. Of a node `address`; `apart`,
        for a network of its own; `version`, another one than this; `cache`, its folder; `full`,
        after how many writes to that its disk has no room; `brief`, to measure links by few
        messages.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._count += 1
            own = self._folder / f"{name}-{self._count}"
            about = own.with_suffix(".json")
            asked = {"name": name, "about": str(about), "cache": str(own), **how}
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            node = ForkedNode(int(self._process.stdout.readline()), about)
            self.nodes.append(node)
        return node

    def close(self, limit_s: float = 10.0) -> list[int]:
        """End all nodes as a service does; returns the exit codes of those that lived."""
        living = [node for node in self.nodes if node.alive]
        for node in living:
            node.signal(signal.SIGCONT)
            node.signal(signal.SIGTERM)
        try:
            return [node.wait(lambda status: "code" in status, limit_s)["code"] for node in living]
        finally:
            for node in self.nodes:
                if node.alive:
                    node.signal(signal.SIGKILL)
            self._process.communicate("")
            assert self._process.returncode == 0, "a node left a process behind"


# -- the process that forks ------------------------------------------------------------------------


def main() -> None:
    import chaos  # noqa: F401  what nodes and callers need is imported once

    from vksched.cluster.worker_process import ClusterWorker  # noqa: F401

    running: dict[int, Path] = {}
    if sys.platform == "linux":  # what a node leaves behind becomes a child of this process
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    threading.Thread(target=_serve, args=(running,), daemon=True).start()
    while running or not _ENDED.is_set():
        _reap(running)
        for pid in running if _ENDED.is_set() else ():  # whoever asked for them has gone
            os.kill(pid, signal.SIGKILL)
        time.sleep(TICK_S)
    with suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
        sys.exit(1)


_ENDED = threading.Event()
_FORKING = threading.Lock()


def _reap(running: dict[int, Path]) -> None:
    """Notes the exit codes of nodes that have ended."""
    with _FORKING:
        for pid, about in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del running[pid]
                _note(about, {"code": os.waitstatus_to_exitcode(status)})


def _serve(running: dict[int, Path]) -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        with _FORKING:
            pid = os.fork()
            if not pid:
                _child(asked)
            running[pid] = Path(asked["about"])
        print(pid, flush=True)
    _ENDED.set()


def _child(asked: dict[str, Any]) -> None:
    code = 1
    try:
        (_be_caller if "addresses" in asked else _be_node)(asked)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stderr.flush()
        os._exit(code)


def _note(about: Path, status: dict[str, Any]) -> None:
    new = about.with_suffix(".new")
    new.write_text(json.dumps(status))
    new.replace(about)


def _be_caller(asked: dict[str, Any]) -> None:
    """Has a conversation. asked: `peers`, where nodes reach each other."""
    import chaos
    import clusters

    from vksched.distributed.wire.credentials import Credentials

    credentials = Credentials.load(Path(sys.argv[1]))
    clusters.make_credentials = lambda: credentials  # type: ignore[assignment]

    def hosts(*about: Any) -> dict[str, list[str]]:
        return chaos.hosts_behind(asked["peers"], *about)

    with chaos.chaotic(hosts):
        chaos.converse(asked["addresses"], asked["states"])


def _be_node(asked: dict[str, Any]) -> None:
    from vksched.cluster.worker_process import ClusterWorker
    from vksched.common.errors import DeviceError
    from vksched.distributed.wire import handshake, link_benchmark
    from vksched.distributed.wire.credentials import Credentials

    ended: list[int] = []  # no event: a signal may come while this thread holds its lock
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    about = Path(asked["about"])
    if asked.get("apart"):
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        _note(about, {"apart": True})
    handshake.__version__ = asked.get("version", handshake.__version__)  # type: ignore[attr-defined]
    if asked.get("brief"):
        link_benchmark.TRIES.clear()  # type: ignore[attr-defined]
        link_benchmark.TRIES.update(BRIEF)  # type: ignore[attr-defined]
    if "full" in asked:
        _fill_disk(asked["full"])
    key, security = sys.argv[1:]
    credentials = Credentials.load(Path(key)), security, ["cpu"]
    node, until_s = None, time.monotonic() + START_S
    while node is None:
        try:
            where = asked.get("address", "127.0.0.1:0")
            node = ClusterWorker(
                asked["name"], where, *credentials, cache_folder=Path(asked["cache"])
            )
        except DeviceError:  # its network is not there yet, or the address not free
            if time.monotonic() > until_s:
                raise
            time.sleep(TICK_S)
    status: dict[str, Any] = {}
    while not ended:
        time.sleep(TICK_S)
        now = {"address": node.address, "callers": node.drivers}
        if now != status:
            _note(about, now)
            status = now
    node.close()


def _fill_disk(at: int) -> None:
    """Has the cache's writes fail for want of room from one on: of each file the opening, the first
    bytes, the last ones, and the move to its place are one each.
    """
    from vksched.storage import disk_cache

    count = [0]

    def step() -> None:
        count[0] += 1
        if count[0] > at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            step()
            return super().write(data)

        def close(self) -> None:
            if not self.closed:
                super().close()
                step()

    def opened(path: Path, mode: str, opener: Any = None) -> io.FileIO:
        if mode == "rb":
            return io.FileIO(path)
        step()
        return Full(path, mode.replace("b", ""), opener=opener)

    replace = os.replace

    def moved(source: Path, target: Path) -> None:
        step()
        replace(source, target)

    disk_cache.open = opened  # type: ignore[attr-defined]
    disk_cache.os = type("os", (), {**vars(os), "replace": staticmethod(moved)})  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
