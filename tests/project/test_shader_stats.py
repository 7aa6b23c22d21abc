"""Every shader variant on cards that are not there: it compiles, and no register is spilled."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import shader_cards
import shader_stats
from conftest import THOROUGH
from selection import TIER, Tier, by_tier
from shader_cards import AMD, CARDS, COOPMAT, INTEL, NVIDIA, WITH_COOPMAT, StatsError
from shader_pipelines import COOPMAT_NAME, is_for_cards
from shader_stats import Pipeline, Report, Statistics
from tables import Table, read_tables, write_tables

from vksched.runtime.vulkan.shaders import left_out, load_manifest, load_shader

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

import build_shaders  # noqa: E402

pytestmark = pytest.mark.timeout(600)  # the first test compiles everything on every card
THERE = [name for name, card in CARDS.items() if card.exists()]
FAMILIES = [name for name in THERE if CARDS[name].maker is AMD]
ON_INTEL = [name for name in THERE if CARDS[name].maker is INTEL]
OTHERS = [name for name in THERE if name not in ON_INTEL]
OF_INTEGERS = (Pipeline("matmul_tiled_int32"), Pipeline("matmul_tiled_float32"))
needs_driver = pytest.mark.skipif(not FAMILIES, reason="Mesa's AMD driver is not installed")
needs_nvk = pytest.mark.skipif("ga102" not in THERE, reason="no NVK with mesa-drm-shim here")
needs_compiler = pytest.mark.skipif(
    shutil.which("glslangValidator") is None, reason="glslangValidator is not installed"
)
# Of Mesa 25: finished results, where long steps follow. Mesa 26 keeps them in registers.
LOCAL_BYTES_25 = {"matmul_tiled_float32": 64, "matmul_gemv_float32": 64}
# Each of 1024 threads holds 128 values over a barrier; a card has registers for 64 to 96 of them.
SPILLS = """#version 450
layout(local_size_x = 1024) in;
layout(constant_id = 0) const uint SKIP = 7u;
layout(set = 0, binding = 0) coherent buffer X { uint x[]; };
void main() {
    uint held[128];
    for (uint i = 0u; i < 128u; ++i) held[i] = x[(gl_GlobalInvocationID.x + i) * SKIP];
    barrier();
    memoryBarrierBuffer();
    for (uint i = 0u; i < 128u; ++i) x[(gl_GlobalInvocationID.x + 127u - i) * SKIP] = held[i] * i;
}
"""
# A child process whose compiler dies of one shader, and of another unless it is the first. It knows
# navi31 by its older name only, and navi10 only from a library in the kernel's place.
CHILD = """
import json, os, sys
if os.environ.get("RADV_FORCE_FAMILY") in ("navi31", "navi10"):
    sys.exit("radv: Unknown family: " + os.environ["RADV_FORCE_FAMILY"])
print('{"driver": "radv", "device": "none"}', flush=True)
for number, request in enumerate(json.load(sys.stdin)):
    if request["spirv"] == "deadly" or (request["spirv"] == "last straw" and number):
        sys.exit("assertion failed")
    names = NAMES
    sizes = [{"subgroup_size": n, "statistics": dict.fromkeys(names, 0)} for n in (8, 32)]
    print(json.dumps({"executables": sizes}), flush=True)
"""


@cache
def used_pipelines(registers: int = 255) -> list[Pipeline]:
    """All pipelines of the case table."""
    return shader_stats.used_pipelines(None, registers)


def pipelines_of(family: str) -> list[Pipeline]:
    """Return the pipelines that are compiled for a card. `make test` compiles one in two with its
    default constants, each on one card in turn, and the products of integers on all cards.
    `make test-rest` compiles each on one card, and `make test-all` all for every card. For Intel
    `make test` compiles one in 24 of those that calls use.
    """
    maker = CARDS[family].maker
    if maker is INTEL:
        used = used_pipelines(maker.registers)
        return used if TIER is Tier.ALL else used[ON_INTEL.index(family) :: turns(4, ON_INTEL)]
    if TIER is Tier.ALL:
        return used_pipelines()
    plain = [pipeline for pipeline in used_pipelines() if not pipeline.constants]
    turn = OTHERS.index(family)
    return [
        pipeline
        for number, pipeline in enumerate(plain)
        if number % turns(2, OTHERS) == turn or pipeline in OF_INTEGERS
    ]


def turns(quick: int, cards: list[str]) -> int:
    """Return the distance of the pipelines that one of the cards compiles in turn."""
    return by_tier(quick, 1, 1) * len(cards)


@cache
def report_of(family: str) -> Report:
    """The statistics of a card's pipelines."""
    return shader_stats.measure(pipelines_of(family), [family])


