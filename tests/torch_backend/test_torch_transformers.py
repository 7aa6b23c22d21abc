"""Networks of transformers with random weights run unchanged, and equal eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import vksched as vs
from vksched.torch.backend import vksched as backend
from vksched.torch.frame import programs

transformers = pytest.importorskip("transformers")
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
IDS = {"vocab_size": 99, "max_position_embeddings": 32}


def bert() -> tuple[Any, dict[str, Any]]:
    config = transformers.BertConfig(**SMALL, **IDS, intermediate_size=64)
    ids = torch.randint(0, 99, (2, 7))
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    return transformers.BertModel(config), {"input_ids": ids, "attention_mask": mask}


def gpt2() -> tuple[Any, dict[str, Any]]:
    config = transformers.GPT2Config(vocab_size=99, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config), {"input_ids": torch.randint(0, 99, (2, 7))}


def llama() -> tuple[Any, dict[str, Any]]:
    config = transformers.LlamaConfig(**SMALL, **IDS, intermediate_size=64, num_key_value_heads=1)
    return transformers.LlamaForCausalLM(config), {"input_ids": torch.randint(0, 99, (2, 7))}


def vit() -> tuple[Any, dict[str, Any]]:
    config = transformers.ViTConfig(**SMALL, intermediate_size=64, image_size=16, patch_size=4)
    return transformers.ViTModel(config), {"pixel_values": torch.randn(2, 3, 16, 16)}


def t5() -> tuple[Any, dict[str, Any]]:
    config = transformers.T5Config(
        vocab_size=99, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2
    )
    ids = torch.randint(1, 99, (2, 7))
    return transformers.T5Model(config), {"input_ids": ids, "decoder_input_ids": ids[:, :4]}


def whisper() -> tuple[Any, dict[str, Any]]:
    config = transformers.WhisperConfig(
        vocab_size=99, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8,
        max_source_positions=20, max_target_positions=16, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    features, ids = torch.randn(2, 8, 40), torch.randint(0, 99, (2, 5))
    return transformers.WhisperModel(config), {"input_features": features, "decoder_input_ids": ids}


def _network(build: Callable[[], Any], quick: bool = False) -> Any:
    return pytest.param(build, id=build.__name__, marks=() if quick else pytest.mark.thorough)


@pytest.mark.filterwarnings("ignore:.fallback. numpy runs .*int64 values")  # T5 without int64
@pytest.mark.parametrize(
    "build",
    [_network(bert, quick=True), *map(_network, (gpt2, llama, vit, t5, whisper))],
)
def test_networks_of_transformers(scheduler: vs.Scheduler, build: Callable[[], Any]) -> None:
    model, inputs = build()
    model.eval().config.use_cache = False
    fast = torch.compile(model, backend=backend, options={"scheduler": scheduler})
    with torch.no_grad():
        wanted, got = model(**inputs), fast(**inputs)
    torch.testing.assert_close(got[0], wanted[0], rtol=1e-3, atol=1e-4)
    special = [m for _, p in programs() for m in p.specialisations.values()]
    assert special and all(m.unsupported == {} for m in special)


def test_generate_with_a_static_cache(scheduler: vs.Scheduler) -> None:
    model, inputs = llama()
    model.eval()
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(**inputs, **settings)
    model.forward = torch.compile(model.forward, backend=backend, options={"scheduler": scheduler})
    got = model.generate(**inputs, **settings, cache_implementation="static", disable_compile=True)
    assert torch.equal(got, wanted)
