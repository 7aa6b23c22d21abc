"""Frames: the Python function that a graph of Dynamo comes from, and parameter names."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from torch import fx
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch.nn import Module

from .lower import clean_path
from .program import Program

RESUMED = "torch_dynamo_resume_in_"
"""The prefix of functions that Dynamo continues with after a graph break."""
STATIC = "_dynamo_static_input_type"
"""The attribute by which Dynamo marks parameters and buffers."""


@dataclass(frozen=True, eq=False)
class FrameInfo:
    """The origin of a graph.

    Attributes
    ----------
    function
        File, first line and name of the function; its name is that before a graph break.
    owner
        The module whose method it is, if there is one.
    break_reason
        The reason of the graph break that ends the graph; "" if the function returns.
    """

    function: tuple[str, str]
    owner: weakref.ref[Any] | None
    break_reason: str

    @staticmethod
    def of(module: fx.GraphModule) -> FrameInfo:
        """Return the origin of the graph that Dynamo compiles now."""
        reason = getattr(module, "compile_subgraph_reason", None)
        text = str(reason.reason) if reason is not None and reason.graph_break else ""
        try:
            frame = InstructionTranslator.current_tx()
        except AttributeError:  # called without Dynamo
            return FrameInfo(("", ""), None, text)
        owner = _owner(frame.f_locals)
        return FrameInfo(function_of(frame.f_code), owner, text)

    @property
    def label(self) -> str:
        """The class of the module, or the name of the function."""
        owner = self.owner() if self.owner is not None else None
        return self.function[1] if owner is None else type(owner).__name__


def _owner(variables: Mapping[str, Any]) -> weakref.ref[Any] | None:
    """Return the module that a frame belongs to, from its variables: self, or a wrapped module."""
    for value in variables.values():
        found = getattr(value, "__self__", value)
        if isinstance(found, Module):
            return weakref.ref(found)
    return None


def function_of(code: CodeType) -> tuple[str, str]:
    """Return the file and the name of a function."""
    name = code.co_name
    if name.startswith(RESUMED):
        name = name.removeprefix(RESUMED).rpartition("_at_")[0]
    return code.co_filename, name


def parameter_names(module: fx.GraphModule) -> list[str]:
    """Return the names of the inputs of a graph, by position: parameters and buffers as in
    `state_dict`.
    """
    out: list[str] = []
    roots = set[str]()
    for node in module.graph.nodes:
        if node.op == "placeholder":
            argument = node.meta.get("grapharg")
            source: Any = getattr(argument, "source", None)
            name = getattr(source, "name", "")
            out.append(clean_path(str(name() if callable(name) else name)) or node.name)
            if STATIC in node.meta.get("tensor_dict", ()):
                roots.add(out[-1].partition(".")[0])
    if len(roots) > 1:  # parameters of several modules
        return out
    return [name.partition(".")[2] if name.partition(".")[0] in roots else name for name in out]


_lock = threading.Lock()
_programs: list[tuple[FrameInfo, weakref.ref[Program]]] = []


def register_program(frame: FrameInfo, program: Program) -> None:
    """Record the origin of a program."""
    with _lock:
        _programs[:] = [each for each in _programs if each[1]() is not None]
        _programs.append((frame, weakref.ref(program)))


def programs() -> Iterator[tuple[FrameInfo, Program]]:
    """Yield all programs that exist, in the order of their compilation."""
    with _lock:
        listed = list(_programs)
    for frame, reference in listed:
        program = reference()
        if program is not None:
            yield frame, program