@pytest.mark.scales
@needs_driver
@pytest.mark.parametrize("family", THERE)
def test_every_variant_compiles_without_spills(family: str) -> None:
    report = report_of(family)
    assert list(report.results[family]) == pipelines_of(family)
    assert report.problems() == []


@needs_driver
def test_every_variant_is_compiled_for_a_card() -> None:
    compiled = {pipeline.variant for family in OTHERS for pipeline in pipelines_of(family)}
    assert compiled <= on_cards() and len(compiled) >= len(on_cards()) // (1 if THOROUGH else 2)


@pytest.mark.scales
@needs_driver
@pytest.mark.parametrize("family", FAMILIES)
def test_the_numbers_are_those_of_a_card(family: str) -> None:
    report = report_of(family)
    for pipeline, got in report.results[family].items():
        assert isinstance(got, Statistics)
        assert 0 < got.vgprs <= 256 and 0 < got.sgprs <= 128, pipeline
        assert 0 < got.waves <= 40 and got.cycles > 0 and got.code_bytes > 0, pipeline
        assert 0 <= got.shared_bytes <= 65536, pipeline
    assert any(s.shared_bytes for s in report.results[family].values() if isinstance(s, Statistics))


@needs_driver
@pytest.mark.parametrize("family", FAMILIES)
def test_products_of_integers_leave_room_for_nearly_as_many_waves(
    family: str,
) -> None:
    """Mesa 26 gave those of 8 x 8 results 256 on vega10, so that a single wave ran on a SIMD."""
    whole, real = (report_of(family).results[family][pipeline] for pipeline in OF_INTEGERS)
    assert isinstance(whole, Statistics) and isinstance(real, Statistics)
    assert whole.waves >= 0.75 * real.waves


@pytest.mark.scales
@needs_nvk
def test_the_numbers_are_those_of_an_nvidia_card() -> None:
    report = report_of("ga102")
    known = LOCAL_BYTES_25 if " Mesa 25." in report.drivers["ga102"] else {}
    for pipeline, got in report.results["ga102"].items():
        assert isinstance(got, Statistics)
        assert 0 < got.vgprs <= 255 and got.instructions > 0 and got.code_bytes > 0, pipeline
        assert got.scratch_bytes <= known.get(pipeline.variant, 0), pipeline


