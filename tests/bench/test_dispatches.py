"""The dispatches and barriers of language models' steps on a described GPU: none may come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from benchmark_folders import add_benchmarks

from vksched.importers import load_gguf

MOST = {
    ("1.1B", 1, "float32", "f32"): (163, 115),
    ("1.1B", 1, "mixed", "f16"): (163, 115),
    ("1.1B", 1, "int8", "f16"): (163, 115),
    ("1.1B", 512, "float32", "f32"): (532, 373),
    ("1.1B", 512, "mixed", "f16"): (189, 158),
    ("8B", 1, "float32", "f32"): (233, 165),
    ("8B", 1, "mixed", "f16"): (233, 165),
    ("8B", 1, "int8", "f16"): (233, 165),
}
"""The most dispatches and barriers by model, tokens, precision and element type of the cache,
without cooperative matrices.
"""
BY_COOPMATS = {
    ("1.1B", 1, "mixed", "f16"): (163, 115),
    ("1.1B", 512, "float32", "f32"): (532, 373),
    ("1.1B", 512, "mixed", "f16"): (168, 158),
    ("8B", 512, "mixed", "f16"): (271, 228),
}
"""The most with the cooperative matrices of a listed driver."""


@pytest.fixture
def dispatches(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    add_benchmarks(monkeypatch)
    import dispatches

    return dispatches


@pytest.mark.parametrize("name", ["1.1B", "8B"])
def test_steps_have_no_more_than(name: str, dispatches: ModuleType, tmp_path: Path) -> None:
    dispatches.write_outline(tmp_path / "m.gguf", dispatches.SHAPES[name])
    model = load_gguf(tmp_path / "m.gguf").meta()
    plain, with_coopmats = dispatches.specs_of("rtx4090")
    for spec, bounds in ((plain, MOST), (with_coopmats, BY_COOPMATS)):
        for (of, *case), (most, most_barriers) in bounds.items():
            if of == name:
                plan, kernels = dispatches.count(model, spec, *case)
                barriers = plan.barriers + plan.inner_barriers
                assert kernels.total() <= most and barriers <= most_barriers, (case, kernels)
                assert barriers > plan.depth // 2  # they are counted
                used = any("coopmat" in kernel for kernel in kernels)
                assert used == (spec is with_coopmats and case[:2] == [512, "mixed"])


def test_all_presets_have_rows(
    dispatches: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main: Callable[[], None] = dispatches.main
    for name in ("arc-a770", "radeon-780m"):
        options = ["dispatches.py", "--model", "1.1B", "--card", name]
        monkeypatch.setattr("sys.argv", options)
        main()
        rows = [line.split() for line in capsys.readouterr().out.splitlines() if "1.1B" in line]
        coopmats = [row[1] for row in rows]
        assert coopmats.count("no") == coopmats.count("yes") == len(dispatches.CASES)
    assert len(dispatches.specs_of("rx6600")) == 1, "it has no matrix units"
