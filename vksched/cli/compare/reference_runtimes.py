"""Reference runtimes of `vksched run --compare-with`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...common.errors import VkschedError
from ..options.inputs import error_text

if TYPE_CHECKING:
    from onnx import ModelProto

    from ...importers.onnx.model import Model

Source = Any
"""A path or a ModelProto; all references accept the latter."""


@dataclass(frozen=True)
class ReferenceRuntime:
    """A reference runtime. name: value of --compare-with. evaluate: runs a model once for the named
    outputs. reads_files: it reads a model's file itself.
    """

    name: str
    evaluate: Callable[[Source, Mapping[str, Any], Sequence[str]], Sequence[Any]]
    reads_files: bool

    def outputs(
        self, path: str, model: Model, inputs: Mapping[str, Any], names: Sequence[str]
    ) -> dict[str, Any]:
        """Return the outputs for the model in a file. Raise VkschedError if the runtime is not
        installed or fails.
        """
        return self.values(path if self.reads_files else whole_model(model), inputs, names)

    def values(
        self, source: Source, inputs: Mapping[str, Any], names: Sequence[str]
    ) -> dict[str, Any]:
        """Return the outputs of a model by name; raises like `outputs`."""
        try:
            found = self.evaluate(source, inputs, names)
        except ImportError as error:
            raise VkschedError(
                f"[check] expected the {self.name} package, got none; try pip install {self.name}, "
                "or --compare-with numpy"
            ) from error
        except Exception as error:  # errors of another library, of many types
            other = "" if self.reads_files else "; try --compare-with onnxruntime"
            raise VkschedError(
                f"[check] {self.name} does not run the model: {error_text(error)}{other}"
            ) from error
        return dict(zip(names, found, strict=True))

    @property
    def is_installed(self) -> bool:
        try:
            __import__("onnx" if self.name == "numpy" else self.name)
        except ImportError:
            return False
        return True


def _onnxruntime(source: Source, inputs: Mapping[str, Any], names: Sequence[str]) -> Sequence[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised; node names are not printed
    model = source if isinstance(source, str) else source.SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found: Sequence[Any] = session.run(list(names), dict(inputs))
    return found


def _evaluator(
    source: ModelProto, inputs: Mapping[str, Any], names: Sequence[str]
) -> Sequence[Any]:
    from ...importers.onnx.nodes.reference_evaluator import make_evaluator

    return list(make_evaluator(source).run(list(names), dict(inputs)))


REFERENCE_RUNTIMES = {
    "onnxruntime": ReferenceRuntime("onnxruntime", _onnxruntime, reads_files=True),
    "numpy": ReferenceRuntime("numpy", _evaluator, reads_files=False),
}
"""numpy: the evaluator of the onnx package, with corrections of some ops."""


def whole_model(model: Model, outputs: Sequence[str] = ()) -> ModelProto:
    """Return a model with its initializers included, and values of its main graph as further
    outputs.
    """
    from onnx import ModelProto
    from onnx.helper import make_empty_tensor_value_info
    from onnx.numpy_helper import from_array

    whole = ModelProto()
    whole.CopyFrom(model.file.model)
    # since this version initializers need not be inputs
    whole.ir_version = max(whole.ir_version, 4)
    del whole.graph.initializer[:]
    arrays = model.file.initializers.items()
    whole.graph.initializer.extend(from_array(array, name) for name, array in arrays)
    known = {value.name for value in whole.graph.output}
    more = (make_empty_tensor_value_info(name) for name in outputs if name not in known)
    whole.graph.output.extend(more)
    return whole
