"""Workers on a Ray cluster: one actor on each host opens its devices and serves them.

    ray start --head | --address          Ray's own commands: the hosts of the cluster
    start --resources on each host--> one actor per host, with the key--> workers
    find --addresses, key--> Cluster

Ray starts the processes, reserves their resources, distributes the key and reports which actors are
alive. Values go directly from worker to worker, not through Ray. Every user of the Ray cluster can
request the key from an actor. Examples: tests/cluster/test_on_ray.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..common.env import is_on, names_in
from ..common.errors import DeviceError, VkschedError
from ..distributed.wire.credentials import Credentials
from ..distributed.wire.tls import SECURITY
from .cluster import Cluster
from .placement_groups import release, reserved
from .ray_address import AUTO, CLIENT, find_ray

MODELS = "VKSCHED_MODELS"
"""Environment variable, set on a host by its owner: comma-separated folders of models."""
ONNX_OPS = "VKSCHED_ONNX_OPS"
"""Environment variable, set on a host by its owner: allow drivers to run ONNX-only nodes here."""
NAMESPACE = "vksched"
"""Namespace of the actors in Ray."""
ASK_S = 5.0
"""Minimum interval between two queries of Ray for a lost worker; each query opens a connection."""
ANSWER_S = 120.0
"""Maximum wait for an actor: its process has to start, and may compile pipelines."""


class RayWorker(NamedTuple):
    """A worker in an actor. computer: the Ray node id of its host."""

    name: str
    computer: str
    address: str
    devices: tuple[str, ...]
    drivers: int


class _WorkerActor:
    """The class of the actors. address: address of its host, as other hosts reach it."""

    def __init__(self, name: str, key: str, security: str, address: str) -> None:
        from .worker_process import ClusterWorker

        self._key, self._security = key, security
        models = [Path(each) for each in names_in(MODELS)]
        about = name, f"{address}:0", Credentials.of_text(key), security
        self._worker = ClusterWorker(*about, models=models, onnx_ops=is_on(ONNX_OPS))

    def about(self) -> tuple[str, str, str, tuple[str, ...], int]:
        import ray

        worker, computer = self._worker, ray.get_runtime_context().get_node_id()
        return worker.name, computer, worker.address, worker.devices, worker.drivers

    def credentials(self) -> tuple[str, str]:
        return self._key, self._security


def start(address: str = AUTO, security: str = SECURITY[0]) -> list[RayWorker]:
    """Start a worker on each host of a Ray cluster that has none; workers run until `stop`.

    Raises
    ------
    VkschedError
        Ray is missing, there is no cluster at the address, or a worker cannot start.
    """
    with _ray(address) as ray:
        return _start_missing(ray, security).workers


def workers(address: str = AUTO) -> list[RayWorker]:
    """Return the workers that run on a Ray cluster now."""
    with _ray(address) as ray:
        return sorted(_describe(ray, _actors(ray)))


def stop(address: str = AUTO) -> list[str]:
    """Stop all workers on a Ray cluster and return their names."""
    with _ray(address) as ray:
        known = _actors(ray)
        for actor in known.values():
            ray.kill(actor)
        release()
        return sorted(known)


def find(address: str = AUTO) -> Cluster:
    """Return the workers of a Ray cluster as a Cluster; start missing ones.

    The driver's own host is excluded, because the driver uses its devices directly.

    Raises
    ------
    VkschedError
        Ray is missing, there is no cluster at the address, or a worker cannot start.
    """
    with _ray(address) as ray:
        here = "" if address.startswith(CLIENT) else ray.get_runtime_context().get_node_id()
        there = _start_missing(ray, SECURITY[0], here)
    wanted = [worker for worker in there.workers if worker.computer != here]
    if not wanted:
        raise DeviceError(
            "[cluster] expected another computer in the Ray cluster, got this one alone; try "
            "`ray start --address=...` there"
        )

    key = Credentials.of_text(there.key, "the Ray cluster")
    locate = _WorkerLocator(address, here, wanted).locate
    return Cluster([worker.address for worker in wanted], key, there.security, locate)


class _WorkerLocator:
    """Locate lost workers, and restart workers that do not run."""

    def __init__(self, address: str, here: str, workers: Sequence[RayWorker]) -> None:
        self._address = address
        self._here = here
        self._places = {worker.name: worker.address for worker in workers}
        self._asked_s = -math.inf

    def locate(self, name: str) -> str | None:
        if time.monotonic() - self._asked_s >= ASK_S:
            try:
                with _ray(self._address) as ray:
                    found = _start_missing(ray, SECURITY[0], self._here).workers
                self._places = {worker.name: worker.address for worker in found}
            finally:
                self._asked_s = time.monotonic()
        return self._places.get(name)


@contextmanager
def _ray(address: str) -> Iterator[Any]:
    """Return the ray package, connected. An existing connection is reused and stays open."""
    try:
        import ray
    except ImportError as error:
        raise VkschedError(
            f'[cluster] a Ray cluster needs ray: {error}; try pip install "vksched[ray]"'
        ) from error
    own = not ray.is_initialized()
    if own:
        address = find_ray(address)
    try:
        if own:
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False)
        yield ray
    except VkschedError:
        raise
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise VkschedError(
            f"[cluster] expected a Ray cluster at {address!r}, got: {error}; try `ray status`"
        ) from error
    finally:
        if own:
            ray.shutdown()


class _RunningWorkers(NamedTuple):
    """The workers of a Ray cluster, with their key and security."""

    workers: list[RayWorker]
    key: str
    security: str


def _start_missing(ray: Any, security: str, besides: str = "") -> _RunningWorkers:
    """Return a worker for each host; start missing ones.

    security: security of a first worker. besides: id of a host that needs no worker.
    """
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    known = _actors(ray)
    key, security = _credentials(ray, known) or (Credentials.make().text(), security)
    found = _describe(ray, known)
    names, taken = {worker.name for worker in found}, {worker.computer for worker in found}
    free = (name for number in range(1, 1 << 20) if (name := f"node{number}") not in names)
    begun: dict[str, Any] = {}
    computers = _computers(ray)
    release(computers)  # names of stopped workers
    bare = [each for each in computers if each["NodeID"] not in {*taken, besides}]
    with reserved(bare) as groups, _ended_by_failures(ray, begun):
        for computer in bare:
            name = next(free)
            where = PlacementGroupSchedulingStrategy(groups[computer["NodeID"]], 0)
            actor_class = ray.remote(_WorkerActor).options(
                name=name,
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=0,
                max_concurrency=4,
                scheduling_strategy=where,
            )
            begun[name] = actor_class.remote(name, key, security, computer["NodeManagerAddress"])
        return _RunningWorkers(sorted([*found, *_describe(ray, begun)]), key, security)


@contextmanager
def _ended_by_failures(ray: Any, actors: Mapping[str, Any]) -> Iterator[None]:
    """Kill the actors if the body raises.

    An actor waiting for a removed placement group would hang and keep its name.
    """
    try:
        yield
    except BaseException:
        for actor in actors.values():
            with suppress(ray.exceptions.RayError):  # it has ended
                ray.kill(actor)
        raise


def _computers(ray: Any) -> list[dict[str, Any]]:
    return [each for each in ray.nodes() if each["Alive"]]


def _actors(ray: Any) -> dict[str, Any]:
    """Return the actors of all running workers by name."""
    found: dict[str, Any] = {}
    for each in ray.util.list_named_actors(all_namespaces=True):
        if each["namespace"] == NAMESPACE:
            try:
                found[each["name"]] = ray.get_actor(each["name"], NAMESPACE)
            except ValueError:  # it ended meanwhile
                continue
    return found


def _describe(ray: Any, actors: dict[str, Any]) -> list[RayWorker]:
    asked = [actor.about.remote() for actor in actors.values()]
    return [RayWorker(*each) for each in ray.get(asked, timeout=ANSWER_S)]


def _credentials(ray: Any, actors: dict[str, Any]) -> tuple[str, str] | None:
    """Return the key and the security of the running workers."""
    for actor in actors.values():
        text, security = ray.get(actor.credentials.remote(), timeout=ANSWER_S)
        return text, security
    return None
