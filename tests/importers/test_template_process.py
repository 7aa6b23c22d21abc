"""The process that renders chat templates: its limits, its ends, and what it is given."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random

import numpy as np
import pytest

pytest.importorskip("jinja2")

from conftest import THOROUGH, needs_linux, needs_posix
from drawn_templates import template
from selection import by_tier

from vksched.common.errors import DTypeError, ModelFormatError, VkschedError
from vksched.importers.gguf.tokenizer.chat_template import ChatTemplate
from vksched.importers.gguf.tokenizer.rendering.template_process import MAX_REQUEST_BYTES, Renderer

ROOT = Path(__file__).parent.parent.parent
USER = [{"role": "user", "content": "Hi"}]
GREETING = "{{ messages[0].content }}, {{ 6 * 7 }}"
QUADRATIC = {
    "a strip by many characters": "{{ ('a' * 2000000).strip('b' * 1999999 + 'a') }}",
    "an rstrip in a map": "{{ ['a' * 2000000] | map('trim', 'b' * 1999999 + 'a') | list }}",
}
"""Programs that take minutes inside of one call, which the sandbox cannot count."""
SWELLING = {
    "indents in a map": "{{ range(1000) | map('indent', 'a' * 2000000, true) | list | length }}",
    "replacements in a map": (
        "{% set t = 'a' * 4000 %}{{ range(100000) | map('string') | map('replace', '1', t) "
        "| list | length }}"
    ),
}
"""Programs that make gigabytes of values that are small one by one."""


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    renderer = Renderer(memory_bytes=128 << 20)
    yield renderer
    renderer.close()


@contextmanager
def hurried(renderer: Renderer) -> Iterator[None]:
    """Give renderings a fifth of a second, which usual ones may miss where a machine is busy."""
    renderer.seconds, before = 0.2, renderer.seconds
    try:
        yield
    finally:
        renderer.seconds = before


def assert_works(renderer: Renderer) -> None:
    assert renderer.render(GREETING, {"messages": USER}) == "Hi, 42"


@needs_posix
@pytest.mark.parametrize("name", QUADRATIC)
def test_a_call_that_takes_minutes_ends_in_time(name: str, renderer: Renderer) -> None:
    late = pytest.raises(ModelFormatError, match=r"expected a rendering within 0.2 seconds")
    with late, hurried(renderer):
        renderer.render(QUADRATIC[name], {"messages": USER})
    assert_works(renderer)


@needs_linux
@pytest.mark.parametrize("name", SWELLING)
def test_values_that_nothing_counts_end_at_the_limit(name: str) -> None:
    renderer = Renderer(seconds=20.0, memory_bytes=128 << 20)
    with pytest.raises(ModelFormatError, match=r"expected a rendering within 128 MiB of memory"):
        renderer.render(SWELLING[name], {"messages": USER})
    assert_works(renderer)
    renderer.close()


@needs_linux
def test_templates_do_not_pay_for_those_before(renderer: Renderer) -> None:
    assert_works(renderer)
    first = renderer.pid
    for _ in range(2):  # the second one is rendered again, as it may have found too little
        with pytest.raises(ModelFormatError, match="MiB of memory"):
            renderer.render(SWELLING["indents in a map"], {"messages": USER})
        assert_works(renderer)
    assert renderer.pid != first


@needs_posix
def test_a_child_that_is_gone_is_started_again(renderer: Renderer) -> None:
    assert_works(renderer)
    first = renderer.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert_works(renderer)
    assert renderer.pid != first


@needs_posix
def test_a_child_that_does_not_go_on_is_ended_from_here(renderer: Renderer) -> None:
    assert_works(renderer)
    assert renderer.pid is not None
    os.kill(renderer.pid, signal.SIGSTOP)
    late = pytest.raises(ModelFormatError, match=r"expected a rendering within 0.2 seconds")
    with late, hurried(renderer):
        renderer.render(GREETING, {"messages": USER})
    assert_works(renderer)


@needs_linux
def test_the_child_has_nothing_of_its_parent(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s")
    read, write = os.pipe()
    os.set_inheritable(write, True)
    assert_works(renderer)
    assert renderer.pid is not None
    there = Path("/proc") / str(renderer.pid)
    names = {row.partition("=")[0] for row in (there / "environ").read_text().split("\0")}
    assert names <= {"", "TZ", "LD_LIBRARY_PATH", "LC_CTYPE"}
    assert {path.name for path in (there / "fd").iterdir()} == {"0", "1", "2"}
    assert os.readlink(there / "cwd") == "/"
    assert os.getsid(renderer.pid) == renderer.pid  # Ctrl-C does not reach it
    limits = (there / "limits").read_text()
    for name, most in (("open files", 0), ("file size", 0), ("processes", 0)):
        assert f"Max {name:22}{most} " in " ".join(limits.split(" ")), name
    assert str(128 << 20) in limits
    os.close(read)
    os.close(write)


def test_errors_of_late_imports_do_not_hide_those_of_templates(renderer: Renderer) -> None:
    expected = {
        "{{ '\\u00e9\\n' }}{{ имя }}": "é\n",
        "{{ strftime_now('%Z')[:0] }}{{ 'ß'.upper() }}": "SS",
        "{{ {'b': 1} | dictsort }}{{ 1.5 | round }}": "[('b', 1)]2.0",
    }
    for source, text in expected.items():
        assert renderer.render(source, {}) == text
    with pytest.raises(ModelFormatError, match=r"line 2\] TypeError: "):
        renderer.render("a\n{{ 1 + 'a' }}", {})


def test_threads_share_one_child(renderer: Renderer) -> None:
    def talk(number: int) -> list[str]:
        source = GREETING + f"{{# {number % 10} #}}"
        return [renderer.render(source, {"messages": [{"content": number}]}) for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(talk, range(40)))
    assert answers == [[f"{number}, 42"] * 5 for number in range(40)]


class Role(str, Enum):
    USER = "user"


@dataclass
class Part:
    text: str


def test_variables_are_those_of_the_caller() -> None:
    values = {
        "number": np.int64(3),
        "real": np.float32(0.5),
        "pair": (1, "a"),
        "made": (each for each in "ab"),
        "role": Role.USER,
        "part": Part("é\ud800\U0001f600"),
        "deep": {"a": [{"b": {1}}]},
    }
    source = (
        "{{ number }} {{ real }} {{ pair }} {{ made | join('+') }} {{ role + '!' }} "
        "{{ part.text }} {{ deep.a[0].b }}"
    )
    text = ChatTemplate(source).render([], **values)
    assert text == "3 0.5 (1, 'a') a+b user! é\ud800\U0001f600 {1}"


def test_variables_of_other_kinds_are_refused() -> None:
    greet = ChatTemplate(GREETING)
    with pytest.raises(DTypeError, match=r"expected 'tools' to have texts, .*, got object; try"):
        greet.render(USER, tools=[object()])
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(DTypeError, match=r"expected 'tools' to be at most 200 deep"):
        greet.render(USER, tools=endless)
    with pytest.raises(ModelFormatError, match=rf"at most {MAX_REQUEST_BYTES} bytes, got"):
        greet.render([{"content": "a" * MAX_REQUEST_BYTES}])
    assert greet.render(USER) == "Hi, 42"


def test_an_output_may_be_as_long_as_before() -> None:
    source = "{% for i in range(4) %}{{ '\U0001f600' * 1000000 }}{% endfor %}"
    assert ChatTemplate(source).render([]) == "\U0001f600" * 4_000_000


@needs_posix
def test_no_child_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = Renderer()
    for name, got in (("/none", "No such file"), ("/bin/false", "exit code 1"), ("", "without")):
        monkeypatch.setattr(sys, "executable", name)
        with pytest.raises(VkschedError, match=rf"\[chat template\] expected .*{got}.*; try VKSC"):
            renderer.render(GREETING, {"messages": USER})
    monkeypatch.setenv("VKSCHED_TEMPLATES", "inprocess")
    assert_works(renderer)
    with pytest.raises(ModelFormatError, match=r"line 1\] .* at most 16777216 characters of out"):
        renderer.render("{% for i in range(9) %}{{ 'a' * 2000000 }}{% endfor %}", {})
    assert renderer.pid is None


HEAD = """
import os, sys, threading, time
from vksched.importers.gguf.tokenizer.chat_template import ChatTemplate
from vksched.importers.gguf.tokenizer.rendering.template_process import RENDERER
greet = ChatTemplate("{{ messages[0].content }}, {{ 6 * 7 }}")
def works():
    assert greet.render([{"content": "Hi"}]) == "Hi, 42"
