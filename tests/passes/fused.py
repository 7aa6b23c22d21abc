"""What tests of fused nodes share: graphs before and after passes, special values, modules."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from graphs import numpy_outputs

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.graph import Graph
from vksched.passes import RewriteConstraints, optimize

SPECIAL = np.array([-np.inf, -5, -0.0, 0.0, 1, np.inf, np.nan, 3.5], np.float32)


def ops_of(graph: Graph) -> list[str]:
    return [node.op for node in graph.ops]


def assert_names_survive(before: Graph, after: Graph) -> None:
    """Every name of a graph is found in what passes make of it."""
    names = {node.name for node in after.nodes}
    assert {n.name for n in before.nodes} <= names | after.aliases.keys()


def optimized(outputs: vs.Tensor | Sequence[vs.Tensor], **constraints: object) -> Graph:
    """The graph that passes leave, with the results and names that it had before."""
    before = vs.build_graph(outputs)[0]
    after = optimize(before, RewriteConstraints(**constraints))  # type: ignore[arg-type]
    assert_names_survive(before, after)
    rng = np.random.default_rng(3)
    feeds: dict[str, NDArray] = {
        n.name: np.asarray(rng.standard_normal(n.type.shape) * 3, n.type.dtype)
        for n in before.inputs
    }
    for got, wanted in zip(numpy_outputs(after, feeds), numpy_outputs(before, feeds), strict=True):
        assert got.dtype == wanted.dtype
        within = 4e-3 if got.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(got, wanted, within, within)
    return after


def assert_same_values(got: NDArray, wanted: NDArray) -> None:
    """Equal to the last digit, NaN to NaN, zeros with their signs."""
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got) & (got == got), np.signbit(wanted) & (got == got))


def assert_valid(spirv: bytes, folder: Path) -> None:
    """A module is valid, where spirv-val is installed: the set-up's, which knows cooperative
    matrices, or the system's. folder: for its file.
    """
    own = shutil.which("spirv-val", path=str(Path(sys.executable).parent))
    validator = own or shutil.which("spirv-val")
    if validator is not None:
        path = folder / "module.spv"
        path.write_bytes(spirv)
        subprocess.run([validator, "--target-env", "vulkan1.1", str(path)], check=True)
