"""A scheduler that opens a device which another one has closed gets its pipelines with it.

    Scheduler.close --> Manager.destroy --> free --> Manager --> the next scheduler
                                             '--> the end of the module: destroyed

To compile a pipeline takes a software driver 0.1 to 2 s, and the schedulers of a module's tests
compile the same ones. Schedulers never share a device: each has a logical one of its own, with its
queue and memory, as without this. A module has it by importing the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vksched.fork import in_child
from vksched.runtime.vulkan import probe


class Pool:
    """The logical devices that no scheduler has, by what they were opened with."""

    def __init__(self) -> None:
        self.free: dict[str, list[Any]] = {}
        self.keeps = True

    def manager_type(self, kind: Any) -> Any:
        """Return a subclass of kp.Manager whose objects come back here."""
        pool = self

        class Kept(kind):  # type: ignore[misc]
            def __new__(cls, *args: Any) -> Any:
                free = pool.free.get(repr(args))
                return free.pop() if free else super().__new__(cls)

            def __init__(self, *args: Any) -> None:
                if not hasattr(self, "opened_with"):
                    super().__init__(*args)
                    self.opened_with = repr(args)

            def destroy(self) -> None:
                if pool.keeps:
                    pool.free.setdefault(self.opened_with, []).append(self)
                else:
                    super().destroy()

        return Kept

    def take_all(self) -> list[Any]:
        """Return the free devices, and keep none from now on."""
        self.keeps = False
        taken = [manager for managers in self.free.values() for manager in managers]
        self.free.clear()
        return taken


_pools: list[Pool] = []


@in_child
def _after_fork() -> None:
    """The devices are the parent's: a child must not end them."""
    from vksched.runtime.vulkan import binding

    for pool in _pools:
        for manager in pool.take_all():
            binding.companion.leak(manager)


@pytest.fixture(autouse=True, scope="module")
def kept_devices() -> Iterator[None]:
    """The schedulers of a module compile each pipeline of a device once."""
    if not any(info.name != "cpu" and info.usable for info in probe.list_devices()):
        yield
        return
    from vksched.runtime.vulkan import binding

    binding.load()
    pool = Pool()
    _pools.append(pool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(binding.kp, "Manager", pool.manager_type(binding.kp.Manager))
        yield
    for manager in pool.take_all():
        manager.destroy()
    _pools.remove(pool)
