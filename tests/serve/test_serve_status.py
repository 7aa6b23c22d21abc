"""/v1/models, /health, /metrics, /slots, /devices, and the page's headers."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from prometheus_client.parser import text_string_to_metric_families
from served import NAME, Client, Served, chat, error_of, running, tiny_model, wait_until
from test_executor import null_devices

import vksched as vs
from vksched.importers.gguf.model import LanguageModel
from vksched.serve import device_recovery
from vksched.serve.device_recovery import DeviceRecovery


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


def test_a_model_is_found_by_its_name(model: LanguageModel) -> None:
    served = Served(model, "hi")
    served.service.names = ("org/tiny:Q4_0", "tiny")
    with served as client:
        listed = client.get("/v1/models").json()["data"]
        assert [client.get(f"/v1/models/{each['id']}").json() for each in listed] == listed
        assert client.get("/v1/models/org%2Ftiny:Q4_0").json() == listed[0]
        missing = client.get("/v1/models/org/other")
        assert missing.status_code == 404 and error_of(missing)["code"] == "model_not_found"


def test_models_and_health(model: LanguageModel) -> None:
    with Served(model, "hi") as client:
        listed = client.get("/v1/models").json()
        assert listed["object"] == "list"
        assert [each["id"] for each in listed["data"]] == [NAME]
        assert listed["data"][0]["max_model_len"] == 400
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/devices").json() == []


def test_paths_without_a_version_prefix(model: LanguageModel) -> None:
    with Served(model, "hi") as client:
        assert client.get("/models").json() == client.get("/v1/models").json()
        answers = [client.post(f"{at}/chat/completions", json=chat()).json() for at in ("", "/v1")]
        assert answers[0]["choices"] == answers[1]["choices"]
        assert answers[0]["choices"][0]["message"]["content"] == "hi"
        assert client.post("/embeddings", json={"input": "a"}).status_code == 400
        keyed = Served(model, "hi", api_keys=["a-key-of-sixteen"])
    with keyed as client:
        assert client.get("/models").status_code == 401


def test_health_is_degraded_while_a_device_is_failed(model: LanguageModel) -> None:
    device = vs.FaultInjectionDevice(null_devices(1)[1][0], at=None, times=1)
    with warnings.catch_warnings(), vs.Scheduler([device]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        with running(vs.serve.app(model, sched, ctx=128, slots=2)) as port:
            client = Client(port)
            assert client.post("/v1/chat/completions", json=chat()).status_code == 200
            assert client.get("/health").json() == {"status": "ok"}
            device.at = 0
            answer = client.post("/v1/chat/completions", json=chat()).json()
            assert answer["usage"]["completion_tokens"]
            degraded = {"status": "degraded", "failed_devices": [device.name]}
            assert client.get("/health").json() == degraded


def test_a_failed_device_is_used_again(model: LanguageModel) -> None:
    device = vs.FaultInjectionDevice(null_devices(1)[1][0], at=None)
    with warnings.catch_warnings(), vs.Scheduler([device]) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        application = vs.serve.app(model, sched, ctx=128, slots=2, restore_after_s=0.1)
        with running(application) as port:
            client = Client(port)

            def answer(text: str) -> list[Any]:
                body = chat(text, logprobs=True, top_logprobs=2)
                response = client.post("/v1/chat/completions", json=body)
                return response.json()["choices"][0]["logprobs"]["content"]

            first = answer("hi")
            for _ in range(2):
                lost = sched.devices[0]
                assert isinstance(lost, vs.FaultInjectionDevice)
                lost.at = 0
                assert [each["token"] for each in answer("hi")] == [each["token"] for each in first]
                assert lost.failed
                wait_until(lambda: client.get("/health").json() == {"status": "ok"})
                assert answer("hi") == first
                back = sched.devices[0]
                assert isinstance(back, vs.FaultInjectionDevice)
                assert back is not lost and back.calls["submit"]  # it computes again


class FlakyScheduler:
    """A scheduler with a device that is restored when `works` is set."""

    def __init__(self) -> None:
        self.failed_devices = {"gpu:0": "lost", "node1/gpu:0": "lost"}
        self.works = False
        self.attempts: list[float] = []
        self.now_s = 0.0

    def restore_device(self, name: str) -> None:
        self.attempts.append(self.now_s)
        if not self.works:
            raise vs.DeviceError("[open] it is not there")
        del self.failed_devices[name]


def test_a_device_is_restored_less_and_less_often() -> None:
    scheduler = FlakyScheduler()
    recovery = DeviceRecovery(scheduler, 10, 300)

    def follow(seconds: int) -> None:
        for _ in range(seconds):
            recovery.step(scheduler.now_s)
            scheduler.now_s += 1

    follow(200)
    assert scheduler.attempts == [10, 31, 72, 153]
    scheduler.works = True
    follow(200)
    assert scheduler.attempts[4:] == [314]
    assert set(scheduler.failed_devices) == {"node1/gpu:0"}  # hosts return by themselves
    for failed_s, restored_s in ((450, 770), (1000, 1600), (2300, 2310), (2325, 2345)):
        follow(int(failed_s - scheduler.now_s))
        scheduler.failed_devices["gpu:0"] = "lost"
        follow(int(restored_s - failed_s) + 1)
        assert scheduler.attempts[-1] == restored_s


def restored_at(fails_after_s: int, reason: str, seconds: int) -> list[float]:
    """Return the times when a device is restored that fails some time after each restoration."""
    scheduler = FlakyScheduler()
    scheduler.works, scheduler.failed_devices = True, {"gpu:0": reason}
    recovery = DeviceRecovery(scheduler, 10, 300)
    for _ in range(seconds):
        recovery.step(scheduler.now_s)
        last_s = scheduler.attempts[-1] if scheduler.attempts else 0
        if not scheduler.failed_devices and scheduler.now_s - last_s >= fails_after_s:
            scheduler.failed_devices["gpu:0"] = reason
        scheduler.now_s += 1
    return scheduler.attempts


def test_a_device_that_fails_soon_after_each_restoration() -> None:
    times = restored_at(11, "DeviceLost: gone", 3600)
    waits = np.diff([-11, *times]) - 11
    np.testing.assert_allclose(waits, [10, 20, 40, 80, 160, 320, 600, 600, 600, 600], atol=2)


def test_a_device_that_hangs_stalls_a_small_share_of_the_time() -> None:
    """Each restoration costs the 300 s of the scheduler's timeout."""
    times = restored_at(300, "DeviceTimeout: it does not end", 30000)
    waits = np.diff([-300, *times]) - 300
    np.testing.assert_allclose(waits[:5], [300, 600, 1200, 2400, 3000], atol=2)
    assert 300 * len(times) < 0.12 * 30000


