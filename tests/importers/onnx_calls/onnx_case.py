"""One ONNX node as a model, for the tests that ask onnxruntime for the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from conftest import vulkan_names
from onnx import ModelProto, helper, numpy_helper

import vksched as vs

MICROSOFT = "com.microsoft"


@dataclass
class OneNode:
    """One node. fixed: operands that are initializers. wanted: its results, - where not asked.
    lengths: the number of defined keys of the caches of each batch.
    """

    op: str
    inputs: list[Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    wanted: str = "y"
    fixed: tuple[int, ...] = ()
    domain: str = ""
    label: str = ""
    lengths: tuple[int, ...] = ()
    opset: int = 17

    def model(self) -> ModelProto:
        names = [f"x{i}" if a is not None else "" for i, a in enumerate(self.inputs)]
        inputs = [(n, a) for n, a in zip(names, self.inputs, strict=True) if n]
        dtype = helper.np_dtype_to_tensor_dtype
        outputs = [w if w != "-" else "" for w in self.wanted.split()]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **self.attrs)
        stored = {f"x{i}" for i in self.fixed}
        graph = helper.make_graph(
            [node],
            "one",
            [
                helper.make_tensor_value_info(n, dtype(a.dtype), a.shape)
                for n, a in inputs
                if n not in stored
            ],
            [helper.make_empty_tensor_value_info(o) for o in outputs if o],
            [numpy_helper.from_array(a, n) for n, a in inputs if n in stored],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def feeds(self) -> dict[str, Any]:
        return {
            f"x{i}": a for i, a in enumerate(self.inputs) if a is not None and i not in self.fixed
        }


@pytest.fixture(params=[["cpu"], vulkan_names()[:1]], ids=["cpu", "vulkan"], scope="module")
def sched(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    """The CPU, then the first Vulkan device; for the test files that import it."""
    if not request.param:
        pytest.skip("no Vulkan device here")
    with vs.Scheduler(request.param) as opened:
        yield opened


def check(case: OneNode, sched: vs.Scheduler) -> None:
    """Assert that a node gives what onnxruntime gives, and that a rule expresses it."""
    model = case.model()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = session.run(None, case.feeds())
    run = sched.compile(vs.load(model))
    got = run(**case.feeds())
    steps = [segment.lowered.step for segment in run.segments if segment.lowered.step]
    hosts = [n.op for plan in run.plans for n in plan.graph.nodes if n.op.startswith("onnx.")]
    run.close()
    assert not hosts and not steps
    assert len(got) == len(wanted)
    for name, want in zip((o.name for o in model.graph.output), wanted, strict=True):
        found = got[name].copy()
        assert found.shape == want.shape and found.dtype == want.dtype
        if name in ("k", "v"):
            for batch, length in enumerate(case.lengths):
                found[batch, :, length:] = want[batch, :, length:] = 0
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=2e-5, err_msg=name)
