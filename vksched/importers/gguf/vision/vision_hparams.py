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
PROJECTORS = {"gemma3": ("gemma3",)}
"""The architectures of the language models of each kind of projector."""
MAX_SIDE = 1 << 14
"""The maximum side of a picture in pixels."""
CHANNELS = 3


@dataclass(frozen=True)
class VisionHParams:
    """The hyperparameters of an encoder.

    projector: the kind of projector. image_size, patch_size: the sides of a picture and of a patch
    in pixels. width, inner, heads, layers: sizes of the encoder. text_width: the size of the hidden
    states of the language model. pool: the side, in patches, of the squares whose mean is a token.
    eps: the epsilon of norms. mean, std: pixels of 0 to 1 are normalized by (pixel -
    mean) / std, for each channel.
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
            f"{shortened(projector)}; try a projector file of Gemma 3"
        )
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
