"""The classes that onnxruntime defines in the module of this name."""

from ..binding import IOBinding
from ..devices import OrtDevice, OrtDeviceVendorId
from ..environment import copy_tensors
from ..inference import InferenceSession
from ..inference import InferenceSession as Session
from ..ort_value import OrtValue

__all__ = [
    "IOBinding",
    "InferenceSession",
    "OrtDevice",
    "OrtDeviceVendorId",
    "OrtValue",
    "Session",
    "copy_tensors",
]
