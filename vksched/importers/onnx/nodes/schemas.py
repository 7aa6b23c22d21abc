"""Schemas: how the onnx package declares an op, and the ops that onnxruntime knows besides.

onnxruntime has ops of its own, some in the default domain, and its optimizer saves models with
them. Some came into ONNX later: their first version there holds below its opset, too.
"""

from __future__ import annotations

from functools import lru_cache

from onnx import defs
from onnx.defs import OpSchema

from .functions import canonical_domain

MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"
BLOCK = "block_channels"
"""An attribute that reading gives the nodes of NCHWC: the channels of a block."""
CONTRIB_DOMAINS = (MICROSOFT, NCHWC)
"""Domains of which the onnx package has no schema."""
EARLIER = {"LayerNormalization": 17, "ThresholdedRelu": 10}
"""Ops of the default domain that onnxruntime has at all opsets, and the first opset in ONNX."""
CONTRIB_OPS = frozenset(
    (
        "Affine",
        "Crop",
        "DynamicSlice",
        "ImageScaler",
        "MeanVarianceNormalization",  # below opset 9
        "ParametricSoftplus",
        "Scale",
        "ScaledTanh",
        "SimplifiedLayerNormalization",
    )
)
"""Ops of the default domain that onnxruntime has where ONNX has none of the name."""


@lru_cache(maxsize=4096)
def find_schema(op_type: str, version: int, domain: str) -> OpSchema | None:
    """Return the declaration of an op at an opset; None where the onnx package has none."""
    domain = canonical_domain(domain)
    if not domain:
        version = max(version, EARLIER.get(op_type, 0))
    try:
        return defs.get_schema(op_type, version, domain)
    except (defs.SchemaError, ValueError):
        return None


def is_contrib(op_type: str, domain: str, schema: OpSchema | None) -> bool:
    """Return whether an op is onnxruntime's own."""
    if domain in CONTRIB_DOMAINS:
        return True
    return schema is None and not canonical_domain(domain) and op_type in CONTRIB_OPS
