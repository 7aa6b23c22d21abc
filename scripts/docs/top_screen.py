"""Draws the screen of docs/guides/monitoring.md: `vksched top` while real programs run.

    python scripts/docs/top_screen.py --run "-m vksched generate model.gguf -n 4000 --prompt A"

It starts a stream of sentences through MiniLM over two devices, which needs the extra [examples],
and beside it each --run, which is what Python gets. After some seconds the page is drawn as it
stands in a window of 80 x 24, and the programs are ended.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from vksched.monitor.client import Client
from vksched.monitor.top.render import Window, page
from vksched.monitor.top.snapshot import ProcessNow
from vksched.monitor.top.state import State

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "guides" / "pictures" / "top.svg"
WINDOW = Window(80, 24)
NAME = "minilm_stream.py"
MORE: list[str] = []
"""What the stream gets beside its devices."""
STREAM = """
import sys
sys.path.insert(0, "examples")
from minilm import load_minilm
import vksched as vs
model = load_minilm()
names = sys.argv[1].split(",")
places = {} if len(names) < 2 else {"layer.[345].*": names[1], "pooling.*": names[1]}
with vs.Scheduler(names, policy="priority", copies=2) as sched:
    run = sched.compile(model.build_encoder(8, 32), places)
    feeds = model.fill(model.tokenize(["A sentence to be compared with others."] * 8), 8, 32)
    while True:
        for future in [run.submit(**feeds) for _ in range(4)]:
            future.result()
"""


@contextmanager
def running(words: Sequence[str], home: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python program that tells of itself."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "VKSCHED_MONITOR": "1",
        "XDG_RUNTIME_DIR": home,
    }
    command = [sys.executable, *words]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdin=quiet, stdout=quiet) as process:
        try:
            yield process
        finally:
            process.kill()


def watch(programs: Sequence[Sequence[str]], seconds: float) -> list[ProcessNow]:
    """Return the state of all programs after they have run for a while."""
    with tempfile.TemporaryDirectory(prefix="vs", dir="/tmp") as home, ExitStack() as stack:
        os.environ["XDG_RUNTIME_DIR"] = home
        Path(home, NAME).write_text(STREAM, "utf-8")
        found = [[w.replace(NAME, f"{home}/{NAME}") for w in words] for words in programs]
        started = [stack.enter_context(running(words, home)) for words in found]
        client, since_s = Client(), 0.0
        stack.callback(client.close)
        while not since_s or time.monotonic() - since_s < seconds:
            client.look_for_new()
            client.read(0.2)
            processes = client.processes()
            ended = [p.args for p in started if p.poll() is not None]
            if ended:
                raise SystemExit(f"expected programs that run on, got one that ended: {ended[0]}")
            if not since_s and sum(p.runs_per_s > 0 for p in processes) == len(started):
                since_s = time.monotonic()
        return processes


def draw(processes: Sequence[ProcessNow], window: Window) -> str:
    """Return a picture that needs nothing from elsewhere."""
    file = io.StringIO()
    console = Console(
        file=file,
        record=True,
        width=window.columns,
        height=window.lines,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print(page(State(), processes, window))
    svg = console.export_svg(title="vksched top", unique_id="top")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", action="append", help="what Python gets; may be repeated")
    parser.add_argument(
        "--devices", default="vulkan:0,vulkan:1", help="of the stream; may be empty"
    )
    parser.add_argument("--seconds", type=float, default=45.0, help="from the first run of all on")
    parser.add_argument("--output", type=Path, default=PICTURE)
    args = parser.parse_args(arguments)
    programs = [[NAME, args.devices, *MORE]] if args.devices else []
    programs += [shlex.split(words) for words in args.run or ()]
    processes = watch(programs, args.seconds)
    args.output.write_text(draw(processes, WINDOW), "utf-8")


if __name__ == "__main__":
    main()
