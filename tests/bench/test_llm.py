"""The suite of language models: files, what is expected, who reads what; no speed is tested."""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from conftest import vulkan_names
from gguf_models import Tiny, logits_of

import vksched as vs
from vksched.bench import llm_start_time, peak_throughput
from vksched.bench.baselines import llama_cpp_baseline, protocol
from vksched.bench.baselines.workloads import (
    GENERATED,
    LANGUAGE_NMSE,
    Spec,
    most_error,
    text_of,
    tokens_of,
    work_of,
)
from vksched.bench.language import llm_cases
from vksched.bench.language.llm_cases import Cases, expected_logits, language_specs, work_of_model
from vksched.bench.language.llm_runner import LanguageRun, Model
from vksched.bench.language.random_models import TYPES, Sizes, write_model
from vksched.bench.llm_start_time import start_facts
from vksched.bench.report import Report
from vksched.bench.rounds import OURS, measure_case
from vksched.bench.suite_loader import SuiteOptions
from vksched.bench.suites import specs_of
from vksched.bench.vksched_runner import VkschedRunner
from vksched.cli import main
from vksched.common.errors import StateLost
from vksched.importers import load_gguf

INT8 = SuiteOptions(precision="int8")
DEVICES = ["cpu", *vulkan_names()]
SMALL = Sizes(layers=2, width=256, heads=4, kv_heads=2, inner=512, vocabulary=300, context=256)
SHAPES = Tiny(
    layers=2,
    width=256,
    heads=4,
    kv_heads=2,
    head_size=64,
    inner=512,
    vocabulary=300,
    rotary_size=64,
)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models, short texts, and ceilings of little work."""
    monkeypatch.setattr(llm_cases, "write_model", lambda path, kind: write_model(path, kind, SMALL))
    monkeypatch.setattr(llm_cases, "PROMPTS", (9,))
    monkeypatch.setattr(llm_cases, "FILLS", (5,))
    monkeypatch.setattr(llm_cases, "CONTEXT", 64)
    monkeypatch.setattr(llm_start_time, "SECOND", 1)
    monkeypatch.setattr(peak_throughput, "COPY_WORDS", 1 << 14)
    monkeypatch.setattr(peak_throughput, "TRIAL_S", 1e-4)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small-q4_k.gguf"
    write_model(path, "Q4_K", SMALL)
    return path


# -- files and cases -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_random_models_are_what_their_names_say(kind: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model(tmp_path / name, kind, SMALL)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    model = load_gguf(tmp_path / "a")
    for name, shape, spread in SMALL.shapes():
        tensor = model.file.tensors[name]
        assert tensor.shape == shape and tensor.type == (kind if len(shape) == 2 else "F32")
        values = tensor.to_numpy()
        assert values.std() == pytest.approx(spread, rel=0.25)
        error = spread * (0.05 + 3 / np.sqrt(values.size))
        assert abs(values.mean() - (len(shape) == 1)) < error


@pytest.mark.parametrize("kind", TYPES)
def test_what_is_expected_is_what_a_written_out_network_computes(kind: str, tmp_path: Path) -> None:
    write_model(tmp_path / "m.gguf", kind, SMALL)
    model = load_gguf(tmp_path / "m.gguf")
    ids = text_of(SMALL.vocabulary, 12)
    got = expected_logits(model, ids, [3, 11])
    weights = {
        name: gguf.dequantize(np.frombuffer(t.data, np.uint8), gguf.GGMLQuantizationType[t.type])
        .reshape(t.shape)
        .astype(np.float32)
        for name, t in model.file.tensors.items()
    }
    expected = logits_of(SHAPES, weights, ids)[[3, 11]]
    np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max())
    assert np.ptp(got) > 1


def test_cases_are_of_random_models_or_of_files(small: Path) -> None:
    names = [spec.name for spec in specs_of("llm")]
    assert len(names) == 5 * len(TYPES) and "random 27M Q4_K token at 2048" in names
    assert [s.name for s in specs_of("llm", "*q6_k*prompt*")] == [
        "random 27M Q6_K prompt 128",
        "random 27M Q6_K prompt 512",
    ]
    codes = [spec.name for spec in specs_of("llm", "*q8_0*128", INT8)]
    assert codes == ["random 27M Q8_0 int8 prompt 128", "random 27M Q8_0 int8 token at 128"]
    found = specs_of("llm", None, SuiteOptions([small]))
    # 512 tokens and 2,048 are more than the model's context
    assert [s.name.removeprefix("small-q4_k ") for s in found] == [
        "load",
        "prompt 128",
        "token at 128",
    ]
    assert [tokens_of(s) for s in found] == [0, 128, 1]


def test_work_is_that_of_products_by_weights(small: Path) -> None:
    model = load_gguf(small)
    layers = SMALL.layers * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256)
    head = 300 * 256
    assert work_of_model(model, "token", 99) == (2 * (layers + head), (layers + head) * 144 / 256)
    flops, read_bytes = work_of_model(model, "prompt", 99)
    assert flops == 2 * (99 * layers + head) and read_bytes == (layers + head) * 144 / 256
    assert work_of_model(model, "load", 1) == (0, model.parameter_bytes)


# -- vksched ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_every_case_is_right_on_every_device(device: str, quick: None) -> None:
    specs = [s for s in language_specs() if s["type"] == "Q4_K"]
    cases, ours = Cases(specs), VkschedRunner(device)
    try:
        for spec in specs:
            ready = cases.ready(spec)
            result = measure_case(device, ready, [ours], 1e-3, rounds=1)
            figure = result.ours
            assert figure is not None and not figure.reason and figure.seconds
            assert figure.nmse is not None and figure.nmse < LANGUAGE_NMSE
            assert figure.memory_bytes and figure.memory_bytes > work_of(ready)[1]
        folder = Path(ready["expected"]).parent
    finally:
        ours.close()
        cases.close()
    assert not folder.exists()


def test_codes_of_8_bits_are_near_enough(small: Path, quick: None) -> None:
    specs = specs_of("llm", "*prompt*,*token*", replace(INT8, models=[small]))
    cases, ours = Cases(specs), VkschedRunner("cpu")
    try:
        for spec in specs:
            figure = measure_case("cpu", cases.ready(spec), [ours], 1e-3, rounds=1).ours
            assert figure is not None and not figure.reason and figure.nmse is not None
            assert 1e-7 < figure.nmse < 1e-2
    finally:
        ours.close()
        cases.close()


def test_a_wrong_result_has_no_figure(quick: None) -> None:
    specs = [s for s in language_specs() if s["type"] == "F16"][-1:]
    cases, ours = Cases(specs), VkschedRunner("cpu")
    try:
        ready = cases.ready(specs[0])
        np.save(ready["expected"], np.load(ready["expected"])[::-1])
        figure = measure_case("cpu", ready, [ours], 1e-3, rounds=1).ours
        assert figure is not None and figure.wrong and figure.seconds is None
    finally:
        ours.close()
        cases.close()


def test_tokens_go_round_behind_their_text(small: Path) -> None:
    params = {"phase": "token", "tokens": 5, "vocabulary": 300, "file": str(small)}
    with_model = Model("cpu", str(small), 64)
    run = LanguageRun(Spec("m token at 5", "language", "token", params), with_model, lambda: None)  # type: ignore[arg-type, return-value]
    run.result()
    lengths = []
    for _ in range(40):
        run.seconds()
        lengths.append(len(with_model._text))
    assert lengths == [*range(7, 38), *range(6, 15)]
    with_model.close()


@pytest.mark.parametrize("event", ["loss", "overflow", "error"])
def test_a_text_is_read_again_after_its_cache_was_lost(
    event: str, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, model = list(range(1, 30)), Model("cpu", str(small), 64)
    wanted = np.array(model.read(text))
    model.read(text[:20])
    run, check = model._steps._run, model._steps._check_finite

    def fail(*about: Any) -> Any:
        monkeypatch.setattr(model._steps, "_run", run)
        if event == "error":
            raise RuntimeError("interrupted")
        raise StateLost("lost")

    def forget(logits: Any) -> None:
        monkeypatch.setattr(model._steps, "_check_finite", check)
        model._steps.forget()
        raise StateLost("another mode")

    if event == "overflow":
        monkeypatch.setattr(model._steps, "_check_finite", forget)
    else:
        monkeypatch.setattr(model._steps, "_run", fail)
    if event == "error":
        with pytest.raises(RuntimeError):
            model.read(text)
    np.testing.assert_allclose(model.read(text), wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.read(text), wanted, rtol=1e-4, atol=1e-4)
    model.close()


# -- the command -----------------------------------------------------------------------------------


def test_the_command_shows_tokens_a_second(quick: None, small: Path, tmp_path: Path) -> None:
    stored = tmp_path / "stored.json"
    options = ["bench", "--suite", "llm", "--model", str(small), "--devices", "cpu"]
    shown = CliRunner().invoke(main, [*options, "--time-budget", "0.01", "--output", str(stored)])
    assert shown.exit_code == 0, shown.output
    assert "small-q4_k prompt 9" in shown.output and "tokens/s" in shown.output
    report = Report.from_dict(json.loads(stored.read_text()))
    assert [f.name.split(":")[1].split()[0] for f in report.facts] == ["first", "second", "second"]
    prompt = next(r for r in report.results if r.spec["phase"] == "prompt")
    assert work_of(prompt.spec)[0] > 0 and "file" not in prompt.spec.params
    refused = CliRunner().invoke(main, ["bench", "--model", str(small)])
    assert refused.exit_code == 2 and "--model needs --suite llm" in refused.output


def test_a_model_that_does_not_start_is_reported(small: Path) -> None:
    params = {"file": str(small) + "x", "context": 8, "cache_type": "f32"}
    spec = Spec("gone load", "language", "load", params)
    with pytest.warns(vs.VkschedWarning, match="gone load does not start on cpu"):
        assert list(start_facts("cpu", spec)) == []


# -- llama.cpp -------------------------------------------------------------------------------------


class FakeContext:
    """Keeps what it reads; its logits are the number and the sum of its tokens."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logits = (ctypes.c_float * 2)()

    def write(self, data: Any, size: int) -> None:
        data[:size] = np.array(self.tokens, np.int32).tobytes()

    def take(self, data: Any, size: int) -> int:
        self.tokens = np.frombuffer(data, np.int32).tolist()
        return size

    def decode(self, tokens: list[int]) -> int:
        self.tokens += tokens
        self.logits[:] = [len(self.tokens), sum(self.tokens)]
        return 0


