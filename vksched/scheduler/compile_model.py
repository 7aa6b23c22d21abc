"""What `Scheduler.compile` makes of a model of a file, importing what its format needs alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..common.dtypes import Progress
    from ..engine.graph_registry import Graphs
    from ..engine.request import Placements
    from ..engine.request_precision import Precision
    from ..generation.chat import Chat
    from ..generation.generator import Compiles
    from ..importers.base import ImportedModel
    from ..models.compiled_model import CompiledModel


def chat_of(
    scheduler: Compiles,
    model: ImportedModel,
    placement: Placements | None,
    progress: Progress | None,
    ctx: int | None = None,
    **options: str,
) -> Chat:
    """Returns what answers by a language model."""
    from ..generation.chat import Chat
    from ..importers.gguf.model import LanguageModel  # needs the gguf package, which is an extra

    assert isinstance(model, LanguageModel)
    return Chat(scheduler, model, ctx, placement=placement, progress=progress, **options)


def run_of_model(
    outputs: ImportedModel,
    graphs: Graphs,
    placement: Placements,
    progress: Progress | None,
    limit: int = 16,
    precision: Precision | None = None,
) -> CompiledModel:
    """Returns what compiles a model for the shapes of its calls."""
    from ..importers.onnx.model import Model  # needs the onnx package, which is an extra
    from ..models.compiled_model import CompiledModel

    assert isinstance(outputs, Model)
    warns = len(graphs.preparing.opened.devices) > 1
    return CompiledModel(outputs, graphs, placement, limit, progress, warns, precision)
