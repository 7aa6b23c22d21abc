"""A scheduler that opens a device which another one has closed gets its pipelines with it.

    Scheduler.close --> Manager.destroy --> free --> Manager --> the next scheduler
                                             '--> too many, or the end of the session: destroyed

To compile a pipeline takes a software driver 0.1 to 2 s, and tests compile the same ones.
Schedulers never share a device: each has a logical one of its own, with its queue and memory, as
without this.
Tests of opening, closing and memory are marked `own_devices`: their devices are opened for them and
destroyed with their schedulers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vksched.common.fork_guard import in_child
from vksched.runtime.vulkan import device_probe

MAX_FREE = 2
"""Logical devices of a kind that wait for the next scheduler."""


class Pool:
    """The logical devices that no scheduler has, by what they were opened with."""

    def __init__(self) -> None:
        self.free: dict[str, list[Any]] = {}
        self.keeps = True

    def manager_type(self, kind: Any) -> Any:
        """Return a subclass of kp.Manager whose objects come back here."""
        pool = self

        class Pooled(kind):  # type: ignore[misc]
            def __new__(cls, *args: Any) -> Any:
                free = pool.free.get(_kind(args)) if pool.keeps else None
                return free.pop() if free else super().__new__(cls)

            def __init__(self, *args: Any) -> None:
                if not hasattr(self, "opened_with"):
                    super().__init__(*args)
                    self.opened_with = _kind(args)

            def destroy(self) -> None:
                free = pool.free.setdefault(self.opened_with, [])
                if pool.keeps and len(free) < MAX_FREE:
                    free.append(self)
                else:
                    super().destroy()

        return Pooled

    def take_all(self) -> list[Any]:
        """Return the free devices, and keep none from now on."""
        self.keeps = False
        taken = [manager for managers in self.free.values() for manager in managers]
        self.free.clear()
        return taken


def _kind(args: tuple[Any, ...]) -> str:
    """Return what devices must have been opened with to stand for each other."""
    from vksched.runtime.vulkan import binding

    return repr((args, binding.robust.get()))


_pools: list[Pool] = []


@in_child
def _after_fork() -> None:
    """The devices are the parent's: a child must not end them."""
    from vksched.runtime.vulkan import binding

    for pool in _pools:
        for manager in pool.take_all():
            binding.companion.leak(manager)


@pytest.fixture(autouse=True, scope="session")
def pooled_devices() -> Iterator[Pool | None]:
    """The schedulers of a process compile each pipeline of a device once."""
    if not any(info.name != "cpu" and info.usable for info in device_probe.list_devices()):
        yield None
        return
    from vksched.runtime.vulkan import binding

    binding.load()
    pool = Pool()
    _pools.append(pool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binding.kp, "Manager", pool.manager_type(binding.kp.Manager))
        yield pool
    for manager in pool.take_all():
        manager.destroy()
    _pools.remove(pool)


@pytest.fixture(autouse=True)
def _own_devices(request: pytest.FixtureRequest, pooled_devices: Pool | None) -> Iterator[None]:
    """Tests marked so open devices that no other test had, and destroy them."""
    if pooled_devices is None or request.node.get_closest_marker("own_devices") is None:
        yield
        return
    pooled_devices.keeps = False
    yield
    pooled_devices.keeps = True
