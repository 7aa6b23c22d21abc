"""NCHWc: models saved with all optimizations of onnxruntime store weights in blocks of channels.

    OIHW (32, 32, 3, 3)  ->  (2, 2, 3, 3, 16, 16), stored with the old shape

A block has 16 channels on processors with AVX-512 or NEON, and 8 on others. The file does not
specify the size. It is inferred from shapes if channels were padded to whole blocks. Otherwise the
size of this machine is used, as in onnxruntime, with a warning.

Complexity: O(nodes). Examples: tests/importers/test_onnx_saved.py.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx
from onnx.helper import get_node_attr_value, make_attribute

from ....common.errors import ModelFormatError
from ....common.user_warning import warn_user
from ..nodes.schemas import BLOCK, NCHWC
from ..nodes.topological_order import label, subgraphs

SIZES = (8, 16)
"""Possible numbers of channels per block."""


def mark_blocks(model: onnx.ModelProto) -> None:
    """Write the number of channels per block into the nodes that need it.

    Raises
    ------
    ModelFormatError
        Shapes of the model are contradictory.
    """
    if all(opset.domain != NCHWC for opset in model.opset_import):
        return
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    blocked: dict[str, int] = {}
    size, marked = 0, []
    for node in _all_nodes(model.graph):
        fits = _fitting(node, shapes, blocked)
        inferred = min(fits, default=-1) if len(fits) < len(SIZES) else 0
        if inferred < 0 or (inferred and size and inferred != size):
            raise ModelFormatError(
                f"[onnx] {label(node)}: expected weights in blocks of {size or '8 or 16'} channels "
                "as in all of the model, got other ones"
            )
        size = inferred or size
        channels = _channels(node, shapes, blocked)
        if channels is not None:
            blocked.update(dict.fromkeys(node.output, channels))
        if node.domain == NCHWC:
            marked.append(node)
    if marked and not size:
        size = _of_this_machine()
        warn_user(
            "[onnx] the model was saved with all of onnxruntime's optimizations: its weights are "
            "stored in blocks of 8 or 16 channels, and their shapes fit both; "
            f"{size} is used, as on this machine; try the original model, or one saved with "
            "ORT_ENABLE_EXTENDED"
        )
    for node in marked:
        attributes = [a for a in node.attribute if a.name != BLOCK]
        del node.attribute[:]
        node.attribute.extend([*attributes, make_attribute(BLOCK, size)])


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for _, inner in subgraphs(node):
            yield from _all_nodes(inner)


def _channels(
    node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]], blocked: Mapping[str, int]
) -> int | None:
    """Return the channels of results in NCHWc layout, 0 if unknown, or None for other results.

    Ops of the default domain between NCHWc nodes keep the layout.
    """
    if node.domain == NCHWC and node.op_type in ("ReorderInput", "ReorderOutput"):
        return 0 if node.op_type == "ReorderInput" else None
    if node.domain == NCHWC and node.op_type == "Conv":
        shape = shapes.get(node.input[1], ()) if len(node.input) > 1 else ()
        return shape[0] if len(shape) == 4 else 0
    channels = [blocked[name] for name in node.input if name in blocked]
    if not channels:
        return None
    if node.op_type == "Concat":
        return sum(channels) if all(channels) else 0
    return max(channels)


def _fitting(
    node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]], blocked: Mapping[str, int]
) -> set[int]:
    """Return the block sizes that are consistent with the shapes at a node."""
    fits = set(SIZES)
    if node.domain != NCHWC or not node.input:
        return fits
    if node.op_type == "ReorderOutput":
        held = blocked.get(node.input[0], 0)
        channels = _attribute(node, "channels", held)
        return {s for s in fits if not held or held == -(-channels // s) * s}
    shape = shapes.get(node.input[1], ()) if len(node.input) > 1 else ()
    if node.op_type != "Conv" or len(shape) != 4:
        return fits
    fits = {s for s in fits if shape[0] % s == 0}
    if _attribute(node, "group", 1) > 1:
        return fits
    # fewer channels than a block are stored unpadded, others in whole blocks
    if node.input[0] in blocked:
        return {s for s in fits if shape[1] % s == 0}
    return {s for s in fits if shape[1] < s}


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    try:
        return int(get_node_attr_value(node, name))
    except (ValueError, TypeError):
        return default


def _of_this_machine() -> int:
    """Return the block size that onnxruntime uses on this machine."""
    if platform.machine().lower() not in ("x86_64", "amd64", "i686", "x86"):
        return 16
    try:
        return 16 if " avx512f " in Path("/proc/cpuinfo").read_text("utf-8") else 8
    except OSError:
        return 8
