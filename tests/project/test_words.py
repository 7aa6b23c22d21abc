"""The lint of names and docstrings finds what it is for, and nothing in the repository."""

from __future__ import annotations

import pytest
import words

WRONG = {
    "a function": "def order_told(x): ...",
    "a parameter": "def order(given): ...",
    "a variable": "kept_plans = []",
    "a class": "class MadeHere: ...",
    "an attribute": "def f(self):\n    self.words_beside = 1",
    "a constant": "MOST_KEPT = 3",
    "a docstring": 'def f():\n    """Returns what a device holds."""',
    "a question": 'def f():\n    """Whether it is there."""',
    "a parameter's text": 'def f():\n    """Place nodes. cost: of a range of layers."""',
}


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_word_is_found(name: str) -> None:
    assert len(list(words.problems(WRONG[name]))) == 1


def test_plain_code_passes() -> None:
    source = 'def place(node):\n    """Return the device of a node. cost: seconds of a node."""\n'
    assert list(words.problems(f"{source}    forgiven, remade = node\n")) == []


@pytest.mark.parametrize("name", words.DEFAULTS)
def test_the_code_uses_the_terms_of_the_field(name: str) -> None:
    folder = words.ROOT / name
    found = [
        f"{path.relative_to(folder)}:{problem}"
        for path in sorted(folder.rglob("*.py"))
        for problem in words.problems(path.read_text("utf-8"))
    ]
    assert found == []
