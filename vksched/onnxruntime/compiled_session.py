"""A session's model, compiled on the devices of its providers.

    parent:  Opened --compile--> run ------------------------------> runs
                 \\ fork
    child:        the first use compiles again: threads, locks and memory of its own   (CPU alone)

Drivers and their devices stay with the parent: a session that has any is refused in a child. The
model and its weights are read once; children share them. Examples: tests/runtime/test_fork.py.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from ..common.fork_guard import Owner, in_child, keep_for_ever
from ..scheduler.scheduler import Scheduler
from ..trace import Recorder
from .providers import Chosen

if TYPE_CHECKING:
    from ..importers.onnx.model import Model
    from ..models.compiled_model import CompiledModel

_again = threading.Lock()
"""Held while a child compiles what its parent had compiled."""


@in_child
def _renew_lock() -> None:
    global _again
    _again = threading.Lock()


class Opened:
    """A model on devices of its own; see `choose_devices`.

    Raises:
        DeviceError: there is no such device. ModelFormatError: the model cannot be compiled.
    """

    def __init__(
        self, model: Model, chosen: Chosen, recorder: Recorder | None, optimize: bool
    ) -> None:
        self.chosen = chosen
        self._model, self._recorder, self._optimize = model, recorder, optimize
        gpus = [name for name in chosen.devices or () if name != "cpu"]
        self._open(gpus or chosen.devices)  # beside GPUs the CPU takes what they cannot run

    @property
    def run(self) -> CompiledModel:
        """The compiled model; in a forked child, one of its own.

        Raises:
            DeviceError: this is a forked child, and the session has other devices than the CPU.
        """
        if self._owner.forked and self._finalizer.alive:
            with _again:
                if self._owner.forked:
                    self._open_again()
        return self._run

    def _open(self, devices: tuple[str, ...] | list[str] | None) -> None:
        scheduler = Scheduler(
            devices,
            trace=[self._recorder] if self._recorder is not None else [],
            optimize=self._optimize,
            policy=self.chosen.policy,
            objective=self.chosen.objective,
            precision=self.chosen.precision,
        )
        try:
            self._run: CompiledModel = scheduler.compile(self._model)
        except BaseException:
            scheduler.close()
            raise
        self.devices = tuple(device.name for device in scheduler.devices)
        self._finalizer = weakref.finalize(self, _close, self._run, scheduler)
        self._owner = Owner()

    def _open_again(self) -> None:
        if self.devices != ("cpu",):
            self._owner.require(f"a session on {', '.join(self.devices)}")
        parents, before = self._run, self._finalizer
        self._open(self.devices)
        before.detach()
        keep_for_ever(parents)

    def close(self) -> None:
        """Wait for runs under way and frees the devices; safe to call twice."""
        self._finalizer()


def _close(run: CompiledModel, scheduler: Scheduler) -> None:
    """Free what a session held, also when it is collected: then nobody would see an error."""
    try:
        run.close()
    finally:
        scheduler.close()
