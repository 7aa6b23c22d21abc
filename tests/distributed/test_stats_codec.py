"""Arrays, stats and devices as messages carry them: the same again, or an error."""

from __future__ import annotations

import json

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import DTYPES, NDArray, TensorType
from vksched.common.errors import DeviceError
from vksched.common.schema import SchemaError
from vksched.distributed.wire.array_codec import (
    memory,
    pack,
    packed_bytes,
    typed_arrays,
    typed_bytes,
    typed_payload,
    unpack,
)
from vksched.distributed.wire.channel import flat
from vksched.distributed.wire.stats_codec import (
    RemoteDeviceInfo,
    decode_devices,
    decode_run_stats,
    encode_devices,
    encode_run_stats,
    events_to_local_clock,
    remap_ids,
    stats_to_local_clock,
    with_host_name,
)
from vksched.runtime.run_stats import RunStats, SplitStats
from vksched.runtime.simulated.simulated_device import HERE, SimulatedDevice
from vksched.runtime.simulated_clock import SimulatedClock
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link


def whole(payload: list[NDArray | bytes], size: int) -> memoryview:
    out = memory(size)
    out[:] = b"".join(bytes(flat(piece)) for piece in payload)
    return out


def test_arrays_of_all_types_come_back_where_numpy_likes_them() -> None:
    inputs = [np.arange(5).astype(dtype) for dtype in DTYPES]
    inputs += [np.zeros((0, 3)), np.array(1.5, np.float16), np.arange(6.0).reshape(2, 3).T]
    inputs += [np.broadcast_to(np.int64(7), (1000, 1000))]
    fields, payload = pack(inputs)
    size = packed_bytes(json.loads(json.dumps(fields)))
    assert size < 2000
    for before, after in zip(inputs, unpack(fields, whole(payload, size)), strict=True):
        assert before.dtype == after.dtype and np.array_equal(before, after)
        assert after.ctypes.data % 64 == 0 or not after.size


@pytest.mark.parametrize(
    "field",
    [
        {"dtype": "object", "shape": [1], "uniform": False},
        {"dtype": "float32", "shape": [-1], "uniform": False},
        {"dtype": "float32", "shape": [1] * 9, "uniform": False},
        {"dtype": "float32", "shape": [0], "uniform": True},
    ],
)
def test_what_is_no_array_is_refused(field: dict[str, object]) -> None:
    with pytest.raises(SchemaError):
        packed_bytes([field])


def test_values_of_known_types_come_back() -> None:
    types = [TensorType((3,), "float16"), TensorType((), "int64"), TensorType((0,), "bool")]
    arrays = [np.arange(3, dtype=np.float16), np.array(5), np.zeros(0, bool)]
    payload = list(typed_payload(zip(arrays, types, strict=True)))
    data = np.frombuffer(whole(payload, typed_bytes(types)), np.uint8)
    for before, after in zip(arrays, typed_arrays(types, data), strict=True):
        assert np.array_equal(before, after) and before.dtype == after.dtype


STATS = RunStats(
    3, 0.25, 1, 2, 30, 40, 50,
    (SplitStats(0, "vulkan:0", 4, 0.125, None, 10.0, 11.0), SplitStats(1, "cpu", 1, 0.5, 0.25)),
    10.0,
    (("wait", 0, 10.5, 11.0),),
)  # fmt: skip


def test_stats_come_back_and_are_seen_by_the_callers_clock() -> None:
    again = decode_run_stats(encode_run_stats(STATS))[0]
    assert again == STATS
    seen = stats_to_local_clock(again, "node1", lambda there_s: there_s - 4.0)
    assert seen.start_s == 6.0 and seen.spans == (("wait", 0, 6.5, 7.0),)
    assert [split.device for split in seen.splits] == ["node1/vulkan:0", "node1/cpu"]
    assert (seen.splits[0].begin_s, seen.splits[0].end_s) == (6.0, 7.0)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"[" * 100_000, b"\xff", b'["x"]'])
def test_what_is_no_stats_is_refused(text: bytes) -> None:
    with pytest.raises(SchemaError):
        decode_run_stats(text)
    with pytest.raises(DeviceError, match="the devices of node1"):
        decode_devices(text if text != b"[]" else b"[1]", "node1")


