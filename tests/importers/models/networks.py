"""The networks of the model tests as PyTorch modules with random weights, and how to export each.

Depth and structure are those of the real networks; images, vocabularies and widths are small, so
that a software device runs each in a second or so. Needs torch, torchvision and transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torchvision.models as tv
import transformers as tf
from torch import Tensor, nn

VOCABULARY = 400


@dataclass(frozen=True)
class Export:
    """A network and how it is exported.

    args: example inputs by name, in the order of `forward`. outputs: names of the results.
    dims: sizes of the symbolic dimensions in `args`. axes: for each input the symbolic dimensions
    by axis. high: for inputs of integers one more than the largest value, 2 for a mask. dynamo:
    which of the two exporters of PyTorch.
    """

    module: nn.Module
    args: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    high: Mapping[str, int] = field(default_factory=dict)
    dynamo: bool = True
    opset: int = 18


NETWORKS: dict[str, Callable[[], Export]] = {}


def network(build: Callable[[], Export]) -> Callable[[], Export]:
    """Add a network under the name of the function that builds it."""
    NETWORKS[build.__name__] = build
    return build


def build(name: str) -> Export:
    """Return a network in its evaluation mode, its weights drawn from a fixed seed."""
    torch.manual_seed(20240229)
    export = NETWORKS[name]()
    wake(export)
    return export


def wake(export: Export) -> None:
    """Make what a new network holds as zeros and ones random, and its running statistics true.

    Else biases, scales and normalizations could be left out without any test seeing it.
    """
    for parameter in export.module.parameters():
        with torch.no_grad():
            if parameter.numel() > 1 and bool((parameter == parameter.reshape(-1)[0]).all()):
                parameter.mul_(torch.empty_like(parameter).uniform_(0.8, 1.2))
                parameter.add_(torch.empty_like(parameter).normal_(std=0.05))
    norms = [m for m in export.module.modules() if isinstance(m, nn.BatchNorm2d)]
    if norms:
        for norm in norms:
            norm.momentum = None  # the average of what it sees
        export.module.train()
        shape = list(next(iter(export.args.values())).shape)
        with torch.no_grad():
            export.module(torch.randn(16, *shape[1:]))
    export.module.eval()


class Wrapped(nn.Module):
    """A module of transformers with tensors as arguments and results."""

    def __init__(self, inner: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner
        self.call = call

    def forward(self, *args: Tensor) -> Any:
        return self.call(self.inner, *args)


def ids(*shape: int) -> Tensor:
    return torch.randint(0, VOCABULARY, shape)


# -- images ----------------------------------------------------------------------------------------


def image(module: nn.Module, batch: int = 2, size: int = 64, **options: Any) -> Export:
    """A network from images to scores, with as many images as the caller wants."""
    x = torch.randn(batch, 3, size, size)
    axes = {"image": {0: "batch"}}
    return Export(module, {"image": x}, ("scores",), axes, {"batch": batch}, **options)


@network
def resnet18() -> Export:
    return image(tv.resnet18(num_classes=100), 1, 48, dynamo=False, opset=13)


@network
def mobilenet_v3() -> Export:
    return image(tv.mobilenet_v3_small(num_classes=100), dynamo=True)


@network
def efficientnet_b0() -> Export:
    return image(tv.efficientnet_b0(num_classes=100), 1, 48, dynamo=False, opset=17)


@network
def vit_tiny() -> Export:
    net = tv.VisionTransformer(64, 16, 12, 3, 192, 768, num_classes=100)
    nn.init.normal_(net.heads.head.weight, std=0.05)
    return image(net, dynamo=True)


@network
def convnext() -> Export:
    blocks = [(32, 64, 2), (64, 96, 2), (96, 128, 3), (128, None, 2)]
    setting = [tv.convnext.CNBlockConfig(*b) for b in blocks]
    return image(tv.ConvNeXt(setting, layer_scale=0.3, num_classes=100), dynamo=True)


class UNet(nn.Module):
    """Contracts four times, expands four times, and joins what has the same size."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 32, 64, 128)) -> None:
        super().__init__()

        def twice(i: int, o: int) -> nn.Sequential:
            steps = [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()]
            steps += [nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()]
            return nn.Sequential(*steps)

        self.down = nn.ModuleList(map(twice, (3, *widths[:-1]), widths))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(w, n, 2, stride=2)
            for w, n in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.join = nn.ModuleList(map(twice, widths[:0:-1], widths[-2::-1]))
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Conv2d(widths[0], 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else self.pool(x))
            seen.append(x)
        for up, join, skip in zip(self.up, self.join, seen[-2::-1], strict=True):
            x = join(torch.cat([skip, up(x)], dim=1))
        return self.last(x)


@network
def unet() -> Export:
    axes = {0: "batch", 2: "height", 3: "width"}
    return Export(
        UNet(),
        {"image": torch.randn(1, 3, 64, 48)},
        ("classes",),
        {"image": axes},
        {"batch": 1, "height": 64, "width": 48},
        dynamo=False,
        opset=11,
    )


