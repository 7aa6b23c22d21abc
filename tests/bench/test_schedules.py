"""benchmarks/schedules/: its instances, its adapter to anrg-saga, and what it says of rows."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from benchmark_folders import FOLDERS, add_benchmarks
from click.testing import CliRunner
from drawn_tasks import drawn, optimum

from vksched.schedule import schedule

path = sys.path[:]
sys.path[:0] = map(str, FOLDERS)
try:
    import schedule_instances
    import schedule_judge
    import schedule_measure
    import schedule_page
    import schedule_peers
    import schedule_plots
    import schedule_workflows
    import schedules
finally:
    sys.path[:] = path

FAMILIES = schedule_workflows.families()
SMALLEST = {f"wfcommons:{name.lower()}": size for name, size in schedule_workflows.RECIPES.items()}
ALWAYS_THE_SAME = ("gaussian", "fft", "cholesky", "lu", "transformer")
ANY_SIZE = ("out-tree", "in-tree", "layered")
needs_saga = pytest.mark.skipif(not schedule_peers.installed(), reason="anrg-saga is not installed")
every_family = pytest.mark.parametrize("family", FAMILIES)


def shape_of(family: str, tasks: int, seed: int = 0) -> Any:
    return FAMILIES[family](tasks, random.Random(seed))


@every_family
@pytest.mark.parametrize("tasks", [120, 400])
def test_shapes_are_graphs_without_circles(family: str, tasks: int) -> None:
    shape = shape_of(family, tasks)
    assert len(shape.names) == len(set(shape.names)) == len(shape.work)
    assert shape.edges and len({(a, b) for a, b, _ in shape.edges}) == len(shape.edges)
    assert all(0 <= a < b < len(shape.names) and size > 0 for a, b, size in shape.edges)
    assert all(0 < work < math.inf for work in shape.work)
    joined = {end for a, b, _ in shape.edges for end in (a, b)}
    assert len(joined) == len(shape.names), "a task has no edge"


@every_family
@pytest.mark.parametrize("tasks", [10, 60, 250])
def test_shapes_are_about_as_large_as_asked(family: str, tasks: int) -> None:
    count = len(shape_of(family, tasks).names)
    wanted = max(tasks, SMALLEST.get(family, 0))
    least = 0.35 if family == "fft" else 0.65 if wanted > 10 else 0.45  # fft: powers of two
    assert least * wanted <= count <= max(wanted, 12)
    if family in ANY_SIZE:
        assert count == tasks


@every_family
def test_the_same_seed_draws_the_same_shape(family: str) -> None:
    assert shape_of(family, 110) == shape_of(family, 110)
    if family not in ALWAYS_THE_SAME:
        assert shape_of(family, 110, 1) != shape_of(family, 110, 2)


def test_counts_of_tasks_are_those_of_the_papers() -> None:
    for m in (3, 5, 9):
        assert len(shape_of("gaussian", (m * m + m - 2) // 2).names) == (m * m + m - 2) // 2
    for k in (2, 3, 4):
        assert len(shape_of("fft", 2 * 2**k - 1 + 2**k * k).names) == 2 * 2**k - 1 + 2**k * k
    for t in (2, 4, 6):
        assert len(shape_of("cholesky", t * (t + 1) * (t + 2) // 6).names) == (
            t * (t + 1) * (t + 2) // 6
        )


def test_a_cholesky_of_two_tiles_is_a_chain() -> None:
    shape = shape_of("cholesky", 4)
    assert shape.names == ["potrf0", "trsm0.1", "syrk0.1", "potrf1"]
    assert [(a, b) for a, b, _ in shape.edges] == [(0, 1), (1, 2), (2, 3)]


def test_every_butterfly_waits_for_the_other_one_of_its_pair() -> None:
    shape = shape_of("fft", 39)
    before = {i: {a for a, b, _ in shape.edges if b == i} for i in range(39)}
    names = {name: i for i, name in enumerate(shape.names)}
    assert before[names["fly0.0"]] == {names["call3.0"], names["call3.1"]}
    assert before[names["fly2.1"]] == {names["fly1.1"], names["fly1.5"]}


@pytest.mark.parametrize("consistent", [True, False])
def test_instances_are_scaled_as_drawn(consistent: bool) -> None:
    for number in range(20):
        built = schedule_instances.draw(
            "layered", FAMILIES["layered"], 40, number, 7, consistent=consistent
        )
        assert max(built.speed) / min(built.speed) == pytest.approx(built.heterogeneity)
        assert 1 <= built.heterogeneity <= 30 and 0.1 <= built.ratio <= 10
        each = [s for i in range(40) for s in built.seconds(i).values()]
        assert all(built.seconds(i) for i in range(40)), "a task that nobody can run"
        moves = [
            fmean(size / speed for _, _, size in built.shape.edges)
            for speed in built.bytes_per_s.values()
        ]
        assert fmean(moves) / fmean(each) == pytest.approx(built.ratio)
        assert len(built.bytes_per_s) == math.comb(len(built.speed), 2)


def test_the_same_seed_draws_the_same_set_and_a_larger_set_has_the_smaller_one() -> None:
    few = list(schedule_instances.drawn_set(3, sizes=[20], each=1, only=["lu", "layered"]))
    more = list(schedule_instances.drawn_set(3, sizes=[20, 30], each=2, only=["lu", "layered"]))
    assert [built.name for built in few] == [more[0].name, more[4].name]
    assert few[1] == more[4] and more[4] != more[5]
    other = list(schedule_instances.drawn_set(4, sizes=[20], each=1, only=["layered"]))
    assert other[0] != few[1]


def test_a_recipe_has_no_instance_below_its_smallest() -> None:
    pytest.importorskip("wfcommons")
    built = list(schedule_instances.drawn_set(0, sizes=[20, 60], each=1))
    assert not [x for x in built if len(x.shape.names) < 0.7 * SMALLEST.get(x.family, 0)]
    assert "wfcommons:montage" in {x.family for x in built}


def test_what_is_not_consistent_is_not_for_saga() -> None:
    built = schedule_instances.draw("fft", FAMILIES["fft"], 40, 0, 0, consistent=False)
    with pytest.raises(ValueError, match="expected a consistent one"):
        built.problem()


def test_a_recipe_leaves_the_global_sources_of_chance_alone() -> None:
    pytest.importorskip("wfcommons")
    random.seed(5)
    expected = random.Random(5).random()
    shape_of("wfcommons:montage", 60)
    assert random.random() == expected


@pytest.fixture(scope="module", autouse=True)
def path_of_children() -> Iterator[None]:
    """A child process looks for modules where its parent does."""
    with pytest.MonkeyPatch.context() as patch:
        add_benchmarks(patch)
        yield


@pytest.fixture(scope="module")
def peers() -> Iterator[Any]:
    with schedule_peers.Peers(60.0) as built:
        yield built


@needs_saga
@pytest.mark.parametrize("name", ["Heft", "Cpop", "MinMin", "ETF", "FLB", "GDL", "FastestNode"])
def test_plans_of_saga_are_plans_of_ours(peers: Any, name: str) -> None:
    for family in ("gaussian", "layered", "fork-join"):
        instance = schedule_instances.draw(family, FAMILIES[family], 30, 1, 0)
        found = peers.ask(name, instance.problem())
        assert found.why == "" and found.seconds > 0
        built = schedule_measure.plan_of(instance, name, found)
        built.verify()
        assert built.makespan_s == pytest.approx(max(found.finish_s))
        again = schedule_measure.replayed(instance, found)
        assert again.makespan_s <= built.makespan_s * (1 + 1e-9)
        if name == "Heft":  # starts everything as soon as its order lets it
            assert again.makespan_s == pytest.approx(built.makespan_s)


def test_what_another_scheduler_answers_is_a_plan_without_its_package() -> None:
    instance = schedule_instances.draw("lu", FAMILIES["lu"], 20, 0, 0)
    took = [work / instance.speed[0] for work in instance.shape.work]
    ends = [sum(took[: i + 1]) for i in range(len(took))]  # one after the other on one device
    starts = [0.0, *ends[:-1]]
    found = schedule_peers.Answer((0,) * len(took), tuple(starts), tuple(ends), 0.1)
    built = schedule_measure.plan_of(instance, "one device", found).verify()
    assert built.makespan_s == built.value == pytest.approx(sum(took))
    assert built.period_s == pytest.approx(sum(took))
    run = schedule_measure.checked(instance, "one device", found)
    assert (run.by, run.makespan_s, run.why) == ("saga", built.makespan_s, "")


@needs_saga
def test_a_plan_that_starts_too_early_is_no_plan(peers: Any) -> None:
    instance = schedule_instances.draw("gaussian", FAMILIES["gaussian"], 30, 1, 0)
    found = peers.ask("Heft", instance.problem())
    last = max(range(len(found.node)), key=lambda i: found.start_s[i])
    start = list(found.start_s)
    finish = list(found.finish_s)
    start[last], finish[last] = 0.0, finish[last] - start[last]
    wrong = schedule_peers.Answer(found.node, tuple(start), tuple(finish), 0.1)
    run = schedule_measure.checked(instance, "Heft", wrong)
    assert run.makespan_s is None and "no valid plan" in run.why


@needs_saga
def test_heft_of_saga_does_what_our_heft_does(peers: Any) -> None:
    """Only ties and means of links differ: saga counts links from a device to itself, too."""
    for family in ("out-tree", "fork-join", "layered"):
        instance = schedule_instances.draw(family, FAMILIES[family], 40, 2, 0)
        theirs = schedule_measure.checked(
            instance, "Heft", peers.ask("Heft", instance.problem())
        ).makespan_s
        ours = schedule(instance.graph(), instance.where(), policy="heft").makespan_s
        assert theirs is not None and ours == pytest.approx(theirs, rel=0.25)


@needs_saga
def test_the_same_question_has_the_same_answer(peers: Any) -> None:
    instance = schedule_instances.draw("experts", FAMILIES["experts"], 30, 0, 0)
    for name in ("WBA", "OLB", "Hybrid", "UpwardRanking/EST/append+sufferage"):
        first, second = (peers.ask(name, instance.problem()) for _ in range(2))
        assert first.why == "" and (first.node, first.start_s) == (second.node, second.start_s)


@needs_saga
def test_every_scheduler_is_known_to_saga() -> None:
    from saga import schedulers

    left_out = {"BruteForce", "SMT"}
    there = {name.removesuffix("Scheduler") for name in schedulers.__all__}
    assert there - left_out == set(schedule_peers.PLAIN)
    assert len(set(schedule_peers.PARAMETRIC)) == 72


@needs_saga
def test_a_scheduler_that_takes_too_long_is_ended_and_not_asked_again() -> None:
    instance = schedule_instances.draw("stencil", FAMILIES["stencil"], 100, 0, 0)
    with schedule_peers.Peers(0.5) as impatient:  # DPS walks all paths, here 3 ** 9
        options = schedule_measure.MeasureOptions([], impatient, ["DPS", "OLB"])
        first = schedule_measure.measure(instance, options)
        again = schedule_measure.measure(instance, options)
    slow, quick = first.runs
    assert slow.why == "over 0.5 s" and slow.makespan_s is None
    assert quick.policy == "OLB" and quick.makespan_s is not None
    assert again.runs[0].why.startswith("not asked") and again.runs[1].makespan_s is not None


def row(family: str, ours: float | None, *saga: tuple[str, float | None, float]) -> Any:
    """Return a row with a run of auto that took 2 s, and runs of saga's schedulers."""
    make = schedule_measure.Run
    runs = [make("vksched", "auto", ours, 2.0)]
    runs += [make("saga", name, s, took, "" if s else "over 5 s") for name, s, took in saga]
    return schedule_measure.Row(family, 10, 2, 3.0, 0.5, True, 4.0, tuple(runs))