works()
first = RENDERER.pid
"""


def python(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", HEAD + text],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def state_of(pid: int) -> str:
    """Return the letter of a process's state; "Z" as well where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def wait_for_state(pid: int, state: str, most_s: float = 30.0) -> None:
    until = time.monotonic() + most_s
    while (found := state_of(pid)) != state:
        assert time.monotonic() < until, f"process {pid} stays in state {found}"
        time.sleep(0.01)


@needs_linux
def test_forked_processes_have_children_of_their_own() -> None:
    """Also while threads of the parent render: the fork may come in the middle of an answer."""
    ran = python("""
ends = []
def go_on():
    while not ends:
        works()
threads = [threading.Thread(target=go_on) for _ in range(3)]
for each in threads:
    each.start()
for _ in range(3):
    pid = os.fork()
    if not pid:
        works()
        second = RENDERER.pid
        works()
        ok = second == RENDERER.pid != first
        RENDERER.close()
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
ends.append(1)
for each in threads:
    each.join()
assert RENDERER.pid == first
print(first)
""")
    out, err = ran.communicate(timeout=60)
    assert ran.returncode == 0 and not err, err
    wait_for_state(int(out), "Z")


@needs_linux
@pytest.mark.parametrize("busy", [False, True], ids=["waiting", "busy"])
def test_the_child_ends_with_its_parent(busy: bool) -> None:
    late = f"RENDERER.render({QUADRATIC['a strip by many characters']!r}, {{}})"
    ran = python(
        f"RENDERER.seconds = 0.3; print(first, flush=True)\n{late if busy else 'time.sleep(60)'}"
    )
    assert ran.stdout is not None and ran.stderr is not None
    pid = int(ran.stdout.readline())
    wait_for_state(pid, "R" if busy else "S")
    ran.kill()
    ran.wait()
    wait_for_state(pid, "Z")
    ran.stdout.close()
    ran.stderr.close()


