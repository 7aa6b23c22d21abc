"""Suites: cases and extra metrics; suites in folders of users.

    FOLDER/songs.py: SUITE = Suite("songs", cases_of_songs)
    FOLDER --load_suites--> {"songs": Suite(...)}

Suites of the package: suites.py. Examples: benchmarks/suites, tests/bench/test_suite_loader.py.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..common.errors import GraphError
from ..ir.precision import SINGLE
from .baselines.workloads import Spec
from .extra_metrics import ExtraMetric
from .rounds import Result

Ready = Callable[[Spec], Spec]
"""Return a case with its files."""
Facts = Mapping[str, Iterator[ExtraMetric]]
"""Extra metrics by name; they are measured during iteration."""


@dataclass(frozen=True)
class SuiteOptions:
    """Options of a benchmark.

    models: files of language models. kv: element type of their KV cache. precision: precision of
    matmuls. budget_s: seconds per case. policy, objective: as for `Scheduler`. more: values of
    --suite-option by name.
    """

    models: Sequence[str | Path] = ()
    cache_type: str = "f32"
    precision: str = SINGLE
    budget_s: float = 2.0
    policy: str = "auto"
    objective: str = "latency"
    more: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    """A suite.

    cases: yields the cases. baselines: baselines that take part; None: all that support the device.
    option_names: names for --suite-option. has_precision: `in_precision` converts its cases to a
    precision. plans: --policy and --objective have an effect. may_be_empty: it may run without
    cases. measures_cases: its cases are measured in rounds with baselines. uses_devices: devices
    take part. ready: context in which cases have their files; None if they need none. device_facts:
    extra metrics of one device and its cases; `pythons` may have onnxruntime, for memory.
    run_facts: extra metrics of all devices together, measured instead of cases. table: results of
    one device (a `DeviceReport`) as a table; None for the default tables.
    """

    name: str
    cases: Callable[[SuiteOptions], Iterable[Spec]]
    baselines: tuple[str, ...] | None = None
    option_names: tuple[str, ...] = ()
    has_precision: bool = False
    plans: bool = False
    may_be_empty: bool = False
    measures_cases: bool = True
    uses_devices: bool = True
    ready: Callable[[Sequence[Spec]], AbstractContextManager[Ready]] | None = None
    device_facts: Callable[[str, Sequence[Spec], Sequence[str], Ready], Facts] | None = None
    run_facts: Callable[[Sequence[str], Sequence[Spec], SuiteOptions], Facts] | None = None
    table: Callable[[Sequence[Result], Any], Any] | None = None


def load_suites(folders: Iterable[str | Path]) -> dict[str, Suite]:
    """Return the suites of folders by name: each is the constant SUITE of a module.

    The modules are imported by name, and can import each other. Raise GraphError if a folder has no
    suite, or a module fails to import.
    """
    found: dict[str, Suite] = {}
    for folder in (Path(one).resolve() for one in folders):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
        suites = [suite for file in sorted(folder.glob("*.py")) if (suite := _suite_of(file))]
        if not suites:
            raise GraphError(f"[bench] expected a file with a constant SUITE in {folder}, got none")
        found |= {suite.name: suite for suite in suites}
    return found


def _suite_of(file: Path) -> Suite | None:
    try:
        module = importlib.import_module(file.stem)
    except Exception as error:
        raise GraphError(
            f"[bench] cannot load the suite {file}: {type(error).__name__}: {error}"
        ) from error
    if (loaded := getattr(module, "__file__", None)) is None or Path(loaded).resolve() != file:
        raise GraphError(
            f"[bench] {file} has the name of another module, {loaded or 'of Python itself'}"
        )
    suite = getattr(module, "SUITE", None)
    return suite if isinstance(suite, Suite) else None
