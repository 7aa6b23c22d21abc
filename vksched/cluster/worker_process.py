"""Node: the process that serves the devices of a computer to drivers elsewhere.

    vksched worker --> ClusterWorker: devices opened, described as the tuner and calibration know
    them
                       '--> Server --sessions--> PlanRunner: parts of plans on these devices

Examples: tests/cluster/test_node.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ..common.errors import VkschedError
from ..distributed.protocols import Driver, TensorTransport
from ..distributed.wire.credentials import Credentials
from ..distributed.wire.handshake import NAME
from ..distributed.wire.peer_list import PeerList
from ..distributed.wire.stats_codec import RemoteDeviceInfo
from ..distributed.wire.tls import Security, place_of, place_text
from ..distributed.worker.local_weights import ModelFolders
from ..distributed.worker.server import Server
from ..distributed.worker.session import WorkerContext
from ..distributed.worker.weight_cache import MAX_BYTES, WeightCache
from ..distributed.worker.worker import PlanRunner
from ..engine.device_set import DeviceSet, Wanted
from ..plan.multi_host.host_plan_codec import HostPlanCodec
from ..storage.disk_cache import folder_of
from ..topology.host_names import CPU
from ..trace import Trace
from ..tuning.autotuner import Tuner, mode_of
from ..tuning.calibrator import Calibrator
from ..tuning.cost_cache import CostStore
from ..tuning.variant_cache import Store

TIMEOUT_S = 300.0


class ClusterWorker:
    """Opens devices and serves them until it is closed.

    name: as plans have it before the slash. listen: HOST:PORT; port 0 stands for a free one.
    devices: as a Scheduler takes them. timeout_s: how long a run may wait for one submission.
    cache_bytes: what weights of drivers may take on disk. models: folders whose files drivers may
    have read as weights. onnx_ops: drivers may have nodes of ONNX files computed here that no op of
    vksched expresses. The onnx package computes them, which cannot be ended, and may take any time
    and memory. peers: the only addresses that it connects to for drivers, as `PeerList` takes them;
    None: all.

    Raises:
        VkschedError: a device, the name or the address cannot be had.
    """

    def __init__(
        self,
        name: str,
        listen: str,
        credentials: Credentials,
        security: str = "tls",
        devices: Wanted | None = None,
        timeout_s: float = TIMEOUT_S,
        cache_bytes: int = MAX_BYTES,
        cache_folder: Path | None = None,
        models: Sequence[Path] = (),
        onnx_ops: bool = False,
        peers: Sequence[str] | None = None,
    ) -> None:
        if not NAME.fullmatch(name):
            raise VkschedError(
                f"[worker] expected a name of letters, digits, dots and dashes, got {name!r}; try "
                "--name node1"
            )
        address, trace, mode = place_of(listen), Trace(), mode_of("auto")
        allowed = None if peers is None else PeerList(peers)
        self.name, self._onnx_ops = name, onnx_ops
        self._tuner, self._calibrator = Tuner(mode, Store()), Calibrator(mode, CostStore())
        self._opened = DeviceSet()
        try:
            self._opened.open(devices, robust=True)  # several drivers have memory there
            here = WorkerContext(
                name,
                tuple(self._opened.devices),
                self._device_infos,
                Security(credentials, security),
                HostPlanCodec(onnx_ops),
                WeightCache(cache_folder or folder_of("weights"), cache_bytes),
                ModelFolders(models),
                trace.clock,
                partial(self._serve, trace, timeout_s),
                allowed,
            )
            self._server = Server(here, address)
        except BaseException:
            self._opened.close()
            raise

    @property
    def address(self) -> str:
        """Where drivers and other workers reach it, as HOST:PORT."""
        return place_text(self._server.address)

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of its devices."""
        return tuple(device.name for device in self._opened.devices)

    @property
    def drivers(self) -> int:
        """How many drivers have something here."""
        return self._server.drivers

    def wait_until_free(self) -> None:
        """Wait until no driver has anything here."""
        self._server.wait_until_free()

    def close(self) -> None:
        """End all connections and closes the devices."""
        self._server.close()
        self._opened.close()

    def _serve(
        self, trace: Trace, timeout_s: float, transport: TensorTransport, driver: Driver
    ) -> PlanRunner:
        return PlanRunner(self._opened.devices, transport, driver, trace, timeout_s)

    def _device_infos(self) -> Iterator[RemoteDeviceInfo]:
        """Yield what drivers may know of each device now."""
        links = {a: link for a, b, link in self._calibrator.links(self._opened.devices) if b == CPU}
        for device in self._opened.devices:
            spec = self._calibrator.costed(self._tuner.tuned(device.spec))
            spec = replace(spec, onnx_ops=self._onnx_ops)
            yield RemoteDeviceInfo(spec, links.get(device.name, device.link))
