"""Samples of functions called by name, so that oracles see the arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ... import ops
from ...common.dtypes import NDArray
from ...ir.tensor import Tensor
from .op_sample import FunctionSample, Outputs


@dataclass(frozen=True)
class FunctionCall(FunctionSample):
    """A call of `ops.<function>` on tensors, with further arguments."""

    arguments: Mapping[str, Any] = field(default_factory=dict)


def call(
    function: str, *inputs: NDArray, name: str = "", nmse: float = 1e-10, **arguments: Any
) -> FunctionCall:
    """Return a call of a function on tensors, one for each array."""

    def build(*tensors: Tensor) -> Outputs:
        result: Outputs = getattr(ops, function)(*tensors, **arguments)
        return result

    return FunctionCall(function, build, inputs, name, nmse, arguments)
