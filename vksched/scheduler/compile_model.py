"""Compile model: creates the compiled form of an imported model, and imports only the packages of
its format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..engine.compile_options import CompileOptions
    from ..engine.graph_registry import GraphRegistry
    from ..generation.chat import Chat
    from ..generation.compiled_steps import CompilingScheduler
    from ..importers.base import ImportedModel
    from ..models.compiled_model import CompiledModel


def chat_of(
    scheduler: CompilingScheduler,
    model: ImportedModel,
    options: CompileOptions,
    ctx: int | None = None,
    cache_type: str | None = None,
) -> Chat:
    """Return a chat with a language model."""
    from ..generation.chat import Chat
    from ..importers.gguf.model import LanguageModel  # needs the optional gguf package

    assert isinstance(model, LanguageModel)
    return Chat(
        scheduler,
        model,
        ctx,
        cache_type=cache_type,
        placement=options.placement,
        progress=options.progress,
        precision=options.precision,  # type: ignore[arg-type]  # the generator checks it
    )


def run_of_model(
    outputs: ImportedModel,
    graphs: GraphRegistry,
    options: CompileOptions,
    limit: int = 16,
) -> CompiledModel:
    """Return a model that is compiled for the shapes of its calls."""
    from ..importers.onnx.model import Model  # needs the optional onnx package
    from ..models.compiled_model import CompiledModel

    assert isinstance(outputs, Model)
    warns = len(graphs.preparing.opened.devices) > 1
    return CompiledModel(outputs, graphs, options, limit, warns)
