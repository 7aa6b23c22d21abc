"""What ops of com.microsoft share that the host computes: the reference evaluator runs them."""

from __future__ import annotations

from onnx.reference.op_run import OpRun

from ....common.dtypes import NDArray
from .schemas import MICROSOFT

Results = tuple[NDArray, ...]


class ContribOp(OpRun):
    """An op of com.microsoft, whose attributes are only those that a node gives."""

    op_domain = MICROSOFT
    op_schema = None