@needs_driver
@needs_compiler
def test_a_planted_spill_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, compiled = tmp_path / "spills.comp", tmp_path / "spills.spv"
    source.write_text(SPILLS)
    command = ["glslangValidator", "--target-env", "vulkan1.1", "-o", str(compiled), str(source)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    request = {"spirv": str(compiled), "bindings": 1, "push_bytes": 0, "constants": [3]}
    monkeypatch.setattr(shader_stats, "_request", lambda pipeline, folder: request)
    planted = Pipeline("spills", (("SKIP", 3),))
    report = shader_stats.measure([planted], ["vega10", "navi21"])
    assert len(report.problems()) == 2
    assert re.fullmatch(r"vega10: spills \(SKIP=3\): spills \d+ VGPRs .*", report.problems()[0])
    assert "!" in shader_stats.as_text(report, True)


def on_cards() -> set[str]:
    """The variants that a card may be given."""
    return set(filter(is_for_cards, load_manifest()))


def test_pipelines_have_known_constants_that_differ_from_the_defaults() -> None:
    pipelines = used_pipelines()
    assert {p.variant for p in pipelines if not p.constants} == on_cards()
    assert len(set(pipelines)) == len(pipelines)
    for pipeline in pipelines:
        defaults = {name: default for name, _, default in load_shader(pipeline.variant).constants}
        assert all(defaults[name] != value for name, value in pipeline.constants)
    assert set(shader_stats.used_pipelines(["softmax"])) < set(pipelines)
    with pytest.raises(StatsError, match="no shader variant is named softmin"):
        shader_stats.used_pipelines(["softmin"])


def test_stored_tables_name_every_variant_and_no_other() -> None:
    named = {name: _named(name) for name in ("loops", "coopmat", "variants", "intel")}
    remedy = f"run: python build_shaders.py --stats --write {shader_stats.DATA.relative_to(ROOT)}"
    assert sorted(named["variants"]) == sorted(on_cards()), remedy
    with_loops = {n for n in on_cards() if n.startswith(shader_stats.WITH_LOOPS)}
    assert set(named["loops"]) == with_loops, remedy
    assert set(named["coopmat"]) == {n for n in load_manifest() if COOPMAT_NAME in n}, remedy
    assert set(named["intel"]) <= on_cards() and len(named["intel"]) > 0.8 * len(on_cards()), remedy


def _named(table: str) -> list[str]:
    """Return the variants of each row of a stored table."""
    rows = [row for part in read_tables(shader_stats.DATA, table) for row in part.rows]
    return [name for row in rows for name in re.findall(r"^`(\w+)`", row[0])]


@pytest.mark.skipif(bool(left_out()), reason="the shaders for cooperative matrices were left out")
def test_matrix_units_compile_without_spills() -> None:
    there = [name for name, card in WITH_COOPMAT.items() if card.exists()]
    known = []
    for name in there:
        with contextlib.suppress(StatsError):  # an older Mesa does not know the card
            driver = shader_stats.measure([], [name], WITH_COOPMAT).drivers[name]
            known += [name] if int(re.findall(r"Mesa (\d+)", driver)[0]) >= 25 else []
    if not known:
        pytest.skip("no Mesa from 25 on here, or no card of its that has cooperative matrices")
    for units in COOPMAT:
        if here := [name for name in units.cards if name in known]:
            compile_without_spills(shader_stats.coopmat_pipelines(units), here)


def compile_without_spills(pipelines: list[Pipeline], cards: list[str]) -> None:
    assert len(pipelines) > 20
    report = shader_stats.measure(pipelines, cards, WITH_COOPMAT)
    assert report.problems() == []
    for pipeline in report.pipelines():
        most = (
            16 if ("UNTRANSPOSED", 1) in pipeline.constants else 12
        )  # values of 16 bits are read singly
        for got in (results[pipeline] for results in report.results.values()):
            assert isinstance(got, Statistics) and got.scratch_bytes == 0, pipeline
            assert all(loop.shared_reads <= most * loop.multiply_adds for loop in got.loops)
    assert len(shader_stats.coopmat_table(report).rows) == len(report.pipelines())


def test_tables_are_stored_one_row_a_line(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    table = Table(("a", "b"), (("`x`", "1"), ("y",)), ("a note",), numeric=True)
    write_tables(path, {"one": [table], "two": [table, Table(("c",), ())]}, version="1")
    assert read_tables(path, "one") == [table] and len(read_tables(path, "two")) == 2
    assert '\n   ["`x`", "1"],\n' in path.read_text()
    expected = ["a note", "", "| a | b |", "|---|--:|", "| `x` | 1 |", "| y |"]
    assert table.as_markdown().splitlines() == expected


@pytest.fixture
def fake_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process without Vulkan."""
    child = tmp_path / "child.py"
    names = [*AMD.statistics.values(), *NVIDIA.statistics.values()]
    child.write_text(CHILD.replace("NAMES", repr(names)))
    monkeypatch.setattr(shader_stats, "CHILD", child)
    monkeypatch.setattr(shader_stats, "_request", lambda p, folder: {"spirv": p.variant})
    monkeypatch.setattr(shader_cards, "ICD_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(shader_cards, "SHIM_FOLDERS", (str(tmp_path),))
    for name in ("radeon_icd.json", AMD.shim, "nouveau_icd.json"):
        (tmp_path / name).touch()


@pytest.mark.usefixtures("fake_child")
def test_a_dying_compiler_is_named_with_its_shader_and_the_others_go_on() -> None:
    pipelines = [
        Pipeline("good"),
        Pipeline("deadly"),
        Pipeline("deadly", (("N", 2),)),
        Pipeline("z"),
    ]
    report = shader_stats.measure(pipelines, ["navi21", "navi31"])
    assert list(report.results["navi31"]) == pipelines
    assert report.problems()[:2] == [
        "navi21: deadly: the compiler died: assertion failed (exit code 1)",
        "navi21: deadly (N=2): the compiler died: assertion failed (exit code 1)",
    ]
    assert isinstance(report.results["navi31"][pipelines[-1]], Statistics)  # by its other name
    assert [row.get("error") is None for row in json.loads(shader_stats.as_json([report]))] == [
        *(True, False, False, True),
    ] * 2


@pytest.mark.usefixtures("fake_child")
def test_a_compiler_that_dies_of_what_came_before_is_asked_again() -> None:
    pipelines = [Pipeline("good"), Pipeline("last straw"), Pipeline("last straw", (("N", 2),))]
    report = shader_stats.measure(pipelines, ["navi21"])
    assert report.problems() == []
    assert list(report.results["navi21"]) == pipelines


@pytest.mark.usefixtures("fake_child")
def test_a_card_is_asked_for_in_all_ways_until_one_works(tmp_path: Path) -> None:
    report = shader_stats.measure([Pipeline("z")], ["navi10"])
    assert isinstance(report.results["navi10"][Pipeline("z")], Statistics)
    ways = list(CARDS["navi31"].environments())
    asked = [(w.get("RADV_FORCE_FAMILY"), w.get("AMDGPU_GPU_ID")) for w in ways]
    assert asked == [("navi31", None), ("gfx1100", None), (None, "navi31"), (None, "gfx1100")]
    assert ["LD_PRELOAD" in w for w in ways] == [False, False, True, True]
    assert not CARDS["ga102"].exists()
    (tmp_path / NVIDIA.shim).touch()
    assert CARDS["ga102"].exists()
    (way,) = CARDS["ga102"].environments()
    assert way["NOUVEAU_CHIPSET"] == "172" and way["LD_PRELOAD"] == str(tmp_path / NVIDIA.shim)
    assert way["VK_DRIVER_FILES"] == str(tmp_path / "nouveau_icd.json")


def test_rows_are_the_slowest_constants_of_each_variant() -> None:
    slow, quick, refused = Pipeline("one"), Pipeline("one", (("N", 3),)), Pipeline("two")
    results: dict[Pipeline, Statistics | str] = {
        slow: Statistics(8, 32, 0, 10, 100, 900, 64, 0, 0, 0),
        quick: Statistics(4, 32, 0, 10, 50, 900, 64, 0, 9, 16),
        refused: "vkCreateComputePipelines: -3",
    }
    report = Report({"vega10": "radv"}, {"vega10": results})
    rows = shader_stats.variants_table(report).as_markdown().splitlines()[-2:]
    assert rows == ["| `one` | 0 | 8/32 · 10 · 100 |", "| `two` | 0 | failed |"]
    lines = shader_stats.as_text(report, True).splitlines()
    assert lines[-2].split() == ["one", "(N=3)", "0", "4/32!", "10", "50"]
    assert report.problems() == [
        "vega10: one (N=3): spills 0 VGPRs and 9 SGPRs",
        "vega10: two: vkCreateComputePipelines: -3",
    ]


def test_each_card_has_the_same_say_in_what_is_slowest() -> None:
    first, second = Pipeline("one"), Pipeline("one", (("N", 3),))
    cycles = {"vega10": (100, 50), "navi21": (40, 20), "ga102": (9000, 10000)}
    results: dict[str, dict[Pipeline, Statistics | str]] = {
        family: {p: Statistics(8, cycles=n) for p, n in zip((first, second), reported, strict=True)}
        for family, reported in cycles.items()
    }
    drivers = {"vega10": "radv", "navi21": "radv", "ga102": "NVK"}
    report = Report(drivers, results)
    assert report.slowest() == {"one": first}
    lines = shader_stats.variants_table(report).as_markdown().splitlines()
    assert lines[1] == "Compiled by radv (vega10, navi21), NVK (ga102)."
    assert lines[-1] == "| `one` | 0 | 8/0 · 0 · 100 | 8 · 0 · 40 | 8 · 0 · 9000 |"


def test_without_the_driver_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shader_cards, "ICD_FOLDERS", (str(tmp_path),))
    with pytest.raises(StatsError, match="apt-get install` mesa-vulkan-drivers"):
        shader_stats.measure([Pipeline("copy")], ["vega10"])
    with pytest.raises(StatsError, match="expected families of vega10, .* got voodoo"):
        shader_stats.measure([Pipeline("copy")], ["voodoo"])


@needs_driver
def test_misuse_of_the_command_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shader_stats.main(["softmin"], "", False, None) == 1
    assert "no shader variant is named softmin" in capsys.readouterr().err
    assert shader_stats.main(["copy"], "", False, Path("data.json")) == 1
    assert "--write takes every variant" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["build_shaders.py", "--json"])
    with pytest.raises(SystemExit):
        build_shaders.main()
    assert "go with --stats" in capsys.readouterr().err


@needs_driver
def test_command_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert shader_stats.main(["copy"], "navi21", False, None) == 0
    text = capsys.readouterr()
    assert text.out.splitlines()[-1].startswith("copy ")
    assert re.match(r"pipelines: 1, cards: 1, compiler: radv Mesa \d", text.err)
    assert shader_stats.main(["copy"], "navi21", True, None) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["variant"], row["family"], row["spilled_vgprs"]) == ("copy", "navi21", 0)
