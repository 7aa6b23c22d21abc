"""What layers take, kept on disk: the same as measured, of nothing but the same question."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gguf_models import Tiny, write
from test_place_layers import CPU, SIZES, cards

import vksched as vs
from vksched.common import package_code
from vksched.common.package_code import code_files, is_code, loaded_code
from vksched.common.user_warning import VkschedWarning
from vksched.generation.layer_placement import layer_cost_cache, place_layers
from vksched.generation.layer_placement.layer_cost_cache import cache_key, cached_or_measured
from vksched.generation.layer_placement.layer_costs import LayerCosts
from vksched.importers.gguf.model import LanguageModel
from vksched.topology.links import Link, Links
from vksched.topology.topology import Topology

TINY = Tiny(layers=3, vocabulary=61)
TOPOLOGY = Topology((*cards(40, 40), CPU))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(layer_cost_cache, "MIN_LAYERS", 2)
    return tmp_path / "cache" / "layers"


@pytest.fixture
def model(tmp_path: Path) -> LanguageModel:
    return build_model(tmp_path / "tiny.gguf")


def build_model(path: Path, tiny: Tiny = TINY) -> LanguageModel:
    write(tiny, path, np.random.default_rng(0))
    model = vs.load(path)
    assert isinstance(model, LanguageModel)
    return model


def asked(model: LanguageModel, topology: Topology = TOPOLOGY, measures: bool = True) -> LayerCosts:
    """Return the costs of layers. measures: True if they are measured, and not read."""
    about, calls = (model, model.cache(64), SIZES, topology, ()), []

    def measure() -> LayerCosts:
        calls.append(1)
        return place_layers._measured(*about)

    found = cached_or_measured(*about, measure)
    assert bool(calls) is measures
    return found


def test_second_start_reads_what_the_first_one_measured(model: LanguageModel, folder: Path) -> None:
    first = asked(model)
    assert (
        asked(model, measures=False)
        == first
        == place_layers._measured(model, model.cache(64), SIZES, TOPOLOGY)
    )
    assert len(list(folder.glob("*.json"))) == 1


def test_experts_are_retained(tmp_path: Path) -> None:
    import language
    from test_gguf_golden import build_golden as golden

    model = golden(language.load("qwen3moe"), tmp_path)
    first = asked(model)
    assert any(layer.experts for layer in first.layers)
    assert asked(model, measures=False) == first


def test_memory_that_is_free_now_makes_the_room(model: LanguageModel) -> None:
    first = asked(model)
    smaller = Topology((*cards(40, 7), CPU))
    found = asked(model, smaller, measures=False)
    assert found == place_layers._measured(model, model.cache(64), SIZES, smaller)
    assert found.places[1].room_bytes < first.places[1].room_bytes


def test_all_that_decides_is_another_key(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(
        model: LanguageModel = model,
        length: int = 64,
        cache_type: str = "f32",
        sizes: tuple[int, ...] = SIZES,
        topology: Topology = TOPOLOGY,
        modes: tuple[str, ...] = (),
    ) -> str:
        return cache_key(model, model.cache(length, cache_type), sizes, topology, modes)

    def with_card(**changes: Any) -> Topology:
        first, *others = TOPOLOGY.devices
        return replace(TOPOLOGY, devices=(replace(first, **changes), *others))

    again = build_model(tmp_path / "again.gguf")
    assert key() == key(again) == key(topology=with_card(memory_bytes=1 << 20))
    others = [
        key(length=32),
        key(cache_type="f16"),
        key(sizes=(1, 8)),
        key(build_model(tmp_path / "deeper.gguf", replace(TINY, layers=4))),
        key(build_model(tmp_path / "typed.gguf", replace(TINY, kind="Q8_0"))),
        key(build_model(tmp_path / "biased.gguf", replace(TINY, biases=True))),
        key(build_model(tmp_path / "based.gguf", replace(TINY, base=500.0))),
        key(modes=("mixed", "mixed", "float32")),
        key(topology=with_card(bytes_per_s=1e9)),
        key(topology=with_card(limits=replace(TOPOLOGY.devices[0].limits, storage_buffers=4))),
        key(topology=with_card(disabled_reason="it is lost")),
        key(topology=Topology((*cards(40), CPU))),
        key(topology=replace(TOPOLOGY, links=Links(default=Link(bytes_per_s=1e6)))),
    ]
    for module, name, value in (
        (layer_cost_cache, "FORMAT", layer_cost_cache.FORMAT + 1),
        (package_code, "__version__", "other"),
        (layer_cost_cache, "code_files", lambda: [("more.py", 1, 1)]),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            code_files.cache_clear()
            others.append(key())
    code_files.cache_clear()
    assert len({key(), *others}) == 1 + len(others)


def test_code_is_that_of_the_package() -> None:
    names = [name for name, _, _ in code_files()]
    assert any(name.endswith("layer_costs.py") for name in names) and len(names) > 300


def test_code_that_is_loaded_is_known_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_code, "LOADED_NS", sys.maxsize)  # whoever edits meanwhile
    files = loaded_code()
    assert files is not None
    assert "storage/disk_cache.py" in [name for name, _, _ in files]
    assert len(files) > 100 and is_code(files)
    (name, size, time_ns), *_ = files
    assert not is_code([(name, size + 1, time_ns)]) and not is_code([(name, size, time_ns - 1)])
    assert not is_code([("gone.py", 1, 1)])


def test_native_modules_next_to_the_package_are_no_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(package_code, "LOADED_NS", sys.maxsize)
    others = ModuleType("vksched_native.cpu_kernels")
    others.__file__ = f"{package_code.PACKAGE}_native{os.sep}cpu_kernels.so"
    before = loaded_code()
    monkeypatch.setitem(sys.modules, others.__name__, others)
    assert before is not None and loaded_code() == before


def test_code_that_was_written_since_it_was_loaded_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "part.py"
    file.write_text("")
    os.utime(file, ns=(1, 1))
    part = ModuleType("vksched.part")
    part.__file__ = str(file)
    monkeypatch.setitem(sys.modules, part.__name__, part)
    monkeypatch.setattr(package_code, "PACKAGE", tmp_path)
    assert loaded_code() is None, "it has an old time, and came to be now"
    assert not is_code([("part.py", 0, 1)]), "this process may have loaded another one"
    monkeypatch.setattr(package_code, "LOADED_NS", file.stat().st_ctime_ns + 1)
    assert loaded_code() == [("part.py", 0, 1)] and is_code([("part.py", 0, 1)])
    file.unlink()
    assert loaded_code() is None


def cut(text: str) -> str:
    return text[: len(text) // 2]


def changed(text: str) -> str:
    data = json.loads(text)
    data["measured"]["layers"][0]["cache_bytes"] += 1
    return json.dumps(data)


def of_another_format(text: str) -> str:
    return json.dumps({**json.loads(text), "format": 0})


@pytest.mark.parametrize(
    "damage",
    [cut, changed, of_another_format, lambda _: "", lambda _: "[]", lambda _: '{"format": 1}'],
)
def test_file_that_is_damaged_is_written_anew(
    damage: Callable[[str], str], model: LanguageModel, folder: Path
) -> None:
    first = asked(model)
    (path,) = folder.glob("*.json")
    path.write_text(damage(path.read_text()))
    assert asked(model) == first
    assert asked(model, measures=False) == first


def forged(text: str, change: Callable[[Any], object]) -> str:
    """Return a file with the digest of what it has been made."""
    data = json.loads(text)
    change(data["measured"])
    return json.dumps({**data, "digest": layer_cost_cache._digest(data["measured"])})


def first(document: Any) -> Any:
    return document["layers"][0]


FORGED: dict[str, Callable[[Any], object]] = {
    "words": lambda document: first(document).update(cache_bytes="many"),
    "bytes below none": lambda document: first(document)["weights"].update(w=-(1 << 40)),
    "no time at all": lambda document: first(document).update(write_s=[math.nan] * 3),
    "times of other devices": lambda document: first(document).update(read_s=[1.0]),
    "endless times": lambda document: document["range_s"][0].__setitem__(0, math.inf),
    "no layers": lambda document: document.update(layers=[]),
    "more than layers have": lambda document: first(document).update(own=1),
    "no experts": lambda document: first(document).update(experts={"size_bytes": 1}),
    "tokens of a part": lambda document: document.update(tokens="8"),
}


@pytest.mark.parametrize("name", FORGED)
def test_files_that_were_built_to_mislead_are_set_aside(
    name: str, model: LanguageModel, folder: Path
) -> None:
    right = asked(model)
    (path,) = folder.glob("*.json")
    path.write_text(forged(path.read_text(), FORGED[name]))
    with pytest.warns(VkschedWarning, match="is set aside as .damaged"):
        assert asked(model) == right
    assert path.with_suffix(".damaged").exists()
    assert asked(model, measures=False) == right


def test_a_file_of_another_question_is_set_aside(model: LanguageModel, folder: Path) -> None:
    asked(model, Topology((*cards(40), CPU)))
    (other,) = folder.glob("*.json")
    text = other.read_text()
    other.unlink()
    right = asked(model)
    (path,) = folder.glob("*.json")
    path.write_text(text)
    with pytest.warns(VkschedWarning, match="it has another key"):
        assert asked(model) == right


def test_bytes_that_are_no_text(model: LanguageModel, folder: Path) -> None:
    first = asked(model)
    (path,) = folder.glob("*.json")
    path.write_bytes(b"\xff\xfe\x00")
    assert asked(model) == first


def test_folder_that_cannot_be_written(model: LanguageModel, folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("a file, where the folder should be")
    assert asked(model) == asked(model)


def test_no_folder_at_all(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_cost_cache, "folder_of", lambda name: None)
    assert asked(model) == asked(model)


def test_small_models_are_not_retained(
    model: LanguageModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_cost_cache, "MIN_LAYERS", 4)
    assert asked(model) == asked(model)
    assert not folder.exists()


def test_several_at_once(model: LanguageModel, folder: Path) -> None:
    measured = place_layers._measured(model, model.cache(64), SIZES, TOPOLOGY)
    found: list[LayerCosts] = []

    def start() -> None:
        about = model, model.cache(64), SIZES, TOPOLOGY, ()
        found.append(cached_or_measured(*about, lambda: measured))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [measured] * 8
    assert [path.suffix for path in folder.iterdir() if path.suffix != ""] == [".json"]
    assert asked(model, measures=False) == measured


def test_files_are_few(model: LanguageModel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_cost_cache, "MAX_FILES", 3)
    folder.mkdir(parents=True)
    for age in range(5):
        old = folder / f"{age}.json"
        old.write_text("{}")
        os.utime(old, (age, age))
    asked(model)
    names = {path.stem for path in folder.glob("*.json")}
    assert len(names) == 3 and {"4", "3"} < names
    asked(model, measures=False)


def test_layers_lie_alike_on_a_second_start(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with vs.Scheduler(
        [vs.SimulatedDevice(spec, vs.SimulatedClock()) for spec in cards(7, 7)]
    ) as sched:
        first = place_layers.place_layers(sched, model, model.cache(64), SIZES)
        monkeypatch.setattr(place_layers, "measure_layers", None)
        second = place_layers.place_layers(sched, model, model.cache(64), SIZES)
    assert first is not None and second is not None
    assert second.placement == first.placement and second.measured == first.measured
