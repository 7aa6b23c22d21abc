"""The import rule: packages stand on levels, imports go down, and nothing goes in a circle.

    common -> trace, topology, storage -> ir, viz
      -> ops (lowering -> elementwise -> layout -> creation -> reduction -> linalg -> attention,
         conv, quantized, rnn), schedule
      -> plan, passes, importers, autograd, optim, parallel
      -> planner, runtime -> tuning, distributed
      -> view -> engine -> models, monitor, metrics, cluster -> scheduler
      -> onnxruntime, onnx_backend, testing, bench, serve, torch -> doctor -> cli

Imports below `if TYPE_CHECKING` and inside functions count like all others.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from failures import Failures

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "vksched"
LEVELS = [
    ("common",),
    ("trace", "topology", "storage"),
    ("ir", "viz"),
    ("ops", "schedule"),
    ("plan", "passes", "importers", "autograd", "optim", "parallel"),
    ("planner", "runtime"),
    ("tuning", "distributed"),
    ("engine",),
    ("models", "generation", "cluster", "monitor"),
    ("scheduler",),
    ("onnxruntime", "onnx_backend", "testing", "bench", "serve", "torch"),
    ("doctor",),
    ("cli",),
]
FAMILIES = [
    ("lowering",),
    ("elementwise",),
    ("layout",),
    ("creation",),
    ("reduction",),
    ("linalg",),
    ("attention", "conv", "quantized", "rnn"),
]
"""Of ops: each family builds on those before it."""
SUBPACKAGES = {
    "importers": [("base",), ("onnx", "gguf")],
    "importers/gguf": [
        ("read",),
        ("hparams", "tokenizer", "pooling"),
        ("architectures",),
        ("kv_cache", "vision"),
        ("model",),
    ],
    "importers/onnx": [
        ("nodes",),
        ("rules",),
        ("lower", "read"),
        ("model_tensors",),
        ("model",),
        ("example_inputs",),
    ],
    "parallel": [("config",), ("sharding",), ("pipeline",), ("apply_config",)],
    "plan": [
        ("types",),
        ("costs",),
        ("simulation", "verify"),
        ("explain",),
        ("drawing",),
        ("plan",),
        ("dynamic", "serialize"),
        ("multi_host",),
    ],
    "planner": [
        ("placement", "partition"),
        ("memory",),
        ("record_pieces", "search"),
        ("build_options", "comparison"),
        ("planner",),
        ("plan_cache", "what_if"),
    ],
    "runtime": [
        ("run_stats", "state_store", "simulated_clock"),
        ("device",),
        ("cpu",),
        ("executors", "vulkan"),
        ("simulated",),
    ],
    "distributed": [("protocols", "wire"), ("worker",), ("driver",)],
    "torch": [
        ("rules",),
        ("convert", "decompositions", "model_file"),
        ("lower",),
        ("partition", "weights"),
        ("runtime",),
        ("saved_values",),
        ("segment",),
        ("program",),
        ("frame",),
        ("backend", "explanation", "export"),
    ],
    "schedule": [
        ("model",),
        ("policies",),
        ("local_search", "memory_aware"),
        ("auto", "schedule_result"),
        ("schedule", "verify_schedule", "gantt"),
    ],
}
ABOVE_ALL = {"__init__", "__main__"}
LOOSE = {"onnx_backend"}
"""Modules directly in the package."""
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """Return a module's dotted name below the package; "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in MODULES}


@cache
def nodes() -> dict[Path, Sequence[ast.AST]]:
    """The imports and classes of each module, anywhere in it."""
    return {path: statements_of(ast.parse(path.read_text("utf-8"))) for path in MODULES}


def statements_of(tree: ast.AST) -> Sequence[ast.AST]:
    kinds = (ast.ImportFrom, ast.Import, ast.ClassDef)
    selected = [node for node in statements(tree) if isinstance(node, kinds)]
    for node in selected:
        if isinstance(node, ast.ClassDef):
            node.body.clear()  # the collector would go through all of it again and again
    return selected


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands inside a node, without expressions, in which no statement stands."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


@cache
def imports() -> dict[Path, list[str]]:
    """The modules of vksched that each module imports."""
    return {path: sorted(set(imports_of(path))) for path in MODULES}


def imports_of(path: Path) -> Iterator[str]:
    """Yield the modules of vksched that a module imports, anywhere in it."""
    inside = path.relative_to(PACKAGE).parts
    for node in nodes()[path]:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*inside[: len(inside) - node.level], *(node.module or "").split(".")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vksched":
            base = (node.module or "").split(".")[1:]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("vksched."):
                    yield alias.name.removeprefix("vksched.")
            continue
        else:
            continue
        base = [part for part in base if part]
        for alias in node.names:
            whole = ".".join([*base, alias.name])
            yield whole if whole in NAMES else ".".join(base)


