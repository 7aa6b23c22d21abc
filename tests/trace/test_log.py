"""The log: one line of JSON for each event, at the level that suits it, off by default."""

from __future__ import annotations

import io
import json
import logging

import numpy as np
import pytest
from traced import X, graph_of_two_devices, null_devices

import vksched as vs


def test_nothing_is_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), vs.Scheduler(null_devices()) as sched:
        sched.compile(**graph_of_two_devices())(x=X)
    assert not caplog.records


def test_each_event_is_one_line_of_json(caplog: pytest.LogCaptureFixture) -> None:
    tape = vs.Tape()
    with caplog.at_level(logging.DEBUG, "vksched.events"):
        with vs.Scheduler(null_devices(), trace=[tape, vs.log_sink()]) as sched:
            sched.compile(**graph_of_two_devices())(x=X)
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    assert [line["event"] for line in lines] == [event.name for event in tape.events]
    assert all("\n" not in record.getMessage() for record in caplog.records)
    copy = next(line for line in lines if line["event"] == "copy")
    assert copy.keys() == {
        *("event", "device", "start_s", "seconds", "run", "plan"),
        *("split", "node", "bytes", "way", "needed_by"),
    }
    run = next(line for line in lines if line["event"] == "run")
    assert run["stats"]["transfer_bytes"] == X.nbytes and "spans" not in run["stats"]
    plan = next(line for line in lines if line["event"] == "plan")
    assert plan["cause"] == "compile" and "about" not in plan


def test_levels_tell_faults_from_runs(caplog: pytest.LogCaptureFixture) -> None:
    devices = null_devices()
    devices[1] = vs.FaultInjectionDevice(devices[1], at=1)
    sink = vs.log_sink(logging.getLogger("mine"))
    with caplog.at_level(logging.INFO, "mine"), pytest.warns(vs.VkschedWarning):
        with vs.Scheduler(devices, trace=sink) as sched:
            sched.compile(**graph_of_two_devices())(x=X)
    levels = {json.loads(r.getMessage())["event"]: r.levelname for r in caplog.records}
    assert levels["fault"] == "ERROR" and levels["failed"] == "WARNING"
    assert levels["run"] == levels["plan"] == "INFO" and "copy" not in levels
    assert caplog.records[0].event.name == "plan"  # type: ignore[attr-defined]


def test_lines_hold_together_whatever_they_say() -> None:
    stream = io.StringIO()
    log = logging.Logger("apart")
    log.addHandler(logging.StreamHandler(stream))
    fields = {"text": 'two\nlines \u2028 "quoted" %s', "number": np.float64("inf"), "seconds": 7}
    vs.log_sink(log)(vs.Event("fault", "gpu:0", 1.0, 3.0, fields=fields))
    (line,) = stream.getvalue().splitlines()
    data = json.loads(line)
    assert data["text"] == fields["text"] and data["number"] == {"float": "inf"}
    assert data["seconds"] == 2.0  # the event's own words win