class SmallConv(nn.Module):
    """The network that is quantised: convolutions with a residual, a pool and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.inner = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.wide = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.linear = nn.Linear(16 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for conv in self.inner:
            x = (conv(x) + x).relu()
        x = nn.functional.max_pool2d(self.wide(x), 2)
        x = nn.functional.adaptive_avg_pool2d(x, (4, 4))
        return self.linear(x.flatten(1))


@network
def small_conv() -> Export:
    return image(SmallConv(), size=32, dynamo=False, opset=17)


# -- text ------------------------------------------------------------------------------------------

SEQUENCE = {0: "batch", 1: "sequence"}


def tokens(**more: Tensor) -> dict[str, Any]:
    """Inputs of an encoder, as keywords of `Export`."""
    args = {"input_ids": ids(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.int64), **more}
    return {
        "args": args,
        "axes": dict.fromkeys(args, SEQUENCE),
        "dims": {"batch": 2, "sequence": 9},
        "high": {"input_ids": VOCABULARY, **{name: 2 for name in args if name != "input_ids"}},
    }


@network
def bert_mini() -> Export:
    config = tf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    net = Wrapped(
        tf.BertModel(config),
        lambda m, i, a, t: tuple(m(i, attention_mask=a, token_type_ids=t, return_dict=False)),
    )
    types = torch.zeros(2, 9, dtype=torch.int64)
    return Export(
        net,
        outputs=("last_hidden_state", "pooler_output"),
        dynamo=False,
        opset=17,
        **tokens(token_type_ids=types),
    )


def gpt2() -> nn.Module:
    config = tf.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=128,
        n_layer=4,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )
    return tf.GPT2LMHeadModel(config)


@network
def gpt2_mini() -> Export:
    net = Wrapped(gpt2(), lambda m, i, a: m(i, attention_mask=a, use_cache=False).logits)
    return Export(net, outputs=("logits",), dynamo=True, **tokens())


@network
def gpt2_mini_past() -> Export:
    """Take the keys and values of the tokens before, and gives them with those of the new ones."""
    layers, heads, width = 4, 4, 32

    def call(model: nn.Module, i: Tensor, a: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        cache = tf.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        out = model(i, attention_mask=a, past_key_values=cache, use_cache=True)
        present = [t for layer in out.past_key_values.layers for t in (layer.keys, layer.values)]
        return out.logits, *present

    names = [f"{n}.{part}" for n in range(layers) for part in ("key", "value")]
    past = {f"past_key_values.{n}": torch.randn(2, heads, 3, width) for n in names}
    mask = torch.ones(2, 5, dtype=torch.int64)
    return Export(
        Wrapped(gpt2(), call),
        {"input_ids": ids(2, 2), "attention_mask": mask, **past},
        ("logits", *(f"present.{n}" for n in names)),
        {
            "input_ids": SEQUENCE,
            "attention_mask": {0: "batch", 1: "total_sequence"},
            **{name: {0: "batch", 2: "past_sequence"} for name in past},
        },
        {"batch": 2, "sequence": 2, "past_sequence": 3, "total_sequence": 5},
        {"input_ids": VOCABULARY, "attention_mask": 2},
        dynamo=True,
    )


@network
def t5_mini() -> Export:
    config = tf.T5Config(
        vocab_size=VOCABULARY,
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        attn_implementation="eager",
    )
    net = Wrapped(
        tf.T5ForConditionalGeneration(config),
        lambda m, i, a, d: (
            m(input_ids=i, attention_mask=a, decoder_input_ids=d, use_cache=False).logits
        ),
    )
    options = tokens(decoder_input_ids=ids(2, 6))
    options["axes"]["decoder_input_ids"] = {0: "batch", 1: "decoder_sequence"}
    options["dims"]["decoder_sequence"] = 6
    options["high"]["decoder_input_ids"] = VOCABULARY
    return Export(net, outputs=("logits",), dynamo=False, opset=16, **options)


class Tagger(nn.Module):
    """Labels each token with the help of those before and after it."""

    def __init__(self, recurrent: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.recurrent = recurrent(32, 24, 2, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(48, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.recurrent(self.embedding(x))[0])


def tagger(recurrent: type[nn.LSTM] | type[nn.GRU], **options: Any) -> Export:
    return Export(
        Tagger(recurrent),
        {"input_ids": ids(2, 9)},
        ("tags",),
        {"input_ids": SEQUENCE},
        {"batch": 2, "sequence": 9},
        {"input_ids": VOCABULARY},
        **options,
    )


@network
def lstm_tagger() -> Export:
    return tagger(nn.LSTM, dynamo=False, opset=10)


@network
def gru_tagger() -> Export:
    return tagger(nn.GRU, dynamo=False, opset=20)


# -- sound and clicks ------------------------------------------------------------------------------


@network
def whisper_encoder() -> Export:
    config = tf.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=40,
        d_model=64,
        encoder_layers=3,
        encoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_layers=1,
        decoder_attention_heads=4,
        max_source_positions=50,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        attn_implementation="sdpa",
    )
    net = Wrapped(tf.WhisperModel(config).encoder, lambda m, x: m(x).last_hidden_state)
    x = torch.randn(1, 40, 100)
    axes = {"input_features": {0: "batch"}}
    return Export(net, {"input_features": x}, ("states",), axes, {"batch": 1}, dynamo=True)


class DLRM(nn.Module):
    """Scores of clicks from dense features and bags of ids: Naumov et al., arXiv:1906.00091."""

    def __init__(self, tables: int = 6, width: int = 16) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(VOCABULARY, width, mode="sum") for _ in range(tables)
        )
        self.bottom = nn.Sequential(
            nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, width)
        )
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid()
        )
        rows, columns = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", rows * (tables + 1) + columns)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        embedded = [bag(sparse[:, i]) for i, bag in enumerate(self.bags)]
        rows = torch.stack([x, *embedded], dim=1)
        products = torch.bmm(rows, rows.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, products[:, self.pairs]], dim=1))


@network
def dlrm() -> Export:
    return Export(
        DLRM(),
        {"dense": torch.randn(4, 13), "sparse": ids(4, 6, 3)},
        ("score",),
        {"dense": {0: "batch"}, "sparse": {0: "batch"}},
        {"batch": 4},
        {"sparse": VOCABULARY},
        dynamo=True,
    )
