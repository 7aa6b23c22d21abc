"""Figures for services: scraped from Prometheus, read from OpenTelemetry, equal to the stats."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.request
import warnings
from typing import Any

import numpy as np
import pytest
from conftest import DEVICE_SETS, vulkan_names
from graphs import SHAPE, A, B, make_topology, source, steps

import vksched as vs
from vksched.monitor.metrics.instruments import MEASURES, OTHER, VALUES, MetricsSink
from vksched.monitor.metrics.opentelemetry_exporter import ATTRIBUTES, NAMES
from vksched.trace import Event

client = pytest.importorskip("prometheus_client")
X = np.ones(SHAPE, np.float32)


def scrape(registry: Any) -> dict[str, float]:
    """Return the samples of a registry by their names with labels, as a server would get them."""
    text = client.generate_latest(registry).decode()
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in rows if "_created" not in name}


@pytest.mark.parametrize("names", DEVICE_SETS.values(), ids=list(DEVICE_SETS))
def test_what_is_scraped_is_what_the_stats_say(names: list[str]) -> None:
    registry = client.CollectorRegistry()
    with vs.Scheduler(names, trace=vs.metrics.prometheus(registry), policy="priority") as sched:
        run = sched.compile(steps(source(), ["a", "b"])[-1])
        seconds, busy = 0.0, 0.0
        for _ in range(5):
            run(x=X)
            assert run.stats is not None
            seconds += run.stats.seconds
            busy += sum(run.stats.device_seconds.values())
        (device,) = run.stats.device_seconds
        found = scrape(registry)
        assert found["vksched_runs_total"] == found["vksched_run_seconds_count"] == 5
        assert found["vksched_run_seconds_sum"] == pytest.approx(seconds)
        assert found[f'vksched_busy_seconds_total{{device="{device}"}}'] == pytest.approx(busy)
        if device != "cpu":
            for way, size in (("in", run.stats.input_bytes), ("out", run.stats.output_bytes)):
                labels = f'{{device="{device}",direction="{way}"}}'
                assert found[f"vksched_copies_total{labels}"] == 5
                assert found[f"vksched_copied_bytes_total{labels}"] == 5 * size
        held = found[f'vksched_memory_bytes{{device="{device}"}}']
        assert held == run.plan.buffers()[device].peak_bytes
    assert scrape(registry)[f'vksched_memory_bytes{{device="{device}"}}'] == 0


@pytest.mark.parametrize("name", vulkan_names())
def test_a_weight_of_two_graphs_counts_until_both_are_closed(name: str) -> None:
    registry, w = client.CollectorRegistry(), vs.weight(np.ones((256, 256), np.float32))
    label = f'vksched_memory_bytes{{device="{name}"}}'
    with vs.Scheduler([name], trace=vs.metrics.prometheus(registry)) as sched:
        first, second = (sched.compile(vs.input("x", (n, 256)) @ w) for n in (4, 8))
        alone = second.plan.buffers()[name].peak_bytes
        assert scrape(registry)[label] > alone
        first.close()
        assert scrape(registry)[label] == alone > w.type.device_bytes
        second.close()
        assert scrape(registry)[label] == 0


def test_a_server_exposes_them() -> None:
    registry = client.CollectorRegistry()
    server, thread = client.start_http_server(0, "127.0.0.1", registry)
    try:
        with vs.Scheduler(["cpu"], trace=vs.metrics.prometheus(registry)) as sched:
            sched.compile(vs.exp(source()))(x=X)
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        assert "\nvksched_runs_total 1.0\n" in text
        assert "\n# TYPE vksched_run_seconds histogram\n" in text
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_bytes_between_devices_are_counted() -> None:
    registry, clock = client.CollectorRegistry(), vs.SimulatedClock()
    devices = [vs.SimulatedDevice(spec, clock) for spec in make_topology(2).devices[:2]]
    trace = vs.Trace(clock, [vs.metrics.prometheus(registry)])
    with vs.Scheduler(devices, trace=trace, policy="priority") as sched:
        run = sched.compile(steps(source(), ["a", "b"])[-1], {"a": A, "b": B})
        run(x=X)
        run(x=X)
    found = scrape(registry)
    assert found["vksched_transfer_bytes_total"] == 2 * X.nbytes
    assert found[f'vksched_copied_bytes_total{{device="{A}",direction="out"}}'] == 2 * X.nbytes
    assert found[f'vksched_copied_bytes_total{{device="{B}",direction="in"}}'] == 2 * X.nbytes


def test_faults_and_failed_runs_are_counted() -> None:
    names = vulkan_names()
    if not names:
        pytest.skip("no Vulkan device here")
    registry = client.CollectorRegistry()
    device = vs.FaultInjectionDevice(names[0], 1)
    trace = vs.metrics.prometheus(registry)
    with vs.Scheduler([device], trace=trace) as sched, warnings.catch_warnings():
        warnings.simplefilter("ignore", vs.VkschedWarning)
        run = sched.compile(steps(source(), ["a", "b"])[-1], {"*": names[0]})
        for _ in range(3):
            run(x=X)
    found = scrape(registry)
    assert found[f'vksched_faults_total{{device="{names[0]}",error="DeviceLost"}}'] == 1
    assert found['vksched_failed_runs_total{error="DeviceLost"}'] == 1
    assert found["vksched_runs_total"] == 3
    assert found["vksched_plans_total"] == 2


def test_schedulers_and_threads_share_a_registry() -> None:
    registry = client.CollectorRegistry()

    def work() -> None:
        with vs.Scheduler(["cpu"], trace=vs.metrics.prometheus(registry)) as sched:
            run = sched.compile(vs.exp(source()))
            for _ in range(20):
                run(x=X)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scrape(registry)["vksched_runs_total"] == 80


def test_a_label_has_a_bounded_number_of_values() -> None:
    registry = client.CollectorRegistry()
    meter = vs.metrics.prometheus(registry)
    for number in range(10 * VALUES):
        fields = {"error": "DeviceLost", "message": "", "during": ""}
        meter(Event("fault", f"vulkan:{number}", 0.0, 0.0, -1, fields))
    found = {k: v for k, v in scrape(registry).items() if k.startswith("vksched_faults_total")}
    assert len(found) == VALUES + 1
    assert found[f'vksched_faults_total{{device="{OTHER}",error="DeviceLost"}}'] == 9 * VALUES


def test_names_follow_the_conventions() -> None:
    registry = client.CollectorRegistry()
    vs.metrics.prometheus(registry)
    names = {metric.name for metric in registry.collect()}
    assert names == {f"vksched_{name}" for name in MEASURES}
    assert all(re.fullmatch(r"[a-z][a-z_]*", name) for name in MEASURES)
    assert NAMES.keys() == MEASURES.keys()
    assert all(re.fullmatch(r"vksched(\.[a-z_]+)+", name) for name in NAMES.values())
    assert len(set(NAMES.values())) == len(NAMES)
    assert {label for m in MEASURES.values() for label in m.labels} == ATTRIBUTES.keys()


def test_a_library_that_fails_breaks_no_run() -> None:
    class Broken:
        def add(self, *args: object) -> None:
            raise RuntimeError("full")

        record = set = add

    with vs.Scheduler(["cpu"], trace=MetricsSink(Broken())) as sched:  # type: ignore[arg-type]
        with pytest.warns(vs.VkschedWarning, match="a sink failed and was removed"):
            run = sched.compile(vs.exp(source()))
            run(x=X)
        run(x=X)


def test_opentelemetry_has_the_same_figures() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    reader = export.InMemoryMetricReader()
    provider = sdk.MeterProvider([reader])
    with vs.Scheduler(["cpu"], trace=vs.metrics.opentelemetry(provider)) as sched:
        run = sched.compile(vs.exp(source()))
        for _ in range(3):
            run(x=X)
        (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
        found = {metric.name: metric for metric in scope.metrics}
        assert scope.scope.name == "vksched"
        assert found["vksched.runs"].data.data_points[0].value == 3
        assert found["vksched.runs"].unit == "{run}"
        (duration,) = found["vksched.run.duration"].data.data_points
        assert duration.count == 3 and found["vksched.run.duration"].unit == "s"
        assert duration.explicit_bounds[0] == 1e-4
        (busy,) = found["vksched.device.busy"].data.data_points
        assert dict(busy.attributes) == {"vksched.device.name": "cpu"}
        (held,) = found["vksched.device.memory.usage"].data.data_points
        assert held.value == run.plan.buffers()["cpu"].peak_bytes
    (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
    (usage,) = [m for m in scope.metrics if m.name == "vksched.device.memory.usage"]
    assert usage.data.data_points[0].value == 0
    provider.shutdown()


@pytest.mark.parametrize(
    ("package", "call"),
    [("prometheus_client", "prometheus"), ("opentelemetry", "opentelemetry")],
)
def test_without_the_library_it_says_what_to_install(package: str, call: str) -> None:
    code = f"import sys; sys.modules['{package}'] = None; sys.modules['{package}.metrics'] = None\n"
    code += f"import vksched as vs\ntry:\n    vs.metrics.{call}()\n"
    code += "except vs.VkschedError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert 'try pip install "vksched[metrics]"' in done.stdout, done.stderr