def fake_llama_cpp(takes: bool = True) -> Any:
    """The calls of the package llama_cpp that the baseline makes.

    takes: what another context read.
    """
    devices = [b"A processor", b"A card"]
    ggml = SimpleNamespace(
        ggml_backend_dev_count=lambda: len(devices),
        ggml_backend_dev_get=lambda index: index + 1,
        ggml_backend_dev_description=lambda one: devices[one - 1],
    )
    built = ModuleType("llama_cpp")
    built.__dict__.update(
        __version__="1.2",
        llama_cpp=SimpleNamespace(_lib=ggml),
        llama_log_callback=lambda function: function,
        llama_log_set=lambda function, _: function(0, b"CPU model buffer size = 3.00 MiB", None),
        llama_backend_init=lambda: None,
        llama_model_default_params=SimpleNamespace,
        llama_context_default_params=SimpleNamespace,
        llama_model_load_from_file=lambda path, _: path,
        llama_init_from_model=lambda _, params: FakeContext(),
        llama_set_n_threads=lambda *_: None,
        llama_get_memory=lambda context: context,
        llama_model_get_vocab=lambda model: model,
        llama_vocab_n_tokens=lambda _: 2,
        llama_memory_clear=lambda context, _: context.tokens.clear(),
        llama_memory_seq_rm=lambda context, _, start, end: context.tokens.__delitem__(
            slice(start, None)
        ),
        llama_batch_get_one=lambda tokens, count: list(tokens[:count]),
        llama_decode=FakeContext.decode,
        llama_get_logits_ith=lambda context, _: ctypes.cast(
            context.logits, ctypes.POINTER(ctypes.c_float)
        ),
        llama_state_get_size=lambda context: 4 * len(context.tokens),
        llama_state_get_data=FakeContext.write,
        llama_state_set_data=FakeContext.take if takes else lambda *_: 0,
        llama_free=lambda _: None,
        llama_model_free=lambda _: None,
    )
    return built


