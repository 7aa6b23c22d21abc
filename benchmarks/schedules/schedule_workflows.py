"""Workflows of sciences as task graphs: Montage, Epigenomics, and the recipes of wfcommons.

Montage puts photographs of the sky together; Epigenomics maps pieces of genomes. Both come in any
size from their published shapes, so that they need no other package. The recipes of the package
wfcommons were drawn from traces of real runs; they have a smallest size each, from 24 tasks to 106,
and are there where the package is (`pip install ".[schedules]"`).

Source: Juve, Chervenak, Deelman, Bharathi, Mehta and Vahi, "Characterizing and profiling scientific
workflows", 2013, for the first two: their shapes, with the means of seconds and of bytes rounded.
Coleman, Casanova, Pottier, Kaushik, Deelman and Ferreira da Silva, "WfCommons: a framework for
enabling scientific workflow research and development", 2022, for the others. Its recipe of RNA-seq
has tasks but no edges in version 1.6 and is left out.
"""

from __future__ import annotations

import importlib.util
import logging
import random
from collections.abc import Sequence
from graphlib import TopologicalSorter
from typing import Any

import numpy as np
from schedule_families import FAMILIES, Family, Shape, largest

MB = 1e6 / (1 << 20)
"""Blocks of a million bytes."""
RECIPES = {
    "Blast": 45,
    "Bwa": 106,
    "Cycles": 69,
    "Epigenomics": 43,
    "Genome": 54,
    "Montage": 60,
    "Seismology": 103,
    "Soykb": 98,
    "Srasearch": 24,
}
"""The smallest number of tasks of each recipe."""
MIN_S = 1e-3
"""What a task of a trace takes at least; some have 0."""


def montage(tasks: int, rng: random.Random) -> Shape:
    """Return n photographs projected, their overlaps compared, corrected and put together."""
    photos = largest(lambda n: 2 * n + overlaps(n) + 6, tasks, 2)
    near = _near(photos, overlaps(photos), rng)
    shape = Shape()
    project = [shape.add(f"project{i}", 1.7 * _noise(rng)) for i in range(photos)]
    differ = [
        shape.add(f"differ{a}.{b}", 0.7 * _noise(rng), [(project[a], 8 * MB), (project[b], 8 * MB)])
        for a, b in near
    ]
    concat = shape.add("concat", 0.02 * len(differ) + 1, [(d, 0.001 * MB) for d in differ])
    model = shape.add("model", 0.05 * len(differ) + 1, [(concat, 0.01 * MB)])
    correct = [
        shape.add(f"correct{i}", 1.7 * _noise(rng), [(project[i], 8 * MB), (model, 0.01 * MB)])
        for i in range(photos)
    ]
    table = shape.add("table", 0.02 * photos + 1, [(c, 4 * MB) for c in correct])
    added = [(table, 0.01 * MB), *((c, 8 * MB) for c in correct)]
    add = shape.add("add", 0.3 * photos, added)
    shrink = shape.add("shrink", 0.1 * photos, [(add, 4 * MB * photos)])
    shape.add("jpeg", 0.7, [(shrink, 1.5 * MB)])
    return shape


def overlaps(photos: int) -> int:
    """Return how many pairs of photographs overlap."""
    return min(photos * (photos - 1) // 2, round(2.5 * photos))


def _near(photos: int, pairs: int, rng: random.Random) -> list[tuple[int, int]]:
    """Return pairs that overlap: each photograph with the next, then others drawn near it."""
    found = {(i, i + 1) for i in range(photos - 1)}
    while len(found) < pairs:
        a = rng.randrange(photos)
        b = min(photos - 1, max(0, a + rng.choice((-1, 1)) * rng.randint(2, 2 + photos // 2)))
        if a != b:
            found.add((min(a, b), max(a, b)))
    return sorted(found)


def epigenomics(tasks: int, rng: random.Random) -> Shape:
    """Return lanes of pieces: each piece goes through four steps, and all are put together."""
    lanes = 1 + tasks // 60
    pieces = largest(lambda p: lanes * (4 * p + 2) + 3, tasks, 1)
    shape, merged = Shape(), list[tuple[int, float]]()
    for lane in range(lanes):
        split, done = shape.add(f"split{lane}", 0.34 * pieces), list[tuple[int, float]]()
        for piece in range(pieces):
            step = shape.add(f"filter{lane}.{piece}", 2.5 * _noise(rng), [(split, 13 * MB)])
            step = shape.add(f"format{lane}.{piece}", 0.5 * _noise(rng), [(step, 12 * MB)])
            step = shape.add(f"pack{lane}.{piece}", 1.4 * _noise(rng), [(step, 10 * MB)])
            step = shape.add(f"map{lane}.{piece}", 200 * _noise(rng), [(step, 2 * MB)])
            done.append((step, 1 * MB))
        merged.append((shape.add(f"merge{lane}", 11 * _noise(rng), done), 27 * MB))
    whole = shape.add("merge", 11 * _noise(rng), merged)
    index = shape.add("index", 44 * _noise(rng), [(whole, 120 * MB)])
    shape.add("pileup", 56 * _noise(rng), [(index, 110 * MB)])
    return shape


def _noise(rng: random.Random) -> float:
    return rng.uniform(0.7, 1.3)


def recipe(name: str) -> Family:
    """Return the family of a recipe of wfcommons, which draws from global sources of chance."""

    def draw(tasks: int, rng: random.Random) -> Shape:
        from wfcommons.wfchef import recipes
        from wfcommons.wfgen.generator import WorkflowGenerator

        source: Any = getattr(recipes, f"{name}Recipe").from_num_tasks(max(tasks, RECIPES[name]))
        before, before_numpy = random.getstate(), np.random.get_state()
        quiet = logging.root.manager.disable
        try:
            logging.disable(logging.WARNING)
            seed = rng.randrange(1 << 32)
            random.seed(seed)
            np.random.seed(seed)
            return _shape_of(WorkflowGenerator(source).build_workflow())
        finally:
            logging.disable(quiet)
            random.setstate(before)
            np.random.set_state(before_numpy)

    return draw


def _shape_of(workflow: Any) -> Shape:
    """Return a workflow as a shape; an edge has the bytes of the files that both ends name."""
    before: dict[str, list[str]] = {name: [] for name in sorted(workflow.nodes)}
    for a, b in sorted(workflow.edges):
        before[b].append(a)
    shape, number = Shape(), dict[str, int]()
    for name in TopologicalSorter(before).static_order():
        task = workflow.tasks[name]
        taken = {file.file_id for file in task.input_files}
        after = [
            (number[a], _bytes_of(workflow.tasks[a].output_files, taken) / (1 << 20))
            for a in before[name]
        ]
        number[name] = shape.add(name, max(MIN_S, task.runtime), after)
    return shape


def _bytes_of(files: Sequence[Any], taken: set[str]) -> int:
    return sum(file.size for file in files if file.file_id in taken)


def families() -> dict[str, Family]:
    """Return all families that this Python can draw, by name."""
    found = {**FAMILIES, "montage": montage, "epigenomics": epigenomics}
    if importlib.util.find_spec("wfcommons") is not None:
        found |= {f"wfcommons:{name.lower()}": recipe(name) for name in RECIPES}
    return found
