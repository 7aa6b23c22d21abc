"""Lists the devices with their memory, says which are used by default and why not, and opens the
largest that can be used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import vksched as vs

GIB = 1 << 30


def largest(found: Sequence[vs.DeviceInfo]) -> vs.DeviceInfo:
    """Return the GPU with the most free memory; where there is none the CPU."""
    gpus = [info for info in found if info.name != "cpu" and info.usable and info.type != "cpu"]
    return max(gpus, key=lambda info: info.memory_free_bytes, default=found[-1])


def main(devices: Sequence[str] | None = None) -> tuple[vs.DeviceInfo, tuple[str, ...]]:
    """Return the largest device, or the first of those given, and the names that were opened."""
    found = vs.devices()  # every Vulkan device in loader order, then the CPU; nothing is opened
    for info in found:
        free, total = info.memory_free_bytes / GIB, info.memory_total_bytes / GIB
        print(f"{info.name}: {info.label} ({info.type}), driver {info.driver}")
        print(
            f"    {free:.1f} of {total:.1f} GiB free, largest buffer "
            f"{info.max_buffer_bytes >> 20} MiB"
        )
        if info.uuid:
            print(f"    vulkan:{info.uuid[:8]} names it even where the loader's order changes")
        print(f"    used by default: {'yes' if info.default else f'no, {info.why_not}'}")

    chosen = next((i for i in found if devices and i.name == devices[0]), largest(found))
    with vs.Scheduler([chosen]) as sched:  # an entry of the list is as good as a name
        names = tuple(device.name for device in sched.devices)
        run = sched.compile(vs.input("x", (3,)) * 2.0)
        print(f"opened {', '.join(names)}: 2 * 3 = {np.asarray(run(x=[1, 2, 3]))[-1]:g}")
    return chosen, names


if __name__ == "__main__":
    main()