def test_what_auto_reached_is_reported_rows() -> None:
    rows = [
        row("lu", 8.0, ("Heft", 10.0, 1.0), ("DPS", None, 9.0), ("ETF", 16.0, 3.0)),
        row("fft", 12.0, ("Heft", 10.0, 1.0), ("DPS", 20.0, 1.5), ("ETF", 10.0, 0.5)),
    ]
    goal = schedule_measure.goal_of(rows)
    assert goal is not None
    assert (goal.share, goal.mean, goal.faster) == (0.5, pytest.approx(1.0), 0.5)
    assert (goal.total_s, goal.slow_s) == (4.0, 3.5)  # Heft took 2.0 s, DPS ran over the limit
    assert goal.to_bound == pytest.approx(2.5)
    assert schedule_measure.losses(rows) == [(1.2, rows[1], "Heft, ETF")]
    by = {(s.by, s.policy): s for s in schedule_measure.standings(rows)}
    heft, slow = by["saga", "Heft"], by["saga", "DPS"]
    assert (heft.best, heft.plans, heft.mean, heft.worst) == (2, 2, 1.0, 1.0)
    assert (slow.best, slow.plans, slow.asked, slow.mean) == (0, 1, 2, 2.0)
    assert next(iter(by)) == ("vksched", "auto")


