"""Names find their sections: the longest one, with patterns, backward passes and near misses."""

from __future__ import annotations

import pytest

from vksched.parallel.config.match_sections import sections_of, unmatched
from vksched.parallel.config.read_config import read_config

BACK = "encoder.0.backward"


def found(config: dict[str, object], *names: str) -> list[str | None]:
    return [s and s.name for s in sections_of(list(names), read_config(config))]


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("encoder.0.h", "encoder.0"),
        ("encoder.0.mlp.h", "encoder.0.mlp"),
        ("encoder.0.mlp2.h", "encoder.0"),
        ("encoder.01.h", None),
        ("encoder.0", None),  # a value of that name, no signal
        ("h", None),
        ("encoder.0.backward.h", "back"),
        ("encoder.0.mlp.backward.h", "encoder.0.mlp"),
    ],
)
def test_the_longest_name_wins(name: str, section: str | None) -> None:
    config = {"encoder.0": {"backward": "back"}, "encoder.0.mlp": {}, "back": {}}
    assert found(config, name) == [section]


def test_a_section_of_its_own_for_a_backward_pass() -> None:
    assert found({"encoder.0": {}, BACK: {}}, f"{BACK}.h", "encoder.0.h") == [BACK, "encoder.0"]


def test_patterns() -> None:
    config: dict[str, object] = {"layer.*.mlp": {}, "layer.[01]": {}}
    names = ["layer.0.mlp.h", "layer.1.h", "layer.2.h"]
    assert found(config, *names) == ["layer.*.mlp", "layer.[01]", None]


def test_what_matches_nothing_is_reported_with_the_nearest_name() -> None:
    config = read_config(
        {
            "encoder.O": {},
            "encoder.0": {"backward": "only.linked"},
            "only.linked": {},
            "pipeline": {"stages": ["encoder.0", "haed"], "microbatches": 1},
        }
    )
    reported = unmatched(["encoder.0.h", "head.y"], config)
    assert list(reported) == ["encoder.O", "haed"]
    assert list(reported.values()) == [
        "config: encoder.O matches nothing in this graph; the nearest name is encoder.0",
        "config: haed matches nothing in this graph; the nearest name is head",
    ]


def test_a_graph_without_signals() -> None:
    (reported,) = unmatched(["h"], read_config({"head": {}})).values()
    assert reported.endswith("head matches nothing in this graph; no value here has a signal")
