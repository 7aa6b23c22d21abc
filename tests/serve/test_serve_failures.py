"""Failures while answers run: errors of steps, and the ends of answers."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("starlette", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from served import Served, chat, error_of, tiny_model

import vksched as vs
from vksched.importers.gguf.model import LanguageModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


DECODE = 4
"""The number of a call that is a decode step."""


def test_an_unexpected_error_of_a_step_is_logged_and_not_sent(
    model: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(number: int) -> None:
        if number >= DECODE:
            raise RuntimeError("/secret/path")

    served = Served(model, "hello", before_call=fail)
    with served as client, caplog.at_level(logging.ERROR, "vksched.serve"):
        response = client.post("/v1/chat/completions", json=chat())
        served.steps.before_call = None
    assert response.status_code == 500
    assert "secret" not in response.text and "RuntimeError" not in response.text
    assert served.steps.log[DECODE][0] == "decode"
    [record] = [each for each in caplog.records if each.name == "vksched.serve"]
    assert record.exc_info and isinstance(record.exc_info[1], Exception)
    cause = record.exc_info[1].__cause__
    assert isinstance(cause, RuntimeError) and cause.__traceback__ is not None


def test_a_failed_device_in_a_decode_step(model: LanguageModel) -> None:
    def fail(number: int) -> None:
        if number >= DECODE:
            raise vs.DeviceError("[simulated] the device failed")

    served = Served(model, "hello", before_call=fail)
    with served as client:
        response = client.post("/v1/chat/completions", json=chat())
        served.steps.before_call = None
    assert served.steps.log[DECODE][0] == "decode"
    assert (response.status_code, error_of(response)["code"]) == (503, "device_error")
    assert int(response.headers["Retry-After"]) >= 1
