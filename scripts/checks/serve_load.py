#!/usr/bin/env python3
"""Load a running server with right and wrong clients while its device is lost again and again.

    python scripts/checks/serve_load.py                    # 200 clients for 10 minutes on vulkan:0
    python scripts/checks/serve_load.py --device simulated --clients 12 --minutes 0.5

    server process <-- clients: right ones, garbage, stalls, large bodies, wrong keys, early ends
         |       <-- "lose" every 30 s
         |-- under load: resident memory
         '-- after the warm-up and at the end, without clients: memory, files, threads

Right answers must have the texts and log-probabilities that the same requests have alone, to the
bit: those of the device, or those of the CPU while the device is lost. An answer during which the
device is lost or returns has the same text. Exit code 1 if the server did anything wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from load_clients import WRONG, cases, right
from load_http import Violation, exchange, request
from load_process import Settings, Usage, server_process, write_model
from load_server import KEYS

FLAT = 1.05
"""The maximum growth of the resident memory: without clients after the warm-up, and under load from
the second quarter of the time after the warm-up to the last one. The memory that allocators keep
grows with the largest need, which may come after the warm-up.
"""
FLAT_ALLOCATED = 1.02
"""The maximum growth of the allocated memory, without clients: a leak shows here first."""
SAMPLE_S = 1.0
"""The time between two samples of the resident memory."""
WARM_UP = 0.1
"""The part of the time after which the memory must be flat."""
RIGHT_SHARE = 0.5
"""The part of all requests that are right."""
SETTLE_S = 40
"""The time in which the server must notice that all clients have gone: its own limits are 30 s."""
CLOSE = 2e-3
"""The maximum difference of log-probabilities between devices."""
MAX_SHOWN = 20


@dataclass
class Load:
    """The state of a run. epoch: the number of losses and returns of the device.

    is_losing: a loss was commanded, and /health does not report it yet.
    """

    port: int
    process: subprocess.Popen[str]
    epoch: int = 0
    is_degraded: bool = False
    is_losing: bool = False
    losses: int = 0
    files_alone: int = 0
    """The open files of the server before the load."""
    resident_bytes: list[int] = field(default_factory=list)
    """The samples of the resident memory while clients run."""
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    references: dict[bool, list[dict[int, Any]]] = field(default_factory=dict)
    """The answers alone, by `is_degraded` and the index of the case."""

    async def health(self) -> bool:
        """Return True if the server is degraded."""
        status = (await exchange(self.port, request("GET", "/health"))).expect(200).json()["status"]
        if status not in ("ok", "degraded"):
            raise Violation(f"unknown health {status!r}")
        return bool(status == "degraded")

    async def wait_for_health(self, is_degraded: bool, limit_s: float = 240) -> None:
        """Wait until /health reports a state."""
        end = time.monotonic() + limit_s
        while await self.health() != is_degraded:
            if time.monotonic() > end:
                raise Violation(f"/health is not {'degraded' if is_degraded else 'ok'} in time")
            await asyncio.sleep(0.1)
        self.is_degraded = is_degraded
        self.is_losing = False
        self.epoch += 1

    def lose(self) -> None:
        """Lose the device at its next submission."""
        self.epoch += 1
        self.is_losing = True
        self.losses += 1
        self.command("lose")

    def command(self, text: str) -> None:
        """Send a command to the server process."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    async def usage(self) -> Usage:
        """Return the usage of the server, which must be idle."""
        self.command("measure")
        assert self.process.stdout is not None
        line = await asyncio.to_thread(self.process.stdout.readline)
        return replace(Usage.of(self.process.pid), allocated_bytes=int(line))

    def note(self, name: str, error: BaseException) -> None:
        """Record that a client has found an error."""
        self.counts["violations"] += 1
        text = str(error) if isinstance(error, Violation) else traceback.format_exc(limit=-3)
        if len(self.violations) < MAX_SHOWN:
            self.violations.append(f"{name}: {text}")


# -- phases ----------------------------------------------------------------------------------------


async def compute_references(load: Load) -> None:
    """Compute all answers alone, with the device and without it."""
    load.references[False] = [await _alone(load, case) for case in cases()]
    load.command("hold")
    load.lose()
    await _alone(load, cases()[0])
    await load.wait_for_health(True)
    load.references[True] = [await _alone(load, case) for case in cases()]
    load.command("release")
    await load.wait_for_health(False)
    for index, (ours, others) in enumerate(zip(*load.references.values(), strict=True)):
        _check_close(index, ours, others)
    if [await _alone(load, case) for case in cases()] != load.references[False]:
        raise Violation("answers alone differ after the device has returned")


async def _alone(load: Load, case: Any) -> dict[int, Any]:
    answer = await right(load.port, case, KEYS[0])
    if answer is None:
        raise Violation("an idle server has too much work")
    return answer


async def lose_devices(load: Load, every_s: float) -> None:
    """Lose the device every few seconds; wait each time until it is used again."""
    while True:
        await asyncio.sleep(every_s)
        load.lose()
        await load.wait_for_health(True)
        await load.wait_for_health(False)


async def sample_memory(load: Load) -> None:
    """Sample the resident memory."""
    while True:
        await asyncio.sleep(SAMPLE_S)
        load.resident_bytes.append(Usage.of(load.process.pid).resident_bytes)


async def client(load: Load, rng: random.Random, end_s: float) -> None:
    """Send requests until a time."""
    while time.monotonic() < end_s and load.process.poll() is None:
        name = "right"
        try:
            if rng.random() < RIGHT_SHARE:
                await _send_right(load, rng)
            else:
                behaviour = rng.choice(WRONG)
                name = behaviour.__name__
                await behaviour(load.port, rng)
                load.counts[name] += 1
        except Exception as error:
            load.note(name, error)
        await asyncio.sleep(rng.random() / 5)


