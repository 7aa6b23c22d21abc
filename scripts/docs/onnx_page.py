"""docs/onnx.md: which ONNX tests pass on which devices, and where their ops ran.

Written by `python scripts/checks/onnx_backend.py --write`;
tests/onnxruntime_api/test_onnx_backend.py compares each row with what it finds itself.
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_contrib

from vksched.importers.onnx.nodes.allow_list import COMPARED
from vksched.importers.onnx.nodes.cpu_node import PART
from vksched.importers.onnx.nodes.reference_evaluator import mended_names
from vksched.importers.onnx.nodes.tree_tables import MAX_DEPTH
from vksched.importers.onnx.rules import rules

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checks"))
import onnx_cases as cases
from onnx_cases import FOLDERS, BackendCase, Outcome

PAGE = cases.ROOT / "docs" / "onnx.md"
SETS = {
    "cpu": ("cpu",),
    "vulkan:0": ("vulkan:0",),
    "two devices": ("vulkan:0", "vulkan:1"),
}
"""The sets of devices of the page, by the names of their columns."""
SHOWN = 120
"""Characters of an error of the evaluator."""
PLACES = ("device", "part", "host", "none")
Results = Mapping[str, Mapping[str, Outcome]]
"""Of each test, by its name, the outcomes by set of devices."""


@dataclass(frozen=True)
class Row:
    """One op, or one kind of tests that are not about one op.

    tests: those that count. passed: by set of devices. places: tests by where vulkan:0 computed
    them. plain: node tests of float32, int32 and bool alone; plain_on_device: of these those that
    the device computed.
    """

    op: str
    tests: int
    passed: Mapping[str, int]
    places: Mapping[str, int]
    plain: int
    plain_on_device: int

    def __str__(self) -> str:
        passed = " | ".join(str(self.passed[name]) for name in SETS)
        places = " | ".join(str(self.places[place] or "") for place in PLACES)
        plain = f"{self.plain_on_device} of {self.plain}" if self.plain else ""
        return f"| {self.op} | {self.tests} | {passed} | {places} | {plain} |"


HEAD = """| op | tests | cpu | vulkan:0 | two devices | device | part | host | none | 32-bit |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def parse_rows(text: str) -> dict[str, Row]:
    """Returns the rows of a page by op."""
    found: dict[str, Row] = {}
    start = text.index(HEAD) + len(HEAD)
    for line in text[start:].strip().splitlines():
        if not line.startswith("|"):
            break
        op, tests, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        on_device, _, plain = rest[-1].partition(" of ")
        passed = {name: int(cell) for name, cell in zip(SETS, rest, strict=False)}
        places = dict(zip(PLACES, (int(c or 0) for c in rest[len(SETS) : -1]), strict=True))
        found[op] = Row(op, int(tests), passed, places, int(plain or 0), int(on_device or 0))
    return found


def make_row(op: str, chosen: Sequence[BackendCase], results: Results) -> Row:
    """Returns the row of some tests, of which only those that the evaluator passes count."""
    counted = [case for case in chosen if cases.expected_to_pass(case)]
    outcomes = [results[case.name] for case in counted]
    on_device = [o["vulkan:0"].where if "vulkan:0" in o else "" for o in outcomes]
    plain = [w for c, w in zip(counted, on_device, strict=True) if c.kind == "node" and c.is_plain]
    return Row(
        op,
        len(counted),
        {name: sum(name in o and o[name].error is None for o in outcomes) for name in SETS},
        {place: on_device.count(place) for place in PLACES},
        len(plain),
        plain.count("device"),
    )


def total_of(rows: Iterable[Row]) -> Row:
    """Returns the sum of rows."""
    rows = list(rows)
    return Row(
        "all",
        sum(r.tests for r in rows),
        {name: sum(r.passed[name] for r in rows) for name in SETS},
        {place: sum(r.places[place] for r in rows) for place in PLACES},
        sum(r.plain for r in rows),
        sum(r.plain_on_device for r in rows),
    )


def only(row: Row, sets: Iterable[str]) -> Row:
    """Returns a row with what can be found with some sets of devices alone."""
    sets = set(sets)
    if "vulkan:0" in sets:
        places, plain_on_device = row.places, row.plain_on_device
    else:
        places, plain_on_device = dict.fromkeys(PLACES, 0), 0
    passed = {name: row.passed[name] if name in sets else 0 for name in SETS}
    return dataclasses.replace(row, passed=passed, places=places, plain_on_device=plain_on_device)