def test_without_saga_ratios_are_to_our_best() -> None:
    make = schedule_measure.Run
    runs = (make("vksched", "auto", 2.0, 1.0), make("vksched", "heft", 3.0, 1.0))
    rows = [schedule_measure.Row("lu", 10, 2, 3.0, 0.5, False, 1.0, runs)]
    assert schedule_measure.goal_of(rows) is None
    assert [(s.policy, s.mean) for s in schedule_measure.standings(rows)] == [
        ("auto", 1.0),
        ("heft", 1.5),
    ]
    assert schedule_page.goals(rows) == []


def _judged(auto_s: float, best_s: float, bound_s: float) -> Any:
    runs = [
        schedule_measure.Run("vksched", "auto", auto_s),
        schedule_measure.Run("CP-SAT", "best known", best_s, bound_s=bound_s),
    ]
    return schedule_measure.Row("lu", 20, 2, 1.0, 1.0, True, 1.0, tuple(runs))


def test_the_judge_tells_how_far_auto_is_and_what_is_proven() -> None:
    rows = [_judged(2.2, 2.0, 2.0), _judged(3.0, 3.0, 2.5)]
    assert [row.proven for row in rows] == [True, False]
    assert rows[0].gap == pytest.approx(0.1) and rows[1].gap == 0
    both, proven = schedule_page.verdict(rows)
    assert "2 instances" in both and "5.00% on average, 10.00% at worst" in both
    assert "on 1 of them" in proven and "10.00% on average" in proven
    assert schedule_page.verdict([]) == []


