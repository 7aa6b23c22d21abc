"""Run packages that use onnxruntime, unmodified, on onnxruntime and on vksched, and compare both.

    python scripts/checks/clients.py                           # all of them, on the CPU
    python scripts/checks/clients.py magika nudenet            # some
    python scripts/checks/clients.py --vulkan  # vksched's sessions on the Vulkan devices
    python scripts/checks/clients.py --json build/clients.json --write     # the table of the docs
    python scripts/checks/clients.py --models         # just for `vksched bench --suite clients`

Each package gets an environment of its own under build/clients, from the package index, at its
first run. tests/clients/use_<package>.py is the program: it uses the package as its README says
and knows nothing of vksched. It runs twice in processes of their own: with onnxruntime, and by
`python -m vksched.onnxruntime`. Exit code 1 when results differ, or when a program fails.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs"))
import clients_page
from clients_page import CLIENTS, Client, Outcome

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "clients"
PROGRAMS = ROOT / "tests" / "clients"
OURS = tuple(
    line.replace("; extra == 'onnx'", "")
    for line in importlib.metadata.requires("vksched") or ()
    if "extra ==" not in line or "extra == 'onnx'" in line
)
"""What vksched itself needs, and what it needs for ONNX models."""
LIMIT_S = 600


def main() -> int:
    args = _arguments()
    known = {client.name: client for client in CLIENTS}
    unknown = set(args.packages) - known.keys()
    if unknown:
        sys.exit(f"[clients] expected packages of {', '.join(known)}, got {', '.join(unknown)}")
    if args.models:
        fetch_models([known[name] for name in args.packages or known])
        return 0
    outcomes: list[Outcome] = []
    for name in args.packages or known:
        outcome = run_client(known[name], args.vulkan)
        outcomes.append(outcome)
        print(clients_page.line(outcome), flush=True)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps([o.as_json() for o in outcomes], indent=1) + "\n")
    if args.write:
        clients_page.write(ROOT / "docs" / "guides" / "onnxruntime-drop-in.md", outcomes)
    return 0 if all(outcome.same for outcome in outcomes) else 1


def run_client(client: Client, vulkan: bool) -> Outcome:
    """Run a program with both, and compares what it reports."""
    try:
        python = environment(client)
        program = str(PROGRAMS / client.program)
        theirs = _report([str(python), program], {})
        switch = {"VKSCHED_SOFTWARE": "1", "VKSCHED_PROVIDERS": "cpu,cuda"} if vulkan else {}
        ours = _report([str(python), "-m", "vksched.onnxruntime", program], switch)
    except ClientError as error:
        return Outcome(client.name, client.requirement, problem=str(error))
    if "vksched=" not in ours["build"] or ours["native"] or "vksched=" in theirs["build"]:
        raise SystemExit(f"[clients] {client.name}: the two runs did not use what they should")
    return Outcome(
        client.name,
        client.requirement,
        difference=clients_page.difference(theirs["result"], ours["result"]),
        first_ratio=ours["first_s"] / theirs["first_s"],
        ratio=ours["median_s"] / theirs["median_s"],
        providers=ours["providers"],
    )


class ClientError(Exception):
    """An environment cannot be made, or a program failed."""


def environment(client: Client) -> Path:
    """Return the Python of a package's environment, which is made where there is none."""
    folder = FOLDER / client.name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    mark = folder / "made"
    wanted = "\n".join((client.requirement, *client.needs, *OURS, str(client.alone)))
    if mark.exists() and mark.read_text() == wanted:
        return python
    venv.create(folder, clear=True, with_pip=False)
    steps = [["--no-deps", client.requirement] if client.alone else [client.requirement]]
    steps.append([*client.needs, "onnxruntime", *OURS])
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-compile"]
    for step in steps:
        _checked([*pip, "--disable-pip-version-check", *step], {})
    (site,) = folder.glob("lib/python*/site-packages") if os.name != "nt" else [folder / "Lib"]
    (site / "vksched_here.pth").write_text("\n".join(map(str, _ours_on_path())) + "\n")
    _report([str(python), str(PROGRAMS / client.program)], {})  # libraries fill caches of theirs
    mark.write_text(wanted)
    return python


def fetch_models(clients: Sequence[Client]) -> None:
    """Put packages side by side into a folder, without what they need: their models are enough."""
    target = FOLDER / "models"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--no-deps"]
    pip += ["--disable-pip-version-check", "--upgrade", "--target", str(target)]
    _checked([*pip, *(client.requirement for client in clients)], {})


def _ours_on_path() -> list[Path]:
    """The folders with vksched, and with its native modules where they are built."""
    try:
        import vksched_native
    except ImportError:
        return [ROOT]
    built = Path(next(iter(vksched_native.__path__))).resolve()
    native = FOLDER / "native"  # alone, without other packages
    native.mkdir(parents=True, exist_ok=True)
    link = native / built.name
    if not link.exists():
        link.symlink_to(built, target_is_directory=True)
    return [ROOT, native]


def _report(command: Sequence[str], variables: dict[str, str]) -> dict[str, Any]:
    """Return the report of a program: the last line that it prints, as JSON."""
    printed = _checked(command, variables).strip().splitlines()
    try:
        found: dict[str, Any] = json.loads(printed[-1])
    except (IndexError, ValueError):
        raise ClientError(f"expected a report, got {printed[-1:]}") from None
    return found


def _checked(command: Sequence[str], variables: dict[str, str]) -> str:
    """Return the output of a command.

    Raises:
        ClientError: it fails; the message is the last line of its output.
    """
    quiet = {"PYTHONWARNINGS": "ignore", "PYTHONPATH": "", "VKSCHED_TUNE": "0"}
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **quiet, **variables},
            cwd=FOLDER,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            preexec_fn=_stay_on_one_core if hasattr(os, "sched_setaffinity") else None,
        )
    except subprocess.TimeoutExpired:
        raise ClientError(f"no end within {LIMIT_S} s") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise ClientError(lines[-1] if lines else f"exit code {done.returncode}")
    return done.stdout


def _stay_on_one_core() -> None:
    """Keep a process on one core, so that the time of its threads adds up to what it takes."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("packages", nargs="*", help="names of packages; all where none is given")
    parser.add_argument("--vulkan", action="store_true", help="sessions on the Vulkan devices")
    parser.add_argument(
        "--models", action="store_true", help="install the packages alone, for vksched bench"
    )
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument(
        "--write", action="store_true", help="write the table of docs/guides/onnxruntime-drop-in.md"
    )
    return parser.parse_args()


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    sys.exit(main())
