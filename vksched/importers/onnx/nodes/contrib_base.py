"""Base class of com.microsoft ops that the reference evaluator runs on the CPU."""

from __future__ import annotations

from onnx.reference.op_run import OpRun

from ....common.dtypes import NDArray
from .schemas import MICROSOFT

Results = tuple[NDArray, ...]


class ContribOp(OpRun):
    """An op of com.microsoft whose attributes are those of its node, without defaults."""

    op_domain = MICROSOFT
    op_schema = None
