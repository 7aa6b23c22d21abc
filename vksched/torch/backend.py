"""The backend: from a graph of Dynamo to programs.

Dynamo graph --AOTAutograd, decompositions--> ATen graphs: inference, or forward and backward
             --Program--> segments on devices and in eager PyTorch
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

from ..common.errors import VkschedError
from .decompositions import decompositions
from .frame import FrameInfo, parameter_names, register_program
from .program import Program, ProgramInfo
from .runtime import BackendOptions, open_runtime


def vksched(module: fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Compile a graph of Dynamo for `torch.compile(model, backend="vksched")`.

    Parameters
    ----------
    options
        See `vksched.torch.BackendOptions`.

    Raises
    ------
    VkschedError
        An option is unknown or wrong. Dynamo raises it as `BackendCompilerFailed` with this text.
    """
    options = BackendOptions.parse(kwargs.pop("options", None) or {})
    if kwargs:
        raise VkschedError(f"[torch] expected options only, got {', '.join(kwargs)}")
    runtime = open_runtime(options)
    frame = FrameInfo.of(module)
    names = parameter_names(module)
    managed_names: dict[str, str] = {}  # of placeholders that forward and backward graphs share

    def compile_kind(kind: str) -> Any:
        def compiler(graph: fx.GraphModule, _: Sequence[Any]) -> Any:
            managed = _managed(graph, names, managed_names, kind)
            saved_from = _saved_from() if kind == "forward" else None
            program = Program(runtime, graph, ProgramInfo(kind, managed, saved_from))
            register_program(frame, program)
            return boxed(program)

        return compiler

    return aot_autograd(
        fw_compiler=compile_kind("forward"),
        bw_compiler=compile_kind("backward"),
        inference_compiler=compile_kind("inference"),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=decompositions(),
    )(module, example_inputs)


def boxed(program: Program) -> Any:
    """Return a function that AOTAutograd calls with one list of arguments."""

    def call(args: list[Any]) -> list[Any]:
        return program(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def _managed(
    graph: fx.GraphModule, names: Sequence[str], shared: dict[str, str], kind: str
) -> dict[int, str]:
    """Return the names of parameters and buffers by position. Buffers that the graph changes are
    plain inputs.
    """
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    if kind == "backward":
        return {i: shared[n.name] for i, n in enumerate(placeholders) if n.name in shared}
    meta = _metadata()
    if meta is None:
        return {}
    mutated = set(meta.mutated_inp_runtime_indices)
    known = names if len(names) == len(placeholders) else [n.name for n in placeholders]
    out: dict[int, str] = {}
    for i in meta.static_input_indices:
        if i < len(placeholders) and i not in mutated:
            value = placeholders[i].meta.get("val")
            if isinstance(value, torch.Tensor):
                out[i] = shared[placeholders[i].name] = known[i]
    return out


def _metadata() -> Any:
    """Return what AOTAutograd knows of the arguments and results of the forward graph, or None."""
    context = TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def _saved_from() -> int | None:
    """Return the position of the first result of a forward graph that is saved for the backward
    graph, or None.
    """
    meta = _metadata()
    return None if meta is None else int(meta.num_forward)
