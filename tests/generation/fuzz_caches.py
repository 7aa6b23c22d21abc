"""Reads mutants of files of the user's cache, in a process that may end at any of them.

    python tests/generation/fuzz_caches.py --seed 1 --first 0 --count 100

    graphs   graphs and plans of a language model's steps, with a digest of what they have become
    layers   what the layers of a model take, likewise
    costs    calibrations and what runs taught; tuned: the fastest variants of calls

A line is printed for each mutant before it is read, and one more where that was not as it should
be. Whatever a file has, a model answers: with the same scores if its plan was changed, or a byte of
the file; if its graph was changed, the file is read as it is or set aside. Costs and variants may
change times alone. Not allowed is an exception, a crash, or more than `LIMIT_S`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf_models import Tiny, write
from mutants import LIMIT_S
from mutated_json import mutate

import vksched as vs
from vksched.common import package_code
from vksched.common.dtypes import NDArray
from vksched.common.errors import VkschedError
from vksched.common.user_warning import VkschedWarning
from vksched.engine import graph_document
from vksched.generation import deferred_step
from vksched.generation.layer_placement import layer_cost_cache, place_layers
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.model import LanguageModel
from vksched.ir.graph import Graph
from vksched.storage import content_hash
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link
from vksched.topology.topology import Topology
from vksched.tuning.calibration_types import Calibration, Overheads, Sample
from vksched.tuning.cost_cache import CostCache
from vksched.tuning.device_cache import Identity
from vksched.tuning.variant_cache import TuningResult, VariantCache, choices

TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5]
SIZES = (1, 8)
CARD = Identity("01234567", "driver 1.0", "Card")
DEVICE = DeviceSpec("null:0", "null", memory_bytes=1 << 24)
TOPOLOGY = Topology((DEVICE, DeviceSpec("cpu", "cpu")))


class Wrong(Exception):
    """A file was believed that should not have been."""


def network() -> Graph:
    h = vs.input("x", (16, 64))
    for number in range(3):
        h = vs.softmax(h @ vs.weight(np.eye(64, dtype=np.float32), f"w{number}"))
    return vs.build_graph(h)[0]


class Caches:
    """A cache folder with a file of each kind, as it was written. folder: folder of all files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        os.environ["VKSCHED_CACHE"] = str(folder / "cache")
        self.path = folder / "m.gguf"
        write(Tiny(kind="Q8_0", layers=2), self.path, np.random.default_rng(5))
        self._scores = self.scores()
        self._steps = {p: p.read_bytes() for p in self.cache("graphs").glob("*.graph")}
        self.layers()
        (path,) = self.cache("layers").glob("*.json")
        self._layers = path, json.loads(path.read_text())
        self._graph = network()

    def cache(self, name: str) -> Path:
        return self.folder / "cache" / name

    def scores(self) -> NDArray:
        """Return the scores behind TEXT, by whatever steps are kept."""
        model = vs.load(self.path)
        with vs.Scheduler(["cpu"]) as sched:
            return np.array(SlotSteps(sched, model, 32, 1).prefill(0, TEXT, 0))  # type: ignore[arg-type]

    def layers(self) -> Any:
        model = vs.load(self.path)
        assert isinstance(model, LanguageModel)
        about = model, model.cache(32), SIZES, TOPOLOGY, ()
        measured = layer_cost_cache.cached_or_measured(
            *about, lambda: place_layers._measured(*about)
        )
        return place_layers.decide(measured, TOPOLOGY, True)

    # -- one mutant of each kind -------------------------------------------------------------------

    def change_steps(self, rng: random.Random) -> str:
        path = rng.choice(list(self._steps))
        content, same = self._steps[path], rng.random() < 0.7
        if rng.random() < 0.2:
            at = rng.randrange(len(content))
            built = content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
            how = f"byte {at}"
        else:
            document = graph_document.document_of(content)
            if same:
                how, plan = mutate(rng, document.fields["plan"])
                reported = {**document.fields, "plan": plan}
            else:
                how, reported = mutate(rng, document.fields, frozenset(("plan",)))
            built = graph_document.bytes_of(replace(document, fields=reported))
        for each, old in self._steps.items():
            each.write_bytes(built if each == path else old)
        print_changed(f"steps: {how}")
        try:
            found = self.scores()
        except VkschedError:
            if same:
                raise
            return "refused"  # by what the graph computes
        if same and not np.array_equal(found, self._scores):
            raise Wrong("other scores")
        return "ran well" if not path.with_suffix(".damaged").exists() else "refused"

    def change_layers(self, rng: random.Random) -> str:
        path, document = self._layers
        how, measured = mutate(rng, document["measured"])
        digest = layer_cost_cache._digest(measured)
        path.write_text(json.dumps({**document, "measured": measured, "digest": digest}))
        print_changed(f"layers: {how}")
        self.layers()
        return "refused" if path.with_suffix(".damaged").exists() else "ran well"

    @cached_property
    def _costs(self) -> Any:
        samples = tuple(
            Sample(op, bound, size, 2.0, "")
            for op in ("matmul", "softmax")
            for bound in ("flops", "bytes")
            for size in (-20.0, -10.0)
        )
        link = Link(1e9, 1e-6)
        known = Calibration((1e11, 2e10, 5e-7), Overheads(1e-6, 2e-6), link, link, samples)
        store = CostCache(self.folder / "costs of its own")
        store.add(CARD, replace(known, when="2026-07-01", seen="2026-07-02", pace=1.5))
        path = store.path(CARD)
        assert path is not None
        return store, path, json.loads(path.read_text())

    def change_costs(self, rng: random.Random) -> str:
        store, path, document = self._costs
        how, built = mutate(rng, document)
        path.write_text(json.dumps(built))
        print_changed(f"costs: {how}")
        found = store.load(CARD)
        if found is None:
            return "refused"
        spec = replace(DEVICE, costs=found.costs)
        vs.plan_graph(self._graph, Topology((spec, TOPOLOGY.devices[1])), policy="auto").explain()
        return "ran well"

    @cached_property
    def _tuned(self) -> Any:
        store = VariantCache(self.folder / "variants of its own")
        key = "matmul float32[16,64] float32[64,64] -> float32[16,64]"
        store.add(CARD, [TuningResult(key, "tiles", "plain", {"tiles": 1e-3, "plain": 2e-3})])
        path = store.path(CARD)
        assert path is not None
        return store, path, json.loads(path.read_text())

    def change_tuned(self, rng: random.Random) -> str:
        store, path, document = self._tuned
        how, built = mutate(rng, document)
        path.write_text(json.dumps(built))
        print_changed(f"tuned: {how}")
        found = store.load(CARD)
        limits = replace(DEVICE.limits, tuned=choices(found.values()))
        spec = replace(DEVICE, limits=limits)
        vs.plan_graph(self._graph, Topology((spec, TOPOLOGY.devices[1])))
        return "ran well" if found else "refused"


