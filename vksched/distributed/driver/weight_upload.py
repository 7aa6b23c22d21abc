"""Weight upload: send a worker only the weights that it does not have.

    driver: hashes and file origins --missing--> worker: hashes that it cannot find
            <------------------------------------------------------ ...
            each missing one --weight--> worker

Examples: tests/cluster/test_model_files.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...common.schema import SchemaError
from ...ir.graph import Graph
from ...storage.content_hash import digest_of
from ...storage.lazy_array import origin_of
from ..wire.channel import Channel, Payload
from ..wire.json_payload import document_of
from ..worker.local_weights import file_document


def send_weights(
    channel: Channel, number: int, graph: Graph, weights: Mapping[str, Payload], timeout_s: float
) -> None:
    """Send the weights of a plan that a worker does not have and cannot read from a file.

    Raises
    ------
    SchemaError
        The worker requests a weight that was not announced.
    """
    asked: dict[str, dict[str, object]] = {name: {"hash": name} for name in weights}
    for held in graph.data.values():
        origin = origin_of(held)
        if origin is not None:
            asked[digest_of(held)]["file"] = file_document(origin)
    if not asked:
        return
    text = json.dumps(list(asked.values())).encode()
    answer = channel.ask("missing", {"plan": number}, [text], timeout_s)
    missing: list[str] = document_of(bytes(answer.payload or b""), list[str], "missing weights")
    if not asked.keys() >= set(missing):
        raise SchemaError(f"{channel.peer} requests unknown weights")
    for name in dict.fromkeys(missing):
        channel.ask("weight", {"plan": number, "hash": name}, weights[name], timeout_s)