def test_any_error_of_a_device_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, again = FlakyScheduler(), threading.Event()
    del scheduler.failed_devices["node1/gpu:0"]

    def restore(name: str) -> None:
        scheduler.attempts.append(0)
        if len(scheduler.attempts) == 2:
            again.set()
        raise MemoryError("of a driver")

    monkeypatch.setattr(scheduler, "restore_device", restore)
    monkeypatch.setattr(device_recovery, "POLL_S", 0.01)
    recovery = DeviceRecovery(scheduler, 0.01, 300)
    recovery.start()
    assert again.wait(30)
    recovery.close()
    assert not recovery._thread.is_alive()


def test_health_is_ok_after_an_overflow_emptied_the_cache(model: LanguageModel) -> None:
    """A lost cache is no failed device: answers of all requests go on."""
    served = Served(model, "hello")
    served.steps.lost_at = {2}
    with served as client:
        answer = client.post("/v1/chat/completions", json=chat()).json()
        assert answer["choices"][0]["message"]["content"]
        assert served.engine.counters().cache_losses == 1
        assert client.get("/health").json() == {"status": "ok"}


def test_metrics_have_the_names_of_other_servers(model: LanguageModel) -> None:
    with Served(model, "hello") as client:
        for _ in range(3):
            usage = client.post("/v1/chat/completions", json=chat()).json()["usage"]
        response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *(v for k, v in sorted(sample.labels.items()) if k != "le")): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }
    written, read = 3 * usage["completion_tokens"], 3 * usage["prompt_tokens"]
    assert samples["vllm:generation_tokens_total", NAME] == written
    assert samples["vllm:prompt_tokens_total", NAME] == read
    assert samples["vllm:prefix_cache_hits_total", NAME] > 0
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert samples[f"vllm:spec_decode_num_{name}_total", NAME] == 0
    assert samples["vllm:num_requests_running", NAME] == 0
    assert samples["vllm:request_success_total", "stop", NAME] == 3
    assert samples["vllm:time_to_first_token_seconds_count", NAME] == 3
    assert samples["vllm:e2e_request_latency_seconds_count", NAME] == 3
    assert samples["vllm:inter_token_latency_seconds_count", NAME] == written - 3
    assert samples["llamacpp:tokens_predicted_total",] == written
    assert samples["llamacpp:n_busy_slots_per_decode",] == 1


def test_slots_show_no_text(model: LanguageModel) -> None:
    with Served(model, "hello") as client:
        client.post("/v1/chat/completions", json=chat("secret"))
        slots = client.get("/slots")
    assert [slot["id"] for slot in slots.json()] == [0, 1, 2, 3]
    assert sum(slot["cached_tokens"] > 0 for slot in slots.json()) == 1
    assert not any(slot["is_processing"] for slot in slots.json())
    assert "secret" not in slots.text and "hello" not in slots.text


def test_the_page_may_load_nothing(model: LanguageModel) -> None:
    with Served(model, "hi") as client:
        page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text and "https://" not in page.text
