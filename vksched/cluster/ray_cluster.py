"""Nodes on a Ray cluster: an actor on each computer opens its devices and serves them.

    ray start --head | --address          Ray's own: the computers of the cluster
    start --room on each computer--> one actor in each, with the key--> workers
    find --addresses, key--> Cluster

Ray starts the processes, keeps room for them, hands out the key, and says who is alive. Values
go from worker to worker, not through Ray. Whoever may use the Ray cluster may ask an actor for the
key. Examples: tests/cluster/test_on_ray.py.
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
"""Variable of a computer's owner: folders of models, with commas between."""
ONNX_OPS = "VKSCHED_ONNX_OPS"
"""Switch of a computer's owner: whether its worker computes nodes of ONNX files for drivers."""
NAMESPACE = "vksched"
"""Of the actors' names in Ray."""
ASK_S = 5.0
"""Between two times that Ray is asked for a worker that is lost: each connects anew."""
ANSWER_S = 120.0
"""A process has to start, and may compile pipelines."""


class RayWorker(NamedTuple):
    """A worker that runs in an actor. computer: Ray's own id of where it is."""

    name: str
    computer: str
    address: str
    devices: tuple[str, ...]
    drivers: int


class _WorkerActor:
    """What an actor does. address: of its computer, as others of the cluster reach it."""

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
    """Start a worker on each computer of a Ray cluster that has none; they stay until `stop`.

    Raises:
        VkschedError: Ray is missing, there is no such cluster, or a worker cannot start.
    """
    with _ray(address) as ray:
        return _started(ray, security).workers


def workers(address: str = AUTO) -> list[RayWorker]:
    """Return the workers that run on a Ray cluster now."""
    with _ray(address) as ray:
        return sorted(_about(ray, _actors(ray)))


def stop(address: str = AUTO) -> list[str]:
    """End all workers on a Ray cluster, and returns their names."""
    with _ray(address) as ray:
        known = _actors(ray)
        for actor in known.values():
            ray.kill(actor)
        release()
        return sorted(known)


def find(address: str = AUTO) -> Cluster:
    """Return the workers of a Ray cluster, started where they do not run; but not the one of this
    very computer, whose devices the driver has anyway.

    Raises:
        VkschedError: Ray is missing, there is no such cluster, or a worker cannot start.
    """
    with _ray(address) as ray:
        here = "" if address.startswith(CLIENT) else ray.get_runtime_context().get_node_id()
        there = _started(ray, SECURITY[0], here)
    wanted = [worker for worker in there.workers if worker.computer != here]
    if not wanted:
        raise DeviceError(
            "[cluster] expected another computer in the Ray cluster, got this one alone; try "
            "`ray start --address=...` there"
        )

    key = Credentials.of_text(there.key, "the Ray cluster")
    locate = _Locating(address, here, wanted).locate
    return Cluster([worker.address for worker in wanted], key, there.security, locate)


class _Locating:
    """Where workers are that were lost, and started again where they are not."""

    def __init__(self, address: str, here: str, workers: Sequence[RayWorker]) -> None:
        self._address = address
        self._here = here
        self._places = {worker.name: worker.address for worker in workers}
        self._asked_s = -math.inf

    def locate(self, name: str) -> str | None:
        if time.monotonic() - self._asked_s >= ASK_S:
            try:
                with _ray(self._address) as ray:
                    found = _started(ray, SECURITY[0], self._here).workers
                self._places = {worker.name: worker.address for worker in found}
            finally:
                self._asked_s = time.monotonic()
        return self._places.get(name)


@contextmanager
def _ray(address: str) -> Iterator[Any]:
    """The package, connected. An existing connection is used, and stays."""
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


class _Started(NamedTuple):
    """The workers of a Ray cluster, with their key and security."""

    workers: list[RayWorker]
    key: str
    security: str


def _started(ray: Any, security: str, besides: str = "") -> _Started:
    """Return a worker for each computer, started where there is none. security: of the first one.
    besides: the id of a computer that needs none.
    """
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    known = _actors(ray)
    key, security = _credentials(ray, known) or (Credentials.make().text(), security)
    found = _about(ray, known)
    names, taken = {worker.name for worker in found}, {worker.computer for worker in found}
    free = (name for number in range(1, 1 << 20) if (name := f"node{number}") not in names)
    begun: dict[str, Any] = {}
    computers = _computers(ray)
    release(computers)  # of those that are gone
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
        return _Started(sorted([*found, *_about(ray, begun)]), key, security)


@contextmanager
def _ended_by_failures(ray: Any, actors: Mapping[str, Any]) -> Iterator[None]:
    """Ends actors where what is done inside fails: one that waits for a group that is removed would
    answer nobody, and keep its name.
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
    """Return the actors of all workers that live, by name."""
    found: dict[str, Any] = {}
    for each in ray.util.list_named_actors(all_namespaces=True):
        if each["namespace"] == NAMESPACE:
            try:
                found[each["name"]] = ray.get_actor(each["name"], NAMESPACE)
            except ValueError:  # it ended meanwhile
                continue
    return found


def _about(ray: Any, actors: dict[str, Any]) -> list[RayWorker]:
    asked = [actor.about.remote() for actor in actors.values()]
    return [RayWorker(*each) for each in ray.get(asked, timeout=ANSWER_S)]


def _credentials(ray: Any, actors: dict[str, Any]) -> tuple[str, str] | None:
    """Return the key of the workers that run, and their security."""
    for actor in actors.values():
        text, security = ray.get(actor.credentials.remote(), timeout=ANSWER_S)
        return text, security
    return None
