"""Start time: time to the first token of a language model, in a new process.

    first start:   the caches are empty
    second start:  with the caches of the first one
    from disk:     a second start with a cold page cache, as after a boot

The reference is a plain read of the file by an equal process, with a warm or cold page cache. The
time runs from the opening of devices and file to the logits after one token; modules are imported
before. Examples: tests/bench/test_llm.py.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

from ..common.errors import VkschedError
from ..common.user_warning import warn_user
from ..storage.lazy_array import drop_mapped_pages
from .baselines.workloads import Spec
from .extra_metrics import ExtraMetric

SECOND = 3
"""Number of second starts, of which the median counts."""
GOAL = 3.0
"""Maximum second start as a multiple of a plain read."""
CACHES = ("VKSCHED_CACHE", "XDG_CACHE_HOME", "MESA_SHADER_CACHE_DIR")
PROGRAM = """
import json, os, sys, time
import vksched.importers.gguf.model, vksched.importers.gguf.read.loader
import vksched.runtime.vulkan.vulkan_device
from vksched.bench.language.llm_runner import Model
device, file, context, kv, *from_disk = sys.argv[1:]
context = int(context)
def forget():
    if from_disk:
        opened = os.open(file, os.O_RDONLY)
        os.fsync(opened)
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(opened)
def read():
    forget()
    start = time.perf_counter()
    with open(file, "rb") as opened:
        while opened.read(1 << 24):
            pass
    return time.perf_counter() - start
plain = min(read() for _ in range(3))
forget()
start = time.perf_counter()
model = Model(device, file, context, kv)
opened = time.perf_counter()
model.read([5])
ready = time.perf_counter()
model.read([5, 6])
token = time.perf_counter()
print(json.dumps({"plain": plain, "open": opened - start, "start": ready - start,
                  "token": token - ready}))
"""


def start_facts(device: str, spec: Spec) -> Iterator[ExtraMetric]:
    """Yield the times of the first and the second start of a model on a device."""
    with TemporaryDirectory(prefix="vksched-bench-") as caches:
        try:
            first, *later = [_start(device, spec, caches) for _ in range(1 + SECOND)]
            rounds = SECOND if hasattr(os, "posix_fadvise") else 0
            drop_mapped_pages()
            from_disk = [_start(device, spec, caches, "from disk") for _ in range(rounds)]
        except VkschedError as error:
            warn_user(str(error))
            return
    name = f"{spec.name.removesuffix(' load')}: {{}}, beside a plain read of the file"
    yield ExtraMetric(device, name.format("first start"), first["start"], "s", first["plain"])
    yield _fact(device, name.format("second start"), later)
    if from_disk:
        yield _fact(device, name.format("second start from disk"), from_disk)


def _fact(device: str, name: str, starts: Sequence[Mapping[str, Any]]) -> ExtraMetric:
    """Return the median of second starts."""
    seconds, plain = (statistics.median(one[key] for one in starts) for key in ("start", "plain"))
    note = (
        f"{seconds - statistics.median(o['open'] for o in starts):.2g} s of it to compile and run"
    )
    if seconds > GOAL * plain:
        note += f"; over {GOAL:g} times"
    return ExtraMetric(device, name, seconds, "s", plain, note)


def _start(device: str, spec: Spec, caches: str, *how: str) -> Mapping[str, Any]:
    arguments = (device, spec["file"], str(spec["context"]), spec["cache_type"], *how)
    command = [sys.executable, "-c", PROGRAM, *arguments]
    env = {**os.environ, **dict.fromkeys(CACHES, caches)}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    if done.returncode:
        last_line = done.stderr.strip().splitlines()[-1:] or ["no reason was given"]
        raise VkschedError(f"[bench] {spec.name} does not start on {device}: {last_line[0]}")
    found: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
