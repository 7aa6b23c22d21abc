"""Worker process: it serves the devices of its host to drivers on other hosts.

    vksched worker --> ClusterWorker: opens the devices, with tuned and calibrated specs
                       '--> Server --sessions--> PlanRunner: host plans on these devices

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
from ..storage.cache_folder import folder_of
from ..topology.host_names import CPU
from ..trace import Trace
from ..tuning.autotuner import Tuner
from ..tuning.calibrator import Calibrator
from ..tuning.measurement import mode_of

TIMEOUT_S = 300.0


class ClusterWorker:
    """Open devices and serve them until `close`.

    Parameters
    ----------
    name
        Name of the host in plans, before the slash.
    listen
        HOST:PORT; port 0 selects a free port.
    devices
        Devices, as for a Scheduler.
    timeout_s
        Maximum duration of one submission of a run.
    cache_bytes
        Disk quota of the weights that drivers send.
    models
        Folders whose files may be read as weights for drivers.
    onnx_ops
        Allow drivers to run nodes of ONNX files that vksched cannot express. The onnx package
        computes them; they cannot be interrupted and may take any time and memory.
    peers
        The only addresses that it connects to for drivers, as for `PeerList`; None allows all.

    Raises
    ------
    VkschedError
        A device cannot be opened, or the name or the address is invalid or in use.
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
        self._tuner, self._calibrator = Tuner(mode), Calibrator(mode)
        self._opened = DeviceSet()
        try:
            self._opened.open(devices, robust=True)  # several drivers allocate memory there
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
        """The address for drivers and other workers, as HOST:PORT."""
        return place_text(self._server.address)

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of its devices."""
        return tuple(device.name for device in self._opened.devices)

    @property
    def drivers(self) -> int:
        """The number of drivers with a session here."""
        return self._server.drivers

    def wait_until_free(self) -> None:
        """Wait until no driver has a session here."""
        self._server.wait_until_free()

    def close(self) -> None:
        """Close all connections and devices."""
        self._server.close()
        self._opened.close()

    def _serve(
        self, trace: Trace, timeout_s: float, transport: TensorTransport, driver: Driver
    ) -> PlanRunner:
        return PlanRunner(self._opened.devices, transport, driver, trace, timeout_s)

    def _device_infos(self) -> Iterator[RemoteDeviceInfo]:
        """Yield the current description of each device for drivers."""
        devices = self._opened.devices
        measured = self._calibrator.links(devices, {each.name: each.spec for each in devices})
        links = {a: link for a, b, link in measured if b == CPU}
        for device in devices:
            spec = self._calibrator.costed(self._tuner.tuned(device.spec))
            spec = replace(spec, onnx_ops=self._onnx_ops)
            yield RemoteDeviceInfo(spec, links.get(device.name, device.link))
