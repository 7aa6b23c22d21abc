"""Snapshots as lines: whole there and back, bounded, and nothing else is taken for one."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from typing import Any

import pytest
from monitored import device_now, process_now

import vksched as vs
from vksched.monitor.top.snapshot import DEVICES, LINE_BYTES, SCHEDULERS, decode, encode


def test_a_snapshot_survives_its_line() -> None:
    process = process_now(4711, device_now(), device_now("cpu", temperature_c=None))
    line = encode(process)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode(line) == process


def test_a_line_is_bounded_whatever_there_is_to_tell() -> None:
    devices = [device_now(f"vulkan:{i}", history=(100,) * 119) for i in range(DEVICES)]
    process = process_now(4711, *devices)
    many = replace(process, schedulers=process.schedulers * SCHEDULERS)
    line = encode(many)
    assert len(line) <= LINE_BYTES
    assert 1 <= len(decode(line).schedulers) < SCHEDULERS


def changed(**changes: Any) -> bytes:
    data = asdict(process_now())
    data["schedulers"][0]["devices"][0].update(changes)
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"null",
        b"[1, 2]",
        b"\xff\xfe garbage",
        b'{"format": 2}',
        b"[" * 100_000,
        b"9" * 10_000,
        changed(busy="high"),
        changed(busy=float("nan")),
        changed(busy=True),
        changed(queue=-1),
        changed(queue=1.5),
        changed(queue=10**30),
        changed(queue=10**400),
        changed(busy=10**400),
        json.dumps({**asdict(process_now()), "time_s": 1e18}).encode(),
        json.dumps({**asdict(process_now()), "started_s": -1}).encode(),
        changed(name=None),
        changed(history=[1] * 10_000),
        changed(history="none"),
        changed(temperature_c=[]),
        json.dumps({**asdict(process_now()), "schedulers": [1]}).encode(),
    ],
)
def test_what_is_no_snapshot_is_one_clear_error(line: bytes) -> None:
    with pytest.raises(vs.VkschedError, match=r"^\[top\] expected a line of a running vksched"):
        decode(line)


def test_changed_lines_are_read_or_refused() -> None:
    line, drawn = encode(process_now()), random.Random(7)
    for _ in range(3000):
        text = bytearray(line)
        for _ in range(drawn.randint(1, 4)):
            at = drawn.randrange(len(text))
            text[at : at + drawn.randint(0, 3)] = drawn.randbytes(drawn.randint(0, 3))
        try:
            decode(bytes(text))
        except vs.VkschedError:
            pass


def test_a_terminal_gets_no_commands_by_texts() -> None:
    read = decode(changed(now="a\x1b]0;title\x07b\r\n\x9b2J", name="x" * 5000))
    device = read.schedulers[0].devices[0]
    assert device.now == "a\\u001b]0;title\\u0007b\\u000d\\u000a\\u009b2J"
    assert len(device.name) == 200
