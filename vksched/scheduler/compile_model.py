"""Compile model: creates the compiled form of an imported model, and imports only the packages of
its format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..common.dtypes import Progress
    from ..engine.graph_registry import Graphs
    from ..engine.request import Placements
    from ..engine.request_precision import Precision
    from ..generation.chat import Chat
    from ..generation.generator import CompilingScheduler
    from ..importers.base import ImportedModel
    from ..models.compiled_model import CompiledModel


def chat_of(
    scheduler: CompilingScheduler,
    model: ImportedModel,
    placement: Placements | None,
    progress: Progress | None,
    ctx: int | None = None,
    **options: str,
) -> Chat:
    """Return a chat with a language model."""
    from ..generation.chat import Chat
    from ..importers.gguf.model import LanguageModel  # needs the optional gguf package

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
    """Return a model that is compiled for the shapes of its calls."""
    from ..importers.onnx.model import Model  # needs the optional onnx package
    from ..models.compiled_model import CompiledModel

    assert isinstance(outputs, Model)
    warns = len(graphs.preparing.opened.devices) > 1
    return CompiledModel(outputs, graphs, placement, limit, progress, warns, precision)
