"""The server of `serve_load.py`: `vksched serve` on a device that is lost on command.

stdin: "lose" --> the next submission of the device fails, and all later ones
       "measure" --> the bytes that are allocated
stdout: the port, once the server listens, and the answers to "measure", a line each
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import warnings
from pathlib import Path

import vksched as vs
from vksched.importers.gguf.model import LanguageModel
from vksched.runtime.device import Device, Reopens
from vksched.serve import device_recovery
from vksched.serve.heap_arenas import limit_arenas
from vksched.serve.http_server import Listener
from vksched.serve.limits import ServerLimits

KEYS = ("load-test-key-one", "load-test-key-two")
NAME = "load"
SIMULATED = "simulated"
CACHE_RAM = 4 << 20
BLOCK_BYTES = 88
"""The mean size of a small object."""


class LossyDevice(vs.FaultInjectionDevice):
    """A device that is lost on command."""

    is_held = False
    """True if lost devices cannot be opened again."""

    def reopen(self) -> vs.FaultInjectionDevice:
        if LossyDevice.is_held or not isinstance(self.device, Reopens):
            raise vs.DeviceError(f"[reopen] {self.name} stays lost (injected)")
        return LossyDevice(self.device.reopen(), None)


def opened(name: str) -> LossyDevice:
    """Return a device with fault injection. name: that of a Vulkan device, or "simulated"."""
    device: str | Device = name
    if name == SIMULATED:
        device = vs.SimulatedDevice(vs.DeviceSpec(SIMULATED, "null"), vs.SimulatedClock())
    return LossyDevice(device, None)


class HeapInfo(ctypes.Structure):
    """`struct mallinfo2` of the C library. hblkhd: the bytes of large allocations."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")
    ] + [(name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")]


def allocated_bytes() -> int:
    """Return the bytes that the interpreter and, with glibc, its libraries have in use: memory that
    they freed and keep does not count.
    """
    gc.collect()
    heap_info = getattr(ctypes.CDLL(None), "mallinfo2", None)
    size = BLOCK_BYTES * sys.getallocatedblocks()
    if heap_info is None:
        return size
    heap_info.restype = HeapInfo
    info = heap_info()
    return size + int(info.uordblks) + int(info.hblkhd)


def obey(sched: vs.Scheduler) -> None:
    """Execute the commands on standard input."""
    for line in sys.stdin:
        command, device = line.strip(), sched.devices[0]
        if command == "lose" and isinstance(device, LossyDevice):
            device.at = 0
        if command == "measure":
            print(allocated_bytes(), flush=True)
        LossyDevice.is_held = command == "hold" or LossyDevice.is_held and command != "release"


def main(model_file: str, device: str, restore_after_s: str, patience_s: str) -> None:
    """Serve a model until SIGTERM."""
    limit_arenas()
    device_recovery.MOST_S = float(restore_after_s)  # each loss is followed by the shortest wait
    body_s = float(patience_s)
    limits = ServerLimits(header_timeout_s=body_s / 3, body_timeout_s=body_s)
    warnings.simplefilter("ignore", vs.VkschedWarning)
    model = vs.load(Path(model_file))
    assert isinstance(model, LanguageModel)
    with Listener("127.0.0.1", 0) as listener, vs.Scheduler([opened(device)]) as sched:
        application = vs.serve.app(
            model,
            sched,
            ctx=512,
            slots=4,
            names=[NAME],
            cache_ram=CACHE_RAM,
            api_keys=KEYS,
            hosts=["127.0.0.1"],
            limits=limits,
            restore_after_s=float(restore_after_s),
            prepare=True,
        )
        threading.Thread(target=obey, args=(sched,), daemon=True).start()
        print(listener.port, flush=True)
        listener.run(application, limits)


if __name__ == "__main__":
    main(*sys.argv[1:])
