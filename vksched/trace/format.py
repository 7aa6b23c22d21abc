"""Format: the schema of each part of a tape file, and its version.

A schema is a type, a list of one schema, a dict of schemas by key ("?" at the end of a key marks it
as optional), `Table` of one schema for any key, `Row` of a fixed length, or `Either`.
"""

from __future__ import annotations

from ..common.schema import Either, Row, Table

FORMAT = 2
"""Version of the file format; a reader accepts only its own version."""
COLUMNS = ["name", "device", "start_s", "end_s", "run", "plan", "fields"]
"""The columns of a row of "events": the fields of Event, with plan as a position in "plans" or -1.
"""


SPAN = Row((int, int, int))
"""Page, first word, number of words."""
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
"""weights: the nodes that hold values, with a hash of the values, and their least and largest
integers if plans need them. states: nodes whose values runs change. backed_up_states, aliases: as
in `Graph`.
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
"""The inputs of the planner except graph and topology. resident: for each device number, the nodes
whose values were resident. observed: for each node, the number of functions that see it.
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
"""uploads: node, source split or -1, span in the upload buffer, span in memory. downloads: node,
span in the download buffer. The others: as in `Split`.
"""
SPLIT = {**WORK, "fixed_s": float, "seconds": [float], "measured": [bool]}
"""fixed_s, seconds: the prediction without its nodes, and for each of its nodes. measured: True if
the latter rests on measurements.
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
"""As `Decision`. won, single: positions among the candidates, the first `weighed` of which are the
candidates of the decision.
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
"""The data that devices need to run a plan, except its graph. machine, default_link: as in
`Topology`. reasons, placements: for each node, its device and the number of its reason. locations:
device, node (-1 - node: its scratch memory), span.
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
"""graph: its position in "graphs". cause: the reason for planning. decides: True if each run
chooses the devices of its pieces anew. decision: None without costs. seconds: the simulated time
of a run. spans: the spans of the run: kind, device, split, start and end. replica: its number among
the replicas of the plan of the request, from 1 on.
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
"""Fields of events that readers rely on; docs/guides/traces.md describes them."""
OF_SPLITS = ("submit", "copy", "wait", "split", "transfer_queue", "send", "recv")
"""Events that refer to splits and nodes of a plan."""
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