def ranks(levels: list[tuple[str, ...]]) -> dict[str, int]:
    return {name: rank for rank, names in enumerate(levels) for name in names}


def rises(path: Path, package: str, levels: list[tuple[str, ...]]) -> list[str]:
    """Return the imports of a module from a higher level of a package."""
    rank, prefix = ranks(levels), f"{package.replace('/', '.')}." if package else ""
    own = name_of(path).removeprefix(prefix).split(".")[0]
    out: list[str] = []
    for name in imports()[path]:
        if not name.startswith(prefix) or name in ("", prefix[:-1]):
            continue
        other = name.removeprefix(prefix).split(".")[0]
        if own in rank and rank.get(other, 0) > rank[own]:
            out.append(name)
    return out


def test_imports_go_down_only(failures: Failures) -> None:
    for path in MODULES:
        with failures.of(str(path.relative_to(PACKAGE))):
            look_down_only(path)


def look_down_only(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in ABOVE_ALL:
        return
    assert own in ranks(LEVELS) or own == "spirv"
    assert "" not in imports()[path], "the package itself stands above all"
    assert rises(path, "", LEVELS) == []
    if own == "ops":
        assert rises(path, "ops", FAMILIES) == []
    for package, levels in SUBPACKAGES.items():
        if name_of(path).startswith(f"{package.replace('/', '.')}."):
            assert rises(path, package, levels) == []


def test_no_imports_go_in_a_circle() -> None:
    edges = {name_of(path): set(found) - {""} for path, found in imports().items()}
    state: dict[str, int] = {}
    circles: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        state[name] = 1
        for other in sorted(edges.get(name, ())):
            if other == name:
                continue
            if state.get(other) == 1:
                circles.append(
                    " -> ".join([*above[above.index(other) :], name, other])
                    if other in above
                    else f"{name} -> {other}"
                )
            elif other not in state:
                visit(other, (*above, name))
        state[name] = 2

    for name in sorted(edges):
        if name not in state:
            visit(name, ())
    assert circles == []


def test_no_file_lies_loose() -> None:
    loose = {path.stem for path in PACKAGE.glob("*.py")}
    assert loose == LOOSE | ABOVE_ALL
    for family in {name for names in FAMILIES for name in names}:
        assert (PACKAGE / "ops" / family / "__init__.py").exists()
    assert {path.name for path in (PACKAGE / "ops").glob("*.py")} == {"__init__.py"}
    assert {path.name for path in (PACKAGE / "importers").glob("*.py")} == {
        "__init__.py",
        "base.py",
    }
    assert {path.name for path in TESTS.glob("*.py")} == {"conftest.py", "test_architecture.py"}
    assert not list((TESTS.parent / "shaders").glob("*.comp"))


def test_every_package_says_what_it_is() -> None:
    packages = [path for path in MODULES if path.name == "__init__.py"]
    assert [
        str(p) for p in packages if not ast.get_docstring(ast.parse(p.read_text("utf-8")))
    ] == []
    folders = {path.parent for path in MODULES}
    assert {str(f) for f in folders if not (f / "__init__.py").exists()} == set()


def test_classes_fit_on_a_few_screens() -> None:
    long = [
        f"{name_of(path)}.{node.name}: {node.end_lineno - node.lineno} lines"
        for path in MODULES
        for node in nodes()[path]
        if isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.lineno >= 300
    ]
    assert long == []
    assert {
        name_of(p): n for p in MODULES if (n := len(p.read_text("utf-8").splitlines())) > 500
    } == {}
    assert len((PACKAGE / "scheduler" / "scheduler.py").read_text("utf-8").splitlines()) < 400


def test_one_file_alone_imports_each_native_module() -> None:
    users = {
        (name_of(path), module)
        for path in MODULES
        for module in re.findall(r"vksched_native(?:\.| import )(\w+)", path.read_text("utf-8"))
    }
    assert users == {
        ("runtime.vulkan.binding", "kp"),
        ("runtime.vulkan.binding", "companion"),
        ("ops.lowering.native_kernels", "cpu_kernels"),
    }


def test_tests_that_the_package_names_are_there() -> None:
    named = {
        (name_of(path), found)
        for path in PACKAGE.rglob("*.py")
        for found in re.findall(r"tests/[a-z_0-9/]+\.py", path.read_text("utf-8"))
    }
    assert len(named) > 100
    assert sorted(each for each in named if not (TESTS.parent / each[1]).is_file()) == []