async def _send_right(load: Load, rng: random.Random) -> None:
    index = rng.randrange(len(cases()))
    epoch, is_degraded, is_losing = load.epoch, load.is_degraded, load.is_losing
    answer = await right(load.port, cases()[index], rng.choice(KEYS))
    if answer is None:
        load.counts["busy"] += 1
        await asyncio.sleep(0.5 + rng.random())
        return
    is_same = not is_losing and epoch == load.epoch and (not is_degraded or await load.health())
    if not (is_same and epoch == load.epoch):
        _check_close(index, answer, load.references[False][index])
        load.counts["right, device lost or returned"] += 1
    elif answer != load.references[is_degraded][index]:
        raise Violation(f"case {index} differs: {answer} for {load.references[is_degraded][index]}")
    else:
        load.counts[f"right, {'CPU' if is_degraded else 'device'}, equal bits"] += 1


def _check_close(index: int, ours: dict[int, Any], others: dict[int, Any]) -> None:
    """Raise Violation unless answers have the same texts and close log-probabilities."""
    if ours.keys() == others.keys():
        pairs = [(ours[key], others[key]) for key in ours]
        if all(
            a[0] == b[0]
            and len(a[1]) == len(b[1])
            and all(x == y or abs(x - y) < CLOSE for x, y in zip(a[1], b[1], strict=True))
            for a, b in pairs
        ):
            return
    raise Violation(f"case {index} differs between devices: {ours} for {others}")


async def run_clients(load: Load, settings: Settings, seconds: float) -> Usage:
    """Run clients for some seconds; return the usage of the server once they have gone."""
    end_s = time.monotonic() + seconds
    load.resident_bytes.clear()
    losing = asyncio.ensure_future(lose_devices(load, settings.lose_every_s))
    sampling = asyncio.ensure_future(sample_memory(load))
    seeds = [f"{settings.seed} {load.epoch} {number}" for number in range(settings.clients)]
    rngs = [random.Random(each) for each in seeds]
    await asyncio.gather(*(client(load, rng, end_s) for rng in rngs))
    if losing.done():
        load.note("health", losing.exception() or Violation("no more losses"))
    for each in (losing, sampling):
        each.cancel()
    await asyncio.gather(losing, sampling, return_exceptions=True)
    await _alone(load, cases()[0])  # a loss that was commanded happens now
    await load.wait_for_health(False)
    if [await _alone(load, case) for case in cases()] != load.references[False]:
        load.note("alone", Violation("answers alone differ after the load"))
    return await _settled(load)


async def _settled(load: Load) -> Usage:
    """Return the usage of the server once it has noticed that all clients have gone."""
    for _ in range(2 * SETTLE_S):
        await asyncio.sleep(0.5)
        if Usage.of(load.process.pid).files <= load.files_alone:
            break
    return await load.usage()


async def _wait_until_open(load: Load) -> None:
    while load.process.poll() is None:
        try:
            await load.health()
            return
        except ConnectionError:
            await asyncio.sleep(0.1)
    raise Violation("the server did not start")


def quarter_medians(samples: Sequence[int]) -> list[float]:
    """Return the median of each quarter of some samples."""
    size = max(1, len(samples) // 4)
    return [statistics.median(samples[size * at :][:size] or samples[-1:]) for at in range(4)]


async def run(settings: Settings) -> tuple[Load, Usage, Usage]:
    """Load a server; return what was found, and the usage after the warm-up and at the end."""
    with tempfile.TemporaryDirectory() as folder:
        with server_process(write_model(Path(folder)), settings) as (port, process):
            load = Load(port, process)
            await _wait_until_open(load)
            await compute_references(load)
            alone = await load.usage()
            load.files_alone = alone.files
            print(f"alone: {alone}", flush=True)
            before = await run_clients(load, settings, WARM_UP * settings.seconds)
            print(f"after the warm-up: {before}", flush=True)
            after = await run_clients(load, settings, (1 - WARM_UP) * settings.seconds)
            print(f"at the end: {after}", flush=True)
            if after.files > before.files or after.threads > before.threads:
                load.note("leak", Violation(f"expected {before}, got {after}"))
            if load.process.poll() is not None:
                load.note("server", Violation("it has ended"))
            return load, before, after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="vulkan:0", help='a Vulkan device, or "simulated"')
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lose-every", type=float, default=30, help="seconds between two losses")
    parser.add_argument("--restore-after", type=float, default=10, help="seconds")
    args = parser.parse_args()
    settings = Settings(
        args.device,
        args.clients,
        60 * args.minutes,
        args.seed,
        args.lose_every,
        args.restore_after,
    )
    load, before, after = asyncio.run(run(settings))
    if after.resident_bytes > FLAT * before.resident_bytes:
        load.note("memory", Violation(f"it grew from {before} to {after}"))
    if after.allocated_bytes > FLAT_ALLOCATED * before.allocated_bytes:
        load.note("allocated memory", Violation(f"it grew from {before} to {after}"))
    quarters = quarter_medians(load.resident_bytes)
    print("resident under load:", *(f"{each / 2**20:.1f}" for each in quarters), "MiB")
    if quarters[3] > FLAT * quarters[1]:
        load.note("memory", Violation(f"it grew under load, by quarters of the time: {quarters}"))
    for name, count in sorted(load.counts.items()):
        print(f"{count:8} {name}")
    print(f"{load.losses:8} losses of the device")
    print(*load.violations, sep="\n")
    return 1 if load.violations else 0


if __name__ == "__main__":
    sys.exit(main())