@needs_linux
def test_a_process_that_ends_leaves_no_child_and_no_warning() -> None:
    ran = python("import warnings; warnings.simplefilter('error'); print(first)")
    out, err = ran.communicate(timeout=60)
    assert ran.returncode == 0 and not err, err
    assert state_of(int(out)) == "Z"


@needs_linux
@pytest.mark.scales
def test_drawn_templates_end_within_the_limits() -> None:
    most = 160 << 20
    renderer, random = Renderer(memory_bytes=most), Random(5 if THOROUGH else 4)
    ends = {"text": 0, "error": 0}
    feeds = {"messages": USER * 3, "tools": None, "bos_token": "<s>"}
    hostile = [*QUADRATIC.values(), *SWELLING.values()] if THOROUGH else []
    for _ in range(by_tier(250, 1000, 4000)):
        source = hostile.pop() if hostile else template(random)
        begin = time.monotonic()
        try:
            with hurried(renderer):
                renderer.render(source, feeds)
            ends["text"] += 1
        except ModelFormatError as error:
            assert str(error).startswith("[chat template"), source
            ends["error"] += 1
        assert time.monotonic() - begin < 30, source  # hangs, whatever this machine does
        assert peak_bytes(renderer) <= most, source
        assert_works(renderer)
    renderer.close()
    assert min(ends.values()) > 30, ends


def peak_bytes(renderer: Renderer) -> int:
    """Return the most addresses that the child ever had; 0 where it is gone."""
    if renderer.pid is None:
        return 0
    rows = Path(f"/proc/{renderer.pid}/status").read_text().splitlines()
    return next((int(r.split()[1]) << 10 for r in rows if r.startswith("VmPeak:")), 0)