def test_devices_come_back_with_the_names_of_their_host() -> None:
    card = DeviceSpec("vulkan:0", "null", memory_node="card", memory_bytes=5)
    specs = [card, DeviceSpec("b", "null")]
    links = [Link(1e9, 1e-5), HERE]
    inputs = [SimulatedDevice(s, SimulatedClock(), k) for s, k in zip(specs, links, strict=True)]
    reported = decode_devices(
        encode_devices([RemoteDeviceInfo(device.spec, device.link) for device in inputs]), "node1"
    )
    assert [each.spec for each in reported] == specs and [each.link for each in reported] == links
    renamed = with_host_name(reported[0].spec, "node1")
    assert renamed.name == "node1/vulkan:0"
    assert with_host_name(renamed, "") == renamed


NONSENSE: dict[str, tuple[dict[str, object], dict[str, object] | None]] = {
    "no speed": ({}, {"bytes_per_s": 0.0, "latency_s": 0.0}),
    "a speed below 0": ({}, {"bytes_per_s": -1e9, "latency_s": 0.0}),
    "no number": ({}, {"bytes_per_s": {"float": "nan"}, "latency_s": 0.0}),
    "nothing": ({}, {"bytes_per_s": None, "latency_s": 0.0}),
    "a time below 0": ({}, {"bytes_per_s": 1e9, "latency_s": -1.0}),
    "a time without end": ({}, {"bytes_per_s": 1e9, "latency_s": {"float": "inf"}}),
    "another's name": ({"name": "a/b"}, None),
    "an order to a terminal": ({"name": "\x1b[2J"}, None),
    "a sync": ({"submit_granularity": "none"}, None),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_devices_with_which_nobody_could_plan_are_refused(what: str) -> None:
    changed, link = NONSENSE[what]
    (one,) = json.loads(encode_devices([RemoteDeviceInfo(DeviceSpec("vulkan:0", "null"), None)]))
    text = json.dumps([{"spec": {**one["spec"], **changed}, "link": link}]).encode()
    with pytest.raises(DeviceError, match="the devices of node1"):
        decode_devices(text, "node1")


EVENTS = (
    vs.Event("split", "vulkan:0", 10.0, 11.0, 7, {"split": 0, "device_s": None, "observed_s": 1.0}),
    vs.Event("send", "host", 11.0, 12.0, 7, {"split": 0, "node": 3, "bytes": 9, "to": "host"}),
    vs.Event("recv", "host", 9.0, 9.5, 7, {"node": 3, "bytes": 9, "of": "n/host", "needed_by": -1}),
)


def test_events_come_back_and_get_the_names_and_numbers_of_the_whole_plan() -> None:
    _, events = decode_run_stats(encode_run_stats(STATS, EVENTS))
    assert [(e.name, e.device, e.start_s, e.fields) for e in events] == [
        (e.name, e.device, e.start_s, e.fields) for e in EVENTS
    ]
    seen = [
        remap_ids(e, [5], "node1")
        for e in events_to_local_clock(events, lambda there_s: there_s - 9)
    ]
    assert [e.device for e in seen] == ["node1/vulkan:0", "node1/host", "node1/host"]
    assert [e.fields.get("split") for e in seen] == [5, 5, None]
    assert seen[0].fields["observed_s"] == -8.0
    assert seen[2].fields["needed_by"] == -1 and (seen[2].start_s, seen[2].end_s) == (0.0, 0.5)


@pytest.mark.parametrize(
    "event",
    [
        vs.Event("run", "host", 0.0, 1.0),
        vs.Event("evil", "host", 0.0, 1.0),
        vs.Event("send", "host", 0.0, 1.0, fields={"split": 0, "node": "x", "bytes": 1, "to": ""}),
        vs.Event("submit", "host", 0.0, 1.0),
    ],
)
def test_events_that_are_none_of_a_run_are_refused(event: vs.Event) -> None:
    with pytest.raises(SchemaError):
        _, rows = json.loads(encode_run_stats(STATS, EVENTS[:1]))
        rows[0][0], rows[0][-1] = event.name, dict(event.fields)
        decode_run_stats(json.dumps([json.loads(encode_run_stats(STATS))[0], rows]).encode())
