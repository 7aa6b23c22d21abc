"""Cases of functions that are called by name, so that oracles see the arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import vksched as vs

from ..common.dtypes import NDArray
from .case import FunctionCase, Outputs


@dataclass(frozen=True)
class FunctionCall(FunctionCase):
    """One call of `vs.<function>` on tensors, with these other arguments."""

    arguments: Mapping[str, Any] = field(default_factory=dict)


def call(
    function: str, *inputs: NDArray, name: str = "", nmse: float = 1e-10, **arguments: Any
) -> FunctionCall:
    """A call of a function on tensors, one for each array."""

    def build(*tensors: vs.Tensor) -> Outputs:
        result: Outputs = getattr(vs, function)(*tensors, **arguments)
        return result

    return FunctionCall(function, build, inputs, name, nmse, arguments)
