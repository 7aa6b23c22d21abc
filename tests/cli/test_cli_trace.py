"""`vksched trace` and `vksched plan --html`: text, JSON, pages, pictures, and bad files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from timelines import simulated_tape

from vksched.cli import main

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tape") / "t.json"
    simulated_tape().save(path)
    return str(path)


def call(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def test_text_names_the_splits_that_take_longest(file: str) -> None:
    done = call("trace", file)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "2 runs on gpu:0, gpu:1, cpu"
    assert "busy: gpu:0 " in lines[1] and "(median; " in lines[1]
    assert lines[3].split() == ["split", "device", "runs", "measured", "predicted", "critical"]
    # Null devices take what was predicted: the two columns are the same.
    first = lines[4].split()
    assert first[-1] == "100%" and first[-3:-1] == first[-5:-3]
    assert "split 0: a .. add" in lines[4]


def test_json_has_every_span_and_link(file: str) -> None:
    data = json.loads(call("trace", file, "--json").stdout)
    kinds = {span["kind"] for span in data["spans"]}
    assert {"run", "split", "copy", "wait", "submit", "op", "plan", "prepare"} <= kinds
    assert {span["lane"] for span in data["spans"] if span["kind"] == "split"} == {"gpu:0", "gpu:1"}
    assert any(span["critical"] for span in data["spans"])
    assert {link["kind"] for link in data["links"]} >= {"copy", "fence", "submit"}
    assert all(0 <= link["target"] < len(data["spans"]) for link in data["links"])


def test_a_page_and_pictures_are_written(file: str, tmp_path: Path) -> None:
    done = call("trace", file, "--html", str(tmp_path / "a.html"), "--svg", str(tmp_path / "a.svg"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert "<svg" in (tmp_path / "a.svg").read_text("utf-8")
    assert "wrote" in done.stderr and "wrote" not in done.stdout
    wrong = call("trace", file, "--png", str(tmp_path / "a.svg"))
    assert wrong.exit_code == 2 and "a name that ends in .png" in wrong.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty file"),
        ("{", "the file is cut"),
        ("[]", "a trace of another program"),
        ('{"traceEvents": []}', "a trace of another program"),
        ('"x"', "something else"),
        ("\x00\x01", "no JSON"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    done = call("trace", str(tmp_path / "bad.json"))
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1 and message in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("command", ["trace", "replay"])
def test_names_of_a_strange_file_move_no_cursor(file: str, tmp_path: Path, command: str) -> None:
    """Neither in what is printed nor in errors; and a letter that is none is no crash."""
    data = json.loads(Path(file).read_text("utf-8"))
    other = tmp_path / "t.json"
    for node in data["vksched"]["graphs"][0]["nodes"]:
        node["name"] += "\x1b[31m\ud800"
    other.write_text(json.dumps(data))
    done = call(command, str(other))
    assert "Traceback" not in done.output and "\x1b" not in done.output, done.output
    data["vksched"]["graphs"][0]["nodes"][-1]["op"] = "\x1b[31m\ud800"
    other.write_text(json.dumps(data))
    done = call(command, str(other))
    assert done.exit_code == 1 and "\x1b" not in done.output and "no such op" in done.stderr


@pytest.mark.parametrize("part", [0.2, 0.5, 0.9, 0.999])
def test_a_cut_file_is_one_line_wherever_it_is_cut(file: str, tmp_path: Path, part: float) -> None:
    whole = Path(file).read_text("utf-8")
    (tmp_path / "cut.json").write_text(whole[: int(part * len(whole))])
    done = call("trace", str(tmp_path / "cut.json"), "--html", str(tmp_path / "a.html"))
    assert done.exit_code == 1 and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "a.html").exists()


def test_a_plan_that_has_not_run_is_the_same_page(tmp_path: Path) -> None:
    address = f"{ROOT / 'examples' / 'two_cards.py'}:build"
    topology = str(ROOT / "examples" / "data" / "two_cards.json")
    page = tmp_path / "plan.html"
    done = call("plan", address, "--topology", topology, "--html", str(page))
    assert done.exit_code == 0, done.output
    text = page.read_text("utf-8").partition('id="data">')[2].partition("</script>")[0]
    data = json.loads(text)
    assert "nothing has run" in data["summary"]
    assert {row for _, row, _, count in data["tracks"] if count} == {"predicted", "ops"}
    wrong = call("plan", address, "--topology", topology, "--html", str(tmp_path / "plan.svg"))
    assert wrong.exit_code == 2 and "ends in .html" in wrong.stderr
