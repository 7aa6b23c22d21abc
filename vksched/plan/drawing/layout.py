"""Layout: positions for all elements of a drawing, without a line or text over a box.

    |  lane 1        | channel |  lane 2       |     all lanes share the rows of boxes; lines run
    |  [a]   [b]     |    |    |  ----         |     along the gaps between rows and down the
    |   +-----+------|----+    |               |     channels between lanes, or the gutter at the
    |  -------------- gap -----|-------------- |     left of a lane
    |                |    +----|---+           |
    |  [c]           |         |  [d]          |

Each net has a track of its own in every gap and channel that it uses (interval colouring).

Complexity: O(wires * log(wires) + rows). Examples: tests/plan/test_draw.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from ...viz.svg import CHAR
from .scene import Box, Frame, Net, Scene, Wire

LINE = 13.0
PAD = 8.0
BOX_GAP = 14.0
PER_ROW = 4
TITLE = 20.0
TRACK = 7.0
LABEL_TRACK = 66.0
MARGIN = 16.0
LANE_WIDTH = 230.0
GAP = 16.0

Point = tuple[float, float]


@dataclass
class Line:
    """A wire with its corners. at: the position of its label, if any."""

    wire: Wire
    points: list[Point]
    at: Point | None = None


@dataclass
class Lane:
    x: float = 0.0
    width: float = LANE_WIDTH
    gutter: float = 0.0


@dataclass
class Layout:
    """All elements with their positions. frames: (frame, x, y, width, height)."""

    scene: Scene
    lanes: list[Lane]
    lines: list[Line] = field(default_factory=list)
    frames: list[tuple[Frame, float, float, float, float]] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0


def lay_out(scene: Scene, head_chars: Mapping[int, int]) -> Layout:
    """Return the layout, and set the positions of the boxes of the scene.

    head_chars: characters above each lane, for which it must be wide enough.
    """
    rows = _assign_rows(scene)
    nets = _nets(scene)
    gutters, channels = _assign_channels(scene, nets)
    lanes = _give_x(scene, rows, gutters, channels, head_chars)
    return _Router(scene, rows, nets, gutters, channels, lanes).route()


def _assign_rows(scene: Scene) -> dict[int, list[list[int]]]:
    """Assign a row to each box, and return the boxes of each row, lane by lane. The first row of a
    frame holds its title.
    """
    free = [0] * len(scene.lanes)
    rows: dict[int, list[list[int]]] = defaultdict(list)
    for frame in scene.frames:
        start = max([free[frame.lane], *(scene.frames[f].last + 1 for f in frame.after)])
        frame.first = at = start
        levels: dict[int, list[int]] = defaultdict(list)
        for box in frame.boxes:
            levels[scene.boxes[box].level].append(box)
        for level in sorted(levels):
            for i in range(0, len(levels[level]), PER_ROW):
                at += 1
                rows[at].append(levels[level][i : i + PER_ROW])
                for box in rows[at][-1]:
                    scene.boxes[box].row = at
        frame.last = at
        free[frame.lane] = at + 1
    return rows


def _nets(scene: Scene) -> dict[Net, list[Wire]]:
    nets: dict[Net, list[Wire]] = defaultdict(list)
    for wire in scene.wires:
        nets[wire.net].append(wire)
    return nets


def _is_short(scene: Scene, wire: Wire) -> bool:
    """Return True if a wire ends in the next row and needs no channel."""
    return scene.boxes[wire.target].row == scene.boxes[wire.source].row + 1


def _colour(intervals: Iterable[tuple[float, float, Hashable]]) -> dict[Hashable, int]:
    """Return, for each key, the lowest track in which its interval meets no other."""
    ends: list[float] = []
    out: dict[Hashable, int] = {}
    for start, end, key in sorted(intervals, key=lambda item: item[:2]):
        track = next((t for t, e in enumerate(ends) if e < start), len(ends))
        if track == len(ends):
            ends.append(end)
        ends[track] = end
        out[key] = track
    return out


Tracks = dict[int, dict[Hashable, int]]
"""The track of each net in each lane or channel."""


def _assign_channels(scene: Scene, nets: dict[Net, list[Wire]]) -> tuple[Tracks, Tracks]:
    """Return the tracks in the gutter of each lane and in the channel right of each lane."""
    inside: dict[int, list[tuple[float, float, Hashable]]] = defaultdict(list)
    between: dict[int, list[tuple[float, float, Hashable]]] = defaultdict(list)
    for net, wires in nets.items():
        long = [w for w in wires if not _is_short(scene, w)]
        if long:
            source, lane = scene.boxes[net[0]], net[2]
            end = max(scene.boxes[w.target].row - 1 for w in long)
            where = inside[lane] if source.lane == lane else between[_channel(source.lane, lane)]
            where.append((source.row, end, net))
    gutters = {lane: _colour(found) for lane, found in inside.items()}
    return gutters, {lane: _colour(found) for lane, found in between.items()}


def _channel(source: int, target: int) -> int:
    """Return the channel next to the source, towards the target. Channel c is right of lane c."""
    return source if target > source else source - 1


def _box_size(box: Box) -> tuple[float, float]:
    return 2 * PAD + CHAR * max(map(len, box.lines)), 8 + LINE * len(box.lines)


def _tracks(tracks: Tracks, lane: int) -> int:
    return max(tracks.get(lane, {}).values(), default=-1) + 1


def _give_x(
    scene: Scene,
    rows: dict[int, list[list[int]]],
    gutters: Tracks,
    channels: Tracks,
    head_chars: Mapping[int, int],
) -> list[Lane]:
    lanes: list[Lane] = []
    x = MARGIN
    for number in range(len(scene.lanes)):
        lane = Lane(x)
        count = _tracks(gutters, number)
        lane.gutter = count * TRACK + 2 * PAD if count else PAD
        here = [b for b in scene.boxes if b.lane == number]
        wide = max((_box_size(b)[0] for b in here), default=0.0)
        row_sizes = (len(r) for rs in rows.values() for r in rs if scene.boxes[r[0]].lane == number)
        most = max(row_sizes, default=1)
        titles = max((len(f.title) for f in scene.frames if f.lane == number), default=0)
        needed = lane.gutter + most * wide + (most - 1) * BOX_GAP + PAD
        texts = lane.gutter + PAD + CHAR * max(titles, head_chars.get(number, 0))
        lane.width = max(LANE_WIDTH, needed, texts)
        for box in here:
            box.width, box.height = wide, _box_size(box)[1]
        lanes.append(lane)
        x += lane.width + MARGIN + _tracks(channels, number) * LABEL_TRACK
    for found in rows.values():
        for row in found:
            lane = lanes[scene.boxes[row[0]].lane]
            wide = scene.boxes[row[0]].width
            total = len(row) * wide + (len(row) - 1) * BOX_GAP
            at = lane.x + lane.gutter + (lane.width - lane.gutter - PAD - total) / 2
            for i, member in enumerate(row):
                scene.boxes[member].x = at + i * (wide + BOX_GAP)
    return lanes


class _Router:
    """Computes the corners of lines and the heights of rows."""

    def __init__(
        self,
        scene: Scene,
        rows: dict[int, list[list[int]]],
        nets: dict[Net, list[Wire]],
        gutters: Tracks,
        channels: Tracks,
        lanes: list[Lane],
    ) -> None:
        self.scene = scene
        self.rows = rows
        self.nets = nets
        self.gutters = gutters
        self.channels = channels
        self.lanes = lanes
        self.down: dict[Net, float] = {n: x for n in nets if (x := self._down_x(n)) is not None}
        self.enter = self._entries()
        self.levels = self._assign_levels()

    def _down_x(self, net: Net) -> float | None:
        """Return the x of the vertical part of a net, in a gutter or a channel, or None if it has
        none.
        """
        source, target = self.scene.boxes[net[0]].lane, net[2]
        if source == target:
            track = self.gutters.get(target, {}).get(net)
            return None if track is None else self.lanes[target].x + PAD + (track + 0.5) * TRACK
        number = _channel(source, target)
        track = self.channels.get(number, {}).get(net)
        lane = self.lanes[number]
        return None if track is None else lane.x + lane.width + PAD + track * LABEL_TRACK

    def _leave(self, wire: Wire) -> float:
        box = self.scene.boxes[wire.source]
        return box.x + box.width / 2

    def _approach(self, wire: Wire) -> float:
        """Return the x from which a wire comes to the gap above its target."""
        return self._leave(wire) if _is_short(self.scene, wire) else self.down[wire.net]

    def _entries(self) -> dict[tuple[Net, int], float]:
        """Return the x at which each wire enters its target, without overlaps."""
        wires: dict[int, list[Wire]] = defaultdict(list)
        for wire in self.scene.wires:
            wires[wire.target].append(wire)
        out: dict[tuple[Net, int], float] = {}
        for target, found in wires.items():
            box = self.scene.boxes[target]
            found.sort(key=lambda w: (self._approach(w), w.net))
            for i, wire in enumerate(found):
                x = box.x + box.width * (i + 1) / (len(found) + 1)
                straight = _is_short(self.scene, wire) and abs(self._leave(wire) - x) < 1
                if straight:
                    x = self._leave(wire)
                elif abs(x - box.x - box.width / 2) < 1:
                    x += 10.0  # a box above may leave at the middle
                out[wire.net, target] = x
        return out

    def _assign_levels(self) -> dict[int, dict[Hashable, int]]:
        """Return the track of each net in each gap. Gap g is below row g."""
        spans: dict[int, dict[Net, list[float]]] = defaultdict(lambda: defaultdict(list))
        for wire in self.scene.wires:
            source, target = self.scene.boxes[wire.source], self.scene.boxes[wire.target]
            spans[source.row][wire.net] += [self._leave(wire), self._approach(wire)]
            if not _is_short(self.scene, wire):
                spans[source.row][wire.net].append(self.down[wire.net])
            into = (self._approach(wire), self.enter[wire.net, wire.target])
            spans[target.row - 1][wire.net] += into
        return {
            gap: _colour((min(xs) - 3, max(xs) + 3, net) for net, xs in found.items())
            for gap, found in spans.items()
        }

    def route(self) -> Layout:
        tops, bottoms = self._give_y()
        out = Layout(self.scene, self.lanes)
        for frame in self.scene.frames:
            lane = self.lanes[frame.lane]
            top, bottom = tops[frame.first] - 3, bottoms[frame.last] + 6
            out.frames.append((frame, lane.x, top, lane.width, bottom - top))
        labelled: set[Net] = set()
        for wire in self.scene.wires:
            out.lines.append(self._line(wire, tops, bottoms, labelled))
        last = self.lanes[-1]
        out.width = last.x + last.width + MARGIN
        out.height = max(bottoms.values()) + GAP
        return out

    def _give_y(self) -> tuple[dict[int, float], dict[int, float]]:
        count = max(frame.last for frame in self.scene.frames) + 1
        tops: dict[int, float] = {}
        bottoms: dict[int, float] = {}
        y = 0.0
        for row in range(count):
            tops[row] = y
            high = [self.scene.boxes[b].height for r in self.rows.get(row, ()) for b in r]
            bottoms[row] = y + max([TITLE, *high])
            for found in self.rows.get(row, ()):
                for number in found:
                    self.scene.boxes[number].y = y
            tracks = max(self.levels.get(row, {}).values(), default=-1) + 1
            y = bottoms[row] + GAP + tracks * TRACK
        return tops, bottoms

    def _line(
        self, wire: Wire, tops: dict[int, float], bottoms: dict[int, float], labelled: set[Net]
    ) -> Line:
        source, target = self.scene.boxes[wire.source], self.scene.boxes[wire.target]
        leave, enter = self._leave(wire), self.enter[wire.net, wire.target]

        def level(gap: int) -> float:
            return bottoms[gap] + 10 + self.levels[gap][wire.net] * TRACK

        start, end = (leave, source.y + source.height), (enter, target.y)
        above = level(target.row - 1)
        if _is_short(self.scene, wire):
            middle = [] if leave == enter else [(leave, above), (enter, above)]
            return Line(wire, [start, *middle, end])
        x, below = self.down[wire.net], level(source.row)
        points = [start, (leave, below), (x, below), (x, above), (enter, above), end]
        at = None
        if wire.label and wire.net not in labelled and source.lane != target.lane:
            labelled.add(wire.net)
            row = source.row + 1
            at = (x + 4, (tops[row] + bottoms[row]) / 2)
        return Line(wire, points, at)
