"""vksched: compute graphs on every Vulkan device you have, planned once, replayed with little host
work.

    x = vs.input("x", shape=(64, 1024))
    y = vs.softmax(vs.relu(x @ vs.weight(w1)) @ vs.weight(w2))
    with vs.Scheduler() as sched:
        run = sched.compile(y)
        probs = run(x=batch)

A public name is imported at its first use: `vksched.Tensor` loads no scheduler, and the command
line starts quickly.
"""

from __future__ import annotations

from .common.op_loaders import register_op_loader
from .common.version import __version__ as __version__

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of this

if TYPE_CHECKING:
    from . import onnxruntime as onnxruntime
    from . import optim as optim
    from . import serve as serve
    from .autograd.checkpoint import checkpoint as checkpoint
    from .autograd.reverse_mode import grad as grad
    from .autograd.reverse_mode import value_and_grad as value_and_grad
    from .autograd.reverse_mode import vjp as vjp
    from .cluster.cluster import Cluster as Cluster
    from .common import errors as errors
    from .common.dtypes import TensorType as TensorType
    from .common.errors import DeviceError as DeviceError
    from .common.errors import DeviceLost as DeviceLost
    from .common.errors import DeviceTimeout as DeviceTimeout
    from .common.errors import DTypeError as DTypeError
    from .common.errors import GradientError as GradientError
    from .common.errors import GraphError as GraphError
    from .common.errors import IndexOutOfRange as IndexOutOfRange
    from .common.errors import ModelFormatError as ModelFormatError
    from .common.errors import NotPicklable as NotPicklable
    from .common.errors import OutOfMemory as OutOfMemory
    from .common.errors import PlanError as PlanError
    from .common.errors import QueueFull as QueueFull
    from .common.errors import RunCancelled as RunCancelled
    from .common.errors import ShaderError as ShaderError
    from .common.errors import ShapeError as ShapeError
    from .common.errors import StateLost as StateLost
    from .common.errors import UnsupportedOp as UnsupportedOp
    from .common.errors import VkschedError as VkschedError
    from .common.user_warning import VkschedWarning as VkschedWarning
    from .engine.executable import CompiledGraph as CompiledGraph
    from .engine.report.run_report import RunReport as RunReport
    from .generation.chat import Chat as Chat
    from .generation.embedder import Embedder as Embedder
    from .generation.perplexity import PrecisionLoss as PrecisionLoss
    from .generation.perplexity import perplexity as perplexity
    from .generation.reranker import Reranker as Reranker
    from .generation.sampling import Sampling as Sampling
    from .generation.speculation.speculation import Speculation as Speculation
    from .importers import load as load
    from .importers import load_projector as load_projector
    from .ir.build_graph import build_graph as build_graph
    from .ir.graph import Graph as Graph
    from .ir.name_scope import name_scope as name_scope
    from .ir.name_scope import signal as signal
    from .ir.tensor import Tensor as Tensor
    from .ir.tensor import constant as constant
    from .ir.tensor import input as input
    from .ir.tensor import weight as weight
    from .monitor import metrics as metrics
    from .onnxruntime.inference import InferenceSession as InferenceSession
    from .ops import *  # noqa: F403  # noqa: F403
    from .ops.creation.state import state as state
    from .optim import initializers as _initializers
    from .optim import losses as losses
    from .plan.plan import Plan as Plan
    from .plan.serialize.trace_timeline import timeline as timeline
    from .planner.planner import plan_graph as plan_graph
    from .runtime.run_stats import RunStats as RunStats
    from .runtime.simulated.fault_injection import FaultInjectionDevice as FaultInjectionDevice
    from .runtime.simulated.simulated_device import SimulatedDevice as SimulatedDevice
    from .runtime.simulated.throttled_device import ThrottledDevice as ThrottledDevice
    from .runtime.simulated_clock import SimulatedClock as SimulatedClock
    from .runtime.vulkan.device_probe import DeviceInfo as DeviceInfo
    from .runtime.vulkan.device_probe import list_devices as _list_devices
    from .scheduler.scheduler import Scheduler as Scheduler
    from .topology.device_spec import DeviceSpec as DeviceSpec
    from .topology.links import Link as Link
    from .topology.links import Links as Links
    from .topology.perf_model import PerfModel as PerfModel
    from .topology.topology import Topology as Topology
    from .topology.topology_file import load_topology as load_topology
    from .trace.events import Event as Event
    from .trace.events import Trace as Trace
    from .trace.log import log_sink as log_sink
    from .trace.read import TapeFile as TapeFile
    from .trace.read import load_tape as load_tape
    from .trace.tape import Recorder as Recorder
    from .trace.tape import Tape as Tape
    from .viz.timeline.timeline import Timeline as Timeline

    devices = _list_devices
    init = _initializers

