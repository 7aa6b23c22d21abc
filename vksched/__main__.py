"""What `python -m vksched` and the command `vksched` start."""

from __future__ import annotations

import gc
import os
import signal
import sys

INTERRUPTED = 130
"""128 and the number of SIGINT, as shells have it."""
THRESHOLDS = (20_000, 10, 10)
"""Of the garbage collector: what is imported stays, and to look through it again and again takes
50 ms of a start.
"""


def main() -> None:
    """Run the command line. Ctrl-C while it is imported ends the process at once: there is nothing
    to put in order yet, and libraries make other errors of an exception there.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, _end)
    gc.set_threshold(*THRESHOLDS)
    try:
        from .cli import import_named
        from .cli import main as run
        from .common.terminal import guard_streams

        import_named(sys.argv[1:])
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    guard_streams()  # for the rest of the process: a traceback is printed as it ends
    run(prog_name="vksched")


def _end(number: int, frame: object) -> None:
    os.write(2, b"\nAborted!\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