@pytest.mark.skipif(not schedule_judge.has_judge(), reason="ortools is not installed")
@pytest.mark.parametrize("seed", range(12))
def test_the_judge_finds_the_optimum_of_small_instances(seed: int) -> None:
    rng = random.Random(seed)
    tasks, where = drawn(seed, rng.randint(4, 8), rng.randint(2, 3), missing=0.3)
    worst = schedule(tasks, where, "mct")  # as a hint that may be improved
    best, bound_s = schedule_judge.judge(worst, limit_s=20)
    least = optimum(tasks, where)
    assert best.verify().makespan_s == pytest.approx(least, rel=1e-4)
    assert bound_s <= least * (1 + 1e-9) and bound_s == pytest.approx(least, rel=1e-4)


def test_a_judge_that_is_missing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "has_judge", lambda: False)
    found = CliRunner().invoke(schedules.main, ["--judge", "1"])
    assert found.exit_code == 2 and "pip install '.[schedules]'" in found.output


def test_the_page_keeps_what_people_wrote(tmp_path: Path) -> None:
    page = tmp_path / "scheduling.md"
    page.write_text(f"# A\n{schedule_page.BEGIN}\nold\n{schedule_page.END}\nwords\n", "utf-8")
    schedule_page.insert(page, "new")
    assert page.read_text("utf-8") == (
        f"# A\n{schedule_page.BEGIN}\n\nnew\n{schedule_page.END}\nwords\n"
    )
    page.write_text("# A\n", "utf-8")
    with pytest.raises(Exception, match="expected the marks"):
        schedule_page.insert(page, "new")


