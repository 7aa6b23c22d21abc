"""The model of a session, compiled for the devices of its providers.

    parent:  OpenedModel --compile--> run -------------------------> runs
                 \\ fork
    child:        first use: compile again, with new threads, locks and memory      (CPU only)

Drivers and devices belong to the parent: a session with a GPU is rejected in a child. The model and
its weights are read once and shared by children. Examples: tests/runtime/test_fork.py.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from ..common.fork_guard import Owner, in_child, keep_for_ever
from ..scheduler.scheduler import Scheduler
from ..trace import Recorder
from .providers import ProviderChoice

if TYPE_CHECKING:
    from ..importers.onnx.model import Model
    from ..models.compiled_model import CompiledModel

_again = threading.Lock()
"""Held while a child recompiles a model of its parent."""


@in_child
def _renew_lock() -> None:
    global _again
    _again = threading.Lock()


class OpenedModel:
    """A model compiled on its own devices; see `choose_devices`.

    Raises
    ------
    DeviceError
        A device does not exist.
    ModelFormatError
        The model cannot be compiled.
    """

    def __init__(
        self, model: Model, chosen: ProviderChoice, recorder: Recorder | None, optimize: bool
    ) -> None:
        self.chosen = chosen
        self._model, self._recorder, self._optimize = model, recorder, optimize
        gpus = [name for name in chosen.devices or () if name != "cpu"]
        self._open(gpus or chosen.devices)  # the CPU runs ops that GPUs do not support

    @property
    def run(self) -> CompiledModel:
        """The compiled model; a forked child compiles its own.

        Raises
        ------
        DeviceError
            This process is a forked child, and the session uses devices other than the CPU.
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
        """Wait for active runs and free the devices. May be called twice."""
        self._finalizer()


def _close(run: CompiledModel, scheduler: Scheduler) -> None:
    """Free the resources of a session, also on garbage collection, when nobody would see an
    error.
    """
    try:
        run.close()
    finally:
        scheduler.close()