def print_changed(text: str) -> None:
    print("changed", text, flush=True)


def main() -> int:
    """Read mutants; return 1 if one of them did what it must not."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--count", type=int, default=100)
    asked = options.parse_args()
    deferred_step.MIN_LAYERS = layer_cost_cache.MIN_LAYERS = 2
    content_hash.SETTLED_NS = 0  # the model is written just before
    package_code.LOADED_NS = sys.maxsize  # whoever edits meanwhile
    os.environ["VKSCHED_CHECK"] = "0"
    warnings.simplefilter("ignore", VkschedWarning)
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        of = Caches(Path(name))
        kinds: list[Callable[[random.Random], str]]
        kinds = [of.change_costs, of.change_layers, of.change_tuned]
        for number in range(asked.first, asked.first + asked.count):
            rng = random.Random(f"{asked.seed} {number}")
            change = of.change_steps if number % 16 == 0 else kinds[number % 3]
            print("mutant", number, flush=True)
            signal.alarm(LIMIT_S)  # ends the process, also within a library
            ended = ""
            try:
                ended = change(rng)
            except BaseException:
                print("BAD", number, traceback.format_exc(), flush=True)
                bad += 1
            signal.alarm(0)
            for path in of.folder.rglob("*.damaged"):
                path.unlink()
            if ended == "ran well":
                print(ended, flush=True)
            print("refused" if ended == "refused" else "loaded", flush=True)
    print("read up to", asked.first + asked.count)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