_PUBLIC = {
    "build_graph": "ir.build_graph",
    "Chat": "generation.chat",
    "checkpoint": "autograd.checkpoint",
    "Cluster": "cluster.cluster",
    "constant": "ir.tensor",
    "PerfModel": "topology.perf_model",
    "DeviceError": "common.errors",
    "DeviceInfo": "runtime.vulkan.device_probe",
    "DeviceLost": "common.errors",
    "devices": "runtime.vulkan.device_probe:list_devices",
    "DeviceSpec": "topology.device_spec",
    "DeviceTimeout": "common.errors",
    "DTypeError": "common.errors",
    "Embedder": "generation.embedder",
    "PrecisionLoss": "generation.perplexity",
    "perplexity": "generation.perplexity",
    "errors": "common.errors",
    "Event": "trace.events",
    "FaultInjectionDevice": "runtime.simulated.fault_injection",
    "grad": "autograd.reverse_mode",
    "GradientError": "common.errors",
    "Graph": "ir.graph",
    "GraphError": "common.errors",
    "IndexOutOfRange": "common.errors",
    "InferenceSession": "onnxruntime.inference",
    "init": "optim.initializers",
    "input": "ir.tensor",
    "Link": "topology.links",
    "Links": "topology.links",
    "load": "importers",
    "load_projector": "importers",
    "load_topology": "topology.topology_file",
    "load_tape": "trace.read",
    "log_sink": "trace.log",
    "losses": "optim.losses",
    "Topology": "topology.topology",
    "metrics": "monitor.metrics",
    "ModelFormatError": "common.errors",
    "NotPicklable": "common.errors",
    "SimulatedDevice": "runtime.simulated.simulated_device",
    "onnxruntime": "onnxruntime",
    "optim": "optim",
    "OutOfMemory": "common.errors",
    "Plan": "plan.plan",
    "plan_graph": "planner.planner",
    "PlanError": "common.errors",
    "Recorder": "trace.tape",
    "Reranker": "generation.reranker",
    "CompiledGraph": "engine.executable",
    "QueueFull": "common.errors",
    "RunCancelled": "common.errors",
    "RunReport": "engine.report.run_report",
    "RunStats": "runtime.run_stats",
    "Sampling": "generation.sampling",
    "Speculation": "generation.speculation.speculation",
    "serve": "serve",
    "Scheduler": "scheduler.scheduler",
    "name_scope": "ir.name_scope",
    "ShaderError": "common.errors",
    "ShapeError": "common.errors",
    "signal": "ir.name_scope",
    "SimulatedClock": "runtime.simulated_clock",
    "ThrottledDevice": "runtime.simulated.throttled_device",
    "state": "ops.creation.state",
    "StateLost": "common.errors",
    "Tape": "trace.tape",
    "TapeFile": "trace.read",
    "Tensor": "ir.tensor",
    "TensorType": "common.dtypes",
    "timeline": "plan.serialize.trace_timeline",
    "Timeline": "viz.timeline.timeline",
    "Trace": "trace.events",
    "UnsupportedOp": "common.errors",
    "value_and_grad": "autograd.reverse_mode",
    "vjp": "autograd.reverse_mode",
    "VkschedError": "common.errors",
    "VkschedWarning": "common.user_warning",
    "weight": "ir.tensor",
}
"""The module of each public name, or the module itself for the names of modules. "module:name" says
the name that it has there. All ops are public, too.
"""
_MODULES = {"errors", "init", "losses", "metrics", "onnxruntime", "optim", "serve"}


def _declare_onnx_op(name: str) -> None:
    from .common.errors import ModelFormatError

    try:
        from .importers.onnx.nodes.cpu_node import declare
    except ImportError as error:
        raise ModelFormatError(
            f'{name} needs the onnx package; try pip install "vksched[onnx]"'
        ) from error
    declare(name)


register_op_loader("onnx.", _declare_onnx_op)

if not TYPE_CHECKING:

    def __getattr__(name):
        from importlib import import_module

        if name.startswith("__") and name != "__all__":  # Python itself looks for them
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _PUBLIC.get(name, "ops").partition(":")
        loaded = import_module(f".{module}", __name__)
        if name == "__all__":
            return sorted([*_PUBLIC, *loaded.__all__])
        if name in _MODULES:
            value = loaded
        elif name in _PUBLIC or name in loaded.__all__:
            value = getattr(loaded, attribute or name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__getattr__("__all__")})
