"""Schemas: op declarations of the onnx package, and ops that exist only in onnxruntime.

onnxruntime has ops of its own, some in the default domain, and its optimizer saves models with
them. Some were added to ONNX later: their first ONNX version is also used below its opset.
"""

from __future__ import annotations

from functools import lru_cache

from onnx import defs
from onnx.defs import OpSchema

from .functions import canonical_domain

MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"
BLOCK = "block_channels"
"""Attribute for the channels per block, added to NCHWc nodes while reading."""
CONTRIB_DOMAINS = (MICROSOFT, NCHWC)
"""Domains without schemas in the onnx package."""
EARLIER = {"LayerNormalization": 17, "ThresholdedRelu": 10}
"""Ops of the default domain that onnxruntime has at all opsets, and their first opset in ONNX."""
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
"""Ops of the default domain that exist in onnxruntime only."""


@lru_cache(maxsize=4096)
def find_schema(op_type: str, version: int, domain: str) -> OpSchema | None:
    """Return the schema of an op at an opset, or None if the onnx package has none."""
    domain = canonical_domain(domain)
    if not domain:
        version = max(version, EARLIER.get(op_type, 0))
    try:
        return defs.get_schema(op_type, version, domain)
    except (defs.SchemaError, ValueError):
        return None


def is_contrib(op_type: str, domain: str, schema: OpSchema | None) -> bool:
    """Return True if an op exists in onnxruntime only."""
    if domain in CONTRIB_DOMAINS:
        return True
    return schema is None and not canonical_domain(domain) and op_type in CONTRIB_OPS
