"""Fuse sibling linears: matmuls of one token's activation become one dispatch.

    q = linear(norm(x), Wq)                           qkv = merged_linear(x, scale, Wq, Wk, Wv)
    k = linear(norm(x), Wk)                     is    q, k, v are slices of it: views
    v = linear(norm(x), Wv)

    silu(linear(x, Wg)) * linear(x, Wu)         is    merged_linear(x, Wg, Wu) {gate: silu}
    q, k, v of several rows                     are   slices of one merged_linear {stacked}
    rotary(q), rotary(k), of one matmul         is    merged_linear_rope, or, if another op reads
                                                      q or k, slices of one rotary(q and k)

A GPU spends time to start each dispatch, and idles at each barrier. When decoding one token, this
takes longer than the arithmetic. A matmul of few rows can recompute the norm before it in each
workgroup. So GPUs merge matmuls of up to eight rows with quantized weights, all numbers of rows
alike, so that a sequence has the same results in each batch (gemv_rows.py). A norm with other
readers is not merged. Matmuls of many rows are merged, without their norm, if the static choice
multiplies them in tiles (quant_gemm_dispatches.py). Complexity: O(nodes). Examples:
tests/passes/test_fuse_linears.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..common.dtypes import TensorType
from ..ir.attrs import Attrs, AttrValue
from ..ir.graph import Graph, Node
from ..ir.op import Call
from ..ir.precision import precision_attrs
from ..ops.linalg.matmul_kernels import MAX_GEMV_ROWS
from ..ops.linalg.split_k import without_split
from ..ops.lowering.lower import variants_of
from ..ops.quantized.merged_linear import (
    COLUMNS,
    GATES,
    MAX_WEIGHTS,
    MERGED_BUFFERS,
    NAME,
    NORM,
    has_int8_kernel,
    is_stacked,
)
from ..ops.quantized.merged_linear_rope import NAME as ROPE_NAME
from ..ops.quantized.merged_linear_rope import ROPE_BUFFERS, ROTARY, has_rope_kernel
from ..ops.quantized.q8_activations import quantizes_x
from ..ops.quantized.quant_gemm import quant_gemm_tiles
from ..ops.quantized.quant_gemm_dispatches import tile_of
from ..topology.host_names import CPU, device_of
from ..topology.limits import Limits
from ..topology.tuned_variants import TunedVariants
from .constraints import RewriteConstraints
from .rewrite import Rewriter, Rule, rewrite


def fuse_sibling_linears(graph: Graph, constraints: RewriteConstraints) -> Graph:
    """Fuse sibling matmuls of an activation (Q/K/V, gate/up), with their norm and activation, into
    one op.
    """
    if not is_supported(constraints.limits):
        return graph
    finder = _Finder(graph, constraints)
    runs = list(finder.products())
    if not runs:
        return graph
    rotary = [finder.with_rope(run) for run in _rotary_runs(graph, runs, constraints)]
    rotary = [run for run in rotary if run.is_whole(graph)]
    parts = _rule(graph, (*runs, *rotary))
    return rewrite(graph, dict.fromkeys(("quantized_linear", "mul", ROTARY), (parts,)), constraints)


def is_supported(limits: Limits | None) -> bool:
    """Return True if all devices have the fused kernel and benefit from it."""
    return limits is not None and not limits.software and limits.storage_buffers >= MERGED_BUFFERS


def is_on_cpu(node: Node, constraints: RewriteConstraints) -> bool:
    """Return True if a node is pinned to a CPU, which has no merged kernel."""
    device = constraints.pinned_devices.get(node.name, "")
    return device_of(device.partition(" ")[0]) == CPU  # the pipeline position may follow


def is_by_coopmats(node: Node, types: tuple[TensorType, ...], limits: Limits | None) -> bool:
    """Return True if the static choice multiplies a matmul of quantized weights with cooperative
    matrices on all devices. types: types of its operands.
    """
    if limits is None or not limits.coopmat_checked:
        return False
    call = static_choice(node, types, limits)
    return without_split(call.variant) in quant_gemm_tiles(call.limits)


def static_choice(node: Node, types: tuple[TensorType, ...], limits: Limits) -> Call:
    """Return the call of a node by the static choice: measured variants come and go, the graph
    stays.
    """
    call = Call(types, node.type, node.attrs, replace(limits, tuned=TunedVariants()))
    return replace(call, variant=variants_of(node.declaration, call)[0])


@dataclass(eq=False)
class _Run:
    """Nodes that become slices of one merged node, along an axis of it.

    `merged` is the id of the merged node in the new graph, -1 until the first member is visited.
    """

    members: tuple[int, ...]
    axis: int
    merged: int = -1

    def make(self, r: Rewriter, graph: Graph) -> int:
        """Emit the merged node."""
        raise NotImplementedError

    def bounds(self, graph: Graph, member: int) -> tuple[int, int]:
        """Return the start and end of a member in the merged node."""
        sizes = [graph.nodes[i].type.shape[self.axis] for i in self.members]
        at = self.members.index(member)
        return sum(sizes[:at]), sum(sizes[: at + 1])


@dataclass(eq=False)
class _LinearRun(_Run):
    """Matmuls to merge; `inputs` are ids in the old graph, `attrs` those of the new op."""

    inputs: tuple[int, ...] = ()
    attrs: Attrs = Attrs()
    tables: tuple[int, ...] = ()
    """Cosines and sines of a rotary embedding; then `attrs` are those of merged_linear_rope."""

    def make(self, r: Rewriter, graph: Graph) -> int:
        tables = [of_ahead(r, graph, each, self.members[0]) for each in self.tables]
        op = ROPE_NAME if tables else NAME
        return r.emit(op, (*map(r.of, self.inputs), *tables), self.attrs)

    def bounds(self, graph: Graph, member: int) -> tuple[int, int]:
        if not is_stacked(self.attrs):
            return super().bounds(graph, member)
        sizes = [graph.nodes[i].type.size for i in self.members]
        at = self.members.index(member)
        return sum(sizes[:at]), sum(sizes[: at + 1])


@dataclass(eq=False)
class _RotaryRun(_Run):
    """Rotary embeddings to merge; `of` is the run whose slices they rotate."""

    of: _LinearRun | None = None
    is_done: bool = False
    """The run `of` rotates its results, so these nodes are their operands."""

    def is_whole(self, graph: Graph) -> bool:
        """Return True if one op rotates all: the results are within one row, or rotated already."""
        return self.is_done or graph.nodes[self.members[0]].type.shape[0] == 1

    def make(self, r: Rewriter, graph: Graph) -> int:
        assert self.of is not None
        nodes = [graph.nodes[i] for i in self.members]
        bounds = [self.of.bounds(graph, graph.view_base(node.inputs[0])) for node in nodes]
        flat = cut(r, self.of.merged, self.of.axis, bounds[0][0], bounds[-1][1])
        batch, _, length, size = nodes[0].type.shape
        heads = sum(node.type.shape[1] for node in nodes)
        x = r.emit("reshape", (flat,), {"shape": (batch, heads, length, size)})
        return r.emit(ROTARY, (x, *map(r.of, nodes[0].inputs[1:])), nodes[0].attrs)


def _rule(graph: Graph, runs: Iterable[_Run]) -> Rule:
    """Return the rule that replaces each member of a run by its slice of the merged node."""
    members = {graph.nodes[i].name: (run, i) for run in runs for i in run.members}

    def rule(r: Rewriter, node: Node) -> int | None:
        if node.name not in members:
            return None
        run, member = members[node.name]
        if isinstance(run, _RotaryRun) and run.is_done:
            return node.inputs[0]
        if run.merged < 0:
            run.merged = run.make(r, graph)
        part = cut(r, run.merged, run.axis, *run.bounds(graph, member))
        shape = node.type.shape
        return part if r[part].type.shape == shape else r.emit("reshape", (part,), {"shape": shape})

    return rule


def of_ahead(r: Rewriter, graph: Graph, value: int, before: int) -> int:
    """Return the replacement of a value, emitted now if it comes after node `before`."""
    node = graph.nodes[value]
    if value < before or node.declaration.leaf:
        return r.of(value)
    return r.emit(
        node.op, [of_ahead(r, graph, operand, before) for operand in node.inputs], node.attrs
    )


def cut(r: Rewriter, value: int, axis: int, start: int, end: int) -> int:
    """Return a slice of a value; the value itself if the slice is all of it."""
    if r[value].type.shape[axis] == end - start:
        return value
    attrs = {"axes": (axis,), "starts": (start,), "stops": (end,), "steps": (1,)}
    return r.emit("slice", (value,), attrs)


class _Finder:
    """Find matmuls that can be merged."""

    def __init__(self, graph: Graph, constraints: RewriteConstraints) -> None:
        self._graph = graph
        self._nodes = graph.nodes
        self._constraints = constraints
        self._readers: dict[int, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            for i in node.inputs:
                self._readers[i].append(node)
        self._ends = {i for _, i in graph.outputs} | set(graph.backed_up_states)

    def products(self) -> Iterator[_LinearRun]:
        """Yield the runs of matmuls whose merging saves a dispatch."""
        gates = list(filter(None, map(self._gate, self._nodes)))
        gated = {product.id for _, _, products in gates for product in products}
        alike: dict[tuple[int, Attrs, str | None], list[Node]] = defaultdict(list)
        for node in self._nodes:
            if self._is_merged(node) and node.id not in gated:
                alike[node.inputs[0], node.attrs, self._pinned_device(node)].append(node)
        for node, gate, products in gates:
            yield self._run((node,), products, gate)
        for nodes in alike.values():
            for start in range(0, len(nodes), MAX_WEIGHTS):
                members = nodes[start : start + MAX_WEIGHTS]
                # workgroups quantize x themselves, without a dispatch of its own
                alone = quantizes_x(members[0].attrs)
                if alone or len(members) > 1 or self._norm(members[0]):
                    yield self._run(members, members, "")

    def with_rope(self, rotary: _RotaryRun) -> _RotaryRun:
        """Let the matmuls rotate their results, if these are the first ones and nothing else reads
        them.
        """
        run, nodes = rotary.of, [self._nodes[i] for i in rotary.members]
        limits = self._constraints.limits
        assert run is not None
        first = nodes[0]
        size, attrs = first.type.shape[3], first.attrs
        dims, interleaved = attrs.as_int("rotary_dim"), attrs.as_bool("interleaved")
        tables = first.inputs[1:]
        fits = limits is not None and limits.storage_buffers >= ROPE_BUFFERS
        if (
            fits
            and has_rope_kernel(size, dims, interleaved)
            and all(self._nodes[i].type.size == first.type.shape[0] * dims // 2 for i in tables)
            and len({self._pinned_device(self._nodes[i]) for i in (*run.members, first.id)}) == 1
            and all(
                self._graph.view_base(node.inputs[0]) == value
                and self._is_only_rotated(value, node.id)
                for value, node in zip(run.members, nodes, strict=False)
            )
        ):
            heads = sum(node.type.shape[1] for node in nodes)
            own = {name: value for name, value in run.attrs.items() if name != "gate"}
            rope = {"heads": heads, "head_size": size, "rotary_dim": dims}
            run.attrs = Attrs({**own, **rope, "interleaved": interleaved})
            run.tables, rotary.is_done = tables, True
        return rotary

    def _is_only_rotated(self, value: int, rotary: int) -> bool:
        """Return True if views of a value are read by a rotary embedding only."""
        pending = [self._nodes[value]]
        for node in pending:  # grows during the loop
            if not self._is_inner(node):
                return False
            for reader in self._readers[node.id]:
                if reader.id in self._graph.views:
                    pending.append(reader)
                elif reader.id != rotary:
                    return False
        return True

    def _run(self, members: Sequence[Node], products: Sequence[Node], gate: str) -> _LinearRun:
        first, norm = products[0], self._norm(products[0])
        inputs = norm.inputs if norm else first.inputs[:1]
        options: dict[str, AttrValue] = {"format": first.attrs["format"], "gate": gate}
        options |= {"normed": norm is not None, "eps": norm.attrs.as_float("eps") if norm else 0.0}
        options |= precision_attrs(first.attrs)
        words = (product.inputs[1] for product in products)
        ids, axis = tuple(node.id for node in members), members[0].type.rank - 1
        if len(members) > 1 and _rows(first) > 1:
            options["stacked"], axis = True, 0
        return _LinearRun(ids, axis, inputs=(*inputs, *words), attrs=Attrs(options))

    def _pinned_device(self, node: Node) -> str | None:
        return self._constraints.pinned_devices.get(node.name)

    def _is_inner(self, node: Node, *readers: Node) -> bool:
        """Return True if a value is neither output nor observed, and has exactly these readers."""
        free = node.name not in self._constraints.observed and node.id not in self._ends
        return free and (not readers or self._readers[node.id] == [*readers])

    def _is_merged(self, node: Node) -> bool:
        """Return True if a node is a matmul that a merged kernel supports."""
        return (
            node.op == "quantized_linear"
            and len(node.inputs) == 2
            and self._nodes[
                node.inputs[1]
            ].declaration.leaf  # so that it exists when a run is merged
            and 0 < node.type.shape[-1]
            and node.type.shape[-1] % COLUMNS == 0
            and self._multiplies_as_asked(node)
            and node.name not in self._constraints.observed
            and not is_on_cpu(node, self._constraints)
            and (_rows(node) <= MAX_GEMV_ROWS or self._is_by_tiles(node))
        )

    def _multiplies_as_asked(self, node: Node) -> bool:
        """Return True if the merged kernel multiplies in int8 where a product permits it."""
        limits, k = self._constraints.limits, self._nodes[node.inputs[0]].type.shape[-1]
        if not quantizes_x(node.attrs):
            return True
        return limits is not None and has_int8_kernel(limits, node.attrs.as_str("format"), k)

    def _is_by_tiles(self, node: Node) -> bool:
        """Return True if a kernel of merged weights multiplies a matmul of many rows on all
        devices.
        """
        limits = self._constraints.limits
        types = tuple(self._nodes[i].type for i in node.inputs)
        return limits is not None and tile_of(static_choice(node, types, limits)) is not None

    def _norm(self, product: Node) -> Node | None:
        """Return the norm that a matmul reads if all readers can recompute it; else None."""
        x = self._nodes[product.inputs[0]]
        if _rows(product) > MAX_GEMV_ROWS:
            return None
        if x.op != NORM or not x.attrs.as_bool("scaled") or not self._is_inner(x):
            return None
        along = x.attrs.as_int("axis") == x.type.rank - 1
        here = self._pinned_device(x) == self._pinned_device(product)
        return x if along and here and all(map(self._is_merged, self._readers[x.id])) else None

    def _gate(self, node: Node) -> tuple[Node, str, tuple[Node, Node]] | None:
        """Match a product of a gate and an up matmul; return it, the activation and both."""
        if node.op != "mul" or node.name in self._constraints.observed:
            return None
        for gate, up in (node.inputs, node.inputs[::-1]):
            active, other = self._nodes[gate], self._nodes[up]
            if active.op not in GATES or not self._is_inner(active, node):
                continue
            own = self._nodes[active.inputs[0]]
            rows = self._is_merged(own) and self._is_merged(other) and own.type == other.type
            if not rows or not (self._is_inner(own, active) and self._is_inner(other, node)):
                continue
            alike = own.inputs[0] == other.inputs[0] and own.attrs == other.attrs
            if (
                alike
                and len({self._pinned_device(each) for each in (node, active, own, other)}) == 1
            ):
                return node, active.op, (own, other)
        return None


def _rows(product: Node) -> int:
    return math.prod(product.type.shape[:-1])


def _rotary_runs(
    graph: Graph, products: Sequence[_LinearRun], constraints: RewriteConstraints
) -> Iterator[_RotaryRun]:
    """Yield adjacent matmul outputs that get the same rotary embedding on the same device. Their
    merged output has the same memory layout.
    """
    merged = (
        run
        for run in products
        if len(run.members) > 1 and _rows(graph.nodes[run.members[0]]) <= MAX_GEMV_ROWS
    )
    runs = {i: run for run in merged for i in run.members}
    alike: dict[tuple[object, ...], list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.op != ROTARY or node.name in constraints.observed:
            continue
        root, shape = graph.view_base(node.inputs[0]), node.type.shape
        whole = root in runs and graph.nodes[root].type.size == node.type.size
        if whole and shape[2] == 1:
            pinned_device = constraints.pinned_devices.get(node.name)
            alike[runs[root], node.inputs[1:], node.attrs, shape[3], pinned_device].append(node)
    for nodes in alike.values():
        roots = [graph.view_base(node.inputs[0]) for node in nodes]
        run = runs[roots[0]]
        places = [run.members.index(root) for root in roots]
        if len(nodes) > 1 and places == list(range(places[0], places[0] + len(places))):
            yield _RotaryRun(tuple(node.id for node in nodes), 1, of=run)
