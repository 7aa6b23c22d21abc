"""Traces: events, their sinks, tapes that record them, and the file format of tapes.

The package imports no graph: `plan/serialize/` encodes and decodes the plans in a file.
"""

from .env_tape import with_tape, write_tape
from .events import Clock, Event, Sink, SystemClock, Trace, as_trace
from .log import log_sink
from .per_run_trace import GatheredTrace
from .read import TapeFile, load_tape
from .tape import Recorder, Tape, find_tape

__all__ = [
    "Clock",
    "Event",
    "GatheredTrace",
    "Recorder",
    "Sink",
    "SystemClock",
    "Tape",
    "TapeFile",
    "Trace",
    "as_trace",
    "find_tape",
    "load_tape",
    "log_sink",
    "with_tape",
    "write_tape",
]
