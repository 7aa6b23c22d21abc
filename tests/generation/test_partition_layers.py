"""Layers divided over devices: never worse than any other way, by trying them all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from vksched.generation.layer_placement.partition_layers import (
    LATER_SHARE,
    PARTS,
    WRITTEN,
    DeviceBudget,
    Experts,
    Layer,
    LayerPartition,
    partition_layers,
)

INF = float("inf")
HOST = DeviceBudget(INF)
NUMBERS = itertools.count(100)


def layer(
    write_s: tuple[float, ...], size: int = 10, read_s: tuple[float, ...] = (), **more: object
) -> Layer:
    cached = {"weights": {f"{next(NUMBERS)}": size}, "cache_bytes": 1, "work_bytes": 0, **more}
    return Layer("blk", write_s=write_s, read_s=read_s or write_s, **cached)  # type: ignore[arg-type]


def where(partition: LayerPartition) -> str:
    """The device of each layer, as a text: "001"."""
    return "".join(map(str, partition.devices))


def seconds_of(
    layers: Sequence[Layer],
    places: Sequence[DeviceBudget],
    devices: Sequence[int],
    in_flight: int = 1,
) -> float | None:
    """Return the time of one partition, written out; None if it does not fit."""
    host, total, loads = len(places) - 1, 0.0, dict.fromkeys(devices, 0.0)
    busy = dict.fromkeys(devices, 0.0)
    runs = [(d, list(run)) for d, run in itertools.groupby(range(len(layers)), devices.__getitem__)]
    gpus = [d for d, _ in runs if d != host]
    if len(set(gpus)) < len(gpus):
        return None
    for device, run in runs:
        mine = [layers[i] for i in run]
        held = {key: size for each in mine for key, size in each.weights.items()}
        need = sum(held.values()) + sum(each.cache_bytes + each.work_bytes for each in mine)
        place, write_s, read_s = places[device], places[device].write_s, places[device].read_s
        for each in reversed(mine):
            write_s, read_s = write_s + each.write_s[device], read_s + each.read_s[device]
            if need > place.room_bytes and each.experts:
                need -= each.experts.size_bytes
                write_s += each.experts.write_s[device]
                read_s += each.experts.read_s[device]
        if need > place.room_bytes:
            return None
        total += WRITTEN * write_s + read_s
        loads[device] += read_s
        is_later = run[0] > 0
        busy[device] += (WRITTEN * write_s + read_s) * (1 + LATER_SHARE * is_later)
    if in_flight > 1:
        return max(total, in_flight * max(busy.values()))
    return total + (PARTS - 1) * max(loads.values())


def ways(
    layers: Sequence[Layer], places: Sequence[DeviceBudget], in_flight: int = 1
) -> Iterator[tuple[set[int], float]]:
    for devices in itertools.product(range(len(places)), repeat=len(layers)):
        seconds = seconds_of(layers, places, devices, in_flight)
        if seconds is not None and seconds < INF:
            yield set(devices), seconds


def drawn(seed: int, experts: bool) -> tuple[list[Layer], list[DeviceBudget]]:
    rng = np.random.default_rng(seed)
    count, gpus = int(rng.integers(2, 6)), int(rng.integers(1, 4))
    speeds = rng.uniform(0.2, 2, gpus + 1)
    shared = {"table": int(rng.integers(1, 20))}
    layers = []
    for i in range(count):
        size = int(rng.integers(1, 20))
        write, read = (tuple(speeds * size * rng.uniform(0.5, 2, gpus + 1)) for _ in range(2))
        able = [rng.random() > 0.1 or d == gpus for d in range(gpus + 1)]
        write = tuple(s if can else INF for s, can in zip(write, able, strict=True))
        apart = Experts(size // 2, tuple(speeds), tuple(2 * speeds)) if experts else None
        weights = {str(i): size} | (shared if i in (0, count - 1) else {})
        layers.append(Layer(f"{i}", weights, int(rng.integers(0, 5)), 1, write, read, apart))
    rooms = rng.integers(5, 60, gpus)
    places = [DeviceBudget(float(r), *map(float, rng.uniform(0, 3, 2))) for r in rooms]
    return layers, [*places, DeviceBudget(INF, 0.5, 0.5)]


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_no_way_takes_less(seed: int, experts: bool) -> None:
    layers, places = drawn(seed, experts)
    host = len(places) - 1
    found = partition_layers(layers, places, competes=True, margin=0.0)
    every = list(ways(layers, places))
    assert found.seconds == pytest.approx(min(seconds for _, seconds in every))
    assert found.seconds == pytest.approx(seconds_of(layers, places, found.devices))
    only = partition_layers(layers, places, competes=False, margin=0.0)
    best = min((seconds for used, seconds in every if host not in used), default=None)
    if best is not None:
        assert only.seconds == pytest.approx(best) and host not in only.devices
    else:
        assert only == found


@pytest.mark.parametrize("in_flight", [2, 3])
@pytest.mark.parametrize("seed", range(30))
def test_no_way_takes_less_for_several_groups(seed: int, in_flight: int) -> None:
    layers, places = drawn(seed, experts=False)
    host = len(places) - 1
    found = partition_layers(layers, places, False, 0.0, in_flight)
    assert found.seconds == pytest.approx(seconds_of(layers, places, found.devices, in_flight))
    every = ways(layers, places, in_flight)
    best = min((seconds for used, seconds in every if host not in used), default=None)
    if best is not None:
        assert found.seconds == pytest.approx(best) and host not in found.devices


def test_two_groups_divide_the_layers_of_equal_devices() -> None:
    """One sequence would gain nothing, and stays on one device."""
    layers = [layer((1.0, 1.0, INF), read_s=(0.0, 0.0, INF))] * 4
    places = [DeviceBudget(INF), DeviceBudget(INF), HOST]
    assert where(partition_layers(layers, places, False, 0.05)) == "0000"
    both = partition_layers(layers, places, False, 0.05, in_flight=2)
    assert where(both) in ("0011", "1100")
    assert both.seconds == pytest.approx(4 * WRITTEN * (1 + LATER_SHARE))


def test_a_second_card_is_used_where_memory_or_time_asks_for_it() -> None:
    layers = [layer((1.0, 1.0, 9.0), 10)] * 4
    layers = [replace(each, weights={str(i): 10}) for i, each in enumerate(layers)]
    roomy, transfer = DeviceBudget(100), 0.1

    def partition(first: DeviceBudget, second: DeviceBudget, margin: float = 0.05) -> str:
        return where(partition_layers(layers, [first, second, HOST], False, margin))

    assert partition(roomy, replace(roomy, write_s=transfer)) == "0000"
    assert partition(DeviceBudget(25), roomy) == "1111"
    assert partition(DeviceBudget(25), DeviceBudget(25)) == "0011"
    assert partition(DeviceBudget(15), DeviceBudget(25)) in (
        "0112",
        "1102",
        "2011",
        "2110",
        "0211",
        "1120",
    )
    slow_prompt = [replace(each, read_s=(64.0, 64.0, 900.0)) for each in layers]
    both = partition_layers(slow_prompt, [roomy, roomy, HOST], False, 0.05)
    assert where(both) in ("0011", "1100"), "a prompt takes half as long on two"


def test_a_card_for_few_layers_is_used_where_the_host_has_to_help() -> None:
    layers = [replace(layer((1.0, 1.0, 1.4)), weights={str(i): 10}) for i in range(8)]

    def partition(first: DeviceBudget, second: DeviceBudget, competes: bool = False) -> str:
        return where(partition_layers(layers, [first, second, HOST], competes, 0.25))

    full = DeviceBudget(0)
    assert partition(full, full) == "2" * 8
    assert partition(DeviceBudget(15), full).count("0") == 1, "a margin is for one more card"
    assert partition(DeviceBudget(15), full, competes=True) == "2" * 8
    assert "1" not in partition(DeviceBudget(25), DeviceBudget(15)), (
        "one more card brings less than the margin"
    )


def test_a_device_that_cannot_run_a_layer_keeps_no_other_from_it() -> None:
    able, never = layer((1.0, 2.0, 9.0)), layer((INF, INF, 9.0))
    places = [DeviceBudget(100), DeviceBudget(100), HOST]
    assert where(partition_layers([able] * 3, places, False, 0.0)) == "000"
    assert where(partition_layers([layer((INF, 2.0, 9.0))] * 3, places, False, 0.0)) == "111"
    assert where(partition_layers([able, never, able], places, False, 0.0)) in ("020", "021", "120")
    assert where(partition_layers([never] * 3, places, False, 0.0)) == "222"


def test_experts_go_to_the_host_first_and_those_of_the_last_layers() -> None:
    apart = Experts(8, (0.5, 0.0), (0.5, 0.0))
    layers = [layer((1.0, 4.0), experts=apart, weights={str(i): 10}) for i in range(4)]

    def partition(room: int) -> tuple[str, int]:
        found = partition_layers(layers, [DeviceBudget(room), HOST], False, 0.0)
        return where(found), found.layer_ranges[0].experts

    assert partition(44) == ("0000", 4)
    assert partition(36) == ("0000", 3)
    assert partition(27) == ("0000", 1)
    assert partition(12) == ("0000", 0)
    assert partition(11)[0].count("1") == 1
