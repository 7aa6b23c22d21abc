"""llama.cpp on the CPU or on one Vulkan device, through the package llama_cpp.

Its libraries are those of the package, or those in the folder LLAMA_CPP_LIB_PATH. It reads the same
tokens as vksched, with an equal context length. On the CPU it uses all threads of the process, or
half of them if that is faster, because its threads spin. All other settings are its defaults: KV
cache in float16, batches of 512 tokens.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .protocol import Job, Skip
from .workloads import GENERATED, LANGUAGE, Array, Arrays, Spec

VISIBLE = "GGML_VK_VISIBLE_DEVICES"
"""Read when the library is loaded. Without it, llama.cpp ignores software devices."""
BUFFER = re.compile(r"(\S+) +(?:model|KV|compute|output|RS) buffer size *= *([\d.]+) MiB")
"""A log line about an allocation and its device."""
ALL_LAYERS = 999
ERROR = 4
"""Its log level of errors."""


def threads() -> int:
    """Return the number of threads that this process may use."""
    found = getattr(os, "sched_getaffinity", None)
    return len(found(0)) if found else os.cpu_count() or 1


class Library:
    """llama.cpp, loaded with one visible Vulkan device."""

    def __init__(self, visible: int | None) -> None:
        os.environ[VISIBLE] = "" if visible is None else str(visible)
        import llama_cpp

        self.api: Any = llama_cpp
        self.version = str(llama_cpp.__version__)
        self.log_lines: list[str] = []
        self.reason = ""  # the first error in its log
        self._ggml = llama_cpp.llama_cpp._lib
        self._say = llama_cpp.llama_log_callback(self._note)  # must outlive the library
        llama_cpp.llama_log_set(self._say, ctypes.c_void_p(0))
        folder = os.environ.get("LLAMA_CPP_LIB_PATH")
        if folder and not self._ggml.ggml_backend_dev_count():  # backends are libraries, too
            self._ggml.ggml_backend_load_all_from_path(folder.encode())
        llama_cpp.llama_backend_init()

    def _note(self, level: int, text: bytes, _data: object) -> None:
        self.log_lines.append(text.decode(errors="replace"))
        if level == ERROR and not self.reason:
            self.reason = self.log_lines[-1].strip()

    def forget(self) -> None:
        """Clear the log."""
        self.log_lines, self.reason = [], ""

    def devices(self) -> dict[str, int]:
        """Return its devices: their names and addresses."""
        get, describe = self._ggml.ggml_backend_dev_get, self._ggml.ggml_backend_dev_description
        get.argtypes, get.restype = [ctypes.c_size_t], ctypes.c_void_p
        describe.argtypes, describe.restype = [ctypes.c_void_p], ctypes.c_char_p
        self._ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
        found = [get(index) for index in range(self._ggml.ggml_backend_dev_count())]
        return {describe(one).decode(): one for one in found}

    def allocated_bytes(self, host: bool) -> float | None:
        """Return the bytes that it logged as allocated on the host or on the device, or None."""
        found = BUFFER.findall("".join(self.log_lines))
        sizes = [float(mib) for where, mib in found if host or not where.startswith("CPU")]
        return sum(sizes) * (1 << 20) if sizes else None


class LoadedModel:
    """A model with a context. device: None for the CPU."""

    def __init__(self, library: Library, device: int | None, spec: Spec) -> None:
        self._library, api = library, library.api
        self.file, self._api = spec["file"], api
        library.forget()
        params = api.llama_model_default_params()
        chosen = (ctypes.c_void_p * 2)(device, None)  # an empty list selects the CPU
        params.devices = ctypes.addressof(chosen)
        params.n_gpu_layers = ALL_LAYERS if device is not None else 0
        self._model = api.llama_model_load_from_file(spec["file"].encode(), params)
        if not self._model:
            raise RuntimeError(f"it does not load the model: {library.reason}")
        context = api.llama_context_default_params()
        context.n_ctx = spec["context"]
        context.n_threads = context.n_threads_batch = threads()
        self._context = api.llama_init_from_model(self._model, context)
        if not self._context:
            api.llama_model_free(self._model)
            raise RuntimeError(f"it makes no context: {library.reason}")
        self._memory = api.llama_get_memory(self._context)
        vocabulary = api.llama_model_get_vocab(self._model)
        self._size = api.llama_vocab_n_tokens(vocabulary)
        self.memory_bytes = library.allocated_bytes(device is None)
        self.length = 0

    def use(self, count: int) -> None:
        """Set the number of threads."""
        self._api.llama_set_n_threads(self._context, count, count)

    def keep(self, length: int) -> None:
        """Truncate the context to the first `length` tokens."""
        if length:
            self._api.llama_memory_seq_rm(self._memory, 0, length, -1)
        else:
            self._api.llama_memory_clear(self._memory, True)
        self.length = length

    def read(self, tokens: Sequence[int]) -> Array:
        """Process tokens and return the logits after them."""
        batch_tokens = (ctypes.c_int32 * len(tokens))(*tokens)
        api = self._api
        failed = api.llama_decode(self._context, api.llama_batch_get_one(batch_tokens, len(tokens)))
        if failed:
            raise RuntimeError(f"llama_decode: {failed}: {self._library.reason}")
        self.length += len(tokens)
        logits = api.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(logits, shape=(self._size,)).astype(np.float32)

    def take(self, other: LoadedModel) -> bool:
        """Copy the state of another context of the model; return False if it fails."""
        size = self._api.llama_state_get_size(other._context)
        data = (ctypes.c_uint8 * size)()
        self._api.llama_state_get_data(other._context, data, size)
        taken = self._api.llama_state_set_data(self._context, data, size)
        self.length = other.length if taken else 0
        return bool(taken)

    def close(self) -> None:
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)


class Reading:
    """A prepared case; see `protocol.Job` and, for its text, language/llm_cases.py."""

    def __init__(self, baseline: LlamaBaseline, spec: Spec, text: Sequence[int]) -> None:
        self._baseline, self._spec, self._text = baseline, spec, list(text)
        self._tokens, self._turn = int(spec["tokens"]), 0
        self.loaded = baseline.loaded(spec)
        self.note = "keys and values in float16"
        self.memory_bytes = self.loaded.memory_bytes
        if spec["phase"] == "token":
            self._fill(self._text[: self._tokens])
        if baseline.device is None and spec["phase"] != "load":
            self._choose_threads()

    def _fill(self, text: Sequence[int]) -> None:
        """Process the tokens before the measured ones; on the CPU, which is faster than a software
        device.
        """
        if self._baseline.device is not None:
            helper = self._baseline.load(self._spec, on_cpu=True)
            helper.read(text)
            taken = self.loaded.take(helper)
            helper.close()
            if taken:
                return
        self.loaded.keep(0)
        self.loaded.read(text)

    def _choose_threads(self) -> None:
        taken = {}
        for count in {threads(), max(1, threads() // 2)}:
            self.loaded.use(count)
            taken[count] = min(self.sample() for _ in range(2))
        fastest = min(taken, key=taken.__getitem__)
        self.loaded.use(fastest)
        self.note += f", {fastest} threads" if fastest > 1 else ", 1 thread"
        self._turn = 0

    def result(self) -> Array:
        return self._read()[0]

    def sample(self) -> float:
        return self._read()[1]

    def _read(self) -> tuple[Array, float]:
        phase, loaded = self._spec["phase"], self.loaded
        if phase == "load":
            start = time.perf_counter()
            again = self._baseline.load(self._spec)
            logits = again.read(self._text[: self._tokens])
            seconds = time.perf_counter() - start
            again.close()
            return logits, seconds
        part = self._text[: self._tokens]
        if phase == "token":
            at = self._tokens + self._turn
            part = self._text[at : at + 1]
            self._turn = (self._turn + 1) % GENERATED
            if loaded.length != at:
                loaded.keep(at)
        else:
            loaded.keep(0)
        start = time.perf_counter()
        logits = loaded.read(part)
        return logits, time.perf_counter() - start


class LlamaBaseline:
    """llama.cpp on one device; None is the CPU."""

    def __init__(self, library: Library, device: int | None) -> None:
        self.version = library.version
        self.device = device
        self._library = library
        self._loaded: LoadedModel | None = None

    def load(self, spec: Spec, on_cpu: bool = False) -> LoadedModel:
        """Return the model of a case, newly loaded."""
        return LoadedModel(self._library, None if on_cpu else self.device, spec)

    def loaded(self, spec: Spec) -> LoadedModel:
        """Return the model of a case, shared by the cases of one file."""
        if self._loaded is None or self._loaded.file != spec["file"]:
            if self._loaded is not None:
                self._loaded.close()
            self._loaded = None
            self._loaded = self.load(spec)
        return self._loaded

    def prepare(self, spec: Spec, arrays: Arrays) -> Job:
        if spec.kind != LANGUAGE:
            raise Skip("llama.cpp reads texts with language models only")
        return Reading(self, spec, arrays["ids"].tolist())


def open_baseline(device: Mapping[str, Any]) -> LlamaBaseline:
    """Return llama.cpp on the device of this name."""
    if device["index"] < 0:
        return LlamaBaseline(Library(None), None)
    library = Library(device["index"])
    found = library.devices()
    if device["name"] not in found:
        raise LookupError(f"llama.cpp takes no {device['name']}, only {', '.join(found)}")
    return LlamaBaseline(library, found[device["name"]])
