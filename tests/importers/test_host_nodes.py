"""Nodes that the host evaluates, as a stranger sends them: no file is read for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto

from vksched.importers.onnx.nodes.cpu_node import CpuNode, EvaluatorRefused


def external(depth: int) -> NodeProto:
    """A Constant whose data is a file's, in the bodies of so many Ifs."""
    node = NodeProto(op_type="Constant", output=["y"])
    tensor = node.attribute.add(name="value", type=4).t
    tensor.dims.append(2)
    tensor.data_type, tensor.data_location = 1, TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="k.bin")
    for _ in range(depth):
        body = GraphProto(name="body", node=[node])
        body.output.add(name="y").type.tensor_type.elem_type = 1
        node = NodeProto(op_type="If", input=["c"], output=["y"])
        for branch in ("then_branch", "else_branch"):
            node.attribute.add(name=branch, type=5).g.CopyFrom(body)
    return node


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_file_of_the_working_folder_is_not_read(
    depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.bin").write_bytes(np.float32([4, 5]).tobytes())
    with pytest.raises(EvaluatorRefused, match="within the node, got one with external data"):
        CpuNode(external(depth), {"": 18})