def test_the_benchmark_writes_rows_that_it_reads_again(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    options = ["--quick", "--no-saga", "--families", "lu,fork-join", "--policies", "auto,heft"]
    runner = CliRunner()
    found = runner.invoke(
        schedules.main,
        [*options, "--time-budget", "0.01", "--json", str(target)],
        catch_exceptions=False,
    )
    assert found.exit_code == 0 and "auto" in found.output
    rows = json.loads(target.read_text())
    assert [(r["family"], r["consistent"]) for r in rows] == [
        *(("lu", True),) * 2,
        *(("fork-join", True),) * 2,
        *(("lu", False), ("fork-join", False)),
    ]
    for each in rows:
        assert each["lower_bound_s"] > 0
        for run in each["runs"]:
            assert run["makespan_s"] >= each["lower_bound_s"] * (1 - 1e-9)
    again = runner.invoke(schedules.main, ["--from", str(target)], catch_exceptions=False)
    assert again.exit_code == 0 and again.output.count("heft") == found.output.count("heft")


def test_the_benchmark_wants_families_and_policies_that_there_are() -> None:
    runner = CliRunner()
    for options, message in (
        (["--families", "circle"], "expected families of"),
        (["--policies", "wish"], "expected policies of"),
        (["--sizes", "many"], "expected numbers"),
    ):
        found = runner.invoke(schedules.main, [*options, "--no-saga"])
        assert found.exit_code == 2 and message in " ".join(found.output.split())


def test_plots_and_tables_are_built_of_rows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        row(family, ours, ("Heft", 10.0, 1.0), ("ETF", 12.0, 3.0))
        for family, ours in (("lu", 8.0), ("fft", 12.0), ("lu", 10.0))
    ]
    drawn = schedule_plots.plots(rows, tmp_path / "made")
    assert all((tmp_path / "made" / name).stat().st_size > 1000 for name in drawn.values())
    text = schedule_page.markdown(rows, "python schedules.py", "anrg-saga 2", drawn)
    assert "| vksched | auto | 2 of 3 | 1.000 | 1.20 |" in text
    assert "| auto |  | 1.00 |  |  | 1.00 |  | 1.00 |  |  |" in text
    assert "| auto | fft 1.20, lu 0.90 | 0.90 |" in text
    assert all(len(line) <= 100 or line.startswith(("|", "!")) for line in text.splitlines())


def test_the_page_tells_of_more_sets_and_of_every_loss() -> None:
    rows = [row("lu", 8.0, ("Heft", 10.0, 1.0)), row("fft", 12.0, ("Heft", 10.0, 1.0))]
    more = [row("fft", 10.5, ("Heft", 10.0, 1.0), ("ETF", 10.0, 9.0)), row("lu", 1.0)]
    text = schedule_page.markdown(rows, "here", "anrg-saga 2", {}, {"other seeds": more})
    lines = text.splitlines()
    assert "| the instances of this page | 1 | 2 | 1 | 50.0% | 1.000 | 1.200 | 4.0 | 2.0 |" in lines
    assert "| other seeds | 2 | 2 | 0 | 0.0% | 1.050 | 1.050 | 2.0 | 5.0 |" in lines
    assert "| the instances of this page | fft | 10 | 2 | 3.0 | 0.50 | 20.00% | Heft |" in lines
    assert "| other seeds | fft | 10 | 2 | 3.0 | 0.50 | 5.00% | Heft, ETF |" in lines
