"""The names of the package: what `import vksched as vs` gives, imported at the first use of any."""

from __future__ import annotations

from . import optim
from .autograd.checkpoint import checkpoint
from .autograd.reverse_mode import grad, value_and_grad, vjp
from .cluster.cluster import Cluster
from .common.dtypes import TensorType
from .common.errors import (
    DeviceError,
    DeviceLost,
    DeviceTimeout,
    DTypeError,
    GradientError,
    GraphError,
    IndexOutOfRange,
    ModelFormatError,
    NotPicklable,
    OutOfMemory,
    PlanError,
    RunCancelled,
    ShaderError,
    ShapeError,
    StateLost,
    UnsupportedOp,
    VkschedError,
)
from .common.user_warning import VkschedWarning
from .engine.executable import Run
from .engine.report.run_report import RunReport
from .generation.chat import Chat
from .generation.embedder import Embedder
from .generation.sampling import Sampling
from .importers import load
from .ir.build_graph import build_graph
from .ir.graph import Graph
from .ir.name_scope import scope, signal
from .ir.tensor import Tensor, constant, input, weight
from .monitor import metrics
from .onnxruntime import InferenceSession
from .ops import *  # noqa: F403 - the op set, by its own __all__
from .ops import __all__ as _ops
from .ops.creation.state import state
from .optim import initializers as init
from .optim import losses
from .plan.plan import Plan
from .plan.serialize.trace_timeline import timeline
from .planner.planner import plan_graph
from .runtime.run_stats import RunStats
from .runtime.simulated.fault_injection import FaultyDevice
from .runtime.simulated.simulated_device import NullDevice
from .runtime.simulated.throttled_device import SlowedDevice
from .runtime.simulated_clock import SimulatedClock
from .runtime.vulkan.device_probe import DeviceInfo
from .runtime.vulkan.device_probe import list_devices as devices
from .scheduler.scheduler import Scheduler
from .topology.device_spec import DeviceSpec
from .topology.links import Link, Links
from .topology.perf_model import Costs
from .topology.topology import Machine
from .topology.topology_file import load_machine
from .trace import Event, Recorder, Tape, TapeFile, Trace, load_tape, log_sink
from .viz.timeline.timeline import Timeline

__all__ = [
    "Chat",
    "Cluster",
    "Costs",
    "DTypeError",
    "DeviceError",
    "DeviceInfo",
    "DeviceLost",
    "DeviceSpec",
    "DeviceTimeout",
    "Embedder",
    "Event",
    "FaultyDevice",
    "GradientError",
    "Graph",
    "GraphError",
    "IndexOutOfRange",
    "InferenceSession",
    "Link",
    "Links",
    "Machine",
    "ModelFormatError",
    "NullDevice",
    "OutOfMemory",
    "Plan",
    "NotPicklable",
    "PlanError",
    "Recorder",
    "Run",
    "RunCancelled",
    "RunReport",
    "RunStats",
    "Sampling",
    "Scheduler",
    "ShaderError",
    "ShapeError",
    "SimulatedClock",
    "SlowedDevice",
    "StateLost",
    "Tape",
    "TapeFile",
    "Tensor",
    "TensorType",
    "Timeline",
    "Trace",
    "UnsupportedOp",
    "VkschedError",
    "VkschedWarning",
    "build_graph",
    "checkpoint",
    "constant",
    "devices",
    "grad",
    "init",
    "input",
    "load",
    "load_machine",
    "load_tape",
    "log_sink",
    "losses",
    "metrics",
    "optim",
    "plan_graph",
    "scope",
    "signal",
    "state",
    "timeline",
    "value_and_grad",
    "vjp",
    "weight",
    *_ops,
]
