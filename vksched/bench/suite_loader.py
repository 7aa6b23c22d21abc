"""A suite: its cases, and the facts that are measured with them; suites in folders of a user.

    FOLDER/songs.py: SUITE = Suite("songs", cases_of_songs)
    FOLDER --load_suites--> {"songs": Suite(...)}

suites.py has those of the package. Examples: benchmarks/suites, tests/bench/test_suite_loader.py.
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
from .extra_metrics import Fact
from .rounds import Result

Ready = Callable[[Spec], Spec]
"""Returns a case with the files that it needs."""
Facts = Mapping[str, Iterator[Fact]]
"""Facts by the name of the work that finds them; they are measured while they are iterated."""


@dataclass(frozen=True)
class SuiteOptions:
    """Options of a run.

    models: language models, in files. kv: the element type of their keys and values. precision: of
    products. budget_s: for each case. policy, objective: of plans, as `Scheduler` takes them.
    more: values of --suite-option by name.
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

    cases: yields the cases. baselines: those that take part; None: those that take the device.
    option_names: the names that --suite-option may set.
    has_precision: whether `in_precision` makes its cases anew for a precision.
    plans: whether --policy and --objective have an effect.
    may_be_empty: whether it may run without cases.
    measures_cases: whether its cases are measured in rounds with the baselines.
    uses_devices: whether devices take part at all.
    ready: a context in which cases have the files that they need; None if they need none.
    device_facts: facts of one device, of its cases; `pythons` may have onnxruntime, for memory.
    run_facts: facts of all devices at once. With it nothing else is measured.
    table: the results of one device (a `DeviceReport`) as a table; None for the usual tables.
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

    The modules are imported by their names, and find each other so.

    Raises:
        GraphError: a folder has no suite, or a module of it cannot be imported.
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
