"""Format: the types of the parts of a tape file, and its version."""

from __future__ import annotations

from typing import Any, TypedDict

from ..common.schema import Number, Whole, record

FORMAT = 2
"""Version of the file format; a reader accepts only its own version."""
COLUMNS = ["name", "device", "start_s", "end_s", "run", "plan", "fields"]
"""The columns of a row of "events": the fields of Event, with plan as a position in "plans" or -1.
"""


class NonFinite(TypedDict):
    float: str


AnyNumber = Number | NonFinite | None
"""As `serialize.plain` encodes a number or None."""
SpanRow = tuple[Whole, Whole, Whole]
"""Page, first word, number of words."""


class NodeDocument(TypedDict):
    name: str
    op: str
    inputs: list[Whole]
    attrs: dict[str, Any]
    shape: list[Whole]
    dtype: str


class _Bounds(TypedDict, total=False):
    bounds: tuple[Whole, Whole] | None


class WeightDocument(_Bounds):
    node: Whole
    hash: str


class StateDocument(TypedDict):
    node: Whole


class GraphDocument(TypedDict):
    """weights: the nodes that hold values, with a hash of the values, and their least and largest
    integers if plans need them. states: nodes whose values runs change. backed_up_states, aliases:
    as in `Graph`.
    """

    nodes: list[NodeDocument]
    outputs: list[tuple[str, Whole]]
    backed_up_states: list[Whole]
    aliases: dict[str, Whole]
    weights: list[WeightDocument]
    states: list[StateDocument]


class RequestDocument(TypedDict):
    """The inputs of the planner except graph and topology. resident: for each device number, the
    nodes whose values were resident. observed: for each node, the number of functions that see it.
    """

    policy: str
    objective: str
    overrides: list[tuple[Whole | str, str]]
    copies: Whole | str
    resident: dict[str, list[Whole]]
    observed: dict[str, Whole]
    with_cpu: bool
    pipeline_order: dict[str, Whole]


class SplitOptions(TypedDict, total=False):
    """Fields that most splits lack."""

    async_transfers: tuple[str, ...]
    stage_deps: tuple[tuple[str, str, Whole], ...]
    deferred_downloads: tuple[Whole, ...]
    refills: bool


class SplitDocument(SplitOptions):
    """uploads: node, source split or -1, span in the upload buffer, span in memory. downloads:
    node, span in the download buffer. The others: as in `Split`.
    """

    device: Whole
    nodes: tuple[Whole, ...]
    uploads: tuple[tuple[Whole, Whole, SpanRow, SpanRow], ...]
    downloads: tuple[tuple[Whole, SpanRow], ...]
    waits: tuple[Whole, ...]
    barriers: tuple[Whole, ...]
    depth: Whole
    inner_barriers: Whole
    observed: tuple[Whole, ...]
    in_place: tuple[tuple[Whole, Whole], ...]


class PredictedSplit(SplitDocument):
    """fixed_s, seconds: the prediction without its nodes, and for each of its nodes. measured: True
    if the latter rests on measurements.
    """

    fixed_s: Number
    seconds: tuple[Number, ...]
    measured: tuple[bool, ...]


class MemoryDocument(TypedDict):
    weights: tuple[Whole, ...]
    weight_bytes: Whole
    activation_pages: tuple[Whole, ...]
    upload_pages: tuple[Whole, ...]
    download_pages: tuple[Whole, ...]
    peak_bytes: Whole
    resident_bytes: Whole
    states: tuple[Whole, ...]
    state_bytes: Whole


class CandidateDocument(TypedDict):
    name: str
    devices: list[str]
    copies: Whole
    metrics: dict[str, AnyNumber]


class DecisionDocument(TypedDict):
    """As `Decision`. chosen, best_single_device: positions among the candidates, the first
    `weighed` of which are the candidates of the decision.
    """

    objective: str
    chosen: Whole
    best_single_device: Whole
    weighed: Whole
    value: AnyNumber
    best_single_device_value: AnyNumber
    candidates: list[CandidateDocument]
    required_gain: Number
    measured: bool
    watts_assumed: bool
    devices: list[str]
    costs: str


class LinkDocument(TypedDict):
    bytes_per_s: AnyNumber
    latency_s: AnyNumber


class PlacedGraph(TypedDict):
    """reasons, placements: for each node, its device and the number of its reason. locations:
    device, node (-1 - node: its scratch memory), span.
    """

    policy: str
    copies: Whole
    reasons: tuple[str, ...]
    placements: tuple[tuple[Whole, Whole], ...]
    final_waits: tuple[Whole, ...]
    memory: tuple[MemoryDocument, ...]
    locations: tuple[tuple[Whole, Whole, SpanRow], ...]
    notes: tuple[str, ...]


class PlacedOnTopology(PlacedGraph):
    """topology, default_link: as in `Topology`."""

    topology: dict[str, Any]
    default_link: LinkDocument


class DevicePlan(PlacedOnTopology):
    """The data that devices need to run a plan, except its graph."""

    splits: tuple[SplitDocument, ...]


class _Replica(TypedDict, total=False):
    replica: Whole


class PlanDocument(PlacedOnTopology, _Replica):
    """graph: its position in "graphs". cause: the reason for planning. decides: True if each run
    chooses the devices of its pieces anew. decision: None without costs. seconds: the simulated
    time of a run. spans: the spans of the run: kind, device, split, start and end. replica: its
    number among the replicas of the plan of the request, from 1 on.
    """

    splits: tuple[PredictedSplit, ...]
    graph: Whole
    cause: str
    asked: RequestDocument
    decides: bool
    decision: DecisionDocument | None
    seconds: Number
    spans: tuple[tuple[str, Whole, Whole | None, Number, Number], ...]


class TapeDocument(TypedDict):
    format: Whole
    version: str
    dropped: Whole
    dropped_plans: Whole
    graphs: list[GraphDocument]
    plans: list[PlanDocument]
    columns: list[str]
    events: list[tuple[str, str, Number, Number, Whole, Whole, dict[str, Any]]]


_SIZES = record(bytes=Whole, weight_bytes=Whole, state_bytes=Whole, resident_bytes=Whole)
FIELDS = {
    "submit": record(split=Whole),
    "copy": record(split=Whole, node=Whole, bytes=Whole, way=str, needed_by=Whole),
    "wait": record(split=Whole, needed_by=Whole),
    "split": record(split=Whole, device_s=Number | None, observed_s=Number),
    "transfer_queue": record(split=Whole, way=str, bytes=Whole, device_s=Number | None),
    "send": record(split=Whole, node=Whole, bytes=Whole, to=str),
    "recv": record(node=Whole, bytes=Whole, of=str, needed_by=Whole),
    "prepare": _SIZES,
    "release": _SIZES,
    "plan": record(cause=str),
    "fallback": record(op=str, nodes=list[str], cause=str),
    "failed": record(error=str, message=str),
    "fault": record(error=str, message=str, during=str),
}
"""Fields of events that readers rely on; docs/guides/traces.md describes them."""
OF_SPLITS = ("submit", "copy", "wait", "split", "transfer_queue", "send", "recv")
"""Events that refer to splits and nodes of a plan."""