# -- the page --------------------------------------------------------------------------------------


def write_page(results: Results, path: Path = PAGE) -> None:
    """Writes the page from the outcomes of all tests on all sets of devices."""
    by_op: dict[str, list[BackendCase]] = {}
    for case in cases.load_cases().values():
        by_op.setdefault(case.op, []).append(case)
    names = sorted(by_op, key=lambda op: (op in FOLDERS, op.lower()))
    rows = [make_row(op, by_op[op], results) for op in names]
    total = total_of(rows)
    head, tests = _head(total).split(_TESTS)
    lines = [head, *onnx_contrib.kept_section(), "", f"{_TESTS}{tests}"]
    lines += [HEAD, *map(str, rows), str(total), ""]
    lines += ["## 32-bit tests that the device does not compute, or not alone", ""]
    lines += wrapped(_reasons(by_op, results))
    lines += ["", "## Tests that do not count", "", _FAILS.format(onnx=onnx.__version__), ""]
    fails = cases.read_reference().fails
    lines += wrapped(f"- `{n}`: {_escaped(error[:SHOWN])}" for n, error in sorted(fails.items()))
    path.write_text("\n".join(lines) + "\n")


def wrapped(items: Iterable[str]) -> Iterator[str]:
    """Yields the items of a list at 100 columns."""
    for item in items:
        yield from textwrap.wrap(
            item, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )


def _reasons(by_op: Mapping[str, Sequence[BackendCase]], results: Results) -> list[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for op, chosen in sorted(by_op.items()):
        for case in chosen:
            if case.kind != "node" or not case.is_plain or not cases.expected_to_pass(case):
                continue
            outcome = results[case.name]["vulkan:0"]
            if outcome.where == "device":
                continue
            why = "; ".join(_reason(op, name, reason) for name, reason in outcome.why.items())
            text = why or "nothing to compute: a view, or the same in every run"
            found.setdefault((op, text), []).append(case.name.removeprefix("test_"))
    return [
        f"- {op}: {_escaped(text)} ({', '.join(f'`{name}`' for name in names)})"
        for (op, text), names in found.items()
    ]


def _reason(op: str, node: str, reason: str) -> str:
    """Returns a reason with the op that it is of, where the text does not say so."""
    if node == PART.removeprefix("onnx."):
        return "more than one result"
    return reason if node == op else f"{node}: {reason}"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def rule_counts() -> str:
    """Returns the line of the page that counts rules by domain."""
    domains = sorted({r.domain for r in rules()} - {"vksched"})  # made by other rules
    counts = {d: sum(r.domain == d for r in rules()) for d in domains}
    others = ", ".join(f"{counts[d]} of {d}" for d in domains if d)
    return _COUNTS.format(rules=counts[""], others=others)


def _head(total: Row) -> str:
    return _HEAD.format(
        newest=onnx.defs.onnx_opset_version(),
        onnx=onnx.__version__,
        counts=rule_counts(),
        compared=sum(map(len, COMPARED.values())),
        mended=len(mended_names() & frozenset().union(*COMPARED.values())),
        depth=MAX_DEPTH,
        tests=total.tests,
        share=100 * total.plain_on_device / max(1, total.plain),
        plain=total.plain,
        on_device=total.plain_on_device,
    )


_COUNTS = """\
- **Ops**: {rules} ops of the default domain have rules, which express them by vksched's ops. So
  have, of other domains, {others}."""
_TESTS = "## The tests of the onnx package"
_HEAD = """# All ONNX ops

Written by `python scripts/checks/onnx_backend.py --write`; do not edit. Tests compare the table
with what they find.

## What runs

- **Opsets**: 7 to {newest} of the default domain, as of onnx {onnx}. Older ones run as far as the
  evaluator of the onnx package goes. Of other domains run the ops that have a rule, and those of
  ai.onnx.ml that are below.
{counts}
  An op without a rule that ONNX declares as a function is lowered as that function.
- **Other ops**, and calls that a rule refuses, run on the CPU, through the evaluator of the onnx
  package. Each is one node of the plan. `plan.explain()` and a warning tell the reason.
- **The evaluator** is asked for {compared} ops alone: those of which drawn calls gave what
  onnxruntime gives (`vksched/importers/onnx/nodes/allow_list.py`,
  `tests/importers/test_allow_list.py`). {mended} of them are functions of vksched's own, as the
  package's are wrong or missing. Any other op that no rule expresses is an error at import. It
  names the node and the op, and says why no rule does it. Then try to export the model for another
  opset, or without that op.
- **Types**: devices compute float32, float16, int32, uint32 and bool. They compute int64 where its
  values are known to fit 32 bits. The CPU computes other int64 and float64, exactly. Narrow
  integers are held as int32, bfloat16 and the 8-bit and 4-bit floats as float32, uint64 as int64.
  Text and complex numbers stay on the host.
- **Weights** of narrow integers are held in 8 or 16 bits each, as the file has them. The op `widen`
  makes int32 of them in each run, or what DequantizeLinear says. A table that Gather reads is
  widened behind it. On numpy that costs little beside a convolution or a product of many rows; a
  product of one row takes half as long again. `VKSCHED_NARROW=0` widens all once, for four times
  the memory ([ADR 0004](adr/0004-weights-of-few-bits.md)).
- **Shapes**: fixed ones are compiled at once, others when they come. Where a shape depends on
  values that the model computes (NonZero, a loop of unknown turns), the model is cut into stages
  with the host between them. Each stage is compiled once for the shapes that it meets.
- **Structure**: If, Loop, Scan and SequenceMap, sequences and optionals, functions of the model
  itself, weights in the file or beside it.

[ONNX models](models.md) shows how to run one. [Model files](architecture/importers.md) tells how it
works.

## ai.onnx.ml

All ops of ai.onnx.ml run, in versions 1 to 5, with the attributes that they have there. Drawn
attributes of each are compared with onnxruntime (`tests/importers/onnx_calls/onnx_calls_ml.py`),
and so are converted estimators of scikit-learn, LightGBM and XGBoost where skl2onnx and onnxmltools
are there (`tests/onnxruntime_api/test_converted_estimators.py`).

- **Trees** (TreeEnsemble, TreeEnsembleClassifier, TreeEnsembleRegressor) run on devices. They are
  gathers, one level of all trees at a time. Comparisons are exact. NaN and missing values go where
  the file says. Trees may have {depth} levels.
- **Support vectors** (SVMClassifier, SVMRegressor) run on devices, as products and distances. The
  host couples probabilities of pairs of classes.
- **Linear models** (LinearClassifier, LinearRegressor) run on devices.
- **Features** (ArrayFeatureExtractor, Binarizer, FeatureVectorizer, Imputer, Normalizer,
  OneHotEncoder, Scaler) run on devices, those of texts on the host.
- **Categories** (CategoryMapper, LabelEncoder) run on the host.
- **Maps** (CastMap, DictVectorizer, ZipMap) run on the host. A map is a dict, a sequence of maps is
  a list of dicts, as from onnxruntime.

Labels that are texts are looked up on the host, behind the device's work. Sums over trees are
rounded in another order than onnxruntime's, so that a tie within rounding may go the other way.
Two things are as ONNX defines them, where onnxruntime 1.32 has them otherwise: `post_transform` 1
of TreeEnsemble is SOFTMAX and 2 is LOGISTIC, and a member of a set is one of its numbers, not one
with a fraction beyond it. PROBIT of two classes has one score; the other one is 0, or the score
itself for support vectors.

## The tests of the onnx package

The table has all tests of onnx.backend.test that carry their data: first node tests by op, then
tests of whole models by kind. {tests} tests count. Those are the ones that the package's own
evaluator passes. A test passes when its results are within the tolerances of onnx's runner.

- **cpu**, **vulkan:0**, **two devices**: how many pass there. With two devices the nodes of a graph
  take turns on them.
- **device**, **part**, **host**, **none**: how many vulkan:0 computed as a whole; in part; how many
  the CPU computed alone; how many need no computing, as views do.
- **32-bit**: of the node tests whose tensors are all float32, int32 or bool, how many the device
  computed as a whole. In all that is {on_device} of {plain}, {share:.1f} %.
"""
_FAILS = """The evaluator of onnx {onnx} does not give what these expect, so they are not held
against vksched either."""
