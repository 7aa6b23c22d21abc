"""Placement groups: reservations of Ray resources for workers.

    host --reserved-> placement group of one bundle on it --its bundle--> actor of the worker
    stop, or the host is lost --release--> the group and its actor are removed

Each host has its own group: hosts join and leave one at a time, and Ray would move a lost bundle of
a shared group to another host. STRICT_SPREAD and the host's node label pin the group to the host.

Examples: tests/cluster/test_on_ray.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..common.errors import DeviceError

PREFIX = "vksched "
"""Prefix of the groups' names; the Ray id of the host follows."""
RESERVE_S = 10.0
"""Maximum wait for a host's resources, in seconds."""
LABEL = "ray.io/node-id"

Computer = Mapping[str, Any]
"""An entry of `ray.nodes()`."""


@contextmanager
def reserved(computers: Sequence[Computer]) -> Iterator[dict[str, Any]]:
    """Yield the placement group of each host by its id; create missing groups.

    If the body raises, the new groups are removed with the actors in them.

    Raises
    ------
    DeviceError
        A host has not enough free resources.
    """
    there = _groups()
    found = {c["NodeID"]: there[c["NodeID"]] for c in computers if c["NodeID"] in there}
    created: dict[str, Any] = {}
    try:
        for computer in computers:
            if computer["NodeID"] not in found:
                created[computer["NodeID"]] = _group(computer)
        _wait_for_room(computers, created)
        yield {**found, **created}
    except BaseException:
        _remove(created.values())
        raise


def _group(computer: Computer) -> Any:
    from ray.util.placement_group import placement_group

    return placement_group(
        [_needs(computer)],
        strategy="STRICT_SPREAD",
        name=PREFIX + computer["NodeID"],
        lifetime="detached",
        bundle_label_selector=[{LABEL: computer["NodeID"]}],
    )


def _wait_for_room(computers: Sequence[Computer], groups: Mapping[str, Any]) -> None:
    end_s = time.monotonic() + RESERVE_S
    full = [
        id_ for id_, group in groups.items() if not group.wait(max(0.1, end_s - time.monotonic()))
    ]
    if full:
        wanted = [
            f"{_text(_needs(computer))} on {computer['NodeManagerAddress']}"
            for computer in computers
            if computer["NodeID"] in full
        ]
        raise DeviceError(
            f"[cluster] expected {', '.join(wanted)} to be free within {RESERVE_S:g} s, but other "
            "work on the Ray cluster has it; try `ray status`, and end that work"
        )


def release(computers: Sequence[Computer] = ()) -> None:
    """Remove the groups of all hosts except `computers`; their actors end."""
    excluded = {computer["NodeID"] for computer in computers}
    _remove(group for id_, group in _groups().items() if id_ not in excluded)


def _needs(computer: Computer) -> dict[str, float]:
    """Return the resources of a worker: one CPU for its process and all GPUs that Ray counts."""
    has = computer["Resources"]
    needs = {"CPU": min(1.0, has.get("CPU", 0.0)), "GPU": has.get("GPU", 0.0)}
    return {name: count for name, count in needs.items() if count} or {
        # a head node without CPUs; a bundle must not be empty
        f"node:{computer['NodeManagerAddress']}": 0.001
    }


def _text(needs: Mapping[str, float]) -> str:
    return " and ".join(f"{count:g} {name}" for name, count in needs.items())


def _groups() -> dict[str, Any]:
    """Return the placement groups of workers by the id of their host."""
    from ray._raylet import PlacementGroupID
    from ray.util import placement_group_table
    from ray.util.placement_group import PlacementGroup

    return {
        group["name"].removeprefix(PREFIX): PlacementGroup(
            PlacementGroupID(bytes.fromhex(id_)), list(group["bundles"].values())
        )
        for id_, group in placement_group_table().items()
        if group["name"].startswith(PREFIX) and group["state"] != "REMOVED"
    }


def _remove(groups: Any) -> None:
    from ray.exceptions import RayError
    from ray.util import remove_placement_group

    for group in groups:
        with suppress(RayError):  # it was removed already
            remove_placement_group(group)