@pytest.mark.parametrize(("index", "takes"), [(-1, True), (3, True), (3, False)])
@pytest.mark.parametrize(("phase", "read"), [("load", 4), ("prompt", 4), ("token", 5)])
def test_llama_cpp_reads_what_vksched_reads(
    index: int, takes: bool, phase: str, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", fake_llama_cpp(takes))
    monkeypatch.setenv(llama_cpp_baseline.VISIBLE, "")
    baseline = llama_cpp_baseline.open_baseline(
        {"name": "A card" if index >= 0 else "numpy", "index": index}
    )
    params = {"phase": phase, "tokens": 4, "vocabulary": 300, "file": "m.gguf", "context": 64}
    spec = Spec("m", "language", phase, params)
    text = text_of(300, 4 + GENERATED)
    arrays = {"ids": text}
    job = baseline.prepare(spec, arrays)
    for _ in range(3):  # the same again: each time, all is read, or the text goes on
        assert job.result().tolist() == [read, text[:read].sum()]
        read += phase == "token"
    lengths = []
    for _ in range(GENERATED):
        assert job.sample() >= 0
        lengths.append(job.loaded.length)
    if phase == "token":
        assert lengths == [*range(8, 5 + GENERATED), 5, 6, 7]
    with pytest.raises(protocol.Skip):
        baseline.prepare(replace(spec, kind="matmul"), arrays)


def test_llama_cpp_says_which_devices_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", fake_llama_cpp())
    monkeypatch.setenv(llama_cpp_baseline.VISIBLE, "")
    with pytest.raises(LookupError, match="takes no Other, only A processor, A card"):
        llama_cpp_baseline.open_baseline({"name": "Other", "index": 0})


def test_what_llama_cpp_allocates_is_read_from_its_log() -> None:
    library = object.__new__(llama_cpp_baseline.Library)
    library.log_lines = [
        "load_tensors:   CPU_Mapped model buffer size =    10.00 MiB\n",
        "load_tensors:      Vulkan0 model buffer size =    20.50 MiB\n",
        "llama_kv_cache:    Vulkan0 KV buffer size = ",
        "    4.00 MiB\n",
    ]
    assert library.allocated_bytes(host=False) == 24.5 * 2**20
    assert library.allocated_bytes(host=True) == 34.5 * 2**20
    library.log_lines.clear()
    assert library.allocated_bytes(host=True) is None


def test_a_baseline_that_is_rough_has_a_bound_of_its_own() -> None:
    spec = Spec("m", "language", "token", {})
    assert most_error(spec, OURS) == LANGUAGE_NMSE < most_error(spec, "llama.cpp") < 0.2
    assert most_error(replace(spec, kind="model"), "llama.cpp") == most_error(
        replace(spec, kind="model")
    )
