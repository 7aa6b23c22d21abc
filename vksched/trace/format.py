"""Schema: what the parts of a tape's file are made of, and a check that they are.

A schema is a type, a list of one schema, a dict of schemas by key ("?" at the end of a key: it may
be missing), `Table` of one schema by any key, `Row` of a fixed number, or `Either`.
"""

from __future__ import annotations

from ..common.schema import Either, Row, Table

FORMAT = 2
"""Of files; another number is another format."""
COLUMNS = ["name", "device", "start_s", "end_s", "run", "plan", "fields"]
"""Of a row of "events": the fields of Event, plan as a position in "plans" or -1."""


SPAN = Row((int, int, int))
"""Page, first word, words."""
NODE = {"name": str, "op": str, "inputs": [int], "attrs": dict, "shape": [int], "dtype": str}
HELD = {"node": int, "hash": str, "bounds?": Either((None, Row((int, int))))}
GRAPH = {
    "nodes": [NODE],
    "outputs": [Row((str, int))],
    "backed_up_states": [int],
    "aliases": Table(int),
    "weights": [HELD],
    "states": [{"node": int}],
}
"""weights: which nodes hold values, with a hash of these, and the least and largest of whole
numbers where plans ask for them. states: nodes whose values runs change. backed_up_states, aliases:
as in `Graph`.
"""
ASKED = {
    "policy": str,
    "objective": str,
    "overrides": [Row((Either((int, str)), str))],
    "copies": Either((int, str)),
    "resident": Table([int]),
    "observed": Table(int),
    "with_cpu": bool,
    "pipeline_order": Table(int),
}
"""What the planner was asked beside graph and machine. resident: by device number, nodes whose
values were there. observed: by node how many functions see it.
"""
WORK = {
    "device": int,
    "nodes": [int],
    "uploads": [Row((int, int, SPAN, SPAN))],
    "downloads": [Row((int, SPAN))],
    "waits": [int],
    "barriers": [int],
    "depth": int,
    "inner_barriers": int,
    "observed": [int],
    "in_place": [Row((int, int))],
    "async_transfers?": [str],
    "stage_deps?": [Row((str, str, int))],
    "deferred_downloads?": [int],
    "refills?": bool,
}
"""uploads: node, split that it comes from or -1, place in the upload buffer, place in memory.
downloads: node, place in the download buffer. The rest: as in `Split`.
"""
SPLIT = {**WORK, "fixed_s": float, "seconds": [float], "measured": [bool]}
"""fixed_s, seconds: predicted beside its nodes, and for each of its nodes. measured: whether the
latter rests on measurements.
"""
MEMORY = {
    "weights": [int],
    "weight_bytes": int,
    "activation_pages": [int],
    "upload_pages": [int],
    "download_pages": [int],
    "peak_bytes": int,
    "resident_bytes": int,
    "states": [int],
    "state_bytes": int,
}
NUMBER = Either((None, float, {"float": str}))
CANDIDATE = {"name": str, "devices": [str], "copies": int, "metrics": Table(NUMBER)}
DECISION = {
    "objective": str,
    "chosen": int,
    "best_single_device": int,
    "weighed": int,
    "value": NUMBER,
    "best_single_device_value": NUMBER,
    "candidates": [CANDIDATE],
    "required_gain": float,
    "measured": bool,
    "watts_assumed": bool,
    "devices": [str],
    "costs": str,
}
"""As `Decision`. won, single: positions among the candidates, the first `weighed` of which are
those of the decision.
"""
CARRIED = {
    "topology": dict,
    "default_link": {"bytes_per_s": NUMBER, "latency_s": NUMBER},
    "policy": str,
    "copies": int,
    "reasons": [str],
    "placements": [Row((int, int))],
    "splits": [WORK],
    "final_waits": [int],
    "memory": [MEMORY],
    "locations": [Row((int, int, SPAN))],
    "notes": [str],
}
"""What devices need to carry a plan out, beside its graph. machine, default_link: as in `Topology`.
reasons, placements: for each node its device and the number of its reason. locations: device, node
(-1 - node: its scratch memory), place.
"""
PLAN = {
    **CARRIED,
    "graph": int,
    "cause": str,
    "asked": ASKED,
    "decides": bool,
    "splits": [SPLIT],
    "decision": Either((None, DECISION)),
    "seconds": float,
    "spans": [Row((str, int, Either((None, int)), float, float))],
    "replica?": int,
}
"""graph: its position in "graphs". cause: why it was made. decides: whether its runs decide anew
where their pieces go. decision: None where nothing was weighed. seconds: of a run by simulation;
spans: what happens in it: kind, device, split, start and end. replica: its number among the
replicas of the plan that answers what was asked, from 1 on.
"""
FIELDS = {
    "submit": {"split": int},
    "copy": {"split": int, "node": int, "bytes": int, "way": str, "needed_by": int},
    "wait": {"split": int, "needed_by": int},
    "split": {"split": int, "device_s": Either((None, float)), "observed_s": float},
    "transfer_queue": {"split": int, "way": str, "bytes": int, "device_s": Either((None, float))},
    "send": {"split": int, "node": int, "bytes": int, "to": str},
    "recv": {"node": int, "bytes": int, "of": str, "needed_by": int},
    "prepare": {"bytes": int, "weight_bytes": int, "state_bytes": int, "resident_bytes": int},
    "release": {"bytes": int, "weight_bytes": int, "state_bytes": int, "resident_bytes": int},
    "plan": {"cause": str},
    "fallback": {"op": str, "nodes": [str], "cause": str},
    "failed": {"error": str, "message": str},
    "fault": {"error": str, "message": str, "during": str},
}
"""Of events, those that readers rely on; docs/guides/traces.md tells what they mean."""
OF_SPLITS = ("submit", "copy", "wait", "split", "transfer_queue", "send", "recv")
"""Events that name splits and nodes of a plan."""
EVENT = Row((str, str, float, float, int, int, dict))
FILE = {
    "format": int,
    "version": str,
    "dropped": int,
    "dropped_plans": int,
    "graphs": [GRAPH],
    "plans": [PLAN],
    "columns": [str],
    "events": [EVENT],
}
