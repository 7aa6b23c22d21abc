"""Signals name what is made inside, however they are entered and left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import vksched as vs


def name() -> str:
    """The name that a value gets now."""
    return vs.relu(vs.input("x", (2,))).name


def test_signals_nest_and_are_entered_again() -> None:
    block = vs.signal("block.0")
    with block:
        assert name() == "block.0.relu"
        with vs.signal("mlp"), block:
            assert name() == "block.0.mlp.block.0.relu"
    with block:
        assert name() == "block.0.relu"
    assert name() == "relu"


def test_signals_decorate_functions() -> None:
    @vs.signal("layer")
    def layer(depth: int) -> list[str]:
        """A layer."""
        return [name(), *(layer(depth - 1) if depth else [])]

    assert layer(1) == ["layer.relu", "layer.layer.relu"]
    assert layer(0) == ["layer.relu"]
    assert layer.__doc__ == "A layer."
    with pytest.raises(ZeroDivisionError):
        vs.signal("wrong")(lambda: 1 / 0)()
    assert name() == "relu"


def test_what_makes_its_values_later_is_no_function_to_decorate() -> None:
    async def later() -> None:
        pass

    def each() -> Iterator[str]:
        yield name()

    for wrong in (later, each, type("Layer", (), {})):
        with pytest.raises(vs.VkschedError, match="expected a function that creates values when"):
            vs.signal("layer")(wrong)


def test_an_error_leaves_a_signal() -> None:
    with pytest.raises(ValueError, match="here"), vs.signal("a"), vs.signal("b"):
        raise ValueError("here")
    assert name() == "relu"


def test_a_generator_that_ends_late_takes_its_own_signal_away() -> None:
    def each() -> Iterator[str]:
        with vs.signal("inside"):
            yield name()
            yield name()

    values = each()
    assert next(values) == "inside.relu"
    with vs.signal("outside"):
        values.close()  # type: ignore[attr-defined]
        assert name() == "outside.relu"
    assert name() == "relu"


def test_threads_and_tasks_have_signals_of_their_own() -> None:
    found: list[str] = []

    def work() -> None:
        with vs.signal("thread"):
            found.append(name())

    async def task(number: int) -> str:
        with vs.signal(f"task.{number}"):
            await asyncio.sleep(0)
            return name()

    async def tasks() -> list[str]:
        return list(await asyncio.gather(*map(task, range(3))))

    with vs.signal("main"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == ["thread.relu"]
        assert asyncio.run(tasks()) == [f"main.task.{i}.relu" for i in range(3)]
        assert name() == "main.relu"


WRONG = ("", ".a", "a.", "a*", "a[0]", None, 3, "pipeline", "backward", "a.backward.b")


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_names_that_a_config_cannot_speak_of(wrong: str) -> None:
    with pytest.raises(vs.VkschedError, match=r"\[signal\] expected a name"):
        vs.signal(wrong)
