"""Scene: the elements of a drawing of a plan, before the layout.

    plan -> lanes (the caller, then each used device) -> frames (splits) -> boxes (nodes)
         -> wires (producer to reader, with the bytes of a transfer)

With more than `MANY` nodes, a split becomes one box with a count of its ops.
Complexity: O(edges). Examples: tests/plan/test_draw.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...common.formatting import count_of, format_bytes
from ...ir.graph import Node
from ..explain.cpu_fallback import find_fallbacks
from ..types.plan_types import HOST, PlanValue, Split, value_of
from ..types.query import copied_bytes, fences, transfers

MANY = 150
"""Maximum number of nodes with a box each."""
LINE_CHARS = 34
"""Characters of a line in a box. A long name keeps its end, because the beginnings of names are
often equal.
"""
MAX_OPS_NAMED = 8
"""Ops named in the box of a split."""
MAX_TOOLTIP_NAMES = 40
"""Names in a tooltip."""

DRIVER = 0
"""The lane of inputs and outputs. The lanes of the used devices follow."""

Net = tuple[int, int, int]
"""Source box, value and target lane: wires of one net are one line with branches."""


@dataclass
class Box:
    """A box of a node or a split. The layout sets its position.

    lines: text, the first one a heading. level: rank within its frame. fallen: True if no device
    can run it.
    """

    lane: int
    lines: tuple[str, ...]
    tip: str
    level: int = 0
    output: bool = False
    fallen: bool = False
    row: int = 0
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0


@dataclass
class Frame:
    """Boxes under a title: a split, the inputs, or the outputs. after: frames that are above this
    one.
    """

    lane: int
    title: str
    boxes: list[int] = field(default_factory=list)
    after: set[int] = field(default_factory=set)
    first: int = 0
    last: int = 0


@dataclass(frozen=True)
class Wire:
    """A line from box to box.

    kind: "stays" on a device, "crosses" between devices, or "host" from or to the caller. label:
    the bytes of the transfer, on one wire of each net.
    """

    source: int
    target: int
    kind: str
    net: Net
    label: str
    tip: str


@dataclass
class Scene:
    """The elements of a drawing. lanes: None for the caller, then device indices."""

    title: str
    lanes: list[int | None]
    boxes: list[Box]
    frames: list[Frame]
    wires: list[Wire]
    collapsed: bool


def make_scene(plan: PlanValue) -> Scene:
    """Return the scene of a plan."""
    maker = _SceneBuilder(plan)
    maker.add_frames()
    maker.add_wires()
    transfer = transfers(plan)
    title = (
        f"plan: {count_of(sum(len(s.nodes) for s in plan.splits), 'node')} in "
        f"{count_of(len(plan.splits), 'split')}, {count_of(len(transfer), 'transfer')} "
        f"({format_bytes(copied_bytes(plan, transfer))}), "
        f"{count_of(fences(plan), 'fence')} to wait for, "
        f"policy {plan.policy}, copies {plan.copies}"
    )
    return Scene(title, maker.lanes, maker.boxes, maker.frames, maker.wires, maker.collapsed)


def shorten(text: str, chars: int = LINE_CHARS) -> str:
    """Return the end of a text that is too long."""
    return text if len(text) <= chars else f"…{text[1 - chars :]}"


def cut(text: str) -> str:
    """Return the beginning of a text that is too long."""
    return text if len(text) <= LINE_CHARS else f"{text[: LINE_CHARS - 1]}…"


class _SceneBuilder:
    def __init__(self, plan: PlanValue) -> None:
        self.plan = plan
        self.graph = plan.graph
        self.collapsed = sum(len(s.nodes) for s in plan.splits) > MANY
        self.lanes: list[int | None] = [None, *sorted({s.device for s in plan.splits})]
        self.fallen = {name for f in find_fallbacks(plan) for name in f.nodes}
        self.outputs = {self.graph.view_base(o) for _, o in self.graph.outputs}
        self.boxes: list[Box] = []
        self.frames: list[Frame] = []
        self.wires: list[Wire] = []
        self.box_of: dict[int, int] = {}
        self.entered = {(s.device, c.node) for s in plan.splits for c in s.uploads}
        self._frame_of_box: list[int] = []
        self._moved: dict[Net, dict[int, None]] = {}
        self._pairs: dict[tuple[int, int, str], Net] = {}

    # -- frames and boxes --------------------------------------------------------------------------

    def add_frames(self) -> None:
        inputs = {c.node for s in self.plan.splits for c in s.uploads if c.source == HOST}
        inputs |= {r for r in self.outputs if self.graph.nodes[r].declaration.leaf}
        self._add_frame(Frame(DRIVER, "from the caller"), sorted(inputs), dict.fromkeys(inputs, 0))
        for split in self.plan.splits:
            waits = f", waits for {', '.join(map(str, split.waits))}" if split.waits else ""
            title = f"split {split.id}: {count_of(len(split.nodes), 'node')}{waits}"
            frame = Frame(self.lanes.index(split.device), title)
            self._add_frame(frame, split.nodes, self._levels(split))

    def _levels(self, split: Split) -> dict[int, int]:
        """Return the length of the longest path to each node within its split."""
        levels: dict[int, int] = {}
        for n in split.nodes:
            roots = (self.graph.view_base(i) for i in self.graph.nodes[n].inputs)
            levels[n] = max((levels[r] for r in roots if r in levels), default=-1) + 1
        return levels

    def _add_frame(self, frame: Frame, nodes: Sequence[int], levels: dict[int, int]) -> None:
        if not nodes:
            return
        self.frames.append(frame)
        if self.collapsed:
            self._add_box(self._box_of_all(frame.lane, nodes), nodes)
        else:
            for n in nodes:
                box = self._box_of_one(frame.lane, self.graph.nodes[n])
                self._add_box(replace(box, level=levels[n]), (n,))

    def _add_box(self, box: Box, nodes: Sequence[int]) -> None:
        self.box_of.update(dict.fromkeys(nodes, len(self.boxes)))
        self.frames[-1].boxes.append(len(self.boxes))
        self._frame_of_box.append(len(self.frames) - 1)
        self.boxes.append(box)

    def _box_of_one(self, lane: int, node: Node) -> Box:
        rule = self.plan.placements[node.id].reason
        reads = [self.graph.nodes[i].name for i in node.inputs]
        tip = f"{node.name}: {node.op} -> {node.type}"
        tip += f"\nreads {', '.join(reads)}" if reads else ""
        tip += f"\n{rule}"
        lines = (shorten(node.name), cut(f"{node.op} {node.type}"))
        is_output = node.id in self.outputs and not node.declaration.leaf
        return Box(lane, lines, tip, 0, is_output, node.name in self.fallen)

    def _box_of_all(self, lane: int, nodes: Sequence[int]) -> Box:
        counts = Counter(self.graph.nodes[n].op for n in nodes)
        kinds = counts.most_common()
        lines = [f"{op} x{count}" for op, count in kinds]
        if len(kinds) > MAX_OPS_NAMED + 1:
            rest = sum(count for _, count in kinds[MAX_OPS_NAMED:])
            lines[MAX_OPS_NAMED:] = [f"{rest} of {len(kinds) - MAX_OPS_NAMED} other ops"]
        names = [self.graph.nodes[n].name for n in nodes]
        head = count_of(len(names), "value" if lane == DRIVER else "node")
        tip = "\n".join(names[:MAX_TOOLTIP_NAMES]) + (
            "\n..." if len(names) > MAX_TOOLTIP_NAMES else ""
        )
        fallen = any(name in self.fallen for name in names)
        is_output = lane != DRIVER and any(n in self.outputs for n in nodes)
        return Box(lane, (head, *map(cut, lines)), tip, 0, is_output, fallen)

    # -- wires -------------------------------------------------------------------------------------

    def add_wires(self) -> None:
        for split in self.plan.splits:
            for node_id in split.nodes:
                for operand in dict.fromkeys(self.graph.nodes[node_id].inputs):
                    self._connect(operand, self.box_of[node_id], split.device)
        self._add_outputs()
        for (source, target, kind), net in self._pairs.items():
            self.wires.append(self._wire(source, target, kind, net))

    def _connect(self, operand: int, target: int, device: int) -> None:
        root = self.graph.view_base(operand)
        if root not in self.box_of or self.box_of[root] == target:
            return  # a weight, which is not drawn, or a node of the same collapsed split
        source = self.box_of[root]
        lane = self.boxes[target].lane
        leaf = self.graph.nodes[root].declaration.leaf
        stays = not leaf and self.plan.placements[root].device == device
        whole = (device, root) in self.entered
        value = value_of(self.graph, operand, stays or whole)
        self._pair(source, target, "host" if leaf else "stays" if stays else "crosses", value, lane)

    def _add_outputs(self) -> None:
        frame = Frame(DRIVER, "to the caller")
        self.frames.append(frame)
        seen: dict[int, int] = {}
        for name, output in self.graph.outputs:
            root = self.graph.view_base(output)
            if root not in self.box_of:
                continue  # a weight that is an output itself
            if not self.collapsed or not seen:
                type_ = self.graph.nodes[output].type
                lines: tuple[str, ...] = (shorten(name), cut(str(type_)))
                if self.collapsed and len(self.graph.outputs) > 1:
                    lines = (f"{len(self.graph.outputs)} outputs",)
                self._add_box(Box(DRIVER, lines, f"{name}: {type_}"), ())
            target = len(self.boxes) - 1
            seen[root] = target
            value = value_of(self.graph, output, same_device=False)
            self._pair(self.box_of[root], target, "host", value, DRIVER)
        if not frame.boxes:
            self.frames.pop()

    def _pair(self, source: int, target: int, kind: str, value: int, lane: int) -> None:
        net = (source, -1 if self.collapsed else value, lane)
        if self.collapsed and kind == "stays":
            net = (source, -2, lane)
        self._pairs.setdefault((source, target, kind), net)
        self._moved.setdefault(net, {})[value] = None
        frames = self._frame_of_box
        if frames[source] != frames[target]:
            self.frames[frames[target]].after.add(frames[source])

    def _wire(self, source: int, target: int, kind: str, net: Net) -> Wire:
        values = [self.graph.nodes[v] for v in self._moved[net]]
        moved = format_bytes(sum(n.type.device_bytes for n in values))
        names = ", ".join(n.name for n in values[:MAX_TOOLTIP_NAMES])
        where = {"stays": "stays on the device", "host": "with the caller"}.get(kind, "crosses")
        label = "" if kind == "stays" else moved
        return Wire(source, target, kind, net, label, f"{names}: {moved}, {where}")
