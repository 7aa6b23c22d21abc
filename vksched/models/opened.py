"""Opened: what imported models become on a scheduler, and which of them are open."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from ..engine.graphs import Graphs
from ..engine.precision import Precision
from ..engine.request import Placements
from ..importers.base import ImportedModel
from ..types import Progress

if TYPE_CHECKING:
    from .chat import Chat
    from .reader import Compiles
    from .run import ModelRun


class OpenModels:
    """The ONNX models that a scheduler runs: they end before its graphs do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: weakref.WeakSet[ModelRun] = weakref.WeakSet()

    def run_of(
        self,
        graphs: Graphs,
        model: ImportedModel,
        placement: Placements | None,
        progress: Progress | None,
        warns: bool,
        limit: int = 16,
        precision: Precision | None = None,
    ) -> ModelRun:
        """Returns what compiles an ONNX model for the shapes of its calls. warns: whether it tells
        what a choice of devices costs.
        """
        from ..importers.onnx.model import Model  # needs the onnx package, which is an extra
        from .run import ModelRun

        assert isinstance(model, Model)
        run = ModelRun(model, graphs, placement or {}, limit, progress, warns, precision)
        with self._lock:
            self._runs.add(run)
        if model.is_static:
            run.prepare()
        return run

    def synchronize(self) -> None:
        """Waits for the runs submitted so far."""
        for run in self._listed():
            run.synchronize()

    def close(self) -> None:
        """Ends all of them; their runs may still have stages to compile."""
        for run in self._listed():
            run.close()

    def _listed(self) -> list[ModelRun]:
        with self._lock:
            return list(self._runs)


def chat_of(
    scheduler: Compiles,
    model: ImportedModel,
    placement: Placements | None,
    progress: Progress | None,
    ctx: int | None = None,
    kv: str = "f32",
) -> Chat:
    """Returns what answers by a language model."""
    from ..importers.gguf.model import LanguageModel  # needs the gguf package, which is an extra
    from .chat import Chat

    assert isinstance(model, LanguageModel)
    return Chat(scheduler, model, ctx, kv=kv, placement=placement, progress=progress)
