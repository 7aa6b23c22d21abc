"""Hyperparameters of projector files: sizes and parameters of an encoder of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from reprlib import repr as shortened

import numpy as np

from ....common.errors import ModelFormatError
from ..hparams.hparams import MAX_LAYERS, architecture_of
from ..hparams.metadata_keys import MAX_REAL, MetadataKeys
from ..read.loader import GgufFile

ARCHITECTURE = "clip"
PROJECTORS = {
    "gemma3": ("gemma3",),
    "qwen2vl_merger": ("qwen2vl",),
    "qwen2.5vl_merger": ("qwen2vl",),
    "qwen3vl_merger": ("qwen3vl", "qwen3vlmoe"),
}
"""The architectures of the language models of each kind of projector."""
MAX_SIDE = 1 << 14
"""The maximum side of a picture in pixels."""
CHANNELS = 3
MAX_PIXELS = 1 << 26
"""The maximum size of a picture; a larger one may be an attack on the memory."""
MAX_TOKENS = 1280
"""The default maximum number of tokens of a picture of Qwen; larger pictures are resized."""


@dataclass(frozen=True)
class VisionHParams:
    """The hyperparameters of an encoder.

    projector: the kind of projector. image_size, patch_size: the sides of a picture and of a patch
    in pixels. width, inner, heads, layers: sizes of the encoder. text_width: the size of the hidden
    states of the language model. pool: the side, in patches, of the squares whose mean is a token.
    eps: the epsilon of norms. mean, std: pixels of 0 to 1 are normalized by (pixel -
    mean) / std, for each channel.

    Of Qwen, whose pictures have many sizes, `pool` is the side of the squares whose patches are
    merged, and `image_size` that of the table of positions. inner is 0: tensors tell it.
    window: the side of the windows of attention in pixels, in all but the last of each
    `window_every` layers; 0 without. deepstack: the layers whose output is merged for the first
    layers of the language model, too. pixels: the minimum and maximum number of pixels.
    """

    projector: str
    image_size: int
    patch_size: int
    width: int
    inner: int
    heads: int
    layers: int
    text_width: int
    pool: int
    eps: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    window: int = 0
    window_every: int = 0
    deepstack: tuple[int, ...] = ()
    pixels: tuple[int, int] = (0, 0)

    @property
    def is_qwen(self) -> bool:
        """True for an encoder of a Qwen VL model."""
        return self.projector != "gemma3"

    @property
    def grid(self) -> int:
        """The number of patches per side."""
        return self.image_size // self.patch_size

    @property
    def tokens(self) -> int:
        """The number of tokens of a picture."""
        return (self.grid // self.pool) ** 2


def read_vision(file: GgufFile) -> VisionHParams:
    """Return the hyperparameters of a projector file.

    Raises
    ------
    ModelFormatError
        The file is not a projector file of a supported kind; a key is missing or invalid.
    """
    found = architecture_of(file)
    if found != ARCHITECTURE:
        raise ModelFormatError(
            f"[gguf] expected a projector file (mmproj) of architecture {ARCHITECTURE!r}, got "
            f"{found!r}; try vs.load for a language model"
        )
    whole, keys = (MetadataKeys(name, file.metadata) for name in ("clip", "clip.vision"))
    if not whole.flag("has_vision_encoder", False):
        raise ModelFormatError(
            "[gguf] key 'clip.has_vision_encoder': expected true, as only encoders of pictures "
            "run, got false"
        )
    own = keys if keys.has("projector_type") else whole
    projector = own.text("projector_type", "")
    if projector not in PROJECTORS:
        raise ModelFormatError(
            f"[gguf] key 'clip.projector_type': expected one of {', '.join(PROJECTORS)}, got "
            f"{shortened(projector)}; try a projector file of Gemma 3 or of Qwen VL"
        )
    if projector != "gemma3":
        return _read_qwen(file, keys, projector)
    if not whole.flag("use_gelu", False):
        raise ModelFormatError(
            "[gguf] key 'clip.use_gelu': expected true for a projector of Gemma 3, got false"
        )
    hyper = VisionHParams(
        projector=projector,
        image_size=keys.whole("image_size", maximum=MAX_SIDE),
        patch_size=keys.whole("patch_size", maximum=MAX_SIDE),
        width=keys.whole("embedding_length"),
        inner=keys.whole("feed_forward_length"),
        heads=keys.whole("attention.head_count"),
        layers=keys.whole("block_count", maximum=MAX_LAYERS),
        text_width=keys.whole("projection_dim"),
        pool=keys.whole("projector.scale_factor", 4, maximum=MAX_SIDE),
        eps=keys.real("attention.layer_norm_epsilon"),
        mean=_channels(file, "image_mean"),
        std=_channels(file, "image_std"),
    )
    _check_sizes(hyper)
    return hyper


def _read_qwen(file: GgufFile, keys: MetadataKeys, projector: str) -> VisionHParams:
    """Return the hyperparameters of an encoder of a Qwen VL model. Files tell the size of windows
    and of merged squares only if they are unusual.
    """
    patch, layers = keys.whole("patch_size", maximum=256), keys.whole("block_count", maximum=1024)
    pool = keys.whole("spatial_merge_size", 2, maximum=16)
    windowed = projector == "qwen2.5vl_merger"
    square = (patch * pool) ** 2
    least = keys.whole("image_min_pixels", 4 * square, maximum=MAX_PIXELS)
    flags = keys.flags("is_deepstack_layers", layers) if projector == "qwen3vl_merger" else ()
    hyper = VisionHParams(
        projector=projector,
        image_size=keys.whole("image_size", maximum=MAX_SIDE),
        patch_size=patch,
        width=keys.whole("embedding_length"),
        inner=0,
        heads=keys.whole("attention.head_count"),
        layers=layers,
        text_width=keys.whole("projection_dim"),
        pool=pool,
        eps=keys.real("attention.layer_norm_epsilon"),
        mean=_channels(file, "image_mean"),
        std=_channels(file, "image_std"),
        window=keys.whole("window_size", 112, maximum=MAX_SIDE) if windowed else 0,
        window_every=keys.whole("n_wa_pattern", minimum=0) if windowed else 0,
        deepstack=tuple(layer for layer, each in enumerate(flags) if each),
        pixels=(least, keys.whole("image_max_pixels", MAX_TOKENS * square, minimum=least)),
    )
    _check_std(hyper)
    if hyper.width % (4 * hyper.heads):
        raise ModelFormatError(
            "[gguf] key 'clip.vision.attention.head_count': expected heads of a multiple of 4 "
            f"elements, got {hyper.heads} heads of {hyper.width} elements"
        )
    if hyper.window and hyper.window < patch * pool:
        raise ModelFormatError(
            f"[gguf] key 'clip.vision.window_size': expected at least {patch * pool}, the side of "
            f"a merged square, got {hyper.window}"
        )
    return hyper


def _check_sizes(hyper: VisionHParams) -> None:
    """Raise ModelFormatError if sizes do not fit each other."""
    for size, key, part, of in (
        (hyper.image_size, "image_size", hyper.patch_size, "patch_size"),
        (hyper.grid, "image_size / patch_size", hyper.pool, "projector.scale_factor"),
        (hyper.width, "embedding_length", hyper.heads, "attention.head_count"),
    ):
        if size % part:
            raise ModelFormatError(
                f"[gguf] key 'clip.vision.{of}': expected a divisor of {key}, {size}, got {part}"
            )
    if hyper.inner == hyper.width:
        raise ModelFormatError(
            "[gguf] key 'clip.vision.feed_forward_length': expected another size than "
            f"embedding_length, {hyper.width}, as the names of ffn_up and ffn_down are swapped in "
            "files of older converters, and only sizes show it"
        )
    _check_std(hyper)


def _check_std(hyper: VisionHParams) -> None:
    """Raise ModelFormatError if normalized pixels may leave float32."""
    for mean, std in zip(hyper.mean, hyper.std, strict=True):
        if abs(std) * MAX_REAL < 1 + abs(mean):
            raise ModelFormatError(
                "[gguf] key 'clip.vision.image_std': expected numbers that keep (1 - mean) / std "
                f"within {MAX_REAL:g}, got {std:g} with a mean of {mean:g}"
            )


def _channels(file: GgufFile, name: str) -> tuple[float, ...]:
    """Return a number for each channel."""
    value = file.metadata.get(f"clip.vision.{name}")
    if isinstance(value, np.ndarray) and value.shape == (CHANNELS,) and value.dtype.kind in "fiu":
        if (np.abs(value) <= MAX_REAL).all():
            return tuple(float(each) for each in value)
    raise ModelFormatError(
        f"[gguf] key 'clip.vision.{name}': expected {CHANNELS} numbers, got {shortened(value)}"
    )
