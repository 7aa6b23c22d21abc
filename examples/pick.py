"""Which devices the short examples run on: hardware GPUs, else software ones, else numpy."""

from __future__ import annotations

import vksched as vs


def pick_devices(count: int) -> list[str]:
    """Returns `count` devices; one is opened several times where there are fewer."""
    found = [info for info in vs.devices() if info.name != "cpu" and info.usable]
    chosen = [i.name for i in found if i.default] or [i.name for i in found if i.type == "cpu"]
    return [chosen[i % len(chosen)] for i in range(count)] if chosen else ["cpu"]
